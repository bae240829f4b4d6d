"""Destinations without AWS: what a test reads back, a proof compares and a replay prices; the folder of a replay.

The messages that a proof expects are made from the declaration: nothing that makes or sends messages is used for them.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from streamfold.derivations.expected import Expected, History, ItemVersion, Values
from streamfold.derivations.publish.envelope import Message
from streamfold.derivations.publish.options import (
    EVENT_NAMES,
    EVENTBRIDGE,
    SNS,
    SQS,
    NamedDestination,
    Published,
    published_of,
)
from streamfold.derivations.publish.targets import BATCH_ENTRIES_MAX, Limits
from streamfold.errors import EngineUnavailable
from streamfold.records.change import ItemKey, item_name
from streamfold.records.values import CANONICAL
from streamfold.routes.route import Route
from streamfold.settings.readers import make_private
from streamfold.writes.guarded import RowKey

OPENED = "publish"
"""The name under which a run keeps the destinations that it has instead of those of the settings
(``Runtime.opened``)."""
LOCAL_BYTES_MAX = 1_000_000
"""A message that the strictest bus would refuse is refused without AWS too."""
LIMITS = Limits(BATCH_ENTRIES_MAX, LOCAL_BYTES_MAX, LOCAL_BYTES_MAX)


PRICES = {EVENTBRIDGE: 1.00, SNS: 0.50, SQS: 0.40}
FIFO_PRICES = {EVENTBRIDGE: 1.00, SNS: 0.30, SQS: 0.50}
"""Dollars a million in us-east-1 (the pages of prices of EventBridge, SNS and SQS). A request with several messages is
one at SNS and SQS: these are prices of requests with one message."""
BILLED_BYTES = 64 * 1024
"""Each 64 KB of a message counts as one (the same pages)."""
MILLION = 1_000_000
DIGITS = 40
"""Of an id, which others keep: it must never change."""


class SentMessage(NamedTuple):
    """A message that a local destination has."""

    to: NamedDestination
    handler: str
    item: ItemKey
    id: str
    group: str
    sequence: str
    text: str


class LocalMessages:
    """All messages of a run, in the order in which their destinations got them."""

    writes = "send_entries"  # the call that may fail in a proof

    def __init__(self) -> None:
        self.sent: list[SentMessage] = []

    def send_entries(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        """Takes the messages of one request."""
        self.sent += map(sent, messages)
        return [None] * len(messages)


def envelopes(routes: Iterable[Route], opened: LocalMessages, name: str) -> list[dict[str, Any]] | None:
    """The envelopes that a destination of a run has, by its name with or without its service; None for no such."""
    own = {published_of(route).to for route in routes if isinstance(route.options, Published)}
    if not any(name in (to.name, str(to)) for to in own):
        return None
    return [json.loads(each.text) for each in opened.sent if name in (each.to.name, str(each.to))]


def sent(message: Message) -> SentMessage:
    route = message.route
    change = message.changes[0]
    to, version = published_of(route).to, change.version_text
    return SentMessage(to, route.name, change.item, message.id, message.group, version, message.text)


class LocalTarget:
    """A destination whose messages go elsewhere, up to ``entries_max`` in a request."""

    def __init__(
        self, take: Callable[[Sequence[Message]], Sequence[Exception | None]], entries_max: int = BATCH_ENTRIES_MAX
    ) -> None:
        self.take = take
        self.limits = LIMITS._replace(entries=min(entries_max, BATCH_ENTRIES_MAX))

    def bytes_of(self, message: Message) -> int:
        return len(message.text.encode())

    def send(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        return self.take(messages)


class MessageFolder:
    """A file of JSON Lines for each destination. A message counts as sent once it is on disk."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def send_entries(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        to = published_of(messages[0].route).to
        file = self.path / f"{to.service}-{to.name}.jsonl"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            make_private(file)
            with file.open("ab") as stream:
                stream.write("".join(f"{each.text}\n" for each in messages).encode())
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise EngineUnavailable(f"File {file} cannot be written: {error.strerror or error}.") from error
        return [None] * len(messages)


def message_costs(routes: Sequence[Route], opened: LocalMessages, records: int) -> Iterator[str]:
    """What the messages of a million records cost, a sentence each; ``records`` led to those in ``opened``."""
    for route in routes:
        to = published_of(route).to
        price = (FIFO_PRICES if to.is_fifo else PRICES)[to.service]
        own = [len(each.text.encode()) for each in opened.sent if each.handler == route.name]
        billed = sum(ceil(size / BILLED_BYTES) for size in own)
        yield (
            f"Publisher {route.name!r} sends {len(own) * MILLION / records:,.0f} messages for a million records to "
            f"{str(to)!r}: at most ${billed * price / records:,.2f}, at ${price:.2f} a million of 64 KB."
        )


def expected(route: Route, history: History) -> Expected:
    """The messages of all changes that the filters let through, each by its id."""
    found = Expected()
    options = published_of(route)
    if options.filter.is_timed:  # how many moments an item has had depends on when somebody looked
        return found
    for change, fields in history.changes_of(route):
        own = change.as_written()
        if own is None or not route.takes(own):
            continue
        if route.function is not None and route.function(own, **route.asked(fields)) is None:
            continue
        identity = own.identity_text
        if options.redact:
            identity = own.identity_among(lambda name: name in own.table.attributes or name not in options.redact)  # noqa: B023 - called at once
        named = [options.application, route.name, own.table.name, item_name(own.item), identity]
        key = sha256(CANONICAL.encode(named).encode()).hexdigest()[:DIGITS]
        found.outside[f"published by {route.name}", item_name(own.item), key] = {
            "type": options.type.replace("{event}", EVENT_NAMES[own.event]),
            "sequence": own.version_text,
        }
    return found


def found_outside(route: Route, location: Any) -> dict[RowKey, Values]:
    """The messages that the destinations of a run have, each once."""
    found: dict[RowKey, Values] = {}
    if published_of(route).filter.is_timed:
        return found
    for each in location.store.opened[OPENED].sent:
        if each.handler == route.name:
            envelope = json.loads(each.text)
            key = f"published by {route.name}", envelope["subject"], envelope["id"]
            found[key] = {"type": envelope["type"], "sequence": envelope["sequence"]}
    return found


def first_appearances(route: Route, location: Any) -> Sequence[ItemVersion]:
    """The changes whose messages the destinations of a run have, in the order in which their ids first appeared."""
    if published_of(route).filter.is_timed:
        return ()
    first: dict[str, ItemVersion] = {}
    for each in location.store.opened[OPENED].sent:
        if each.handler == route.name:
            first.setdefault(each.id, ItemVersion(each.item, each.sequence))
    return [*first.values()]
