"""The kind ``archive``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.derivations.archive.locations import EXPECTED, FOLDER, NOT_ARCHIVED, is_location
from streamfold.derivations.derivation import CountedWord, Derivation, Planned
from streamfold.errors import DeclarationError, SettingsError
from streamfold.routes.checks import check_view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Finishing, Planning, Work
    from streamfold.derivations.expected import Expected, History
    from streamfold.records.change import Change
    from streamfold.routes.route import Needs, Route
    from streamfold.settings import Settings
    from streamfold.writes.guarded import RowKey


def checked_location(to: str, at: str) -> str:
    """The location of an archive. Raises ``DeclarationError`` if the text names none."""
    if not is_location(to):
        raise DeclarationError(f"archive at {at} has to={to!r}: {EXPECTED}.")
    return to


def check_location(route: Route, settings: Settings) -> None:
    """Raises ``SettingsError`` for an unknown location, and for a folder, which is lost with the environment."""
    location = settings.archive or str(route.options)
    if not is_location(location):
        raise SettingsError(f"STREAMFOLD_ARCHIVE={location!r} is no known location: {EXPECTED}.")
    if location.startswith(FOLDER):
        raise SettingsError(
            f"Archive {route.name!r} goes to {location!r}, a folder, which is lost with the function's environment: "
            "expected s3://BUCKET/PREFIX, in its declaration or as STREAMFOLD_ARCHIVE."
        )


class Archive(Derivation):
    """Removed items, kept as compressed files by date."""

    name = "archive"
    write_units = "one object per batch and day"
    says: ClassVar[Mapping[str, CountedWord]] = {
        NOT_ARCHIVED: CountedWord(
            "Archive {name}: {count} removed items are not in its bucket. A replay writes there with --external, and "
            "to a folder with STREAMFOLD_ARCHIVE=file:FOLDER."
        )
    }

    def outside_locations(self, route: Route) -> tuple[str, ...]:
        return (str(route.options),)

    def guard(self, route: Route) -> str:
        return "name by digest"

    def needs(self, route: Route) -> Needs:
        return "old"

    def takes(self, route: Route, change: Change) -> bool:
        return change.event == "REMOVE"

    def check_settings(self, route: Route, settings: Settings) -> None:
        check_location(route, settings)

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        from streamfold.derivations.archive.archives import Archived, archived_line

        archived: list[Archived] = []
        for work in works:
            for change in work.changes:
                try:
                    if work.route.takes(change):
                        check_view(work.route, change)
                        archived.append(Archived(work.route, (change,), archived_line(change)))
                except Exception as error:  # noqa: BLE001 - fails this record only
                    planning.fails(change, work.route, error)
        return Planned(deferred=archived)

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        from streamfold.derivations.archive.archives import Archived, Archives

        return Archives(finishing).write([each for each in deferred if isinstance(each, Archived)])

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import Permission, Place

        return frozenset([Permission("s3:PutObject", Place("archive", str(route.options)))])

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.archive.archives import expected

        return expected(route, history)

    def found_outside(self, route: Route, place: Any) -> dict[RowKey, dict[str, Any]]:
        from streamfold.derivations.archive.archives import found_outside

        return found_outside(route, place)


ARCHIVE = Archive()
