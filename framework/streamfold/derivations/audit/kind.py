"""The kind ``audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamfold.derivations.audit.declared import audit_template, check_audit, check_histories
from streamfold.derivations.derivation import Derivation, Planned
from streamfold.routes.route import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamfold.derivations.derivation import Planning, Work
    from streamfold.derivations.expected import Expected, History
    from streamfold.keys.key import Key
    from streamfold.routes.application import Application
    from streamfold.routes.route import Needs, Route


class Audit(Derivation):
    """Histories: one row for every change of an item."""

    name = "audit"

    def guard(self, route: Route) -> str:
        del route
        return "keyed put"

    def needs(self, route: Route) -> Needs:
        del route
        return "both"

    def target(self, route: Route, key: Key, *, alone: bool) -> Target:
        target = super().target(route, key, alone=alone)
        return Target(key, owned=target.owned or "item" in key.types, alone=alone)

    def may_share(self, one: Route, other: Route) -> bool:
        return not any(mine.overlaps(theirs) for mine in one.sources for theirs in other.sources)

    def check_targets(self, own: Sequence[Route]) -> None:
        check_histories(own)
        for route in own:
            for target in route.targets:
                check_audit(route, target)

    def tenant_remedy(self, route: Route, tenant: str) -> str:
        return f'Give the audit a target: into=Key("{audit_template(route, tenant)}", "{{version:rest}}").'

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        from streamfold.derivations.audit.puts import planned

        return Planned(puts=planned(works, planning))

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.audit.expected import expected

        return expected(route, history)


AUDIT_ROWS = Audit()


def audit_routes(application: Application) -> list[Route]:
    """The audits of an application."""
    return [route for route in application.routes if route.kind is AUDIT_ROWS]
