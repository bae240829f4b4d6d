"""``streamfold search rebuild`` and ``verify`` on a local state."""

import json
from contextlib import contextmanager

import pytest

from streamfold.derivations.search.indexes import LocalAliases
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.sink import Action
from streamfold.engines import EmbeddedEngine
from streamfold.lifecycle.backfill import BackfillRun
from streamfold.lifecycle.search import Rebuild
from streamfold.writes.guarded import DeleteState, StateKey
from tests.helpers.records import item, record

SHOP = """
from streamfold import App, Document, Key, Router

PRODUCT = Key("PRODUCT#{product_id}", "METADATA")
router = Router()


@router.search(PRODUCT, to="products", fields={"title": "text"})
def product(item):
    yield Document(title=item["title"])


app = App("shop", routers=[router])
"""
NEXT = """

@router.search(PRODUCT, to="products", fields={"title": "keyword"}, name="product_2", replaces="product")
def product_2(item):
    yield Document(title=item["title"], shape=2)


app = App("shop", routers=[router])
"""
LOOKS_UP = (
    SHOP.replace("Key, Router", "Key, Lookup, Router")
    .replace('"text"})', '"text"}, lookup={"maker": Lookup(Key("MAKER#{maker_id}", "METADATA"), optional=True)})')
    .replace("(item):", "(item, maker):")
)
STATE = ("--state", "state.db")
NOW = ("--tolerance", "0")
REBUILD = ("search", "rebuild", "products", *STATE, *NOW)
VERIFY = ("search", "verify", "products", *STATE, *NOW)


class Shop:
    """A state with products in it."""

    def __init__(self, folder):
        self.folder, self.sequence = folder, 0
        folder.app(SHOP)

    def put(self, **titles):
        """Replays new products, or changed ones; None removes."""
        records = []
        for number, title in titles.items():
            self.sequence += 1
            new = None if title is None else item(f"PRODUCT#{number}", "METADATA", title=title)
            old = item(f"PRODUCT#{number}", "METADATA", title="old") if self.sequence > 3 or title is None else None
            records.append(record(old, new, self.sequence))
        ran = self.folder.run("replay", self.folder.records(*records), *STATE)
        assert ran.code == 0, ran.err

    def run(self, *arguments):
        return self.folder.run(*arguments)

    def shown(self, index="products"):
        ran = self.run("show", "--index", index, *STATE, "--json")
        assert ran.code == 0, ran.err
        found = ran.objects()
        return {each["id"].split("|")[0][-1]: each["document"]["title"] for each in found}

    @contextmanager
    def index(self):
        """The documents of the state, for somebody who writes them by hand."""
        engine = EmbeddedEngine([], str(self.folder.path / "state.db"))
        yield LocalIndex(engine)
        engine.close()

    def partitions(self):
        """The partitions of the state."""
        with self.index() as index:
            return {each["pk"]["S"] for each in index.engine.state_items()}


@pytest.fixture
def shop(folder):
    shop = Shop(folder)
    shop.put(a="one", b="two", c="three")
    return shop


def test_a_rebuild_moves_the_alias_to_a_new_index(shop):
    ran = shop.run(*REBUILD)
    assert (ran.code, ran.out.splitlines()[0]) == (0, "Alias products names products~000002.")
    assert shop.shown() == {"a": "one", "b": "two", "c": "three"}


def test_changes_reach_both_indexes_until_the_old_one_is_dropped(shop):
    shop.run(*REBUILD)
    shop.put(a="four", b=None)
    assert shop.shown() == {"a": "four", "c": "three"}
    assert "Alias products names products." in shop.run(*REBUILD, "--back").out
    assert shop.shown() == {"a": "four", "c": "three"}
    shop.put(c="five")
    assert "Alias products names products." in shop.run(*REBUILD, "--drop").out
    assert shop.shown() == {"a": "four", "c": "five"}
    assert "products~000003" in shop.run(*REBUILD).out
    assert shop.shown() == {"a": "four", "c": "five"}


def test_a_dropped_index_is_gone(shop):
    shop.run(*REBUILD)
    ran = shop.run(*REBUILD, "--drop", "--json")
    assert json.loads(ran.out) == {"alias": "products", "live": "products~000002", "old": "", "phase": ""}
    shop.put(a="four")
    assert shop.shown() == {"a": "four", "b": "two", "c": "three"}


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("--back", "Index 'products' is not being rebuilt: streamfold search rebuild products begins."),
        ("--abort", "Index 'products' is not being rebuilt: streamfold search rebuild products begins."),
    ],
)
def test_a_step_that_is_none_is_refused(shop, step, told):
    ran = shop.run(*REBUILD, step)
    assert (ran.code, ran.err.strip()) == (2, f"Error: {told}")


def test_a_rebuild_that_is_not_dropped_is_followed_by_none(shop):
    shop.run(*REBUILD)
    ran = shop.run(*REBUILD)
    assert ran.code == 2
    assert "--drop removes the old one, --back returns to it." in ran.err


def test_two_steps_at_once_are_refused(shop):
    ran = shop.run(*REBUILD, "--back", "--drop")
    assert (ran.code, "Expected one of --back and --drop" in ran.err) == (2, True)


@pytest.mark.parametrize("application", [SHOP, LOOKS_UP])
def test_an_item_on_which_the_function_raises_stands_in_the_way(shop, application):
    shop.folder.app(application.replace('item["title"])', 'item["title" if item["title"] != "two" else "none"])'))
    ran = shop.run(*REBUILD)
    assert (ran.code, "failed: PRODUCT#b / METADATA: " in ran.err) == (1, True)
    assert "the alias was not moved" in ran.err
    assert shop.shown() == {"a": "one", "b": "two", "c": "three"}
    ran = shop.run(*REBUILD, "--accept-failed")
    assert (ran.code, shop.shown()) == (0, {"a": "one", "c": "three"})


def test_an_aborted_rebuild_leaves_nothing_behind(shop):
    shop.folder.app(SHOP.replace('item["title"])', 'item["title" if item["title"] != "two" else "none"])'))
    shop.run(*REBUILD)
    shop.folder.app(SHOP)
    ran = shop.run(*REBUILD, "--abort")
    assert (ran.code, ran.out) == (0, "Alias products names products.\n")
    assert not [key for key in shop.partitions() if key.startswith(("dirty#", "search#products-"))]
    assert shop.shown() == {"a": "one", "b": "two", "c": "three"}


def test_a_rebuild_that_stops_as_it_begins_leaves_no_index_behind(shop, monkeypatch):
    made, create, delete = set(), LocalAliases.create, LocalAliases.delete

    def stops(self, index, name):
        create(self, index, name)
        made.add(name)
        if name == "products~000002":
            raise KeyboardInterrupt

    def deletes(self, name):
        delete(self, name)
        made.discard(name)

    monkeypatch.setattr(LocalAliases, "create", stops)
    monkeypatch.setattr(LocalAliases, "delete", deletes)
    assert shop.run(*REBUILD).code == 130
    assert made == {"products~000002"}
    assert shop.run(*REBUILD).code == 0
    assert made == {"products~000003"}


def test_an_aborted_rebuild_leaves_no_job_open(shop, monkeypatch):
    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BackfillRun, "run_segment", stops)
    assert shop.run(*REBUILD).code == 130
    assert "search rebuild product: open" in shop.run("jobs", *STATE).out
    assert shop.run(*REBUILD, "--abort").code == 0
    assert "search rebuild product: ended" in shop.run("jobs", *STATE).out


def test_a_search_that_replaces_another_takes_its_alias_over(shop):
    shop.folder.app(SHOP.replace('\n\napp = App("shop", routers=[router])\n', NEXT))
    assert shop.run("backfill", "product_2", *STATE).code == 0
    ran = shop.run("search", "rebuild", "products~next", "--take-over", *STATE)
    assert (ran.code, "Alias products names products~next." in ran.out) == (0, True), ran.err
    shop.put(a="four")
    assert shop.shown() == {"a": "four", "b": "two", "c": "three"}
    ran = shop.run(*REBUILD, "--drop")
    assert (ran.code, "still writes index 'products'" in ran.err) == (2, True)
    only = SHOP.replace("def product(item)", "def product_2(item)").replace("router])", 'router], retired=["product"])')
    shop.folder.app(only)
    shop.put(b="five")
    assert shop.shown() == {"a": "four", "b": "five", "c": "three"}
    assert shop.run(*REBUILD, "--drop").code == 0
    shop.put(c="six")
    assert shop.shown() == {"a": "four", "b": "five", "c": "six"}


def test_a_take_over_may_be_taken_back(shop):
    shop.folder.app(SHOP.replace('\n\napp = App("shop", routers=[router])\n', NEXT))
    shop.run("backfill", "product_2", *STATE)
    shop.run("search", "rebuild", "products~next", "--take-over", *STATE)
    shop.put(a="four")
    ran = shop.run(*REBUILD, "--back")
    assert (ran.code, ran.out) == (0, "Alias products names products.\n")
    shop.put(b="five")
    assert shop.shown() == {"a": "four", "b": "five", "c": "three"}


def test_only_a_search_that_replaces_another_takes_over(shop):
    ran = shop.run(*REBUILD, "--take-over")
    assert (ran.code, "replaces none" in ran.err) == (2, True)


def test_an_index_that_is_as_the_items_are_verifies(shop):
    ran = shop.run(*VERIFY)
    assert (ran.code, ran.out) == (
        0,
        "Index products: 3 items compared; 0 different, 0 missing, 0 ghost; 0 moving.\n",
    )


def planted(shop):
    """A document of each kind that is wrong."""
    with shop.index() as index:
        held = index.read("products", ["PRODUCT#a|METADATA"])["PRODUCT#a|METADATA"].version
        index.bulk([Action("products", "PRODUCT#a|METADATA", held + 5, b'{"title":"nine"}')])
        index.engine.transact([DeleteState(StateKey("search#products", "PRODUCT#b|METADATA"))], 0)
        index.bulk([Action("products", "PRODUCT#z|METADATA", 5, b'{"title":"ghost"}')])
        index.bulk([Action("products", "somebody's", 5, b'{"title":"own"}')])


@pytest.mark.parametrize("which", [["--full"], ["--sample", "100"]])
def test_documents_that_are_wrong_are_found(shop, which):
    planted(shop)
    ran = shop.run(*VERIFY, *which, "--json")
    found = json.loads(ran.out)
    assert ran.code == 1
    assert {(each["what"], each["id"]) for each in found.pop("wrong")} == {
        ("different", "PRODUCT#a|METADATA"),
        ("missing", "PRODUCT#b|METADATA"),
        ("ghost", "PRODUCT#z|METADATA"),
    }
    counts = {"different": 1, "missing": 1, "ghost": 1, "moving": 0, "untold": 1, "failed": 0}
    assert found == {"alias": "products", "items": 3, **counts, "left": None}


def test_documents_that_are_wrong_are_mended(shop):
    planted(shop)
    ran = shop.run(*VERIFY, "--full", "--repair")
    assert (ran.code, "All differences were corrected." in ran.out) == (0, True)
    assert "The ids of 1 documents do not name their items; these were not compared." in ran.out
    assert "0 different, 0 missing, 0 ghost" in shop.run(*VERIFY, "--full").out
    with shop.index() as index:
        index.engine.transact([DeleteState(StateKey("search#products", "somebody's"))], 0)
    assert shop.shown() == {"a": "one", "b": "two", "c": "three"}


def test_a_new_index_that_differs_is_not_moved_to(shop, monkeypatch):
    def changed(self, started):
        found = drain(self, started)
        with shop.index() as index:
            index.bulk([Action("products~000002", "PRODUCT#a|METADATA", 2**62, b'{"title":"nine"}')])
        return found

    drain = Rebuild.drain
    monkeypatch.setattr(Rebuild, "drain", changed)
    ran = shop.run(*REBUILD)
    assert (ran.code, "different: document PRODUCT#a|METADATA" in ran.err) == (1, True)
    assert "The new index differs from the items: the alias was not moved." in ran.err


def test_a_comparison_names_no_new_handler_in_the_state(shop):
    shop.put(a="Tea")
    shop.folder.app(SHOP + NEXT)

    assert shop.run(*VERIFY).code == 0

    assert "partial since" not in shop.run("routes", *STATE).out
    assert shop.run(*VERIFY, "--repair").code == 0
    assert "partial since" in shop.run("routes", *STATE).out
