"""The row of one post in one reader's feed: its attributes, and when it may be written.

A row has the version of its post and the version of its edge. It is only replaced if neither version is older. If
neither version is newer, both stored copies are read again: each is at least as new as the row.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from streamfold.commit.transactions import Several, fold_times, in_slots, not_its_row, send, slices
from streamfold.derivations.feed.options import options_of, post_seconds, shown_seconds, sort_position_from
from streamfold.derivations.yielded import split, target_of, yielded
from streamfold.engines.protocol import Entries
from streamfold.errors import Contended, EngineError, HandlerError, ItemFault, damaged, shown
from streamfold.keys.key import Key
from streamfold.keys.table import PARTNER_VERSION, VERSION
from streamfold.ledger.state_keys import side_partition
from streamfold.records.change import ItemKey, item_key, item_name
from streamfold.records.images import Image
from streamfold.records.values import ITEM_BYTES_MAX, RawImage, encode, to_json
from streamfold.routes.aggregates import Aggregate
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import PutPostRow, PutStoredCopy, Reason, StateKey

if TYPE_CHECKING:
    from streamfold.writes.guarded import RowKey
POSTS, EDGES = "posts", "edges"
"""The two sides of a feed: its posts and its edges."""
NEVER = ""
"""The version of an item without a stored copy."""
EDGE_DIGITS = 32
"""Hexadecimal digits of an edge's sort position, 128 bits: segments are ranges of the first digit."""
BESIDE_BYTES_MAX = 4096
"""Size of a stored copy beside its item: a key of 3,072 bytes at most, a version, a time."""

ROWS_A_CALL = 25
"""Rows of one call if calls are made at once (API Reference, BatchExecuteStatement)."""
ROUNDS_MAX = 8
"""Times that both stored copies are read again before their row counts as contended."""
NAMES_MAX = 50
"""Names of attributes that are remembered, to be removed from rows that have them from before."""
ONE_ROW = 1, "because a feed shows a post to a reader once"


class StoredCopy(NamedTuple):
    """A post or an edge as its newest known change left it."""

    version: str
    item: ItemKey
    raw: RawImage  # of a gone item: its key, and in a feed that keeps rows its last image
    gone: bool
    keep_seconds: int | None = None  # of a post: how long its rows are shown, by the option when the copy was stored

    @property
    def image(self) -> Image:
        return Image(self.raw)

    @property
    def text(self) -> str:
        kept = {} if self.keep_seconds is None else {"keep": self.keep_seconds}
        return to_json({"v": self.version, "i": self.raw, **({"gone": True} if self.gone else {}), **kept})

    @classmethod
    def of(cls, text: str, key: Key) -> "StoredCopy":
        """The copy from its text. Raises ``EngineError`` for another text."""
        try:
            read = json.loads(text)
            raw = read["i"]
            item = item_key({name: raw[name] for name in key.table.attributes}, key.table)
            keep = read.get("keep")
            return cls(read["v"], item, raw, read.get("gone", False), None if keep is None else int(keep))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(f"The stored copy of an item of {key!r}") from None


class Sided(NamedTuple):
    """One item of a side, by its key."""

    side: str
    item: ItemKey
    fields: Fields


def gone(version: str, item: ItemKey, key: Key, raw: RawImage | None = None) -> StoredCopy:
    """The stored copy of an item that does not exist."""
    return StoredCopy(version, item, {**(raw or {}), **encode(key.attributes(*item[1:]))["M"]}, gone=True)


def side_key(route: Route, side: str) -> Key:
    """The template of a side."""
    return route.sources[0] if side == POSTS else options_of(route).audience


def check_room(route: Route, side: str, raw: RawImage) -> None:
    """Raises ``HandlerError`` for an item that is too large for its stored copy.

    Readers call it for pulled posts: one that is refused when it is pushed must not appear there.
    """
    text = to_json(raw)
    if len(text) * 4 > ITEM_BYTES_MAX and (size := len(text.encode())) > ITEM_BYTES_MAX - BESIDE_BYTES_MAX:
        raise HandlerError(
            f"Feed {route.name!r} keeps a copy of each item of {side_key(route, side)!r}, and this one has {size} "
            f"bytes with its types: an item takes {ITEM_BYTES_MAX} at most. Keep the large part in an item of its own."
        )


class StoredCopies:
    """The stored copies of one feed in a state."""

    def __init__(self, runtime: Runtime, route: Route) -> None:
        self.runtime = runtime
        self.application = runtime.application.name
        self.route = route

    def key_of(self, side: str) -> Key:
        """The template of a side."""
        return side_key(self.route, side)

    def post_from(self, seconds: float) -> str:
        """A sort position before all posts of this time or of a later one."""
        return sort_position_from(self.key_of(POSTS), options_of(self.route).order, seconds)

    def fields_of(self, side: str, item: ItemKey) -> Fields:
        """The fields of an item's key."""
        fields = self.key_of(side).match_values(*item[1:])
        assert fields is not None, "a stored copy is of its template"
        return fields

    def partition(self, side: str, fields: Fields) -> str:
        """The partition of the stored copies of one side that join with these fields."""
        return side_partition(side, self.application, self.route.name, joined_text(self.route, fields))

    def copy_key(self, sided: Sided) -> StateKey:
        """The key of an item's stored copy."""
        partition = self.partition(sided.side, sided.fields)
        if sided.side == POSTS:
            return StateKey(partition, str(sided.item[2]))
        return StateKey(
            partition, sha256(item_name(sided.item).encode(errors="surrogatepass")).hexdigest()[:EDGE_DIGITS]
        )

    def write(self, sided: Sided, copy: StoredCopy, now: float) -> PutStoredCopy:
        """The write of a stored copy. Raises ``HandlerError`` for an item that is too large for it."""
        text = copy.text
        if len(text) * 4 > ITEM_BYTES_MAX:
            check_room(self.route, sided.side, copy.raw)
        return PutStoredCopy(self.copy_key(sided), text, copy.version, self._expires(sided, copy, now))

    def _expires(self, sided: Sided, copy: StoredCopy, now: float) -> int | None:
        keep = options_of(self.route).keep_seconds + self.runtime.retention_seconds
        if sided.side == POSTS:
            return int(max(post_seconds(self.route, sided.fields) + keep, now + self.runtime.retention_seconds))
        return int(now) + keep if copy.gone else None

    def read(self, asked: Sequence[Sided]) -> list[StoredCopy]:
        """The stored copies of items, read consistently."""
        keys = [self.copy_key(each) for each in asked]
        found = self.runtime.engine.read_state(keys, consistent=True)
        return [
            StoredCopy.of(found[key]["s"], self.key_of(each.side))
            if key in found
            else gone(NEVER, each.item, self.key_of(each.side))
            for key, each in zip(keys, asked, strict=True)
        ]

    def orphans(self, keys: Iterable[StateKey]) -> list[ItemKey]:
        """The items of these stored copies, gone or not.

        The copy still shows an item whose removal only older code has seen. A gone item may still have rows, if the
        process that stored the copy died before it visited the rows, and older code took the record then.
        """
        found: list[ItemKey] = []
        for side in (POSTS, EDGES):
            prefix = side_partition(side, self.application, self.route.name, "")
            own = [key for key in keys if key.pk.startswith(prefix)]
            stored = self.runtime.engine.read_state(own, consistent=True) if own else {}
            found += [StoredCopy.of(each["s"], self.key_of(side)).item for each in stored.values()]
        return found

    def page(self, side: str, partition: str, wanted: Entries) -> list[tuple[str, StoredCopy]]:
        """Some stored copies of a side with their sort positions, read consistently."""
        key = self.key_of(side)
        entries = self.runtime.engine.read_entries(wanted._replace(partition=partition))
        return [(position, StoredCopy.of(text, key)) for position, text in entries]


def joined_text(route: Route, fields: Fields) -> str:
    """The text that joins posts and edges: the partition key of the posts."""
    return str(route.sources[0].partition.compose(fields))


class PostAndEdge(NamedTuple):
    """The stored copies of a post and of an edge."""

    post: StoredCopy
    edge: StoredCopy


PostFails = Callable[[PostAndEdge, Exception], None]


def is_shown(route: Route, pair: PostAndEdge) -> bool:
    """Whether both exist; in a feed that keeps rows, a gone edge still shows its posts."""
    return not pair.post.gone and (not pair.edge.gone or options_of(route).keeps)


def fields_of(route: Route, pair: PostAndEdge) -> Fields:
    """The fields of both keys."""
    found = [
        key.match_values(*copy.item[1:])
        for key, copy in zip((route.sources[0], options_of(route).audience), pair, strict=True)
    ]
    post, edge = found
    assert post is not None
    assert edge is not None
    return {**edge, **post}


def row_values(route: Route, post: Image, edge: Image, fields: Fields) -> dict[str, object] | None:
    """The attributes of a row; None if the function gives none. Raises its errors, and ``HandlerError``."""
    effects = yielded(route, post, fields, Row, more=(edge,), most=ONE_ROW)
    if not effects:
        return None
    target = target_of(route, effects[0])
    _, values = split(target, effects[0], fields)
    table = target.key.table
    for name, value in values.items():
        if isinstance(value, Aggregate) or name == table.ttl:
            why = "when the row expires follows from the post's key" if name == table.ttl else "a row has one source"
            raise HandlerError(f"Handler {route.name!r} gave {name}={shown(value)}: {why}. Give plain values.")
    return values


def made(route: Route, pair: PostAndEdge, *, fresh: bool, names: Sequence[str] = ()) -> PutPostRow:
    """The write of a post's row. Raises the errors of the function, and ``HandlerError``.

    fresh: no row is expected to exist. names: attributes that a row may have from before.
    """
    fields = fields_of(route, pair)
    (into,) = route.into
    values = row_values(route, pair.post.image, pair.edge.image, fields) if is_shown(route, pair) else None
    expires = int(post_seconds(route, fields)) + shown_seconds(route, pair.post.keep_seconds)
    key = (into.table.name, *into.compose(fields))
    return PutPostRow(
        key,
        values,
        (pair.post.version, pair.edge.version),
        expires,
        fresh=fresh,
        replaces=options_of(route).keeps and pair.edge.gone and not pair.post.gone,
        removed=tuple(names),
    )


def names_before(route: Route, posts: Sequence[PostAndEdge]) -> tuple[str, ...]:
    """The attributes that these rows have; a post on which the function raises adds none."""
    names: dict[str, None] = {}
    for pair in posts:
        with suppress(Exception):
            if is_shown(route, pair):
                values = row_values(route, pair.post.image, pair.edge.image, fields_of(route, pair))
                names |= dict.fromkeys(values or ())
    return tuple(names)[:NAMES_MAX]


class PostRows:
    """Writes the rows of posts and edges of one feed."""

    def __init__(self, copies: StoredCopies) -> None:
        self.copies = copies
        self.route = copies.route
        self.runtime = copies.runtime
        self.names: dict[str, None] = {}  # known attributes of rows

    def visit(self, posts: Sequence[PostAndEdge], fails: PostFails, *, fresh: bool, copied: int | None = None) -> int:
        """Writes the rows of posts and edges as they are now, or newer; returns how many were written.

        fresh: rows are expected not to exist. copied: how many of the first may make a missing row; None: all.
        ``fails`` is called for rows that cannot be made. Raises ``EngineUnavailable`` and ``NotStarted``.
        """
        wanted: dict[RowKey, tuple[PutPostRow, PostAndEdge]] = {}
        for number, pair in enumerate(posts):
            with ItemFault(EngineError) as fault:
                write = made(self.route, pair, fresh=fresh, names=tuple(self.names))
            if fault.error is not None:
                fails(pair, fault.error)
                continue
            if copied is not None and number >= copied and write.attributes is not None:
                write = write._replace(fresh=False, replaces=True)
            wanted[write.key] = write, pair
            for copy in pair:
                fold_times(self.runtime, copy.item, (write.key,))
            self._remember(write)
        self._drop_absent(wanted)

        def again(key: "RowKey") -> PutPostRow:
            write, pair = wanted[key]
            return self._again(write, pair)

        def contended(key: "RowKey", error: Exception) -> None:
            fails(wanted[key][1], error)

        return write_rows(self.runtime, self.route, [write for write, _ in wanted.values()], again, contended)

    def _drop_absent(self, wanted: "dict[RowKey, tuple[PutPostRow, PostAndEdge]]") -> None:
        """Leaves out missing rows that are only replaced: a read costs less than a refused write."""
        replacing = [key for key, (write, _) in wanted.items() if write.replaces]
        stored = self.runtime.engine.read_rows(replacing) if replacing else {}
        for key in replacing:
            if key not in stored:
                del wanted[key]

    def _remember(self, write: PutPostRow) -> None:
        for name in write.attributes or ():
            if len(self.names) < NAMES_MAX:
                self.names[name] = None

    def _again(self, write: PutPostRow, pair: PostAndEdge) -> PutPostRow:
        """The write of a row, from both stored copies as they are now."""
        sides = [
            Sided(side, copy.item, self.copies.fields_of(side, copy.item))
            for side, copy in zip((POSTS, EDGES), pair, strict=True)
        ]
        return made(self.route, PostAndEdge(*self.copies.read(sides)), fresh=False)._replace(replaces=write.replaces)


Again = Callable[["RowKey"], PutPostRow]
"""Makes the write of a row from both sides as they are then."""


def _raised(_: "RowKey", error: Exception) -> None:
    raise error


def write_rows(
    runtime: Runtime,
    route: Route,
    writes: Sequence[PutPostRow],
    again: Again,
    fails: "Callable[[RowKey, Exception], None]" = _raised,
) -> int:
    """Writes rows by the versions of both sides, many at a time; returns how many were written.

    ``fails`` is called for rows that are contended, or not of this feed.
    """
    refused = _put(runtime, writes)
    written = len(writes) - len(refused)
    by_key = {write.key: write for write in writes}
    for key in refused:
        try:
            written += write_one(runtime, route, by_key[key], partial(again, key))
        except (Contended, HandlerError) as error:
            fails(key, error)
    return written


def _put(runtime: Runtime, writes: Sequence[PutPostRow]) -> "list[RowKey]":
    """Writes rows in several calls at once; returns the keys of rows that have to be written one by one."""
    refused: list[RowKey] = []
    wrong: Exception | None = None
    groups = slices(runtime.slots, writes, ROWS_A_CALL)
    calls = ((Several(write.key for write in each), partial(runtime.engine.put_post_rows, each)) for each in groups)
    for _, answer in in_slots(runtime.slots, calls, stops=lambda error: isinstance(error, EngineError)):
        if isinstance(answer, Exception):
            wrong = wrong or answer
        else:
            refused += answer
    if wrong is not None:
        raise wrong
    return refused


def write_one(runtime: Runtime, route: Route, write: PutPostRow, again: Callable[[], PutPostRow]) -> bool:
    """Writes one row by the versions of both sides; False if the row is newer, or missing and only to be replaced.

    again: makes the write of both sides as they are then. Raises ``Contended`` after ``ROUNDS_MAX`` rounds.
    """
    for number in range(ROUNDS_MAX):
        if number:
            runtime.back_off(number - 1)
        refused = send(runtime, [write])
        if refused is None:
            return True
        (reason,) = refused.reasons
        assert reason is not None
        if _is_done(route, write, reason):
            return False
        write = again()
    raise Contended(f"Refused {ROUNDS_MAX} times in a row, because post and edge change all the time.")


def _is_done(route: Route, write: PutPostRow, reason: Reason) -> bool:
    """Whether the row needs no write. Raises ``HandlerError`` for a row that is not of this feed."""
    row = reason.item
    if row is None:
        return write.replaces
    if VERSION not in row or PARTNER_VERSION not in row:
        raise not_its_row(route, write, reason)
    return bool(row[VERSION] >= write.versions[0] and row[PARTNER_VERSION] >= write.versions[1])
