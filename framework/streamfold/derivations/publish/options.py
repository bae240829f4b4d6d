"""The declaration of a publisher: its destination, its envelope and its limits, checked where they are written."""

from __future__ import annotations

import re
from collections.abc import Collection
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from streamfold.derivations.on.kind import Filter
from streamfold.errors import DeclarationError
from streamfold.records.change import EVENTS, Event
from streamfold.settings import environment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamfold.derivations.outside_calls import CallLimits
    from streamfold.keys.key import Key
    from streamfold.routes.route import Route

NOT_PUBLISHED = "not_published"
"""Counts messages that were not sent, because the run must not reach the destination."""
SENT_BEFORE = "sent_before"
"""Counts messages that a claim kept from being sent again."""

EVENTBRIDGE, SNS, SQS = "eventbridge", "sns", "sqs"
SERVICES = (EVENTBRIDGE, SNS, SQS)
ACTIONS = {
    EVENTBRIDGE: ("events:PutEvents",),
    SNS: ("sns:Publish", "sns:GetTopicAttributes"),
    SQS: ("sqs:SendMessage", "sqs:GetQueueAttributes"),
}
"""The calls of each service; those that send several messages are permitted as those of one (Service Authorization
Reference)."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,79}", re.ASCII)
"""The logical name of a destination. The longest name of a queue has 80 characters (SQS API Reference, CreateQueue)."""
FIFO = ".fifo"
EVENT_NAMES: dict[Event, str] = {"INSERT": "inserted", "MODIFY": "modified", "REMOVE": "removed"}
"""What ``{event}`` becomes in a type."""
TYPE_LETTERS_MAX = 128
"""The longest detail type (EventBridge API Reference, PutEventsRequestEntry)."""
SOURCE_LETTERS_MAX = 256
"""The longest source (eventbridgev2, PutEventsRequestEntry); buses of the older kind take more."""
SOURCE = re.compile(r"(?!aws\.)[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+", re.ASCII)
"""A URI reference (RFC 3986, 2.2 and 2.3). EventBridge keeps sources that begin with ``aws.`` for AWS itself."""
ATTRIBUTE = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]{1,256}", re.ASCII)
"""The name of a message attribute (SQS Developer Guide, message metadata); dots are left out for their rules."""
ATTRIBUTES_MAX = 5
"""Attributes that a declaration adds. A message has ten at most (SQS Developer Guide, quotas), of which five are ours.
"""
OWN_ATTRIBUTES = ("id", "source", "type", "sequence", "dataversion")
SECTIONS = ("new", "old", "changes")
"""What the data of the standard envelope may have, beside the event and the key."""
AT_ONCE = 8
"""Requests that a batch makes side by side, unless the declaration says another number."""
BUCKET = "s3://"
EXPECTED = 'expected to="eventbridge:NAME", "sns:NAME" or "sqs:NAME"'


class NamedDestination(NamedTuple):
    """Where messages go: a service, and the logical name that ``STREAMFOLD_PUBLISH_<NAME>`` gives an address."""

    service: str
    name: str

    @property
    def is_fifo(self) -> bool:
        """Whether the declaration asks for a queue or topic that keeps order."""
        return self.name.endswith(FIFO)

    @property
    def variable(self) -> str:
        """The end of the variable with its address."""
        return environment_name(self.name)

    def __str__(self) -> str:
        return f"{self.service}:{self.name}"


class Published(NamedTuple):
    """The options of a publisher."""

    to: NamedDestination
    type: str  # of the envelope, with {event}
    filter: Filter = Filter()
    source: str = ""  # of the envelope; the application's name takes the place of ""
    application: str = ""  # a part of each id
    redact: frozenset[str] = frozenset()  # attributes without values in the standard envelope
    sections: tuple[str, ...] = SECTIONS  # of the standard envelope's data
    data_version: str | None = None
    attributes: tuple[str, ...] = ()  # of the data, sent beside the message for filter policies
    large: str | None = None  # the S3 location of data that its destination does not take
    limits: CallLimits | None = None  # requests side by side, and in a second
    once: bool = False  # a claim keeps a later delivery from sending again

    def type_of(self, event: Event) -> str:
        return self.type.replace("{event}", EVENT_NAMES.get(event, ""))  # a moment has none


def published_of(route: Route) -> Published:
    """The options of a publisher's route."""
    assert isinstance(route.options, Published)
    return route.options


def checked_published(
    at: str, sources: Sequence[Key], wanted: Filter, given: Mapping[str, Any], *, has_handler: bool
) -> Published:
    """The options of a declaration. Raises ``DeclarationError`` with the remedy for options that cannot work.

    given: the other options of ``Router.publish``, by name, as they were written.
    """
    hidden, sections = _names(given["redact"], "redact", at), tuple(_names(given["data"], "data", at))
    if has_handler and (hidden or set(sections) != set(SECTIONS)):
        raise DeclarationError(
            f"publish at {at} has redact= or data=, and a function that makes the data itself: leave these options out."
        )
    if unknown := sorted(set(sections) - set(SECTIONS)):
        raise DeclarationError(f"publish at {at} has data={unknown}: expected some of {', '.join(SECTIONS)}.")
    keys = {name for key in sources for name in key.table.attributes}
    if shown := sorted(set(hidden) & keys):
        raise DeclarationError(
            f"publish at {at} has redact={shown!r}: the key is the subject of each message, in clear. Leave the names "
            "out, and keep what is to be redacted out of keys."
        )
    if wanted.is_timed:
        sections = _sections_at_moments(sections, given["type"], at)
    from streamfold.derivations.outside_calls import checked_limits  # which waits: only a publisher imports it

    return Published(
        _destination(given["to"], at),
        _type(given["type"], at),
        wanted,
        "" if given["source"] is None else checked_source(given["source"], at),
        redact=frozenset(hidden),
        sections=tuple(name for name in SECTIONS if name in sections),
        data_version=_text(given["data_version"], "data_version", at, 'data_version="2"'),
        attributes=_attributes(given["attributes"], hidden, at),
        large=_large(given["large"], at),
        limits=checked_limits(given["at_once"], given["per_second"], at),
        once=_switch(given["once"], at),
    )


def _sections_at_moments(sections: Collection[str], type_: Any, at: str) -> tuple[str, ...]:
    """What the standard envelope has at a moment of an item: the item. Raises as ``checked_published``."""
    if "{event}" in str(type_):
        raise DeclarationError(
            f"publish at {at} has at= and type={type_!r}: at a moment nothing is inserted, modified or removed. Name "
            'the moment, type="cart.abandoned".'
        )
    if set(sections) not in ({*SECTIONS}, {"new"}):
        raise DeclarationError(
            f"publish at {at} has at= and data={list(sections)!r}: at a moment nothing changes. Leave data out; the "
            "message has the item as it is then, new."
        )
    return ("new",)


def _destination(to: Any, at: str) -> NamedDestination:
    service, colon, name = str(to).partition(":")
    if not (isinstance(to, str) and colon and service in SERVICES and NAME.fullmatch(name)):
        raise DeclarationError(
            f"publish at {at} has to={to!r}: {EXPECTED}. The address is in the setting STREAMFOLD_PUBLISH_<NAME>."
        )
    return NamedDestination(service, name)


def _type(given: Any, at: str) -> str:
    try:
        fields = {field for _, field, _, _ in Formatter().parse(given) if field is not None}
    except (TypeError, ValueError):
        fields = {"?"}
    longest = len(str(given).replace("{event}", max(EVENT_NAMES.values(), key=len)))
    if fields - {"event"} or not given or not str(given).isprintable() or longest > TYPE_LETTERS_MAX:
        raise DeclarationError(
            f"publish at {at} has type={given!r}: expected a text of 1 to {TYPE_LETTERS_MAX} letters, in which "
            '{event} becomes inserted, modified or removed, type="order.{event}".'
        )
    return str(given)


def checked_source(source: Any, at: str) -> str:
    """The source of an envelope. Raises ``DeclarationError`` for one that CloudEvents or EventBridge refuse."""
    if not (isinstance(source, str) and SOURCE.fullmatch(source) and len(source) <= SOURCE_LETTERS_MAX):
        raise DeclarationError(
            f"publish at {at} has source={source!r}: expected a URI reference of at most {SOURCE_LETTERS_MAX} letters "
            'that does not begin with "aws.", source="https://shop.example/orders".'
        )
    return source


def _attributes(given: Any, hidden: Collection[str], at: str) -> tuple[str, ...]:
    names = tuple(_names(given, "attributes", at))
    wrong = [name for name in names if not ATTRIBUTE.fullmatch(name) or name in OWN_ATTRIBUTES or name in hidden]
    if wrong or len(names) > ATTRIBUTES_MAX:
        raise DeclarationError(
            f"publish at {at} has attributes={list(names)!r}: expected at most {ATTRIBUTES_MAX} names of attributes "
            f"that are not redacted, of letters, digits, _ and -. Each message has {', '.join(OWN_ATTRIBUTES)} already."
        )
    return names


def _large(location: Any, at: str) -> str | None:
    named = isinstance(location, str) and location.startswith(BUCKET) and location.removeprefix(BUCKET).strip("/")
    if location is not None and not named:
        raise DeclarationError(f'publish at {at} has large={location!r}: expected large="s3://BUCKET/PREFIX".')
    return None if location is None else str(location)


def _switch(once: Any, at: str) -> bool:
    if not isinstance(once, bool):
        raise DeclarationError(f"publish at {at} has once={once!r}: expected True or False.")
    return once


def _text(given: Any, option: str, at: str, example: str) -> str | None:
    if given is not None and not (isinstance(given, str) and given and given.isascii() and given.isprintable()):
        raise DeclarationError(f"publish at {at} has {option}={given!r}: expected a text, {example}.")
    return None if given is None else str(given)


def _names(given: Any, option: str, at: str) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise DeclarationError(f'publish at {at} has {option}={given!r}: expected a list of names, {option}=["name"].')
    if not all(isinstance(name, str) and name for name in given):
        raise DeclarationError(f"publish at {at} has {option}={given!r}: expected names, as text.")
    return list(dict.fromkeys(given))


def check_destinations(own: Sequence[Route]) -> None:
    """Refuses two destinations whose addresses would be in one variable."""
    known: dict[str, Route] = {}
    for route in own:
        to = published_of(route).to
        before = known.setdefault(to.variable, route)
        if published_of(before).to != to:
            raise DeclarationError(
                f"publish {before.name!r} ({before.declared_at}) goes to {str(published_of(before).to)!r} and "
                f"{route.name!r} ({route.declared_at}) to {str(to)!r}: both addresses would be in "
                f"STREAMFOLD_PUBLISH_{to.variable}. Rename one of them."
            )


def check_publisher(function: Callable[..., Any], where: str) -> None:
    """Refuses a function that is async, or that yields: a change is one message, or none."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & GENERATES:
        raise DeclarationError(
            f"Handler {function.__name__} at {where} yields or is async: a publisher's function returns the data of "
            f"one message, or None, write\n    def {function.__name__}(change): return {{...}}"
        )


GENERATES = 0x20 | 0x80 | 0x200
"""The flags of generators, coroutines and asynchronous generators (inspect.CO_*), without the import of inspect."""
assert set(EVENT_NAMES) == set(EVENTS) == set(get_args(Event))
