"""What a feed remembers of posts and edges: each side is mirrored in the state before the other side is read."""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from streamfold.derivations.feed.options import options_of, post_seconds
from streamfold.derivations.feed.order import place_from
from streamfold.engines import Engine, Entries
from streamfold.errors import HandlerError, damaged
from streamfold.keys.key import Key
from streamfold.ledger.state_keys import side_partition
from streamfold.limits import SECONDS_A_DAY
from streamfold.records.change import ItemKey, item_key
from streamfold.records.encoded import ITEM_BYTES_MAX, to_json
from streamfold.records.images import Image
from streamfold.records.item_names import item_name
from streamfold.records.values import RawImage, encode
from streamfold.routes.route import Fields, Route
from streamfold.settings import Settings
from streamfold.writes.guarded import PutMirror, StateKey

POSTS, EDGES = "posts", "edges"
"""The two sides of a feed."""
NEVER = ""
"""The version of what was never mirrored."""
EDGE_DIGITS = 32
"""Hexadecimal digits that place an edge, 128 bits: lanes are ranges of the first."""
LANE_DIGITS = "0123456789abcdef"
BESIDE_BYTES_MAX = 4096
"""What stands beside an item in its mirror: a key of 3,072 bytes at most, a version, a time."""
END = "g"
"""Behind every place of an edge."""


class Mirror(NamedTuple):
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
    def of(cls, text: str, key: Key) -> "Mirror":
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


def gone(version: str, item: ItemKey, key: Key, raw: RawImage | None = None) -> Mirror:
    """The mirror of an item that is not there."""
    return Mirror(version, item, {**(raw or {}), **encode(key.attributes(*item[1:]))["M"]}, gone=True)


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


class Mirrors:
    """The mirrors of one feed in a state."""

    def __init__(self, application: str, route: Route, engine: Engine, settings: Settings) -> None:
        self.application = application
        self.route = route
        self.engine = engine
        self.retention_seconds = settings.retention_days * SECONDS_A_DAY

    def key_of(self, side: str) -> Key:
        """The template of a side."""
        return side_key(self.route, side)

    def post_from(self, seconds: float) -> str:
        """The place that no post of this time, or of a later one, lies before."""
        return place_from(self.key_of(POSTS), options_of(self.route).order, seconds)

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

    def write(self, sided: Sided, mirror: Mirror, now: float) -> PutMirror:
        """The write of a mirror. Raises ``HandlerError`` for an item that leaves no room for what stands beside it."""
        text = mirror.text
        if len(text) * 4 > ITEM_BYTES_MAX:
            check_room(self.route, sided.side, mirror.raw)
        return PutMirror(self.place(sided), text, mirror.version, self._expires(sided, mirror, now))

    def _expires(self, sided: Sided, mirror: Mirror, now: float) -> int | None:
        keep = options_of(self.route).keep_seconds + self.retention_seconds
        if sided.side == POSTS:
            return int(max(post_seconds(self.route, sided.fields) + keep, now + self.retention_seconds))
        return int(now) + keep if mirror.gone else None

    def read(self, asked: Sequence[Sided]) -> list[Mirror]:
        """The mirrors of items as they are now."""
        places = [self.place(each) for each in asked]
        found = self.engine.read_state(places, consistent=True)
        return [
            Mirror.of(found[place]["s"], self.key_of(each.side))
            if place in found
            else gone(NEVER, each.item, self.key_of(each.side))
            for place, each in zip(places, asked, strict=True)
        ]

    def swept(self, keys: Iterable[StateKey]) -> list[ItemKey]:
        """The items that these state items mirror, gone or not.

        The mirror of an item that only older code saw removed still shows it. A gone item may still have rows: the
        process that mirrored it died before it visited the pairs, and older code took the record then.
        """
        found: list[ItemKey] = []
        for side in (POSTS, EDGES):
            prefix = side_partition(side, self.application, self.route.name, "")
            own = [key for key in keys if key.pk.startswith(prefix)]
            stored = self.engine.read_state(own, consistent=True) if own else {}
            found += [Mirror.of(each["s"], self.key_of(side)).item for each in stored.values()]
        return found

    def page(self, side: str, partition: str, wanted: Entries) -> list[tuple[str, Mirror]]:
        """Some mirrors of a side, strongly consistent, with their places."""
        key = self.key_of(side)
        entries = self.engine.read_entries(wanted._replace(partition=partition))
        return [(place, Mirror.of(text, key)) for place, text in entries]


def joined_text(route: Route, fields: Fields) -> str:
    """What joins posts and edges: the partition key of the posts."""
    return str(route.sources[0].partition.compose(fields))


def lane_bounds(number: int, lanes: int) -> tuple[str, str]:
    """Between which places of edges a lane lies; no edge lies at either of the two."""
    first, last = 16 * number // lanes, 16 * (number + 1) // lanes
    return LANE_DIGITS[first], LANE_DIGITS[last] if last < len(LANE_DIGITS) else END
