"""A step needs no note and no removal if others remain on its row: the row refuses the step if it would be empty."""

from contextlib import suppress
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.commit.emptying import TRUSTED_AFTER_STEPS, count_steps
from streamfold.commit.pending import PendingWork
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.errors import EngineUnavailable
from streamfold.keys.table import MAIN
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.writes.guarded import AddRow, DeleteRow, Refused
from tests.helpers.source import Source

ITEM = Key("ITEM#{i}", "META")
ORDER, PARENT = Key("ORDER#{order}", "META"), ("main", "ORDER#a", "META")
ROW = ("main", "GROUP#a", "TOTAL")
TOTAL, TAG = Key("GROUP#{group}", "TOTAL"), Key("TAG#{tag}", "TOTAL")


class Shop:
    """Items that count in a group and in a tag, by a handler each, and a store whose calls are counted."""

    def __init__(self):
        router = Router()

        @router.view(ITEM, into=TOTAL)
        def groups(item):
            yield Row(group=item["group"], items=Count(), worth=Sum(item["price"]))

        @router.view(ITEM, into=TAG)
        def tags(item):
            if tag := item.get("tag"):
                yield Row(tag=tag, items=Count())

        self.app = App("shop", routers=[router])
        self.engine = CountingEngine(MemoryEngine(self.app.tables.values()))
        self.source = Source()
        self.pace = SendingPace()

    def put(self, number, group, tag=None, price=1):
        more = {"tag": tag} if tag else {}
        return self.source.put(f"ITEM#{number}", "META", group=group, price=price, **more)

    def remove(self, number):
        return self.source.remove(f"ITEM#{number}", "META")

    def change(self, number, group, tag):
        """The record of an item's new group and tag, or of its removal without a group; None if it is not there."""
        if group:
            return self.put(number, group, tag)
        return self.remove(number) if (f"ITEM#{number}", "META") in self.source.items else None

    def deliver(self, *records, actions=100, engine=None, large=False):
        """Delivers a batch; the calls that are left are those of this batch."""
        self.engine.calls.clear()
        run = Runtime(
            self.app,
            engine or self.engine,
            Settings(chunk_actions=actions),
            pace=self.pace,
            actions=1_000 if large else None,
        )
        return process_event(run, list(records)).failures

    def rows(self):
        """How many items each row counts."""
        rows = [decode({"M": row}) for row in self.engine.items(MAIN)]
        return {row["PK"]: int(row["items"]) for row in rows}

    def notes(self):
        """What steps left behind, as the ledger has it."""
        return [name for item in self.engine.state_items() for name in item if name.endswith(".u")]

    def called(self):
        """The calls that wrote, with the number of refused transactions."""
        names = [call.name for call in self.engine.calls if call.name not in ("read_state", "swap_state")]
        return {name: names.count(name) for name in names} | {"refused": len(self.engine.refused)}

    def declared(self):
        """What the rows should count."""
        found = {}
        for item in self.source.items.values():
            for row in [f"{name.upper()}#{item[name]}" for name in ("group", "tag") if name in item]:
                found[row] = found.get(row, 0) + 1
        return found


@pytest.fixture
def shop():
    return Shop()


def test_an_item_that_leaves_others_on_its_row_costs_one_request(shop):
    shop.deliver(*(shop.put(n, "a") for n in range(3)))
    assert shop.deliver(shop.put(0, "b")) == []
    assert shop.called() == {"transact": 1, "refused": 0}
    assert (shop.rows(), shop.notes()) == ({"GROUP#a": 2, "GROUP#b": 1}, [])


def test_the_last_item_of_a_row_is_refused_once_and_the_row_removed(shop):
    shop.deliver(shop.put(0, "a"))
    assert shop.deliver(shop.put(0, "b")) == []
    assert shop.called() == {"transact": 2, "remove_empty": 1, "clear_pending": 1, "refused": 1}
    assert (shop.rows(), shop.notes()) == ({"GROUP#b": 1}, [])


def test_a_step_that_the_ledger_refused_notes_its_rows_when_it_is_planned_again(shop):
    """Refused once, it must not be refused again by the row that it leaves empty."""
    shop.deliver(shop.put(0, "a"))
    shop.put(0, "b")  # a record that is late
    assert shop.deliver(shop.put(0, "c")) == []
    assert shop.called() == {"transact": 2, "remove_empty": 1, "clear_pending": 1, "refused": 1}
    assert (shop.rows(), shop.notes()) == ({"GROUP#c": 1}, [])


def test_items_that_leave_a_row_empty_together_are_refused_though_each_leaves_another(shop):
    shop.deliver(*(shop.put(n, "a") for n in range(3)))
    assert shop.deliver(*(shop.remove(n) for n in range(3))) == []
    assert shop.called()["refused"] == 1
    assert shop.rows() == {}


def test_an_item_that_takes_the_place_of_the_last_one_is_not_refused(shop):
    shop.deliver(shop.put(0, "a"))
    assert shop.deliver(shop.put(0, "b", price=3), shop.put(1, "a", price=2)) == []
    assert shop.called() == {"transact": 1, "refused": 0}
    assert shop.rows() == {"GROUP#a": 1, "GROUP#b": 1}


def test_a_handler_that_left_a_row_empty_notes_its_rows_at_once_from_then_on(shop):
    shop.deliver(*(shop.put(n, "a" if n else "z") for n in range(4)))
    shop.deliver(shop.put(0, "b"))
    assert shop.deliver(shop.put(1, "b"), shop.put(2, "b"), shop.put(3, "b")) == []
    assert shop.called() == {"transact": 1, "remove_empty": 1, "clear_pending": 1, "refused": 0}
    assert shop.rows() == {"GROUP#b": 4}


def test_the_rows_of_other_handlers_are_expected_to_stay(shop):
    shop.deliver(*(shop.put(n, "a", tag=f"t{n}") for n in range(3)))
    shop.deliver(shop.put(0, "a"))
    assert "tags" in shop.pace.emptying
    assert "groups" not in shop.pace.emptying
    shop.deliver(shop.put(1, "b", tag="t1"))
    assert shop.called() == {"transact": 1, "refused": 0}


def test_the_transactions_that_wait_note_their_rows_when_the_first_was_refused(shop):
    shop.deliver(*(shop.put(n, f"{n}") for n in range(40)))
    assert shop.deliver(*(shop.remove(n) for n in range(40)), actions=20) == []
    assert (shop.called()["refused"], shop.rows()) == (1, {})


def test_a_refusal_by_a_row_says_nothing_of_a_batch_that_came_before(shop):
    shop.deliver(*(shop.put(n, f"{n}") for n in range(40)))
    shop.deliver(*(shop.remove(n) for n in range(40)), actions=20)
    assert len(shop.engine.named("read_state")) == 1  # the manifest


def test_a_row_that_somebody_removed_is_not_taken_for_an_empty_one(shop):
    shop.deliver(*(shop.put(n, "a") for n in range(3)))
    shop.engine.transact([DeleteRow(ROW)], 0)
    assert shop.deliver(shop.put(0, "b")) == []
    assert "groups" not in shop.pace.emptying
    assert shop.rows() == {"GROUP#b": 1}


def test_a_large_transaction_of_a_local_store_notes_every_row(shop):
    shop.deliver(*(shop.put(n, "a") for n in range(3)))
    shop.deliver(shop.put(0, "b"), large=True)
    assert shop.called() == {"transact": 1, "remove_empty": 1, "clear_pending": 1, "refused": 0}


class TellsOfOne(MemoryEngine):
    """A store whose refusals tell of one row at a time."""

    refusals = 0

    def transact(self, writes, expires_at):
        refused = super().transact(writes, expires_at)
        if refused is None:
            return None
        self.refusals += 1
        first = next(reason for reason in refused.reasons if reason)
        return Refused(tuple(reason if reason is first else None for reason in refused.reasons))


def group_count(item):
    yield Row(group=item["group"], items=Count())


class Died(BaseException):
    """The process is gone."""


class DiesAfterCommit(MemoryEngine):
    """A store whose process dies after so many commits; None: never."""

    commits_left = None

    def transact(self, writes, expires_at):
        refused = super().transact(writes, expires_at)
        if self.commits_left is not None and refused is None:
            self.commits_left -= 1
            if not self.commits_left:
                raise Died
        return refused


class DiesBeforeRemoving(CountingEngine):
    """A store whose process dies after the commit."""

    def remove_empty(self, rows):
        raise EngineUnavailable("The process died.")

    def clear_pending(self, finished):
        raise EngineUnavailable("The process died.")


def test_a_row_whose_step_was_refused_is_noted_until_it_is_removed(shop):
    shop.deliver(shop.put(0, "a"))
    record = shop.put(0, "b")
    assert shop.deliver(record, engine=DiesBeforeRemoving(shop.engine.engine)) != []
    assert (shop.rows(), len(shop.notes())) == ({"GROUP#a": 0, "GROUP#b": 1}, 1)
    shop.pace = SendingPace()
    assert shop.deliver(record) == []
    assert (shop.rows(), shop.notes()) == ({"GROUP#b": 1}, [])


class Orders:
    """Items whose orders show how many there are, and a store whose process dies after a commit."""

    def __init__(self, items):
        router = Router()

        @router.attributes(ITEM, of=ORDER)
        def count(item):
            yield Row(order=item["order"], items=Count())

        self.app, self.source = App("shop", routers=[router]), Source()
        self.engine = DiesAfterCommit(self.app.tables.values())
        self.engine.put_sources([(PARENT, encode({"PK": PARENT[1], "SK": PARENT[2]})["M"], "1")])
        self.deliver(*self.put("a", range(items)))

    def put(self, order, numbers):
        return [self.source.put(f"ITEM#{n}", "META", order=order) for n in numbers]

    def deliver(self, *records):
        run = Runtime(self.app, self.engine, Settings(chunk_actions=10), pause=lambda _: None)
        assert process_event(run, list(records)).failures == []

    def dies_after(self, commits, *records):
        """Delivers a batch to a process that dies after so many commits, or lives if there are fewer."""
        self.engine.commits_left = commits
        with suppress(Died):
            self.deliver(*records)
        self.engine.commits_left = None

    def shown(self):
        return decode({"M": self.engine.read_sources([PARENT])[PARENT]})["items"]


def test_a_parent_that_an_item_left_is_noted_until_it_shows_what_is_left():
    orders = Orders(2)
    orders.dies_after(1, *orders.put("b", [0]))
    orders.deliver(*orders.put("c", [0]))
    assert orders.shown() == 1


@pytest.mark.parametrize("commits", range(1, 10))
def test_parents_that_many_items_left_are_right_when_the_batch_comes_again(commits):
    orders = Orders(60)
    batch = orders.put("b", range(30))
    orders.dies_after(commits, *batch)
    orders.deliver(*batch)
    assert orders.shown() == 30


def test_a_store_that_tells_of_one_row_at_a_time_is_answered_at_once():
    router = Router()
    for number in range(12):
        router.view(ITEM, into=Key(f"ROW{number}#{{group}}", "TOTAL"), name=f"view{number}")(group_count)
    app, source = App("shop", routers=[router]), Source()
    engine = TellsOfOne(app.tables.values())
    for group in "ab":
        batch = [source.put(f"ITEM#{n}", "META", group=f"{group}{n}") for n in range(5)]
        assert process_event(Runtime(app, engine, Settings(), pause=lambda _: None), batch).failures == []
    assert engine.refusals <= 2


def test_a_row_from_which_one_step_took_that_has_to_stay_and_one_that_need_not_may_be_empty():
    pending_work = PendingWork()
    for write in (
        AddRow(ROW, {}, 1),
        AddRow(ROW, {}, -1, contributors_min=1, requires_contributor=True),
        AddRow(ROW, {}, -1, contributors_min=1),
    ):
        pending_work.commit([], [write])
    assert pending_work.lowered.maybe_empty() == [ROW]


def test_a_row_that_has_to_stay_is_not_looked_at():
    pending_work = PendingWork()
    pending_work.commit([], [AddRow(ROW, {}, -2, contributors_min=2, requires_contributor=True)])
    assert pending_work.lowered.maybe_empty() == []


def test_a_row_that_another_process_took_back_after_this_one_added_to_it_may_be_empty():
    pending_work = PendingWork()
    pending_work.commit([], [AddRow(ROW, {}, 1)])
    pending_work.lowered.add_noted(ROW)
    assert pending_work.lowered.maybe_empty() == [ROW]


def test_a_row_that_got_a_contributor_after_it_was_noted_is_not_empty():
    pending_work = PendingWork()
    pending_work.lowered.add_noted(ROW)
    pending_work.commit([], [AddRow(ROW, {}, 1)])
    assert pending_work.lowered.maybe_empty() == []


def test_rows_are_expected_to_stay_again_after_many_steps_that_left_none_empty():
    emptying = {"groups": 0}
    count_steps(emptying, {"groups": TRUSTED_AFTER_STEPS - 1, "tags": 9}, [])
    assert "groups" in emptying
    count_steps(emptying, {"groups": 1}, [])
    assert "groups" not in emptying
    assert "tags" not in emptying


def test_a_row_that_was_empty_makes_the_count_of_steps_begin_anew():
    emptying = {"groups": 0}
    count_steps(emptying, {"groups": TRUSTED_AFTER_STEPS - 1}, [])
    count_steps(emptying, {"groups": 1}, ["groups"])
    count_steps(emptying, {"groups": TRUSTED_AFTER_STEPS - 1}, [])
    assert "groups" in emptying


CHANGES = st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "c", None]), st.sampled_from(["t", "u", None]))
BATCHES = st.lists(st.tuples(st.lists(CHANGES, min_size=1, max_size=8), st.sampled_from(["on", "new", "again"])))


@given(batches=BATCHES, actions=st.integers(2, 12), stayed=st.integers(1, 4))
def test_whatever_moves_no_row_is_left_empty_and_no_note_is_left(batches, actions, stayed):
    shop = Shop()
    with patch("streamfold.commit.emptying.TRUSTED_AFTER_STEPS", stayed):
        for changes, then in batches:
            records = [record for change in changes if (record := shop.change(*change)) is not None]
            for _ in range(2 if then == "again" else 1):
                assert shop.deliver(*records, actions=actions) == []
            if then == "new":
                shop.pace = SendingPace()
    assert (shop.rows(), shop.notes()) == (shop.declared(), [])
