"""A redelivered batch is recognized by a few reads, and costs no more than the reads of its ledger items."""

from dataclasses import replace
from itertools import islice
from unittest.mock import patch

import pytest

from streamfold import App, Count, Key, Max, Router, Row
from streamfold.batch import process
from streamfold.batch.already_applied import LOOKED_AT, SAMPLE
from streamfold.batch.process import process_event
from streamfold.commit import committer
from streamfold.commit.committer import Committer
from streamfold.commit.transactions import read_state_in_calls
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.errors import EngineUnavailable
from streamfold.keys.table import MAIN
from streamfold.records.values import decode
from streamfold.runtime import CallSlots, Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.settings.limits import KEYS_MAX
from tests.helpers.records import item, record
from tests.helpers.source import Source

ITEM, GROUP = Key("ITEM#{i}", "META"), Key("GROUP#{group}", "TOTAL")
ITEMS, GROUPS = 40, 4
ACTIONS = 20


class Beside(CallSlots):
    count = 2


class Shop:
    """A table of items in groups, its stream, and a store whose calls are counted."""

    def __init__(self):
        self.called = 0
        router = Router()

        @router.view(ITEM, into=GROUP)
        def groups(item):
            self.called += 1
            yield Row(group=item["group"], items=Count(), best=Max(item["price"]))

        self.app = App("shop", routers=[router])
        self.engine = CountingEngine(MemoryEngine(self.app.tables.values()))
        self.source = Source()
        self.pace = SendingPace()

    def puts(self, price, items=ITEMS):
        return [self.source.put(f"ITEM#{n}", "META", group=str(n % GROUPS), price=price + n) for n in range(items)]

    def deliver(self, *records, new=True):
        """Delivers a batch to a process that is new, or goes on; the calls that are left are those of this batch."""
        self.engine.calls.clear()
        self.called = 0
        self.pace = SendingPace() if new else self.pace
        report = process_event(
            Runtime(self.app, self.engine, Settings(chunk_actions=ACTIONS), pace=self.pace), list(records)
        )
        assert report.failures == []
        return report

    def rows(self):
        """The rows as readers see them, by group."""
        return {row["PK"]: {name: row[name] for name in ("items", "best") if name in row} for row in self._rows()}

    def _rows(self):
        return [decode({"M": row}) for row in self.engine.items(MAIN)]

    def reads(self):
        """How many ledger items each read asked for. The first reads the manifest and the forms too."""
        first, *others = [call.actions for call in self.engine.named("read_state")]
        return [first - len(("manifest", "forms")), *others]


@pytest.fixture
def shop():
    return Shop()


def test_a_batch_that_came_before_is_read_and_neither_derived_nor_sent(shop):
    batch = shop.puts(1)
    shop.deliver(*batch)
    before = shop.rows()
    report = shop.deliver(*batch)
    assert (report.known, shop.called, shop.engine.named("transact")) == (ITEMS, 0, [])
    assert shop.reads() == [SAMPLE, ITEMS]
    assert shop.rows() == before


def test_items_are_unchanged_however_it_is_found_out_that_a_batch_came_before(shop):
    batch = shop.puts(1)
    shop.deliver(*batch)
    for some in (batch, batch[:ACTIONS]):  # of a large batch the ledger is read, of a small one a guard refuses
        assert shop.deliver(*some).tallies["groups"].unchanged == len(some)


def test_items_without_old_images_that_came_before_are_unchanged(shop):
    items = [item(f"ITEM#{n}", "META", group="0", price=n) for n in range(3)]
    records = [record(there, there, view="NEW_IMAGE") for there in items]
    assert shop.deliver(*records).tallies["groups"].unchanged == 0
    assert shop.deliver(*records).tallies["groups"].unchanged == 3


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_record_that_is_repeated_in_a_batch_is_known_as_often(shop, times):
    first, *others = shop.puts(1, items=5)
    assert shop.deliver(*[first] * times, *others).known == 0
    assert shop.deliver(*[first] * times, *others).known == times + 4


def test_a_new_batch_is_asked_for_once_by_a_process_that_cannot_know(shop):
    with patch.object(process, "Committer", wraps=Committer) as made:
        shop.deliver(*shop.puts(1))
    assert shop.reads() == [SAMPLE]
    assert made.call_args.kwargs["first_transaction_alone"] is False
    shop.deliver(*shop.puts(2), new=False)
    assert shop.reads() == [0]


def test_a_batch_that_may_fit_one_transaction_is_not_asked_for(shop):
    shop.deliver(*shop.puts(1, items=ACTIONS))
    assert shop.reads() == [0]


@pytest.mark.parametrize("committed", range(0, ITEMS, 7))
def test_what_the_ledger_lacks_of_a_batch_that_came_in_part_is_sent(shop, committed):
    first, batch = shop.puts(1), shop.puts(2)
    shop.deliver(*first)
    shop.deliver(*batch[:committed])
    shop.deliver(*batch)
    again = Shop()
    again.deliver(*first)
    again.deliver(*batch)
    assert shop.rows() == again.rows()


@pytest.mark.parametrize("every", [2, 3, 4, 7])
@pytest.mark.parametrize("many", [3 * LOOKED_AT, 820, 1_500])
def test_a_batch_that_came_before_is_found_out_among_records_that_no_handler_reads(shop, every, many):
    batch = [
        shop.source.put(f"{'ITEM' if n % every == 1 else 'LOG'}#{n}", "META", group=str(n % GROUPS), price=n)
        for n in range(many * every)
    ]
    shop.deliver(*batch)
    shop.deliver(*batch)
    assert (shop.called, shop.engine.named("transact")) == (0, [])


def test_a_sample_that_is_not_answered_leaves_the_batch_as_it_is(shop):
    batch = shop.puts(1)
    shop.deliver(*batch)
    read = shop.engine.read_state

    def throttled(keys, **how):
        keys = list(keys)
        if how["consistent"] and any("ITEM#" in key.pk for key in keys):
            raise EngineUnavailable("throttled")
        return read(keys, **how)

    with patch.object(shop.engine, "read_state", throttled):
        assert shop.deliver(*batch).known == ITEMS
    assert [call.refused for call in shop.engine.named("transact")] == [True]


def test_a_handler_that_did_not_see_a_batch_is_not_taken_to_have_seen_it():
    router = Router()
    for name in "ab":

        def grouped(item):
            yield Row(group=item["group"], items=Count())

        router.view(ITEM, into=Key(f"{name}#{{group}}", "TOTAL"), name=name, group=name)(grouped)
    app = App("shop", routers=[router])
    engine, source = MemoryEngine(app.tables.values()), Source()
    records = [source.put(f"ITEM#{n}", "META", group="1") for n in range(ITEMS)]
    for name in "ab":
        pace = SendingPace()
        run = Runtime(app, engine, Settings(chunk_actions=ACTIONS), pace=pace, handlers=frozenset(name))
        with patch.object(process, "Committer", wraps=Committer) as made:
            assert process_event(run, records).failures == []
        assert made.call_args.kwargs["first_transaction_alone"] is False


def test_a_sample_is_no_larger_for_many_groups():
    router = Router()
    for number in range(12):

        def grouped(item):
            yield Row(group=item["group"], items=Count())

        router.view(ITEM, into=Key(f"GROUP{number}#{{group}}", "TOTAL"), name=f"g{number}", group=f"g{number}")(grouped)
    app = App("shop", routers=[router])
    engine, source = CountingEngine(MemoryEngine(app.tables.values())), Source()
    records = [source.put(f"ITEM#{n}", "META", group="1") for n in range(ITEMS)]
    process_event(Runtime(app, engine, Settings(chunk_actions=ACTIONS)), records)
    assert engine.named("read_state")[0].actions == SAMPLE + len(("manifest", *app.routes))


def test_a_batch_with_newer_changes_than_came_before_is_sent(shop):
    batch = shop.puts(1)
    shop.deliver(*batch)
    later = shop.source.put("ITEM#1", "META", group="1", price=1000)
    shop.deliver(*batch, later)
    assert shop.rows()["GROUP#1"] == {"items": 10, "best": 1000}


def test_rows_that_a_dead_process_did_not_recompute_are_recomputed_though_nothing_is_derived(shop):
    batch = shop.puts(1)
    with patch.object(committer, "recompute_rows", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        shop.deliver(*batch)
    assert not any("best" in row for row in shop.rows().values())
    shop.deliver(*batch)
    assert shop.called == 0
    assert sorted(row["best"] for row in shop.rows().values()) == [37, 38, 39, 40]


def test_rows_that_a_dead_process_left_empty_are_removed(shop):
    shop.deliver(*shop.puts(1))
    removed = [shop.source.remove(f"ITEM#{n}", "META") for n in range(ITEMS)]
    with patch.object(committer, "remove_empty", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        shop.deliver(*removed)
    assert len(shop.rows()) == GROUPS
    shop.deliver(*removed)
    assert shop.rows() == {}


@pytest.mark.parametrize("answered", [0, 1])
def test_what_is_not_read_of_a_batch_that_came_before_is_sent_and_refused(shop, answered):
    batch = shop.puts(1, items=2 * KEYS_MAX)
    shop.deliver(*batch)
    before = shop.rows()

    def read(runtime, keys):
        yield from islice(read_state_in_calls(replace(runtime, slots=Beside()), keys), answered)
        raise EngineUnavailable("busy")

    with patch("streamfold.batch.already_applied.read_state_in_calls", read):
        assert shop.deliver(*batch).known == 2 * KEYS_MAX
    assert shop.called == (2 - answered) * KEYS_MAX
    assert len(shop.engine.named("transact")) == 1
    assert shop.rows() == before
