"""``streamfold buckets``: what waits for shared rows, and the way back to code that does not know deltas."""

import json
from functools import partial
from itertools import count
from secrets import token_hex
from unittest.mock import patch

import pytest

from streamfold.batch.manifest import change_deltas, read_manifest
from streamfold.batch.process import process_event
from streamfold.commit.buckets import SharedRows, read_heads
from streamfold.keys.table import CONTRIBUTORS
from streamfold.ledger.deltas import ID_BYTES, bucket_of, head_key, shared_key
from streamfold.runtime import DELTAS_AFTER_SECONDS, DeltasMark, Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source

NOON = 1_772_366_400.0
AT_NOON, AFTER_NOON = "2026-03-01T12:00:00+00:00", "2026-03-01T12:15:00+00:00"
LONG_AGO = NOON - 10 * DELTAS_AFTER_SECONDS
SHOP = """
from streamfold import App, Count, Key, Router, Row, Sum

ORDER = Key("ORDER#{order_id}", "METADATA")
router = Router()


@router.view(ORDER, into=Key("CUSTOMER#{customer}", "TOTAL"))
def totals(order):
    yield Row(customer=order["customer"], total=Sum(order["total"]), orders=Count())


app = App("shop", routers=[router])
"""
ROW = ("main", "CUSTOMER#ann", "TOTAL")


def token(stripe):
    return f"{stripe:x}{token_hex(ID_BYTES)}"


class Clock:
    """A clock that goes on only by pauses; ``at_pause`` is called in each."""

    def __init__(self):
        self.now, self.pauses, self.at_pause = NOON, [], lambda: None

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds
        self.at_pause()

    @property
    def waited(self):
        return sum(self.pauses)


class Shop:
    """Processes that put deltas, and die before anything is moved."""

    def __init__(self, on_aws, clock):
        self.aws, self.clock, self.source, self.orders = on_aws, clock, Source(), 0

    def runtime(self):
        app = self.aws.app()
        return Runtime(app, self.aws.engine(app), Settings(), clock=self.clock, pause=self.clock.pause)

    def mark(self, mark):
        runtime = self.runtime()
        if not read_manifest("shop", runtime.engine).handlers:
            process_event(runtime, [])
        change_deltas(runtime, lambda _: mark)

    @property
    def marked(self):
        return read_manifest("shop", self.runtime().engine).deltas

    def put_deltas(self, *customers):
        """A process dies with deltas, one for each customer."""
        for customer in customers:
            self.orders += 1
            runtime = self.runtime()
            runtime.pace.sharing.forced = lambda row: True
            died = patch("streamfold.commit.pending.wait_for_deltas", side_effect=KeyboardInterrupt)
            helps_nobody = patch("streamfold.batch.process.note_unvisited")
            record = self.source.put(f"ORDER#{self.orders}", customer=customer, total=5)
            with died, helps_nobody, pytest.raises(KeyboardInterrupt):
                process_event(runtime, [record])

    def total(self, customer="ann"):
        row = self.aws.row(f"CUSTOMER#{customer}")
        return row and (int(row["total"]["N"]), int(row["orders"]["N"]))

    def run(self, *arguments):
        return self.aws.run("buckets", *arguments)

    def shown(self):
        return json.loads(self.run("--json").out)


@pytest.fixture
def shop(folder, on_aws, monkeypatch):
    folder.app(SHOP)
    clock = Clock()
    timed = partial(Runtime, clock=clock, pause=clock.pause)
    monkeypatch.setattr("streamfold.cli.session.Runtime", timed)
    monkeypatch.setattr("streamfold.commit.buckets.STRIPES", 2)  # each is a query, and moto takes its time
    number = count()
    monkeypatch.setattr("streamfold.runtime.new_token", lambda: token(stripe=next(number) % 2))
    return Shop(on_aws, clock)


def test_a_state_without_a_mark_has_nothing_to_show(shop):
    ran = shop.run()
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "Mark: none. No deltas are put, and older code may run.",
            "Pending: 0 deltas.",
            "Known to be shared: 0 rows.",
        ],
    )


def test_what_is_pending_is_shown_by_bucket_and_nothing_is_written(shop):
    shop.mark(DeltasMark(NOON))
    shop.put_deltas("ann", "ann", "ben")
    before = shop.aws.state()
    ran = shop.run()
    ann, ben = (f"{bucket_of(('main', f'CUSTOMER#{each}', 'TOTAL')):x}" for each in ("ann", "ben"))
    assert ann != ben
    places = ", ".join(f"{count} in {bucket}" for bucket, count in sorted({ann: 2, ben: 1}.items()))
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            f"Mark: open, set at {AT_NOON}. Deltas may be put from {AFTER_NOON} on.",
            f"Pending: 3 deltas ({places}).",
            "Known to be shared: 0 rows.",
        ],
    )
    assert shop.shown() == {
        "mark": {"state": "open", "since": AT_NOON, "puts_from": AFTER_NOON},
        "pending": 3,
        "buckets": {ann: 2, ben: 1},
        "refused": [],
        "damaged": [],
        "leases": [],
        "rows_shared": 0,
    }
    assert shop.aws.state() == before


def test_who_empties_a_bucket_and_how_many_rows_are_shared_is_shown(shop):
    shop.mark(DeltasMark(LONG_AGO))
    runtime = shop.runtime()
    rows = {"aaaaaaaa": NOON - 5, "bbbbbbbb": NOON - 3600}
    head = read_heads(runtime)[3]._replace(holder="9f2c", until=NOON + 1)
    runtime.engine.swap_state(head_key("shop", 3), head.attributes(), 0)
    runtime.engine.swap_state(shared_key("shop", 3), SharedRows(0, rows).attributes(), 0)
    assert shop.run().out.splitlines()[-2:] == [
        "Bucket 3 is emptied by 9f2c until 2026-03-01T12:00:01+00:00.",
        "Known to be shared: 1 row.",
    ]


def test_the_way_back_waits_empties_all_buckets_and_takes_the_mark_away(shop):
    customers = [f"c{number}" for number in range(20)]
    shop.mark(DeltasMark(LONG_AGO))
    shop.put_deltas(*customers, *customers[:2])
    assert len(shop.shown()["buckets"]) > 8, "more than are emptied side by side"

    ran = shop.run("--empty", "--yes")

    assert ran.code == 0, ran.err
    assert DELTAS_AFTER_SECONDS <= shop.clock.waited < DELTAS_AFTER_SECONDS + 10
    assert "Waiting 15 minutes for batches that began before" in ran.err
    assert "This writes to AWS" in ran.err
    assert ran.out.startswith("Mark: none.")
    assert [shop.total(customer) for customer in customers] == [(10, 2)] * 2 + [(5, 1)] * 18
    assert shop.marked is None
    assert shop.shown()["pending"] == 0


def test_the_way_back_asks_before_it_writes(shop):
    shop.mark(DeltasMark(LONG_AGO))
    ran = shop.run("--empty")
    assert (ran.code, shop.marked) == (2, DeltasMark(LONG_AGO))
    assert "Nobody can be asked for confirmation here: give --yes" in ran.err


def test_a_stopped_way_back_stays_closed_and_goes_on_where_the_time_is(shop):
    shop.mark(DeltasMark(LONG_AGO))
    shop.put_deltas("ann")
    shop.clock.at_pause = lambda: shop.clock.waited >= 600 and (_ for _ in ()).throw(KeyboardInterrupt)

    ran = shop.run("--empty", "--yes")

    assert ran.code == 130
    assert "remains closed: no deltas are put. streamfold buckets --empty goes on" in ran.err
    assert shop.marked == DeltasMark(LONG_AGO, NOON)
    assert shop.run().out.startswith(f"Mark: closed since {AT_NOON}, set at ")
    shop.clock.at_pause = lambda: None
    assert shop.run("--empty", "--yes").code == 0
    assert shop.clock.waited < DELTAS_AFTER_SECONDS + 10
    assert (shop.marked, shop.total()) == (None, (5, 1))


def test_a_closed_mark_is_opened_again_and_keeps_its_time(shop):
    shop.mark(DeltasMark(LONG_AGO, NOON))
    ran = shop.run("--open", "--yes")
    assert (ran.code, ran.out[:10]) == (0, "Mark: open")
    assert shop.marked == DeltasMark(LONG_AGO)


def test_a_mark_that_somebody_opened_and_closed_meanwhile_is_not_taken_away(shop):
    shop.mark(DeltasMark(LONG_AGO))

    def opened_and_closed():
        if shop.clock.waited == 300:
            shop.mark(DeltasMark(LONG_AGO))
            shop.mark(DeltasMark(LONG_AGO, shop.clock()))

    shop.clock.at_pause = opened_and_closed
    ran = shop.run("--empty", "--yes")
    assert (ran.code, shop.marked) == (1, DeltasMark(LONG_AGO, NOON + 300))
    assert "Somebody changed the mark meanwhile" in ran.err


def test_a_mark_that_is_opened_while_buckets_are_emptied_is_not_taken_away(shop):
    shop.mark(DeltasMark(LONG_AGO))
    with patch("streamfold.lifecycle.buckets.WayBack.empty", side_effect=lambda: shop.mark(DeltasMark(LONG_AGO)) or 0):
        ran = shop.run("--empty", "--yes")
    assert (ran.code, shop.marked) == (1, DeltasMark(LONG_AGO))


def test_a_mark_that_was_closed_before_anybody_might_put_deltas_goes_at_once(shop):
    """Code that is still deployed sets it again at each conflict; older code would be kept out for good."""
    shop.mark(DeltasMark(NOON - 200))
    assert shop.run("--empty", "--yes").code == 0
    assert (shop.clock.waited, shop.marked) == (0, None)
    shop.mark(DeltasMark(NOON - 400))  # a clock may be slow
    assert shop.run("--empty", "--yes").code == 0
    assert (shop.clock.waited, shop.marked) == (DELTAS_AFTER_SECONDS, None)


def test_the_way_back_stays_closed_while_a_row_refuses_and_names_it(shop):
    shop.mark(DeltasMark(LONG_AGO))
    shop.put_deltas("ann", "ann", "ben")
    key = {"PK": {"S": ROW[1]}, "SK": {"S": ROW[2]}}
    shop.aws.client.put_item(TableName="shop", Item={**key, "total": {"S": "a text"}, CONTRIBUTORS: {"N": "1"}})

    ran = shop.run("--empty", "--yes")

    assert (ran.code, shop.marked) == (1, DeltasMark(LONG_AGO, NOON))
    assert (
        "2 deltas could not be moved, because rows refuse them, or they are damaged. Correct or remove each of"
        in ran.err
    )
    (line,) = [line for line in ran.out.splitlines() if line.startswith("Refused: ")]
    assert line.startswith("Refused: row CUSTOMER#ann / TOTAL, additions of totals: The store refused the write with ")
    assert shop.total("ben") == (5, 1)
    assert shop.run().code == 1
    (refused,) = shop.shown()["refused"]
    assert refused["row"] == {"table": "main", "key": key}
    assert refused["handlers"] == ["totals"]

    shop.aws.client.delete_item(TableName="shop", Key=key)
    assert shop.run("--empty", "--yes").code == 0
    assert (shop.marked, shop.total()) == (None, (10, 2))


def test_a_delta_that_somebody_damaged_is_named_and_keeps_the_mark_closed(shop):
    shop.mark(DeltasMark(LONG_AGO, NOON - DELTAS_AFTER_SECONDS))
    shop.put_deltas("ann", "ben")
    (damaged, *_) = (item for item in shop.aws.state() if item["pk"]["S"].startswith("delta#"))
    shop.aws.client.put_item(TableName="shop-state", Item=damaged | {"s": {"S": "{"}})
    ran = shop.run("--empty", "--yes")
    assert (ran.code, shop.marked.closed) == (1, NOON - DELTAS_AFTER_SECONDS)
    name = f"{damaged['pk']['S']} / {damaged['sk']['S']}"
    assert f"A delta cannot be read, so what it adds is in no row: {name} in the state table." in ran.out
    assert shop.shown()["pending"] == len(shop.shown()["damaged"]) == 1

    shop.aws.client.delete_item(TableName="shop-state", Key={name: damaged[name] for name in ("pk", "sk")})
    assert shop.run("--empty", "--yes").code == 0
    assert {shop.total(each) for each in ("ann", "ben")} == {(5, 1), None}


def test_a_bucket_that_another_process_empties_is_waited_for(shop):
    shop.mark(DeltasMark(LONG_AGO, NOON - DELTAS_AFTER_SECONDS))
    shop.put_deltas("ann")
    runtime, bucket = shop.runtime(), bucket_of(ROW)
    head = read_heads(runtime)[bucket]._replace(holder="9f2c", until=NOON + 1.5)
    assert runtime.engine.swap_state(head_key("shop", bucket), head.attributes(), 0)
    assert shop.run("--empty", "--yes").code == 0
    assert 1.5 <= shop.clock.waited < 2
    assert shop.total() == (5, 1)


def test_deltas_behind_a_hundred_that_rows_refuse_are_moved(shop, monkeypatch):
    monkeypatch.setattr("streamfold.commit.buckets.FOUND_MAX", 1)
    shop.mark(DeltasMark(LONG_AGO, NOON - DELTAS_AFTER_SECONDS))
    key = {"PK": {"S": ROW[1]}, "SK": {"S": ROW[2]}}
    shop.aws.client.put_item(TableName="shop", Item={**key, "total": {"S": "a text"}})
    ben = next(
        each for each in map(str, range(1000)) if bucket_of(("main", f"CUSTOMER#{each}", "TOTAL")) == bucket_of(ROW)
    )
    with patch("streamfold.runtime.new_token", lambda: token(stripe=0)):
        shop.put_deltas(*["ann"] * 4, *[ben] * 4)
    assert shop.run("--empty", "--yes").code == 1
    assert shop.total(ben) == (20, 4)
    assert shop.shown()["pending"] == 4


def test_a_local_state_has_no_deltas(folder):
    folder.app(SHOP)
    folder.run("replay", folder.records(Source().put("ORDER#1", customer="ann", total=5)), "--state", "state.db")
    ran = folder.run("buckets", "--state", "state.db")
    assert (ran.code, ran.out) == (0, "A local state has no deltas: one process works on it at a time.\n")


@pytest.mark.parametrize("option", ["--empty", "--open"])
def test_the_way_back_of_a_local_state_is_refused(folder, option):
    ran = folder.run("buckets", option)
    assert (ran.code, ran.out) == (2, "")
    assert f"A local state has no deltas, so {option} has nothing to do: give --engine dynamodb." in ran.err


def test_contradicting_options_are_refused(shop):
    ran = shop.run("--empty", "--open")
    assert ran.code == 2
    assert "--empty and --open do not go together: give one of them." in ran.err
