"""The options of an index, checked where it is declared, and the index of the conflicts of a unique one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.routes.effects import Row
from streamfold.routes.ordered import CLAIMANTS_MAX
from streamfold.routes.orderings import CLAIM, CONFLICT, SMALLEST_KEY, TIES, Ordering, Ties, form_name
from streamfold.routes.route import Route

OnConflict = Literal["report", "park"]
SUFFIX = "_conflicts"
"""Behind the name of a unique index: that of the index of its conflicts."""


class Unique(NamedTuple):
    """The options of a unique index."""

    by: str | None  # the attribute whose largest value wins; None if only keys decide
    on_conflict: OnConflict | Key  # what happens on a conflict
    smallest: bool = False  # the smallest value of ``by`` wins
    ties: Ties = SMALLEST_KEY  # which source key wins among equal values

    @property
    def ordering(self) -> Ordering:
        """How claims are ordered. Without ``by`` all are equal, and those that win are read first."""
        smallest = self.smallest if self.by is not None else self.ties == SMALLEST_KEY
        return Ordering(form_name(CLAIM, smallest=smallest, ties=self.ties), CLAIMANTS_MAX)

    @property
    def reported(self) -> bool:
        """Whether records that lead to a conflict are reported; a conflict row shows the conflict itself."""
        return not isinstance(self.on_conflict, Key)


def unique_of(route: Route) -> Unique | None:
    """The options of a unique index; None for a plain one."""
    return route.options if isinstance(route.options, Unique) else None


def checked_unique(
    unique: Any, by: Any, on_conflict: Any, smallest: Any, ties: Any, targets: Sequence[Key], at: str
) -> Unique | None:
    """The options of a unique index; None for a plain one. Raises ``DeclarationError`` where they contradict."""
    if not isinstance(unique, bool):
        raise DeclarationError(f"The index at {at} has unique={unique!r}: expected True or False.")
    if not unique:
        given = {"by": by, "on_conflict": on_conflict, "smallest": smallest, "ties": ties}
        for (name, value), default in zip(given.items(), (None, "report", False, SMALLEST_KEY), strict=True):
            if value != default:
                raise DeclarationError(
                    f"The index at {at} has {name}={value!r} without unique=True, which alone it belongs to."
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
            "is there as long as the conflict."
        )
    return Unique(by, on_conflict, smallest, ties)


def conflict_routes(route: Route) -> list[Route]:
    """The index of the conflicts of a unique index, which reads the rows of that, if ``on_conflict`` is a key."""
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
