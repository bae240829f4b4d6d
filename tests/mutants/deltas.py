"""Mutants of deltas, by the guards of docs/decisions/0080-deltas.md."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from streamfold import runtime
from streamfold.batch import manifest
from streamfold.commit import buckets, ledger_units, mover, pending, plan, replanning, taking_back
from streamfold.commit.buckets import Mover, WaitingDeltas
from streamfold.commit.committer import Committer
from streamfold.commit.pending import Progress
from streamfold.commit.taking_back import TakingBack
from streamfold.errors import HandlerError
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.deltas import Additions, RowRefusal
from streamfold.proofs.driver import Invoker
from streamfold.runtime import DeltasMark
from streamfold.writes.guarded import (
    AbsentSource,
    AddRow,
    Claim,
    DeleteRow,
    DeleteState,
    LedgerWrite,
    StateKey,
    SwapText,
)
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant
from tests.mutants.tools import in_two

GUARD = "deltas"
BUCKETS = "tests/commit/test_buckets.py::"
PLAN = "tests/commit/test_plan.py::"
ADDITIONS = "tests/commit/test_shared_additions.py::"


def _is_delta(write: Any) -> bool:
    return isinstance(write.key, StateKey) and write.key.pk.startswith("delta#")


# 1: deltas are put with their ledger items, or with their claim.


@mutant("1: deltas are put before their ledger items, in two transactions", GUARD)
def _() -> Iterator[None]:
    with in_two(lambda write: isinstance(write, SwapText)):
        yield


@mutant("1: deltas are put after their ledger items, in two transactions", GUARD)
def _() -> Iterator[None]:
    with in_two(lambda write: not isinstance(write, SwapText)):
        yield


# 2: no delta replaces another one.


@mutant("2: a name is used twice, and a new delta replaces one that is pending", GUARD)
def _() -> Iterator[None]:
    def replacing(holds: Any) -> Any:
        return lambda write, item: write.expected is None or holds(write, item)

    with on_writes(SwapText, guard=replacing), patch.object(Invoker, "_token", lambda _: "0" + "0" * 16):
        yield


@mutant(
    "2: names are numbers",
    None,
    tests="tests/test_runtime.py::test_tokens_are_of_all_stripes_and_each_is_another_one",
)
def _() -> Iterator[None]:
    with patch.object(runtime, "urandom", bytes):
        yield


# 3: a delta goes as its rows are added to, and holds what was read then.


@contextmanager
def _merging(first: Any) -> Iterator[None]:
    """Merges alone are sent as two transactions."""
    merge = Mover._merge
    of_merges: set[int] = set()

    def noted(self: Mover, *given: Any) -> Any:
        writes = merge(self, *given)
        of_merges.update(map(id, writes))
        self.__dict__.setdefault("kept", []).append(writes)
        return writes

    with patch.object(Mover, "_merge", noted), in_two(lambda write: id(write) not in of_merges or first(write)):
        yield


@mutant("3: rows are added to before deltas are deleted, in two transactions", GUARD)
def _() -> Iterator[None]:
    with _merging(lambda write: not _is_delta(write)):
        yield


@mutant("3: deltas are deleted before rows are added to, in two transactions", GUARD)
def _() -> Iterator[None]:
    with _merging(_is_delta):
        yield


@mutant("3: deltas are deleted unseen", GUARD)
def _() -> Iterator[None]:
    with on_writes(DeleteState, guard=lambda _: lambda *_: True):
        yield


@mutant(
    "3: a delta is there, whatever it holds",
    None,
    tests=BUCKETS + "test_what_was_moved_of_a_delta_is_not_moved_again_by_who_read_it_before",
)
def _() -> Iterator[None]:
    with on_writes(DeleteState, SwapText, guard=lambda _: lambda write, item: (write.expected is None) != bool(item)):
        yield


@mutant(
    "3: a row is not written where its sum is nothing",
    None,
    tests=BUCKETS + "test_a_row_is_written_where_what_is_added_to_it_adds_up_to_nothing",
)
def _() -> Iterator[None]:
    merge = Mover._merge

    def without_zeros(self: Mover, *given: Any) -> Any:
        return [
            write
            for write in merge(self, *given)
            if not (isinstance(write, AddRow) and not write.contributors and write.changes_nothing)
        ]

    with patch.object(Mover, "_merge", without_zeros):
        yield


# 4: ledger items and claims name their deltas.


def _without(ends: str) -> Any:
    def changed(after: Any) -> Any:
        def made(*given: Any) -> Any:
            return {name: value for name, value in after(*given).items() if not name.endswith(ends)}

        return made

    return changed


@mutant("4: the ledger item does not name its deltas", GUARD)
def _() -> Iterator[None]:
    with on_writes(LedgerWrite, made=_without(".p")):
        yield


@mutant("4: the claim does not name its deltas", GUARD)
def _() -> Iterator[None]:
    def nameless(after: Any) -> Any:
        return lambda *given: {name: value for name, value in after(*given).items() if name != "p"}

    with on_writes(Claim, made=nameless):
        yield


@mutant(
    "4: a handler names rows of others",
    None,
    tests=PLAN + "test_each_handler_names_the_rows_that_it_adds_to",
)
def _() -> Iterator[None]:
    with patch.object(plan, "writers", lambda unit, row: unit.routes):
        yield


# 5: each step requires that the one before it is in the rows.


@mutant("5: a step is planned while the one before it is pending", GUARD)
def _() -> Iterator[None]:
    def passed(found: LedgerItem, *_: Any) -> tuple[LedgerItem, dict[str, Any]]:
        contributions = {name: each._replace(deltas="") for name, each in found.contributions.items()}
        return found._replace(contributions=contributions), {}

    with (
        patch.object(ledger_units, "wait_for_items", lambda *_: None),
        patch.object(ledger_units, "ready_by_handler", passed),
    ):
        yield


@mutant(
    "5: a step that was planned without a read passes over names",
    None,
    tests=ADDITIONS + "test_a_step_waits_for_the_delta_of_the_step_before_it",
)
def _() -> Iterator[None]:
    def unread(holds: Any) -> Any:
        return lambda write, item: holds(write, {name: item[name] for name in item if name[-2:] != ".p"})

    with on_writes(LedgerWrite, guard=unread):
        yield


@mutant(
    "5: names that the process saw gone are any names",
    None,
    tests=ADDITIONS + "test_a_process_whose_delta_is_pending_takes_no_step_over_it",
)
def _() -> Iterator[None]:
    waits = pending.wait_for_deltas

    def any_names(run: Any, waiting: WaitingDeltas, *more: Any) -> Any:
        failed = waits(run, waiting, *more)
        for (key, handler), names in waiting.items.items():
            run.known.note_gone(key, handler, names)
        return failed

    with patch.object(pending, "wait_for_deltas", any_names):
        yield


@mutant(
    "5: deltas of others are asked for one by one",
    None,
    tests=BUCKETS + "test_deltas_of_others_are_asked_for_as_of_one_moment_and_own_ones_one_by_one",
)
def _() -> Iterator[None]:
    still_there = buckets._still_there

    def singly(run: Any, waiting: WaitingDeltas, names: Any) -> Any:
        own = dict(waiting.own)
        waiting.own.update(dict.fromkeys(names, ""))
        try:
            return still_there(run, waiting, names)
        finally:
            waiting.own = own

    with patch.object(buckets, "_still_there", singly):
        yield


# 6: nothing says that it is done before its deltas are in the rows.


@mutant("6: a batch is acknowledged before its deltas are in the rows", GUARD)
def _() -> Iterator[None]:
    with patch.object(Progress, "wait_for_deltas", lambda *_: None):
        yield


@mutant("6: a batch that came before waits for nothing", GUARD)
def _() -> Iterator[None]:
    with patch.object(WaitingDeltas, "wait_for_item", lambda *_: None):
        yield


@mutant("6: a change that is claimed waits for nothing", GUARD)
def _() -> Iterator[None]:
    with patch.object(replanning.Replanner, "_claimed", lambda self, unit, claim: self.progress.done(unit)):
        yield


# 7: a row that becomes empty is deleted by the merge that empties it.


@mutant("7: a row may count nobody after a merge", GUARD)
def _() -> Iterator[None]:
    both = Additions.both
    with (
        patch.object(Mover, "_marked", lambda *_: {}),
        patch.object(Additions, "both", lambda self, row: both(self, row)._replace(requires_contributor=False)),
    ):
        yield


@mutant(
    "7: an empty row is deleted by what was read, without its mark",
    None,
    tests=BUCKETS + "test_what_is_added_to_a_row_after_its_mark_does_not_go_with_it",
)
def _() -> Iterator[None]:
    with on_writes(DeleteRow, guard=lambda _: lambda *_: True):
        yield


@mutant("7: a row is deleted that counts others too", GUARD)
def _() -> Iterator[None]:
    def counted(row: Any) -> Any:
        return _Any() if row else 0

    class _Any(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    marked = Mover._marked

    def marking(self: Mover, *given: Any) -> Any:
        with patch.object(mover, "_counted", counted):
            return marked(self, *given)

    with patch.object(Mover, "_marked", marking):
        yield


@mutant(
    "7: an addition leaves the mark of a row that becomes empty",
    None,
    tests=BUCKETS + "test_what_is_added_to_a_row_after_its_mark_does_not_go_with_it",
)
def _() -> Iterator[None]:
    def keeping(add: Any) -> Any:
        def kept(write: AddRow, before: Any, *rest: Any) -> Any:
            row = add(write, before, *rest)
            return {**row, "_sf_o": before["_sf_o"]} if "_sf_o" in before else row

        return kept

    with on_writes(AddRow, made=keeping):
        yield


# 9: what new items add to a row that somebody removed is kept.


@mutant(
    "9: a removed row loses what new items add in the same delta",
    None,
    tests=(
        BUCKETS + "test_what_new_items_add_to_a_removed_row_is_kept_and_what_leaves_it_is_dropped",
        "tests/batch/test_removed_in_deltas.py::test_who_enters_a_removed_row_is_kept_and_who_leaves_it_is_counted",
    ),
)
def _() -> Iterator[None]:
    def dropping(additions: Additions, row: Any, found: Any) -> Any:
        counted = additions.counted(row)
        assert counted is not None
        return plan.dropped(counted, found)

    with patch.object(mover, "_entering", dropping):
        yield


@mutant(
    "9: a half is dropped though its row was corrected meanwhile",
    None,
    tests=(
        BUCKETS + "test_a_row_that_is_corrected_before_the_second_try_loses_what_leaves_it",
        "tests/commit/test_multi_source_rows.py::test_a_row_that_counted_too_few_and_is_corrected_before_the_second_try_loses_what_leaves",
    ),
)
def _() -> Iterator[None]:
    with on_writes(AddRow, guard=lambda holds: lambda write, row: holds(write._replace(contributors_below=None), row)):
        yield


@mutant(
    "9: what is dropped leaves the mark of a correction",
    None,
    tests=BUCKETS + "test_a_removed_row_takes_the_mark_of_a_correction_away",
)
def _() -> Iterator[None]:
    entering = mover._entering

    def marked(*given: Any) -> Any:
        return [each._replace(removed=()) if isinstance(each, AddRow) else each for each in entering(*given)]

    with (
        patch.object(mover, "_entering", marked),
        on_writes(
            AddRow,
            made=lambda add: (
                lambda write, row, *rest: {
                    **add(write, row, *rest),
                    **({"_sf_o": row["_sf_o"]} if "_sf_o" in row and not write.removed else {}),
                }
            ),
        ),
    ):
        yield


@mutant(
    "9: a removed row is passed over though it is there again",
    None,
    tests=(
        BUCKETS + "test_a_removed_row_that_only_loses_is_not_passed_over_once_it_is_corrected",
        "tests/commit/test_multi_source_rows.py::test_a_row_that_is_corrected_between_refusal_and_second_try_loses_what_leaves",
    ),
)
def _() -> Iterator[None]:
    with on_writes(AbsentSource, guard=lambda _: lambda *_: True):
        yield


# 10: what a row refuses for good.


@mutant(
    "10: what a row refuses gets another name",
    None,
    tests=BUCKETS + "test_a_row_that_refuses_for_good_keeps_its_delta_under_its_name_with_the_reason",
)
def _() -> Iterator[None]:
    merge = Mover._merge

    def renaming(self: Mover, *given: Any) -> Any:
        writes: list[Any] = []
        for write in merge(self, *given):
            if isinstance(write, SwapText):
                renamed = write.key._replace(sk=write.key.sk[:-1] + ("0" if write.key.sk[-1] != "0" else "1"))
                writes += [DeleteState(write.key, write.expected), SwapText(renamed, write.text, None)]
            else:
                writes.append(write)
        return writes

    with patch.object(Mover, "_merge", renaming):
        yield


FAULTS = "tests/commit/test_faults_with_deltas.py::test_a_fault_has_the_same_consequences_with_deltas_and_without"
BACK = "tests/commit/test_taking_back.py::"


@mutant("13: a process takes no step back", None, tests=FAULTS)
def _() -> Iterator[None]:
    with patch.object(Committer, "_take_back", lambda *_: None):
        yield


@mutant(
    "13d: a handler adds directly to a row of the delta that its unit puts",
    None,
    tests="tests/commit/test_plan.py::test_a_unit_adds_to_a_row_directly_if_one_handler_adds_what_cannot_wait",
)
def _() -> Iterator[None]:
    def each(unit: Any, shared: Any) -> dict[Any, list[Any]]:
        return {effect.key: [effect] for effect in unit.effects if plan._waits(unit, effect, shared)}

    with patch.object(plan, "_waiting_additions", each):
        yield


@mutant(
    "13: a step is taken back from the refused row alone",
    None,
    tests=BACK + "test_a_step_is_taken_back_from_all_rows_that_it_moved",
)
def _() -> Iterator[None]:
    take = TakingBack._take

    def alone(self: TakingBack, way: Any, **_: Any) -> Any:
        return take(self, way, only_refused=True)

    with patch.object(TakingBack, "_take", alone):
        yield


@mutant(
    "13: a step waits for what a row refuses of the last one",
    None,
    tests=BACK + "test_a_newer_contribution_replaces_what_a_process_left_that_died",
)
def _() -> Iterator[None]:
    with patch.object(ledger_units, "without_refused", lambda _a, _i, _r, found, _w, **_: found):
        yield


@mutant("13: an older step replaces a newer one", None, tests=BACK + "test_an_older_record_replaces_nothing")
def _() -> Iterator[None]:
    with patch.object(LedgerItem, "version", lambda *_: ""):
        yield


@mutant(
    "13: a share leaves the delta, and the ledger item keeps it",
    None,
    tests=BACK + "test_a_newer_contribution_replaces_what_a_process_left_that_died",
)
def _() -> Iterator[None]:
    replaced = taking_back.contribution_before
    with patch.object(taking_back, "contribution_before", lambda text, now, only=None: replaced(" ", now, only)):
        yield


@mutant(
    "13: a step that its process took back is taken for done",
    None,
    tests=BACK + "test_a_step_that_its_process_took_back_is_not_taken_for_done",
)
def _() -> Iterator[None]:
    with patch.object(buckets, "_taken_back", lambda *_: []):
        yield


@mutant(
    "10: a fault of a table is one of the record",
    None,
    tests=BUCKETS + "test_a_table_that_is_missing_fails_records_that_are_never_parked",
)
def _() -> Iterator[None]:
    with patch.object(RowRefusal, "error", property(lambda self: HandlerError(self.reason))):
        yield


@mutant(
    "10: what a row refuses is taken for gone",
    None,
    tests=(
        BUCKETS + "test_what_a_row_refuses_is_reported_to_those_who_add_to_it_and_no_others",
        BUCKETS + "test_a_step_that_moves_a_row_waits_for_what_this_row_refuses",
    ),
)
def _() -> Iterator[None]:
    still_there = buckets._still_there

    def passing(*given: Any) -> Any:
        return {name: text for name, text in still_there(*given).items() if '"refused":' not in text}

    with patch.object(buckets, "_still_there", passing):
        yield


@mutant(
    "10: a step names its own deltas alone",
    None,
    tests=BUCKETS + "test_a_step_goes_on_naming_what_another_row_than_its_own_refuses",
)
def _() -> Iterator[None]:
    with patch.object(buckets, "names_text", lambda _: ""):
        yield


@mutant(
    "10: a row that refuses keeps the others of its deltas waiting",
    None,
    tests=BUCKETS + "test_a_row_that_refuses_for_good_keeps_no_other_delta_waiting",
)
def _() -> Iterator[None]:
    is_merged = Mover._is_merged
    with patch.object(Mover, "_is_merged", lambda self, *given: is_merged(self, *given) or True):
        yield


# 11: older code.


@mutant(
    "11: deltas are put as soon as the manifest says so",
    None,
    tests=ADDITIONS + "test_deltas_are_put_a_quarter_of_an_hour_later",
)
def _() -> Iterator[None]:
    with patch.object(DeltasMark, "may_put", lambda self, now: not self.closed):
        yield


@mutant(
    "11: older code passes over the mark",
    None,
    tests=ADDITIONS + "test_code_that_knows_no_deltas_stops",
)
def _() -> Iterator[None]:
    with patch.object(
        manifest, "_mark_deltas", lambda handlers, mark: [each.update(deltas=mark.since) for each in handlers.values()]
    ):
        yield


@mutant(
    "11: deltas are put though the mark is closed",
    None,
    tests=ADDITIONS + "test_no_deltas_are_put_while_the_manifest_says_that_none_may_be",
)
def _() -> Iterator[None]:
    with patch.object(DeltasMark, "may_put", lambda self, now: now >= self.since):
        yield


# What is no guard.


@mutant("a bucket that another process is at is emptied all the same", GUARD, equivalent=True)
def _() -> Iterator[None]:
    with patch.object(buckets.Head, "is_free", lambda *_: True):
        yield


@mutant("nobody sees more than the newest delta of a stripe", GUARD, equivalent=True)
def _() -> Iterator[None]:
    with patch.object(buckets, "FOUND_MAX", 1):
        yield
