"""Messages: the envelope of CloudEvents 1.0 around the data of one change, with an id that each delivery repeats.

An id is a digest of application, handler, table, key and the identity of the change: a receiver that keeps ids sees
each change of each handler once. The text of a message is the same at each delivery, but for data of a function.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal, DecimalException
from hashlib import sha256
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.derivations.publish.options import OWN_ATTRIBUTES, Published, published_of
from streamfold.derivations.yielded import inexact, stopped
from streamfold.errors import HandlerError, redacted, shown
from streamfold.keys.field import datetime_text
from streamfold.ledger.state_keys import claim_key
from streamfold.records.change import Change, ItemKey, item_name
from streamfold.records.images import Image
from streamfold.records.values import CANONICAL, LEVELS_MAX, decode_number, encode, number_text
from streamfold.routes.route import Fields, Route

if TYPE_CHECKING:
    from streamfold.derivations.expected import KnownChange
    from streamfold.engines.protocol import Engine

SPECVERSION = "1.0"
ID_DIGITS = 40
"""Hexadecimal digits, 160 bits, of an id or a group. Queues and topics take 128 characters of ASCII (SQS API Reference,
SendMessage, MessageDeduplicationId and MessageGroupId)."""
INTEGER_MAX = 2**63 - 1
INTEGER_MIN = -(2**63)
"""The integers that EventBridge takes in JSON (EventBridge API Reference, PutEvents)."""
DIGITS_MAX = 15
"""Significant digits of a fraction that every reader of JSON gets back from a double (IEEE 754, DBL_DIG)."""
UNSAFE = re.compile("[\ud800-\udfff\ufffe\uffff]")
"""Characters that JSON need not escape and SQS refuses (SQS API Reference, SendMessage), or that no UTF-8 has."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]|[\ud800-\udfff\ufffe\uffff]")
"""Characters that no message attribute may have."""
SEQUENCE = "sequence"
"""The extension of CloudEvents that orders events of a source by their texts (cloudevents/extensions/sequence.md)."""


class MessageAttribute(NamedTuple):
    """An attribute beside the text of a message, for filter policies."""

    name: str
    type: str  # String or Number
    text: str


class Message(NamedTuple):
    """One change, as its destination gets it."""

    route: Route
    changes: tuple[Change, ...]  # one
    id: str
    group: str  # a digest of table and key: the changes of one item share it
    type: str
    head: str  # the envelope without its data and its end
    data: str  # JSON
    attributes: tuple[MessageAttribute, ...] = ()

    @property
    def text(self) -> str:
        return f'{self.head},"data":{self.data}}}'  # the envelope, as JSON

    @property
    def source(self) -> str:
        return published_of(self.route).source

    def __str__(self) -> str:
        return f"publish {self.type} of {self.changes[0].name} to {published_of(self.route).to}"


def id_of(route: Route, item: ItemKey, identity: str) -> str:
    """The id of the message about a change of an item."""
    return digest(published_of(route).application, route.name, item[0], item_name(item), identity)


def explained_message(route: Route, change: "KnownChange", engine: "Engine") -> str:
    """The id of the message about a change, and whether it is noted as sent, in words."""
    found = f"message {id_of(route, change.item, change.version)}, if there is one for this change"
    if not published_of(route).once:
        return found
    key = claim_key(change.application, route.name, change.item, change.version)
    return f"{found}: {'sent' if engine.read_state([key], consistent=True) else 'not sent, or long ago'}"


def message_of(route: Route, change: Change, fields: Fields) -> Message | None:
    """The message of a change; None if the function gives none. Raises ``HandlerError`` for data that is no JSON."""
    options = published_of(route)
    data = _standard(options, change) if route.function is None else _called(route, change, fields)
    if data is None:
        return None
    identity = change.identity_text
    if options.redact:  # through Kinesis an identity has a digest of the images, from which values could be guessed
        keys = change.table.attributes
        identity = change.identity_among(lambda name: name in keys or name not in options.redact)
    name = item_name(change.item)
    message_id = id_of(route, change.item, identity)
    head: dict[str, Any] = {
        "specversion": SPECVERSION,
        "id": message_id,
        "source": options.source,
        "type": options.type_of(change.event),
        "subject": name,
        **({"time": datetime_text(change.at)} if change.has_at else {}),
        "datacontenttype": "application/json",
        SEQUENCE: change.version_text,
        **({"dataversion": options.data_version} if options.data_version else {}),
    }
    try:
        text = json_text(data)
    except HandlerError as error:
        raise HandlerError(f"Publisher {route.name!r}: {error.marked}") from None
    return Message(
        route,
        (change,),
        message_id,
        digest(change.table.name, name),
        head["type"],
        json_text(head)[:-1],
        text,
        tuple(_attributes(options, head, _filtered(route, data))),
    )


def digest(*texts: str) -> str:
    """One name for these texts, different for any others."""
    return sha256(CANONICAL.encode(texts).encode()).hexdigest()[:ID_DIGITS]


def _standard(options: Published, change: Change) -> dict[str, Any]:
    """The data of the standard envelope: the images, and each changed attribute as histories have it."""
    found: dict[str, Any] = {"event": change.event, "key": change.keys}
    if change.expired:
        found["expired"] = True
    images = {side: image for side, image in (("new", change.new), ("old", change.old)) if image}
    found |= {
        side: _visible(images[side], options) for side in ("new", "old") if side in options.sections & images.keys()
    }
    if "changes" in options.sections:
        names = sorted(change.changed - {*change.table.attributes})
        found["changes"] = {name: _sides(name, images, options) for name in names}
    return found


def _visible(image: Image, options: Published) -> dict[str, Any]:
    return {name: image[name] for name in image if name not in options.redact}


def _sides(name: str, images: Mapping[str, Image], options: Published) -> dict[str, Any]:
    """The entry of one attribute, as in a history: its old and new value, or which of them there are."""
    sides = [side for side in ("old", "new") if side in images and name in images[side]]
    return {"redacted": sides} if name in options.redact else {side: images[side][name] for side in sides}


def _called(route: Route, change: Change, fields: Fields) -> Mapping[str, Any] | None:
    assert route.function is not None
    try:
        found = route.function(change, **route.asked(fields))
    except DecimalException as error:
        raise inexact(route, error) from error
    except (KeyboardInterrupt, Exception):
        raise
    except BaseException as error:
        raise stopped(route, error) from error
    if found is not None and not isinstance(found, Mapping):
        raise HandlerError(
            f"Publisher {route.name!r} gave {shown(found)}: expected the data of a message as a mapping, or None to "
            "send nothing."
        )
    return found


def _filtered(route: Route, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where declared attributes are read: in the data of a function, or in the newest image of the item."""
    return data if route.function is not None else data.get("new") or data.get("old") or {}


def _attributes(options: Published, head: Mapping[str, Any], data: Mapping[str, Any]) -> Iterable[MessageAttribute]:
    yield from (MessageAttribute(name, "String", head[name]) for name in OWN_ATTRIBUTES if name in head)
    for name in options.attributes:
        value = data.get(name)
        if isinstance(value, bool):
            yield MessageAttribute(name, "String", "true" if value else "false")
        elif isinstance(value, int | Decimal):
            yield MessageAttribute(name, "Number", number_text(value))
        elif isinstance(value, str) and value:
            if CONTROL.search(value):
                raise HandlerError(
                    f"Attribute {redacted(name)}={shown(value)} has a control character, which no message attribute "
                    "may have: leave it out of attributes=."
                )
            yield MessageAttribute(name, "String", value)


def json_text(value: Any, level: int = 0) -> str:
    """A value as JSON: numbers exactly, or as text where a reader would round them; binary as base64.

    Raises ``HandlerError`` for a value that DynamoDB does not have either, such as a float.
    """
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int | Decimal):
        return _number(value)
    if level > LEVELS_MAX + 1:
        raise HandlerError(f"Data is nested deeper than {LEVELS_MAX} levels.")
    if isinstance(value, Mapping):
        if wrong := [name for name in value if not isinstance(name, str)]:
            raise HandlerError(f"The data has the name {shown(wrong[0])}: expected text.")
        members = [f"{_quoted(name)}:{json_text(member, level + 1)}" for name, member in value.items()]
        return f"{{{','.join(members)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join([json_text(member, level + 1) for member in value])}]"
    if isinstance(value, bytes | bytearray):
        return f'"{b64encode(value).decode()}"'
    return _other(value, level)


def _other(value: Any, level: int) -> str:
    """Sets are sorted lists, moments ISO texts, as DynamoDB's values are."""
    if isinstance(value, date | datetime):
        return _quoted(encode(value)["S"])
    if isinstance(value, set | frozenset) and not value:
        return "[]"
    ((tag, content),) = encode(value).items()  # refuses floats and foreign types
    return json_text(sorted(map(decode_number, content)) if tag == "NS" else content, level)


def _quoted(text: str) -> str:
    found = encode_basestring(text)
    return found if found.isascii() else UNSAFE.sub(lambda letter: f"\\u{ord(letter[0]):04x}", found)


def _number(value: int | Decimal) -> str:
    text = number_text(value)
    if "." not in text:
        return text if len(text) <= len(str(INTEGER_MIN)) and INTEGER_MIN <= int(text) <= INTEGER_MAX else f'"{text}"'
    digits = text.lstrip("-0.").replace(".", "")
    return text if len(digits) <= DIGITS_MAX else f'"{text}"'
