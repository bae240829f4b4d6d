"""A day of a stack with one fault or none, played minute by minute: which alarms of the template rise.

The two functions that read the stream are real, behind twins of their mappings. What CloudWatch, DynamoDB, SQS and the
two other functions measure is put beside them.
"""

import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamfold import App, Key, Router, Row, Sum
from streamfold.deploy import alarms
from streamfold.deploy.alarms import Severity
from streamfold.deploy.choices import RECORD_AGE_SECONDS
from streamfold.engines import EmbeddedEngine
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.lambda_entry.function import Function
from streamfold.lambda_entry.queue import OPEN_METRICS
from streamfold.lambda_entry.telemetry import metrics_line
from streamfold.lifecycle.verify import SAMPLE_METRICS
from streamfold.parking import FileParking
from streamfold.settings import Settings
from streamfold.testing import BucketTwin, MappingSettings, MappingTwin
from streamfold.testing.alarms import Alarms, Rise
from streamfold.testing.mapping import Throttled
from tests.helpers.records import item, record
from tests.helpers.source import Source
from tests.helpers.template import load_template
from tests.testing.streams import START, Part, Stream

MINUTE, DAY_MINUTES, WRITE_MINUTES, PERIOD_MINUTES = 60, 1440, 10, 5
"""An item is written every ten minutes; what others measure comes every five."""
FAULT = 120
"""The minute at which most faults begin."""
VERIFY = 180
"""The minute of the daily comparison."""
LINE, SALES = Key("ORDER#{order_id}", "LINE#{sku}"), Key("SALES#{day}", "TOTAL")
FUNCTIONS = ("Projector", "Searcher")
TEMPLATE = load_template()
NOBODY = range(0)


@dataclass(frozen=True)
class Faults:
    """Those of a function, each in the minutes of its range."""

    away: range = NOBODY  # the store does not answer
    every: int = 1  # but for each other call
    forbidden: range = NOBODY  # the role may not write
    stopping: range = NOBODY  # each invocation ends with an error
    throttled: range = NOBODY  # Lambda does not start the function
    off: range = NOBODY  # the mapping does not read the stream


@dataclass(frozen=True)
class Day:
    """A day, with the severity and the alarms that it has to have."""

    name: str
    severity: Severity | None = None
    alarms: frozenset[str] = frozenset()
    writes: bool = True
    records: Mapping[int, int] = field(default_factory=dict)  # more records, by minute
    poison: frozenset[int] = frozenset()  # minutes whose record no handler takes
    near: frozenset[int] = frozenset()  # minutes of an item that nearly matches the handler's key
    removed: frozenset[int] = frozenset()  # minutes at which somebody removes the row
    again: frozenset[int] = frozenset()  # minutes at which the mapping loses its checkpoint
    policy: str = "retry"
    destination: Any = "bucket"
    versions: Mapping[int, tuple[App, Settings]] = field(default_factory=dict)  # deployed, by minute
    projector: Faults = Faults()
    searcher: Faults = Faults()
    points: Iterable[tuple[range, str, str, Mapping[str, str], float]] = ()  # that others measure
    lines: Iterable[tuple[int, str, Mapping[str, float]]] = ()  # that the two other functions print

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def application(policy: Any = "retry", *, more: bool = False, correct: bool = False) -> App:
    """The handlers of both functions. ``more``: a version with another handler; ``correct``: it takes poison too."""
    router = Router()
    if more:
        router.audit(LINE, name="history")

    @router.view(LINE, into=SALES, on_error=policy)
    def sales(line: Any) -> Any:
        if line["number"] < 0 and not correct:
            raise LookupError("poison")
        yield Row(day="d", units=Sum(abs(line["number"])))

    return App("shop", routers=[router])


class FaultyStore(EmbeddedEngine):
    """A store with the faults of a day."""

    faults, calls = Faults(), 0

    def __init__(self, clock: Any) -> None:
        super().__init__(application().tables.values())
        self.clock = clock

    @property
    def minute(self) -> int:
        return int(self.clock.now - START) // MINUTE

    def transact(self, *given: Any) -> Any:
        self.calls += 1
        if self.minute in self.faults.forbidden:
            raise EngineError("The role may not write: AccessDeniedException.")
        if self.minute in self.faults.away and self.calls % self.faults.every == 0:
            raise EngineUnavailable("The store did not answer.")
        return super().transact(*given)


class Played:
    """A function on the stream, with its mapping, on one day."""

    def __init__(self, name: str, faults: Faults, day: Day, folder: Path, found: Alarms) -> None:
        self.name, self.faults, self.day, self.folder, self.found = name, faults, day, folder, found
        self.stream = Stream([Part()])
        self.engine = FaultyStore(self.stream.clock)
        self.engine.faults = faults
        self.deploy(application(day.policy), Settings(state_table="state", park="s3://failures/parked"))
        settings = MappingSettings(
            report_item_failures=True, bisect=True, retries_max=20, age_seconds_max=RECORD_AGE_SECONDS
        )
        destination = BucketTwin() if day.destination == "bucket" else day.destination
        self.twin = MappingTwin(self.stream, self, settings, destination=destination, name=name)
        self.counted = self.twin.metrics.copy()
        self.mapping = f"{name}TableStream"

    def deploy(self, app: App, settings: Settings) -> None:
        """A new execution environment, of this code and these settings."""
        self.function = Function(app, settings, client=object())
        self.function.parking = FileParking(str(self.folder / f"{self.name}.jsonl"))
        self.function.engine = self.engine
        self.function.clock = lambda: self.stream.clock.now

    def __call__(self, event: Any, context: Any) -> Any:
        if self.engine.minute in self.faults.throttled:
            raise Throttled
        if self.engine.minute in self.faults.stopping:
            raise RuntimeError("a wrong setting")
        return self.function(event, context)

    def play(self, minute: int, records: list[Any]) -> None:
        """Delivers what is due in a minute, and puts what Lambda measures."""
        begun = START + minute * MINUTE
        self.stream.shards[0].records += records
        self.stream.clock.now = max(self.stream.clock.now, begun)
        if minute in self.faults.off:
            self.twin.disable()
        else:
            self.twin.enable()
        if minute in self.day.again:
            self.twin.rewind()
        while self.stream.clock.now < begun + MINUTE:
            printed = io.StringIO()
            with redirect_stdout(printed):
                made = self.twin.step()
            at = self.stream.clock.now
            if made is None:
                break
            self._measure(at, made)
            self.found.put_lines(at, printed.getvalue())
        if minute % PERIOD_MINUTES == 0 and minute not in self.faults.off:
            self.found.put(begun, alarms.LAMBDA, "PolledEventCount", {alarms.MAPPING: self.mapping}, 0)

    def _measure(self, at: float, made: Any) -> None:
        own = {alarms.FUNCTION: self.name}
        oldest = min(each["dynamodb"]["ApproximateCreationDateTime"] for each in made.records)
        self.found.put(at, alarms.LAMBDA, "Throttles", own, made.outcome == "throttled")
        if made.outcome != "throttled":
            self.found.put(at, alarms.LAMBDA, "IteratorAge", own, 1000 * (at - oldest))
            self.found.put(at, alarms.LAMBDA, "Errors", own, made.outcome in ("error", "timeout"))
        self.found.put_counts(at, self.twin.metrics - self.counted, self.name, self.mapping)
        self.counted = self.twin.metrics.copy()


def rises_of(day: Day, folder: Path, named: Callable[[str], None]) -> list[Rise]:
    """The alarms that rise on a day. ``named``: sets the name of the function that is made next."""
    found = Alarms(TEMPLATE, {"Application": "shop"})
    functions = []
    for name, faults in zip(FUNCTIONS, (day.projector, day.searcher), strict=True):
        named(name)
        functions.append(Played(name, faults, day, folder, found))
    source = Source()
    lines = [*day.lines, *_quiet_lines(day)]
    for minute in range(DAY_MINUTES):
        at = START + minute * MINUTE
        written = list(_records(day, source, minute))
        if minute in day.versions:
            named("Projector")
            functions[0].deploy(*day.versions[minute])
        for number, each in enumerate(functions):
            each.play(minute, written if number == 0 else _without_poison(written, day))
        for name, counts in ((name, counts) for when, name, counts in lines if when == minute):
            found.put_lines(at, metrics_line({"service": "shop", "function": name}, counts))
        for minutes, *metric in day.points:
            if minute in minutes:
                found.put(at, *metric)
        if written:
            found.put(at, alarms.TABLES, "ConsumedWriteCapacityUnits", {alarms.TABLE: "Table"}, 1)
    return found.rises(START + DAY_MINUTES * MINUTE)


def _quiet_lines(day: Day) -> Iterable[tuple[int, str, Mapping[str, float]]]:
    """What the two other functions print on a day without a fault: they run by a schedule, also without traffic."""
    given = {(when, name) for when, name, _ in day.lines}
    rings = dict.fromkeys(OPEN_METRICS, 0)
    for minute in range(0, DAY_MINUTES, PERIOD_MINUTES):
        if (minute, "Spreader") not in given:
            yield minute, "Spreader", rings
    if (VERIFY, "Verifier") not in given:
        yield VERIFY, "Verifier", dict.fromkeys(SAMPLE_METRICS, 0)


def _records(day: Day, source: Source, minute: int) -> Iterable[Any]:
    at = START + minute * MINUTE

    def written(made: Any) -> Any:
        made["dynamodb"]["ApproximateCreationDateTime"] = at
        return made

    due = day.writes and minute % WRITE_MINUTES == 0
    for number in range(due + day.records.get(minute, 0)):
        yield written(source.put(f"ORDER#{minute}-{number}", "LINE#a", number=1))
    if minute in day.poison:
        yield written(source.put(f"ORDER#{minute}-poison", "LINE#a", number=-1))
    if minute in day.near:
        yield written(source.put(f"ORDER#{minute}#b", "LINE#a", number=1))
    if minute in day.removed:
        source.sequence += 7
        yield written(record(item("SALES#d", "TOTAL", units=1, _sf_n=1), None, source.sequence))


def _without_poison(records: list[Any], day: Day) -> list[Any]:
    """The records as the second function reads them: faults of data are the first one's."""
    if not (day.poison or day.near or day.removed):
        return records
    return [each for each in records if each["dynamodb"].get("NewImage", {}).get("number") == {"N": "1"}][:1]
