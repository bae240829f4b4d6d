"""Large documents: what a batch of them takes in memory and calls."""

import tracemalloc
from collections import Counter

import pytest

from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.sink import Answer
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import Page
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.derivations.search.applications import one_item, with_parts
from tests.helpers.records import change, item

PARTS = 2_000
ROOTS = 100
MEGABYTES_MAX = 60


class Emptied:
    """An index that takes everything, and keeps how much it was."""

    def __init__(self):
        self.requests, self.documents, self.size = 0, 0, 0

    def check(self, index):
        """There is nothing to check."""

    def bulk(self, actions):
        self.requests += 1
        self.documents += len(actions)
        self.size += sum(len(action.body) for action in actions)
        return [Answer(201)] * len(actions)


class Endless(MemoryEngine):
    """A store with so many parts of 1 KB below each order, made when they are read."""

    parts = PARTS

    def page(self, table, partition, begins, after, limit):
        if not begins.startswith("LINE"):
            return super().page(table, partition, begins, after, limit)
        first = int(after.rpartition("#")[2]) + 1 if after else 0
        numbers = range(first, min(first + limit, self.parts))
        items = [
            {
                "PK": {"S": partition},
                "SK": {"S": f"LINE#{n:05}"},
                "price": {"N": str(n)},
                "text": {"S": f"{n:05}" + "x" * 1_000},
            }
            for n in numbers
        ]
        return Page(items, f"LINE#{numbers[-1]:05}" if numbers and numbers[-1] + 1 < self.parts else None)


def peak(app, engine, roots):
    """The megabytes that a batch takes at most beside what was there before, and its index."""
    changes = [change(None, item(f"ORDER#{n}", "METADATA", title="x"), n) for n in range(1, roots + 1)]
    engine.put_sources(newest_sources(changes))
    index = Emptied()
    run = Runtime(app, engine, Settings(), opened={OPENED: index})
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    assert not process_changes(run, changes).failures
    after = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (after - before) / 1e6, index


@pytest.mark.ci
@pytest.mark.parametrize("roots", [1, ROOTS])
def test_documents_of_two_thousand_parts_take_little_memory(roots):
    app = with_parts()
    small, _ = peak(one_item(), MemoryEngine(one_item().tables.values()), roots)
    large, index = peak(app, Endless(app.tables.values(), app.chains), roots)
    assert index.documents == roots
    assert large - small < MEGABYTES_MAX


def test_calls_of_a_batch_of_one_item_roots_are_few():
    app = one_item()
    counted = Counter()

    class Counting(MemoryEngine):
        def __getattribute__(self, name):
            if name in ("count_up", "read_sources", "read_state", "transact", "page"):
                counted[name] += 1
            return super().__getattribute__(name)

    _, index = peak(app, Counting(app.tables.values()), ROOTS)
    assert counted.pop("read_state") == 2  # the manifest; the index's mark
    assert (counted, index.requests) == ({"count_up": 1, "read_sources": 1}, 1)
