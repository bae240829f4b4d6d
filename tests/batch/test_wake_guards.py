"""Each guard of wakes, taken away: some walk over time that passes notices it."""

from unittest.mock import patch

import pytest

from streamfold.batch.wakes import AtWakes
from streamfold.ledger import wakes
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.wakes import Waits, wake_writes
from streamfold.writes.guarded import DeleteState, PutState
from tests.helpers.wake_walks import walked

WALKS = 120


def without(kind):
    return lambda *given: [write for write in wake_writes(*given) if not isinstance(write, kind)]


def kept_though_later(waits, times):
    is_early = waits.wake is not None and times.next is not None and waits.wake > times.at
    return Waits(times.came, waits.wake if is_early else times.next)


MUTANTS = {
    "an item's time goes back": (LedgerItem, "since", lambda *_: None, "counted", "two items of a row"),
    "a wake stays though an earlier one is needed": (Waits, "after", kept_though_later, "counted", "earlier"),
    "the old wake is not deleted": (wakes, "wake_writes", without(DeleteState), "counted", "moves there and back"),
    "the new wake is not put": (wakes, "wake_writes", without(PutState), "counted", "moves there and back"),
    "a visit deletes its wake before rows are finished": (
        AtWakes,
        "held",
        lambda _, times, *__: times,
        "overdue",
        "two items of a row",
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_guard_that_is_taken_away_is_noticed(mutant):
    owner, name, wrong, handler, script = MUTANTS[mutant]
    with patch.object(owner, name, wrong):
        assert walked(handler, script, WALKS, seed=5) is not None


@pytest.mark.ci
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_same_walks_are_right_with_the_guard(mutant):
    *_, handler, script = MUTANTS[mutant]
    assert walked(handler, script, WALKS // 6, seed=5) is None
