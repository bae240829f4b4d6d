"""Mutants of claims, row guards and keyed puts."""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold import Change
from streamfold.commit import claims, plan
from streamfold.commit.claims import OlderChanges
from streamfold.commit.committer import Committer
from streamfold.derivations.audit import puts as audit_puts
from streamfold.derivations.audit.kind import Audit
from streamfold.derivations.audit.puts import audit_row
from streamfold.derivations.audit.rows import ROW, row_digest
from streamfold.derivations.copy.copies import Copies
from streamfold.derivations.on.kind import OnChanges
from streamfold.engines import MemoryEngine
from streamfold.records.kinesis import KinesisChange
from streamfold.writes.guarded import Claim, DeleteRow, GuardedPut, PutRow
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant
from tests.mutants.tools import expiring_in_an_hour, in_two, is_guard, unpadded

CONTRACT = "tests/commit/test_committer.py::TestCommit::"
OLDER = "tests/derivations/on/test_older_changes_aws.py::"


def _planning_the_newest(kind: Any) -> Any:
    """A kind that plans the newest change of each item alone."""
    plan = kind.plan

    def newest(self: Any, works: Any, planning: Any) -> Any:
        return plan(self, [work._replace(changes=work.changes[-1:]) for work in works], planning)

    return patch.object(kind, "plan", newest)


@mutant("claim before the effects, in two transactions", "claim")
def _() -> Iterator[None]:
    with in_two(is_guard):
        yield


@mutant("claim after the effects, in two transactions", "claim")
def _() -> Iterator[None]:
    with in_two(lambda write: not is_guard(write)):
        yield


@mutant("no condition on the claim", "claim")
def _() -> Iterator[None]:
    with on_writes(Claim, guard=lambda _: lambda *_: True, made=lambda _: lambda *given: {"ttl": given[-1]}):
        yield


@mutant("a claim is kept for an hour", "claim")
def _() -> Iterator[None]:
    with expiring_in_an_hour(Claim):
        yield


@mutant("several changes of an item are one to handlers of changes", "claim")
def _() -> Iterator[None]:
    with _planning_the_newest(OnChanges):
        yield


@mutant(
    "changes behind a failed one are not held",
    None,
    tests=CONTRACT + "test_changes_are_held_behind_a_lost_answer_in_whatever_transaction_they_are",
)
def _() -> Iterator[None]:
    with patch.object(Committer, "_without_held", lambda self, attempt: attempt):
        yield


@mutant("the row's version is not padded", "row guard")
def _() -> Iterator[None]:
    with unpadded():
        yield


@mutant("seconds are the row's version", "row guard")
def _() -> Iterator[None]:
    made = Change.__init__

    def seconds(self: Change, record: Any, origin: Any) -> None:
        made(self, record, origin)
        self.version_text = origin.version_prefix + f"{int(self.at.timestamp()):040}"

    with patch.object(Change, "__init__", seconds):
        yield


@mutant(
    "an older put overwrites a newer one",
    "row guard",
    tests=CONTRACT + "test_put_that_is_older_than_its_row_is_dropped_and_the_rest_is_written",
)
def _() -> Iterator[None]:
    with on_writes(GuardedPut, guard=lambda older: lambda write, row: True):
        yield


@mutant("a removal leaves no tombstone", "row guard")
def _() -> Iterator[None]:
    after = MemoryEngine._after

    def removed(self: MemoryEngine, write: Any, *given: Any) -> Any:
        found = after(self, write, *given)
        gone = isinstance(write, GuardedPut) and write.attributes is None and isinstance(found, dict)
        return None if gone else found

    with patch.object(MemoryEngine, "_after", removed):
        yield


@mutant("a tombstone is kept for an hour", "row guard")
def _() -> Iterator[None]:
    with expiring_in_an_hour(GuardedPut):
        yield


@mutant(
    "a row's owner is not compared",
    None,
    tests=CONTRACT + "test_row_of_another_item_fails_only_the_handler_that_wants_it",
)
def _() -> Iterator[None]:
    def anyone(holds: Any) -> Any:
        return lambda write, row: holds(write._replace(owner=None), row)

    with on_writes(PutRow, DeleteRow, guard=anyone):
        yield


@mutant("the history row's key differs from attempt to attempt", "keyed put")
def _() -> Iterator[None]:
    seen: Counter[Any] = Counter()

    def once(key: Any) -> str:
        seen[key] += 1
        return "" if seen[key] == 1 else f"#{seen[key]}"

    def numbered(*arguments: Any) -> Any:
        row = audit_row(*arguments)
        return row._replace(key=(*row.key[:2], f"{row.key[2]}{once(row.key)}"))

    with patch.object(audit_puts, "audit_row", numbered):
        yield


@mutant("several changes of an item are one to the history", "keyed put")
def _() -> Iterator[None]:
    with _planning_the_newest(Audit):
        yield


@mutant(
    "a history row's digests are chained to the row that was written before",
    None,
    tests="tests/derivations/audit/test_verify.py::test_a_record_that_comes_again_or_days_later_keeps_the_history_honest",
)
def _() -> Iterator[None]:
    before: dict[Any, str] = {}
    made = audit_puts._digests

    def chained(key: bytes, change: Any, target: Any, place: Any, own: Any) -> dict[str, str]:
        own_digest = made(key, change, target, place, own)[ROW]
        digests = {"old": before.get(change.item, ""), "new": own_digest}
        before[change.item] = own_digest
        return {**digests, ROW: row_digest(key, {**target.attributes(*place), **own, "digests": digests})}

    with patch.object(audit_puts, "_digests", chained):
        yield


@mutant(
    "a history row is put over the one that is there",
    None,
    tests="tests/derivations/audit/test_rows.py::test_a_row_that_was_redacted_is_not_rewritten_by_a_process_of_older_code",
)
def _() -> Iterator[None]:
    with patch.object(MemoryEngine, "_is_there", lambda self, key: False):
        yield


@mutant("a claim names no rows", None, tests=OLDER + "test_an_older_change_brings_no_row_back_that_a_newer_one_wrote")
def _() -> Iterator[None]:
    with patch.object(plan, "row_names", lambda rows: ""):
        yield


@mutant(
    "a redriven change is written before the claims of newer ones are read",
    None,
    tests=OLDER + "test_an_older_change_brings_no_row_back_that_a_newer_one_wrote",
)
def _() -> Iterator[None]:
    with patch.object(OlderChanges, "without_newer", lambda self, chunks: chunks):
        yield


@mutant(
    "the claims of newer changes are not read again after a redriven change is written",
    None,
    tests=OLDER + "test_a_newer_change_that_lands_after_the_look_and_whose_row_is_gone_at_once_is_not_undone",
)
def _() -> Iterator[None]:
    with patch.object(OlderChanges, "take_back", lambda self: None):
        yield


@mutant(
    "an older change that came with newer, known ones is left as it was written",
    None,
    tests=OLDER + "test_a_batch_that_comes_again_takes_back_what_it_wrote_of_older_changes",
)
def _() -> Iterator[None]:
    with patch.object(OlderChanges, "_overtaken", lambda self: []):
        yield


@mutant(
    "changes of Kinesis count as delivered in order",
    None,
    tests=OLDER + "test_changes_of_kinesis_bring_no_row_back_in_whatever_order_they_come",
)
def _() -> Iterator[None]:
    with patch.object(KinesisChange, "in_order", new=True):
        yield


@mutant(
    "claims of another item whose sort key begins alike count",
    None,
    tests=OLDER + "test_claims_of_another_item_whose_sort_key_begins_alike_are_not_asked",
)
def _() -> Iterator[None]:
    with patch.object(claims, "claimed_identity", lambda key, beginning: key.removeprefix(beginning)):
        yield


@mutant(
    "no more than the first claims of newer changes are read",
    None,
    tests=OLDER + "test_many_newer_changes_are_looked_through",
)
def _() -> Iterator[None]:
    read = MemoryEngine.read_entries

    def first(self: MemoryEngine, wanted: Any) -> Any:
        return read(self, wanted) if wanted.before.endswith(claims.BEHIND_VERSIONS) else []

    with patch.object(MemoryEngine, "read_entries", first):
        yield


@mutant(
    "a redriven record makes a copy that is gone, whatever its item is by now",
    None,
    tests="tests/derivations/copy/test_removed_copies_aws.py::test_an_older_record_brings_no_copy_back_that_is_gone",
)
def _() -> Iterator[None]:
    with patch.object(Copies, "_is_outdated", lambda self, copy: False):
        yield
