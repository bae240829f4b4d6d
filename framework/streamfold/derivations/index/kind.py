"""The kind ``index``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from streamfold.derivations.derivation import Contributing, CountedWord
from streamfold.errors import DeclarationError, ManifestError, Unprocessable
from streamfold.keys.key import Key
from streamfold.routes.aggregates import SMALLEST_KEY, TIES
from streamfold.routes.effects import Row
from streamfold.routes.route import Route, Target
from streamfold.routes.shipped_aggregates import CONFLICT, claims_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.derivation import Contributes, Finishing
    from streamfold.derivations.expected import Expected, History
    from streamfold.ledger.contribution import Contribution
    from streamfold.records.change import ItemKey
    from streamfold.routes.aggregates import Ordering, Ties
OnConflict = Literal["report", "park"]
SUFFIX = "_conflicts"
"""The suffix of the name of the index of a unique index's conflicts."""

CONFLICTS = "conflicts"
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


class Index(Contributing):
    """Rows with one source item each; with ``unique=True``, the winner of several claimants."""

    name = "index"
    write_units = "2, and 2 per row and batch; 7 with unique=True"
    yields = (Row,)
    sees_derived_attributes = True
    says: ClassVar[Mapping[str, CountedWord]] = {
        **Contributing.says,
        CONFLICTS: CountedWord(
            "Index {name} met {count} claims of rows that another item claims too; the rows show the conflict.",
            log="unique rows are claimed twice",
        ),
    }

    def guard(self, route: Route) -> str:
        return "ledger, claimants" if unique_of(route) else "ledger"

    def target(self, route: Route, key: Key, *, sole_writer: bool) -> Target:
        target = super().target(route, key, sole_writer=sole_writer)
        if unique_of(route) is None:
            return target
        # Its rows are the claimants', even if the template names a source.
        return Target(key, owned=False, sole_writer=sole_writer)

    def check_targets(self, own: Sequence[Route]) -> None:
        for route in own:
            for target in route.targets:
                if not (target.owned or unique_of(route)):
                    raise DeclarationError(_not_owned(route, target.key))

    @cached_property  # an import statement costs, and this is called for each item
    def contribution(self) -> Contributes:
        from streamfold.derivations.index.claims import contributed

        return contributed

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Counts items that share a claim with another item. If the index parks conflicts, they are failures too."""
        from streamfold.commit.outcome import Outcome
        from streamfold.derivations.index.claims import conflicts

        del deferred
        outcome = Outcome()
        for each in conflicts(finishing.runtime.engine, finishing.pending_work):
            is_conflict = isinstance(each.error, Unprocessable)
            if is_conflict:
                outcome.count(CONFLICTS, each.route.name)
            if not is_conflict or self.parks_conflicts(each.route):
                outcome.failed.append(each)
        return outcome

    def reconciled(
        self, route: Route, item: ItemKey, after: Contribution, finishing: Finishing
    ) -> Sequence[Unprocessable]:
        from streamfold.derivations.index.claims import claimed_twice

        return claimed_twice(finishing.runtime.engine, finishing.runtime.application.name, route, item, after)

    def parks_conflicts(self, route: Route) -> bool:
        unique = unique_of(route)
        return unique is not None and unique.on_conflict == "park"

    def identity(self, route: Route) -> dict[str, Any]:
        unique = unique_of(route)
        if unique is None:
            return super().identity(route)
        return {"kind": "unique index"} | {option: getattr(unique, option) for option in ORDER_OPTIONS}

    def compare(self, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for option in ORDER_OPTIONS:
            if before.get(option) != now.get(option):
                raise ManifestError(
                    f"Unique index {name!r} changed {option}= from {before[option]!r} to {now[option]!r}: claims that "
                    "the state holds are in the order of the old one, and rows would show a winner that no version of "
                    f"the code names. Keep {option}={before[option]!r}, or give the index a new name and another "
                    f'target, and retire the old one, App(..., retired=["{name}"]).'
                )

    def orders(self, route: Route) -> bool:
        return unique_of(route) is not None

    def adds(self, route: Route) -> bool:
        return unique_of(route) is not None

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected, shares_of

        unique = unique_of(route)
        if unique is None:
            return Expected(shares=shares_of(route, history))
        by = (lambda image: image[unique.by]) if unique.by else (lambda _: "")
        return Expected(claims=shares_of(route, history, order=by), ranked=unique)


def _not_owned(route: Route, key: Key) -> str:
    lacking = (name for source in route.sources for name in source.fields if name not in key.types)
    missing = ", ".join(dict.fromkeys(lacking)) or "a field of the same type"
    return (
        f"Index {route.name!r} ({route.declared_at}) writes {key!r}, which it does not own: each index "
        f"item has one source, so the template must hold every field of the source's key. Missing: {missing}. "
        "A row that several items may claim, of which one wins, is declared with unique=True."
    )


INDEX = Index()
