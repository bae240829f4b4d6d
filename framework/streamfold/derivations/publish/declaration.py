"""The method of a router that declares publishers."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, Unpack

from streamfold.derivations.declarations import Declarations, check_call, given_moments
from streamfold.derivations.on.kind import GivesMoment, checked_filter
from streamfold.derivations.publish.kind import PUBLISH
from streamfold.derivations.publish.options import AT_ONCE, SECTIONS, Published, check_publisher, checked_published
from streamfold.keys.key import Key
from streamfold.records.change import EVENTS, Event
from streamfold.routes.declaration import CommonOptions, Keys, caller, check_options, declared_route, source_line
from streamfold.routes.route import Route

DataHandler = TypeVar("DataHandler", bound=Callable[..., Mapping[str, Any] | None])
"""A function of a publisher: it gets a change, and returns the data of its message, or None."""


class PublishDeclarations(Declarations):
    """The declarations of a ``Router`` of messages to other services."""

    def publish(  # noqa: PLR0913 - one call declares all, by name
        self,
        *sources: Key,
        to: str,
        type: str,  # noqa: A002 - the word of CloudEvents
        events: Collection[Event] = EVENTS,
        changed: Collection[str] = (),
        expired: bool | None = None,
        at: GivesMoment | None = None,
        source: str | None = None,
        redact: Collection[str] = (),
        data: Collection[str] = SECTIONS,
        data_version: str | None = None,
        attributes: Collection[str] = (),
        large: str | None = None,
        once: bool = False,
        at_once: int = AT_ONCE,
        per_second: float | None = None,
        **common: Unpack[CommonOptions],
    ) -> Callable[[DataHandler], DataHandler]:
        """Declares that changes are published: a message of CloudEvents 1.0 for each, in order for each item.

        ``to`` is ``eventbridge:NAME``, ``sns:NAME`` or ``sqs:NAME``; ``STREAMFOLD_PUBLISH_<NAME>`` has the ARN or URL.
        ``type`` names what happened; ``{event}`` in it becomes inserted, modified or removed. ``events``, ``changed``
        and ``expired`` choose the changes, as in ``on``. Called by itself, it publishes the standard envelope: ``data``
        chooses from the new and old image and the changed attributes, ``redact`` names attributes without values. As a
        decorator, the function gets the ``Change`` and returns the data, or None to send nothing. ``attributes`` names
        attributes that are sent beside the message for filter policies, ``data_version`` the version of the data.
        ``large`` is the place, ``s3://BUCKET/PREFIX``, of data that the destination does not take. The same change has
        the same id at every delivery; ``once=True`` keeps a claim besides, so that no later delivery sends it again.
        With ``at``, a function of the item that gives its moment, each moment of an item has a message, and the
        function gets a ``Timer``, as in ``on``.
        ``at_once`` is the number of requests side by side, ``per_second`` the requests of a process in a second. See
        ``streamfold docs publish``.
        """
        check_call(self, "publish", sources)
        timed = given_moments(at, events=events, changed=changed, expired=expired)
        given: dict[str, Any] = {
            "to": to,
            "type": type,
            "source": source,
            "redact": redact,
            "data": data,
            "data_version": data_version,
            "attributes": attributes,
            "large": large,
            "once": once,
            "at_once": at_once,
            "per_second": per_second,
        }

        def made(keys: Keys, where: str, *, has_handler: bool = False) -> tuple[Keys, Published]:
            wanted = checked_filter(events, changed, where, expired=expired) if timed is None else timed.chosen(where)
            return (), checked_published(where, keys, wanted, given, has_handler=has_handler)

        def add(route: Route) -> list[Route]:
            routes = [route] if timed is None else [*timed.routes(route)]
            self._add(*routes)
            return routes

        check_options("publish", common)
        standard = add(declared_route("publish", PUBLISH, sources, common, made, caller(1)))

        def declare(handler: DataHandler) -> DataHandler:
            where = source_line(handler)
            check_publisher(handler, where)
            of_handler = declared_route(
                "publish",
                PUBLISH,
                sources,
                common,
                lambda keys, at: made(keys, at, has_handler=True),
                where,
                handler,
            )
            # The function takes the place of the standard envelope.
            self.routes[:] = [each for each in self.routes if each not in standard]
            add(of_handler)
            return handler

        return declare
