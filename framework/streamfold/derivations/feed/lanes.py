"""The lanes of a feed's fan-outs: one page of a lane, and what comes when all lanes are done."""

from collections.abc import Mapping

from streamfold.commit.outcome import Failed
from streamfold.derivations.derivation import Finishing
from streamfold.derivations.feed.audience import BACK_BELOW, Audience, Audiences
from streamfold.derivations.feed.mirrors import EDGES, POSTS, Mirror, Mirrors, lane_bounds
from streamfold.derivations.feed.options import options_of
from streamfold.derivations.feed.pairs import Pair, Pairs
from streamfold.derivations.feed.spreading import is_over, takes
from streamfold.derivations.feed.tasks import COUNT, PUSH, TELL, VISIT, Task
from streamfold.engines import Entries
from streamfold.errors import EngineError, HandlerError, Unprocessable, reason, told
from streamfold.jobs.fan_outs import ROWS, FanOuts, Paged
from streamfold.jobs.job import Job, JobSegment
from streamfold.routes.route import Route

PAGE = 1000
"""Mirrors that are read at a time."""
LIVE = "live"
"""The word under which lanes count edges that are there."""


class FeedLanes:
    """Works on the lanes of one fan-out of a feed."""

    def __init__(self, route: Route, job: Job, finishing: Finishing) -> None:
        self.route = route
        self.job = job
        self.options = options_of(route)
        self.task = Task.of(route, job)
        self.finishing = finishing
        self.run = finishing.run
        self.mirrors = Mirrors(finishing.application.name, route, finishing.engine, finishing.run.settings)
        self.pairs = Pairs(self.mirrors, finishing.engine, finishing.run)
        self.pairs.names |= dict.fromkeys(self.task.names)
        self.audiences = Audiences(self.mirrors, finishing.engine, finishing.run)

    def page(self, lane: JobSegment) -> Paged:
        """Does the next page of a lane. Raises ``EngineError``, and the error of a pair that cannot be parked."""
        return self._posts(lane) if self.task.what == VISIT else self._edges(lane)

    def ended(self, counts: Mapping[str, int]) -> None:
        """What follows when all lanes are done; ``counts`` is their sum. Doing it again changes nothing."""
        above, fields = self.options.pull_above, self.task.sided.fields
        if above is None:
            return
        audience = self.audiences.read(fields)
        if self.task.what == TELL and audience.version == self.task.version:
            self.audiences.told(fields, audience)
        elif self.task.what == PUSH and counts.get(LIVE, 0) > above:
            self._tell(self.audiences.flip(fields, audience))
        elif self.task.what == COUNT and counts.get(LIVE, 0) < above * BACK_BELOW:
            self._tell(self.audiences.back(fields, audience))

    def _tell(self, audience: Audience) -> None:
        if audience.tells:
            task = self.task._replace(what=TELL, version=audience.version, names=(), record=None)
            fan_outs = FanOuts(self.mirrors.application, self.finishing.engine, self.run)
            fan_outs.start(task.job(self.route, self.run.clock()), task.version)

    def _edges(self, lane: JobSegment) -> Paged:
        first, end = lane_bounds(lane.number, self.job.segments)
        partition = self.mirrors.partition(EDGES, self.task.sided.fields)
        wanted = Entries("", PAGE, lane.after or first, before=end)
        found = self.mirrors.page(EDGES, partition, wanted)
        edges = [edge for _, edge in found]
        live = [edge for edge in edges if not edge.gone]
        rows = 0
        if self.task.what == TELL:
            rows = self.audiences.tell(live, self.audiences.read(self.task.sided.fields)) if live else 0
        elif self.task.what == PUSH and edges:
            (post,) = self.mirrors.read([self.task.sided])  # the newest, which an edit may have brought meanwhile
            taken = [edge for edge in edges if takes(post, edge, keeps=self.options.keeps)]
            rows = self._visited([Pair(post, edge) for edge in taken], None)
        return Paged(found[-1][0] if len(found) == PAGE else None, {LIVE: len(live), ROWS: rows})

    def _posts(self, lane: JobSegment) -> Paged:
        now = self.task.at or self.run.clock()
        first = self.mirrors.post_from(now - self.options.keep_seconds)
        partition = self.mirrors.partition(POSTS, self.task.sided.fields)
        begin = max(lane.after or "", first) if self.task.is_new else lane.after or ""
        found = self.mirrors.page(POSTS, partition, Entries("", PAGE, begin))
        rows = 0
        if found:
            (edge,) = self.mirrors.read([self.task.sided])
            taken = [
                (place, post)
                for place, post in found
                if takes(edge, post) and ((edge.gone and place >= first) or not is_over(self.route, post, now))
            ]
            older = [Pair(post, edge) for place, post in taken if place < self.task.copied_from]
            newer = [Pair(post, edge) for place, post in taken if place >= self.task.copied_from]
            rows = self._visited(older, 0) + self._visited(newer, None)
        return Paged(found[-1][0] if len(found) == PAGE else None, {ROWS: rows})

    def _visited(self, pairs: list[Pair], copied: int | None) -> int:
        return self.pairs.visit(pairs, self._fails, fresh=self.task.is_new, copied=copied) if pairs else 0

    def _fails(self, pair: Pair, error: Exception) -> None:
        """Parks the record with a pair whose row cannot be made, or raises."""
        wrong = in_feed(self.route, pair, error)
        if self.task.record is None or isinstance(wrong, EngineError):
            raise wrong
        change = self.finishing.change_of(
            _with_image(self.task.record, pair.post if self.task.what == PUSH else pair.edge)
        )
        change.version_text = self.task.version
        left = self.finishing.triage(Failed(change, self.route, wrong))
        if left is not None:
            raise left.error


def in_feed(route: Route, pair: Pair, error: Exception) -> Exception:
    """The error of a row that cannot be made, with the reader whose feed it is; one of the store as it is."""
    if isinstance(error, EngineError):
        return error
    reader = pair.edge.item[1:]
    said = (
        f"Feed {route.name!r} cannot show the post to the reader of edge {told(' / '.join(map(str, reader)))}: "
        f"{type(error).__name__}: {reason(error)}"
    )
    wrong = Unprocessable(said) if isinstance(error, Unprocessable) else HandlerError(said)
    wrong.__cause__ = error
    return wrong


def _with_image(record: Mapping[str, object], mirror: Mirror) -> Mapping[str, object]:
    """The record with the image that the mirror has, where it is one of a stream."""
    body = record.get("dynamodb")
    if not isinstance(body, Mapping) or mirror.gone:
        return record
    return {**record, "dynamodb": {**body, "NewImage": mirror.raw}}
