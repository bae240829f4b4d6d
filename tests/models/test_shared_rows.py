"""The model of shared rows: seeded histories under faults, a mutant for each guard, and scripts of attacks on it.

docs/decisions/0080-deltas.md says what each guard is for.
"""

from random import Random

import pytest

from tests.models.shared_rows.emptying import INVOCATION_MAX, Actor, Emptier, Mender, Mutant, WayBack
from tests.models.shared_rows.histories import History, Running, wrong_history
from tests.models.shared_rows.steps import Batch, Committer, OlderBatch
from tests.models.shared_rows.store import CURSOR, MANIFEST, READABLE_AFTER, Manifest, Row

QUICK, CI, NIGHTLY = 120, 800, 40_000
QUICK_MUTANTS, MUTANTS_MAX = 150, 2_000
SCRIPTED = {
    Mutant.ANY_CONTENT,
    Mutant.GUESS_OVERTAKES,
    Mutant.ABSENT_BY_SINGLE_READ,
    Mutant.EMPTY_UNMARKED,
    Mutant.MENDS_AT_ONCE,
    Mutant.MENDS_ONE_SCAN,
    Mutant.MENDS_ONE_LOOK,
    Mutant.BACK_OF_OTHERS,
    Mutant.BACK_OLDER,
    Mutant.DROPPED_WHOLE,
    Mutant.DROPPED_UNSEEN,
    Mutant.PUT_AT_ONCE,
    Mutant.BACK_AT_ONCE,
    Mutant.BACK_UNSEEN,
}
"""Mutants that a script kills: it takes hundreds of histories, or more, until chance does."""
LATE = {Mutant.MENDS_UNMARKED, Mutant.BACK_WHOLE, Mutant.BACK_UNREAD, Mutant.BACK_UNSEEN_BY_OTHERS}
"""Mutants without a script that hundreds of histories miss."""


@pytest.mark.slow
def test_rows_are_the_fold_in_some_histories():
    assert wrong_history(range(QUICK)) is None


@pytest.mark.ci
def test_rows_are_the_fold_in_more_histories():
    assert wrong_history(range(QUICK, CI)) is None


@pytest.mark.nightly
def test_rows_are_the_fold_in_many_histories():
    assert wrong_history(range(NIGHTLY)) is None


@pytest.mark.parametrize("mutant", sorted({*Mutant} - SCRIPTED - LATE, key=str))
def test_a_guard_made_wrong_is_found_by_a_few_histories(mutant):
    assert wrong_history(range(QUICK_MUTANTS), mutant) is not None


@pytest.mark.ci
@pytest.mark.parametrize("mutant", sorted(LATE, key=str))
def test_a_guard_made_wrong_is_found_by_histories(mutant):
    assert wrong_history(range(MUTANTS_MAX), mutant) is not None


class Fixed(Random):
    """No chance: actors read before they plan, wait for others, and try nothing by themselves."""

    def random(self):
        return 0.99

    def randrange(self, start, stop=None):
        return 0 if stop is None else start

    def shuffle(self, x):
        pass


class Moving(Emptier):
    """An emptier that moves given deltas together."""

    def __init__(self, world, deltas):
        super().__init__(world)
        self.deltas = deltas

    def run(self):
        yield from self.move(self.deltas)
        return True


class Taking(Committer):
    """Takes the last step of an item back."""

    def run(self):
        return (yield from self.took_back(("ledger", 0)))


class Script(History):
    """A world in which a test says who goes on. ``versions``: the contributions of each item, one after the other."""

    def __init__(self, mutant=None, **versions):
        super().__init__(0, mutant)
        self.random = self.store.random = Fixed(0)
        self.store.slow, self.faults, self.takes_back = False, 0, False
        self.store.items = {MANIFEST: Manifest(deltas=True, since=-INVOCATION_MAX), CURSOR: 0}
        self.share_of_deltas = 1.0
        self.numbered = {name: number for number, name in enumerate(versions)}
        self.versions = {number: versions[name] for name, number in self.numbered.items()}
        self.sources = {("ledger", number): each[-1] for number, each in self.versions.items()}
        self.running = []

    def batch(self, *records, kind=Batch):
        """Begins a batch of records, each an item's name and version, in one transaction."""
        drawn = []
        for name, version in records:
            versions = [{}, *self.versions[self.numbered[name]]]
            drawn.append((self.numbered[name], version, versions[version - 1], versions[version]))
        batch = kind(self, drawn, on=False)
        batch.together = True
        return self.begin(batch)

    def begin(self, actor: Actor) -> Running:
        running = Running(actor, self.store.now)
        self.running.append(running)
        return running

    def step(self, running: Running) -> None:
        self._advance(running)
        self.store.now += 1

    def until(self, running: Running, holds) -> None:
        while not holds():
            assert running in self.running, "it ended before"
            self.step(running)

    def before_write(self, running: Running, key) -> None:
        self.until(running, lambda: key in running.call.meets and not running.is_answered)

    def finish(self, running: Running):
        while running in self.running:
            self.step(running)
        return running.result

    def _ended(self, running, *, done):
        running.result = done
        super()._ended(running, done=done)

    def commit(self, *records):
        """Commits records as deltas, by a process that dies then. Returns the deltas."""
        known, batch = self.store.deltas(), self.batch(*records)
        self.until(batch, lambda: self.store.deltas().keys() - known.keys())
        self.running.remove(batch)
        return {name: delta for name, delta in self.store.deltas().items() if name not in known}

    def add_directly(self, *records):
        """Adds records to their rows, as today."""
        self.share_of_deltas = 0.0
        assert self.finish(self.batch(*records))
        self.share_of_deltas = 1.0

    def move(self, deltas):
        return self.finish(self.begin(Moving(self, deltas)))

    def row(self, name):
        return self.store.items.get(("row", name))

    def is_right(self):
        return not (self.wrong or self.store.wrong or self._wrong_now())


@pytest.mark.parametrize(("mutant", "row"), [(None, Row(7, 1)), (Mutant.DROPPED_WHOLE, None)])
def test_a_row_that_somebody_removed_gets_what_new_items_add(mutant, row):
    script = Script(mutant, x=[{"a": 5}, {}], y=[{"a": 7}])
    script.add_directly(("x", 1))
    script.store.remove_by_hand("a")
    script.move(script.commit(("x", 2), ("y", 1)))
    assert script.row("a") == row
    assert script.is_right() is (mutant is None)


def test_a_row_that_was_made_again_is_not_deleted_under_its_new_items():
    script = Script(x=[{"a": 5}, {}], w=[{"a": 1}, {}], y=[{"a": 7}], z=[{"a": 2}])
    script.add_directly(("x", 1), ("w", 1))
    script.store.remove_by_hand("a")
    script.add_directly(("z", 1))
    script.move(script.commit(("x", 2), ("w", 2), ("y", 1)))  # one contributor less: as many as the row counts
    assert script.row("a") == Row(9, 2)
    assert script.is_right()


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["added to directly", "by a delta"])
@pytest.mark.parametrize("mutant", [None, Mutant.DROPPED_UNSEEN])
def test_a_withdrawal_is_not_dropped_once_the_row_is_mended(mutant, share):
    script = Script(mutant, x=[{"a": 5}, {}])
    script.add_directly(("x", 1))
    script.store.remove_by_hand("a")
    mender = script.begin(Mender(script, "a"))
    script.until(mender, lambda: script.row("a") is not None)  # marked
    script.before_write(mender, ("row", "a"))  # it has looked, and is about to add the 5
    if share:
        leaving = script.begin(Moving(script, script.commit(("x", 2))))
    else:
        script.share_of_deltas = 0.0
        leaving = script.batch(("x", 2))
    script.before_write(leaving, ("row", "a"))
    script.step(leaving)  # refused: the row counts nobody
    script.finish(mender)
    script.finish(leaving)
    assert script.is_right() is (mutant is None)
    assert script.row("a") == (None if mutant is None else Row(5, 1))


def test_rows_that_become_empty_go_with_the_deltas_that_leave_them():
    script = Script(x=[{"a": 5, "c": 2}, {}], y=[{"a": 7}])
    script.add_directly(("x", 1))
    script.move(script.commit(("x", 2)))
    assert (script.row("a"), script.row("c"), script.store.deltas()) == (None, None, {})


@pytest.mark.parametrize("mutant", [None, Mutant.EMPTY_UNMARKED])
def test_a_row_is_not_deleted_once_somebody_adds_to_it(mutant):
    script = Script(mutant, x=[{"a": 5}, {}], y=[{"a": 7}])
    script.add_directly(("x", 1))
    leaving = script.begin(Moving(script, script.commit(("x", 2))))
    script.until(leaving, lambda: script.row("a").owner)  # marked as empty soon
    script.add_directly(("y", 1))
    script.finish(leaving)
    assert script.is_right() is (mutant is None)
    assert script.row("a") == (Row(7, 1) if mutant is None else None)


@pytest.mark.parametrize("mutant", [None, Mutant.ANY_CONTENT])
def test_what_was_moved_of_a_refused_delta_is_not_moved_again(mutant):
    script = Script(mutant, x=[{"a": 7}], y=[{"c": 3}])
    script.store.take_by_hand("c")
    deltas = script.commit(("x", 1), ("y", 1))
    script.move(deltas)
    script.store.give_back_by_hand("c")
    script.move(deltas)  # an emptier that had read them before
    assert script.is_right() is (mutant is None)
    assert script.row("a") == Row(7 if mutant is None else 14, 1 if mutant is None else 2)


@pytest.mark.parametrize("mutant", [None, Mutant.ASIDE_RENAMED, Mutant.ASIDE_PASSED])
def test_what_a_row_refuses_is_reported_and_other_items_go_on(mutant):
    script = Script(mutant, x=[{"a": 5}, {}], y=[{"c": 7}, {}])
    script.store.take_by_hand("a")
    script.move(script.commit(("x", 1), ("y", 1)))
    assert script.row("c") == Row(7, 1)
    assert script.finish(script.batch(("y", 1)))
    assert script.finish(script.batch(("x", 1))) is (mutant is not None)
    assert script.finish(script.batch(("x", 2))) is False  # nothing of it may be taken back yet
    assert script.finish(script.batch(("y", 2))) is False  # its own delta is pending: nobody empties
    assert script.store.items[("ledger", 0)].version == (1 if mutant is None else 2)
    assert script.store.items[("ledger", 1)].version == 2


@pytest.mark.parametrize("mutant", [None, Mutant.ASIDE_UNNAMED])
def test_a_step_beside_a_refusing_row_goes_on_naming_what_it_refused(mutant):
    script = Script(mutant, x=[{"a": 5, "b": 1}, {"a": 5, "b": 2}, {}])
    script.store.take_by_hand("a")
    put = script.commit(("x", 1))
    for name, delta in put.items():
        script.move({name: delta})
    script.move(script.commit(("x", 2)))
    script.finish(script.batch(("x", 3)))
    assert script.store.items[("ledger", 0)].version == (2 if mutant is None else 3)


def refused_step(mutant, *records, **versions):
    """A process whose step put a delta that its row refused; the row is free again. Returns the script, the process."""
    script = Script(mutant, **versions)
    script.takes_back = True
    batch = script.batch(*records)
    script.until(batch, script.store.deltas)
    script.store.take_by_hand("a")
    script.move(script.store.deltas())
    script.store.give_back_by_hand("a")
    return script, batch


def test_who_put_what_a_row_refuses_takes_it_back_with_all_that_the_step_moved():
    script, batch = refused_step(None, ("x", 1), ("y", 1), x=[{"a": 5, "b": 2}], y=[{"b": 3}])
    assert script.finish(batch) is False
    assert script.store.items[("ledger", 0)].contribution == {}
    assert (script.row("a"), script.row("b"), script.store.deltas()) == (None, Row(3, 1), {})
    script.share_of_deltas = 0.0
    assert script.finish(script.batch(("x", 1)))
    assert (script.row("a"), script.row("b")) == (Row(5, 1), Row(5, 2))
    assert script.is_right()


def test_a_newer_step_replaces_what_a_row_refuses_of_the_last_one():
    script, batch = refused_step(None, ("x", 1), ("y", 1), x=[{"a": 5}, {"a": 6}], y=[{"a": 3}])
    script.running.remove(batch)  # it died
    script.share_of_deltas = 0.0
    assert script.finish(script.batch(("x", 2)))
    assert script.row("a") == Row(6, 1)
    assert [part.both.amount for delta in script.store.deltas().values() for part in delta.parts.values()] == [3]
    assert script.is_right()


@pytest.mark.parametrize("mutant", [None, Mutant.BACK_OF_OTHERS])
def test_nobody_takes_the_step_of_another_process_back(mutant):
    script, batch = refused_step(mutant, ("x", 1), x=[{"a": 5}])
    assert script.finish(script.begin(Taking(script))) is (mutant is not None)
    assert script.finish(batch) is (mutant is not None)  # it is acknowledged, and lost
    assert script.store.items[("ledger", 0)].contribution == {}


@pytest.mark.parametrize("mutant", [None, Mutant.BACK_OLDER])
def test_no_older_step_replaces_what_a_row_refuses(mutant):
    script, batch = refused_step(mutant, ("x", 1), ("x", 2), x=[{"a": 5}, {"a": 6}])
    script.share_of_deltas = 0.0
    script.finish(script.batch(("x", 1)))  # by a process that is taken for dead
    assert script.store.items[("ledger", 0)].version == (2 if mutant is None else 1)
    assert script.finish(batch) is (mutant is not None)


@pytest.mark.parametrize("mutant", [None, Mutant.MENDS_ONE_LOOK])
def test_a_mender_adds_nothing_that_is_taken_back_while_it_looks(mutant):
    right = []
    for calls in range(12):  # of the mender, until the step is taken back
        script, batch = refused_step(mutant, ("x", 1), x=[{"a": 5}])
        mender = script.begin(Mender(script, "a"))
        for _ in range(calls):
            if mender in script.running:
                script.step(mender)
                script.store.now += READABLE_AFTER
        script.finish(batch)
        if mender in script.running:
            script.finish(mender)
        right.append(script.is_right())
    assert all(right) is (mutant is None)


@pytest.mark.parametrize("mutant", [None, Mutant.GUESS_OVERTAKES])
def test_a_step_that_was_planned_without_a_read_waits_for_the_last_one(mutant):
    script = Script(mutant, x=[{"a": 5}, {}])
    script.commit(("x", 1))
    batch = script.batch(("x", 2))
    batch.actor.chance = lambda share: share in (0.4, script.share_of_deltas)  # it guesses
    assert script.finish(batch) is False  # nobody empties
    assert script.store.items[("ledger", 0)].version == (1 if mutant is None else 2)


@pytest.mark.parametrize("mutant", [None, Mutant.ABSENT_BY_SINGLE_READ])
def test_a_name_may_be_readable_before_its_delta_is(mutant):
    script = Script(mutant, x=[{"a": 5}])
    (name,) = script.commit(("x", 1))
    script.store.readable_at[name] = script.store.now + READABLE_AFTER
    assert script.finish(script.batch(("x", 1))) is (mutant is not None)
    assert bool(script.wrong) is (mutant is not None)


@pytest.mark.parametrize("mutant", [None, Mutant.MENDS_AT_ONCE])
def test_a_mender_waits_until_all_of_a_transaction_is_readable(mutant):
    script = Script(mutant, x=[{"a": 5}, {}])
    script.add_directly(("x", 1))
    (name,) = deltas = script.commit(("x", 2))
    script.store.readable_at[name] = script.store.now + READABLE_AFTER + 4  # a mender that does not pause makes calls
    script.finish(script.begin(Mender(script, "a")))
    script.move(deltas)
    assert script.is_right() is (mutant is None)


@pytest.mark.parametrize("mutant", [None, Mutant.MENDS_ONE_SCAN])
def test_a_mender_does_not_count_who_came_and_who_left(mutant):
    script = Script(mutant, x=[{"a": 5}, {}], y=[{"a": 5}])
    script.add_directly(("x", 1))
    mender = script.begin(Mender(script, "a"))
    script.until(mender, lambda: script.row("a").owner)
    script.step(mender)  # it has read x
    script.add_directly(("x", 2), ("y", 1))  # the row is not written, and keeps its mark
    script.finish(mender)
    assert script.is_right() is (mutant is None)


@pytest.mark.parametrize("mutant", [None, Mutant.PUT_AT_ONCE])
def test_nobody_puts_deltas_while_older_code_may_be_under_way(mutant):
    script = Script(mutant, x=[{"a": 5}, {}])
    script.store.items[MANIFEST] = Manifest()
    older = script.batch(("x", 1), ("x", 2), kind=OlderBatch)
    script.step(older)  # it has read a manifest without the mark
    script.store.items[MANIFEST] = Manifest(deltas=True, since=script.store.now)
    newer = script.batch(("x", 1))
    script.until(newer, lambda: ("ledger", 0) in script.store.items)
    script.finish(older)
    assert script.is_right() is (mutant is None)


@pytest.mark.parametrize("mutant", [None, Mutant.BACK_AT_ONCE])
def test_the_way_back_waits_for_all_that_saw_the_mark_open(mutant):
    script = Script(mutant, x=[{"a": 5}, {}])
    batch = script.batch(("x", 1))
    script.step(batch)  # it has read the manifest
    assert script.finish(script.begin(WayBack(script)))
    is_over = batch.began + INVOCATION_MAX <= script.store.now
    assert is_over is (mutant is None)
    if not is_over:
        script.until(batch, script.store.deltas)
        script.finish(script.batch(("x", 2), kind=OlderBatch))
        assert not script.is_right()


@pytest.mark.parametrize("mutant", [None, Mutant.BACK_UNSEEN])
def test_the_way_back_ends_only_when_nothing_is_pending(mutant):
    script = Script(mutant, x=[{"a": 5}])
    script.store.take_by_hand("a")
    script.commit(("x", 1))
    assert script.finish(script.begin(WayBack(script))) is (mutant is not None)
    assert script.store.items[MANIFEST].deltas is (mutant is None)  # older code still stops
    assert bool(script.wrong) is (mutant is not None)
