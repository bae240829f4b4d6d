"""Fan-outs: work on many items that goes on after its record was acknowledged, segment by segment.

A queue wakes the function that goes on with them. Its messages name segments, and hold nothing of an item.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from streamfold.engines import Entries
from streamfold.errors import Contended, RecordError, redacted, refusal, shown
from streamfold.jobs.job import Job, JobSegment, loaded, read_job, read_segments, text_of
from streamfold.ledger.state_keys import fan_outs_partition, segment_key
from streamfold.parking import queue_client
from streamfold.records.change import Change
from streamfold.records.encoded import to_json
from streamfold.runtime import QueuedSegment, Runtime
from streamfold.writes.guarded import DeleteState, PutState, StateKey, SwapState

LANES = 16
"""Lanes of a large fan-out: a transaction opens all of them, and a queue's function works on several at once."""
ROWS, REMOVED = "rows", "removed"
"""The words under which a page counts the rows that it wrote, and the items that it removed."""
LISTED = 1000
"""Open fan-outs that are read at a time."""
RECORD_LETTERS_MAX = 100_000
"""Longer records are not kept with a job: an item takes 400 KB."""

MESSAGES_MAX = 10
"""Messages of one call (SQS API Reference, SendMessageBatch)."""
REMEDY = "The schedule, or streamfold jobs --ring, rings again."


def record_of(change: Change) -> Mapping[str, Any] | None:
    """The record of a change as a job keeps it, without its images; None for one that is too long, or for none."""
    if not change.record:
        return None
    record = dict(change.record)
    if isinstance(body := record.get("dynamodb"), Mapping):
        record["dynamodb"] = {name: value for name, value in body.items() if name not in ("NewImage", "OldImage")}
    return record if len(to_json(record)) <= RECORD_LETTERS_MAX else None


class Paged(NamedTuple):
    """What one page of a lane did."""

    through: str | None  # the last place that is done; None: all that there is to the end of the lane
    counts: Mapping[str, int]  # by word


WorkPage = Callable[[JobSegment], Paged]
"""Does the next page of a lane, behind ``after``."""


def is_over(lane: JobSegment) -> bool:
    """Whether a lane of an open fan-out is done; one that is not there was done so long ago that it expired."""
    return lane.done or not lane.version


class FanOuts:
    """The fan-outs of an application in a state. Each method raises what the engine raises."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.application = runtime.application.name
        self.engine = runtime.engine

    def open(self, job: Job, version: str, *, again: bool = False) -> bool:
        """Opens a fan-out for a version of its item, or leads an open one to it; returns whether it is to be worked on.

        The job and all of its lanes are written at once. Lanes that are on their way go on from where they are.
        again: where the lanes have the version already, every place is passed once more.
        Raises ``Contended`` if others change the lanes at every try.
        """
        for _ in self.runtime.tries():
            lanes = self.lanes(job)
            known_version = max(lane.version for lane in lanes)  # all were opened together
            if known_version > version or (known_version == version and not again):
                return not all(map(is_over, lanes))
            known, now = self.read(job.id), int(self.runtime.clock())
            started = job.started if known is None else known.started  # it is open since then
            begun = replace(job, started=started, version=version)
            put = PutState(self._key(job.id), text_of(begun))
            opened = [self._write(job, _renewed(lane, version, now), lane.revision) for lane in lanes]
            if self.engine.transact([put, *opened], self.runtime.expires_at) is None:
                return True
        raise Contended(f"Fan-out {job.id} was changed by others at every try.")

    def start(self, job: Job, version: str, *, again: bool = False) -> None:
        """Opens a fan-out for a version of its item, or leads an open one to it, and rings for its lanes."""
        if self.open(job, version, again=again):
            self.runtime.enqueue(job.id, range(job.segments))

    def all(self) -> Iterator[Job]:
        """The fan-outs that are open."""
        after = ""
        while found := self.engine.read_entries(Entries(fan_outs_partition(self.application), LISTED, after)):
            yield from (loaded(Job, text, place) for place, text in found)
            after = found[-1][0]

    def read(self, identity: str) -> Job | None:
        """An open fan-out; None if it is done, or was never there."""
        return read_job(self.engine, self._key(identity))

    def lanes(self, job: Job) -> list[JobSegment]:
        """All lanes of a fan-out; those that are not there have no version."""
        return read_segments(self.engine, self.application, job, range(job.segments))

    def lane(self, job: Job, number: int) -> JobSegment:
        """One lane of a fan-out."""
        (found,) = read_segments(self.engine, self.application, job, [number])
        return found

    def work(self, job: Job, number: int, page: WorkPage) -> None:
        """Works on a lane until it is done, or another works on it.

        If the fan-out is led to a newer change after the job was read, it rings for the lane, because ``page`` is of
        the older one. Raises ``NotStarted`` when there is no time for another page.
        """
        lane = self.lane(job, number)
        while lane.version and not lane.done:
            if lane.version != job.version:
                self.runtime.enqueue(job.id, [number])
                return
            self.runtime.begin()
            changed = _changed(lane, page(lane), int(self.runtime.clock()))
            found = self._store(job, lane, changed)
            if found != changed and found.version == job.version:
                return  # another has moved it, and goes on: two at once would write every row twice
            lane = found

    def end(self, job: Job) -> bool:
        """Takes a fan-out whose lanes are done from those that are open; False if it was opened again meanwhile."""
        refused = self.engine.transact([DeleteState(self._key(job.id), text_of(job))], self.runtime.expires_at)
        return refused is None

    def drop(self, job: Job) -> bool:
        """Takes an open fan-out out of the state, with its lanes; False if it was opened again meanwhile."""
        gone = [DeleteState(self._shard_key(job, number)) for number in range(job.segments)]
        refused = self.engine.transact([DeleteState(self._key(job.id), text_of(job)), *gone], self.runtime.expires_at)
        return refused is None

    def _store(self, job: Job, lane: JobSegment, changed: JobSegment) -> JobSegment:
        """Moves a lane on; returns how far it is then, by this move or by another."""
        attributes: dict[str, Any] = {"s": text_of(changed)}
        if changed.done:  # one that stands still has to be there when somebody goes on
            attributes["ttl"] = self.runtime.expires_at
        stored = self.engine.swap_state(self._shard_key(job, lane.number), attributes, lane.revision)
        return changed if stored else self.lane(job, lane.number)

    def _write(self, job: Job, lane: JobSegment, revision: int) -> SwapState:
        return SwapState(self._shard_key(job, lane.number), {"s": text_of(lane)}, revision)

    def _key(self, identity: str) -> StateKey:
        return StateKey(fan_outs_partition(self.application), identity)

    def _shard_key(self, job: Job, number: int) -> StateKey:
        return segment_key(self.application, job.id, number)


def _renewed(lane: JobSegment, version: str, now: int) -> JobSegment:
    """The lane for a newer change: a whole circle from where it is."""
    after = None if lane.done else lane.after
    return JobSegment(lane.number, after, revision=lane.revision + 1, version=version, stop=after, at=now)


def _changed(lane: JobSegment, done: Paged, now: int) -> JobSegment:
    """The lane after a page."""
    counts = dict(Counter(lane.counts) + Counter(done.counts))
    changed = replace(lane, after=done.through, counts=counts, revision=lane.revision + 1, at=now)
    if done.through is not None:
        is_round = lane.wrapped and lane.stop is not None and done.through >= lane.stop
        return replace(changed, done=is_round)
    if lane.stop is None or lane.wrapped:
        return replace(changed, done=True)
    return replace(changed, wrapped=True)


class SegmentQueue:
    """Rings for lanes by messages of a standard queue. A ring that fails is told to ``warn``, and loses nothing."""

    def __init__(self, application: str, url: str, warn: Callable[[str], None], client: Any = None) -> None:
        self.application = application
        self.url = url
        self.warn = warn
        self.client = client or queue_client(url)

    def enqueue(
        self, queued: Iterable[QueuedSegment], enough_time: Callable[[], bool] = lambda: True
    ) -> list[QueuedSegment]:
        """Sends a message for each lane, ten a call, as long as there is time; returns the lanes that it did not send.

        A call takes 11 seconds at most. Whether a message is delivered once, twice or late is the queue's matter.
        """
        left: list[QueuedSegment] = []
        once = list(dict.fromkeys(queued))
        for first in range(0, len(once), MESSAGES_MAX):
            each = once[first : first + MESSAGES_MAX]
            left += self._sent(each) if enough_time() else each
        if left:
            self.warn(f"{len(left)} lanes of fan-outs were not rung for. {REMEDY}")
        return left

    def _sent(self, queued: list[QueuedSegment]) -> list[QueuedSegment]:
        """Sends some messages in one call; returns the lanes of those that the queue did not take."""
        from botocore.exceptions import BotoCoreError, ClientError

        entries = [{"Id": str(number), "MessageBody": self._text(each)} for number, each in enumerate(queued)]
        try:
            answer = self.client.send_message_batch(QueueUrl=self.url, Entries=entries)
        except ClientError as error:
            self.warn(
                f"The queue of STREAMFOLD_JOBS did not take a ring ({refusal(error)}). The function needs "
                "sqs:SendMessage there."
            )
            return queued
        except BotoCoreError as error:
            self.warn(f"The queue of STREAMFOLD_JOBS could not be reached ({type(error).__name__}: {redacted(error)}).")
            return queued
        refused = answer.get("Failed", ())
        if refused:
            self.warn(f"The queue of STREAMFOLD_JOBS did not take a ring ({refused[0]['Code']}).")
        return [queued[int(each["Id"])] for each in refused]

    def _text(self, queued: QueuedSegment) -> str:
        fan_out, lane = queued
        return json.dumps({"application": self.application, "fan_out": fan_out, "lane": lane})


def read_message(text: Any, application: str) -> QueuedSegment:
    """What a message rings for. Raises ``RecordError`` for one that is none, or of another application."""
    try:
        content = json.loads(text)
        named, fan_out, lane = content["application"], content["fan_out"], content["lane"]
    except (KeyError, TypeError, ValueError):
        named = fan_out = lane = None
    valid = isinstance(named, str) and isinstance(fan_out, str) and isinstance(lane, int) and lane >= 0
    if not valid or isinstance(lane, bool):
        raise RecordError(
            f"The message {shown(text)} rings for no lane: expected "
            '{"application": NAME, "fan_out": ID, "lane": NUMBER}, as STREAMFOLD_JOBS gets them.'
        )
    if named != application:
        raise RecordError(
            f"The message rings for application {named!r}, and this function is of {application!r}: each application "
            "needs a queue of its own in STREAMFOLD_JOBS."
        )
    return fan_out, lane
