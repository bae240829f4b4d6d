"""The fan-outs of a feed, page by page, and the changes of posts and edges in a batch that begin them."""

from collections.abc import Mapping, Sequence

from streamfold.commit.outcome import Failed, Outcome, explained
from streamfold.commit.plan import Deferred
from streamfold.derivations.derivation import Finishing, Planning, Work, passes_over
from streamfold.derivations.feed.options import options_of
from streamfold.derivations.feed.posts import (
    EDGES,
    POSTS,
    PostAndEdge,
    PostRows,
    Sided,
    StoredCopies,
    StoredCopy,
    gone,
    side_key,
)
from streamfold.derivations.feed.spreading import (
    BACK_BELOW,
    COUNT,
    PUSH,
    TELL,
    VISIT,
    Audience,
    Audiences,
    Spreading,
    Subscribed,
    Task,
    is_over,
    takes,
)
from streamfold.engines.protocol import Entries
from streamfold.errors import EngineError, HandlerError, RecordError, Unprocessable, is_fatal, reason, redacted
from streamfold.jobs.fan_outs import ROWS, FanOuts, Paged, segment_bounds
from streamfold.jobs.job import Job, JobSegment
from streamfold.keys.key import Key
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.records.change import BY_OURSELVES, Change, image_of
from streamfold.records.values import RawImage, same
from streamfold.routes.checks import check_view
from streamfold.routes.route import SOURCE, Route

PAGE = 1000
"""Stored copies that are read at a time."""
LIVE = "live"
"""The word under which segments count existing edges."""


class FeedSegments:
    """Works on the segments of one fan-out of a feed."""

    def __init__(self, route: Route, job: Job, finishing: Finishing) -> None:
        self.route = route
        self.job = job
        self.options = options_of(route)
        self.task = Task.of(route, job)
        self.finishing = finishing
        self.runtime = finishing.runtime
        self.copies = StoredCopies(finishing.runtime, route)
        self.posts = PostRows(self.copies)
        self.posts.names |= dict.fromkeys(self.task.names)
        self.audiences = Audiences(self.copies)

    def page(self, segment: JobSegment) -> Paged:
        """Does the next page of a segment. Raises ``EngineError``, and the error of a row that cannot be parked."""
        return self._posts(segment) if self.task.what == VISIT else self._edges(segment)

    def ended(self, counts: Mapping[str, int]) -> None:
        """The work after all segments; ``counts`` is their sum. A repetition changes nothing."""
        above, fields = self.options.pull_above, self.task.sided.fields
        if above is None:
            return
        audience = self.audiences.read(fields)
        if self.task.what == TELL and audience.version == self.task.version:
            self.audiences.notified(fields, audience)
        elif self.task.what == PUSH and counts.get(LIVE, 0) > above:
            self._notify(self.audiences.flip(fields, audience))
        elif self.task.what == COUNT and counts.get(LIVE, 0) < above * BACK_BELOW:
            self._notify(self.audiences.back(fields, audience))

    def _notify(self, audience: Audience) -> None:
        if audience.tells:
            task = self.task._replace(what=TELL, version=audience.version, names=(), record=None)
            fan_outs = FanOuts(self.runtime)
            fan_outs.start(task.job(self.route, self.runtime.clock()), task.version)

    def _edges(self, segment: JobSegment) -> Paged:
        first, end = segment_bounds(segment.number, self.job.segments)
        partition = self.copies.partition(EDGES, self.task.sided.fields)
        wanted = Entries("", PAGE, segment.after or first, before=end)
        found = self.copies.page(EDGES, partition, wanted)
        edges = [edge for _, edge in found]
        live = [edge for edge in edges if not edge.gone]
        rows = 0
        if self.task.what == TELL:
            rows = self.audiences.notify(live, self.audiences.read(self.task.sided.fields)) if live else 0
        elif self.task.what == PUSH and edges:
            (post,) = self.copies.read([self.task.sided])  # as it is now: an edit may have come since the fan-out began
            taken = [edge for edge in edges if takes(post, edge, keeps=self.options.keeps)]
            rows = self._visited([PostAndEdge(post, edge) for edge in taken], None)
        return Paged(found[-1][0] if len(found) == PAGE else None, {LIVE: len(live), ROWS: rows})

    def _posts(self, segment: JobSegment) -> Paged:
        now = self.task.at or self.runtime.item_clock
        first = self.copies.post_from(now - self.options.keep_seconds)
        partition = self.copies.partition(POSTS, self.task.sided.fields)
        begin = max(segment.after or "", first) if self.task.is_new else segment.after or ""
        found = self.copies.page(POSTS, partition, Entries("", PAGE, begin))
        rows = 0
        if found:
            (edge,) = self.copies.read([self.task.sided])
            taken = [
                (position, post)
                for position, post in found
                if takes(edge, post) and ((edge.gone and position >= first) or not is_over(self.route, post, now))
            ]
            older = [PostAndEdge(post, edge) for position, post in taken if position < self.task.copied_from]
            newer = [PostAndEdge(post, edge) for position, post in taken if position >= self.task.copied_from]
            rows = self._visited(older, 0) + self._visited(newer, None)
        return Paged(found[-1][0] if len(found) == PAGE else None, {ROWS: rows})

    def _visited(self, posts: list[PostAndEdge], copied: int | None) -> int:
        return self.posts.visit(posts, self._fails, fresh=self.task.is_new, copied=copied) if posts else 0

    def _fails(self, pair: PostAndEdge, error: Exception) -> None:
        """Parks the record with the copy whose row cannot be made, or raises."""
        wrong = in_feed(self.route, pair, error)
        if self.task.record is None or isinstance(wrong, EngineError):
            raise wrong
        change = self.finishing.change_of(
            _with_image(self.task.record, pair.post if self.task.what == PUSH else pair.edge)
        )
        change.version_text = self.task.version
        failed = self.finishing.triage(Failed(change, self.route, wrong))
        if failed is not None:
            raise failed.error


def in_feed(route: Route, pair: PostAndEdge, error: Exception) -> Exception:
    """The error of a row that cannot be made, with the reader of its feed; an error of the store is unchanged."""
    if isinstance(error, EngineError):
        return error
    reader = pair.edge.item[1:]
    message = (
        f"Feed {route.name!r} cannot show the post to the reader of edge {redacted(' / '.join(map(str, reader)))}: "
        f"{type(error).__name__}: {reason(error)}"
    )
    wrong = Unprocessable(message) if isinstance(error, Unprocessable) else HandlerError(message)
    wrong.__cause__ = error
    return wrong


def _with_image(record: Mapping[str, object], copy: StoredCopy) -> Mapping[str, object]:
    """The record with the image of the stored copy, if the record is of a stream."""
    body = record.get("dynamodb")
    if not isinstance(body, Mapping) or copy.gone:
        return record
    return {**record, "dynamodb": {**body, "NewImage": copy.raw}}


def finished(deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
    """Spreads the changes of a batch, one by one. One that fails does not affect the others."""
    outcome = Outcome()
    fatal: Exception | None = None
    for subscribed in deferred:
        assert isinstance(subscribed, Subscribed)
        try:
            finishing.runtime.begin()
            _spread(subscribed, finishing, outcome)
        except Exception as error:  # noqa: BLE001 - any error fails these records only
            if is_fatal(error):
                fatal = fatal or error
            else:
                _failed(subscribed, error, finishing, outcome)
    if fatal is not None:
        raise fatal
    return outcome


def reconciled(work: Work, finishing: Finishing) -> Outcome:
    """Reconciles the stored copy of an item, and all of its rows, with the item as it is now.

    The copy is read first, *then* the item. The version is above that of the copy and below that of any later record,
    so that a record that comes meanwhile wins.
    """
    outcome = Outcome()
    side = POSTS if work.role == SOURCE else EDGES
    sided = Sided(side, work.item, work.fields)
    copies = StoredCopies(finishing.runtime, work.route)
    (known,) = copies.read([sided])
    source = finishing.runtime.engine.read_source(work.item)
    asked = max((change.version_text for change in work.changes), default=BEFORE_ALL)
    is_there = bool(image_of(source)) and not (side == POSTS and passes_over(work.route, source or {}))
    now = StoredCopy(asked, work.item, source or {}, not is_there)
    kept = known.raw if side == EDGES and options_of(work.route).keeps else None
    copy = _as_it_is(known, now, copies.key_of(side), kept)
    subscribed = Subscribed(work.route, sided, copy, tuple(work.changes), 0.0, all_posts=True)
    _spread(subscribed, finishing, outcome)
    return outcome


def _spread(subscribed: Subscribed, finishing: Finishing, outcome: Outcome) -> None:
    copies = StoredCopies(finishing.runtime, subscribed.route)
    spreading = Spreading(copies, outcome.tally(subscribed.route.name))

    def fails(pair: PostAndEdge, error: Exception) -> None:
        _failed(subscribed, in_feed(subscribed.route, pair, error), finishing, outcome)

    spreading.spread(subscribed, fails)


def newest(work: Work, planning: Planning) -> list[Subscribed]:
    """The newest visible change whose image can be read; the records of unreadable ones are reported."""
    side = POSTS if work.role == SOURCE else EDGES
    for change in reversed(work.changes):
        try:
            check_view(work.route, change)
            if change.is_hidden:  # the row of each reader would be written again unchanged
                continue
            return [_subscribed(work, side, change)]
        except Exception as error:  # noqa: BLE001 - fails this record only
            planning.fails(change, work.route, error)
    return []


def _subscribed(work: Work, side: str, change: Change) -> Subscribed:
    sided = Sided(side, work.item, work.fields)
    image, before = change.new, change.old if change.has_old else None
    if image and not (side == POSTS and passes_over(work.route, image.raw)):
        copy = StoredCopy(change.version_text, work.item, image.raw, gone=False)
    else:
        kept = before.raw if before and side == EDGES and options_of(work.route).keeps else None
        copy = gone(change.version_text, work.item, side_key(work.route, side), kept)
    try:
        at = change.at.timestamp()
    except RecordError:
        at = 0.0
    return Subscribed(work.route, sided, copy, tuple(work.changes), at, before)


def _as_it_is(known: StoredCopy, now: StoredCopy, key: Key, kept: RawImage | None) -> StoredCopy:
    """The stored copy of an item as it is now, over the copy that was read before; ``kept``: of a gone edge."""
    if now.gone:
        now = gone(now.version, now.item, key, kept)
    if known.version >= now.version and known.version:
        # A copy is stored as text: its bytes are base64, and those of an item that was read may be bytes.
        alike = known.gone == now.gone and (known.gone or same({"M": known.raw}, {"M": now.raw}))
        return known if alike else now._replace(version=f"{known.version}{BY_OURSELVES}1")
    return now


def _failed(subscribed: Subscribed, error: Exception, finishing: Finishing, outcome: Outcome) -> None:
    outcome.failed += finishing.failures(subscribed.changes, subscribed.route, explained(subscribed.route, error))
