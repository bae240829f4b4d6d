"""The declaration of a unique index: which of several claims wins, and how a conflict is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.routes.aggregates import SMALLEST_KEY, TIES
from streamfold.routes.effects import Row
from streamfold.routes.route import Route
from streamfold.routes.shipped_aggregates import CONFLICT, claims_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamfold.routes.aggregates import Ordering, Ties

OnConflict = Literal["report", "park"]
SUFFIX = "_conflicts"
"""The suffix of the name of the index of a unique index's conflicts."""

ORDER_OPTIONS = ("by", "smallest", "ties")
"""The options of a unique index that decide which claim wins: a state requires them to be unchanged."""


class Unique(NamedTuple):
    """The options of a unique index."""

    by: str | None  # the attribute whose largest value wins; None if only keys decide
    on_conflict: OnConflict | Key  # how a conflict is shown
    smallest: bool = False  # the smallest value of ``by`` wins
    ties: Ties = SMALLEST_KEY  # which source key wins among equal values

    @property
    def ordering(self) -> Ordering:
        """The order of claims. Without ``by`` all are equal, and the winning ones are read first."""
        smallest = self.smallest if self.by is not None else self.ties == SMALLEST_KEY
        return claims_in_order(smallest=smallest, ties=self.ties)

    @property
    def reported(self) -> bool:
        """Whether records with a conflict are reported; a conflict row shows the conflict itself."""
        return not isinstance(self.on_conflict, Key)


def unique_of(route: Route) -> Unique | None:
    """The options of a unique index; None for a plain one."""
    return route.options if isinstance(route.options, Unique) else None


def checked_unique(
    unique: Any, by: Any, on_conflict: Any, smallest: Any, ties: Any, targets: Sequence[Key], at: str
) -> Unique | None:
    """The options of a unique index; None for a plain one. Raises ``DeclarationError`` for contradictions."""
    if not isinstance(unique, bool):
        raise DeclarationError(f"The index at {at} has unique={unique!r}: expected True or False.")
    if not unique:
        given = {"by": by, "on_conflict": on_conflict, "smallest": smallest, "ties": ties}
        for (name, value), default in zip(given.items(), (None, "report", False, SMALLEST_KEY), strict=True):
            if value != default:
                raise DeclarationError(
                    f"The index at {at} has {name}={value!r} without unique=True: it belongs to unique=True only."
                )
        return None
    if len(targets) != 1:
        raise DeclarationError(
            f"The index at {at} has unique=True and {len(targets)} targets: expected one; declare an index for each."
        )
    if by is not None and (not isinstance(by, str) or not by):
        raise DeclarationError(
            f'The index at {at} has by={by!r}: expected the name of an attribute of the item, by="created_at".'
        )
    if not isinstance(smallest, bool) or (smallest and by is None):
        raise DeclarationError(
            f"The index at {at} has smallest={smallest!r} and by={by!r}: expected True or False, and by= the name of "
            "the attribute whose smallest value wins."
        )
    if ties not in TIES:
        raise DeclarationError(f"The index at {at} has ties={ties!r}: expected {TIES[0]!r} or {TIES[1]!r}.")
    if on_conflict not in ("report", "park") and not isinstance(on_conflict, Key):
        raise DeclarationError(
            f'The index at {at} has on_conflict={on_conflict!r}: expected "report", "park", or the Key of a row that '
            "exists as long as the conflict."
        )
    return Unique(by, on_conflict, smallest, ties)


def conflict_routes(route: Route) -> list[Route]:
    """The index of a unique index's conflicts, which reads the rows of that index, if ``on_conflict`` is a key."""
    unique = route.options
    if unique is None or not isinstance(unique.on_conflict, Key):
        return []
    (source,), into = route.into, unique.on_conflict
    rows, at = conflict_rows(source, into), route.declared_at
    name, policy = route.name + SUFFIX, route.policy
    return [Route(name, route.kind, (source,), (into,), rows, at, group=route.group, policy=policy)]


def conflict_rows(source: Key, target: Key) -> Callable[[Mapping[str, Any]], Row | None]:
    """The function of the index of conflicts: a row for each unique row that several items claim."""
    keys = {*source.table.attributes, *target.table.attributes}

    def conflicts(row: Mapping[str, Any]) -> Row | None:
        return Row(attributes={name: row[name] for name in row if name not in keys}) if CONFLICT in row else None

    return conflicts
