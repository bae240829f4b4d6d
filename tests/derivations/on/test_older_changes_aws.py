"""Older changes of ``on`` handlers, which come after newer ones whose rows are gone: they bring no row back."""

import pytest

from streamfold import Add, App, Delete, Key, Put, Router, Table
from streamfold.batch.process import process_changes
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.errors import EngineUnavailable
from streamfold.failures.failed_records import Waiting
from streamfold.failures.redrive import Redrive
from streamfold.keys.table import MAIN
from streamfold.ledger.state_keys import names_of_rows, row_name, row_names
from streamfold.records.envelope import Origins
from streamfold.records.values import decode
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin
from streamfold.writes.guarded import Claim, DeleteRow, StateKey
from tests.helpers.failures import parked_document
from tests.helpers.older_changes import wrong

ORDER = Key("ORDER#{order_id}", "METADATA")
BY_STATUS = Key("STATUS#{order_id}", "IS#{status}")
LATEST = Key("LATEST#{order_id}", "LATEST")
CHANGES = Key("CHANGES", "TOTAL")
IS_NEW, IS_PAID, IS_LATEST = (
    ("main", "STATUS#1", "IS#new"),
    ("main", "STATUS#1", "IS#paid"),
    ("main", "LATEST#1", "LATEST"),
)
HISTORIES_NIGHTLY = 10_000


def make_app(rows_max=1):
    router = Router()

    @router.on(ORDER, into=[BY_STATUS, LATEST], name="rows")
    def rows(change):
        if not change.new:
            yield Delete(LATEST)
            return
        yield Put(BY_STATUS, status=change.new["status"], price=change.new["price"])
        for number in range(1, rows_max):
            yield Put(BY_STATUS, status=f"{number}", price=number)
        if change.new["price"] < 10:
            yield Put(LATEST, price=change.new["price"])

    @router.on(ORDER, into=CHANGES, name="changes")
    def changes(change):
        yield Add(changes=1)

    return App("shop", routers=[router])


class Shop:
    """An application on a store, whose records are processed or redriven."""

    def __init__(self, app, engine, source):
        self.app, self.engine, self.source = app, engine, source
        self.known = Knowledge()
        self.origins = Origins(app.source_tables, Settings())

    def put(self, **attributes):
        return self.source.put("ORDER#1", **attributes)

    def _run(self, engine):
        return Runtime(self.app, engine or self.engine, Settings(), known=self.known, pause=lambda _: None)

    def deliver(self, *records, engine=None):
        changes = [self.origins.change(record) for record in records]
        report = process_changes(self._run(engine), changes)
        assert not report.failures
        return report

    def redrive(self, record, handler="rows", engine=None):
        redrive = Redrive(self._run(engine), self.origins, fetch=None, put_sources=self.engine.put_sources)
        (told,) = redrive.process(Waiting("here", parked_document(record, handler)))
        return told.what

    def lose(self, *rows):
        """Time to live, or a person, removes rows."""
        assert self.engine.transact([DeleteRow(row) for row in rows], 0) is None

    def price(self, row):
        """What a row shows; None where there is none."""
        found = self.engine.read_rows([row]).get(row, {})
        return None if found.get("_sf_n") == 0 else found.get("price")

    def claims(self):
        items = [{name: decode(value) for name, value in item.items()} for item in self.engine.state_items()]
        return [item for item in items if item["pk"].startswith("claim#shop#rows#")]


@pytest.fixture(params=[MemoryEngine, EmbeddedEngine])
def shop(request, source):
    app = make_app()
    return Shop(app, request.param(app), source)


def test_an_older_change_brings_no_row_back_that_a_newer_one_wrote(shop):
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)
    shop.deliver(newer)
    shop.lose(IS_NEW, IS_LATEST)
    assert shop.redrive(older) == "stale"
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (None, None)
    assert shop.redrive(older) == "known"


def test_an_older_change_writes_the_rows_that_no_newer_one_wrote_or_deleted(shop):
    older, newer = shop.put(status="new", price=5), shop.put(status="paid", price=7)
    shop.deliver(newer)
    shop.lose(IS_PAID, IS_LATEST)
    assert shop.redrive(older) == "applied"
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (5, None)


def test_an_older_change_brings_no_row_back_that_a_newer_one_deleted_and_whose_tombstone_is_gone(shop):
    older, newer = shop.put(status="new", price=5), shop.source.remove("ORDER#1")
    shop.deliver(newer)
    shop.lose(IS_LATEST)
    assert shop.redrive(older) == "applied"
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (5, None)


def test_a_newer_change_writes_a_row_that_is_gone(shop):
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)
    shop.deliver(older)
    shop.lose(IS_NEW, IS_LATEST)
    assert shop.redrive(newer) == "applied"
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (7, 7)


def test_a_change_that_came_between_two_others_leaves_the_newest_row_away(shop):
    oldest, middle, newest = (shop.put(status="new", price=price) for price in (5, 6, 7))
    shop.deliver(oldest)
    shop.deliver(newest)
    shop.lose(IS_NEW, IS_LATEST)
    assert shop.redrive(middle) == "stale"
    assert shop.price(IS_NEW) is None


def test_many_newer_changes_are_looked_through(shop):
    older = shop.put(status="new", price=5)
    shop.deliver(shop.put(status="new", price=50))
    for number in range(150):
        shop.deliver(shop.put(status=f"{number}", price=number + 10))
    shop.lose(IS_NEW)
    assert shop.redrive(older) == "applied"
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (None, 5)


def test_a_claim_of_older_code_names_no_rows_and_an_older_change_is_written_as_before(source):
    app = make_app()
    shop = Shop(app, MemoryEngine(app), source)
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)
    shop.deliver(newer)
    for key in [key for key in shop.engine.state if key.pk.startswith("claim#shop#rows#")]:
        del shop.engine.state[key]["s"]
    shop.lose(IS_NEW)
    assert shop.redrive(older) == "applied"
    assert shop.price(IS_NEW) == 5


def test_an_older_change_still_adds(shop):
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)
    shop.deliver(newer)
    shop.redrive(older, "changes")
    assert shop.engine.read_rows([("main", "CHANGES", "TOTAL")]).popitem()[1]["changes"] == 2


def test_claims_of_another_item_whose_sort_key_begins_alike_are_not_asked(source):
    router = Router()

    @router.on(
        *[Key("ORDER#{order_id}", sort) for sort in ("A", "A#1")], into=Key("ROW#{order_id}", "ROW"), name="rows"
    )
    def rows(change):
        yield Put(price=change.new["price"]) if change.new else Delete()

    app = App("shop", routers=[router])
    shop = Shop(app, MemoryEngine(app), source)
    shop.deliver(source.put("ORDER#1", "A#1", price=1))
    shop.lose(("main", "ROW#1", "ROW"))
    assert shop.redrive(source.put("ORDER#1", "A", price=2)) == "applied"
    assert shop.price(("main", "ROW#1", "ROW")) == 2


class Between:
    """An engine that lets something happen before a transaction. ``dies``: after it, no call is answered."""

    def __init__(self, engine, before=lambda: None, *, dies=False):
        self.engine, self.before, self.dies, self.dead = engine, before, dies, False

    def transact(self, writes, expires_at):
        before, self.before = self.before, lambda: None
        before()
        answer = self._alive("transact")(writes, expires_at)
        self.dead = self.dies
        if self.dead:
            raise EngineUnavailable("the answer was lost")
        return answer

    def _alive(self, name):
        if self.dead:
            raise EngineUnavailable("no answer")
        return getattr(self.engine, name)

    __getattr__ = _alive


def test_a_newer_change_that_lands_after_the_look_and_whose_row_is_gone_at_once_is_not_undone(shop):
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)

    def between():
        shop.deliver(newer)
        shop.lose(IS_NEW)

    shop.redrive(older, engine=Between(shop.engine, between))
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (None, 7)
    shop.deliver(shop.put(status="new", price=8))
    assert shop.price(IS_NEW) == 8


def test_a_write_that_was_believed_dead_is_taken_back_by_the_next_redrive(shop):
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)

    def between():
        shop.deliver(newer)
        shop.lose(IS_NEW, IS_LATEST)

    assert shop.redrive(older, engine=Between(shop.engine, between, dies=True)) == "failed"
    assert shop.price(IS_NEW) == 5
    assert shop.redrive(older) == "known"
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (None, None)


def test_a_record_stays_left_over_where_the_claims_cannot_be_read(shop):
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)
    shop.deliver(newer)
    shop.lose(IS_NEW)

    class Silent(Between):
        def read_entries(self, wanted):
            raise EngineUnavailable("no answer")

    assert shop.redrive(older, engine=Silent(shop.engine)) == "failed"
    assert (shop.price(IS_NEW), len(shop.claims())) == (None, 1)


def test_a_batch_that_comes_again_takes_back_what_it_wrote_of_older_changes(shop):
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)
    shop.deliver(newer)
    shop.lose(IS_NEW, IS_LATEST)
    shop.deliver(older, newer)
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (None, None)


def test_changes_of_kinesis_bring_no_row_back_in_whatever_order_they_come(shop):
    twin = KinesisTwin()
    records = [shop.put(status="new", price=price) for price in (5, 6, 7)]
    for number, record in enumerate(records):
        record["dynamodb"]["ApproximateCreationDateTime"] += number
    oldest, middle, newest = map(twin.append, records)
    shop.deliver(newest)
    shop.lose(IS_NEW, IS_LATEST)
    shop.deliver(middle)
    shop.deliver(oldest)
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (None, None)


def test_numbered_versions_of_an_audit_do_not_come_back(source):
    table = Table("main", ttl="expires")
    order = Key("ORDER#{order_id}", "METADATA", table=table)
    versions = Key("ORDER#{order_id}", "v{revision:04d}", table=table)
    latest = Key("ORDER#{order_id}", "latest", table=table)
    router = Router()
    history = Key("ORDER#{order_id}", "HISTORY#{version}", table=table)
    router.audit(order, name="edits", into=history, versions=versions, latest=latest)
    app = App("shop", routers=[router])
    shop = Shop(app, MemoryEngine(app), source)
    older, same, newest = (shop.put(revision=revision, price=revision) for revision in (1, 1, 2))
    shop.deliver(same)
    shop.deliver(newest)
    shop.lose(*[("main", "ORDER#1", sort) for sort in ("v0001", "latest")])
    assert shop.redrive(older, "edits_versions") == "stale"
    assert not shop.engine.read_rows([("main", "ORDER#1", "v0001"), ("main", "ORDER#1", "latest")])


# What it costs


def test_changes_that_come_in_order_cost_no_request_and_no_unit_more(source):
    app = make_app()
    shop = Shop(app, MemoryEngine(app), source)
    counting = CountingEngine(shop.engine)
    shop.deliver(shop.put(status="new", price=5), engine=counting)
    counting.calls.clear()
    shop.deliver(shop.put(status="new", price=7), engine=counting)
    assert [call.name for call in counting.calls] == ["read_state", "transact"]
    assert counting.write_units == 2 + 2 * 2 + 2 + 2  # a claim and two rows; a claim and a sum


def test_the_claim_of_a_change_with_as_many_rows_as_it_may_write_is_one_write_unit(source):
    app = make_app(rows_max=98)
    shop = Shop(app, MemoryEngine(app), source)
    shop.deliver(shop.put(status="new", price=5))
    (claim,) = shop.claims()
    assert len(names_of_rows(claim["s"])) == 99
    assert sum(len(name) + len(str(value)) for name, value in claim.items()) < 1024


def test_a_claim_without_rows_that_are_put_names_none(shop):
    shop.deliver(shop.put(status="new", price=5))
    stored = [each for each in shop.engine.state_items() if decode(each["pk"]).startswith("claim#shop#changes")]
    assert [sorted(item) for item in stored] == [["pk", "sk", "ttl"]]


def test_rows_have_names_of_their_own_whatever_the_types_of_their_keys():
    rows = [(table, key, sort) for table in ("a", "b") for key in ("1", 1, b"1") for sort in ("1", 1, b"1", None)]
    names = [row_name(row) for row in rows]
    assert len(set(names)) == len(rows)
    assert names_of_rows(row_names(rows)) == set(names)


def test_a_claim_keeps_its_names_and_is_read_with_those_before_it(shop):
    keys = [StateKey("claim#shop#rows#main#S#ORDER#9", f"S#METADATA#00/x/{number}") for number in range(2)]
    assert shop.engine.transact([Claim(keys[0], "abcdefgh"), Claim(keys[1])], 1_900_000_000) is None
    assert shop.engine.read_state(keys) == {
        keys[0]: {"s": "abcdefgh", "ttl": 1_900_000_000},
        keys[1]: {"ttl": 1_900_000_000},
    }


def test_claims_that_a_batch_of_a_state_file_wrote_are_read_in_it(source):
    app = make_app()
    shop = Shop(app, EmbeddedEngine(app), source)
    older, newer = shop.put(status="new", price=5), shop.put(status="new", price=7)
    with shop.engine.batch():
        shop.deliver(newer)
        shop.lose(IS_NEW, IS_LATEST)
        assert shop.redrive(older, "changes") == "applied"
        assert shop.redrive(older) == "stale"
    assert (shop.price(IS_NEW), shop.price(IS_LATEST)) == (None, None)


# Histories


def check(seeds, **options):
    for found in wrong(seeds, **options):
        pytest.fail(found, pytrace=False)


@pytest.mark.parametrize("kinesis", [False, True])
def test_rows_that_go_at_any_moment_do_not_come_back_by_older_changes(kinesis):
    check(range(25), kinesis=kinesis)


@pytest.mark.ci
@pytest.mark.parametrize("kinesis", [False, True])
def test_rows_that_go_at_any_moment_do_not_come_back_by_older_changes_in_hundreds_of_histories(kinesis):
    check(range(100, 300), kinesis=kinesis)


@pytest.mark.nightly
@pytest.mark.parametrize("kinesis", [False, True])
def test_rows_that_go_at_any_moment_do_not_come_back_by_older_changes_in_many_histories(kinesis):
    check(range(1000, 1000 + HISTORIES_NIGHTLY), kinesis=kinesis)


def test_rows_that_go_at_any_moment_do_not_come_back_by_older_changes_in_sqlite():
    for seed in range(3):
        check([seed], engine=EmbeddedEngine([MAIN]))
