"""What kinds have in common whose rows may expire before an item that contributes to them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from streamfold.derivations.derivation import Contributing

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamfold.ledger.contribution import Contribution
    from streamfold.records.change import Change
    from streamfold.routes.route import Route


class Expiring(Contributing):
    """A kind that aggregates: a shared row shows the time to live of its contributors, and one may have none."""

    def outlived(self, route: Route, change: Change, after: Contribution) -> bool:
        return self._outlived(route, change, after)

    @cached_property  # an import statement costs, and this is called for each item
    def _outlived(self) -> Callable[[Route, Change, Contribution], bool]:
        from streamfold.derivations.view.expiry import outlived

        return outlived
