"""Spreads a change of a post or of an edge: stores its copy, *then* reads the other side, and visits the rows.

The final state is stored before the other side is read, so the later of two changes sees the other. After that the own
copy is read again: a change that was overtaken meanwhile writes nothing. Only a change that leaves an existing item
skips gone items of the other side. A removal visits all rows that may exist, because the other side may be gone too,
and may have skipped this one.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from streamfold.commit.outcome import Tallies
from streamfold.commit.transactions import send
from streamfold.derivations.feed.options import FUTURE_SECONDS_MAX, check_post, options_of, post_seconds
from streamfold.derivations.feed.posts import (
    EDGES,
    POSTS,
    PostAndEdge,
    PostFails,
    PostRows,
    Sided,
    StoredCopies,
    StoredCopy,
    joined_text,
    names_before,
    side_key,
    write_rows,
)
from streamfold.engines.protocol import Entries
from streamfold.errors import Unprocessable, damaged
from streamfold.jobs import fan_outs
from streamfold.jobs.fan_outs import FanOuts, record_of
from streamfold.jobs.job import Job
from streamfold.keys.key import PARTITION_BYTES_MAX
from streamfold.keys.table import RESERVED_PREFIX
from streamfold.ledger.state_keys import audience_key, fan_out_id
from streamfold.records.change import Change, item_key, item_name
from streamfold.records.images import Image
from streamfold.records.values import encode, to_json
from streamfold.routes.route import Fields, Route
from streamfold.settings.limits import SECONDS_A_DAY
from streamfold.writes.guarded import PutPostRow, RowKey, StateKey

Mode = Literal["push", "flipping", "pull", "returning"]
PULL = RESERVED_PREFIX + "pull#"
"""The begin of the partition of rows that have a reader pull an author: no key of an application begins so."""
EDGE = "edge"
"""The attribute of such a row with the edge, as one text: the function gets it beside each pulled post."""
UNTIL = "until"
"""The attribute with the last post that a reader pulls; absent while all posts are pulled."""
KEEP = "keep"
"""The attribute with the seconds for which a pulled post is shown, by the option when the author was switched."""
REVISION_DIGITS = 10
BACK_BELOW = 0.8
"""The share of ``pull_above`` below which an audience is pushed to again."""
COUNTED_SECONDS = SECONDS_A_DAY
"""The shortest time between two counts of a pulled author's audience."""
PULLED_AHEAD_SECONDS = 2 * SECONDS_A_DAY
"""How far beyond the switch back to pushing posts are pulled too: longer than it takes to notify all readers."""
FAR = 253_402_300_799
"""The end of the year 9999: a pulling row does not expire while its author is pulled."""

PUSH, VISIT, TELL, COUNT = "push", "visit", "tell", "count"
"""A post to all edges; an edge to all posts; the audience's mode to all edges; a count of the edges."""
OF_AUDIENCE = (TELL, COUNT)

SAMPLED = 5
"""Edges of which the earlier attributes of a post's rows are sampled."""


class Audience(NamedTuple):
    """How the posts of one author reach the audience.

    The modes follow one another:

    - *push*: rows are written for each edge. Above ``pull_above`` edges, the author is *flipping*.
    - *flipping*: rows are still pushed, while all readers are notified to pull. Then the mode is *pull*.
    - *pull*: readers read the author's posts; no rows are written. Below ``BACK_BELOW``, the author is *returning*.
    - *returning*: posts are pushed and pulled, until ``until`` is known. Then the mode is *push*, and readers are
      notified to pull up to ``until`` only.
    """

    mode: Mode = "push"
    revision: int = 0  # 0: always pushed so far
    until: str = ""  # the sort position of the last pulled post; "": none is pulled, or all are
    counted: int = 0  # when its edges were last counted, epoch seconds
    tells: bool = False  # readers are being notified of the mode
    keep_seconds: int | None = None  # how long posts are shown, by the option when the mode was last changed

    @property
    def pulls(self) -> bool:
        """Whether readers are notified to pull all posts."""
        return self.mode != "push"

    @property
    def version(self) -> str:
        """The revision as one of a row's two versions."""
        return f"{self.revision:0{REVISION_DIGITS}}"


class Audiences:
    """The audiences of one feed in a state."""

    def __init__(self, copies: StoredCopies) -> None:
        self.copies = copies
        self.route = copies.route
        self.runtime = copies.runtime

    def read(self, fields: Fields) -> Audience:
        """The present audience of an author."""
        if options_of(self.route).pull_above is None:
            return Audience()
        key = self._key(fields)
        found = self.runtime.engine.read_state([key], consistent=True).get(key)
        return Audience() if found is None else _audience(found["s"])

    def change(self, fields: Fields, before: Audience, after: Audience) -> Audience:
        """Changes an audience that was read; returns the stored one, which another process may have changed."""
        after = after._replace(revision=before.revision + 1)
        stored = self.runtime.engine.swap_state(self._key(fields), {"s": json.dumps(after._asdict())}, before.revision)
        return after if stored else self.read(fields)

    def flip(self, fields: Fields, audience: Audience) -> Audience:
        """Begins to have the posts of an author pulled."""
        if audience.mode != "push" or audience.tells:
            return audience
        return self.change(fields, audience, self._switched(audience, mode="flipping", until="", tells=True))

    def back(self, fields: Fields, audience: Audience) -> Audience:
        """Has the posts of an author pushed again: first beside pulling, so that no post is missed in between."""
        if audience.mode == "pull":
            audience = self.change(fields, audience, self._switched(audience, mode="returning"))
        if audience.mode != "returning":
            return audience
        newest = self.copies.page(POSTS, self.copies.partition(POSTS, fields), Entries("", 1, descending=True))
        ahead = self.copies.post_from(self.runtime.clock() + PULLED_AHEAD_SECONDS)
        until = max([ahead, *(position for position, _ in newest)])
        return self.change(fields, audience, self._switched(audience, mode="push", until=until, tells=True))

    def notified(self, fields: Fields, audience: Audience) -> Audience:
        """Notes that all readers were notified of the mode."""
        mode: Mode = "pull" if audience.mode == "flipping" else audience.mode
        if not audience.tells:
            return audience
        counted = int(self.runtime.clock())
        return self.change(fields, audience, audience._replace(mode=mode, counted=counted, tells=False))

    def notify(self, edges: list[StoredCopy], audience: Audience) -> int:
        """Notifies readers, by their edges, whether to pull an author; returns how many rows were written.

        The audience is read after the edges, so that the later of two changes sees the other.
        """
        if not audience.revision:
            return 0
        rows = {(row := self._row(edge, audience)).key: (row, edge) for edge in edges}

        def again(key: RowKey) -> PutPostRow:
            item = rows[key][1].item
            sided = Sided(EDGES, item, self.copies.fields_of(EDGES, item))
            (newest,) = self.copies.read([sided])
            return self._row(newest, self.read(sided.fields))

        return write_rows(self.runtime, self.route, [row for row, _ in rows.values()], again)

    def _switched(self, audience: Audience, **changed: Any) -> Audience:
        return audience._replace(keep_seconds=options_of(self.route).keep_seconds, **changed)

    def _key(self, fields: Fields) -> StateKey:
        return audience_key(self.copies.application, self.route.name, joined_text(self.route, fields))

    def _row(self, edge: StoredCopy, audience: Audience) -> PutPostRow:
        """The row that notifies one reader whether to pull one author."""
        fields = self.copies.fields_of(EDGES, edge.item)
        pulled = not edge.gone and (audience.pulls or bool(audience.until))
        values: dict[str, Any] | None = {EDGE: to_json(edge.raw)} if pulled else None
        if values is not None and not audience.pulls:
            values[UNTIL] = audience.until
        if values is not None and audience.keep_seconds is not None:
            values[KEEP] = audience.keep_seconds
        keep = max(options_of(self.route).keep_seconds, audience.keep_seconds or 0)
        passing = int(self.runtime.clock()) + keep + PULLED_AHEAD_SECONDS + SECONDS_A_DAY
        expires = FAR if audience.pulls and not edge.gone else passing
        key = pull_key(self.route, fields)
        return PutPostRow(key, values, (audience.version, edge.version), expires, fresh=audience.mode == "flipping")


def pull_partition(name: str, reader: str) -> str:
    """The partition of a reader's pulling rows, in the table of the feed."""
    partition = f"{PULL}{name}#{reader}"
    if len(partition.encode()) <= PARTITION_BYTES_MAX:
        return partition
    return f"{PULL}{name}#sha256:{sha256(reader.encode()).hexdigest()}"  # the prefix makes a long key too long


def is_pulling(route: Route, row: RowKey) -> bool:
    return row[0] == route.into[0].table.name and str(row[1]).startswith(f"{PULL}{route.name}#")


def pull_key(route: Route, fields: Fields) -> RowKey:
    """The key of the row that notifies a reader whether to pull an author."""
    (into,) = route.into
    reader = str(into.partition.compose(fields))
    return into.table.name, pull_partition(route.name, reader), joined_text(route, fields)


def _audience(text: str) -> Audience:
    """The audience from its text, without fields of newer code. Raises ``EngineError`` for a damaged one."""
    try:
        return Audience(**{name: value for name, value in json.loads(text).items() if name in Audience._fields})
    except (AttributeError, TypeError, ValueError):
        raise damaged("The audience of an author") from None


class Task(NamedTuple):
    """The work of a fan-out."""

    what: str
    sided: Sided  # the post or edge; for an audience any of its posts
    version: str  # of the change, or of the audience's mode
    is_new: bool  # no rows are expected to exist
    names: tuple[str, ...] = ()  # attributes that rows may have from before
    record: Mapping[str, Any] | None = None  # the cause, to be parked with a row that fails
    at: float = 0.0  # the time of that record, from which the age of posts counts, epoch seconds; 0: not known
    copied_from: str = ""  # sort position of the oldest post for which an edge makes a missing row; "": for all

    def job(self, route: Route, now: float) -> Job:
        """The job, the same for each attempt of one change."""
        side = "audience" if self.what in OF_AUDIENCE else item_name(self.sided.item)
        key = side_key(route, self.sided.side)
        options = {
            "side": self.sided.side,
            "key": to_json(encode(key.attributes(*self.sided.item[1:]))["M"]),
            "version": self.version,
            "is_new": self.is_new,
            "names": list(self.names),
            "record": None if self.record is None else to_json(self.record),
            "at": self.at,
            "copied_from": self.copied_from,
        }
        return Job(
            id=fan_out_id(route.name, self.what, joined_text(route, self.sided.fields), side),
            what=self.what,
            handlers=(route.name,),
            table=self.sided.item[0],
            segments=1 if self.what == VISIT else fan_outs.SEGMENTS,
            started=int(now),
            by="",
            options=options,
        )

    @classmethod
    def of(cls, route: Route, job: Job) -> "Task":
        """The work of a job. Raises ``EngineError`` if the job is not of a feed."""
        try:
            given = job.options
            side, record = given["side"], given["record"]
            key = side_key(route, side)
            item = item_key(json.loads(given["key"]), key.table)
            fields = key.match_values(*item[1:])
            if fields is None:
                raise ValueError
            sided = Sided(side, item, fields)
            names = tuple(given["names"])
            record = record and json.loads(record)
            known, at, copied_from = given["version"], float(given["at"]), str(given["copied_from"])
            return cls(job.what, sided, known, given["is_new"], names, record, at, copied_from)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(f"Fan-out {job.id}") from None


class Subscribed(NamedTuple):
    """The newest change of a post or of an edge in a batch."""

    route: Route
    sided: Sided
    copy: StoredCopy
    changes: tuple[Change, ...]  # its causes, oldest first
    at: float  # the time of the newest, epoch seconds; 0: not known
    before: Image | None = None  # the item before the newest change, if it is known
    all_posts: bool = False  # none is skipped, not even one that was visited for the same version

    def __str__(self) -> str:
        what = "post" if self.sided.side == POSTS else "edge"
        return f"update the feeds that {what} {self.changes[-1].name} reaches"

    @property
    def is_new(self) -> bool:
        """Whether the item did not exist before."""
        return bool(self.changes) and self.changes[0].event == "INSERT"


class Spreading:
    """Spreads changes of the posts and edges of one feed."""

    def __init__(self, copies: StoredCopies, tallies: Tallies) -> None:
        self.copies = copies
        self.route = copies.route
        self.options = options_of(copies.route)
        self.runtime = copies.runtime
        self.tallies = tallies
        self.posts = PostRows(copies)
        self.audiences = Audiences(copies)
        self.fan_outs = FanOuts(copies.runtime)

    def spread(self, subscribed: Subscribed, fails: PostFails) -> None:
        """Updates all rows of an item, or hands them to a fan-out.

        Raises ``EngineError``, ``NotStarted``, ``Unprocessable`` for a post whose time is ahead, and
        ``HandlerError`` for an item that is too large for its stored copy.
        """
        now = subscribed.at or self.runtime.item_clock
        is_post = subscribed.sided.side == POSTS
        if is_post:
            seconds = post_seconds(self.route, subscribed.sided.fields)
            self._check(subscribed, max(now, self.runtime.clock()))
            if seconds + self.options.keep_seconds < now and not self._was_kept_longer(subscribed, now):
                self.tallies.unchanged += 1  # its rows have expired, or every reader skips them
                return
            subscribed = subscribed._replace(copy=subscribed.copy._replace(keep_seconds=self.options.keep_seconds))
        write = self.copies.write(subscribed.sided, subscribed.copy, self.runtime.clock())
        if send(self.runtime, [write]) is not None:
            self.tallies.unchanged += 1  # a newer change is known, and its process spreads it
        elif is_post:
            self._post(subscribed, fails)
        else:
            self._edge(subscribed, now, fails)

    def _was_kept_longer(self, subscribed: Subscribed, now: float) -> bool:
        """Whether an old post may have rows that have not expired, because ``keep_days`` was lowered.

        Readers skip such rows, until ``keep_days`` is raised again.
        """
        (known,) = self.copies.read([subscribed.sided])
        return known.keep_seconds is not None and not is_over(self.route, known, now)

    def _check(self, subscribed: Subscribed, now: float) -> None:
        """Raises ``Unprocessable`` for a post that no reader may see."""
        try:
            check_post(self.route, subscribed.sided.fields, now)
        except Unprocessable:
            if not subscribed.copy.gone or post_seconds(self.route, subscribed.sided.fields) > now + FUTURE_SECONDS_MAX:
                raise

    def _post(self, subscribed: Subscribed, fails: PostFails) -> None:
        audience = self.audiences.read(subscribed.sided.fields)  # after the copy was stored: see the audience's modes
        if audience.revision:
            self._go_on(subscribed, audience)
        if audience.mode == "pull":
            return
        partition = self.copies.partition(EDGES, subscribed.sided.fields)
        edges = [edge for _, edge in self.copies.page(EDGES, partition, Entries("", self.options.inline + 1))]
        if len(edges) > self.options.inline:
            self._open(
                subscribed,
                PUSH,
                names=self._names(subscribed, [PostAndEdge(subscribed.copy, edge) for edge in edges[:SAMPLED]]),
            )
            return
        taken = [
            edge for edge in edges if subscribed.all_posts or takes(subscribed.copy, edge, keeps=self.options.keeps)
        ]
        self._visit(subscribed, [PostAndEdge(subscribed.copy, edge) for edge in taken], fails, None)

    def _edge(self, subscribed: Subscribed, now: float, fails: PostFails) -> None:
        edge = subscribed.copy
        audience = self.audiences.read(subscribed.sided.fields)  # after the copy was stored: see the audience's modes
        self.tallies.written += self.audiences.notify([edge], audience)
        if (edge.gone and self.options.keeps) or (audience.mode == "pull" and not edge.gone):
            return
        partition = self.copies.partition(POSTS, subscribed.sided.fields)
        after = self.copies.post_from(now - self.options.keep_seconds)
        # An edge that existed before may have rows of older posts, from a time with a larger ``keep_days``.
        wanted = Entries("", self.options.inline + 1, after if subscribed.is_new else "", descending=True)
        found = self.copies.page(POSTS, partition, wanted)
        posts = [post for position, post in found if position >= after or not is_over(self.route, post, now)]
        if len(found) > self.options.inline:
            names = self._names(subscribed, [PostAndEdge(post, edge) for post in posts[:SAMPLED]])
            self._open(subscribed, VISIT, names=names, copied_from=self._copied_from(subscribed, partition, after, now))
            return
        taken = [
            post
            for post in posts
            if subscribed.all_posts or (takes(edge, post) and (edge.gone or not is_over(self.route, post, now)))
        ]
        first = self._copied_from(subscribed, partition, after, now) if len(taken) > self.options.most else ""
        copied = sum(str(post.item[2]) >= first for post in taken)
        self._visit(subscribed, [PostAndEdge(post, edge) for post in taken], fails, copied)

    def _copied_from(self, subscribed: Subscribed, partition: str, after: str, now: float) -> str:
        """The sort position of the oldest post that a follow copies; "" if all are copied.

        Later posts than the follow do not count, nor gone posts: else an older post would be left out behind them.
        """
        position = self.copies.post_from(now + 1)
        remaining, most = self.options.most, self.options.most
        while subscribed.is_new:
            found = self.copies.page(POSTS, partition, Entries("", most, after, descending=True, before=position))
            for position, post in found:
                remaining -= not post.gone
                if not remaining:
                    return position
            if len(found) < most:
                break
        return ""

    def _visit(self, subscribed: Subscribed, posts: list[PostAndEdge], fails: PostFails, copied: int | None) -> None:
        if posts and self._is_overtaken(subscribed):
            self.tallies.unchanged += 1
            return
        for name in self._names(subscribed, posts):
            self.posts.names[name] = None
        written = self.posts.visit(posts, fails, fresh=subscribed.is_new, copied=copied)
        self.tallies.removed += written if subscribed.copy.gone else 0
        self.tallies.written += 0 if subscribed.copy.gone else written
        self.tallies.unchanged += not written

    def _is_overtaken(self, subscribed: Subscribed) -> bool:
        """Whether a newer change of the item is known, which its own process spreads.

        This is checked after the other side was read. An item of that side that came after the newer change was not
        joined with this one: a row that was written for both now would never be visited again.
        """
        (newest,) = self.copies.read([subscribed.sided])
        return newest.version > subscribed.copy.version

    def _names(self, subscribed: Subscribed, posts: Sequence[PostAndEdge]) -> tuple[str, ...]:
        """Attributes that rows may have from before the change, as its record has them."""
        if not subscribed.before:
            return ()
        before = StoredCopy(subscribed.copy.version, subscribed.copy.item, subscribed.before.raw, gone=False)
        is_post = subscribed.sided.side == POSTS
        sampled = [
            PostAndEdge(before, pair.edge) if is_post else PostAndEdge(pair.post, before) for pair in posts[:SAMPLED]
        ]
        return names_before(self.route, sampled)

    def _go_on(self, subscribed: Subscribed, audience: Audience) -> None:
        """Continues an unfinished change of the audience's mode, and has a pulled audience counted."""
        fields = subscribed.sided.fields
        if audience.mode == "returning":
            audience = self.audiences.back(fields, audience)
        if audience.tells:
            self._open(subscribed, TELL, version=audience.version)
        elif audience.mode == "pull" and audience.counted + COUNTED_SECONDS < self.runtime.clock():
            audience = self.audiences.change(fields, audience, audience._replace(counted=int(self.runtime.clock())))
            self._open(subscribed, COUNT, version=audience.version)

    def _open(
        self,
        subscribed: Subscribed,
        what: str,
        *,
        version: str | None = None,
        names: tuple[str, ...] = (),
        copied_from: str = "",
    ) -> None:
        record = record_of(subscribed.changes[-1]) if subscribed.changes else None
        known = subscribed.copy.version if version is None else version
        task = Task(what, subscribed.sided, known, subscribed.is_new, names, record, subscribed.at, copied_from)
        again = subscribed.all_posts and version is None
        self.fan_outs.start(task.job(self.route, self.runtime.clock()), task.version, again=again)
        self.tallies.handed_on += 1


def is_over(route: Route, post: StoredCopy, now: float) -> bool:
    """Whether a post was shown for as long as its copy allows: it may have been removed since, without a visit."""
    fields = route.sources[0].match_values(*post.item[1:])
    assert fields is not None, "a stored copy is of its template"
    keep = options_of(route).keep_seconds if post.keep_seconds is None else post.keep_seconds
    return post_seconds(route, fields) + keep < now


def takes(copy: StoredCopy, other: StoredCopy, *, keeps: bool = False) -> bool:
    """Whether a change visits the row with an item of the other side.

    keeps: the other side is edges, whose rows are kept when the edges are gone.
    """
    return copy.gone or not other.gone or keeps
