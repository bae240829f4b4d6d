"""Roots of changed parts: each is visited once after the steps of its batch (``batch.visits``).

1. A change in nothing that the handler reads is passed over, each change by itself: the step of the root may have read
   the part between two of them. That a part comes or goes always counts.
2. A step of the root that was written in this batch read its parts after their changes, so it is the visit. One that
   the ledger had already, or that failed, wrote nothing.
3. The others are visited: ledger item, root, parts. A visit writes where nothing differs, and where there is no ledger
   item: a write of older parts that is still on its way would land behind it otherwise. Only for a root that is not
   there nothing is written, unless its handler is called without it: the record of its coming reads the parts.

A root on which the handler raises is parked under one name, whichever part changed.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from streamfold.batch.referrers import Referrer, Referrers, visit_for
from streamfold.commit.outcome import Outcome
from streamfold.records.change import ItemKey
from streamfold.routes.roots import count_for_root, root_of

if TYPE_CHECKING:
    from streamfold.derivations.derivation import Finishing, Work


def counts(work: "Work") -> bool:
    """Whether a part changed in what its handler reads."""
    return count_for_root(work.route, work.item, work.changes)


def visit_roots(
    works: Sequence["Work"], finishing: "Finishing", stepped: Collection[tuple[ItemKey, str]] = ()
) -> Outcome:
    """Visits the roots of parts, each once for each handler, but those whose contribution was written (``stepped``)."""
    referrers, asked = Referrers(finishing.runtime, skips_absent=True), dict[Referrer, list["Work"]]()
    for work in works:
        root = Referrer(root_of(work.route, work.fields)[0], work.route)
        if (root.item, root.route.name) not in stepped:
            referrers.named.setdefault(root, [])
            asked.setdefault(root, []).append(work)
    return visit_for(referrers, asked, finishing, one_name=True) if asked else Outcome()
