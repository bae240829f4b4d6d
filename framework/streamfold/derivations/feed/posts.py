"""The row of one post in one reader's feed: what it is made of, and when it may be written.

A row bears the version of its post and the version of its edge. It is only replaced by a pair that is not older on
either side. Where neither pair is newer, both mirrors are read again: each is at least as new as what the row holds.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from streamfold.commit.transactions import Several, in_slots, not_its_row, send, slices
from streamfold.derivations.feed.kind import options_of, post_seconds, shown_seconds, sort_position_from
from streamfold.derivations.yielded import split, target_of, yielded
from streamfold.engines import Entries
from streamfold.errors import Contended, EngineError, HandlerError, ItemFault, damaged, shown
from streamfold.keys.key import Key
from streamfold.keys.table import PARTNER_VERSION, VERSION
from streamfold.ledger.state_keys import side_partition
from streamfold.records.change import ItemKey, item_key, item_name
from streamfold.records.encoded import ITEM_BYTES_MAX, to_json
from streamfold.records.images import Image
from streamfold.records.values import RawImage, encode
from streamfold.routes.aggregates import Aggregate
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import PutPostRow, PutStoredCopy, Reason, StateKey

if TYPE_CHECKING:
    from streamfold.writes.guarded import RowKey
POSTS, EDGES = "posts", "edges"
"""The two sides of a feed."""
NEVER = ""
"""The version of what was never mirrored."""
EDGE_DIGITS = 32
"""Hexadecimal digits that place an edge, 128 bits: lanes are ranges of the first."""
SEGMENT_DIGITS = "0123456789abcdef"
BESIDE_BYTES_MAX = 4096
"""What stands beside an item in its mirror: a key of 3,072 bytes at most, a version, a time."""
END = "g"
"""Behind every place of an edge."""

ROWS_A_CALL = 25
"""Rows of one call where calls are made side by side (API Reference, BatchExecuteStatement)."""
ROUNDS_MAX = 8
"""Times that both mirrors are read again before a pair counts as contended."""
NAMES_MAX = 50
"""Names of attributes that are remembered to be taken away from rows that have them from before."""
ONE_ROW = 1, "because a feed shows a post to a reader once"


class StoredCopy(NamedTuple):
    """A post or an edge as the newest change that was heard of left it."""

    version: str
    item: ItemKey
    raw: RawImage  # of one that is gone: its key, and in a feed that keeps rows what it was
    gone: bool
    keep_seconds: int | None = None  # of a post: how long its rows are shown, by the option when it was mirrored

    @property
    def image(self) -> Image:
        return Image(self.raw)

    @property
    def text(self) -> str:
        kept = {} if self.keep_seconds is None else {"keep": self.keep_seconds}
        return to_json({"v": self.version, "i": self.raw, **({"gone": True} if self.gone else {}), **kept})

    @classmethod
    def of(cls, text: str, key: Key) -> "StoredCopy":
        """Raises ``EngineError`` for a text that is none of a mirror."""
        try:
            read = json.loads(text)
            raw = read["i"]
            item = item_key({name: raw[name] for name in key.table.attributes}, key.table)
            keep = read.get("keep")
            return cls(read["v"], item, raw, read.get("gone", False), None if keep is None else int(keep))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(f"What a feed keeps of an item of {key!r}") from None


class Sided(NamedTuple):
    """One item of a side, by its key."""

    side: str
    item: ItemKey
    fields: Fields


def gone(version: str, item: ItemKey, key: Key, raw: RawImage | None = None) -> StoredCopy:
    """The mirror of an item that is not there."""
    return StoredCopy(version, item, {**(raw or {}), **encode(key.attributes(*item[1:]))["M"]}, gone=True)


def side_key(route: Route, side: str) -> Key:
    """The template of a side."""
    return route.sources[0] if side == POSTS else options_of(route).audience


def check_room(route: Route, side: str, raw: RawImage) -> None:
    """Raises ``HandlerError`` for an item that leaves no room for what stands beside it in its mirror.

    Readers ask it of posts that they pull: one that is refused when it is pushed must not appear there.
    """
    text = to_json(raw)
    if len(text) * 4 > ITEM_BYTES_MAX and (size := len(text.encode())) > ITEM_BYTES_MAX - BESIDE_BYTES_MAX:
        raise HandlerError(
            f"Feed {route.name!r} keeps a copy of each item of {side_key(route, side)!r}, and this one has {size} "
            f"bytes with its types: an item takes {ITEM_BYTES_MAX} at most. Keep the large part in an item of its own."
        )


class StoredCopies:
    """The mirrors of one feed in a state."""

    def __init__(self, runtime: Runtime, route: Route) -> None:
        self.runtime = runtime
        self.application = runtime.application.name
        self.route = route

    def key_of(self, side: str) -> Key:
        """The template of a side."""
        return side_key(self.route, side)

    def post_from(self, seconds: float) -> str:
        """The place that no post of this time, or of a later one, lies before."""
        return sort_position_from(self.key_of(POSTS), options_of(self.route).order, seconds)

    def fields_of(self, side: str, item: ItemKey) -> Fields:
        """The fields of an item's key."""
        fields = self.key_of(side).match_values(*item[1:])
        assert fields is not None, "a mirror is of its template"
        return fields

    def partition(self, side: str, fields: Fields) -> str:
        """The partition of the mirrors of one side that join with these fields."""
        return side_partition(side, self.application, self.route.name, joined_text(self.route, fields))

    def place(self, sided: Sided) -> StateKey:
        """The key of an item's mirror."""
        partition = self.partition(sided.side, sided.fields)
        if sided.side == POSTS:
            return StateKey(partition, str(sided.item[2]))
        return StateKey(
            partition, sha256(item_name(sided.item).encode(errors="surrogatepass")).hexdigest()[:EDGE_DIGITS]
        )

    def write(self, sided: Sided, copy: StoredCopy, now: float) -> PutStoredCopy:
        """The write of a mirror. Raises ``HandlerError`` for an item that leaves no room for what stands beside it."""
        text = copy.text
        if len(text) * 4 > ITEM_BYTES_MAX:
            check_room(self.route, sided.side, copy.raw)
        return PutStoredCopy(self.place(sided), text, copy.version, self._expires(sided, copy, now))

    def _expires(self, sided: Sided, copy: StoredCopy, now: float) -> int | None:
        keep = options_of(self.route).keep_seconds + self.runtime.retention_seconds
        if sided.side == POSTS:
            return int(max(post_seconds(self.route, sided.fields) + keep, now + self.runtime.retention_seconds))
        return int(now) + keep if copy.gone else None

    def read(self, asked: Sequence[Sided]) -> list[StoredCopy]:
        """The mirrors of items as they are now."""
        places = [self.place(each) for each in asked]
        found = self.runtime.engine.read_state(places, consistent=True)
        return [
            StoredCopy.of(found[place]["s"], self.key_of(each.side))
            if place in found
            else gone(NEVER, each.item, self.key_of(each.side))
            for place, each in zip(places, asked, strict=True)
        ]

    def orphans(self, keys: Iterable[StateKey]) -> list[ItemKey]:
        """The items that these state items mirror, gone or not.

        The mirror of an item that only older code saw removed still shows it. A gone item may still have rows: the
        process that mirrored it died before it visited the pairs, and older code took the record then.
        """
        found: list[ItemKey] = []
        for side in (POSTS, EDGES):
            prefix = side_partition(side, self.application, self.route.name, "")
            own = [key for key in keys if key.pk.startswith(prefix)]
            stored = self.runtime.engine.read_state(own, consistent=True) if own else {}
            found += [StoredCopy.of(each["s"], self.key_of(side)).item for each in stored.values()]
        return found

    def page(self, side: str, partition: str, wanted: Entries) -> list[tuple[str, StoredCopy]]:
        """Some mirrors of a side, strongly consistent, with their places."""
        key = self.key_of(side)
        entries = self.runtime.engine.read_entries(wanted._replace(partition=partition))
        return [(place, StoredCopy.of(text, key)) for place, text in entries]


def joined_text(route: Route, fields: Fields) -> str:
    """What joins posts and edges: the partition key of the posts."""
    return str(route.sources[0].partition.compose(fields))


def segment_bounds(number: int, lanes: int) -> tuple[str, str]:
    """Between which places of edges a lane lies; no edge lies at either of the two."""
    first, last = 16 * number // lanes, 16 * (number + 1) // lanes
    return SEGMENT_DIGITS[first], SEGMENT_DIGITS[last] if last < len(SEGMENT_DIGITS) else END


class PostAndEdge(NamedTuple):
    """A post and an edge, as they are mirrored."""

    post: StoredCopy
    edge: StoredCopy


PostFails = Callable[[PostAndEdge, Exception], None]


def is_shown(route: Route, pair: PostAndEdge) -> bool:
    """Whether both are there; in a feed that keeps rows, an edge that is gone shows what it brought."""
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
    """The attributes of a row; None if the function gives none. Raises what it raises, and ``HandlerError``."""
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
    """The write of a pair's row. Raises what the function raises, and ``HandlerError``.

    fresh: no row is expected to be there. names: attributes that a row may have from before.
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
    """The attributes that rows of these pairs have; a pair on which the function raises tells none."""
    names: dict[str, None] = {}
    for pair in posts:
        with suppress(Exception):
            if is_shown(route, pair):
                values = row_values(route, pair.post.image, pair.edge.image, fields_of(route, pair))
                names |= dict.fromkeys(values or ())
    return tuple(names)[:NAMES_MAX]


class PostRows:
    """Writes the rows of pairs of one feed."""

    def __init__(self, copies: StoredCopies) -> None:
        self.copies = copies
        self.route = copies.route
        self.runtime = copies.runtime
        self.names: dict[str, None] = {}  # attributes of rows, as far as they were seen

    def visit(self, posts: Sequence[PostAndEdge], fails: PostFails, *, fresh: bool, copied: int | None = None) -> int:
        """Leads the rows of pairs to what these are now, or newer; returns how many were written.

        fresh: rows are expected not to be there. copied: how many of the first pairs make a row where none is; None:
        all. ``fails`` is told of pairs whose row cannot be made. Raises ``EngineUnavailable`` and ``NotStarted``.
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
            self._remember(write)
        self._drop_absent(wanted)

        def again(key: "RowKey") -> PutPostRow:
            write, pair = wanted[key]
            return self._again(write, pair)

        def contended(key: "RowKey", error: Exception) -> None:
            fails(wanted[key][1], error)

        return write_rows(self.runtime, self.route, [write for write, _ in wanted.values()], again, contended)

    def _drop_absent(self, wanted: "dict[RowKey, tuple[PutPostRow, PostAndEdge]]") -> None:
        """Leaves out rows that are only replaced and are not there: a read costs less than a refused write."""
        replacing = [key for key, (write, _) in wanted.items() if write.replaces]
        there = self.runtime.engine.read_rows(replacing) if replacing else {}
        for key in replacing:
            if key not in there:
                del wanted[key]

    def _remember(self, write: PutPostRow) -> None:
        for name in write.attributes or ():
            if len(self.names) < NAMES_MAX:
                self.names[name] = None

    def _again(self, write: PutPostRow, pair: PostAndEdge) -> PutPostRow:
        """The write of a row, of what both mirrors hold by now."""
        sides = [
            Sided(side, copy.item, self.copies.fields_of(side, copy.item))
            for side, copy in zip((POSTS, EDGES), pair, strict=True)
        ]
        return made(self.route, PostAndEdge(*self.copies.read(sides)), fresh=False)._replace(replaces=write.replaces)


Again = Callable[["RowKey"], PutPostRow]
"""Makes the write of a row of what both sides are by then."""


def _raised(_: "RowKey", error: Exception) -> None:
    raise error


def write_rows(
    runtime: Runtime,
    route: Route,
    writes: Sequence[PutPostRow],
    again: Again,
    fails: "Callable[[RowKey, Exception], None]" = _raised,
) -> int:
    """Writes rows by the rule of pairs, many at a time; returns how many were written.

    ``fails`` is told of rows that are contended, or none of this feed.
    """
    left = _put(runtime, writes)
    written = len(writes) - len(left)
    alone = {write.key: write for write in writes}
    for key in left:
        try:
            written += apply_again(runtime, route, alone[key], partial(again, key))
        except (Contended, HandlerError) as error:
            fails(key, error)
    return written


def _put(runtime: Runtime, writes: Sequence[PutPostRow]) -> "list[RowKey]":
    """Writes rows in many calls side by side; returns the keys of those that are to be written alone."""
    left: list[RowKey] = []
    wrong: Exception | None = None
    parts = slices(runtime.slots, writes, ROWS_A_CALL)
    calls = ((Several(write.key for write in part), partial(runtime.engine.put_post_rows, part)) for part in parts)
    for _, answer in in_slots(runtime.slots, calls, stops=lambda error: isinstance(error, EngineError)):
        if isinstance(answer, Exception):
            wrong = wrong or answer
        else:
            left += answer
    if wrong is not None:
        raise wrong
    return left


def apply_again(runtime: Runtime, route: Route, write: PutPostRow, again: Callable[[], PutPostRow]) -> bool:
    """Writes one row by the rule of pairs; False where a newer pair, or no row, is there.

    again: makes the write of what both sides are by then. Raises ``Contended`` after ``ROUNDS_MAX`` rounds.
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
    raise Contended(f"Refused {ROUNDS_MAX} times in a row, because both sides of a pair change all the time.")


def _is_done(route: Route, write: PutPostRow, reason: Reason) -> bool:
    """Whether the row needs no write. Raises ``HandlerError`` for a row that is none of this feed."""
    row = reason.item
    if row is None:
        return write.replaces
    if VERSION not in row or PARTNER_VERSION not in row:
        raise not_its_row(route, write, reason)
    return bool(row[VERSION] >= write.versions[0] and row[PARTNER_VERSION] >= write.versions[1])
