"""Rows of which additions wait in deltas: they are neither corrected nor compared before these are in the row."""

from contextlib import suppress
from random import Random
from unittest.mock import patch

import pytest

from streamfold.batch.manifest import change_deltas
from streamfold.commit.buckets import FOUND_MAX, empty_buckets
from streamfold.commit.pending import PendingWork
from streamfold.commit.taking_back import StepBack, TakingBack
from streamfold.engines import MemoryEngine
from streamfold.ledger.deltas import (
    BUCKETS,
    STRIPES,
    Delta,
    RowRefusal,
    bucket_of,
    delta_key,
    is_delta,
    names_text,
    new_name,
)
from streamfold.ledger.lives import Lives
from streamfold.ledger.state_keys import ledger_key, row_name
from streamfold.lifecycle import row_repair
from streamfold.lifecycle.buckets import deltas_in, pending_of, pending_rows
from streamfold.lifecycle.explain import Explaining, explain_item
from streamfold.lifecycle.row_repair import PENDING, contributors_of
from streamfold.lifecycle.row_sources import explain_row
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.runtime import DeltasMark, Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping import Died
from streamfold.writes.guarded import AddRow, DeleteState, SwapText
from tests.lifecycle.test_row_repair import APP, FAULTS, ROW, Beside, check, removed, wrong_count

HISTORIES, NIGHTLY_HISTORIES = 100, 1_700
"""Of each fault, of three."""
LATE_SECONDS = 4.5
ALL_BUCKETS = range(BUCKETS)
ITEM_1 = ("main", "ITEM#1", "METADATA")


class LateDeltas(MemoryEngine):
    """A store whose transactions become readable item by item: deltas some seconds after their ledger items."""

    def transact(self, writes, expires_at):
        refused = super().transact(writes, expires_at)
        if refused is None:
            puts = [write.key.sk for write in writes if isinstance(write, SwapText) and write.expected is None]
            self.put_at.update(dict.fromkeys(puts, self.now()))
        return refused

    def read_entries(self, wanted):
        found = super().read_entries(wanted)
        return [each for each in found if self.now() >= self.put_at.get(each[0], 0.0) + LATE_SECONDS]


class BesideDeltas(Beside):
    """The same, with processes that put what they add into deltas, and die before they move it."""

    def __init__(self, count=4, *, noted=True, late=False):
        self.now, self.pauses = 1_000.0, []
        super().__init__(count)
        if late:
            self.engine.__class__, self.engine.put_at, self.engine.now = LateDeltas, {}, lambda: self.now
        self.dying = Runtime(APP, self.engine, Settings(), pause=self._die, clock=lambda: self.now)
        self.dying.pace.sharing.forced = lambda row: True
        self.run = Runtime(APP, self.engine, Settings(), pause=self._pause, clock=lambda: self.now)
        if noted:
            self.note()

    def _die(self, _):
        raise Died

    def _pause(self, seconds):
        self.now += seconds
        if seconds:
            self.pauses.append(seconds)

    def note(self):
        """Notes in the manifest that additions may wait in deltas."""
        change_deltas(self.run, lambda _: DeltasMark(0.0))

    def toggle_in_deltas(self, *numbers):
        run, self.run = self.run, self.dying
        with suppress(Died):
            self.toggle(*numbers)
        self.run = run

    def set(self, *items):
        if self.sequence and self.run is self.dying:
            # What earlier steps of these items have in deltas is moved first: that is no time to die.
            self.empty()
        super().set(*items)

    def empty(self):
        self.now += 10.0
        run = Runtime(APP, self.engine, Settings(), pause=lambda _: None, clock=lambda: self.now)
        for bucket in ALL_BUCKETS:
            empty_buckets(run, [bucket], {})

    @property
    def is_pending(self):
        return ROW in pending_rows("shop", self.engine, ALL_BUCKETS).rows

    def row(self):
        found = self.engine.read_rows([ROW]).get(ROW, {})
        return {name: found.get(name, 0) for name in self.expected()}

    def verified(self, *, live=False):
        return RowsVerifier(self.run, APP.routes, live=live).verify()

    def explained(self):
        return Explaining(APP, self.engine, self.run.known.schema)


def in_deltas(beside, *numbers):
    return lambda: beside.toggle_in_deltas(*numbers)


def moved_at_once(beside, *numbers):
    return lambda: (beside.toggle_in_deltas(*numbers), beside.empty())


def right_once_emptied(beside, found):
    """A row that was corrected is right once all is moved; one that was left is corrected by the next run."""
    beside.empty()
    if found.corrected:
        assert beside.row() == beside.expected()
    check(beside, beside.correct([ROW], {}))
    assert not beside.is_pending


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("how", [in_deltas, moved_at_once])
@pytest.mark.parametrize("numbers", [(0, 1), (0,), (1,)])
def test_what_is_put_into_deltas_at_each_point_of_a_correction_is_added_once(fault, how, numbers):
    for moment in range(40):
        beside = BesideDeltas()
        fault(beside)
        right_once_emptied(beside, beside.correct([ROW], {moment: how(beside, *numbers)}))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_waits_in_deltas_and_is_moved_at_any_points_is_added_once(fault):
    for seed in range(HISTORIES):
        corrected(fault, Random(seed))


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_what_waits_in_deltas_and_is_moved_at_any_points_is_added_once_in_thousands_of_histories(fault):
    for seed in range(NIGHTLY_HISTORIES):
        corrected(fault, Random(f"nightly {seed}"))


def corrected(fault, random):
    beside = BesideDeltas(6, late=random.random() < 0.5)
    if random.random() < 0.3:
        beside.toggle_in_deltas(*random.sample(range(6), random.randint(1, 3)))
    fault(beside)
    events = [
        lambda: beside.toggle_in_deltas(*random.sample(range(6), random.randint(1, 3))),
        lambda: beside.toggle(*random.sample(range(6), random.randint(1, 2))),
        beside.empty,
    ]
    moments = {random.randrange(70): random.choice(events) for _ in range(random.randint(1, 4))}
    right_once_emptied(beside, beside.correct([ROW], moments))


def test_a_row_of_which_something_is_pending_is_left_as_it_is():
    beside = BesideDeltas()
    beside.toggle_in_deltas(0)
    wrong_count(beside)
    before = beside.engine.read_rows([ROW])
    found = beside.correct([ROW], {})
    assert [(each.row, each.why) for each in found.remaining] == [(ROW, PENDING)]
    assert beside.engine.read_rows([ROW]) == before
    right_once_emptied(beside, found)


@pytest.mark.parametrize("stripe", range(STRIPES))
def test_what_waits_in_any_stripe_is_seen(stripe):
    beside = BesideDeltas()
    beside.dying.pace.sharing.token = lambda: f"{stripe:x}{'f' * 16}"
    beside.toggle_in_deltas(0)
    assert [each.why for each in beside.correct([ROW], {}).remaining] == [PENDING]


def test_what_waits_behind_more_deltas_than_are_read_at_once_is_seen():
    beside, bucket = BesideDeltas(), bucket_of(ROW)
    other = next(row for row in (("main", f"R{n}", "S") for n in range(999)) if bucket_of(row) == bucket)
    beside.dying.pace.sharing.token = lambda: f"0{'f' * 16}"
    beside.toggle_in_deltas(0)
    for number in range(FOUND_MAX * 2):
        key = delta_key("shop", new_name(bucket, f"0{number:016x}"))
        beside.engine.transact([SwapText(key, Delta((AddRow(other, {"n": 1}, 1),)).text(), None)], 0)
    assert [each.why for each in beside.correct([ROW], {}).remaining] == [PENDING]
    assert sum(map(len, deltas_in("shop", beside.engine, bucket))) == FOUND_MAX * 2 + 1


def test_a_delta_that_is_readable_after_its_ledger_item_is_waited_for():
    beside = BesideDeltas(late=True)
    wrong_count(beside)
    beside.toggle_in_deltas(0)
    found = beside.correct([ROW], {})
    assert [each.why for each in found.remaining] == [PENDING]
    right_once_emptied(beside, found)


def test_a_correction_adds_nothing_that_is_taken_back_behind_its_second_scan():
    beside, scans = BesideDeltas(), []
    wrong_count(beside)
    beside.toggle_in_deltas(0)
    for key in filter(is_delta, [*beside.engine.state]):
        text = beside.engine.state[key]["s"]
        refused = Delta.of(text)._replace(refused=RowRefusal("no", 0)).text()
        beside.engine.transact([SwapText(key, refused, text)], 0)

    def scanned(*given):
        found = contributors_of(*given)
        scans.append(None)
        if len(scans) == 2:
            (key,) = [key for key in beside.engine.state if key.pk.startswith("ledger#") and "ITEM#0" in key.pk]
            route = next(route for route in APP.routes if f"{route.name}.p" in beside.engine.state[key])
            way = StepBack(key, ("main", "ITEM#0", "METADATA"), route, [])
            assert TakingBack(beside.run, PendingWork(), Lives()).take(way)
        return found

    with patch.object(row_repair, "contributors_of", scanned):
        assert [each.why for each in beside.correct([ROW], {}).remaining] == [PENDING]


def test_a_correction_waits_twice_for_all_rows_and_only_where_deltas_are_put():
    for noted, pauses in ((True, [5.0, 5.0]), (False, [])):
        beside = BesideDeltas(noted=noted)
        wrong_count(beside)
        assert beside.correct([ROW], {}).corrected == [ROW]
        assert beside.pauses == pauses


def test_a_row_that_is_put_whole_waits_for_nothing():
    beside, own = BesideDeltas(), ("main", "OWN#1", "OWN")
    beside.engine.rows[own] |= {"amount": {"N": "9"}}
    assert (beside.correct([own], {}).corrected, beside.pauses) == ([own], [])


def test_a_whole_row_that_refuses_what_its_item_has_in_a_delta_is_left():
    beside, own = BesideDeltas(), ("main", "OWN#1", "OWN")
    name = new_name(bucket_of(own), "0" * 17)
    delta = Delta((AddRow(own, {"amount": 5}, 1),))
    beside.engine.transact([SwapText(delta_key("shop", name), delta.text(), None)], 0)
    beside.engine.state[ledger_key("shop", "main", ITEM_1)]["own.p"] = names_text({name: frozenset([row_name(own)])})
    whole = beside.engine.rows[own]
    beside.engine.rows[own] = whole | {"amount": {"BOOL": True}}
    found = beside.correct([own], {})
    assert ([each.why for each in found.remaining], beside.engine.rows[own]["amount"]) == ([PENDING], {"BOOL": True})


@pytest.mark.parametrize("moment", range(30))
def test_a_correction_that_began_before_the_first_delta_sees_what_is_pending(moment):
    beside = BesideDeltas(noted=False)
    wrong_count(beside)

    def first():
        beside.note()
        beside.toggle_in_deltas(0)

    right_once_emptied(beside, beside.correct([ROW], {moment: first}))


def test_a_row_of_which_a_damaged_delta_may_be_is_left_until_somebody_removes_it():
    beside = BesideDeltas()
    beside.toggle_in_deltas(1)
    (key,) = (key for key in beside.engine.state if key.pk.startswith("delta#"))
    beside.engine.state[key]["s"] = "{"
    warnings = []
    beside.run.warn = warnings.append
    assert [each.row for each in beside.verified().different] == [ROW]
    found = beside.correct([ROW], {})
    assert [[each.why for each in found.remaining]] == [warnings]
    assert "Remove it" in warnings[0]
    assert next(each.deltas for each in explain_item(beside.explained(), ITEM_1) if each.deltas)[0].status == "unread"
    beside.engine.transact([DeleteState(key)], 0)
    check(beside, beside.correct([ROW], {}))


def test_a_row_is_not_different_while_something_of_it_is_pending():
    beside = BesideDeltas()
    beside.toggle_in_deltas(0)
    found = beside.verified()
    assert (found.different, found.pending) == ([], 1)
    wrong_count(beside)
    found = beside.verified()
    assert (found.different, found.pending) == ([], 1)
    beside.empty()
    found = beside.verified()
    assert ([each.row for each in found.different], found.pending) == ([ROW], 0)


def test_a_row_that_somebody_removed_is_not_missing_while_something_of_it_is_pending():
    beside = BesideDeltas()
    beside.toggle_in_deltas(0)
    removed(beside)
    assert beside.verified().different == []


def test_rows_are_compared_where_nobody_puts_deltas():
    beside = BesideDeltas(noted=False)
    wrong_count(beside)
    assert [each.row for each in beside.verified().different] == [ROW]
    reads = []
    read_entries = beside.engine.read_entries
    beside.engine.read_entries = lambda wanted: reads.append(wanted) or read_entries(wanted)
    beside.verified()
    assert not [each for each in reads if each.partition.startswith("delta#")]


@pytest.mark.parametrize("moment", range(0, 60, 3))
def test_a_live_row_that_is_moved_while_it_is_compared_is_not_different(moment):
    beside, calls = BesideDeltas(), iter(range(1_000))
    beside.toggle_in_deltas(0, 1)
    read_rows, read_entries = beside.engine.read_rows, beside.engine.read_entries

    def at_a_read(read):
        def reading(*arguments, **options):
            if next(calls) == moment:
                beside.empty()
            return read(*arguments, **options)

        return reading

    beside.engine.read_rows, beside.engine.read_entries = at_a_read(read_rows), at_a_read(read_entries)
    assert beside.verified(live=True).different == []


def test_an_explained_row_is_compared_with_what_is_pending():
    beside = BesideDeltas()
    beside.toggle_in_deltas(0, 1)
    beside.toggle_in_deltas(2)
    found = explain_row(beside.explained(), ROW, scan=True)
    assert (found.pending, found.agrees) == (pending_of("shop", beside.engine, ROW), True)
    assert found.pending is not None
    assert (found.pending.contributors, dict(found.pending.amounts)) == (1, {"n": 1, "total": 5})
    wrong_count(beside)
    assert not explain_row(beside.explained(), ROW, scan=True).agrees


def test_an_explained_item_names_its_deltas():
    beside = BesideDeltas()
    beside.toggle_in_deltas(1)
    (delta,) = next(each.deltas for each in explain_item(beside.explained(), ITEM_1) if each.deltas)
    assert (delta.handler, delta.status, delta.why) == ("open_items", "pending", None)
    beside.empty()
    (delta,) = next(each.deltas for each in explain_item(beside.explained(), ITEM_1) if each.deltas)
    assert delta.status == "gone"
