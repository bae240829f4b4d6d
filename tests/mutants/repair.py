"""Mutants of repair and redrive: the order of the reads, the fence, the version."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.failures.redrive import Redrive
from streamfold.failures.repair import Repair
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.ledger.step import repaired
from tests.mutants.registry import mutant

TESTS = "tests/failures/test_repair.py::"
REDRIVE = "tests/failures/test_redrive.py::"


class _ReadAhead:
    """An engine that gives what the source said before; all else is asked of the engine itself."""

    def __init__(self, engine: Any, source: Any) -> None:
        self.engine = engine
        self.read_source = lambda item: source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@mutant(
    "a repair reads the source before the ledger",
    tests=TESTS + "test_record_that_lands_between_the_reads_is_not_overwritten_by_an_older_image",
)
def _() -> Iterator[None]:
    planned = Repair._planned

    def source_first(self: Repair, work: Any, *more: Any) -> Any:
        engine = self.runtime.engine
        self.runtime.engine = _ReadAhead(engine, engine.read_source(work.item))
        try:
            return planned(self, work, *more)
        finally:
            self.runtime.engine = engine

    with patch.object(Repair, "_planned", source_first):
        yield


class _Differing:
    """An engine that is sent no write without effects."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def transact(self, writes: Any, expires_at: int) -> Any:
        return self.engine.transact(writes, expires_at) if len(writes) > 1 else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@mutant(
    "a repair writes only differences",
    tests=(
        TESTS + "test_write_that_was_planned_before_a_repair_is_refused_by_its_fence",
        TESTS + "test_zombie_that_lands_behind_a_repair_of_nothing_changes_nothing",
    ),
)
def _() -> Iterator[None]:
    by_ledger = Repair._by_ledger

    def differences(self: Repair, *arguments: Any) -> Any:
        engine = self.runtime.engine
        self.runtime.engine = _Differing(engine)
        try:
            return by_ledger(self, *arguments)
        finally:
            self.runtime.engine = engine

    with patch.object(Repair, "_by_ledger", differences):
        yield


@mutant(
    "a redrive does not record its version",
    tests=TESTS + "test_record_that_comes_behind_the_redrive_of_a_newer_one_changes_nothing",
)
def _() -> Iterator[None]:
    def at_its_own(key: Any, item: Any, step: Any, *more: Any) -> Any:
        return repaired(key, item, step._replace(version=BEFORE_ALL), *more)

    with patch("streamfold.failures.repair.repaired", at_its_own):
        yield


@mutant(
    "a repair sets no fence",
    tests=TESTS + "test_write_that_was_planned_before_a_repair_is_refused_by_its_fence",
)
def _() -> Iterator[None]:
    def unfenced(*arguments: Any) -> Any:
        transition = repaired(*arguments)
        return transition._replace(guard=transition.guard._replace(fence=False))

    with patch("streamfold.failures.repair.repaired", unfenced):
        yield


@mutant(
    "a redrive leads the version back to its record's",
    tests=TESTS + "test_version_of_a_redriven_record_is_kept_unless_the_ledger_has_a_newer",
)
def _() -> Iterator[None]:
    def older(key: Any, item: Any, step: Any, *more: Any) -> Any:
        transition = repaired(key, item, step, *more)
        parts = tuple(part._replace(version=step.version) for part in transition.guard.parts)
        return transition._replace(guard=transition.guard._replace(parts=parts))

    with patch("streamfold.failures.repair.repaired", older):
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
