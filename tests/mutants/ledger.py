"""Mutants of the ledger: its conditions, its order, what is written, and how long it is kept."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold import Change
from streamfold.batch import steps as steps_module
from streamfold.batch.steps import Steps
from streamfold.commit import ledger_units
from streamfold.commit import plan as plan_module
from streamfold.commit.ledger_units import LedgerUnits
from streamfold.commit.plan import ledger_unit
from streamfold.engines import MemoryEngine
from streamfold.ledger import step as ledger_module
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.difference import difference
from streamfold.ledger.step import replanned
from streamfold.proofs.check import FAULTS
from streamfold.writes.guarded import LedgerWrite
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant
from tests.mutants.search import BEST
from tests.mutants.tools import expiring_in_an_hour, in_two, is_guard, unpadded

COUNTER_EXAMPLES = "tests/commit/test_committer.py::TestCounterExamples::"
CONTRACT = "tests/commit/test_committer.py::TestCommit::"


def _holding(*, version: bool = True, contribution: bool = True, fence: bool = True) -> Any:
    """The optimistic condition of a ledger write without some of its terms."""

    def changed(holds: Any) -> Any:
        def ledger_holds(write: LedgerWrite, item: Any) -> bool:
            stored = item or {}
            if write.revision is not None:
                return bool(holds(write, item))
            if write.live_expected is not None and stored.get("live", 0) != write.live_expected:
                return False
            return all(part_holds(part, stored) for part in write.contributions)

        return ledger_holds

    def part_holds(part: Any, stored: Any) -> bool:
        was = stored.get(part.handler + ".v")
        if was is None:
            return not (contribution and part.expected)
        if version and was >= part.version:
            return False
        if contribution and stored[part.handler + ".s"] != part.expected:
            return False
        return not (fence and part.handler + ".fence" in stored)

    return on_writes(LedgerWrite, guard=changed)


@mutant("no condition")
def _() -> Iterator[None]:
    with on_writes(LedgerWrite, guard=lambda holds: lambda write, item: True):
        yield


@mutant("the optimistic condition compares the version only")
def _() -> Iterator[None]:
    with _holding(contribution=False):
        yield


@mutant(
    "the optimistic condition compares the contribution only",
    tests=COUNTER_EXAMPLES + "test_change_that_lands_after_it_was_taken_back_is_refused",
)
def _() -> Iterator[None]:
    with _holding(version=False):
        yield


@mutant(
    "the optimistic condition ignores the fence",
    tests="tests/failures/test_repair.py::test_write_that_was_planned_before_a_repair_is_refused_by_its_fence",
)
def _() -> Iterator[None]:
    with _holding(fence=False):
        yield


@mutant("versions are compared nowhere")
def _() -> Iterator[None]:
    with _holding(version=False), patch("streamfold.ledger.step.is_done", lambda step, found: False):
        yield


@mutant(
    "a step that was planned again is conditioned on the version, not on the revision",
    tests="tests/failures/test_repair.py::test_step_that_was_planned_again_is_refused_by_a_repair_in_between",
)
def _() -> Iterator[None]:
    def changed(holds: Any) -> Any:
        def ledger_holds(write: LedgerWrite, item: Any) -> bool:
            if write.revision is None or write.fence or not item:
                return bool(holds(write, item))
            return all(item.get(part.handler + ".v", "") < part.version for part in write.contributions)

        return ledger_holds

    with on_writes(LedgerWrite, guard=changed):
        yield


@mutant("ledger item before the effects, in two transactions")
def _() -> Iterator[None]:
    with in_two(is_guard):
        yield


@mutant("ledger item after the effects, in two transactions")
def _() -> Iterator[None]:
    with in_two(lambda write: not is_guard(write)):
        yield


@mutant("an item's effects in two transactions")
def _() -> Iterator[None]:
    with in_two(lambda write: write.key[0] != BEST.table.name or write.key[1] != "BEST#x"):
        yield


@mutant("the delta comes from the images, whatever the ledger holds")
def _() -> Iterator[None]:
    def from_images(key: Any, item: Any, *arguments: Any) -> Any:
        planned = replanned(key, item, *arguments)
        if planned is None or any(step.before is None for step in planned.steps):
            return planned
        name = key.pk.split("#")[1]
        rows = [row for step in planned.steps for row in difference(name, step.route, item, step.before, step.after)]
        return planned._replace(effects=tuple(rows))

    with patch.object(plan_module, "replanned", from_images):
        yield


@mutant("a removal deletes the ledger item")
def _() -> Iterator[None]:
    apply = MemoryEngine._apply

    def without_tombstones(self: MemoryEngine, done: Any) -> None:
        apply(self, {key: None if after and after.get("live") == 0 else after for key, after in done.items()})

    with patch.object(MemoryEngine, "_apply", without_tombstones):
        yield


@mutant(
    "an empty ledger item is kept for an hour", faults=("skipped", "replayed", "dies-and-lands-late", "redriven-early")
)
def _() -> Iterator[None]:
    with expiring_in_an_hour(LedgerWrite):
        yield


@mutant(
    "an empty ledger item is kept for an hour, and records are redriven by repair",
    faults={*FAULTS} - {"replayed"},
    equivalent=True,
)
def _() -> Iterator[None]:
    with expiring_in_an_hour(LedgerWrite):
        yield


@mutant(
    "the time to live ignores handlers that were not planned",
    tests=(
        CONTRACT + "test_handler_that_was_not_planned_keeps_the_ledger_item_from_expiring",
        CONTRACT + "test_handler_that_raised_keeps_the_ledger_item_from_expiring",
    ),
)
def _() -> Iterator[None]:
    def changed(holds: Any) -> Any:
        return lambda write, item: holds(write._replace(live_expected=None), item)

    with on_writes(LedgerWrite, guard=changed):
        yield


@mutant(
    "times to live count from the change's time",
    None,
    tests=CONTRACT + "test_ledger_item_expires_only_when_no_handler_holds_anything",
)
def _() -> Iterator[None]:
    from streamfold.batch import process

    def at_the_changes_time(runtime: Any, changes: Any, *more: Any, **options: Any) -> Any:
        runtime.clock = changes[0].at.timestamp
        return processed(runtime, changes, *more, **options)

    processed = process.process_changes
    with patch.object(process, "process_changes", at_the_changes_time):
        yield


@mutant("the version is not padded")
def _() -> Iterator[None]:
    with unpadded():
        yield


@mutant(
    "the version is without its stream's label",
    None,
    tests="tests/batch/test_process.py::test_older_stream_label_never_overwrites_a_newer_one",
)
def _() -> Iterator[None]:
    made = Change.__init__

    def without_label(self: Change, record: Any, origin: Any) -> None:
        made(self, record, origin)
        self.version_text = self.version_text.rpartition("/")[2]

    with patch.object(Change, "__init__", without_label):
        yield


@mutant(
    "what changes nothing is not written",
    tests=COUNTER_EXAMPLES + "test_removal_that_has_nothing_to_take_back_moves_the_version_on",
)
def _() -> Iterator[None]:
    def written(*arguments: Any, **options: Any) -> Any:
        unit = ledger_unit(*arguments, **options)
        return unit if unit is not None and unit.effects else None

    with (
        patch.object(steps_module, "ledger_unit", written),
        patch.object(plan_module, "ledger_unit", written),
        patch.object(ledger_units, "ledger_unit", written),
    ):
        yield


@mutant(
    "a batch that leads back to where it began is skipped",
    tests=COUNTER_EXAMPLES + "test_batch_that_leads_back_to_where_it_began_takes_back_what_a_lost_answer_left",
)
def _() -> Iterator[None]:
    step = Steps._step

    def skipped(self: Steps, *arguments: Any) -> Any:
        found = step(self, *arguments)
        return None if found is not None and found.before == found.after else found

    with patch.object(Steps, "_step", skipped):
        yield


@mutant(
    "a page of a large step moves the version on",
    None,
    tests=CONTRACT + "test_page_that_is_lost_is_taken_up_again_where_it_stopped",
)
def _() -> Iterator[None]:
    from_found = ledger_module._from_found

    def finished(*arguments: Any, **more: Any) -> Any:
        transition = from_found(*arguments, **more)
        pairs = zip(transition.guard.contributions, transition.steps, strict=True)
        parts = tuple(part._replace(version=step.version) for part, step in pairs)
        return transition._replace(guard=transition.guard._replace(contributions=parts))

    with patch.object(ledger_module, "_from_found", finished):
        yield


@mutant("an equal version is applied again after a read", equivalent=True)
def _() -> Iterator[None]:
    def older(step: Any, found: LedgerItem) -> bool:
        stored = found.contributions.get(step.route.name)
        return stored is not None and stored.version > step.version

    with patch("streamfold.ledger.step.is_done", older):
        yield


@mutant("a ledger item is read without asking for what is newest", equivalent=True)
def _() -> Iterator[None]:
    read = LedgerUnits.read

    def eventually(self: Any, wanted: Any, stored: Any = None, *, consistent: bool = False) -> Any:
        return read(self, wanted, stored)

    with patch.object(LedgerUnits, "read", eventually):
        yield
