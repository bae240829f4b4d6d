"""What a state knows of the attributes of its rows: of which handler they are, and how they are made.

Stored rows and contributions were made so. A process that starts anew, with other code or with other records first,
then refuses what does not go with them, one handler's record at a time; by itself it knows only what it saw.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.engines import Engine
from streamfold.errors import EngineUnavailable, told
from streamfold.ledger import kinds_key
from streamfold.manifest import place_of
from streamfold.route import ADDED_KINDS, PLAIN_KIND, Shown, Target
from streamfold.writes import StateKey

if TYPE_CHECKING:
    from streamfold.app import App

ROUNDS_MAX = 8
NAMES_MAX = 500
"""Attributes that are remembered, of about 100 bytes each, in an item that is read at every start. A handler that makes
up names as it goes may have more; what is beyond, each process knows for itself."""

Kinds = dict[tuple[str, str], Shown]
"""What attributes are made of, by the place of their target and their name."""


class Named(NamedTuple):
    """An attribute as it is stored."""

    place: str
    name: str
    handler: str
    kind: str


@dataclass(slots=True)
class Known:
    """What a process knows a state to hold: source kinds by table, and attributes as of a revision.

    ``seen``: how many attributes the process itself had seen when it last compared.
    """

    sources: dict[str, str] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=dict)
    revision: int = 0
    seen: int = 0

    def read(self, item: Mapping[str, Any], retired: frozenset[str]) -> None:
        """Takes what the state's item says, but for what retired handlers have left."""
        stored = (Named(*each) for each in json.loads(item.get("kinds", "[]")))
        self.kinds = {
            (each.place, each.name): Shown(each.handler, each.kind) for each in stored if each.handler not in retired
        }
        self.revision = int(item.get("r", 0))


def learned(item: Mapping[str, Any], app: "App") -> Known:
    """What the item of a state says, told to the targets of an application."""
    known = Known()
    known.read(item, app.retired)
    targets = _by_place(app)
    for (place, name), shown in known.kinds.items():
        if place in targets:
            _tell(targets[place], name, shown)
    return known


def keep_kinds(app: "App", engine: Engine, known: Known) -> bool:
    """Notes in the state what is new, before it holds anything made so.

    Returns whether all goes with what others have noted meanwhile; what does not, its handler is now told. What the
    store does not take now is noted with a later batch.
    """
    seen = sum(len(target.shown) for target in _targets(app))
    if seen == known.seen:
        return True
    targets = _by_place(app)
    found = _found(targets)
    try:
        _note(kinds_key(app.name), app.retired, engine, known, found)
    except EngineUnavailable:
        return True
    known.seen = seen
    clashing = [each for each, shown in found.items() if _clash(shown, known.kinds.get(each, shown))]
    for place, name in clashing:
        _tell(targets[place], name, known.kinds[place, name])
    return not clashing


def _note(key: StateKey, retired: frozenset[str], engine: Engine, known: Known, found: Kinds) -> None:
    for _ in range(ROUNDS_MAX):
        if found.keys() <= known.kinds.keys() or len(known.kinds) >= NAMES_MAX:
            return
        merged = dict(islice((known.kinds | found | known.kinds).items(), NAMES_MAX))
        text = json.dumps(sorted(Named(*name, *shown) for name, shown in merged.items()))
        if engine.swap_state(key, {"kinds": text}, known.revision):
            known.kinds, known.revision = merged, known.revision + 1
        else:
            known.read(engine.read_state([key]).get(key, {}), retired)
    raise EngineUnavailable(f"State item {told(key)} was written by others {ROUNDS_MAX} times in a row.")


def _clash(one: Shown, other: Shown) -> bool:
    """Whether two handlers, or one and what it was, make an attribute in ways that do not go together."""
    return one.kind != other.kind or (one.handler != other.handler and one.kind not in ADDED_KINDS)


def _tell(target: Target, name: str, shown: Shown) -> None:
    """Tells a target what a state knows; what the process saw itself, of the same kind, says more."""
    if name not in target.shown or target.shown[name].known != shown:
        target.shown[name] = shown


def _targets(app: "App") -> Iterator[Target]:
    return (target for route in app.routes if route.ledger for target in route.targets)


def _by_place(app: "App") -> Mapping[str, Target]:
    return {place_of(target.key): target for target in _targets(app)}


def _found(targets: Mapping[str, Target]) -> Kinds:
    """What was seen of attributes that are not put whole: those of another kind would be mixed with what is stored."""
    return {
        (place, name): shown.known
        for place, target in targets.items()
        for name, shown in target.shown.items()
        if shown.kind != PLAIN_KIND or not target.whole
    }
