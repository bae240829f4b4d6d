"""The store whose calls fail: what is done, what is answered and what is told under each fault of some calls."""

import pytest

from streamfold import Table
from streamfold.engines import MemoryEngine
from streamfold.engines.protocol import Counter, Segment
from streamfold.errors import EngineUnavailable
from streamfold.proofs.faults import FAULTS, Choices, FaultyEngine
from streamfold.testing.mapping import Died
from streamfold.writes.guarded import StateKey

SHOP = Table("shop", sort=None)
KEY, OTHER = StateKey("document#shop", "S#1"), StateKey("document#shop", "S#2")
COUNTERS = [Counter(KEY), Counter(OTHER, new=True)]
ITEM, GONE = ("shop", "ORDER#1", None), ("shop", "ORDER#2", None)
SOURCE = {"PK": {"S": "ORDER#1"}}
LANDS = ("lands-late", "dies-and-lands-late")


class First(Choices):
    """Chooses one fault at the first call, and that a late write lands at the next one."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def _choice(self, point, options):
        if point == "landing":
            return "lands-at-the-next-call"
        fault, self.fault = self.fault, None
        assert fault is None or fault in options
        return fault


class World:
    """A store whose first call has a fault, the lines that were told, and how often it was looked at."""

    def __init__(self, fault=None):
        self.engine = MemoryEngine([SHOP])
        self.engine.put_sources([(ITEM, SOURCE, "v1")])
        self.told, self.looks = [], 0
        self.faulty = FaultyEngine(self.engine, First(fault), lambda: None, self.look, self.told.append)

    def look(self):
        self.looks += 1

    def count(self):
        try:
            return {key: item["n"] for key, item in self.faulty.count_up(COUNTERS, 10, 5).items()}
        except (EngineUnavailable, Died) as error:
            return type(error)

    @property
    def numbers(self):
        return {item["n"] for item in self.engine.state.values()}


@pytest.mark.parametrize(
    ("fault", "answer", "numbers"),
    [
        (None, {KEY: 11, OTHER: 11}, {11}),
        ("applied-twice", {KEY: 12, OTHER: 12}, {12}),
        ("half-applied", {KEY: 11}, {11}),
        ("unavailable", EngineUnavailable, set()),
        ("answer-lost", EngineUnavailable, {11}),
        ("dies-before", Died, set()),
        ("dies-after", Died, {11}),
        ("lands-late", EngineUnavailable, set()),
        ("dies-and-lands-late", Died, set()),
    ],
)
def test_count_under_a_fault(fault, answer, numbers):
    world = World(fault)
    assert (world.count(), world.numbers) == (answer, numbers)
    assert world.told == ([] if fault is None else [f"  count of document#shop / S#1, document#shop / S#2: {fault}"])
    again = {key: max(numbers, default=10) + (2 if fault in LANDS else 1) for key in (KEY, OTHER)}
    assert world.count() == (again | {OTHER: 11} if fault == "half-applied" else again)


def test_every_fault_of_a_count_is_tried():
    ((_, rows),) = [mark.args for mark in test_count_under_a_fault.pytestmark]
    assert {fault for fault, *_ in rows} == {None, *FAULTS["count_up"]}


def test_invariants_are_looked_at_after_a_count():
    world = World("applied-twice")
    world.count()
    assert world.looks == 2


def test_a_read_that_is_not_up_to_date_shows_what_was_before_the_count():
    world = World()
    world.count()
    world.count()
    world.faulty.choices.fault = "stale-read"
    assert {key: item["n"] for key, item in world.faulty.read_state([KEY]).items()} == {KEY: 11}
    assert world.faulty.read_state([KEY], consistent=True)[KEY]["n"] == 12


def test_source_items_are_read():
    assert World().faulty.read_sources(iter([ITEM, GONE])) == {ITEM: SOURCE}


@pytest.mark.parametrize("fault", FAULTS["read_sources"])
def test_read_of_source_items_under_a_fault(fault):
    world = World(fault)
    with pytest.raises(Died if fault == "dies-before" else EngineUnavailable):
        world.faulty.read_sources([ITEM, GONE])
    assert world.told == [f"  read of source items ORDER#1, ORDER#2: {fault}"]


def test_keys_are_scanned():
    assert World().faulty.scan(SHOP, Segment(), None, 5).keys == [ITEM]


@pytest.mark.parametrize("fault", FAULTS["scan"])
def test_scan_under_a_fault(fault):
    world = World(fault)
    with pytest.raises(Died if fault == "dies-before" else EngineUnavailable):
        world.faulty.scan(SHOP, Segment(1, 4), None, 5)
    assert world.told == [f"  scan of shop, segment 1 of 4: {fault}"]
