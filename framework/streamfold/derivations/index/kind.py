"""The kind ``index``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.derivations.derivation import Contributing, CountedWord
from streamfold.derivations.index.unique import ORDER_OPTIONS, unique_of
from streamfold.errors import DeclarationError, ManifestError, Unprocessable
from streamfold.routes.effects import Row
from streamfold.routes.route import Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.derivation import Contributes, Finishing
    from streamfold.derivations.expected import Expected, History
    from streamfold.keys.key import Key
    from streamfold.ledger.contribution import Contribution
    from streamfold.records.change import ItemKey
    from streamfold.routes.route import Route
CONFLICTS = "conflicts"


class Index(Contributing):
    """Rows with one source item each; with ``unique=True``, the winner of several claimants."""

    name = "index"
    takes_time = True
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
