"""A fault of a row or a table has the same consequences whether additions go through deltas or not.

A history is played twice, with deltas forced and without: items come, change, move between groups and go, in batches
that are delivered again from the first failed record on, as Lambda does. Faults are planted by row or by table, for
good or until a named delivery; some amounts are mistaken, so that a sum would need 39 digits.
"""

from random import Random

import pytest

from streamfold import App, Average, Count, Key, Router, Row, Sum, Table
from streamfold.batch.manifest import change_deltas
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError
from streamfold.records.values import decode
from streamfold.runtime import DeltasMark, Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import VALIDATION, Reason, StateKey
from tests.helpers.source import Source

QUICK, CI, NIGHTLY = 12, 60, 1_000
NOW = 1_800_000_000.0
GROUPS = ("x", "y", "z")
DELIVERIES_MAX = 200
REPORTS_MAX = 6
"""Deliveries of a record that fails, until the mapping gives it up."""
MISTAKEN = 9 * 10**37
AMOUNT_MAX = 10**6
"""Amounts seldom cancel each other out: without deltas, such a row is not written, and nobody meets its fault."""
OTHER = Table("other")
ITEM = Key("ITEM#{i}", "ITEM")


def application(policies):
    router = Router()

    @router.view(ITEM, into=Key("A#{g}", "TOTAL"), on_error=policies[0])
    def in_main(item):
        yield Row(g=item["g"], amount=Sum(item["n"]), items=Count())

    @router.view(ITEM, into=Key("B#{g}", "TOTAL", table=OTHER), on_error=policies[1])
    def in_other(item):
        yield Row(g=item["g"], amount=Sum(item["m"]), mean=Average(item["m"]))

    @router.view(ITEM, into=Key("C#{g}", "TOTAL"), on_error=policies[2])
    def in_two(item):
        for group in item["groups"]:
            yield Row(g=group, amount=Sum(item["m"]), items=Count())

    return App("shop", routers=[router])


class Faulty(MemoryEngine):
    """A store that many processes share. ``row`` or ``table`` takes no write."""

    is_local = False
    row = table = None

    def transact(self, writes, expires_at):
        keys = [None if isinstance(write.key, StateKey) else write.key for write in writes]
        if any(key and key[0] == self.table for key in keys):
            raise EngineError(f"No permission to write table {self.table}.")
        return super().transact(writes, expires_at)

    def _try(self, write, *more):
        return Reason(VALIDATION, message="no") if write.key == self.row else super()._try(write, *more)


class Parking:
    def __init__(self):
        self.parked = set()

    def park(self, parked):
        self.parked.add((parked.handler, parked.item, parked.error_type))


class History:
    """What is delivered, and the faults; a seed gives the same records each time."""

    def __init__(self, seed):
        random = self.random = Random(seed)
        policies = [random.choice(("retry", "park")) for _ in range(3)]
        self.app, self.source = application(policies), Source()
        self.items = {}
        self.records = [self.record(random) for _ in range(random.randint(6, 24))]
        self.fault = random.choice(("row", "table", "none"))
        group, kind = random.choice(GROUPS), random.choice("ABC")
        self.row = ("other" if kind == "B" else "main", f"{kind}#{group}", "TOTAL")
        self.table = "other"
        self.planted_at, self.lifted_at = random.randint(0, 3), random.choice((None, random.randint(3, 9)))
        self.batch = random.choice((1, 3, 8))

    def record(self, random):
        name = random.randint(1, 4)
        if name in self.items and random.random() < 0.2:
            del self.items[name]
            return self.source.remove(f"ITEM#{name}", "ITEM")
        # Of one item only: which one of two a row takes first is chance.
        amount = MISTAKEN if name == 1 and random.random() < 0.4 else random.randint(-AMOUNT_MAX, AMOUNT_MAX)
        groups = random.sample(GROUPS, random.randint(0, 2))
        self.items[name] = amount
        more = {"n": amount, "m": random.randint(1, AMOUNT_MAX), "groups": groups}
        return self.source.put(f"ITEM#{name}", "ITEM", g=random.choice(GROUPS), **more)

    def play(self, *, deltas):
        return Play(self, deltas=deltas).run()


class Play:
    """One way through a history."""

    def __init__(self, history, *, deltas):
        self.history, self.now = history, NOW
        self.engine = Faulty(history.app.tables.values(), history.app.chains)
        self.engine.source_tables.add("main")
        self.parking, self.failures = Parking(), set()
        self.runtime = self.process()
        process_event(self.runtime, {"Records": []})
        change_deltas(self.runtime, lambda mark: mark or DeltasMark(NOW - 5_000))
        self.runtime.pace.sharing.forced = lambda _: deltas

    def process(self):
        parking = self.parking
        return Runtime(
            self.history.app, self.engine, Settings(), clock=lambda: self.now, pause=self.pause, parking=parking
        )

    def pause(self, seconds):
        self.now += max(seconds, 0.01)

    def run(self):
        records, reports = [*self.history.records], 0
        for number in range(DELIVERIES_MAX):
            if not records:
                break
            self.plant(number)
            batch = records[: self.history.batch]
            failed = self.deliver(batch)
            numbers = [record["dynamodb"]["SequenceNumber"] for record in batch]
            done = next((place for place, each in enumerate(numbers) if each in failed), len(batch))
            reports = 0 if done else reports + 1
            if reports > REPORTS_MAX:  # as the mapping does: records behind it come
                done, reports = 1, 0
            del records[:done]
            self.now += 5
        pending = [key for key in self.engine.state if key.pk.startswith("delta#")]
        return self.rows(), self.failures, self.parking.parked, pending

    def plant(self, number):
        history = self.history
        until = DELIVERIES_MAX if history.lifted_at is None else history.lifted_at
        planted = history.planted_at <= number < until
        self.engine.row = history.row if planted and history.fault == "row" else None
        self.engine.table = history.table if planted and history.fault == "table" else None

    def deliver(self, batch):
        try:
            report = process_event(self.runtime, {"Records": batch})
        except EngineError as error:  # nothing of the batch could be done
            self.failures.add(("batch", type(error).__name__))
            return {record["dynamodb"]["SequenceNumber"] for record in batch}
        self.failures |= {(each.handler, each.item, type(each.error).__name__) for each in report.failures}
        return {each.sequence for each in report.failures}

    def rows(self):
        found = {}
        for key, row in self.engine.rows.items():
            found[key] = {name: value for name, value in decode({"M": row}).items() if value != 0}
        return found


def differences(seeds):
    """What differs of the first history that differs."""
    for seed in seeds:
        without, with_deltas = History(seed).play(deltas=False), History(seed).play(deltas=True)
        names = ("rows", "failures", "parked", "pending")
        for name, one, other in zip(names, without, with_deltas, strict=True):
            if one != other:
                return seed, name, one, other
    return None


def test_a_fault_has_the_same_consequences_with_deltas_and_without():
    assert differences(range(QUICK)) is None


@pytest.mark.ci
def test_a_fault_has_the_same_consequences_in_more_histories():
    assert differences(range(QUICK, CI)) is None


@pytest.mark.nightly
def test_a_fault_has_the_same_consequences_in_many_histories():
    assert differences(range(CI, NIGHTLY)) is None
