"""The kind ``attributes``.

Derived attributes of an item are first a row of the state table for each handler and item, fed through the ledger as
any row is. ``write_back`` copies them onto the item, if the item exists and differs. It does not matter which process
wrote an attribute last: the attribute is right if its value is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from streamfold.derivations.derivation import Expiring
from streamfold.errors import DeclarationError
from streamfold.routes.effects import Row
from streamfold.routes.route import Subscription

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Contributes, Finishing
    from streamfold.derivations.expected import Expected, History, OwnRows
    from streamfold.errors import Unprocessable
    from streamfold.keys.key import Key
    from streamfold.ledger.contribution import Contribution
    from streamfold.ledger.state_keys import StoredAttributes
    from streamfold.records.change import ItemKey
    from streamfold.routes.route import Route

DERIVED_ITEM = "bearer"
"""The role of an item that has derived attributes."""


class AttributesOptions(NamedTuple):
    """The options of a handler of attributes, and the name of its application."""

    of: Key | None = None  # the items that get the attributes, if they are not the source
    application: str | None = None


class Attributes(Expiring):
    """Attributes that are derived onto items of the application itself."""

    name = "attributes"
    takes_time = True
    write_units = "4, and 1 for each KB of the item"
    yields = (Row,)
    shares_rows = True

    def subscriptions(self, route: Route) -> tuple[Subscription, ...]:
        # A handler that is switched off is not called; its earlier attributes are still kept on its items.
        return (*super().subscriptions(route), Subscription(self.writes(route)[0], DERIVED_ITEM, called=False))

    def writes(self, route: Route) -> tuple[Key, ...]:
        return (route.options.of or route.sources[0],)

    def touches(self, route: Route) -> tuple[Key, ...]:
        return self.writes(route)

    def parent_keys(self, route: Route) -> tuple[Key, ...]:
        return () if route.options.of is None else (route.options.of,)

    def bound(self, route: Route, application: str) -> Route:
        return replace(route, options=route.options._replace(application=application))

    def stored_attributes(self, route: Route) -> StoredAttributes | None:
        from streamfold.ledger.state_keys import StoredAttributes  # late: an application is declared without a state

        return StoredAttributes(route.options.application, route.name, route.writes[0])

    def check(self, own: Sequence[Route], routes: Sequence[Route]) -> None:
        for route in own:
            who = f"attributes {route.name!r} ({route.declared_at})"
            if route.options.of is None and len(route.sources) > 1:
                raise DeclarationError(
                    f"{who} has several sources and no of=: attributes of the source item itself take one source. "
                    "Declare them for each, or name their items, of=ORDER."
                )
            for writer in routes:
                if any(target.overlaps(route.writes[0]) for target in writer.into):
                    raise DeclarationError(
                        f"{who} derives onto {route.writes[0]!r}, whose items are rows of {writer.name!r} "
                        f"({writer.declared_at}): let that handler yield the attributes, or a view of its own."
                    )

    @cached_property  # an import statement costs, and this is called for each item
    def contribution(self) -> Contributes:
        from streamfold.derivations.attributes.write_back import contributed

        return contributed

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Copies derived attributes onto their items."""
        from streamfold.commit.outcome import Outcome
        from streamfold.derivations.attributes.write_back import WriteBack

        items = WriteBack(finishing.runtime)
        items.rows_changed(finishing.pending_work.state_rows)
        items.changed(finishing.subscribed)
        return Outcome(failed=items.write())

    def reconciled(
        self, route: Route, item: ItemKey, after: Contribution, finishing: Finishing
    ) -> Sequence[Unprocessable]:
        for failed in self.finish((), finishing).failed:
            raise failed.error
        return ()

    def verified(self, route: Route) -> OwnRows:
        from streamfold.derivations.attributes.write_back import AttributesOnItems

        return AttributesOnItems(route)

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import STATE, dynamodb, of_ledger, table_of

        stored = of_ledger(route, ordered=self.orders(route), adds=self.adds(route), stored=STATE)
        written_back = dynamodb(table_of(self.writes(route)[0]), "BatchGetItem", "UpdateItem")
        # A removed row in the state is noted, also that of another writer: an attempt that died may have left it empty.
        noted = dynamodb(STATE, "PartiQLUpdate", "PartiQLDelete")
        return stored | noted | written_back

    def delta_keys(self, route: Route) -> tuple[Key, ...]:
        return ()  # rows in the state are shown on items afterwards

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected, shares_of

        return Expected(on_items=shares_of(route, history))


ATTRIBUTES = Attributes()
