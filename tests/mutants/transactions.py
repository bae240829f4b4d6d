"""Mutants of transactions: how writes are merged and cut, and what a refusal is taken for."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.commit import plan as plan_module
from streamfold.commit.committer import Committer
from streamfold.commit.emptying import LoweredRows
from streamfold.commit.ledger_units import ReadItem
from streamfold.commit.replanning import Replanner
from streamfold.engines import MemoryEngine
from streamfold.writes.guarded import CONFLICT, AddRow, GuardedPut, Refused
from tests.mutants.registry import mutant

CONTRACT = "tests/commit/test_committer.py::TestCommit::"
PLAN = "tests/commit/test_plan.py::"
FEWEST = "tests/commit/test_fewest_writes.py::"
STAY = "tests/commit/test_emptying.py::"


def _joining(changed: Any) -> Any:
    join = plan_module._join
    return patch.object(plan_module, "_join", lambda one, other: changed(join, one, other))


@mutant("of two additions to one row the later one stays")
def _() -> Iterator[None]:
    def later(join: Any, one: Any, other: Any) -> Any:
        return other if isinstance(one, AddRow) and isinstance(other, AddRow) else join(one, other)

    with _joining(later):
        yield


@mutant(
    "of two puts of one row the older one stays",
    None,
    tests=PLAN + "test_several_puts_of_one_row_collapse_to_the_newest_and_keep_their_claims",
)
def _() -> Iterator[None]:
    def older(join: Any, one: Any, other: Any) -> Any:
        both = isinstance(one, GuardedPut) and isinstance(other, GuardedPut)
        return min(one, other, key=lambda put: put.version) if both else join(one, other)

    with _joining(older):
        yield


@mutant(
    "writes of one row are not merged",
    None,
    tests=PLAN + "test_units_that_touch_a_row_are_grouped_and_their_additions_merged",
)
def _() -> Iterator[None]:
    chunk = plan_module._TransactionBuilder.transaction

    def unmerged(self: Any) -> Any:
        effects = (effect for unit in self.units for effect in unit.effects)
        return chunk(self)._replace(writes=(*(unit.guard for unit in self.units), *effects))

    with patch.object(plan_module._TransactionBuilder, "transaction", unmerged):
        yield


@mutant(
    "units are grouped by their most shared row only",
    None,
    tests=(
        PLAN + "test_units_that_share_a_hot_row_are_grouped_by_the_next_row_that_they_share",
        FEWEST + "test_units_of_two_hot_rows_are_not_scattered_by_the_rows_that_few_share",
    ),
)
def _() -> Iterator[None]:
    anchor = plan_module._anchor

    def hottest(unit: Any, shared: Any) -> Any:
        place, rows = anchor(unit, shared)
        return place, rows[:1]

    with patch.object(plan_module, "_anchor", hottest):
        yield


@mutant(
    "a conflict is taken for done",
    tests=CONTRACT + "test_conflict_that_passes_is_met_with_the_same_plan_after_growing_pauses",
)
def _() -> Iterator[None]:
    refused = Committer._refused

    def done(self: Committer, attempt: Any, answer: Refused) -> None:
        if {reason.code for reason in answer.reasons if reason} <= set(CONFLICT):
            for unit in attempt.transaction.units:
                self.progress.done(unit)
        else:
            refused(self, attempt, answer)

    with patch.object(Committer, "_refused", done):
        yield


@mutant(
    "a refusal without an item is taken for done",
    tests=CONTRACT + "test_stale_guess_is_planned_again_whatever_the_refusals_tell",
)
def _() -> Iterator[None]:
    found_by = Replanner._found_by

    def stale(self: Replanner, unit: Any, reason: Any) -> Any:
        if reason.item is None:
            self.progress.done(unit)
            return []
        return found_by(self, unit, reason)

    with patch.object(Replanner, "_found_by", stale):
        yield


@mutant(
    "a permanent refusal fails the whole item",
    None,
    tests=CONTRACT + "test_permanent_refusal_fails_only_the_handler_that_writes_the_row",
)
def _() -> Iterator[None]:
    with patch("streamfold.commit.committer.by_handler", lambda unit, lives: [unit]):
        yield


@mutant("empty rows are removed without looking again")
def _() -> Iterator[None]:
    def remove(self: MemoryEngine, rows: Any) -> list[Any]:
        self._apply(dict.fromkeys(rows))
        return list(rows)

    with patch.object(MemoryEngine, "remove_empty", remove):
        yield


@mutant(
    "a row that has to stay refuses nothing",
    tests=STAY + "test_the_last_item_of_a_row_is_refused_once_and_the_row_removed",
)
def _() -> Iterator[None]:
    with patch.object(AddRow, "contributors_required", property(lambda self: self.contributors_min)):
        yield


@mutant(
    "a step that a row refused is sent without a note",
    tests=STAY + "test_a_row_whose_step_was_refused_is_noted_until_it_is_removed",
)
def _() -> Iterator[None]:
    def unnoted(unit: Any, *_: Any) -> Any:
        effects = [
            each._replace(requires_contributor=False) if isinstance(each, AddRow) else each for each in unit.effects
        ]
        return unit._replace(effects=tuple(effects))

    with patch("streamfold.commit.replanning.with_notes", unnoted):
        yield


@mutant(
    "a step that is planned again notes no rows",
    None,
    tests=STAY + "test_a_step_that_the_ledger_refused_notes_its_rows_when_it_is_planned_again",
)
def _() -> Iterator[None]:
    of = ReadItem.of

    def as_before(unit: Any) -> ReadItem:
        read = of(unit)
        read.steps = unit.steps
        return read

    with patch.object(ReadItem, "of", as_before):
        yield


@mutant(
    "what a step took from a row that has to stay is not counted",
    None,
    tests=STAY + "test_a_row_from_which_one_step_took_that_has_to_stay_and_one_that_need_not_may_be_empty",
)
def _() -> Iterator[None]:
    count = LoweredRows.add

    def only_others(self: LoweredRows, write: AddRow) -> None:
        if not write.requires_contributor:
            count(self, write)

    with patch.object(LoweredRows, "add", only_others):
        yield


@mutant(
    "a parent that an item left is not noted",
    None,
    tests=(
        STAY + "test_a_parent_that_an_item_left_is_noted_until_it_shows_what_is_left",
        STAY + "test_parents_that_many_items_left_are_right_when_the_batch_comes_again",
    ),
)
def _() -> Iterator[None]:
    with patch("streamfold.ledger.difference.is_in_state", lambda key: False):
        yield
