"""The kind ``cascade``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from streamfold.derivations.cascade.declared import KEPT, check_cascades, children_of
from streamfold.derivations.derivation import Derivation, Planned, Said
from streamfold.derivations.partition import child_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.derivation import Finishing, LaneWork, Planning, Work
    from streamfold.derivations.expected import Expected, History
    from streamfold.jobs.job import Job
    from streamfold.keys.key import Key
    from streamfold.records.change import Change, ItemKey
    from streamfold.routes.route import Fields, Route

NOT_CASCADED = "not_cascaded"


class Cascade(Derivation):
    """Children that go with their parent."""

    name = "cascade"
    finishes_last = True
    fans_out = True
    reads_items = True
    says: ClassVar[Mapping[str, Said]] = {
        KEPT: Said(
            "Cascade {name}: {count} of the removed items exist again and keep their children.",
            log="children were kept, because their parents exist again",
            stale="The parent exists again: its children are kept.",
        ),
        NOT_CASCADED: Said(
            "Cascade {name} was not carried out for {count} removed items: the replay did not put source items into "
            "this store; it does with --put-sources, on a loopback endpoint."
        ),
    }

    def touches(self, route: Route) -> tuple[Key, ...]:
        return children_of(route)

    def guard(self, route: Route) -> str:
        del route
        return "parent absent, child as read"

    def takes(self, route: Route, change: Change) -> bool:
        del route
        return change.event == "REMOVE"

    def check(self, own: Sequence[Route], routes: Sequence[Route]) -> None:
        check_cascades(own, routes)

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        from streamfold.derivations.cascade.jobs import Removed

        del planning
        taken = [(work, tuple(change for change in work.changes if work.route.takes(change))) for work in works]
        return Planned(deferred=[Removed(work.route, changes, work.fields) for work, changes in taken if changes])

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Removes the children of items that are gone, as far as the store holds the application's own items."""
        from streamfold.commit.outcome import Outcome
        from streamfold.derivations.cascade.children import Children
        from streamfold.derivations.cascade.jobs import Removed

        parents: dict[tuple[str, object], Removed] = {}
        outcome = Outcome()
        for each in deferred:
            assert isinstance(each, Removed)
            if not finishing.run.source_items:
                outcome.count(NOT_CASCADED, each.route.name)
                continue
            place = each.route.name, each.newest.item
            known = parents.get(place)
            parents[place] = each._replace(changes=(*known.changes, *each.changes)) if known else each
        return Children(finishing, outcome).remove(parents.values()) if parents else outcome

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected

        del route, history
        return Expected()

    def lanes(self, route: Route, job: Job, finishing: Finishing) -> LaneWork:
        from streamfold.derivations.cascade.lanes import CascadeLanes

        return CascadeLanes(route, job, finishing)

    def takes_along(self, route: Route, fields: Fields, item: ItemKey) -> bool:
        own = (key for key in children_of(route) if key.table.name == item[0])
        return any(child_fields(key, fields, *item[1:]) is not None for key in own)


CASCADE = Cascade()
