"""The kind ``publish``: a message to a bus, a topic or a queue for each change."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.derivations.derivation import CountedWord, Planned
from streamfold.derivations.on.kind import OnChanges
from streamfold.derivations.publish.options import (
    ACTIONS,
    NOT_PUBLISHED,
    SENT_BEFORE,
    check_destinations,
    checked_source,
    published_of,
)
from streamfold.errors import SettingsError
from streamfold.routes.route import NamedAttribute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Finishing, Planning, Work
    from streamfold.derivations.expected import Expected, History, ItemVersion, KnownChange
    from streamfold.derivations.publish.envelope import Message
    from streamfold.engines.protocol import Engine
    from streamfold.records.change import Change
    from streamfold.routes.route import Needs, Route
    from streamfold.settings import Settings
    from streamfold.writes.guarded import RowKey


class Publish(OnChanges):
    """Messages about changes, each with one id for ever; in order for each item."""

    name = "publish"
    gives_value = True
    write_units = "0, or 1 with once=True"
    says: ClassVar[Mapping[str, CountedWord]] = {
        NOT_PUBLISHED: CountedWord(
            "Publisher {name}: {count} messages were not sent. A replay writes them to a folder with "
            "STREAMFOLD_PUBLISH=file:FOLDER, and sends them with --external."
        ),
        SENT_BEFORE: CountedWord(
            "Publisher {name}: {count} messages had been sent before (once=True).",
            stale="It had been sent before (once=True).",
        ),
    }

    def outside_locations(self, route: Route) -> tuple[str, ...]:
        return (str(published_of(route).to),)

    def guard(self, route: Route) -> str:
        return "message id, claim" if published_of(route).once else "message id"

    def needs(self, route: Route) -> Needs:
        return "both" if route.function is None else super().needs(route)

    def named_attributes(self, route: Route) -> Iterator[NamedAttribute]:
        yield from super().named_attributes(route)
        for name in sorted(published_of(route).redact):
            yield NamedAttribute("redact=", route.sources, name)

    def check(self, own: Sequence[Route], routes: Sequence[Route]) -> None:
        check_destinations(own)

    def bound(self, route: Route, application: str) -> Route:
        options = published_of(route)
        source = options.source or checked_source(application, route.declared_at)
        return replace(route, options=options._replace(source=source, application=application))

    def check_settings(self, route: Route, settings: Settings) -> None:
        super().check_settings(route, settings)
        if not settings.serves(route.group) or settings.engine is not None:
            return
        from streamfold.derivations.publish.addresses import address_of

        who = f"Publisher {route.name!r} ({route.declared_at})"
        if settings.publish is not None:
            raise SettingsError(
                f"{who} would write its messages to STREAMFOLD_PUBLISH={settings.publish!r}, a folder, which is lost "
                "with the function's environment: unset it there."
            )
        address_of(published_of(route).to, settings, who)

    def of_change(self, work: Work, change: Change, planning: Planning) -> Planned:
        message = self._message(work.route, change, work.fields)
        return Planned(deferred=[] if message is None else [message])

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        from streamfold.derivations.publish.envelope import Message
        from streamfold.derivations.publish.sending import Sending

        return Sending(finishing).send(each for each in deferred if isinstance(each, Message))

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import STATE, Permission, Place, dynamodb

        options = published_of(route)
        destination = Place("destination", str(options.to))
        calls = frozenset(Permission(action, destination) for action in ACTIONS[options.to.service])
        if options.large is not None:
            calls |= {Permission("s3:PutObject", Place("large data", options.large))}
        return calls | dynamodb(STATE, "BatchGetItem", "PutItem") if options.once else calls

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.publish.local import expected

        return expected(route, history)

    def call_limits(self, route: Route) -> str:
        return str(published_of(route).limits or "")

    def explained_change(self, route: Route, change: KnownChange, engine: Engine) -> str:
        from streamfold.derivations.publish.envelope import explained_message

        return explained_message(route, change, engine)

    def found_outside(self, route: Route, location: Any) -> dict[RowKey, dict[str, Any]]:
        from streamfold.derivations.publish.local import found_outside

        return found_outside(route, location)

    def first_appearances(self, route: Route, location: Any) -> Sequence[ItemVersion]:
        from streamfold.derivations.publish.local import first_appearances

        return first_appearances(route, location)

    def local_locations(self, routes: Sequence[Route], engine: Engine, settings: Settings) -> Mapping[str, Any]:
        from streamfold.derivations.publish.local import OPENED, LocalMessages

        return {OPENED: LocalMessages()}

    def messages(self, routes: Sequence[Route], to: str, opened: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        from streamfold.derivations.publish.local import OPENED, envelopes

        return envelopes(routes, opened[OPENED], to)

    def outside_costs(self, routes: Sequence[Route], opened: Mapping[str, Any], records: int) -> Iterable[str]:
        from streamfold.derivations.publish.local import OPENED, message_costs

        return message_costs(routes, opened[OPENED], records) if records else ()

    @cached_property  # an import statement costs, and this is called for each change
    def _message(self) -> Callable[[Route, Change, Any], Message | None]:
        from streamfold.derivations.publish.envelope import message_of

        return message_of


PUBLISH = Publish()
