"""The kind ``index``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.derivations.derivation import Contributing, Said
from streamfold.derivations.index.options import unique_of
from streamfold.errors import DeclarationError, ManifestError, Unprocessable
from streamfold.routes.effects import Row
from streamfold.routes.route import Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.commit.unfinished import NamedRows
    from streamfold.derivations.derivation import Contributes, Finishing
    from streamfold.derivations.expected import Expected, History
    from streamfold.keys.key import Key
    from streamfold.ledger.contribution import Contribution
    from streamfold.records.change import ItemKey
    from streamfold.routes.route import Route

CONFLICTS = "conflicts"
ORDER_OPTIONS = ("by", "smallest", "ties")
"""The options of a unique index that say which claim wins: a state keeps to them."""


class Index(Contributing):
    """Rows with one source item each; with ``unique=True``, the winner of several claimants."""

    name = "index"
    yields = (Row,)
    sees_derived_attributes = True
    says: ClassVar[Mapping[str, Said]] = {
        **Contributing.says,
        CONFLICTS: Said(
            "Index {name} met {count} claims of rows that another item claims too; the rows show the conflict.",
            log="unique rows are claimed twice",
        ),
    }

    def guard(self, route: Route) -> str:
        return "ledger, claimants" if unique_of(route) else "ledger"

    def target(self, route: Route, key: Key, *, alone: bool) -> Target:
        target = super().target(route, key, alone=alone)
        if unique_of(route) is None:
            return target
        return Target(key, owned=False, alone=alone)  # its rows are their claimants', be it one that the template names

    def check_targets(self, own: Sequence[Route]) -> None:
        for route in own:
            for target in route.targets:
                if not (target.owned or unique_of(route)):
                    raise DeclarationError(_not_owned(route, target.key))

    @cached_property  # an import statement costs, and this is called for each item
    def contribution(self) -> Contributes:
        from streamfold.derivations.index.contributed import contributed

        return contributed

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Counts items that share a claim with another item. If the index parks conflicts, they are failures too."""
        from streamfold.commit.outcome import Outcome
        from streamfold.derivations.index.conflicts import conflicts

        del deferred
        outcome = Outcome()
        for each in conflicts(finishing.engine, finishing.unfinished):
            is_conflict = isinstance(each.error, Unprocessable)
            if is_conflict:
                outcome.count(CONFLICTS, each.route.name)
            if not is_conflict or self.parks_conflicts(each.route):
                outcome.failed.append(each)
        return outcome

    def reconciled(
        self, route: Route, item: ItemKey, after: Contribution, named: NamedRows, finishing: Finishing
    ) -> Sequence[Unprocessable]:
        from streamfold.derivations.index.conflicts import claimed_twice

        del named
        return claimed_twice(finishing.engine, finishing.application.name, route, item, after)

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
