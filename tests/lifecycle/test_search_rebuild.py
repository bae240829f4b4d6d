"""Steps of a rebuild, and what happens between them."""

from itertools import count

import pytest

from streamfold import App, Document, Key, Lookup, Router
from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import OPENED, LocalAliases, SearchIndex
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.options import own_alias
from streamfold.derivations.search.sink import Answer
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable, SettingsError
from streamfold.lifecycle.search import Rebuild
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.derivations.search.applications import FIELDS, ORDER, one_item
from tests.helpers.records import change, item
from tests.lifecycle.test_rebuild_histories import source_before_number

NOW = 1_772_355_600
KEY = ("main", "ORDER#1", "METADATA")
NEW = own_alias("orders~000002")
RAISES_COUNTERS = [
    {"id": "ORDER#{order_id}#{title}"},
    {"lookup": {"buyer": Lookup(Key("USER#{buyer_id}", "META"), optional=True)}},
]
"""Options of a search whose rebuild raises the counter of an item at each visit."""
READS_MAX = 20
"""A drain that reads the notes of one item more often does not end."""


def refusing(**options):
    """A document of each item, except of wrong ones."""
    router = Router()

    @router.search(ORDER, to="orders", fields=FIELDS, **options)
    def order(item, buyer=None):
        if item["title"] == "wrong":
            raise ValueError("a wrong title")
        return Document(title=item["title"])

    return App("shop", routers=[router])


class Failing(LocalIndex):
    """An index that refuses what goes to some names."""

    refuses = ()
    meanwhile = staticmethod(lambda: None)

    def bulk(self, actions):
        self.meanwhile()
        if actions and actions[0].index in self.refuses:
            raise EngineUnavailable("away")
        return super().bulk(actions)


class World:
    """An application with one search, its items, its index and a rebuild of it."""

    def __init__(self, application=one_item, **options):
        self.app = application(**options)
        self.engine = MemoryEngine(self.app.tables.values(), self.app.chains)
        self.index, self.now, self.sequence, self.old = Failing(self.engine), NOW, 0, None
        index = SearchIndex(self.app.routes[0], "orders")
        self.rebuild = Rebuild(self.run(), index, LocalAliases(self.index))

    def run(self):
        opened = {OPENED: self.index}
        return Runtime(self.app, self.engine, Settings(), clock=lambda: self.now, pause=lambda _: None, opened=opened)

    def put(self, title):
        """Changes the item, and delivers its record."""
        self.sequence += 1
        new = item(*KEY[1:], title=title)
        changes = [change(self.old, new, self.sequence)]
        self.old = new
        self.engine.put_sources(newest_sources(changes))
        report = process_changes(self.run(), changes)
        return not report.failures

    def scan(self):
        assert not self.rebuild.pages(NOW).reconcile([KEY]).failed

    def drain(self):
        """Drains the notes of the rebuild, and fails instead of going on without end."""
        reads, read = count(1), self.engine.read_entries

        def counted(wanted):
            if next(reads) > READS_MAX:
                pytest.fail("the drain does not end")
            return read(wanted)

        self.engine.read_entries = counted
        try:
            return self.rebuild.drain(NOW)
        finally:
            self.engine.read_entries = read

    def notes(self):
        return [key for key in self.engine.state if key.pk.startswith("dirty#")]

    def title(self, name="orders"):
        return next((each.body["title"] for each in self.index.documents(name)), None)


@pytest.fixture
def world():
    world = World()
    world.put("first")
    return world


def lead(world):
    """Leads a rebuild to the moved alias."""
    world.rebuild.begin()
    world.scan()
    assert world.rebuild.drain(NOW) == []
    world.rebuild.hold()
    return world.rebuild.swap()


def test_a_scan_writes_nothing_to_the_state(world):
    world.rebuild.begin()
    before = {key: item for key, item in world.engine.state.items() if not key.pk.startswith("search#")}
    world.scan()
    after = {key: item for key, item in world.engine.state.items() if not key.pk.startswith("search#")}
    assert (before, world.title(NEW)) == (after, "first")


def test_a_batch_sends_to_both_from_the_begin_on(world):
    world.rebuild.begin()
    assert world.put("second")
    assert (world.title(), world.title(NEW)) == ("second", "second")


def test_a_new_index_that_is_away_holds_no_record_and_gets_the_document_later(world):
    world.rebuild.begin()
    world.index.refuses = (NEW,)
    assert world.put("second")
    world.index.refuses = ()
    assert world.title(NEW) is None
    assert world.rebuild.drain(NOW) == []
    assert world.title(NEW) == "second"


@pytest.mark.parametrize("away", [NEW, own_alias("orders")])
def test_either_index_holds_the_record_before_the_alias_is_moved(world, away):
    world.rebuild.begin()
    world.rebuild.hold()
    world.index.refuses = (away,)
    assert not world.put("second")


@pytest.mark.parametrize("options", [{}, *RAISES_COUNTERS])
def test_an_item_on_which_the_function_raises_at_each_visit_ends_the_drain_and_stays_noted(options):
    world = World(refusing, **options)
    assert not world.put("wrong")
    world.rebuild.begin()
    world.rebuild.pages(NOW).reconcile([KEY])
    for _ in range(2):
        (failed,) = world.drain()
        assert (failed.item, str(failed.error), len(world.notes())) == (KEY, "a wrong title", 1)
    assert world.put("right")
    assert (world.drain(), world.notes(), world.title(NEW)) == ([], [], "right")


@pytest.mark.parametrize("options", [{}, *RAISES_COUNTERS])
def test_a_document_that_the_new_index_refuses_is_told_and_stays_noted(options, monkeypatch):
    world = World(refusing, **options)
    world.put("first")
    world.rebuild.begin()
    bulk = Failing.bulk

    def refuses(index, sent):
        if sent[0].index != NEW:
            return bulk(index, sent)
        return [Answer(400, "no mapping") for _ in sent]

    monkeypatch.setattr(Failing, "bulk", refuses)
    assert world.put("second")
    for _ in range(2):
        (failed,) = world.drain()
        assert "no mapping" in str(failed.error)
    monkeypatch.undo()
    assert (world.drain(), world.notes(), world.title(NEW)) == ([], [], "second")


def test_a_refused_item_that_changes_at_each_visit_ends_the_drain(world, monkeypatch):
    world.rebuild.begin()
    bulk = Failing.bulk

    def refuses(index, sent):
        if sent[0].index != NEW:
            return bulk(index, sent)
        if not world.inside:  # a record comes after each visit of the drain
            world.inside = True
            assert world.put("changed")
            world.inside = False
        return [Answer(400, "no mapping") for _ in sent]

    monkeypatch.setattr(Failing, "bulk", refuses)
    world.inside = True
    assert world.put("second")
    world.inside = False
    assert [failed.item for failed in world.drain()] == [KEY]


def changed_after_the_read(world):
    """The item changes behind the read of the scan, while the new index is away."""
    read = world.engine.read_sources

    def changed(items):
        found = read(items)
        world.engine.read_sources = read
        world.index.refuses = (NEW,)
        assert world.put("second")
        world.index.refuses = ()
        return found

    world.engine.read_sources = changed
    world.scan()
    assert world.rebuild.drain(NOW) == []


def test_a_scan_never_sets_a_document_back(world):
    world.rebuild.begin()
    changed_after_the_read(world)
    assert world.title(NEW) == "second"


def test_a_scan_that_reads_items_before_counters_does(world):
    world.rebuild.begin()
    with source_before_number():
        changed_after_the_read(world)
    assert world.title(NEW) == "first"


def moved_at_once(world):
    """Moves the alias without a wait."""
    world.index.refuses, world.index.meanwhile = (), lambda: None
    world.rebuild.hold()
    assert world.rebuild.drain(NOW) == []
    world.rebuild.swap()


def test_a_batch_that_began_before_is_held_where_it_meets_a_moved_alias(world):
    world.rebuild.begin()
    world.scan()
    world.index.meanwhile = lambda: moved_at_once(world)
    assert not world.put("second")
    assert world.put("second")
    assert (world.title(), world.title(own_alias("orders"))) == ("second", "second")


def test_without_a_wait_a_root_could_be_noted_too_late(world):
    world.rebuild.begin()
    world.scan()
    world.index.refuses, transact = (NEW,), world.engine.transact

    def late(writes, expires_at):
        world.engine.transact = transact
        moved_at_once(world)
        return transact(writes, expires_at)

    world.engine.transact = late
    assert world.put("second")
    assert world.title() == "first"


def test_the_wait_is_that_of_the_settings(world):
    mark = world.rebuild.begin()
    assert world.rebuild.seconds_remaining(mark) == 901
    world.now += 901
    assert world.rebuild.seconds_remaining(mark) == 0


def test_an_index_is_dropped_when_nobody_can_write_it_any_more(world):
    lead(world)
    with pytest.raises(SettingsError, match=r"Drop it in 901 seconds"):
        world.rebuild.drop()
    world.now += 901
    assert world.rebuild.drop().phase == ""
    assert world.put("second")
    assert world.title() == "second"


def test_a_batch_that_is_on_its_way_is_not_held_by_an_index_that_was_dropped(world):
    world.rebuild.begin()

    def aborted():
        world.index.meanwhile = lambda: None
        world.index.refuses = (NEW,)
        world.rebuild.abort()

    world.index.meanwhile = aborted
    assert world.put("second")
    assert not [key for key in world.engine.state if key.pk.startswith("dirty#")]


def test_no_number_of_an_index_is_given_twice(world):
    world.rebuild.begin()
    world.rebuild.abort()
    assert world.rebuild.begin().building == "orders~000003"


def test_an_index_that_is_missing_documents_under_kept_ids_gets_them():
    world = World(id="ORDER#{order_id}#{title}")
    world.put("first")
    lead(world)
    world.put("second")
    assert world.title() == "second"
    world.rebuild.back()
    assert world.title() == "second"
