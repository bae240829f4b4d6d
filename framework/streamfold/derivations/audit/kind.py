"""The kind ``audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamfold.derivations.audit.options import audit_template, check_audit, check_histories, recorded_of
from streamfold.derivations.derivation import Derivation, Planned
from streamfold.routes.route import NamedAttribute, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Planning, Work
    from streamfold.derivations.expected import Expected, History, OwnRows
    from streamfold.engines.protocol import StoredItem
    from streamfold.keys.key import Key
    from streamfold.records.change import ItemKey
    from streamfold.routes.route import Fields, Needs, Route
    from streamfold.runtime import Runtime
    from streamfold.writes.guarded import PutRow


class Audit(Derivation):
    """Histories: one row for every change of an item."""

    name = "audit"
    keeps_history = True
    secrets = ("audit_key",)
    marks_rows = False  # they are inserted, and never replaced
    write_units = "1 for each KB of the row"

    def named_attributes(self, route: Route) -> Iterator[NamedAttribute]:
        recorded = recorded_of(route)
        actor = () if recorded.actor is None else (recorded.actor,)
        for option, names in (("redact=", recorded.redact), ("fields=", recorded.fields or ()), ("actor=", actor)):
            yield from (NamedAttribute(option, route.sources, name) for name in sorted(names))

    def no_referent(self, route: Route) -> str:
        return "a row of a history is of one change. Look up the item that it is the history of."

    def guard(self, route: Route) -> str:
        return "keyed put"

    def needs(self, route: Route) -> Needs:
        return "both"

    def target(self, route: Route, key: Key, *, sole_writer: bool) -> Target:
        target = super().target(route, key, sole_writer=sole_writer)
        return Target(key, owned=target.owned or "item" in key.types, sole_writer=sole_writer)

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

    def initial_row(
        self, route: Route, item: ItemKey, image: StoredItem, fields: Fields, runtime: Runtime
    ) -> PutRow | None:
        from streamfold.derivations.audit.puts import missing_initial_row

        return missing_initial_row(route, item, image, fields, runtime)

    def verified(self, route: Route) -> OwnRows | None:
        from streamfold.derivations.audit.history import NewestRows

        is_apart = any(field.name == "version" for target in route.into for field in target.partition.fields)
        return None if is_apart else NewestRows(route)  # the rows of one item are read together

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import NO_CALLS, inserted

        return NO_CALLS.union(*map(inserted, route.into))

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.audit.puts import expected

        return expected(route, history)


AUDIT_ROWS = Audit()
