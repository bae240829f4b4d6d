"""One call that proves an application: histories are drawn, run under faults, and compared with an oracle."""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from pprint import pformat
from random import Random
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from streamfold.app import App
from streamfold.errors import SettingsError, joined_key, plain, shown
from streamfold.keys.key import Key
from streamfold.proofs import driver, faults, handlers, histories, store
from streamfold.proofs.annotations import drawn_items
from streamfold.proofs.coverage import TakenExample, by_reason, missing, not_injected, taken, unproved
from streamfold.proofs.determinism import check_deterministic
from streamfold.proofs.driver import Driver
from streamfold.proofs.faults import Budget, Choices, Drawn, Script, Scripted, shortened
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.histories import Shape, changes_of, drawn, examples_of, item_keys, recorded_shapes, shapes_of
from streamfold.proofs.memory import Remembered
from streamfold.proofs.moments import TIME, near_moments
from streamfold.proofs.oracle import ExpectedRows, at_moment, attribute_names, expected_all
from streamfold.proofs.processes import PROCESSES, Elsewhere
from streamfold.proofs.store import drawn_pace
from streamfold.records.change import Change
from streamfold.records.envelope import KINESIS, STREAM, Origins
from streamfold.replay.files import BadLine, RecordedFiles, check_files
from streamfold.replay.mismatches import NamedAttributes
from streamfold.settings import Settings
from streamfold.testing.items import TwinError
from streamfold.testing.stream import START
from streamfold.testing.twin import Write, check_application

HISTORIES = 500
CHANGES = 16
"""Writes in a history."""
RATES = (0.01, 0.05, 0.2)
"""Shares of the points of choice that deviate: from a single fault to hardly a call that works."""
SHARDS = (1, 2, 3)
ACTIONS = (2, 10, 25, 100)
EXAMPLES = 20
"""Items that are drawn from a strategy."""
DELTAS_EACH = 4
"""Of so many histories one puts additions to shared rows into deltas, as processes do that meet others."""
DIFFERENCES_SHOWN_MAX = 10

NOTHING: Script = MappingProxyType({})
HistorySource = Literal["stream", "kinesis"]


class Scenario(NamedTuple):
    """One complete run: the writes, the number of shards, the actions of a transaction, the faults by point, and the
    ``source`` of records: a DynamoDB stream (``stream``) or Kinesis (``kinesis``). ``pace``: the writes between two
    invocations, for an application whose handlers write to items. ``start``: the time of the first write, epoch
    seconds.
    """

    writes: tuple[Write, ...]
    shards: int = 1
    actions: int = 25
    script: Script = NOTHING
    source: str = STREAM
    pace: int = 0
    deltas: int = 0  # additions to shared rows go through deltas, others for each number; 0: none does
    start: float = START


MEANINGS: Mapping[str, str] = {
    "refused": "the store refuses a transaction for good",
    "conflict": "the store refuses a transaction because another one is under way",
    "throttled": "the store refuses a transaction because its table is throttled",
    "applied-twice": "a call is carried out twice",
    "unavailable": "a call is not carried out, and the caller does not know",
    "answer-lost": "a call is carried out, and the caller does not know",
    "dies-before": "the process dies before a call",
    "dies-after": "the process dies after a call, before it notes the answer",
    "lands-late": "a call seems to fail, and is carried out later",
    "dies-and-lands-late": "the process dies, and its last call is carried out later",
    "half-applied": "a call for several items is carried out for half of them",
    "stale-read": "a read finds what was there before the last write",
    "lands-at-the-next-call": "a late call is carried out at the next call",
    "lands-after-many-calls": "a late call is carried out many calls later",
    "lands-at-the-end": "a late call is carried out once nothing else fails any more",
    "last-first": "of the calls in flight the last one is made first",
    "all-before-an-answer": "all calls in flight are made before one is answered",
    "all-before-an-answer-backwards": "the same, the last call first",
    "arrives-late": "a record of Kinesis comes behind some later ones",
    "arrives-last": "a record of Kinesis comes behind all others",
    "arrives-twice": "a record of Kinesis comes a second time",
    "bell-lost": "the message that a fan-out is to go on is lost",
    "bell-twice": "the message that a fan-out is to go on comes twice",
    "batches-of-1": "a batch has one record",
    "batches-of-2": "a batch has two records",
    "batches-of-3": "a batch has three records",
    "batches-of-7": "a batch has seven records",
    "each-record-twice": "a batch has each of its records twice",
    "rewound": "after a batch, the shard is read again from a few records before",
    "checkpoint-lost": "after a batch, the shard is read again from its beginning",
    "skipped": "a record is given up untried, and redriven at the end",
    "shuffled": "a batch has its records in any order",
    "out-of-time": "the time of an invocation ends after a few calls",
    "repair": "an item is repaired, before a batch or between two calls of one",
    "other-process": "another process of the same application takes the next batch",
    "overlap": "another invocation processes the same batch, between two calls of this one",
    "other-shard": "another invocation processes a batch of another shard, between two calls of this one",
    "written-meanwhile": "the application writes an item, between two calls of an invocation",
    "wakes-meanwhile": "hours pass, and items are derived again at their moments, between two calls of an invocation",
    "redriven-early": "records that were given up are redriven before the last ones are delivered",
    "redriven-shuffled": "records that were given up are redriven in any order",
    "redriven-twice": "records that were given up are redriven twice",
    "replayed": "records that were given up are delivered again as they were, in place of a redrive",
    "late-writes-land-last": "late calls are carried out after the last record",
    "all-delivered-again": "at the end, every record is delivered once more",
    "wakes-left-out": "behind a batch, nobody looks for items whose moment has come",
    "wakes-twice": "items whose moment has come are derived again twice",
    "hours-pass": "hours pass behind a batch",
    "clock-behind": "the process that looks for moments has a clock that is five minutes behind",
    "clock-ahead": "the process that looks for moments has a clock that is five minutes ahead",
    "put-back": "the application puts an item with the attributes that handlers derived onto it",
    "put-back-old": "the same, with the attributes that were derived onto it first",
    "put-back-unmarked": "the same, without the mark of whose attributes they are",
    "raises-once": "a handler raises at one call",
    "raises-for-one": "a handler raises for one item, as often as it comes",
    "raises-always": "a handler raises at every call, until it is corrected",
    "switched-off": "a handler is switched off for a batch, and its records are parked",
}
"""By the names of all faults, in their order."""

STORE = tuple(dict.fromkeys(fault for options in faults.FAULTS.values() for fault in options))
DELIVERY = (
    *histories.ARRIVAL,
    *driver.QUEUE_FAULTS,
    *driver.BATCHES,
    *driver.DELIVERY,
    *driver.MEANWHILE,
    *driver.REDRIVE,
    *driver.END,
    *TIME,
)
FAULTS = tuple(dict.fromkeys((*STORE, *faults.LANDING, *faults.OTHERWISE, *DELIVERY, *store.PUTS, *handlers.FAULTS)))
"""Every fault: of the store's calls, of deliveries, of the application's writes, of user code."""


def chosen(names: Collection[str] | None) -> frozenset[str] | None:
    """The names of these faults as a set; None for all. Raises ``TwinError`` for a name that is no fault."""
    if names is None:
        return None
    for name in names:
        if name not in FAULTS:
            near = get_close_matches(name, FAULTS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TwinError(f"Fault {name!r} is not known.{hint} Expected some of: {', '.join(FAULTS)}.")
    return frozenset(names)


@dataclass(slots=True)
class Proof:
    """The counts of a proof that held. ``faults`` counts by kind, ``events`` by INSERT, MODIFY and REMOVE; ``offered``
    names the faults that could have been injected. ``unproved`` names handlers that it does not prove, ``left_out`` the
    other gaps.
    """

    seed: int
    unproved: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    histories: int = 0
    changes: int = 0
    deliveries: int = 0
    seconds: float = 0
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    offered: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        kinds = [f"  {count:>8,}  {name}" for name, count in sorted(self.faults.items())]
        return "\n".join([f"{self._tried}:", *kinds, *self._gaps])

    @property
    def summary(self) -> str:
        """The counts in one line, without the table of faults, and a line for each gap."""
        return "\n".join([self._tried, *self._gaps])

    @property
    def _tried(self) -> str:
        return (
            f"{self.histories:,} histories of {self.changes:,} changes, {self.deliveries:,} deliveries, "
            f"{self.faults.total():,} faults, 0 diverged (seed {self.seed}, {self.seconds:.1f} s)"
        )

    @property
    def _gaps(self) -> list[str]:
        unproved = [f"  not proved: {each}" for each in by_reason(self.unproved)]
        return unproved + [f"  left out: {each}" for each in self.left_out]


class Diverged(AssertionError):  # noqa: N818 - a public name
    """Raised when rows differ from the declarations. ``scenario`` is the shortest history found with this failure."""

    def __init__(self, problem: str, story: Sequence[str], scenario: Scenario, seed: int) -> None:
        self.problem = problem
        self.scenario = scenario
        steps = "\n".join(f"  {step}" for step in (*map(str, scenario.writes), *story))
        super().__init__(f"{problem}\n\nThe shortest history that was found (seed {seed}):\n{steps}")

    def save(self, path: Path, app: str = "handlers:app") -> None:
        """Writes a test file that runs the scenario again; ``app`` is the ``module:name`` of the application."""
        save(self.scenario, path, app)


def check(  # noqa: PLR0913 - one call with named options
    app: App,
    items: "Mapping[Key, Any] | None" = None,
    *,
    recorded: str | Path | None = None,
    writes: Sequence[Write] | None = None,
    histories: int = HISTORIES,
    changes: int = CHANGES,
    seed: int = 0,
    faults: Collection[str] | None = None,
    source: HistorySource = "stream",
    processes: int = PROCESSES,
    progress: Callable[[int], None] = lambda _: None,
) -> Proof:
    """Proves an application: draws histories, runs them under faults, compares the rows with an oracle.

    ``items`` describes the items of each source key: an example (attributes, and fields of the key by name if their
    values matter), several, or a Hypothesis strategy for them. Numbers of examples are varied. Items of a key
    without examples are drawn from the type that handlers annotate them with. ``recorded`` is a recorded file
    instead; its images are the examples, and histories begin at the time of its latest record. ``writes`` is one
    history; only its faults are drawn. ``faults`` are the names of the faults to inject, all by default. With
    ``source="kinesis"`` the records are those of Kinesis: some arrive late and some twice. The same seed gives the same
    run, in another process too, unless a handler iterates over a set. ``processes`` is the number of other processes
    that also call the handlers, each with another hash seed and another time zone, if the application can be imported
    by a name.

    Returns the counts. Raises ``Diverged`` with the shortest history found that fails, ``NotDeterministic`` for a
    handler that is no function of its input, ``HandlerFails`` for one that cannot process an item, and ``TwinError``
    for items or names that do not fit the application, and for options that would prove nothing.
    """
    check_application(app)
    check_extent(source, histories=histories, changes=changes)
    only = chosen(faults)
    begin, remembered = time.perf_counter(), Remembered(app)
    named = NamedAttributes(app.routes)
    shapes, left_out = (
        TakenExample([], ()) if writes is not None else taken(app, _shapes(app, items or {}, recorded, named))
    )
    keys = {each.key for each in (writes or shapes)}
    start = max((shape.start for shape in shapes), default=START)
    handlers, proof, others = FaultyHandlers(app), Proof(seed, unproved(app, keys), left_out), Random(seed)  # noqa: S311 - a seed
    probes = [Write(shape.key, shape.fields[0], item) for shape in shapes for item in shape.items]
    probed = [change for shard in changes_of(app, writes or probes, start=start) for change in shard]
    with Elsewhere(app, probed, processes) as elsewhere:
        handlers.yielded |= check_deterministic(app, probed, remembered)
        for number in range(histories):
            deltas = number if number % DELTAS_EACH == 0 else 0
            random = Random(f"{seed} {number}") if deltas else others  # noqa: S311 - a seed
            history = tuple(writes or drawn(random, shapes, changes))
            shards, actions, pace = random.choice(SHARDS), random.choice(ACTIONS), drawn_pace(app, random)
            scenario = Scenario(history, shards, actions, source=source, pace=pace, deltas=deltas, start=start)
            choices = Drawn(random, random.choice(RATES), only)
            _run_and_count(handlers, scenario, choices, proof, remembered)
            progress(number + 1)
        proof.left_out += elsewhere.compare()
    proof.unproved = unproved(app, keys, handlers.yielded)
    proof.left_out += (*missing(proof.events), *not_injected(proof.offered, proof.faults))
    if recorded is None:
        for change in probed:
            named.seen(change)
    proof.left_out += tuple(plain(each.text).rstrip(".") for each in named.unseen())
    proof.seconds = time.perf_counter() - begin
    return proof


def check_scenario(app: App, scenario: Scenario) -> None:
    """Runs one scenario again, as a saved test does. Raises ``Diverged`` if it still fails."""
    handlers = FaultyHandlers(app)
    problem = _problem(handlers, scenario, Scripted(scenario.script))
    if problem:
        raise Diverged(problem, _story(handlers, scenario), scenario, 0)


def _shapes(app: App, items: Any, recorded: str | Path | None, named: NamedAttributes) -> list[Shape]:
    if recorded is not None:
        changes = recorded_changes(app, [str(recorded)])
        return near_moments(app, recorded_shapes(app, map(named.seen, changes)))
    sources = item_keys(app)
    if not (isinstance(items, Mapping) and all(isinstance(key, Key) for key in items)):
        raise TwinError(f"items={shown(items)}: expected example items of each source key, {{ORDER: {{...}}}}.")
    for key in items:
        if not any(source.overlaps(key) for source in sources):
            raise TwinError(
                f"items= names {key!r}, which no handler reads: expected some of {', '.join(map(repr, sources))}."
            )
    unknown = drawn_items(app, EXAMPLES, lambda key: not any(key.overlaps(other) for other in items))
    items = {**items, **unknown}
    if not items:
        raise TwinError(
            "check() was given no items: give examples of the items of each source, items={ORDER: {...}}, or annotate "
            "the handlers' items with a TypedDict, def total(order: Order) -> Row."
        )
    found = shapes_of({key: _examples(key, given) for key, given in items.items()})
    found = [
        each._replace(given=()) if each.key in unknown or hasattr(items[each.key], "example") else each
        for each in found
    ]
    return near_moments(app, found)


def recorded_changes(app: App, paths: Sequence[str]) -> Iterator[Change]:
    """The changes of recorded files. Raises ``TwinError`` for a file that cannot be read, or a bad line."""
    origins = Origins(app.source_tables, Settings.from_environment(os.environ), others=app.tables)
    try:
        check_files(paths)
    except SettingsError as error:
        raise TwinError(str(error)) from None
    for entry in RecordedFiles(paths):
        if isinstance(entry, BadLine):
            raise TwinError(f"{entry.line}: {entry.why}")
        yield origins.change(entry[1])


def _examples(key: Key, given: Any) -> list[Mapping[str, Any]]:
    if hasattr(given, "example"):
        return examples_of(given, EXAMPLES)
    return listed(key, given)


def _run_and_count(
    handlers: FaultyHandlers, scenario: Scenario, choices: Drawn, proof: Proof, remembered: Remembered
) -> None:
    driver = _driver(handlers, scenario, choices)
    # Both raise for an item that a handler cannot process, before faults can hide the error.
    with at_moment(driver.last_moment):
        expected = expected_all(handlers.app, driver.given)
        attribute_names(handlers.app, driver.given)
    problem = difference_of(driver, expected)
    proof.histories += 1
    proof.changes += len(driver.delivered)
    proof.deliveries += driver.deliveries
    proof.events.update(change.event for change in driver.delivered)
    proof.offered |= choices.offered
    proof.faults.update(taken.option.partition(" ")[0] for taken in choices.taken)
    if problem or proof.histories == 1:
        # Again, after calls with other items: a handler that remembers them would be reported as diverged.
        check_deterministic(handlers.declared, driver.given, remembered)
    if problem:
        raise _shortest(handlers, scenario._replace(script=choices.script), problem, proof.seed)


def _shortest(handlers: FaultyHandlers, scenario: Scenario, problem: str, seed: int) -> Diverged:
    kind = problem.partition(":")[0]  # or shortening may end at a failure of another kind

    def again(writes: Sequence[Write], script: Script) -> bool:
        found = _problem(handlers, scenario._replace(writes=tuple(writes)), Scripted(script))
        return found is not None and found.partition(":")[0] == kind

    writes, script = shortened(again, scenario.writes, scenario.script, Budget())
    scenario = scenario._replace(writes=tuple(writes), script=script)
    story = _story(handlers, scenario)
    return Diverged(_problem(handlers, scenario, Scripted(script)) or problem, story, scenario, seed)


def _story(handlers: FaultyHandlers, scenario: Scenario) -> list[str]:
    story: list[str] = []
    _problem(handlers, scenario, Scripted(scenario.script), story.append)
    return story


def _problem(
    handlers: FaultyHandlers, scenario: Scenario, choices: Choices, log: Callable[[str], None] = lambda _: None
) -> str | None:
    return difference_of(_driver(handlers, scenario, choices, log))


def _driver(
    handlers: FaultyHandlers, scenario: Scenario, choices: Choices, log: Callable[[str], None] = lambda _: None
) -> Driver:
    shards = changes_of(handlers.app, scenario.writes, scenario.shards, scenario.source, scenario.start)
    return Driver(handlers, shards, choices, scenario.actions, log, pace=scenario.pace, deltas=scenario.deltas)


def difference_of(driver: Driver, expected: ExpectedRows | None = None) -> str | None:
    """Runs the driver, and returns the differences of its rows or the invariant that broke; None if it is right.

    ``expected`` are the rows of the oracle. If handlers write to items, they are known only after the run.
    """
    try:
        found = driver.run()
        if expected is None or driver.writers:
            expected = driver.expected()
    except AssertionError as broken:
        return f"{type(broken).__name__}: {broken}"
    if found == expected:
        return None
    keys = sorted((key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)), key=str)
    lines = [f"  {joined_key(key)}: found {found.get(key)}, expected {expected.get(key)}" for key in keys]
    more = [f"  and {len(lines) - DIFFERENCES_SHOWN_MAX} more"] if len(lines) > DIFFERENCES_SHOWN_MAX else []
    return "\n".join(["Rows differ from the declarations:", *lines[:DIFFERENCES_SHOWN_MAX], *more])


WIDTH = 100


def save(scenario: Scenario, path: Path, app: str = "handlers:app") -> None:
    """Writes a test that runs a scenario: ``test_history_that_diverged`` in ``path``.

    ``app`` is the ``module:name`` of the application. Raises ``FileExistsError`` rather than overwrite a file.
    """
    with path.open("x", encoding="utf-8") as file:
        file.write(source_of(scenario, app))


def source_of(scenario: Scenario, app: str) -> str:
    """The text of that test."""
    module, _, name = app.partition(":")
    writes = "\n".join(f"        {_write(write)}," for write in scenario.writes)
    return (
        '"""A history that once led to wrong rows."""\n\n'
        "import datetime\n"
        "from decimal import Decimal\n\n"
        f"from {module} import {name}\n"
        "from streamfold import Key, Table\n"
        "from streamfold.testing import Scenario, Write, check_scenario\n\n"
        f"SCENARIO = Scenario(\n    writes=(\n{writes}\n    ),\n"
        f"    shards={scenario.shards},\n    actions={scenario.actions},\n"
        f"    source={scenario.source!r},\n"
        f"    pace={scenario.pace},\n"
        f"    deltas={scenario.deltas},\n"
        f"    start={scenario.start!r},\n"
        f"    script={pformat(dict(scenario.script), width=WIDTH)},\n)\n\n\n"
        f"def test_history_that_diverged():\n    check_scenario({name}, SCENARIO)\n"
    )


def _write(write: Write) -> str:
    item = None if write.item is None else dict(write.item)
    expired = ", expired=True" if write.expired else ""
    return f"Write({_key(write.key)}, {dict(write.fields)!r}, {item!r}{expired})"


def _key(key: Key) -> str:
    return f"Key({', '.join(repr(part.text) for part in key.parts)}, table={key.table!r})"


def check_extent(source: str, **counts: Any) -> None:
    """Raises ``TwinError`` for an unknown source, and for counts that would prove nothing."""
    if source not in (STREAM, KINESIS):
        raise TwinError(f"check() was given source={source!r}: expected {STREAM!r} or {KINESIS!r}.")
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise TwinError(f"check() was given {name}={count!r}: expected a whole number, 1 or more.")


def listed(key: Key, given: Any) -> list[Mapping[str, Any]]:
    """The examples of a key's items as a list. Raises ``TwinError`` for an example that is no mapping."""
    examples = list(given) if isinstance(given, Iterable) and not isinstance(given, Mapping | str) else [given]
    for each in examples:
        if not isinstance(each, Mapping):
            raise TwinError(
                f"items= has {shown(each)} of type {type(each).__name__} for {key!r}: expected an example such as "
                "{'price': 3}, several in a list, or a Hypothesis strategy for them."
            )
    return examples
