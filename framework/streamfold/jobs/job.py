"""A job and its segments, each an item of the state: a process that runs them may be killed, or run twice at once."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any, Protocol, TypeVar

from streamfold.engines.deadline import Deadline
from streamfold.engines.protocol import Engine, Entries
from streamfold.errors import Contended, SettingsError, damaged
from streamfold.ledger.state_keys import jobs_partition, segment_key, segments_partition
from streamfold.runtime import Runtime
from streamfold.settings.limits import SECONDS_A_DAY
from streamfold.writes.guarded import StateKey

KEPT_DAYS = 90
"""How long a job is kept after its end, and a segment after its last page."""
JOBS_MAX = 1000
"""The newest jobs are listed, up to this number."""
SEGMENTS_MAX = 1_000_000
"""Segments of a parallel scan (API Reference, Scan)."""

ENDLESS = Deadline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run over many items."""

    id: str  # sorts by the time of the start
    what: str  # the command: "backfill"
    handlers: tuple[str, ...]
    table: str  # the logical name of the table whose keys are read
    segments: int
    started: int  # epoch seconds
    by: str  # the user or process that started it
    read_units: int = 0  # the most in a second; 0: no limit
    write_units: int = 0
    paused: bool = False
    ended: int = 0  # epoch seconds; 0: not yet
    done: bool = False  # it ended with all of its segments read
    counts: Mapping[str, int] = field(default_factory=dict)  # the sum of its segments, from its end on
    options: Mapping[str, Any] = field(default_factory=dict)  # known to this command only, as JSON
    revision: int = 0
    version: str = ""  # of a fan-out: the version of its change, as its segments have it

    def __post_init__(self) -> None:
        object.__setattr__(self, "handlers", tuple(self.handlers))


@dataclass(frozen=True, slots=True)
class JobSegment:
    """How far a segment of a job is."""

    number: int
    after: str | None = None  # the cursor: a position of a scan, the line of a file; None: at its begin
    counts: Mapping[str, int] = field(default_factory=dict)  # of the work done, by word
    done: bool = False
    revision: int = 0
    version: str = ""  # of a fan-out: the version of its change
    stop: str | None = None  # of a fan-out: where the second round ends; None: there is no second round
    wrapped: bool = False  # of a fan-out: it passed the end, and goes on to ``stop``
    at: int = 0  # of a fan-out: when its cursor last changed, epoch seconds
    failing: tuple[str, ...] = ()  # of a fan-out: sort positions that it passed, and whose entries have to be done yet
    passed: bool = False  # of a fan-out: all pages are done, and only ``failing`` remain

    def __post_init__(self) -> None:
        object.__setattr__(self, "failing", tuple(self.failing))


class Jobs:
    """The jobs of an application in a state. ``clock``: epoch seconds. ``deadline`` bounds the tries of a change.

    Each method raises the errors of the engine.
    """

    def __init__(
        self,
        application: str,
        engine: Engine,
        clock: Callable[[], float] = time.time,
        deadline: Deadline | None = None,
    ) -> None:
        self.application = application
        self.engine = engine
        self.clock = clock
        self.deadline = deadline or Deadline()

    @classmethod
    def of(cls, runtime: Runtime) -> "Jobs":
        """The jobs of the runtime's application, on its store and until its end."""
        return cls(runtime.application.name, runtime.store, runtime.clock, runtime)

    def create(self, what: str, handlers: tuple[str, ...], table: str, segments: int, **given: Any) -> Job:
        """Stores a new job. ``given``: ``by``, and other fields of ``Job``.

        Raises ``SettingsError`` for impossible segments or rates.
        """
        now = int(self.clock())
        begin = f"{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}"
        # Two jobs may begin in the same second: an id that is taken is drawn again.
        for _ in self.deadline.tries():
            identity = f"{begin}-{token_hex(2)}"
            job = Job(id=identity, what=what, handlers=handlers, table=table, segments=segments, started=now, **given)
            if (stored := self._store(_checked(job))) is not None:
                return stored
        raise Contended("No id was found for a new job.")

    def read(self, identity: str) -> Job | None:
        """A job; None for an unknown id."""
        return read_job(self.engine, self._key(identity))

    def known(self, identity: str) -> Job:
        """A job. Raises ``SettingsError`` for an unknown id."""
        job = self.read(identity)
        if job is None:
            raise SettingsError(f"Job {identity} is not known: streamfold jobs lists the known ones.")
        return job

    def all(self) -> list[Job]:
        """The kept jobs, the newest first."""
        wanted = Entries(jobs_partition(self.application), JOBS_MAX, descending=True)
        return [loaded(Job, text, identity) for identity, text in self.engine.read_entries(wanted)]

    def change(self, identity: str, **changes: Any) -> Job:
        """Changes ``paused``, ``read_units`` or ``write_units`` of a job that has not ended.

        Raises ``SettingsError`` if the job is unknown or has ended, and ``Contended`` if others change it at every try.
        """
        # Each try checks the revision that it read: a change by another process must not be overwritten.
        for _ in self.deadline.tries():
            found = self.known(identity)
            if found.ended:
                raise SettingsError(f"Job {identity} has ended: nothing of it can be changed.")
            if (stored := self._store(_checked(replace(found, **changes)))) is not None:
                return stored
        raise Contended(f"Job {identity} was changed by others at every try.")

    def gone_on(self, job: Job, read_units: int = 0, write_units: int = 0) -> Job:
        """A stopped job as it goes on, at the given rates; 0: at its own."""
        given = {"read_units": read_units or job.read_units, "write_units": write_units or job.write_units}
        return job if given == {name: getattr(job, name) for name in given} else self.change(job.id, **given)

    def segment(self, job: Job, number: int) -> JobSegment:
        """The progress of a segment."""
        (found,) = read_segments(self.engine, self.application, job, [number])
        return found

    def segments(self, job: Job) -> dict[int, JobSegment]:
        """The segments that were begun, by number."""
        found = self.engine.read_entries(Entries(segments_partition(self.application, job.id), job.segments))
        segments = (loaded(JobSegment, text, job.id) for _, text in found)
        return {segment.number: segment for segment in segments}

    def pending(self, job: Job) -> Iterator[JobSegment]:
        """The segments that are not done, begun or not."""
        begun = self.segments(job)
        found = (begun.get(number) or JobSegment(number) for number in range(job.segments))
        return (segment for segment in found if not segment.done)

    def advance(self, job: Job, segment: JobSegment, after: str | None, counts: Mapping[str, int]) -> JobSegment:
        """Stores a segment's progress after a page; returns the stored segment.

        after: where the next page begins; None: the segment is done.
        counts: of the page, by word. They are lost if another run has advanced the segment meanwhile: then the
        segment is returned as that run stored it.
        """
        total = dict(Counter(segment.counts) + Counter(counts))
        changed = JobSegment(segment.number, after, total, after is None, segment.revision + 1)
        key = segment_key(self.application, job.id, segment.number)
        attributes = {"s": text_of(changed), "ttl": self._expires()}
        stored = self.engine.swap_state(key, attributes, segment.revision)
        return changed if stored else self.segment(job, segment.number)

    def end(self, identity: str) -> Job:
        """Ends a job, done or not, with the sums of its segments' counts. It is kept for ``KEPT_DAYS``."""
        # A pause or a new rate may come in between: the job is read again, so that neither is lost.
        for _ in self.deadline.tries():
            job = self.known(identity)
            if job.ended:
                return job
            begun = self.segments(job).values()
            done = sum(segment.done for segment in begun) == job.segments
            counts = sum((Counter(segment.counts) for segment in begun), Counter[str]())
            ended = replace(job, ended=int(self.clock()), done=done, counts=dict(counts))
            if (stored := self._store(ended)) is not None:
                return stored
        raise Contended(f"Job {identity} was changed by others at every try.")

    def _store(self, job: Job) -> Job | None:
        """Writes a job over the revision that was read; None if another process has written it since."""
        stored, key = replace(job, revision=job.revision + 1), self._key(job.id)
        attributes = {"s": text_of(stored), **({"ttl": self._expires()} if job.ended else {})}
        if self.engine.swap_state(key, attributes, job.revision):
            return stored
        # The answer to an earlier try may be lost: the same text in the state is this very write.
        found = self.engine.read_state([key], consistent=True).get(key, {})
        return stored if found.get("s") == attributes["s"] else None

    def _key(self, identity: str) -> StateKey:
        return StateKey(jobs_partition(self.application), identity)

    def _expires(self) -> int:
        return int(self.clock()) + KEPT_DAYS * SECONDS_A_DAY


Loaded = TypeVar("Loaded", Job, JobSegment)


def _checked(job: Job) -> Job:
    if not 1 <= job.segments <= SEGMENTS_MAX:
        raise SettingsError(f"A job has {job.segments} segments: expected 1 to {SEGMENTS_MAX}.")
    if job.read_units < 0 or job.write_units < 0:
        raise SettingsError("A rate is below 0: expected units a second, or 0 for no limit.")
    return job


def read_job(engine: Engine, key: StateKey) -> Job | None:
    """The job of a key, read consistently; None if there is none."""
    found = engine.read_state([key], consistent=True).get(key)
    return None if found is None else loaded(Job, found.get("s"), key.sk)


def read_segments(engine: Engine, application: str, job: Job, numbers: Iterable[int]) -> list[JobSegment]:
    """The segments of these numbers; one that is not stored has not begun."""
    keys = {number: segment_key(application, job.id, number) for number in numbers}
    found = engine.read_state(keys.values(), consistent=True)
    return [
        loaded(JobSegment, found[key].get("s"), job.id) if key in found else JobSegment(number)
        for number, key in keys.items()
    ]


def text_of(kept: Job | JobSegment) -> str:
    return json.dumps({each.name: getattr(kept, each.name) for each in fields(kept)}, sort_keys=True, default=dict)


def loaded(kind: type[Loaded], text: Any, identity: str) -> Loaded:
    """A job or segment from its text, without fields of newer code. Raises ``EngineError`` for a damaged one."""
    try:
        known = {each.name for each in fields(kind)}
        return kind(**{name: value for name, value in json.loads(text).items() if name in known})
    except (AttributeError, TypeError, ValueError):
        raise damaged(f"Job {identity}") from None


class RunSegments(Protocol):
    """The segments of a run, by number."""

    def pending(self) -> list[int]:
        """The numbers of the segments that are not done."""
        ...

    def run_segment(self, number: int, until: Deadline = ENDLESS) -> JobSegment:
        """Works on a segment from its cursor on, while ``until`` has time, and returns its progress.

        The cursor is stored after each page. A repeated page changes nothing. Raises the errors of reads and writes,
        and ``SettingsError`` if somebody has ended the job.
        """
        ...


def run_here(segments: RunSegments, done: Callable[[int], None] = lambda _: None) -> None:
    """Runs all segments in this process, one after another; ``done`` is called with each that is done."""
    for number in segments.pending():
        segments.run_segment(number)
        done(number)
