"""What the rows of views have to show, beside what their sources add up to."""

from copy import copy
from typing import TYPE_CHECKING

from streamfold.derivations.view.expiry import GRACE_SECONDS
from streamfold.records.numbers import Number
from streamfold.routes.ordered import First, Latest, Max, Min

if TYPE_CHECKING:
    from streamfold.derivations.expected import Share
    from streamfold.routes.route import Route


def with_grace(route: "Route", share: "Share") -> "Share":
    """A share of a row. If several sources share the row, it expires later than they say."""
    name = _expires_by(route, share)
    given = share.values.get(name) if name else None
    if not isinstance(given, Max | Min | Latest | First):
        return share
    if isinstance(given.value, bool) or not isinstance(given.value, Number):
        return share
    later = copy(given)
    later.value = given.value + GRACE_SECONDS
    return share._replace(values={**share.values, str(name): later})


def _expires_by(route: "Route", share: "Share") -> str | None:
    """The time-to-live attribute of a row that is not put whole."""
    table, partition, sort = share.key
    for target in route.targets:
        if target.key.table.name == table and target.key.match_values(partition, sort) is not None:
            return None if target.whole else target.key.table.ttl
    return None
