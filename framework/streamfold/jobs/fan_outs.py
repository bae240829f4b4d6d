"""Fan-outs: work on many items that goes on after its record was acknowledged, lane by lane.

A lane is a segment of a job, and a circle: a newer change begins where the lane is, goes on past the end, and ends
where it began. So every place is passed once after the newest change, and an item that changes again and again starves
no place. A lane moves on only after its page is done, under its revision: whoever works on it may be killed, or be two.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from streamfold.engines import Engine, Entries
from streamfold.errors import Contended
from streamfold.jobs.job import Job, JobSegment, loaded, read_job, read_segments, text_of
from streamfold.ledger.state_keys import fan_outs_partition, segment_key
from streamfold.records.change import Change
from streamfold.records.encoded import to_json
from streamfold.run import Run
from streamfold.writes.guarded import DeleteState, PutState, StateKey, SwapState

LANES = 16
"""Lanes of a large fan-out: a transaction opens all of them, and a queue's function works on several at once."""
ROWS, REMOVED = "rows", "removed"
"""The words under which a page counts the rows that it wrote, and the items that it removed."""
LISTED = 1000
"""Open fan-outs that are read at a time."""
RECORD_LETTERS_MAX = 100_000
"""Longer records are not kept with a job: an item takes 400 KB."""


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

    def __init__(self, application: str, engine: Engine, run: Run) -> None:
        self.application = application
        self.engine = engine
        self.run = run

    def open(self, job: Job, version: str, *, again: bool = False) -> bool:
        """Opens a fan-out for a version of its item, or leads an open one to it; returns whether it is to be worked on.

        The job and all of its lanes are written at once. Lanes that are on their way go on from where they are.
        again: where the lanes have the version already, every place is passed once more.
        Raises ``Contended`` if others change the lanes at every try.
        """
        for _ in self.run.tries():
            lanes = self.lanes(job)
            known_version = max(lane.version for lane in lanes)  # all were opened together
            if known_version > version or (known_version == version and not again):
                return not all(map(is_over, lanes))
            known, now = self.read(job.id), int(self.run.clock())
            started = job.started if known is None else known.started  # it is open since then
            begun = replace(job, started=started, version=version)
            put = PutState(self._key(job.id), text_of(begun))
            opened = [self._write(job, _renewed(lane, version, now), lane.revision) for lane in lanes]
            if self.engine.transact([put, *opened], self.run.expires_at) is None:
                return True
        raise Contended(f"Fan-out {job.id} was changed by others at every try.")

    def start(self, job: Job, version: str, *, again: bool = False) -> None:
        """Opens a fan-out for a version of its item, or leads an open one to it, and rings for its lanes."""
        if self.open(job, version, again=again):
            self.run.ring(job.id, range(job.segments))

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
                self.run.ring(job.id, [number])
                return
            self.run.begin()
            moved = _moved(lane, page(lane), int(self.run.clock()))
            found = self._store(job, lane, moved)
            if found != moved and found.version == job.version:
                return  # another has moved it, and goes on: two at once would write every row twice
            lane = found

    def end(self, job: Job) -> bool:
        """Takes a fan-out whose lanes are done from those that are open; False if it was opened again meanwhile."""
        refused = self.engine.transact([DeleteState(self._key(job.id), text_of(job))], self.run.expires_at)
        return refused is None

    def drop(self, job: Job) -> bool:
        """Takes an open fan-out out of the state, with its lanes; False if it was opened again meanwhile."""
        gone = [DeleteState(self._lane_key(job, number)) for number in range(job.segments)]
        refused = self.engine.transact([DeleteState(self._key(job.id), text_of(job)), *gone], self.run.expires_at)
        return refused is None

    def _store(self, job: Job, lane: JobSegment, moved: JobSegment) -> JobSegment:
        """Moves a lane on; returns how far it is then, by this move or by another."""
        attributes: dict[str, Any] = {"s": text_of(moved)}
        if moved.done:  # one that stands still has to be there when somebody goes on
            attributes["ttl"] = self.run.expires_at
        stored = self.engine.swap_state(self._lane_key(job, lane.number), attributes, lane.revision)
        return moved if stored else self.lane(job, lane.number)

    def _write(self, job: Job, lane: JobSegment, revision: int) -> SwapState:
        return SwapState(self._lane_key(job, lane.number), {"s": text_of(lane)}, revision)

    def _key(self, identity: str) -> StateKey:
        return StateKey(fan_outs_partition(self.application), identity)

    def _lane_key(self, job: Job, number: int) -> StateKey:
        return segment_key(self.application, job.id, number)


def _renewed(lane: JobSegment, version: str, now: int) -> JobSegment:
    """The lane for a newer change: a whole circle from where it is."""
    after = None if lane.done else lane.after
    return JobSegment(lane.number, after, revision=lane.revision + 1, version=version, stop=after, at=now)


def _moved(lane: JobSegment, done: Paged, now: int) -> JobSegment:
    """The lane after a page."""
    counts = dict(Counter(lane.counts) + Counter(done.counts))
    moved = replace(lane, after=done.through, counts=counts, revision=lane.revision + 1, at=now)
    if done.through is not None:
        is_round = lane.wrapped and lane.stop is not None and done.through >= lane.stop
        return replace(moved, done=is_round)
    if lane.stop is None or lane.wrapped:
        return replace(moved, done=True)
    return replace(moved, wrapped=True)
