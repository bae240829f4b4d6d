"""Fan-outs: work on many items that goes on after its record was acknowledged, segment by segment.

A queue wakes the function that continues them. Its messages name segments and hold no content of an item.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from streamfold.engines.protocol import Entries
from streamfold.errors import Contended, RecordError, redacted, refusal, shown
from streamfold.jobs.job import Job, JobSegment, loaded, read_job, read_segments, text_of
from streamfold.ledger.state_keys import fan_outs_partition, segment_key
from streamfold.parking import queue_client
from streamfold.records.change import Change
from streamfold.records.values import to_json
from streamfold.runtime import QueuedSegment, Runtime
from streamfold.writes.guarded import DeleteState, PutState, StateKey, SwapState

SEGMENTS = 16
"""Segments of a large fan-out: one transaction opens all of them, and a queue's function works on several at once."""
DIGITS, AFTER_DIGITS = "0123456789abcdef", "g"
"""The first letters of sort positions that are digests, and what is behind them all: segments are ranges of these."""
ROWS, REMOVED = "rows", "removed"
"""The words under which a page counts the rows that it wrote and the items that it removed."""
LISTED = 1000
"""Open fan-outs that are read at a time."""
RECORD_LETTERS_MAX = 100_000
"""Longer records are not kept with a job: an item takes 400 KB."""

MESSAGES_MAX = 10
"""Messages of one call (SQS API Reference, SendMessageBatch)."""
REMEDY = "The schedule or streamfold jobs --ring queues them again."


def record_of(change: Change) -> Mapping[str, Any] | None:
    """The record of a change as a job keeps it, without its images; None if there is no record or it is too long."""
    if not change.record:
        return None
    record = dict(change.record)
    if isinstance(body := record.get("dynamodb"), Mapping):
        record["dynamodb"] = {name: value for name, value in body.items() if name not in ("NewImage", "OldImage")}
    return record if len(to_json(record)) <= RECORD_LETTERS_MAX else None


class Paged(NamedTuple):
    """The result of one page of a segment."""

    through: str | None  # the sort position of the last entry that is done; None: the segment is done to its end
    counts: Mapping[str, int]  # by word
    failing: Sequence[str] = ()  # sort positions that the segment keeps beside its cursor, to be done again
    failed: Sequence[Any] = ()  # why they failed, to be reported: ``commit.outcome.Failed``


WorkPage = Callable[[JobSegment], Paged]
"""Does the next page of a segment, behind ``after``."""


def is_over(segment: JobSegment) -> bool:
    """Whether a segment of an open fan-out is done. A missing one was done so long ago that it expired."""
    return segment.done or not segment.version


def segment_bounds(number: int, segments: int) -> tuple[str, str]:
    """The bounds of a segment among sort positions that are hexadecimal digests; none is at either bound."""
    first, last = len(DIGITS) * number // segments, len(DIGITS) * (number + 1) // segments
    return DIGITS[first], DIGITS[last] if last < len(DIGITS) else AFTER_DIGITS


class FanOuts:
    """The fan-outs of an application in a state. Each method raises the errors of the engine."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.application = runtime.application.name
        self.engine = runtime.engine

    def open(self, job: Job, version: str, *, again: bool = False) -> bool:
        """Opens a fan-out for a version of its item, or moves an open one to it; returns whether work remains.

        The job and all of its segments are written at once. Segments that have begun go on from their cursors.
        again: if the segments have the version already, every entry is passed once more.
        Raises ``Contended`` if others change the segments at every try.
        """
        # Other processes open the same fan-out: each write checks the revisions, and is planned again after a change.
        for _ in self.runtime.tries():
            segments = self.segments(job)
            known_version = max(segment.version for segment in segments)  # all were opened together
            if again:  # for a repair, which has no record, or an older one: a newer version passes every entry as well
                version = max(version, known_version)
            if known_version > version or (known_version == version and not again):
                return not all(map(is_over, segments))
            known, now = self.read(job.id), int(self.runtime.clock())
            started = job.started if known is None else known.started  # it is open since then
            begun = replace(job, started=started, version=version)
            put = PutState(self._key(job.id), text_of(begun))
            renewed = [(_renewed(segment, version, now), segment.revision) for segment in segments]
            opened = [
                SwapState(self._segment_key(job, segment.number), {"s": text_of(segment)}, revision)
                for segment, revision in renewed
            ]
            if self.engine.transact([put, *opened], self.runtime.expires_at) is None:
                return True
        raise Contended(f"Fan-out {job.id} was changed by others at every try.")

    def start(self, job: Job, version: str, *, again: bool = False) -> None:
        """Opens a fan-out, or moves an open one to the version, and queues its segments."""
        if self.open(job, version, again=again):
            self.runtime.enqueue(job.id, range(job.segments))

    def all(self) -> Iterator[Job]:
        """The open fan-outs."""
        after = ""
        while found := self.engine.read_entries(Entries(fan_outs_partition(self.application), LISTED, after)):
            yield from (loaded(Job, text, identity) for identity, text in found)
            after = found[-1][0]

    def read(self, identity: str) -> Job | None:
        """An open fan-out; None if it is done or never existed."""
        return read_job(self.engine, self._key(identity))

    def segments(self, job: Job) -> list[JobSegment]:
        """All segments of a fan-out; one that is not stored has no version."""
        return read_segments(self.engine, self.application, job, range(job.segments))

    def segment(self, job: Job, number: int) -> JobSegment:
        """One segment of a fan-out."""
        (found,) = read_segments(self.engine, self.application, job, [number])
        return found

    def work(self, job: Job, number: int, page: WorkPage) -> None:
        """Works on a segment until it is done, or until another process works on it.

        If the fan-out was moved to a newer change after the job was read, the segment is queued again, because ``page``
        is of the older change. A segment of which only failing entries remain waits for the schedule: what failed just
        now would fail again. Raises ``NotStarted`` if there is no time for another page.
        """
        segment = self.segment(job, number)
        while segment.version and not segment.done:
            if segment.version != job.version:
                self.runtime.enqueue(job.id, [number])
                return
            self.runtime.begin()
            advanced = _advanced(segment, page(segment), int(self.runtime.clock()))
            found = self._store(job, segment, advanced)
            if found != advanced and found.version == job.version:
                return  # another process has advanced it and goes on: two at once would write every row twice
            if found.passed:
                return
            segment = found

    def end(self, job: Job) -> bool:
        """Removes a fan-out whose segments are done; False if it was opened again meanwhile."""
        refused = self.engine.transact([DeleteState(self._key(job.id), text_of(job))], self.runtime.expires_at)
        return refused is None

    def drop(self, job: Job) -> bool:
        """Removes an open fan-out with its segments; False if it was opened again meanwhile."""
        gone = [DeleteState(self._segment_key(job, number)) for number in range(job.segments)]
        refused = self.engine.transact([DeleteState(self._key(job.id), text_of(job)), *gone], self.runtime.expires_at)
        return refused is None

    def _store(self, job: Job, segment: JobSegment, advanced: JobSegment) -> JobSegment:
        """Stores a segment after a page; returns the stored segment, which another process may have written."""
        attributes: dict[str, Any] = {"s": text_of(advanced)}
        if advanced.done:  # an unfinished segment must not expire: a later process has to find it
            attributes["ttl"] = self.runtime.expires_at
        stored = self.engine.swap_state(self._segment_key(job, segment.number), attributes, segment.revision)
        return advanced if stored else self.segment(job, segment.number)

    def _key(self, identity: str) -> StateKey:
        return StateKey(fan_outs_partition(self.application), identity)

    def _segment_key(self, job: Job, number: int) -> StateKey:
        return segment_key(self.application, job.id, number)


def _renewed(segment: JobSegment, version: str, now: int) -> JobSegment:
    # A newer change needs every entry once: on from the cursor to the end, then from the begin to the cursor. Entries
    # that failed are among them.
    after = None if segment.done or segment.passed else segment.after
    return JobSegment(segment.number, after, revision=segment.revision + 1, version=version, stop=after, at=now)


def _advanced(segment: JobSegment, done: Paged, now: int) -> JobSegment:
    counts = dict(Counter(segment.counts) + Counter(done.counts))
    failing = tuple(done.failing)
    advanced = replace(
        segment, after=done.through, counts=counts, revision=segment.revision + 1, at=now, failing=failing
    )
    # The second round ends where the segment was when the newer change came.
    if done.through is not None:
        is_round = segment.wrapped and segment.stop is not None and done.through >= segment.stop
    elif segment.stop is None or segment.wrapped:
        is_round = True
    else:
        return replace(advanced, wrapped=True)
    return replace(advanced, done=is_round and not failing, passed=is_round and bool(failing))


class SegmentQueue:
    """Queues segments as messages of a standard queue. A failed message is reported to ``warn``, and loses nothing."""

    def __init__(self, application: str, url: str, warn: Callable[[str], None], client: Any = None) -> None:
        self.application = application
        self.url = url
        self.warn = warn
        self.client = client or queue_client(url)

    def enqueue(
        self, queued: Iterable[QueuedSegment], enough_time: Callable[[], bool] = lambda: True
    ) -> list[QueuedSegment]:
        """Sends a message for each segment, ten a call, while there is time; returns the segments that were not sent.

        A call takes 11 seconds at most. The queue may deliver a message late or twice.
        """
        pending: list[QueuedSegment] = []
        once = list(dict.fromkeys(queued))
        for first in range(0, len(once), MESSAGES_MAX):
            each = once[first : first + MESSAGES_MAX]
            pending += self._sent(each) if enough_time() else each
        if pending:
            self.warn(f"{len(pending)} segments of fan-outs could not be queued. {REMEDY}")
        return pending

    def _sent(self, queued: list[QueuedSegment]) -> list[QueuedSegment]:
        """Sends some messages in one call; returns the segments whose messages the queue did not take."""
        from botocore.exceptions import BotoCoreError, ClientError

        entries = [{"Id": str(number), "MessageBody": self._text(each)} for number, each in enumerate(queued)]
        try:
            answer = self.client.send_message_batch(QueueUrl=self.url, Entries=entries)
        except ClientError as error:
            self.warn(
                f"The queue of STREAMFOLD_JOBS did not take a message ({refusal(error)}). The function needs "
                "sqs:SendMessage there."
            )
            return queued
        except BotoCoreError as error:
            self.warn(f"The queue of STREAMFOLD_JOBS could not be reached ({type(error).__name__}: {redacted(error)}).")
            return queued
        refused = answer.get("Failed", ())
        if refused:
            self.warn(f"The queue of STREAMFOLD_JOBS did not take a message ({refused[0]['Code']}).")
        return [queued[int(each["Id"])] for each in refused]

    def _text(self, queued: QueuedSegment) -> str:
        fan_out, segment = queued
        return json.dumps({"application": self.application, "fan_out": fan_out, "lane": segment})


def read_message(text: Any, application: str) -> QueuedSegment:
    """The segment that a message queues. Raises ``RecordError`` for another text, and for another application."""
    try:
        content = json.loads(text)
        named, fan_out, segment = content["application"], content["fan_out"], content["lane"]
    except (KeyError, TypeError, ValueError):
        named = fan_out = segment = None
    valid = isinstance(named, str) and isinstance(fan_out, str) and isinstance(segment, int) and segment >= 0
    if not valid or isinstance(segment, bool):
        raise RecordError(
            f"The message {shown(text)} names no segment: expected "
            '{"application": NAME, "fan_out": ID, "lane": NUMBER}, as STREAMFOLD_JOBS gets them.'
        )
    if named != application:
        raise RecordError(
            f"The message names application {named!r}, and this function is of {application!r}: each application "
            "needs a queue of its own in STREAMFOLD_JOBS."
        )
    return fan_out, segment
