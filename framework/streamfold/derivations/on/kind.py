"""The kind ``on``: effects of each change, behind a claim."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from streamfold.derivations.derivation import LOST, Derivation, Planned
from streamfold.errors import DeclarationError
from streamfold.records.change import EVENTS, Event
from streamfold.routes.checks import check_view
from streamfold.routes.declaration import CommonOptions
from streamfold.routes.effects import Add, Delete, Put
from streamfold.routes.route import NamedAttribute

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamfold.commit.plan import Unit
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Planning, Work
    from streamfold.derivations.expected import Expected, History, KnownChange
    from streamfold.engines.protocol import Engine
    from streamfold.keys.key import Key
    from streamfold.records.change import Change
    from streamfold.routes.declaration import Into
    from streamfold.routes.route import Needs, Route, Subscription
    from streamfold.runtime import Runtime

GivesMoment = Callable[[Any], Any]
"""A function of an item that gives its moment, a ``GivenMoment``, or None."""


class Filter(NamedTuple):
    """The changes that an ``on`` handler wants."""

    events: frozenset[Event] = frozenset(EVENTS)
    changed: frozenset[str] = frozenset()  # any of these attributes differs
    expired: bool | None = None  # deleted by time to live, or not; None for both

    @property
    def is_timed(self) -> bool:
        """Whether the handler is called at moments of items (``at=``), and for no change."""
        return self.events.isdisjoint(EVENTS)

    def takes(self, change: Change) -> bool:
        if change.event not in self.events or (self.expired is not None and change.expired != self.expired):
            return False
        return not self.changed or bool(self.changed & change.changed)


def filter_of(route: Route) -> Filter:
    """The changes that a route wants: its options are a filter, or have one."""
    given = getattr(route.options, "filter", route.options)
    return given if isinstance(given, Filter) else Filter()


class OnChanges(Derivation):
    """A kind whose handlers see each change, in order: a failing change holds the later ones of its item."""

    def subscriptions(self, route: Route) -> tuple[Subscription, ...]:
        return () if filter_of(route).is_timed else super().subscriptions(route)

    def called_later(self, route: Route) -> bool:
        return filter_of(route).is_timed

    def needs(self, route: Route) -> Needs:
        return "both" if filter_of(route).changed else "keys"

    def named_attributes(self, route: Route) -> Iterator[NamedAttribute]:
        for name in sorted(filter_of(route).changed):
            yield NamedAttribute("changed=", route.sources, name)

    def takes(self, route: Route, change: Change) -> bool:
        return filter_of(route).takes(change)

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        plans: list[Planned] = []
        for work in works:
            for number, change in enumerate(work.changes):
                try:
                    check_view(work.route, change)
                    own = change.as_written()
                    if own is not None and work.route.takes(own):
                        plans.append(self.of_change(work, own, planning))
                except Exception as error:  # noqa: BLE001 - fails this record, and holds the later ones
                    if planning.fails(change, work.route, error):
                        planning.hold(work.route, work.changes[number + 1 :])
                        break
        return Planned.joined(plans)

    def of_change(self, work: Work, change: Change, planning: Planning) -> Planned:
        """The plan for one change that passes the filters."""
        raise NotImplementedError(f"Kind {self} sees each change, and has no method of_change.")


class On(OnChanges):
    """Puts, additions and deletions of rows for each change, each once."""

    name = "on"
    write_units = "2, and 2 per row"
    yields = (Put, Add, Delete)
    says = LOST

    def watches(self, route: Route) -> tuple[Key, ...]:
        return route.into

    def guard(self, route: Route) -> str:
        return "claim, row guard" if any(target.owned for target in route.targets) else "claim"

    def of_change(self, work: Work, change: Change, planning: Planning) -> Planned:
        return Planned(self._claimed(planning.runtime, work, change))

    @cached_property  # an import statement costs, and this is called for each change
    def _claimed(self) -> Callable[[Runtime, Work, Change], list[Unit]]:
        from streamfold.derivations.on.effects import claimed

        return claimed

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import STATE, dynamodb, named_by, table_of

        calls = dynamodb(STATE, "PutItem")  # claims
        named = named_by(route.function)
        for target in route.targets:
            place = table_of(target.key)
            if named.makes(Add):
                calls |= dynamodb(place, "UpdateItem")
            if target.owned and named.makes(Put, Delete):
                calls |= dynamodb(place, "PutItem")
            if target.owned and named.makes(Put):  # an older change is taken back by newer claims
                calls |= dynamodb(STATE, "Query") | dynamodb(place, "BatchGetItem")
        return calls

    def delta_keys(self, route: Route) -> tuple[Key, ...]:
        from streamfold.derivations.calls import named_by

        return tuple(target.key for target in route.targets if named_by(route.function).makes(Add))

    def explained_change(self, route: Route, change: KnownChange, engine: Engine) -> str:
        from streamfold.ledger.state_keys import claim_key

        key = claim_key(change.application, route.name, change.item, change.version)
        return "applied" if engine.read_state([key], consistent=True) else "no claim: not applied, or long ago"

    def expected(self, route: Route, history: History) -> Expected:
        if filter_of(route).is_timed:  # how many moments an item has had depends on when somebody looked
            from streamfold.derivations.expected import Expected

            return Expected()
        from streamfold.derivations.on.effects import expected

        return expected(route, history)


ON = On()


class OnOptions(CommonOptions, total=False):
    """The options of ``Router.on`` in both its forms."""

    events: Collection[Event]
    changed: Collection[str]
    expired: bool | None
    at: GivesMoment | None


def checked_filter(events: Collection[Event], changed: Collection[str], at: str, *, expired: bool | None) -> Filter:
    """The changes that a handler wants. Raises ``DeclarationError`` for options that match no change."""
    names = _names(events, "events", at)
    if not names or not names <= set(get_args(Event)):
        raise DeclarationError(
            f"The handler at {at} has events={list(events)!r}: expected some of {', '.join(EVENTS)}."
        )
    if expired and "REMOVE" not in names:
        raise DeclarationError(
            f"The handler at {at} has expired=True and events without REMOVE: no change would ever reach it."
        )
    return Filter(frozenset(events), _names(changed, "changed", at), expired)


def no_targets(into: Into, at: str) -> tuple[()]:
    """The targets of an external handler: none. Raises ``DeclarationError`` if ``into`` names one."""
    if into != ():
        raise DeclarationError(
            f"The handler at {at} has into={into!r} and external=True: an external handler writes no rows."
        )
    return ()


def _names(names: Any, option: str, at: str) -> frozenset[str]:
    if isinstance(names, str):
        raise DeclarationError(f'The handler at {at} has {option}={names!r}: expected a list, {option}=["{names}"].')
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise DeclarationError(f"The handler at {at} has {option}={names!r}: expected a list of names, as text.")
    return frozenset(names)
