"""A rebuild on real servers, while items change: readers of the alias never see fewer documents."""

import threading
import time
from random import Random

import pytest

from streamfold import App, Document, Key, Router
from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import OPENED, SearchIndex, ServerAliases, create_index
from streamfold.derivations.search.options import own_alias
from streamfold.engines import MemoryEngine
from streamfold.engines.protocol import Segment
from streamfold.keys.table import MAIN
from streamfold.lifecycle.search import IndexVerifier, Rebuild
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item

DOCUMENTS = 2_000
PAGE = 100
ITEM = Key("ITEM#{number}", "METADATA")


def application(name):
    router = Router()

    @router.search(ITEM, to=name, fields={"amount": "long"})
    def document(found):
        return Document(amount=found["amount"])

    return App("shop", routers=[router])


class World:
    """Items on dictionaries, and their documents on a server. One lock stands for a store with atomic calls."""

    def __init__(self, place):
        self.app, self.place, self.random = application(place.index), place, Random(5)
        self.engine, self.lock = MemoryEngine(self.app.tables.values()), threading.RLock()
        for name in ("count_up", "read_sources", "read_state", "swap_state", "transact", "scan", "read_entries"):
            setattr(self.engine, name, self._locked(getattr(self.engine, name)))
        self.items, self.sequence, self.stopped = {}, 0, threading.Event()
        self.index = SearchIndex(self.app.routes[0], place.index)
        self.rebuild = Rebuild(self.run(), self.index, ServerAliases(place.sink))
        self.errors, self.counts = [], []

    def run(self):
        return Runtime(self.app, self.engine, Settings(), opened={OPENED: self.place.sink})

    def put(self, numbers, amount):
        changes = []
        for number in numbers:
            self.sequence += 1
            new = item(f"ITEM#{number}", "METADATA", amount=amount)
            changes.append(change(self.items.get(number), new, self.sequence))
            self.items[number] = new
        with self.lock:
            self.engine.put_sources(newest_sources(changes))
        assert not process_changes(self.run(), changes).failures

    def write(self):
        """Changes items until it is stopped."""
        amount = 1
        while not self.stopped.is_set():
            amount += 1
            self.put(self.random.sample(range(DOCUMENTS), 20), amount)

    def read(self):
        """Counts what a reader of the alias sees, again and again."""
        while not self.stopped.is_set():
            self.counts.append(self.place.server.ask("GET", f"/{self.place.index}/_count")["count"])

    def start(self, work):
        def kept():
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the test tells it
                self.errors.append(error)

        thread = threading.Thread(target=kept)
        thread.start()
        return thread

    def scan(self, started):
        after = None
        while True:
            page = self.engine.scan(MAIN, Segment(), after, PAGE)
            assert not self.rebuild.pages(started).reconcile(page.keys).failed
            after = page.after
            if after is None:
                return

    def _locked(self, call):
        def locked(*arguments, **named):
            with self.lock:
                return call(*arguments, **named)

        return locked


@pytest.fixture
def world(remote):
    world = World(remote)
    create_index(world.index, remote.sink)
    for first in range(0, DOCUMENTS, PAGE):
        world.put(range(first, first + PAGE), 1)
    remote.refresh()
    return world


def test_a_rebuild_ends_equal_and_no_reader_misses_a_document(world):
    writer, reader = world.start(world.write), world.start(world.read)
    started = int(time.time())
    mark = world.rebuild.begin()
    world.scan(started)
    assert world.rebuild.drain(started) == []
    world.rebuild.hold()
    time.sleep(1)  # in place of the gate: no batch takes so long here
    assert world.rebuild.drain(started) == []
    swapped = world.rebuild.swap()
    time.sleep(0.5)
    world.stopped.set()
    writer.join()
    reader.join()
    assert (world.errors, swapped.live) == ([], mark.building)
    assert set(world.counts) == {DOCUMENTS}
    expected = {f"ITEM#{number}|METADATA": int(found["amount"]) for number, found in world.items.items()}
    for name in (world.index.alias, own_alias(swapped.live), own_alias(swapped.old)):
        world.place.refresh()
        assert {each.id: each.body["amount"] for each in world.place.sink.documents(name)} == expected
    verifier = IndexVerifier(world.run(), world.index, world.place.sink, world.index.alias, 0)
    assert (verifier.verify(None, Random(1)).wrong, verifier.found.documents) == ([], DOCUMENTS)
    world.rebuild.back()
    assert world.rebuild.drop(offline=True).live == swapped.old
    world.put([1], 77)
    world.place.refresh()
    found = world.place.sink.read(world.index.alias, ["ITEM#1|METADATA"])
    assert found["ITEM#1|METADATA"].body["amount"] == 77


def test_an_aborted_rebuild_removes_the_new_index(world):
    mark = world.rebuild.begin()
    world.rebuild.hold()
    world.rebuild.abort()
    assert world.rebuild.aliases.last(world.index.alias) == 1
    assert mark.building == f"{world.index.alias}~000002"
    world.put([1], 77)
