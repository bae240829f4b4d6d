"""Spreads a change of a post or of an edge: mirrors it, *then* reads the other side, and visits the pairs.

Whatever is final is mirrored before the other side is read, so the later of two changes sees the other. After that the
own mirror is read again: a change that was overtaken meanwhile writes nothing. Only a change
that leaves an item there passes over items of the other side that are gone: a removal visits all pairs that may have a
row, because the other side may be gone too, and may have passed over this one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from streamfold.commit.outcome import Tallies
from streamfold.commit.sending import send
from streamfold.derivations.feed.audience import COUNTED_SECONDS, Audience, Audiences
from streamfold.derivations.feed.mirrors import EDGES, POSTS, Mirror, Mirrors, Sided
from streamfold.derivations.feed.options import (
    FUTURE_SECONDS_MAX,
    check_post,
    options_of,
    post_seconds,
)
from streamfold.derivations.feed.pairs import Pair, PairFails, Pairs, names_before
from streamfold.derivations.feed.tasks import COUNT, PUSH, TELL, VISIT, Task
from streamfold.engines import Engine, Entries
from streamfold.errors import Unprocessable
from streamfold.jobs.fan_outs import FanOuts, record_of
from streamfold.records.change import Change
from streamfold.records.images import Image
from streamfold.routes.route import Route
from streamfold.run import Run

SAMPLED = 5
"""Edges for which it is told which attributes a post's rows had before."""


class Heard(NamedTuple):
    """What the newest change of a batch says of a post or of an edge."""

    route: Route
    sided: Sided
    mirror: Mirror
    changes: tuple[Change, ...]  # that ask for it, oldest first
    at: float  # the time of the newest, epoch seconds; 0: not known
    before: Image | None = None  # what the item was before the newest, if that is known
    all_pairs: bool = False  # none is passed over, nor one that was visited for the same version

    def __str__(self) -> str:
        what = "post" if self.sided.side == POSTS else "edge"
        return f"lead the feeds that {what} {self.changes[-1].name} reaches to what it is"

    @property
    def is_new(self) -> bool:
        """Whether the item was not there before."""
        return bool(self.changes) and self.changes[0].event == "INSERT"


class Spreading:
    """Spreads changes of the posts and edges of one feed."""

    def __init__(self, mirrors: Mirrors, engine: Engine, run: Run, tallies: Tallies) -> None:
        self.mirrors = mirrors
        self.route = mirrors.route
        self.options = options_of(mirrors.route)
        self.engine = engine
        self.run = run
        self.tallies = tallies
        self.pairs = Pairs(mirrors, engine, run)
        self.audiences = Audiences(mirrors, engine, run)
        self.fan_outs = FanOuts(mirrors.application, engine, run)

    def spread(self, heard: Heard, fails: PairFails) -> None:
        """Leads all rows that an item reaches to what it is, or hands that to a fan-out.

        Raises ``EngineError``, ``NotStarted``, ``Unprocessable`` for a post whose time lies ahead, and
        ``HandlerError`` for an item that is too large to be mirrored.
        """
        now = heard.at or self.run.clock()
        is_post = heard.sided.side == POSTS
        if is_post:
            seconds = post_seconds(self.route, heard.sided.fields)
            self._check(heard, max(now, self.run.clock()))
            if seconds + self.options.keep_seconds < now and not self._was_kept_longer(heard, now):
                self.tallies.unchanged += 1  # its rows have expired, or are passed over by every reader
                return
            heard = heard._replace(mirror=heard.mirror._replace(keep_seconds=self.options.keep_seconds))
        write = self.mirrors.write(heard.sided, heard.mirror, self.run.clock())
        if send(self.engine, [write], self.run) is not None:
            self.tallies.unchanged += 1  # a newer change is known, and whoever brought it spreads it
        elif is_post:
            self._post(heard, fails)
        else:
            self._edge(heard, now, fails)

    def _was_kept_longer(self, heard: Heard, now: float) -> bool:
        """Whether a post that is too old by now may have rows that are not, because ``keep_days`` was lowered.

        Readers pass over such rows, until it is raised again.
        """
        (known,) = self.mirrors.read([heard.sided])
        return known.keep_seconds is not None and not is_over(self.route, known, now)

    def _check(self, heard: Heard, now: float) -> None:
        """Raises ``Unprocessable`` for a post that no reader is to be shown, whoever follows its author."""
        try:
            check_post(self.route, heard.sided.fields, now)
        except Unprocessable:
            if not heard.mirror.gone or post_seconds(self.route, heard.sided.fields) > now + FUTURE_SECONDS_MAX:
                raise

    def _post(self, heard: Heard, fails: PairFails) -> None:
        audience = self.audiences.read(heard.sided.fields)  # after the mirror: see the audience's modes
        if audience.revision:
            self._go_on(heard, audience)
        if audience.mode == "pull":
            return
        partition = self.mirrors.partition(EDGES, heard.sided.fields)
        edges = [edge for _, edge in self.mirrors.page(EDGES, partition, Entries("", self.options.inline + 1))]
        if len(edges) > self.options.inline:
            self._open(heard, PUSH, names=self._names(heard, [Pair(heard.mirror, edge) for edge in edges[:SAMPLED]]))
            return
        taken = [edge for edge in edges if heard.all_pairs or takes(heard.mirror, edge, keeps=self.options.keeps)]
        self._visit(heard, [Pair(heard.mirror, edge) for edge in taken], fails, None)

    def _edge(self, heard: Heard, now: float, fails: PairFails) -> None:
        edge = heard.mirror
        audience = self.audiences.read(heard.sided.fields)  # after the mirror: see the audience's modes
        self.tallies.written += self.audiences.tell([edge], audience)
        if (edge.gone and self.options.keeps) or (audience.mode == "pull" and not edge.gone):
            return
        partition = self.mirrors.partition(POSTS, heard.sided.fields)
        after = self.mirrors.post_from(now - self.options.keep_seconds)
        # An edge that was there before may have rows of older posts, from when ``keep_days`` was greater.
        wanted = Entries("", self.options.inline + 1, after if heard.is_new else "", descending=True)
        found = self.mirrors.page(POSTS, partition, wanted)
        posts = [post for place, post in found if place >= after or not is_over(self.route, post, now)]
        if len(found) > self.options.inline:
            names = self._names(heard, [Pair(post, edge) for post in posts[:SAMPLED]])
            self._open(heard, VISIT, names=names, copied_from=self._copied_from(heard, partition, after, now))
            return
        taken = [
            post
            for post in posts
            if heard.all_pairs or (takes(edge, post) and (edge.gone or not is_over(self.route, post, now)))
        ]
        first = self._copied_from(heard, partition, after, now) if len(taken) > self.options.most else ""
        copied = sum(str(post.item[2]) >= first for post in taken)
        self._visit(heard, [Pair(post, edge) for post in taken], fails, copied)

    def _copied_from(self, heard: Heard, partition: str, after: str, now: float) -> str:
        """The place of the oldest post that a follow copies; "" where all are.

        Posts that came after the follow do not count, nor those that are gone: nothing else is to fall behind them.
        """
        place = self.mirrors.post_from(now + 1)
        left, most = self.options.most, self.options.most
        while heard.is_new:
            found = self.mirrors.page(POSTS, partition, Entries("", most, after, descending=True, before=place))
            for place, post in found:
                left -= not post.gone
                if not left:
                    return place
            if len(found) < most:
                break
        return ""

    def _visit(self, heard: Heard, pairs: list[Pair], fails: PairFails, copied: int | None) -> None:
        if pairs and self._is_overtaken(heard):
            self.tallies.unchanged += 1
            return
        for name in self._names(heard, pairs):
            self.pairs.names[name] = None
        written = self.pairs.visit(pairs, fails, fresh=heard.is_new, copied=copied)
        self.tallies.removed += written if heard.mirror.gone else 0
        self.tallies.written += 0 if heard.mirror.gone else written
        self.tallies.unchanged += not written

    def _is_overtaken(self, heard: Heard) -> bool:
        """Whether a newer change of the item is known. Whoever brought that one spreads it.

        It is asked after the other side is read. An item of that side which came after the newer change was not paired
        with this one. A row that was written for both now would never be visited again.
        """
        (newest,) = self.mirrors.read([heard.sided])
        return newest.version > heard.mirror.version

    def _names(self, heard: Heard, pairs: Sequence[Pair]) -> tuple[str, ...]:
        """Attributes that rows may have from before the change, as far as its record tells."""
        if not heard.before:
            return ()
        before = Mirror(heard.mirror.version, heard.mirror.item, heard.before.raw, gone=False)
        is_post = heard.sided.side == POSTS
        sampled = [Pair(before, pair.edge) if is_post else Pair(pair.post, before) for pair in pairs[:SAMPLED]]
        return names_before(self.route, sampled)

    def _go_on(self, heard: Heard, audience: Audience) -> None:
        """Goes on with a change of the audience's mode that was begun, and has a pulled audience counted."""
        fields = heard.sided.fields
        if audience.mode == "returning":
            audience = self.audiences.back(fields, audience)
        if audience.tells:
            self._open(heard, TELL, version=audience.version)
        elif audience.mode == "pull" and audience.counted + COUNTED_SECONDS < self.run.clock():
            audience = self.audiences.change(fields, audience, audience._replace(counted=int(self.run.clock())))
            self._open(heard, COUNT, version=audience.version)

    def _open(
        self,
        heard: Heard,
        what: str,
        *,
        version: str | None = None,
        names: tuple[str, ...] = (),
        copied_from: str = "",
    ) -> None:
        record = record_of(heard.changes[-1]) if heard.changes else None
        known = heard.mirror.version if version is None else version
        task = Task(what, heard.sided, known, heard.is_new, names, record, heard.at, copied_from)
        again = heard.all_pairs and version is None
        self.fan_outs.start(task.job(self.route, self.run.clock()), task.version, again=again)
        self.tallies.handed_on += 1


def is_over(route: Route, post: Mirror, now: float) -> bool:
    """Whether a post was shown for as long as its mirror says: it may have been removed since, unheard."""
    fields = route.sources[0].match_values(*post.item[1:])
    assert fields is not None, "a mirror is of its template"
    keep = options_of(route).keep_seconds if post.keep_seconds is None else post.keep_seconds
    return post_seconds(route, fields) + keep < now


def takes(mirror: Mirror, other: Mirror, *, keeps: bool = False) -> bool:
    """Whether a change visits the pair with an item of the other side.

    keeps: the other side is edges, whose rows stay when they are gone.
    """
    return mirror.gone or not other.gone or keeps
