"""What the rows of views have to show, beside what their sources add up to."""

from copy import copy
from typing import TYPE_CHECKING

from streamfold.derivations.view.expiry import GRACE_SECONDS
from streamfold.records.values import Number
from streamfold.routes.ordered import First, Latest, Max, Min

if TYPE_CHECKING:
    from streamfold.derivations.expected import Share
    from streamfold.routes.route import Route


def with_grace(route: "Route", share: "Share") -> "Share":
    """A share of a row. If several sources share the row, it expires later than they say."""
    target = route.target_of(share.key)
    name = None if target is None or target.whole else target.key.table.ttl
    given = share.values.get(name) if name else None
    if not isinstance(given, Max | Min | Latest | First):
        return share
    if isinstance(given.value, bool) or not isinstance(given.value, Number):
        return share
    later = copy(given)
    later.value = given.value + GRACE_SECONDS
    return share._replace(values={**share.values, str(name): later})
