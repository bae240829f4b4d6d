"""Mutants of repair and redrive: the order of the reads, the fence, the version."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.batch.visits import Visits
from streamfold.derivations.feed import verified
from streamfold.failures.redrive import Redrive
from streamfold.failures.repair import Repair
from streamfold.keys.table import CONTRIBUTORS
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.ledger.step import reconciled
from streamfold.lifecycle import adoption, row_repair
from streamfold.lifecycle.adoption import Restore
from streamfold.lifecycle.row_sources import in_its_life
from streamfold.lifecycle.unseen import UnseenDifferences
from tests.mutants.registry import mutant

TESTS = "tests/failures/test_repair.py::"
UNSEEN = "tests/lifecycle/test_unseen.py::"
OTHERS, RESTORE = "tests/cli/test_repair_of_other_rows.py::", "tests/cli/test_restore.py::"
REDRIVE = "tests/failures/test_redrive.py::"


@mutant(
    "a repair reads the source before the ledger",
    tests=TESTS + "test_record_that_lands_between_the_reads_is_not_overwritten_by_an_older_image",
)
def _() -> Iterator[None]:
    read = Visits.read

    def source_first(self: Visits, wanted: Any) -> Any:
        wanted = list(wanted)
        sources = self._sources([each.item for each in wanted])
        with patch.object(Visits, "_sources", lambda *_: sources):
            return read(self, wanted)

    with patch.object(Visits, "read", source_first):
        yield


@mutant(
    "a repair writes only differences",
    tests=(
        TESTS + "test_write_that_was_planned_before_a_repair_is_refused_by_its_fence",
        TESTS + "test_zombie_that_lands_behind_a_repair_of_nothing_changes_nothing",
    ),
)
def _() -> Iterator[None]:
    commit = Visits.commit

    def differences(self: Visits, units: Any) -> Any:
        return commit(self, [unit for unit in units if unit.effects])

    with patch.object(Visits, "commit", differences):
        yield


@mutant(
    "a redrive does not record its version",
    tests=TESTS + "test_record_that_comes_behind_the_redrive_of_a_newer_one_changes_nothing",
)
def _() -> Iterator[None]:
    def at_its_own(key: Any, item: Any, steps: Any, *more: Any) -> Any:
        return reconciled(key, item, tuple(step._replace(version=BEFORE_ALL) for step in steps), *more)

    with patch("streamfold.commit.ledger_units.reconciled", at_its_own):
        yield


@mutant(
    "a repair sets no fence",
    tests=TESTS + "test_write_that_was_planned_before_a_repair_is_refused_by_its_fence",
)
def _() -> Iterator[None]:
    def unfenced(*arguments: Any) -> Any:
        transition = reconciled(*arguments)
        return transition._replace(guard=transition.guard._replace(fence=False))

    with patch("streamfold.commit.ledger_units.reconciled", unfenced):
        yield


@mutant(
    "a redrive leads the version back to its record's",
    tests=TESTS + "test_version_of_a_redriven_record_is_kept_unless_the_ledger_has_a_newer",
)
def _() -> Iterator[None]:
    derives = Visits._derive

    def of_the_record(self: Visits, visit: Any, *more: Any) -> Any:
        failures, version = derives(self, visit, *more), self.bounds.get(visit.item[0], BEFORE_ALL)
        visit.keep([step._replace(version=version) for step in visit.steps])
        return failures

    def older(key: Any, item: Any, steps: Any, *more: Any) -> Any:
        transition = reconciled(key, item, steps, *more)
        each = zip(transition.guard.contributions, steps, strict=False)
        parts = tuple(part._replace(version=step.version) for part, step in each)
        return transition._replace(guard=transition.guard._replace(contributions=parts))

    with (
        patch.object(Visits, "_derive", of_the_record),
        patch("streamfold.commit.ledger_units.reconciled", older),
    ):
        yield


@mutant(
    "a redrive replays the images of views",
    None,
    tests=REDRIVE + "test_an_old_record_leads_a_view_to_what_the_item_is_now",
)
def _() -> Iterator[None]:
    def replayed(self: Redrive, told: Any, change: Any, handlers: list[str]) -> list[Any]:
        routes = [route for route in self.app.routes if route.name in handlers]
        return [self._replayed(told._replace(handler=route.name), change, route) for route in routes]

    with patch.object(Redrive, "_reconciled", replayed):
        yield


@mutant(
    "a redrive of which nothing comes leaves the version as it was",
    None,
    tests=REDRIVE + "test_a_redrive_of_which_nothing_comes_still_raises_the_version",
)
def _() -> Iterator[None]:
    item = Repair.item

    def without_version(self: Repair, *arguments: Any, **options: Any) -> Any:
        return item(self, *arguments, **{**options, "version": BEFORE_ALL})

    with patch.object(Repair, "item", without_version):
        yield


@mutant(
    "a comparison of rows leaves out how many contribute to them",
    None,
    tests=UNSEEN + "test_a_row_that_was_removed_and_made_again_keeps_what_it_holds_when_older_items_go",
)
def _() -> Iterator[None]:
    matters = UnseenDifferences._matters

    def but_for_the_count(self: UnseenDifferences, name: str, each: Any) -> bool:
        return name != CONTRIBUTORS and matters(self, name, each)

    with patch.object(UnseenDifferences, "_matters", but_for_the_count):
        yield


@mutant(
    "a correction leaves entries of no item below its row",
    None,
    tests=UNSEEN + "test_an_entry_of_no_item_is_removed_before_a_row_shows_it",
)
def _() -> Iterator[None]:
    compare = row_repair.wrong_entries
    with patch.object(row_repair, "wrong_entries", lambda *facts: compare(*facts)._replace(extra=())):
        yield


@mutant(
    "a correction takes a life of no item for that of the row",
    None,
    tests=UNSEEN + "test_the_life_of_a_row_that_somebody_changed_is_that_of_its_items_again",
)
def _() -> Iterator[None]:
    with patch.object(row_repair, "_in_its_life", in_its_life):
        yield


@mutant(
    "a repair leaves rows of feeds that are newer than their items",
    None,
    tests=OTHERS + "test_rows_of_a_post_that_the_table_lost_are_removed",
)
def _() -> Iterator[None]:
    with patch.object(verified, "_remove", lambda *_: None):
        yield


@mutant(
    "a restore that goes on removes rows again",
    None,
    tests=RESTORE + "test_a_restore_that_was_stopped_behind_the_backfill_removes_nothing_again",
)
def _() -> Iterator[None]:
    begin = Restore.__init__

    def from_the_beginning(self: Restore, runtime: Any) -> None:
        begin(self, runtime)
        self.is_removed = False

    with patch.object(Restore, "__init__", from_the_beginning):
        yield


@mutant(
    "a restore removes items of the application at keys of rows",
    None,
    tests=RESTORE + "test_rows_are_those_of_the_items_that_the_restored_table_has",
)
def _() -> Iterator[None]:
    with patch.object(adoption, "is_writers", lambda _: False):
        yield
