"""Mutants of rows that several versions of the code write, of rows that somebody removed, and of what a step leaves."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.batch import order, steps
from streamfold.batch.manifest import Manifest
from streamfold.cli import backfill
from streamfold.commit import after_commit, pending, replanning, transactions
from streamfold.commit.buckets import FOUND_MAX
from streamfold.commit.committer import Committer
from streamfold.commit.pending import Progress
from streamfold.derivations.expected import RowsCorrected, VerifiedRows
from streamfold.engines import MemoryEngine
from streamfold.engines.protocol import Entries
from streamfold.keys.table import EDGE, OWNER
from streamfold.ledger import contribution, difference
from streamfold.ledger import step as ledger
from streamfold.lifecycle import buckets, row_repair
from streamfold.lifecycle.retire import Retirement
from streamfold.lifecycle.row_repair import RowsReconciled
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.routes.application import Application
from streamfold.writes.guarded import AddRow, CorrectRow, DeleteRow, LedgerWrite, PutRow
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant

SHARED = "tests/commit/test_multi_source_rows.py::"
LEFT = "tests/commit/test_pending.py::"
REMOVED = "tests/batch/test_removed_rows.py::"
VERIFY = "tests/cli/test_verify.py::"


@mutant(
    "rows are put and deleted whole, even if others add to them",
    None,
    tests=(
        SHARED + "test_a_warm_process_of_older_code_adds_to_a_row_that_others_add_to",
        SHARED + "test_a_row_of_another_application_is_not_overwritten",
    ),
)
def _() -> Iterator[None]:
    def unconditional(holds: Any) -> Any:
        return lambda write, row: holds(write._replace(owner=None), row)

    with on_writes(PutRow, DeleteRow, guard=unconditional):
        yield


@mutant(
    "an addition leaves the mark of who put the row",
    None,
    tests=SHARED + "test_a_warm_process_of_older_code_adds_to_a_row_that_others_add_to",
)
def _() -> Iterator[None]:
    def keeping(add: Any) -> Any:
        def kept(write: AddRow, before: Any, *rest: Any) -> Any:
            row = add(write, before, *rest)
            owner = before.get("_sf_o")
            return {**row, "_sf_o": owner} if owner else row

        return kept

    with on_writes(AddRow, made=keeping):
        yield


@mutant(
    "a row that others add to fails the handler that puts it whole",
    None,
    tests=SHARED + "test_a_warm_process_of_older_code_adds_to_a_row_that_others_add_to",
)
def _() -> Iterator[None]:
    with patch.object(replanning, "is_added_to", lambda *_: False):
        yield


@mutant(
    "plain attributes of before stay on a row that is added to",
    None,
    tests=SHARED + "test_plain_attributes_of_before_go_when_a_row_is_added_to",
)
def _() -> Iterator[None]:
    with patch.object(difference, "_removed", lambda *_: ()):
        yield


@mutant(
    "a difference is added to whatever row there is",
    None,
    tests=(
        SHARED + "test_a_row_that_expired_before_its_contributors_does_not_come_back_negative",
        SHARED + "test_an_amendment_does_not_make_a_row_of_a_difference",
    ),
)
def _() -> Iterator[None]:
    with on_writes(AddRow, guard=lambda takes: lambda write, row: takes(write._replace(contributors_min=None), row)):
        yield


@mutant(
    "a row that somebody removed fails those who take back what they added",
    None,
    tests=SHARED + "test_a_new_contributor_makes_a_row_again_beside_one_that_leaves",
)
def _() -> Iterator[None]:
    with patch.object(replanning, "without_row", lambda effects, key, found: effects):
        yield


@mutant(
    "what a row refuses to a step that assumed too much is taken for a removed row",
    None,
    tests=SHARED + "test_plain_attributes_of_before_go_when_a_row_is_added_to",
)
def _() -> Iterator[None]:
    def deciding(self: Any, chunk: Any, refused: Any) -> Any:
        count = len(chunk.units)
        rows = zip(chunk.writes[count:], refused.reasons[count:], strict=True)
        units = list(chunk.units)
        for write, reason in rows:
            if reason is not None and isinstance(write, AddRow):
                units = self._without_refused(units, write, reason)
        return units

    with (
        patch.object(replanning.Replanner, "decide", deciding),
        patch.object(Committer, "_read_rest", lambda self: None),
    ):
        yield


@mutant(
    "what left a row decides its form",
    None,
    tests=(
        SHARED + "test_an_item_that_older_code_counted_leaves_a_row_in_its_present_form",
        SHARED + "test_an_item_leaves_a_row_in_its_present_form_where_no_code_says_how_it_was",
    ),
)
def _() -> Iterator[None]:
    moved = contribution.changed_entries

    def by_what_left(mark: Any, row: Any, before: Any, after: Any, *life: Any) -> Any:
        found = moved(mark, row, before, after, *life)
        return tuple(
            each._replace(ordering=before[each.name].ordering) if each.name in before and not each.ordering else each
            for each in found
        )

    with patch.object(difference, "changed_entries", by_what_left):
        yield


@mutant(
    "the code at hand decides the form of rows that an item left",
    None,
    tests=(
        SHARED + "test_older_code_that_sees_old_records_again_leaves_a_row_in_its_present_form",
        SHARED + "test_an_item_that_older_code_takes_out_of_a_row_leaves_it_in_its_present_form",
    ),
)
def _() -> Iterator[None]:
    with (
        patch.object(pending.NamedRows, "add", pending.NamedRows.hold),
        patch.object(pending.NamedRows, "hold", lambda *_: None),
    ):
        yield


@mutant(
    "a plain attribute is taken for one made of entries",
    None,
    tests=SHARED + "test_who_recomputes_late_leaves_a_plain_attribute",
)
def _() -> Iterator[None]:
    show = after_commit._show

    def any_row(row: Any, moved: Any, shows: Any, values: Any, removed: Any) -> None:
        show({EDGE + moved.name: "", **row}, moved, shows, values, removed)

    with patch.object(after_commit, "_show", any_row):
        yield


@mutant(
    "a plain attribute leaves what a row says of its entries",
    None,
    tests=SHARED + "test_a_plain_attribute_stays_on_a_row_that_nobody_recomputed_when_its_item_left",
)
def _() -> Iterator[None]:
    removed = difference._removed

    def no_edges(was: Any, now: Any, plain: Any) -> Any:
        return tuple(name for name in removed(was, now, plain) if not name.startswith(EDGE))

    with patch.object(difference, "_removed", no_edges):
        yield


@mutant(
    "what is recomputed late lands on plain attributes",
    None,
    tests=SHARED + "test_what_is_recomputed_late_does_not_land_on_a_plain_attribute",
)
def _() -> Iterator[None]:
    marked = difference.marked

    def unmarked(rows: Any, *others: Any) -> Any:
        found = marked(rows, *others)
        return [row._replace(stamp="") if isinstance(row, AddRow) and not row.changed_entries else row for row in found]

    with patch.object(ledger, "marked", unmarked):
        yield


@mutant(
    "a late clearing of pending work clears what a later step left",
    None,
    tests=LEFT + "test_who_forgets_late_what_a_step_left_forgets_nothing_of_a_later_step",
)
def _() -> Iterator[None]:
    with patch.object(ledger, "_stamped", lambda mark, left: None if left is None else "-" * 8 + left):
        yield


@mutant(
    "an older record keeps its rows from being finished",
    None,
    tests=LEFT + "test_an_older_record_finishes_what_a_newer_one_left",
)
def _() -> Iterator[None]:
    with patch.object(steps, "contribution_after", lambda step, found: step.after):
        yield


@mutant(
    "the rows that a step leaves are not kept for those who come after it",
    None,
    tests=(
        LEFT + "test_a_row_that_a_step_left_empty_is_removed_when_the_record_comes_again",
        LEFT + "test_a_parent_that_an_item_left_does_not_keep_its_amount",
    ),
)
def _() -> Iterator[None]:
    text = ledger.pending_text

    def entries_only(before: Any, after: Any, writes: Any, known: str = "") -> Any:
        return text(before, after, (), known)

    with patch.object(ledger, "pending_text", entries_only):
        yield


@mutant(
    "each page forgets what the one before it took",
    None,
    tests=LEFT + "test_every_page_of_a_large_step_is_finished",
)
def _() -> Iterator[None]:
    text = ledger.pending_text
    with patch.object(ledger, "pending_text", lambda before, after, writes, known="": text(before, after, writes)):
        yield


@mutant(
    "a step overwrites what an earlier one left, unread",
    None,
    tests=LEFT + "test_what_an_unfinished_step_left_is_finished_by_the_next_step_that_leaves_a_row",
)
def _() -> Iterator[None]:
    def unread(holds: Any) -> Any:
        return lambda write, item: holds(write, {name: item[name] for name in item if name[-2:] != ".u"})

    with on_writes(LedgerWrite, guard=unread):
        yield


@mutant(
    "what is not finished is forgotten",
    None,
    tests=LEFT + "test_what_is_not_finished_stays_in_the_ledger",
)
def _() -> Iterator[None]:
    with patch.object(pending.PendingWork, "fail", lambda *_: None):
        yield


@mutant("what is finished is never forgotten", None, tests=LEFT + "test_what_is_finished_is_taken_out_of_the_ledger")
def _() -> Iterator[None]:
    with patch.object(MemoryEngine, "clear_pending", lambda *_: None):
        yield


@mutant(
    "the removal of a row by somebody else is not noticed",
    None,
    tests=REMOVED + "test_the_record_of_a_row_that_counted_items_is_noticed_for_each_handler_that_adds_to_it",
)
def _() -> Iterator[None]:
    with patch.object(order, "is_of_counted_row", lambda _: False):
        yield


@mutant(
    "every removal of a row is taken for one by somebody else",
    None,
    tests=(
        REMOVED + "test_the_record_of_a_row_says_nothing",
        REMOVED + "test_what_the_framework_itself_removes_is_not_noticed",
    ),
)
def _() -> Iterator[None]:
    with patch.object(order, "is_of_counted_row", lambda change: change.event == "REMOVE"):
        yield


@mutant(
    "a step that finds no row says nothing",
    None,
    tests=(
        REMOVED + "test_a_step_that_finds_no_row_is_noticed",
        REMOVED + "test_steps_of_a_batch_notice_a_row_once_for_each_handler",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Progress, "lose", lambda *_: None):
        yield


@mutant(
    "only the handler's own group notices the removal of a row",
    None,
    tests=REMOVED + "test_a_row_of_a_table_that_only_another_group_reads_is_noticed_there",
)
def _() -> Iterator[None]:
    with patch.object(Application, "watching_group", lambda _, route, table: route.group):
        yield


@mutant(
    "a repair takes what a row refused to a step from another contribution for its removal",
    None,
    tests="tests/failures/test_repair.py::"
    "test_a_row_that_was_gone_while_the_item_was_is_amended_once_it_is_there_again",
)
def _() -> Iterator[None]:
    decide = replanning.Replanner.decide

    def hasty(self: Any, chunk: Any, refused: Any) -> Any:
        units, count = decide(self, chunk, refused), len(chunk.units)
        for write, reason in zip(chunk.writes[count:], refused.reasons[count:], strict=True):
            if reason is not None and isinstance(write, AddRow):
                units = self._without_lost(units, write.key, there=False)
        return units

    with patch.object(replanning.Replanner, "decide", hasty):
        yield


@mutant(
    "a rebuild does not compare rows",
    None,
    tests=VERIFY + "test_a_rebuild_makes_a_row_the_fold_of_all_its_items",
)
def _() -> Iterator[None]:
    with patch.object(backfill, "reconcile_rows", lambda *_: RowsReconciled(VerifiedRows(), RowsCorrected([], []))):
        yield


CORRECTED = "tests/lifecycle/test_row_repair.py::"
AT_EACH_POINT = CORRECTED + "test_an_item_in_and_one_out_at_each_point_of_the_scan_leaves_no_wrong_row"


@mutant("one scan is enough for a marked row", None, tests=AT_EACH_POINT)
def _() -> Iterator[None]:
    with patch.object(row_repair, "_is_same", lambda *_: True):
        yield


@mutant(
    "a step goes on without a row that is being corrected",
    None,
    tests=CORRECTED + "test_a_step_that_the_row_does_not_take_takes_the_mark_away",
)
def _() -> Iterator[None]:
    without_row = replanning.without_row

    def untouched(effects: Any, key: Any, found: Any) -> Any:
        return tuple(effect for effect in without_row(effects, key, found) if effect.key != key)

    with patch.object(replanning, "without_row", untouched):
        yield


@mutant("a mark is an owner", None, tests=CORRECTED + "test_a_live_put_of_a_marked_row_that_others_add_to_adds")
def _() -> Iterator[None]:
    with patch.object(transactions, "_owner", lambda reason: (reason.item or {}).get(OWNER)):
        yield


@mutant(
    "a row is corrected whatever it holds by then",
    None,
    tests=CORRECTED + "test_a_correction_is_refused_where_the_row_is_another",
)
def _() -> Iterator[None]:
    with on_writes(CorrectRow, guard=lambda _: lambda *_: True):
        yield


PENDING = "tests/lifecycle/test_buckets.py::"
AT_ANY_POINTS = PENDING + "test_what_waits_in_deltas_and_is_moved_at_any_points_is_added_once"


@mutant(
    "a correction adds what is pending",
    None,
    tests=(PENDING + "test_a_row_of_which_something_is_pending_is_left_as_it_is", AT_ANY_POINTS),
)
def _() -> Iterator[None]:
    with patch.object(buckets.PendingLook, "has", lambda *_: False):
        yield


@mutant(
    "a correction looks into one stripe of the bucket", None, tests=PENDING + "test_what_waits_in_any_stripe_is_seen"
)
def _() -> Iterator[None]:
    with patch.object(buckets, "STRIPES", 1):
        yield


@mutant(
    "a correction looks into the buckets behind its second scan alone",
    None,
    tests=PENDING + "test_a_correction_adds_nothing_that_is_taken_back_behind_its_second_scan",
)
def _() -> Iterator[None]:
    with patch.object(buckets.PendingLook, "before_scan", lambda *_: set()):
        yield


@mutant(
    "a correction looks at some deltas of each stripe",
    None,
    tests=PENDING + "test_what_waits_behind_more_deltas_than_are_read_at_once_is_seen",
)
def _() -> Iterator[None]:
    with patch.object(Entries, "_replace", lambda *_, **__: Entries("", FOUND_MAX)):
        yield


@mutant(
    "a correction does not wait between its scans",
    None,
    tests=(PENDING + "test_a_delta_that_is_readable_after_its_ledger_item_is_waited_for", AT_ANY_POINTS),
)
def _() -> Iterator[None]:
    with patch.object(row_repair, "READABLE_SECONDS", 0.0):
        yield


@mutant(
    "a correction takes an equal row for one that nobody wrote",
    None,
    tests=PENDING + "test_what_is_put_into_deltas_at_each_point_of_a_correction_is_added_once",
)
def _() -> Iterator[None]:
    correct_by = row_repair.RowCorrection._correct_by

    def unmarked(self: Any, row: Any, stored: Any, held: Any) -> None:
        known = self.marked.get(row)
        correct_by(self, row, {**(stored or {}), OWNER: known.mark} if known else stored, held)

    def any_owner(holds: Any) -> Any:
        def held(write: CorrectRow, row: Any) -> bool:
            return holds(write._replace(expected={k: v for k, v in write.expected.items() if k != OWNER}), row)

        return held

    with (
        patch.object(row_repair.RowCorrection, "_correct_by", unmarked),
        on_writes(CorrectRow, guard=any_owner),
    ):
        yield


@mutant(
    "a correction asks once whether anybody puts deltas",
    None,
    tests=PENDING + "test_a_correction_that_began_before_the_first_delta_sees_what_is_pending",
)
def _() -> Iterator[None]:
    with patch.object(buckets, "read_manifest", lambda *_: Manifest()):
        yield


@mutant(
    "a row is compared while something of it is pending",
    None,
    tests=(
        PENDING + "test_a_row_is_not_different_while_something_of_it_is_pending",
        PENDING + "test_a_row_that_somebody_removed_is_not_missing_while_something_of_it_is_pending",
    ),
)
def _() -> Iterator[None]:
    with patch.object(RowsVerifier, "_without_pending", lambda _, found: found):
        yield


RETIRE = "tests/lifecycle/test_retire.py::"


@mutant(
    "a handler is retired before what waits of it is in the rows",
    None,
    tests=(
        RETIRE + "test_what_waits_in_deltas_is_moved_before_a_handler_is_retired",
        RETIRE + "test_a_part_of_which_a_row_takes_no_more_is_kept_until_the_row_is_corrected",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Retirement, "_wait_for", lambda *_: {}):
        yield
