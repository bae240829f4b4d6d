"""References of items: backlinks are put, *then* referents are read.

In the other order a change of a referent could list its backlinks before this one is put, and be written before it is
read here: rows made of the older referent would be stale for ever. A referent that is missing has a backlink too,
or its coming would reach nobody.

Referents are read strongly, after the ledger items of those that refer to them: a write on the revision of that ledger
item is refused if another write, with newer referents, came between.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from streamfold.commit.transactions import Several, by_table, in_slots, slices
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, ItemFault
from streamfold.ledger.contribution import backlink_key, backlinks
from streamfold.records.change import ABSENT, ItemKey, image_of
from streamfold.records.images import Image
from streamfold.routes.lookups import check_count, joined, references
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.settings.limits import KEYS_MAX, STATEMENTS_MAX
from streamfold.writes.guarded import PutState

if TYPE_CHECKING:
    from streamfold.writes.guarded import StateKey


ABSENT_MAX = 10_000
"""Items that do not exist and are named at the end of a replay; the bound keeps its memory from growing with a file."""


class Asked(NamedTuple):
    """An item whose referents are asked for."""

    route: Route
    item: ItemKey
    image: Image
    fields: Fields
    held: Collection[ItemKey] = ()  # references of its ledger item: their backlinks are in place
    since: int | None = None  # of its ledger item: a moment that had come then, epoch microseconds


class LookedUp(NamedTuple):
    """An item with its referents."""

    image: Image  # empty where a referent lacks that is not optional
    references: tuple[ItemKey, ...] = ()
    error: Exception | None = None  # why a reference cannot be composed
    at: int | None = None  # the time for the handler, if it asks for it, epoch microseconds


class _Looking:
    """An item on its way from one level of lookups to the next."""

    __slots__ = ("asked", "error", "references", "referents")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.references: dict[str, tuple[ItemKey, ...]] = {}  # by the names of lookups
        self.referents: dict[str, Sequence[tuple[ItemKey, Image]]] = {}
        self.error: Exception | None = None

    def refer(self, *, through: bool) -> None:
        """Composes the references of one level."""
        asked = self.asked
        for lookup in asked.route.lookups:
            if (lookup.through is not None) is through and self.error is None:
                with ItemFault() as fault:
                    if found := references(lookup, asked.image, asked.fields, self.referents):
                        self.references[lookup.name] = found
                        check_count(asked.route.name, len(self.all))
                self.error = fault.error

    @property
    def all(self) -> tuple[ItemKey, ...]:
        """All references, each once."""
        return tuple(dict.fromkeys(key for keys in self.references.values() for key in keys))

    def looked_up(self, now: int | None) -> LookedUp:
        if self.error is not None:
            return LookedUp(ABSENT, (), self.error)
        asked = self.asked
        # An item's time does not go back: a row that appeared would go again by another clock.
        at = max(now, asked.since or 0) if now is not None and asked.route.asks_time else None
        images = {name: [image for _, image in found] for name, found in self.referents.items()}
        image = joined(asked.route.lookups, asked.image, images)
        return LookedUp(ABSENT if image is None else image, self.all, at=at)


def look_up(runtime: Runtime, asked: Sequence[Asked], *, notes: bool = True) -> list[LookedUp]:
    """The items with their referents, each of which is read once. ``notes``: backlinks are put.

    Raises ``EngineError`` if a backlink cannot be put, or a referent cannot be read.
    """
    looking = [_Looking(each) for each in asked]
    known: dict[ItemKey, Image] = {}
    for through in (False, True):  # two levels at most
        for each in looking:
            if each.asked.image:
                each.refer(through=through)
        coming = [each for each in looking if each.error is None and each.references.keys() - each.referents.keys()]
        if not coming:
            break
        if notes:
            put_backlinks(runtime, (put for each in coming for put in _missing(runtime, each)))
        wanted = dict.fromkeys(key for each in coming for key in each.all if key not in known)
        known |= _read(runtime, [*wanted])
        for each in coming:
            each.referents = {name: [(key, known[key]) for key in keys] for name, keys in each.references.items()}
    now = runtime.moment if any(each.route.asks_time for each in asked) else None
    found = [each.looked_up(now) for each in looking]
    return _with_parts(runtime, asked, found) if any(each.route.parts for each in asked) else found


def _with_parts(runtime: Runtime, asked: Sequence[Asked], found: Sequence[LookedUp]) -> list[LookedUp]:
    """The items with their parts, which are read when their handlers are called."""
    from streamfold.commit.collections import RootItem, with_parts  # few handlers gather parts

    gathering = [number for number, each in enumerate(asked) if each.route.parts and found[number].error is None]
    roots = [RootItem(asked[number].route, asked[number].item, asked[number].fields) for number in gathering]
    images = (_root_image(asked[number], found[number]) for number in gathering)
    known = dict(zip(gathering, with_parts(runtime, roots, images), strict=True))
    return [each._replace(image=known[number]) if number in known else each for number, each in enumerate(found)]


def _root_image(asked: Asked, found: LookedUp) -> Image | None:
    # None: the handler is not called, whatever the parts are.
    if found.image:
        return found.image
    optional = asked.route.optional and not asked.image and not any(each.is_inner for each in asked.route.lookups)
    return ABSENT if optional else None


def _missing(runtime: Runtime, looking: _Looking) -> list[PutState]:
    """The backlinks of one level that may not be there."""
    route, item, held = looking.asked.route, looking.asked.item, looking.asked.held
    coming = (keys for name, keys in looking.references.items() if name not in looking.referents)
    new = {key for keys in coming for key in keys if key not in held}
    return backlinks(runtime.application.name, route.name, item, sorted(new, key=str))


def lacking_backlinks(
    runtime: Runtime, references: Iterable[tuple[Route, ItemKey, Iterable[ItemKey]]]
) -> dict[tuple[str, ItemKey], list[ItemKey]]:
    """What items refer to without a backlink, by handler and item. ``references``: a handler, an item, its referents.

    Raises ``EngineError`` if the state cannot be read.
    """
    name = runtime.application.name
    wanted = {
        backlink_key(name, route.name, referent, item): (route.name, item, referent)
        for route, item, referents in references
        for referent in referents
    }
    found = runtime.engine.read_state(wanted, consistent=True) if wanted else {}
    lacking: dict[tuple[str, ItemKey], list[ItemKey]] = {}
    for key, (handler, item, referent) in wanted.items():
        if key not in found:
            lacking.setdefault((handler, item), []).append(referent)
    return lacking


def put_backlinks(runtime: Runtime, puts: Iterable[PutState]) -> None:
    """Puts backlinks. Raises ``EngineUnavailable`` if one of them may not be there.

    One that meets the transaction which deletes it is tried again by the store. One that is put and then not needed
    makes a visit more, and no more.
    """
    puts_remaining = list({put.key: put for put in puts}.values())
    refused: list[StateKey] = []
    failed: EngineError | HandlerError | None = None
    some = slices(runtime.slots, puts_remaining, STATEMENTS_MAX)
    calls = ((Several(put.key for put in each), partial(runtime.engine.insert_state, each)) for each in some)
    for _, answer in in_slots(runtime.slots, calls, stops=lambda _: True):
        if isinstance(answer, EngineError | HandlerError):
            failed = failed or answer
        else:
            refused += answer
    if failed is not None:
        raise failed
    if refused:
        raise EngineUnavailable(f"{len(refused)} backlinks could not be put.")


def _read(runtime: Runtime, keys: Sequence[ItemKey]) -> Mapping[ItemKey, Image]:
    """The images of items, read side by side; an empty one of an item that is not there."""
    found: dict[ItemKey, Image] = dict.fromkeys(keys, ABSENT)
    failed: EngineError | None = None
    for _, answer in by_table(runtime, keys, runtime.engine.read_sources, KEYS_MAX):
        if isinstance(answer, EngineError):
            failed = failed or answer
        else:
            found.update({key: image_of(item) for key, item in answer.items()})
    if failed is not None:
        raise failed
    if runtime.absent is not None:
        for key, image in found.items():
            runtime.absent.pop(key, None)
            if not image and len(runtime.absent) < ABSENT_MAX:
                runtime.absent[key] = None
    return found
