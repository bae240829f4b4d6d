"""The one lane of a cascade that goes on as a fan-out. How far it is, its cursor says."""

from collections import Counter
from collections.abc import Mapping

from streamfold.commit.outcome import Outcome
from streamfold.derivations.cascade.children import Children
from streamfold.derivations.cascade.declared import KEPT
from streamfold.derivations.cascade.jobs import removed_of
from streamfold.derivations.derivation import Finishing
from streamfold.jobs.fan_outs import REMOVED, Paged
from streamfold.jobs.job import Job, JobSegment
from streamfold.routes.route import Route

PAGES_A_MOVE = 10
"""Pages of children between two moves of the lane, which costs two write units."""
REVISION_DIGITS = 12


class CascadeLanes:
    """Works on the fan-out of one cascade."""

    def __init__(self, route: Route, job: Job, finishing: Finishing) -> None:
        self.removed = removed_of(route, job, finishing.change_of)
        self.finishing = finishing

    def page(self, lane: JobSegment) -> Paged:
        """Removes the next pages of children. Raises as ``Children.remove_pages``."""
        del lane  # the cursor moves with the children, and the lane behind it
        outcome = Outcome()
        cursor = Children(self.finishing, outcome).remove_pages(self.removed, PAGES_A_MOVE)
        name = self.removed.route.name
        kept = outcome.counts.get(KEPT, Counter())[name]
        through = None if cursor.done else f"{cursor.revision:0{REVISION_DIGITS}}"
        return Paged(through, {REMOVED: outcome.tally(name).removed, **({KEPT: kept} if kept else {})})

    def ended(self, counts: Mapping[str, int]) -> None:
        """Nothing follows."""
