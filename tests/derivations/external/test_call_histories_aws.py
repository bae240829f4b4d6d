"""Histories of external calls by seed: processes die, handlers refuse, answers are lost, records come again.

Every change is called before its record is acknowledged, and the first successful calls of an item are in its order. A
change is called twice only if a process died or an answer of the store was lost in between.
"""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from random import Random
from threading import Lock

import pytest

from streamfold import App, Key, Router
from streamfold.batch.process import process_event
from streamfold.engines import EmbeddedEngine
from streamfold.errors import EngineUnavailable
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import StateKey
from tests.helpers.source import Source

ITEM = Key("ITEM#{item_id}", "METADATA")
AT_ONCE = {"one by one": 1, "threads": 3, "coroutines": 3}
HISTORIES, HISTORIES_CI, HISTORIES_NIGHTLY = 12, 500, 5_000
DELIVERIES_MAX = 60
REFUSES, LOST, UNWELL, DIES = "the handler refuses", "an answer is lost", "the store is not well", "the process dies"
FAULTS = (REFUSES, LOST, UNWELL, DIES)


class Died(BaseException):
    """The end of the process."""


class FaultyStore:
    """A store whose notes of calls go wrong by the choices of a seed."""

    def __init__(self, engine, random, faults):
        self.engine, self.random, self.faults = engine, random, faults
        self.lock = Lock()
        self.faults_injected = 0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def swap_state(self, key, attributes, revision):
        fault = self._fault() if key.pk.startswith("external#") else None
        if fault == UNWELL:
            raise EngineUnavailable("not well")
        if fault == DIES:
            raise Died
        swapped = self.engine.swap_state(key, attributes, revision)
        if fault == LOST:
            raise EngineUnavailable("the answer was lost")
        return swapped

    def _fault(self):
        with self.lock:
            if self.random.random() > 0.2:
                return None
            fault = self.random.choice(FAULTS)
            if fault not in self.faults or fault == REFUSES:
                return None
            self.faults_injected += 1
            return fault


class History:
    """One application, whose records are delivered until all are acknowledged, and once more."""

    def __init__(self, way, seed):
        self.random = Random(seed)
        self.way, self.at_once = way, AT_ONCE[way]
        self.faults = self.random.sample(FAULTS, self.random.randint(0, len(FAULTS)))
        self.lock = Lock()
        self.running, self.called, self.broken, self.calm = Counter(), [], [], False
        router = Router()
        declare = router.on(ITEM, external=True, at_once=self.at_once)
        declare(self._coroutine() if way == "coroutines" else self._function())
        self.app = App("shop", routers=[router])
        self.engine = EmbeddedEngine(self.app.tables.values())
        self.store = FaultyStore(self.engine, self.random, self.faults)
        source, items = Source(), [f"ITEM#{number}" for number in range(self.random.randint(1, 4))]
        numbers = range(self.random.randint(1, 12))
        self.records = [source.put(self.random.choice(items), number=number) for number in numbers]

    def _function(self):
        def call(change, item_id):
            with self._in_flight(item_id):
                time.sleep(0)
            self._note(change, item_id)

        return call

    def _coroutine(self):
        async def call(change, item_id):
            with self._in_flight(item_id):
                await asyncio.sleep(0)
            self._note(change, item_id)

        return call

    def _in_flight(self, item_id):
        return _Running(self, item_id)

    def _note(self, change, item_id):
        with self.lock:
            if REFUSES in self.faults and self.random.random() < 0.2:
                raise ConnectionError
            self.called.append((item_id, int(change.new["number"])))

    def run(self):
        remaining = self.records
        for _ in range(DELIVERIES_MAX):
            with suppress(Died):
                failed = {failure.sequence for failure in self._deliver(remaining)}
                places = [place for place, each in enumerate(remaining) if _sequence(each) in failed]
                self._check_acknowledged(failed, remaining)
                if not places:
                    break
                remaining = remaining[places[0] :]  # as Lambda does: from the first that failed
            self._abandon()
        else:
            return "the records were never acknowledged"
        if before := len(self.called):
            self.calm = True
            self._deliver(self.records)
            if len(self.called) != before:
                return "a redelivery of acknowledged records called again"
        return self.wrong()

    def _deliver(self, records):
        runtime = Runtime(
            self.app, self.engine if self.calm else self.store, Settings(), outside=True, pause=lambda _: None
        )
        return process_event(runtime, records).failures

    def _check_acknowledged(self, failed, delivered):
        called = {number for _, number in self.called}
        for record in delivered:
            number = int(record["dynamodb"]["NewImage"]["number"]["N"])
            if _sequence(record) not in failed and number not in called:
                self.broken.append(f"change {number} is acknowledged and was never called")

    def _abandon(self):
        """The time in which a begun call counts as running passes."""
        for item in self.engine.state_items():
            if item["pk"]["S"].startswith("external#") and item["status"]["S"] == "INPROGRESS":
                key = StateKey(item["pk"]["S"], item["sk"]["S"])
                written = {"status": "INPROGRESS", "ttl": int(item["ttl"]["N"]), "until": 0}
                assert self.engine.swap_state(key, written, int(item["r"]["N"]))

    def wrong(self):
        firsts = list(dict.fromkeys(self.called))
        for item_id in {item for item, _ in firsts}:
            numbers = [number for item, number in firsts if item == item_id]
            if numbers != sorted(numbers):
                return f"item {item_id} was called in the order {numbers}"
        twice = len(self.called) - len(firsts)
        # A call is repeated if its note is lost: each fault of the store loses one.
        if twice > self.store.faults_injected:
            return f"{twice} calls were made again, with {self.store.faults_injected} faults of the store"
        return self.broken or None


class _Running:
    """Notes that two calls of one item, or more than the limit, run at the same time."""

    def __init__(self, history, item_id):
        self.history, self.item_id = history, item_id

    def __enter__(self):
        history = self.history
        with history.lock:
            history.running[self.item_id] += 1
            if history.running[self.item_id] > 1:
                history.broken.append(f"two calls of item {self.item_id} at the same time")
            if history.running.total() > history.at_once:
                history.broken.append(f"{history.running.total()} calls at the same time")

    def __exit__(self, *_):
        with self.history.lock:
            self.history.running[self.item_id] -= 1


def _sequence(record):
    return record["dynamodb"]["SequenceNumber"]


def first_wrong(way, histories):
    """The seed of the first history that is wrong, and how; None if none is."""
    for seed in range(histories):
        if (wrong := History(way, seed).run()) is not None:
            return seed, wrong
    return None


@pytest.mark.parametrize("way", AT_ONCE)
def test_every_change_is_called_in_order_before_it_is_acknowledged(way):
    assert first_wrong(way, HISTORIES) is None


@pytest.mark.ci
@pytest.mark.parametrize("way", AT_ONCE)
def test_every_change_is_called_in_order_before_it_is_acknowledged_in_many_histories(way):
    assert first_wrong(way, HISTORIES_CI) is None


@pytest.mark.nightly
@pytest.mark.parametrize("way", AT_ONCE)
def test_every_change_is_called_in_order_before_it_is_acknowledged_in_all_histories(way):
    assert first_wrong(way, HISTORIES_NIGHTLY) is None
