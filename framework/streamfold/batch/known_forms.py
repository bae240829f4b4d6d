"""What a state knows of the attributes of its rows: of which handlers they are, and how they are made.

Stored rows and contributions were made so. A process that starts anew, with other code or with other records first,
then refuses what does not go with them, one handler's record at a time; by itself it knows only what it saw.
There is one state item for each target, so that no handler takes the place of those of another.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamfold.deadline import TRIES_MAX, Deadline
from streamfold.derivations.view.attribute_forms import PLAIN, RETIRED, follows, joined, known, shares
from streamfold.engines import Engine
from streamfold.errors import Contended, EngineUnavailable, damaged, told
from streamfold.keys.key import Key
from streamfold.ledger.item import kinds_key
from streamfold.records.envelope import Seen
from streamfold.routes.route import Kinds, Target
from streamfold.run import Run
from streamfold.writes.guarded import StateKey

if TYPE_CHECKING:
    from streamfold.app import App

NAMES_MAX = 500
NAMES_BYTES_MAX = 32 * 1024
"""Attributes of a handler and target that are remembered, and their bytes as stored: a handler that makes up names as
it goes may have more. Eleven such handlers of one target fit its item of 400 KB (Developer Guide, ServiceQuotas)."""


def place_of(key: Key) -> str:
    """A key as a state names it: its table and its templates."""
    return f"{key.table.name}: {key.template}"


@dataclass(slots=True)
class StoredForms:
    """The state's item of a target: kinds by handler and name, as of a revision."""

    kinds: Kinds = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> "StoredForms":
        """The kinds of a state item. Raises ``EngineError`` for one that is damaged."""
        try:
            return cls(json.loads(item.get("kinds", "{}")), int(item.get("r", 0)))
        except (TypeError, ValueError):
            raise damaged("What the state says of attributes") from None


@dataclass(slots=True)
class KnownState:
    """What a process knows a state to hold: tables as they were seen, the manifest's revision, and kinds by target.

    ``noted``: how many attributes the process itself had seen when it last noted them.
    """

    sources: dict[str, Seen] = field(default_factory=dict)
    revision: int = 0
    targets: dict[str, StoredForms] = field(default_factory=dict)
    noted: int = 0


def kinds_keys(app: "App") -> list[StateKey]:
    """The keys of the state's items of an application's targets."""
    return [kinds_key(app.name, place) for place in _by_place(app)]


def learned(read: Mapping[StateKey, Mapping[str, Any]], app: "App", retired: Collection[str]) -> KnownState:
    """What the state's items say, told to the targets of an application; ``retired`` are handlers that wrote them."""
    found = KnownState()
    for place, target in _by_place(app).items():
        stored = found.targets[place] = StoredForms.of(read.get(kinds_key(app.name, place), {}))
        for handler, kinds in stored.kinds.items():
            told = dict.fromkeys(kinds, RETIRED) if handler in retired else kinds
            _tell(target.shown.setdefault(handler, {}), told)
    return found


def keep_kinds(app: "App", engine: Engine, state: KnownState, world: Run) -> bool:
    """Notes in the state what is new, before it holds anything made so.

    Returns whether all goes with what others have noted meanwhile; what does not, its handler is now told. What the
    store does not take now is noted with a later batch.
    """
    if _count(app) == state.noted:
        return True
    fits = True
    try:
        for place, target in _by_place(app).items():
            found = _found(app, target)
            stored = state.targets.setdefault(place, StoredForms())
            fits = not _keep(kinds_key(app.name, place), engine, stored, found, target.shown, world) and fits
            _warn(place, stored, found, world)
    except EngineUnavailable:
        return fits
    state.noted = _count(app)
    return fits


def _keep(key: StateKey, engine: Engine, stored: StoredForms, found: Kinds, shown: Kinds, deadline: Deadline) -> bool:
    """Notes what is found of a target; whether something clashes with what others noted, of which ``shown`` is told."""
    for _ in deadline.tries():
        kinds, clashing = _merged(stored.kinds, found)
        if kinds == stored.kinds or engine.swap_state(key, {"kinds": _text(kinds)}, stored.revision):
            stored.revision += kinds != stored.kinds
            stored.kinds = kinds
            for handler, name, other in clashing:
                shown[handler].pop(name)
                shown.setdefault(other, {})[name] = kinds[other][name]
            return bool(clashing)
        read = StoredForms.of(engine.read_state([key], consistent=True).get(key, {}))
        stored.kinds, stored.revision = read.kinds, read.revision
    raise Contended(f"State item {told(key)} was written by others {TRIES_MAX} times in a row.")


def _merged(stored: Kinds, found: Kinds) -> tuple[Kinds, list[tuple[str, str, str]]]:
    """What is stored with what is found, and what clashes: a handler, a name, and the handler that had it so before."""
    kinds = {handler: dict(names) for handler, names in stored.items()}
    clashing = []
    for handler, names in found.items():
        mine = kinds.setdefault(handler, {})
        left_bytes = NAMES_BYTES_MAX - len(_text({handler: mine}).encode())
        for name, kind in names.items():
            if (other := _clash(kinds, handler, name, kind)) is not None:
                clashing.append((handler, name, other))
            elif name in mine:
                mine[name] = joined(mine[name], kind)
            elif len(mine) < NAMES_MAX and (left_bytes := left_bytes - len(_text({name: kind}).encode())) >= 0:
                mine[name] = kind
    return {handler: names for handler, names in kinds.items() if names}, clashing


def _clash(kinds: Kinds, handler: str, name: str, kind: str) -> str | None:
    """The handler, maybe the same, with which an attribute does not go together."""
    mine = kinds[handler]
    if name in mine:
        return None if follows(mine[name], kind) else handler
    others = (other for other, names in kinds.items() if other != handler and name in names)
    return next((other for other in others if not shares(kinds[other][name], kind)), None)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _warn(place: str, stored: StoredForms, found: Kinds, world: Run) -> None:
    remembered = {name for names in stored.kinds.values() for name in names}
    for handler, names in found.items():
        if not names.keys() <= remembered:
            world.warn_once(
                ("kinds", place, handler),
                f"Handler {handler!r} yields more attributes of {place} than the state remembers, {NAMES_MAX} with "
                f"{NAMES_BYTES_MAX} bytes: that one of the others becomes another aggregate is refused only by a "
                "process that saw it before. Names that are values belong into keys of rows.",
            )


def _tell(mine: dict[str, str], kinds: Mapping[str, str]) -> None:
    """Tells what a state knows; what the process saw itself, of the same kind, says more."""
    for name, kind in kinds.items():
        if name not in mine or known(mine[name]) != kind:
            mine[name] = kind


def _count(app: "App") -> int:
    return sum(len(names) for target in _targets(app) for names in target.shown.values())


def _targets(app: "App") -> Iterator[Target]:
    return (target for route in app.routes if route.ledger for target in route.targets)


def _by_place(app: "App") -> Mapping[str, Target]:
    return {place_of(target.key): target for target in _targets(app)}


def _found(app: "App", target: Target) -> Kinds:
    """What was seen of attributes that are not put whole: those of another kind would be mixed with what is stored."""
    declared = {route.name for route in app.routes}
    return {
        handler: {name: known(kind) for name, kind in kinds.items() if kind != PLAIN or not target.whole}
        for handler, kinds in target.shown.items()
        if handler in declared
    }
