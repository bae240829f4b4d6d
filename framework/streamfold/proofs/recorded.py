"""Recorded changes under faults: many runs over the same records, each compared with the rows of a clean run."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from streamfold.app import App
from streamfold.errors import plain
from streamfold.proofs.check import ACTIONS, RATES, difference_of
from streamfold.proofs.coverage import missing, unproved
from streamfold.proofs.determinism import NotDeterministic, check_deterministic
from streamfold.proofs.driver import Driver
from streamfold.proofs.faults import Budget, Choices, Drawn, Script, Scripted, shortened
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.histories import item_keys
from streamfold.proofs.memory import Remembered
from streamfold.proofs.oracle import at_moment, expected_all
from streamfold.proofs.processes import PROCESSES, Elsewhere
from streamfold.proofs.store import drawn_pace
from streamfold.records.change import Change
from streamfold.replay.mismatches import unseen_attributes

if TYPE_CHECKING:
    from streamfold.proofs.oracle import ExpectedRows
    from streamfold.records.change import ItemKey

RECORDS_MAX = 100_000
"""Records of one proof: all are kept in memory, together with a store of their rows."""
SHARDS = 2
"""Shards of each table: enough for two items to come in either order, few enough for batches of many records."""
CLEAN_ACTIONS = 25
PROBES_MAX = 20
"""Changes on which the handlers of one kind of item are checked to be functions of their input."""
SHORTEN_RUNS_MAX = 200
SHORTEN_RUNS_MIN = 20
SHORTEN_RECORDS_MAX = 200_000
"""Records that are delivered in all to shorten a failing run: a large file is shortened less far."""


class PlacedChange(NamedTuple):
    """A change, and its position in the recording."""

    position: int
    change: Change


PlacedItem = Sequence[PlacedChange]
"""All changes of one item: they are left out together when a run is shortened."""


@dataclass(slots=True)
class Run:
    """One run: its faults by name, and the problem with its rows, if any."""

    seed: int
    faults: Counter[str]
    script: Script
    actions: int
    pace: int
    deliveries: int
    problem: str | None


@dataclass(slots=True)
class Shortest:
    """The fewest items and faults found that still diverge: the records, and the steps of the run."""

    problem: str
    records: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)


class Recording:
    """Recorded changes of an application, in the order of the file, and the right rows after them."""

    def __init__(self, app: App, changes: Iterable[Change]) -> None:
        self.app = app
        self.handlers = FaultyHandlers(app)
        self.items = _items(changes)
        self.shards = _shards(self.items)
        self.expected: ExpectedRows = {}
        self.left_out: tuple[str, ...] = ()
        self.offered: set[str] = set()

    @property
    def records(self) -> int:
        return sum(map(len, self.items))

    @property
    def unproved(self) -> tuple[str, ...]:
        """The handlers that runs of these records do not prove, each with the reason."""
        items = [item[0].change.item for item in self.items]
        keys = [key for key in item_keys(self.app) if any(key.takes(item) for item in items)]
        return unproved(self.app, keys, self.handlers.yielded)

    def clean_problem(self) -> str | None:
        """Runs without any fault, and returns the problem, if any: runs under faults would all show it, too."""
        probes = list(self._probes())
        try:
            with Elsewhere(self.app, probes, PROCESSES) as elsewhere:
                check_deterministic(self.app, probes, Remembered(self.app))
                driver = self._driver(self.shards, Choices(), CLEAN_ACTIONS)
                clean = driver.run()
                events = {placed.change.event for item in self.items for placed in item}
                self.left_out = (*elsewhere.compare(), *missing(events), *self._unseen())
            if driver.writers:
                self.expected = driver.expected()
        except AssertionError as broken:  # a handler that fails, or is no function; an invariant; an item that is wrong
            prefix = "" if isinstance(broken, NotDeterministic) else "The clean replay fails: "
            return f"{prefix}{broken}"
        if not driver.writers:
            with at_moment(driver.last_moment):
                self.expected = expected_all(self.app, [placed.change for item in self.items for placed in item])
        if clean == self.expected:
            return None
        problem = difference_of(self._driver(self.shards, Choices(), CLEAN_ACTIONS), self.expected)
        return f"The clean replay and the oracle differ, which is a bug worth reporting. {problem}"

    def _unseen(self) -> list[str]:
        changes = (placed.change for item in self.items for placed in item)
        return [plain(each.text).rstrip(".") for each in unseen_attributes(self.app.routes, changes)]

    def run(self, seed: int, only: Collection[str] | None = None) -> Run:
        """One run under the faults that this seed draws, compared with the clean run."""
        random = Random(seed)  # noqa: S311 - drawn from a seed
        actions, rate, pace = random.choice(ACTIONS), random.choice(RATES), drawn_pace(self.app, random)
        choices = Drawn(random, rate, only)
        driver = self._driver(self.shards, choices, actions, pace=pace)
        problem = difference_of(driver, self.expected)
        self.offered |= choices.offered
        faults = Counter(taken.option.partition(" ")[0] for taken in choices.taken)
        return Run(seed, faults, choices.script, actions, pace, driver.deliveries, problem)

    @property
    def tries_max(self) -> int:
        """The most runs that are spent on shortening one that diverged."""
        return max(SHORTEN_RUNS_MIN, min(SHORTEN_RUNS_MAX, SHORTEN_RECORDS_MAX // max(1, self.records)))

    def shortest(self, run: Run, tried: Callable[[], object] = lambda: None) -> Shortest:
        """The shortest steps found with which a diverged run still diverges; ``tried`` is called before each try."""

        def again(items: Sequence[PlacedItem], script: Script) -> bool:
            tried()
            return self._problem(items, script, run) is not None

        items, script = shortened(again, self.items, run.script, Budget(self.tries_max))
        found = Shortest("")
        found.problem = self._problem(items, script, run, found.story.append) or run.problem or ""
        found.records = [
            f"shard {number}, record {position}: {change.event} {change.name}"
            for number, shard in enumerate(_shards(items), 1)
            for position, change in enumerate(shard, 1)
        ]
        return found

    def _problem(
        self, items: Sequence[PlacedItem], script: Script, run: Run, log: Callable[[str], None] = lambda _: None
    ) -> str | None:
        return difference_of(self._driver(_shards(items), Scripted(script), run.actions, log, run.pace))

    def _driver(
        self,
        shards: Sequence[Sequence[Change]],
        choices: Choices,
        actions: int,
        log: Callable[[str], None] = lambda _: None,
        pace: int = 0,
    ) -> Driver:
        return Driver(self.handlers, shards, choices, actions, log, pace=pace)

    def _probes(self) -> Iterator[Change]:
        """Some changes for every set of handlers that takes them."""
        seen: Counter[tuple[str, ...]] = Counter()
        for item in self.items:
            for _, change in item:
                names = tuple(route.name for route, _ in self.app.sources(change.item))
                seen[names] += 1
                if seen[names] <= PROBES_MAX:
                    yield change


def _items(changes: Iterable[Change]) -> list[PlacedItem]:
    items: dict[ItemKey, list[PlacedChange]] = defaultdict(list)
    for position, change in enumerate(changes):
        items[change.item].append(PlacedChange(position, change))
    return list(items.values())


def _shards(items: Iterable[PlacedItem]) -> list[list[Change]]:
    """Changes by table and a stable hash of the partition key, in the order of the recording."""
    shards: dict[tuple[str, int], list[Change]] = defaultdict(list)
    for _, change in sorted((placed for item in items for placed in item), key=lambda placed: placed.position):
        table, partition = change.item[:2]
        shards[table, crc32(repr(partition).encode()) % SHARDS].append(change)
    return [shards[name] for name in sorted(shards)]
