"""What is wrong with an index, what only moves, and how it is mended."""

from random import Random

import pytest

from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import SearchIndex
from streamfold.derivations.search.local import local_indexes
from streamfold.derivations.search.maintenance import root_of
from streamfold.derivations.search.sink import Action
from streamfold.engines import MemoryEngine
from streamfold.lifecycle.search import IndexVerifier, WrongDocument, repair
from streamfold.replay.replay import newest_sources
from tests.derivations.search.applications import SONG, one_item, several
from tests.helpers.records import change, item
from tests.lifecycle.test_search_rebuild import KEY, World, lead


class Verified(World):
    """A world whose index is verified; ``waited`` happens while the verifier waits."""

    def verify(self, waited=lambda: None, sample=None):
        run = self.run()
        run.pause = lambda _: waited()
        index = self.rebuild.index
        verifier = IndexVerifier(run, index, self.index, index.alias, 1)
        return verifier.verify(sample, Random(1))

    def set(self, title, version, name="ORDER#1|METADATA"):
        self.index.bulk([Action("orders", name, version, f'{{"title":"{title}"}}'.encode())])


@pytest.fixture
def world():
    world = Verified()
    world.put("first")
    return world


def test_an_index_as_the_items_are_has_nothing_wrong(world):
    found = world.verify()
    assert (found.roots, found.documents, found.wrong, found.moving) == (1, 1, [], 0)


def test_a_document_that_differs_all_the_while_is_wrong(world):
    world.set("other", 2**50)
    assert world.verify().wrong == [WrongDocument(KEY, "ORDER#1|METADATA", "different")]
    assert world.verify(sample=5).wrong == [WrongDocument(KEY, "ORDER#1|METADATA", "different")]


def test_a_truth_value_in_place_of_a_number_is_wrong(world):
    world.put(1)
    world.index.bulk([Action("orders", "ORDER#1|METADATA", 2**50, b'{"title":true}')])
    assert world.verify().wrong == [WrongDocument(KEY, "ORDER#1|METADATA", "different")]


def test_what_is_right_at_the_second_look_is_not_wrong(world):
    world.set("other", 2**50)
    found = world.verify(lambda: world.set("first", 2**51))
    assert (found.wrong, found.moving) == ([], 0)


def test_what_changes_at_each_look_is_moving(world):
    numbers = iter(range(100))
    world.set("other", 2**50)
    found = world.verify(lambda: world.set(f"other {(n := next(numbers))}", 2**50 + n + 1))
    assert (found.wrong, found.moving) == ([], 2)  # met as an item, and as a document


def test_a_ghost_under_an_id_that_the_state_does_not_know_is_mended():
    app = several()
    world = Verified.__new__(Verified)
    World.__init__(world)
    world.app, world.engine = app, MemoryEngine(app.tables.values())
    world.index.engine = world.engine
    world.rebuild.index = SearchIndex(app.routes[0], "songs")
    new = item("SONG#1", "METADATA", titles={"en": "one"})
    world.engine.put_sources(newest_sources([change(None, new, 1)]))
    process_changes(world.run(), [change(None, new, 1)])
    world.index.bulk([Action("songs", "1#fr", 5, b'{"title":"ghost"}')])
    found = world.verify()
    assert found.wrong == [WrongDocument(("main", "SONG#1", "METADATA"), "1#fr", "ghost")]
    assert not repair(world.run(), world.rebuild.index, found.wrong).failed
    assert world.verify().wrong == []
    assert [each.id for each in world.index.documents("songs")] == ["1#en"]


def test_the_root_of_a_document_follows_from_its_id():
    (order,), (song,) = one_item().routes, several().routes
    assert root_of(order, "ORDER#1|METADATA").item == KEY
    assert root_of(order, "ORDER#%7C|METADATA").item == ("main", "ORDER#|", "METADATA")
    assert root_of(song, "1#en").item == ("main", SONG.key(song="1")["PK"], "METADATA")
    assert root_of(order, "ORDER#1~0123") is None
    assert root_of(order, "a|b|c") is None
    assert root_of(song, "1") is None


def test_a_local_state_names_an_index_as_readers_do(world):
    assert local_indexes(world.engine) == ["orders"]
    lead(world)
    assert local_indexes(world.engine) == ["orders"]
