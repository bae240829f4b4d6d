"""Destinations without AWS: what a test reads back, and the folder of a replay."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamfold.derivations.publish.envelope import Message
from streamfold.derivations.publish.options import NamedDestination, Published, published_of
from streamfold.derivations.publish.targets import BATCH_ENTRIES_MAX, Limits
from streamfold.errors import EngineUnavailable
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.settings.readers import make_private

OPENED = "publish"
"""The name under which a run keeps the destinations that it has instead of those of the settings
(``Runtime.opened``)."""
LOCAL_BYTES_MAX = 1_000_000
"""A message that the strictest bus would refuse is refused without AWS too."""
LIMITS = Limits(BATCH_ENTRIES_MAX, LOCAL_BYTES_MAX, LOCAL_BYTES_MAX)


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
