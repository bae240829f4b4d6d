"""How a feed reaches the followers of one author: posts are pushed to them, or pulled when they read.

The mode is one more thing with a version that is joined with edges: the row that tells a reader to pull bears the
revision of the mode and the version of the edge, and is written by the rule of pairs. While the mode is changed both
ways are open: a post that is mirrored before the change is pulled, one that is mirrored after it is pushed.

| mode        | posts are | readers are told to pull | it goes on                                                     |
| ----------- | --------- | ------------------------ | -------------------------------------------------------------- |
| `push`      | pushed    | what is before `until`   | to `flipping` if a fan-out finds more edges than `pull_above`  |
| `flipping`  | pushed    | one after another        | to `pull` when all of them are told                            |
| `pull`      | mirrored  | all                      | to `returning` if a count finds too few edges                  |
| `returning` | pushed    | all                      | to `push`, `until` the newest post that is mirrored then       |

A reader who pulls sees a post before its record is delivered. So that none goes until its row is pushed, readers are
told to pull posts of the near future too (``PULLED_AHEAD_SECONDS``): these are pulled and pushed.
"""

import json
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from streamfold.derivations.feed.mirrors import EDGES, POSTS, Mirror, Mirrors, Sided, joined_text
from streamfold.derivations.feed.options import options_of
from streamfold.derivations.feed.pairs import write_rows
from streamfold.engines import Engine, Entries
from streamfold.errors import damaged
from streamfold.keys.key import PARTITION_BYTES_MAX
from streamfold.keys.table import RESERVED_PREFIX
from streamfold.ledger.state_keys import audience_key
from streamfold.limits import SECONDS_A_DAY
from streamfold.records.encoded import to_json
from streamfold.routes.route import Fields, Route
from streamfold.run import Run
from streamfold.writes.guarded import PutPair, RowKey, StateKey

Mode = Literal["push", "flipping", "pull", "returning"]
PULL = RESERVED_PREFIX + "pull#"
"""Begins the partition of the rows that tell a reader whom to pull: no key of an application begins so."""
EDGE = "edge"
"""The attribute of such a row that holds the edge, as one text: the function gets it beside each pulled post."""
UNTIL = "until"
"""The attribute that says up to which post a reader pulls; absent while all posts are pulled."""
KEEP = "keep"
"""The attribute that says for how many seconds a pulled post is shown, by the option when the author was switched."""
REVISION_DIGITS = 10
BACK_BELOW = 0.8
"""The share of ``pull_above`` below which an audience is pushed to again."""
COUNTED_SECONDS = SECONDS_A_DAY
"""How often the audience of a pulled author is counted, at most."""
PULLED_AHEAD_SECONDS = 2 * SECONDS_A_DAY
"""How far ahead of the time at which posts are pushed again they are pulled too: longer than readers are being told."""
FAR = 253_402_300_799
"""The end of the year 9999: what a reader is to pull does not expire while its author is pulled."""


class Audience(NamedTuple):
    """How the audience of one author is reached."""

    mode: Mode = "push"
    revision: int = 0  # 0: it was pushed to ever since
    until: str = ""  # the place of the last post that is pulled; "": none is, or all
    counted: int = 0  # when its edges were last counted, epoch seconds
    tells: bool = False  # readers are being told of the mode
    keep_seconds: int | None = None  # how long posts are shown, by the option when the mode was last changed

    @property
    def pulls(self) -> bool:
        """Whether readers are told to pull all posts."""
        return self.mode != "push"

    @property
    def version(self) -> str:
        """The revision as one of the versions of a pair."""
        return f"{self.revision:0{REVISION_DIGITS}}"


class Audiences:
    """The audiences of one feed in a state."""

    def __init__(self, mirrors: Mirrors, engine: Engine, run: Run) -> None:
        self.mirrors = mirrors
        self.route = mirrors.route
        self.engine = engine
        self.run = run

    def read(self, fields: Fields) -> Audience:
        """How the audience of an author is reached now."""
        if options_of(self.route).pull_above is None:
            return Audience()
        key = self._key(fields)
        found = self.engine.read_state([key], consistent=True).get(key)
        return Audience() if found is None else _audience(found["s"])

    def change(self, fields: Fields, before: Audience, after: Audience) -> Audience:
        """Changes an audience that was read; returns what it is then, by this change or by another."""
        after = after._replace(revision=before.revision + 1)
        stored = self.engine.swap_state(self._key(fields), {"s": json.dumps(after._asdict())}, before.revision)
        return after if stored else self.read(fields)

    def flip(self, fields: Fields, audience: Audience) -> Audience:
        """Begins to have the posts of an author pulled."""
        if audience.mode != "push" or audience.tells:
            return audience
        return self.change(fields, audience, self._switched(audience, mode="flipping", until="", tells=True))

    def back(self, fields: Fields, audience: Audience) -> Audience:
        """Has the posts of an author pushed again: first beside pulling, so that none is in between."""
        if audience.mode == "pull":
            audience = self.change(fields, audience, self._switched(audience, mode="returning"))
        if audience.mode != "returning":
            return audience
        newest = self.mirrors.page(POSTS, self.mirrors.partition(POSTS, fields), Entries("", 1, descending=True))
        ahead = self.mirrors.post_from(self.run.clock() + PULLED_AHEAD_SECONDS)
        until = max([ahead, *(place for place, _ in newest)])
        return self.change(fields, audience, self._switched(audience, mode="push", until=until, tells=True))

    def told(self, fields: Fields, audience: Audience) -> Audience:
        """Notes that all readers were told of the mode."""
        mode: Mode = "pull" if audience.mode == "flipping" else audience.mode
        if not audience.tells:
            return audience
        counted = int(self.run.clock())
        return self.change(fields, audience, audience._replace(mode=mode, counted=counted, tells=False))

    def tell(self, edges: list[Mirror], audience: Audience) -> int:
        """Tells readers by their edges whether they are to pull an author; returns how many rows were written.

        The audience is read after the edges, so that the later of two changes sees the other.
        """
        if not audience.revision:
            return 0
        told = {(row := self._row(edge, audience)).key: (row, edge) for edge in edges}

        def again(key: RowKey) -> PutPair:
            item = told[key][1].item
            sided = Sided(EDGES, item, self.mirrors.fields_of(EDGES, item))
            (newest,) = self.mirrors.read([sided])
            return self._row(newest, self.read(sided.fields))

        return write_rows(self.route, self.engine, self.run, [row for row, _ in told.values()], again)

    def _switched(self, audience: Audience, **changed: Any) -> Audience:
        return audience._replace(keep_seconds=options_of(self.route).keep_seconds, **changed)

    def _key(self, fields: Fields) -> StateKey:
        return audience_key(self.mirrors.application, self.route.name, joined_text(self.route, fields))

    def _row(self, edge: Mirror, audience: Audience) -> PutPair:
        """The row that tells one reader whether to pull one author."""
        fields = self.mirrors.fields_of(EDGES, edge.item)
        pulled = not edge.gone and (audience.pulls or bool(audience.until))
        values: dict[str, Any] | None = {EDGE: to_json(edge.raw)} if pulled else None
        if values is not None and not audience.pulls:
            values[UNTIL] = audience.until
        if values is not None and audience.keep_seconds is not None:
            values[KEEP] = audience.keep_seconds
        keep = max(options_of(self.route).keep_seconds, audience.keep_seconds or 0)
        passing = int(self.run.clock()) + keep + PULLED_AHEAD_SECONDS + SECONDS_A_DAY
        expires = FAR if audience.pulls and not edge.gone else passing
        key = pull_key(self.route, fields)
        return PutPair(key, values, (audience.version, edge.version), expires, fresh=audience.mode == "flipping")


def pull_partition(name: str, reader: str) -> str:
    """The partition of the rows that tell a reader whom to pull, in the table of the feed."""
    partition = f"{PULL}{name}#{reader}"
    if len(partition.encode()) <= PARTITION_BYTES_MAX:
        return partition
    return f"{PULL}{name}#sha256:{sha256(reader.encode()).hexdigest()}"  # a reader's key may have as many bytes


def pull_key(route: Route, fields: Fields) -> RowKey:
    """The key of the row that tells a reader whether to pull an author."""
    (into,) = route.into
    reader = str(into.partition.compose(fields))
    return into.table.name, pull_partition(route.name, reader), joined_text(route, fields)


def _audience(text: str) -> Audience:
    """The audience of its text, without what newer code added. Raises ``EngineError`` for a damaged one."""
    try:
        return Audience(**{name: value for name, value in json.loads(text).items() if name in Audience._fields})
    except (AttributeError, TypeError, ValueError):
        raise damaged("How an audience is reached") from None
