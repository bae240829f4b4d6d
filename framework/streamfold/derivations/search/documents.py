"""Documents as they are made: gathered by consistent reads, composed by the function, encoded, and sent by roots."""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal, localcontext
from functools import lru_cache, partial
from hashlib import sha256
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.derivations.derivation import Preview, Work, passes_over
from streamfold.derivations.search.options import (
    CODE,
    GONE,
    GONE_AT,
    NEXT,
    Document,
    index_name,
    keeps_ids,
    key_id,
    options_of,
    real_template,
    setting_name,
    shortened_id,
)
from streamfold.derivations.search.sink import Action
from streamfold.derivations.yielded import yielded
from streamfold.engines.protocol import Engine, StoredItem
from streamfold.errors import (
    EngineUnavailable,
    HandlerError,
    ItemFault,
    KeyValueError,
    Unprocessable,
    joined_key,
    reason,
    shown,
)
from streamfold.keys.field import Unreadable, datetime_text
from streamfold.keys.key_part import KeyComponent
from streamfold.keys.table import RESERVED_PREFIX
from streamfold.ledger.contribution import dropped_backlinks, moments_of, since_of, stored_references, stored_text
from streamfold.records.change import Change, ItemKey, image_of
from streamfold.records.images import Image
from streamfold.records.values import EXACT, LEVELS_MAX, base64_text
from streamfold.routes.parts import Parts
from streamfold.routes.roots import root_of as root_of_part
from streamfold.routes.route import SOURCE, Fields, Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import CounterWrite, StateKey

if TYPE_CHECKING:
    from streamfold.commit.referents import LookedUp
    from streamfold.ledger.wakes import Times

StoredItems = Mapping[ItemKey, StoredItem]

DOCUMENTS_MAX = 100
"""Documents of one item: each change of it sends all of them."""
SEVERAL = (DOCUMENTS_MAX, "the most that one item may have")
CODE_DIGITS = 16

IDS_MAX = 500
"""Ids that are kept of one item: of its documents, and of documents that could not be hidden yet."""


def document_text(fields: Mapping[str, Any]) -> bytes:
    """The JSON of a document, in UTF-8.

    Raises ``HandlerError`` for a reserved name, for a name that is no text, and for a value that JSON cannot hold.
    """
    for name in fields:
        if name.startswith(RESERVED_PREFIX):
            raise HandlerError(
                f"Field {shown(name)} cannot be used: names that begin with {RESERVED_PREFIX!r} are reserved."
            )
    try:
        return _text(fields, 0).encode()
    except UnicodeEncodeError:
        raise HandlerError("A text of the document cannot be sent: it holds half of a surrogate pair.") from None


def parsed(text: str | bytes) -> dict[str, Any]:
    """A document from its JSON, numbers as ``int`` or ``Decimal``."""
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return found


def own_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a document without those of the framework."""
    return {name: value for name, value in document.items() if not name.startswith(RESERVED_PREFIX)}


def _text(value: Any, level: int) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, Decimal | float):
        return _number(value)
    if level >= LEVELS_MAX:
        raise HandlerError(f"A value of the document is nested deeper than {LEVELS_MAX} levels.")
    if isinstance(value, Mapping):
        pairs = (f"{_name(name)}:{_text(member, level + 1)}" for name, member in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(member, level + 1) for member in value)}]"
    if isinstance(value, AbstractSet):
        return f"[{','.join(_text(member, level + 1) for member in _sorted(value))}]"
    return json.dumps(_moment_or_bytes(value))


def _number(value: Decimal | float) -> str:
    finite = value.is_finite() if isinstance(value, Decimal) else isfinite(value)
    if not finite:
        raise HandlerError(f"Number {shown(value)} cannot be sent: JSON has finite numbers only.")
    return str(value) if isinstance(value, Decimal) else float.__repr__(value)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise HandlerError(f"Name {shown(name)} of a field cannot be used: expected text that is not empty.")
    return json.dumps(name, ensure_ascii=False)


def _sorted(members: AbstractSet[Any]) -> list[Any]:
    try:
        return sorted(members)
    except TypeError:
        raise HandlerError(f"Set {shown(set(members))} cannot be sent: expected members of one type.") from None


def _moment_or_bytes(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return base64_text(bytes(value))
    if isinstance(value, datetime):
        try:
            return datetime_text(value)
        except Unreadable as why:
            raise HandlerError(f"Value {shown(value)} cannot be sent: {why}.") from None
    if isinstance(value, date):
        return value.isoformat()
    raise HandlerError(
        f"Value {shown(value)} of type {type(value).__name__} cannot be sent: expected text, a number, bytes, bool, "
        "None, a list, a dict with text keys, a set, a datetime with time zone or a date."
    )


class Root(NamedTuple):
    """An item whose documents are reconciled with the item as it is now; the changes are the cause."""

    route: Route
    item: ItemKey
    fields: Fields
    changes: tuple[Change, ...] = ()
    idle: tuple[ItemKey, ...] = ()  # referents with a backlink of the item that it may no longer need

    @property
    def is_new(self) -> bool:
        """Whether no earlier run of the item is likely."""
        return any(change.event == "INSERT" and change.item == self.item for change in self.changes)

    @property
    def follows_its_image(self) -> bool:
        # Its documents are made of no other item, and of no time.
        return not (self.route.reads_others or self.route.asks_time)

    def joined(self, other: "Root") -> "Root":
        return self._replace(changes=(*self.changes, *other.changes), idle=(*self.idle, *other.idle))

    @property
    def key_text(self) -> str:
        return joined_key(self.item[1:])

    def __str__(self) -> str:
        what = " and its parts" if self.route.parts else ""
        return f"{self.route.name}: document of {self.key_text}{what}"


def root_of(work: Work) -> Root:
    """The item whose document a change belongs to: the item itself, or the parent of a part."""
    if work.role == SOURCE:
        return Root(work.route, work.item, work.fields, tuple(work.changes), tuple(work.idle))
    return Root(work.route, *root_of_part(work.route, work.fields), tuple(work.changes))


class Gathered(NamedTuple):
    """An item as it is now, and its parts; the item is empty if there is none."""

    image: Image
    document_parts: Parts


def known_items(root: Root) -> Iterator[ItemKey]:
    """The items of a document with known keys: the source, and parts without fields of their own."""
    yield root.item
    for part in root.route.parts:
        if part.prefix(root.fields) is None:
            yield (part.key.table.name, *part.key.compose(root.fields))


def gathered(root: Root, engine: Engine, stored: StoredItems, found: "LookedUp | None" = None) -> Gathered:
    """The item and parts of a document; ``stored`` has the items that ``known_items`` names.

    ``found``: the item with its referents, for a search that looks others up. Raises ``Unprocessable`` for more parts
    than one document may have, and the error of a reference that cannot be composed.
    """
    if found is not None and found.error is not None:
        raise found.error
    image = image_of(stored.get(root.item)) if found is None else found.image
    if not image or not root.route.parts:
        return Gathered(image, Parts())
    from streamfold.commit.collections import RootItem, parts_of, ranges_of, read_ranges  # few searches gather parts

    gathering = RootItem(root.route, root.item, root.fields)
    return Gathered(image, parts_of(gathering, read_ranges(engine, ranges_of([gathering]), stored)))


class MadeDocuments(NamedTuple):
    """The documents of a handler for an item."""

    alias: str  # the real name that its documents are written through
    bodies: Mapping[str, bytes]  # documents as JSON, by id


def made(root: Root, found: Gathered, settings: Settings) -> MadeDocuments:
    """The documents of an item; none if the item is absent. Raises the errors of the handler, and ``HandlerError``."""
    index = index_of(root.route, root.fields, settings)
    documents = documents_of(root.route, found, root.fields) if found.image else ()
    bodies: dict[str, bytes] = {}
    for document in documents:
        name = document_id(root.route, root.item, root.fields, document)
        if name in bodies:
            raise HandlerError(
                f"Handler {root.route.name!r} gave two documents with the id {shown(name)}: expected one, or an id= "
                'with a field that differs between them, id="{product_id}#{language}".'
            )
        bodies[name] = _with_code(document_text(document.fields), code_of(root.route.function))
    return MadeDocuments(index, bodies)


def documents_of(route: Route, found: Gathered, fields: Fields) -> list[Document]:
    """The documents that the function gives for an existing item."""
    if passes_over(route, found.image.raw):
        return []
    more = (found.document_parts,) if route.parts else ()
    return yielded(route, found.image, fields, Document, more=more, most=SEVERAL)


def index_of(route: Route, fields: Fields, settings: Settings) -> str:
    """The real name of the alias through which the documents of an item with these fields are written."""
    name = index_name(index_template(route, settings), fields)
    return name if options_of(route).replaces is None else name + NEXT


def index_template(route: Route, settings: Settings) -> KeyComponent:
    """The template of the real names of a search's index, by the settings."""
    index = options_of(route).index
    return real_template(index, settings.real_index(setting_name(index)))


def document_id(route: Route, item: ItemKey, fields: Fields, document: Document) -> str:
    """The id of a document. Raises ``HandlerError`` if the document lacks a field of the id."""
    options = options_of(route)
    if options.id is None:
        return key_id(item, names_table=options.names_table)
    try:
        return shortened_id(str(options.id.compose({**document.fields, **fields})))
    except KeyValueError as error:
        raise HandlerError(f"Handler {route.name!r} gave a document without a usable id: {error.marked}") from error


def only_id(route: Route, item: ItemKey, fields: Fields) -> str:
    """The id of an item's one document, if it follows from the item's key."""
    return document_id(route, item, fields, Document())


def hidden(at_seconds: float) -> bytes:
    """The document in place of one that is gone."""
    return f'{{"{GONE}":true,"{GONE_AT}":{int(at_seconds * 1000)}}}'.encode()


def _with_code(body: bytes, code: str) -> bytes:
    return body[:-1] + (b"," if len(body) > len(b"{}") else b"") + f'"{CODE}":"{code}"}}'.encode()


@lru_cache(maxsize=1000)
def code_of(function: Any) -> str:
    """A digest of a handler's source, the same wherever the code is stored; empty without source."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return sha256(source.encode()).hexdigest()[:CODE_DIGITS]


def changes_nothing(root: Root) -> bool:
    """Whether each change of a root leads from documents to equal ones.

    Every change is compared, not the first and the last only: of two changes that cancel each other out, one may have
    been indexed alone. With a part, a lookup, an unknown image or a handler that raises, nothing is skipped.
    """
    if not root.follows_its_image:
        return False
    return all(_is_equal(root, change) for change in root.changes)


def _is_equal(root: Root, change: Change) -> bool:
    if not (change.item == root.item and change.has_old and change.has_new):
        return False
    try:
        return _sent_documents(root, change.old) == _sent_documents(root, change.new)
    except Exception:  # noqa: BLE001 - the run itself reports the error
        return False


def _sent_documents(root: Root, image: Image) -> list[bytes]:
    """The documents as text to be sent: for Python ``True`` equals 1, and for an index it does not."""
    if not image:
        return []
    return [
        document_text(document.fields) for document in documents_of(root.route, Gathered(image, Parts()), root.fields)
    ]


def previewed(root: Root, settings: Settings) -> list[Preview]:
    """The documents that a run would send for an item.

    Those of parts, of looked up items, or of an unknown image are only named.
    """
    newest = max(root.changes, key=lambda change: change.version_text)
    if not root.follows_its_image or newest.item != root.item or not newest.has_new:
        return [Preview(str(root))]
    with ItemFault() as fault, localcontext(EXACT):
        return _documents(root, newest.new, settings)
    assert fault.error is not None
    return [Preview(f"{root}, which fails: {type(fault.error).__name__}: {reason(fault.error)}")]


def _documents(root: Root, image: Image, settings: Settings) -> list[Preview]:
    name = root.route.name
    found = made(root, Gathered(image, Parts()), settings)
    sent = [
        Preview(f"{name}: document {own} of index {found.alias}", own_fields(parsed(body)))
        for own, body in found.bodies.items()
    ]
    if sent:
        return sent
    gone = "hide" if options_of(root.route).deletes == "kept" else "delete"
    if keeps_ids(root.route):
        return [Preview(f"{name}: {gone} all documents of {root.key_text} of index {found.alias}")]
    own = only_id(root.route, root.item, root.fields)
    return [Preview(f"{name}: {gone} document {own} of index {found.alias}")]


@dataclass(slots=True, eq=False)
class RootRun:
    """The progress of one root: raised, read, sent."""

    root: Root
    key: StateKey  # of its counter
    number: int  # of its counter, before its items were read
    ids: frozenset[str]  # that may be in the index, as the counter's item had them
    held: tuple[ItemKey, ...] = ()  # references in the counter's item: their backlinks are in place
    expires: bool = False  # the counter's item has a time to live, as code that knew no lookup gives it
    found: "LookedUp | None" = None  # the item with its referents, of a search that looks others up
    alias: str = ""  # that its documents belong to
    moments: str = ""  # that its handler asked for last, as the counter's item has them
    times: "Times | None" = None  # the moments that it asks for now
    actions: list[Action] = field(default_factory=list)
    gone: frozenset[str] = frozenset()  # ids without a document any more

    @classmethod
    def of(cls, root: Root, key: StateKey, counter: Mapping[str, Any], number: int = 0) -> "RootRun":
        """The run of a counter's item; ``number`` is that of a root without one."""
        text = str(counter.get("refs", ""))
        ids, references = frozenset(counter.get("ids", ())), stored_references(text)
        moments = moments_of(text)
        return cls(root, key, int(counter.get("n", number)), ids, references, "ttl" in counter, moments=moments)

    @property
    def references(self) -> tuple[ItemKey, ...]:
        # What the item refers to, with backlinks in place.
        return self.found.references if self.found is not None else ()

    @property
    def new_ids(self) -> frozenset[str]:
        """The ids that are sent and not in the counter's item, if ids are kept."""
        if not keeps_ids(self.root.route):
            return frozenset()
        return frozenset(action.id for action in self.actions) - self.ids


def reconcile(
    each: RootRun, engine: Engine, stored: StoredItems, settings: Settings, gone: bytes | None, *, hides: bool = True
) -> None:
    """Makes the documents of a root, which are its actions then. Raises the errors of the handler.

    gone: the body in place of a document that is not made any more; None: the document is deleted.
    hides: such bodies are sent; else these documents are left as they are.
    """
    root = each.root
    each.alias, bodies = _made_now(each, engine, stored, settings)
    ids = frozenset(bodies)
    known = each.ids if keeps_ids(root.route) else frozenset([only_id(*root[:3])])
    each.gone = known - ids if hides else frozenset()
    if len(each.ids | ids) > IDS_MAX:
        raise Unprocessable(f"An item would have over {IDS_MAX} documents, with those that are to be hidden.")
    each.actions = [Action(each.alias, name, each.number, body) for name, body in bodies.items()]
    each.actions += [Action(each.alias, name, each.number, gone) for name in sorted(each.gone)]


def _made_now(each: RootRun, engine: Engine, stored: StoredItems, settings: Settings) -> MadeDocuments:
    """The documents of a root; notes the moments that its handler asks for."""
    root, found = each.root, each.found
    if found is None or found.at is None or not root.route.asks_time:
        return made(root, gathered(root, engine, stored, found), settings)
    from streamfold.ledger.wakes import Times  # few searches ask for the time
    from streamfold.routes.lookups import at_time
    from streamfold.routes.moments import Now

    at = found.at
    now = Now(at)
    if found.image:
        found = found._replace(image=at_time(found.image, root.route.asks_time, now))
    result = made(root, gathered(root, engine, stored, found), settings)
    now.end()
    each.times = Times(
        each.found.at if each.found and each.found.at else 0, now.came_microseconds, now.next_microseconds
    )
    return result


def moments_noted(runtime: Runtime, each: RootRun) -> bool:
    """Whether the counter's item has the moments that a root's handler asked for, and the wake of the next one.

    They are written on the run's number, once its documents are sent: a process that dies before leaves the wake in
    place. Refused: a newer run has begun, and the root begins again, because that run may die.
    """
    if each.times is None:
        return True
    from streamfold.ledger.wakes import Waits, wake_writes  # few searches ask for the time

    root, before = each.root, Waits.of(f"[{each.moments}]")
    after = before.after(each.times)
    if after == before:
        return True
    writes = wake_writes(runtime.application.name, root.route.name, root.item, before, after, each.times)
    expires = None if each.references or each.ids else after.wake is None
    text = stored_text({}, each.references, after.text)
    write = CounterWrite(each.key, each.number, references=text, expires=expires)
    return runtime.engine.transact([write, *writes], runtime.expires_at) is None


def known_sources(engine: Engine, runs: Iterable[RootRun]) -> StoredItems:
    """The items of roots with known keys, read consistently: after the counters, whose numbers the runs have."""
    items = dict.fromkeys(item for each in runs for item in known_items(each.root))
    return engine.read_sources(items) if items else {}


def look_up_referents(
    runtime: Runtime, runs: Iterable[RootRun], stored: StoredItems, *, notes: bool = True, renews: bool = False
) -> None:
    """Reads what the items of roots refer to: after these items, and after backlinks of new references are put.

    ``notes``: they are put, and the counters' items hold the references then. ``renews``: backlinks of references that
    the counters' items hold are put too, where one was lost. Raises ``EngineError`` if a backlink cannot be put, or a
    referent cannot be read.
    """
    looking = [each for each in runs if each.root.route.is_revisited]
    if not looking:
        return
    from streamfold.commit.referents import Asked, lacking_backlinks, look_up  # few searches look others up

    lost = lacking_backlinks(runtime, [(*each.root[:2], each.held) for each in looking]) if renews else {}
    asked = [
        Asked(
            each.root.route,
            each.root.item,
            image_of(stored.get(each.root.item)),
            each.root.fields,
            {*each.held}.difference(lost.get((each.root.route.name, each.root.item), ())),
            since_of(each.moments),
        )
        for each in looking
    ]
    for each, found in zip(looking, look_up(runtime, asked, notes=notes), strict=True):
        each.found = found
    if notes:
        note_references(runtime, looking)


def note_references(runtime: Runtime, runs: Iterable[RootRun]) -> None:
    """Writes references that came or went to the counters' items, and deletes the backlinks of those that went.

    Each root has one transaction, on its number. The number refuses it if a newer run has begun, which relies on the
    backlinks that the counter's item held: that run writes its own. Without an answer the next run does so. Until then
    there are backlinks too many, never too few.
    """
    from streamfold.commit.transactions import in_slots

    calls = []
    for each in runs:
        root, references = each.root, each.references
        if each.found is not None and each.found.error is not None:
            continue  # its references could not be composed: those before stay
        before = dict.fromkeys((*each.held, *root.idle))
        gone = dropped_backlinks(runtime.application.name, root.route.name, root.item, before, references)
        if gone or {*references} - {*each.held} or (references and each.expires):
            expires = False if references else None if each.ids else True
            if each.moments:
                expires = None
            text = stored_text({}, references, each.moments)
            write = CounterWrite(each.key, each.number, references=text, expires=expires)
            calls.append((each.key, partial(runtime.engine.transact, [write, *gone], runtime.expires_at)))
    failed = [answer for _, answer in in_slots(runtime.slots, calls) if isinstance(answer, Exception)]
    for error in failed:
        if not isinstance(error, EngineUnavailable):
            raise error


def noted(each: RootRun, engine: Engine, expires_at: int) -> bool:
    """Whether all ids that are sent are in the counter's item, so that every later run sees them.

    A newer run that did not see a new id would not hide its document. So a root without all ids begins again.
    """
    write = CounterWrite(each.key, each.number, added=each.new_ids, expires=False)
    return not each.new_ids or engine.transact([write], expires_at) is None


def gone_body(root: Root, at_seconds: float) -> bytes | None:
    """The body in place of a root's document that is gone; None if the document is deleted."""
    return hidden(at_seconds) if options_of(root.route).deletes == "kept" else None


def aliases_of(roots: Iterable[Root], settings: Settings) -> list[str]:
    """The aliases of the roots' documents, each once."""
    found: dict[str, None] = {}
    for root in roots:
        with suppress(HandlerError):  # reported when the root's documents are made
            found[index_of(root.route, root.fields, settings)] = None
    return list(found)
