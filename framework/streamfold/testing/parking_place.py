"""The parking place of a run under faults. Its records are redriven once the faults are over."""

from collections.abc import Iterable

from streamfold.app import App
from streamfold.errors import ParkingError
from streamfold.parking import Parked
from streamfold.records.change import Change
from streamfold.testing.handlers import parking_conflicts

NamedObject = tuple[str, str, str]
"""A change by its table, its item's name and its version."""


class ProofParking:
    """Takes the records that were delivered, and keeps them in the order in which they were parked.

    It refuses the records of derived rows, which no redrive reads, and those of a conflict of a unique index, which
    end with the conflict and not with a redrive: both are reported and come again.
    """

    def __init__(self, app: App) -> None:
        self.parked: list[Change] = []
        self._conflicts = parking_conflicts(app)
        self._delivered: dict[NamedObject, Change] = {}

    def delivered(self, changes: Iterable[Change]) -> None:
        """Notes the changes of an invocation, of which some may be parked."""
        self._delivered.update(((change.table.name, change.name, change.version_text), change) for change in changes)

    def park(self, parked: Parked) -> None:
        """Keeps a record. Raises ``ParkingError`` for one that has no place here."""
        change = self._delivered.get((parked.table, parked.item, parked.version))
        if change is None or parked.handler in self._conflicts:
            raise ParkingError("this place takes records of the stream alone, and none of a conflict")
        if change not in self.parked:
            self.parked.append(change)
