"""What a publisher should have sent: proofs compare with it. Nothing here uses what makes or sends messages."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from streamfold.derivations.expected import Expected, History, ItemVersion, Values
from streamfold.derivations.publish.local import OPENED
from streamfold.derivations.publish.options import EVENT_NAMES, published_of
from streamfold.records.change import item_name
from streamfold.records.values import CANONICAL
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

DIGITS = 40
"""Of an id, which others keep: it must never change."""


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
