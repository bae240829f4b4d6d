"""Searches that look items up: documents follow both sides, and what a run reads and writes for that."""

import pytest

from streamfold import App, Document, Key, Lookup, Router
from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import plan_changes, process_changes
from streamfold.derivations import kept_words
from streamfold.derivations.search.documents import Root
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.maintenance import Comparing, Copying
from streamfold.engines.protocol import Counter as EngineCounter
from streamfold.errors import DeclarationError, ManifestError, SettingsError
from streamfold.failures.repair import Repair
from streamfold.ledger.contribution import backlinks
from streamfold.ledger.state_keys import document_key
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.retire import KeptRetirement
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import Twin, check
from tests.helpers import looked_up
from tests.helpers.looked_up import LookupShop, Meanwhile

LINE = Key("ORDER#{order_id}", "ITEM#{sku}")
PRODUCT, SUPPLIER = Key("PRODUCT#{product_id}", "META"), Key("SUPPLIER#{supplier_id}", "META")
FIELDS = {"name": "text"}
ITEM = ("main", "ORDER#1", "ITEM#a")
P = ("main", "PRODUCT#p", "META")


def application(*, lookup=None, inline=2_000, name="lines", **options):
    """A document of each line, with the name of its product."""
    router = Router()

    @router.search(
        LINE,
        to="lines",
        fields=FIELDS,
        lookup=lookup or {"product": Lookup(PRODUCT, reads=["name"])},
        inline=inline,
        name=name,
        **options,
    )
    def lines(line, product):
        if product and product["name"] == "wrong":
            raise ValueError("a name that is none")
        return Document(name=product["name"] if product else "none", units=line["units"])

    return App("shop", routers=[router])


class Shop(LookupShop):
    """A shop whose lines are documents, and their index."""

    def __init__(self, app=None):
        super().__init__(app or application())
        self.index = LocalIndex(self.engine)

    def runtime(self, **more):
        return super().runtime(**{"opened": {OPENED: self.index}, "outside": True, **more})

    def line(self, number, product_id, units=1):
        return self.line_of(number, product_id, units=units)

    def product(self, product_id, name, **more):
        return self.write(f"PRODUCT#{product_id}", "META", None if name is None else {"name": name, **more})

    def names(self):
        """The names in the documents, by the number of the line."""
        found = self.index.documents("lines")
        return {each.id.removeprefix("ORDER#").removesuffix("|ITEM#a"): each.body["name"] for each in found}

    def counter(self, number=1):
        return self.engine.state[document_key("shop", "lines", ("main", f"ORDER#{number}", "ITEM#a"))]


@pytest.fixture
def shop():
    return Shop()


def test_a_document_is_made_of_an_item_and_its_referent_and_follows_both(shop):
    shop.process(shop.product("p", "tea"), shop.line(1, "p", 3))
    (found,) = shop.index.documents("lines")
    assert (found.body["name"], found.body["units"]) == ("tea", 3)
    shop.process(shop.line(1, "p", 4))
    (found,) = shop.index.documents("lines")
    assert found.body["units"] == 4
    shop.process(shop.product("p", "herbs"))
    assert shop.names() == {"1": "herbs"}


def test_a_document_goes_with_the_referent_and_comes_back_with_it(shop):
    shop.process(shop.product("p", "tea"), shop.line(1, "p"))
    shop.process(shop.product("p", None))
    assert shop.names() == {}
    shop.process(shop.product("p", "herbs"))
    assert shop.names() == {"1": "herbs"}


def test_an_item_before_its_referent_hears_of_it(shop):
    shop.process(shop.line(1, "p"))
    assert (shop.names(), shop.backlinks()) == ({}, {"main#S#PRODUCT#p|S#META": 1})
    shop.process(shop.product("p", "tea"))
    assert shop.names() == {"1": "tea"}


def test_a_search_is_called_with_none_where_a_referent_may_lack():
    shop = Shop(application(lookup={"product": Lookup(PRODUCT, optional=True)}))
    shop.process(shop.line(1, "p"), shop.line(2, None))
    assert shop.names() == {"1": "none", "2": "none"}
    shop.process(shop.product("p", "tea"))
    assert shop.names() == {"1": "tea", "2": "none"}


def test_a_referent_that_was_there_before_the_search_is_found(shop):
    shop.product("p", "tea")
    shop.process(shop.line(1, "p"))
    assert shop.names() == {"1": "tea"}


def test_a_reference_that_moves_leaves_no_backlink_behind(shop):
    shop.process(shop.product("p", "tea"), shop.product("q", "cup"), shop.line(1, "p"))
    shop.process(shop.line(1, "q"))
    assert (shop.names(), shop.backlinks()) == ({"1": "cup"}, {"main#S#PRODUCT#q|S#META": 1})
    shop.process(shop.line(1, None))
    assert (shop.names(), shop.backlinks()) == ({}, {})


def test_a_counter_with_references_does_not_expire_and_one_without_does(shop):
    shop.process(shop.line(1, "p"), shop.line(2, None))
    assert (shop.counter()["refs"], "ttl" in shop.counter()) == ('[[">main","PRODUCT#p","META",{}]]', False)
    assert "ttl" in shop.counter(2)
    shop.process(shop.line(1, "p", 2))
    assert "ttl" not in shop.counter()
    shop.process(shop.write("ORDER#1", "ITEM#a", None))
    assert ("refs" in shop.counter(), "ttl" in shop.counter(), shop.backlinks()) == (False, True, {})


def test_a_counter_to_which_code_without_lookups_gave_a_time_to_live_loses_it(shop):
    shop.process(shop.product("p", "tea"), shop.line(1, "p"))
    shop.engine.count_up([EngineCounter(document_key("shop", "lines", ITEM))], 0, 5)
    assert shop.counter()["ttl"] == 5
    shop.process(shop.line(1, "p", 2))
    assert ("ttl" in shop.counter(), "refs" in shop.counter()) == (False, True)


def test_an_item_may_refer_to_another_of_its_key_as_in_a_tree():
    folder, router = Key("FOLDER#{folder_id}", "META"), Router()
    parent = Lookup(folder, folder_id="parent_id", optional=True, reads=["name"])

    @router.search(folder, to="folders", fields=FIELDS, lookup={"parent": parent})
    def folders(item, parent):
        return Document(name=item["name"], parent=parent["name"] if parent else "none")

    twin = Twin(App("shop", routers=[router]))
    twin.put(folder, folder_id="b", name="m", parent_id="a")
    twin.put(folder, folder_id="a", name="n", parent_id="a")
    twin.put(folder, folder_id="a", name="o", parent_id="a")
    parents = {name.partition("|")[0]: found["parent"] for name, found in twin.documents("folders").items()}
    assert parents == {"FOLDER#a": "o", "FOLDER#b": "o"}


def test_ids_and_references_of_one_item_keep_its_counter_together():
    app = looked_up.made(looked_up.documents_of_line)
    twin = Twin(app)
    twin.put(looked_up.PRODUCT, product_id="p", category="x")
    twin.put(looked_up.LINE, order_id="1", sku="a", product_id="p", quantity=2)
    assert set(twin.documents("names")) == {"1#a#x"}
    twin.put(looked_up.PRODUCT, product_id="p", category="y")
    assert set(twin.documents("names")) == {"1#a#y"}
    counters = [held for key, held in twin.engine.state.items() if key.pk.startswith("document#")]
    assert [(set(each["ids"]), "refs" in each, "ttl" in each) for each in counters] == [({"1#a#y"}, True, False)]
    twin.delete(looked_up.PRODUCT, product_id="p")
    twin.delete(looked_up.LINE, order_id="1", sku="a")
    assert twin.documents("names") == {}
    counters = [held for key, held in twin.engine.state.items() if key.pk.startswith("document#")]
    assert [({*each.get("ids", ())}, "refs" in each, "ttl" in each) for each in counters] == [(set(), False, True)]


def test_a_change_of_a_part_keeps_the_referent_in_the_document():
    twin = Twin(looked_up.made(looked_up.document_of_product))
    twin.put(looked_up.SUPPLIER, supplier_id="s", name="one")
    twin.put(looked_up.PRODUCT, product_id="p", supplier_id="s")
    twin.put(looked_up.LINE, order_id="1", sku="a", product_id="p", quantity=2)
    assert twin.documents("products") == {"PRODUCT#p|META": {"name": "one", "units": 2}}
    twin.put(looked_up.SUPPLIER, supplier_id="s", name="two")
    assert twin.documents("products") == {"PRODUCT#p|META": {"name": "two", "units": 2}}


def test_a_root_runs_once_for_the_changes_of_both_sides(shop):
    shop.process(shop.product("p", "tea"), shop.product("q", "cup"), shop.line(1, "p"))
    before = shop.counter()["n"]
    shop.process(shop.product("p", "herbs"), shop.line(1, "p", 2), shop.product("q", "mug"))
    assert (shop.counter()["n"], shop.names()) == (before + 1, {"1": "herbs"})


def test_a_backlink_that_names_an_item_which_does_not_refer_goes_with_the_run(shop):
    shop.process(shop.product("p", "tea"), shop.product("q", "cup"), shop.line(1, "q"))
    shop.engine.insert_state(backlinks("shop", "lines", ITEM, [P]))
    shop.process(shop.product("p", "herbs"))
    assert (shop.names(), shop.backlinks()) == ({"1": "cup"}, {"main#S#PRODUCT#q|S#META": 1})


def test_a_reference_that_cannot_be_composed_fails_its_item_and_keeps_the_one_before():
    shop = Shop(application(lookup={"product": Key("PRODUCT#{product_id:d}", "META")}))
    shop.process(shop.product("7", "tea"), shop.line(1, 7), shop.line(2, 7))
    (failure,) = shop.process(shop.line(1, "seven"), shop.line(2, 7, 2))
    assert "Lookup 'product' makes no key of" in str(failure.error)
    assert (shop.names(), shop.backlinks()) == ({"1": "tea", "2": "tea"}, {"main#S#PRODUCT#7|S#META": 2})


def test_an_item_on_which_the_function_raises_fails_the_referents_record_and_keeps_no_other_back(shop):
    shop.process(shop.product("p", "tea"), shop.product("q", "cup"), shop.line(1, "p"), shop.line(2, "q"))
    changes = [shop.product("p", "wrong"), shop.product("q", "mug")]
    failures = shop.process(*changes)
    assert [failure.sequence for failure in failures] == [changes[0].sequence]
    assert shop.names() == {"1": "tea", "2": "mug"}


def test_equal_documents_are_sent_where_a_reference_moves_although_equal_ones_are_skipped():
    shop = Shop(application(skip_equal=True))
    shop.process(shop.product("p", "tea"), shop.product("q", "tea"), shop.line(1, "p"))
    shop.process(shop.line(1, "q"))
    shop.process(shop.product("q", "cup"))
    assert shop.names() == {"1": "cup"}


# What it costs.


@pytest.mark.parametrize(
    ("what", "requests", "write_units"),
    [
        ("comes", 6, 3),
        ("amended", 4, 1),
        ("moves", 6, 6),
        ("goes", 4, 5),
        ("its referent changes", 5, 1),
        ("its referent changes outside of reads", 0, 0),
    ],
)
def test_what_an_item_with_one_referent_costs(shop, what, requests, write_units):
    shop.process(shop.product("p", "tea"), shop.product("q", "cup"))
    first = shop.line(1, "p")
    if what != "comes":
        shop.process(first)
    changes = {
        "comes": lambda: first,
        "amended": lambda: shop.line(1, "p", 2),
        "moves": lambda: shop.line(1, "q"),
        "goes": lambda: shop.write("ORDER#1", "ITEM#a", None),
        "its referent changes": lambda: shop.product("p", "herbs"),
        "its referent changes outside of reads": lambda: shop.product("p", "tea", price=3),
    }
    found = shop.counted(changes[what]())
    assert (found[0], found[2]) == (requests, write_units)


def test_what_a_change_of_a_referent_costs_for_each_of_many_referrers(shop):
    shop.process(shop.product("p", "tea"))
    for start in range(0, 1_000, 100):
        shop.process(*(shop.line(number, "p") for number in range(start, start + 100)))
    requests, read, written = shop.counted(shop.product("p", "herbs"))
    assert set(shop.names().values()) == {"herbs"}
    assert (requests / 1_000 <= 0.053, read / 1_000 <= 1.1, written / 1_000) == (True, True, 1)


def test_a_search_without_lookups_asks_for_nothing_more():
    router = Router()
    router.search(LINE, to="lines", fields=FIELDS, name="lines")(lambda line: Document(name="x", units=line["units"]))
    shop = Shop(App("shop", routers=[router]))
    shop.process(shop.line(0, "p"))
    assert shop.counted(*(shop.line(number, "p") for number in range(1, 100))) == (6, 100, 99)


# Races that a hook in the store shows.


def test_a_backlink_is_put_before_its_referent_is_read(shop):
    shop.process(shop.product("p", "tea"))
    shop.store = Meanwhile(shop.engine)
    coming = shop.line(1, "p")

    def before_the_referent():
        shop.store.happens = ("read_sources", lambda: shop.process(shop.product("p", "herbs")))

    shop.store.happens = ("read_sources", before_the_referent)
    shop.process(coming)
    assert shop.names() == {"1": "herbs"}


def test_a_run_that_was_overtaken_leaves_references_to_the_newer_one(shop):
    shop.process(shop.product("p", "tea"), shop.product("q", "cup"), shop.line(1, "p"))
    shop.store = Meanwhile(shop.engine)
    moves = shop.line(1, "q")
    shop.store.happens = ("transact", lambda: shop.process(shop.line(1, "p", 2)))
    assert shop.process(moves) == []
    assert '"PRODUCT#p"' in shop.counter()["refs"]
    assert (shop.names(), shop.backlinks()["main#S#PRODUCT#p|S#META"]) == ({"1": "tea"}, 1)
    shop.process(shop.product("q", "mug"))
    assert shop.backlinks() == {"main#S#PRODUCT#p|S#META": 1}


# Beside the stream.


def test_many_referrers_are_run_by_a_fan_out_and_the_record_is_acknowledged():
    shop = Shop(application(inline=2))
    shop.process(shop.product("p", "tea"), *(shop.line(number, "p") for number in range(40)))
    assert shop.process(shop.product("p", "herbs")) == []
    assert set(shop.names().values()) == {"tea"}
    assert len(shop.queued) == 16
    assert shop.fan_out() == []
    assert set(shop.names().values()) == {"herbs"}


def test_a_segment_stays_open_where_documents_do_not_leave_the_run():
    shop = Shop(application(inline=2))
    shop.process(shop.product("p", "tea"), *(shop.line(number, "p") for number in range(5)))
    shop.process(shop.product("p", "herbs"))
    for more in ({"source_items": False}, {"outside": None}):
        runtime = shop.runtime(**more)
        runtime.queued = shop.queued
        assert run_fan_outs(runtime).failures == []
        assert set(shop.names().values()) == {"tea"}
    runtime = shop.runtime(opened={})
    runtime.queued = shop.queued
    with pytest.raises(SettingsError, match="'lines' has no server to write to"):
        run_fan_outs(runtime)
    assert shop.fan_out() == []
    assert set(shop.names().values()) == {"herbs"}


@pytest.mark.parametrize("place", [ITEM, P])
def test_a_repair_of_an_item_and_of_a_referent_lead_to_what_both_are(shop, place):
    shop.process(shop.product("p", "tea"), shop.line(1, "p"))
    shop.product("p", "herbs")  # its record is lost for good
    (repaired,) = Repair(shop.runtime()).item(place)
    assert (repaired.error, repaired.written, shop.names()) == (None, 1, {"1": "herbs"})


def test_a_repair_of_a_referent_without_an_index_is_none(shop):
    shop.process(shop.product("p", "tea"), shop.line(1, "p"))
    changed = shop.product("p", "herbs")
    with pytest.raises(SettingsError, match="'lines' has no server to write to"):
        Repair(shop.runtime(opened={})).item(P, version=changed.version_text, changes=[changed])
    (repaired,) = Repair(shop.runtime(outside=None)).item(P, version=changed.version_text, changes=[changed])
    assert (repaired.error, repaired.written, shop.names()) == (None, 1, {"1": "herbs"})


def test_a_repair_of_a_referent_names_the_error_of_an_item(shop):
    shop.process(shop.product("p", "tea"), shop.line(1, "p"))
    changed = shop.product("p", "wrong")
    (repaired,) = Repair(shop.runtime()).item(P, version=changed.version_text, changes=[changed])
    assert "a name that is none" in str(repaired.error)


def test_a_backfill_puts_backlinks_and_reads_referents(shop):
    shop.product("p", "tea")
    places = [("main", f"ORDER#{number}", "ITEM#a") for number in range(10)]
    for number in range(10):
        shop.line(number, "p")
    report = Pages(shop.runtime(), {"lines"}).reconcile([*places, P])
    assert (report.items, report.written, report.failed) == (10, 10, [])
    assert (set(shop.names().values()), shop.backlinks()) == ({"tea"}, {"main#S#PRODUCT#p|S#META": 10})


def test_a_search_that_is_retired_leaves_no_backlink_in_the_state(shop):
    shop.process(shop.product("p", "tea"), shop.line(1, "p"), shop.line(2, "q"))
    retirement = KeptRetirement(shop.runtime(), "lines", kept_words("search"))
    list(retirement.go())
    assert (retirement.report.kept, shop.backlinks()) == ([], {})
    assert not [key for key in shop.engine.state if key.pk.startswith("document#")]


def test_a_scan_for_a_new_index_raises_counters_and_puts_backlinks(shop):
    shop.product("p", "tea")
    root = Root(shop.app.routes[0], ITEM, {"order_id": "1", "sku": "a"})
    shop.line(1, "p")
    failed = []
    Copying(shop.runtime(), shop.index, "other", 1, lambda *given: failed.append(given)).copy([root])
    assert (failed, shop.backlinks()) == ([], {"main#S#PRODUCT#p|S#META": 1})
    assert '"PRODUCT#p"' in shop.counter()["refs"]
    (found,) = shop.index.documents("other")
    assert (found.body["name"], found.version) == ("tea", shop.counter()["n"])


def test_a_comparison_reads_referents_and_writes_nothing(shop):
    shop.process(shop.product("p", "tea"), shop.line(1, "p"))
    root = Root(shop.app.routes[0], ITEM, {"order_id": "1", "sku": "a"})
    comparing = Comparing(shop.runtime(), shop.index, "lines")
    state = {key: dict(held) for key, held in shop.engine.state.items()}
    ((shown,), failed) = comparing.compare([root], {})
    assert (list(shown.differences()), failed) == ([], [])
    shop.product("p", "herbs")
    ((shown,), failed) = comparing.compare([root], {})
    assert list(shown.differences()) == [("different", "ORDER#1|ITEM#a")]
    assert {key: dict(held) for key, held in shop.engine.state.items() if key in state} == state


def test_code_that_lost_a_lookup_of_a_search_is_stopped(shop):
    shop.process(shop.line(1, "p"))
    router = Router()
    router.search(LINE, to="lines", fields=FIELDS, name="lines")(lambda line: Document(name="x"))
    with pytest.raises(ManifestError, match="changed its targets"):
        process_changes(Runtime(App("shop", routers=[router]), shop.engine, Settings()), [])


def test_a_dry_run_names_a_document_of_a_lookup_without_making_it(shop):
    plan, _ = plan_changes(shop.runtime(), [shop.line(1, "p")])
    (root,) = plan.deferred
    assert [each.fields for each in root.route.kind.preview(root, Settings())] == [None]


# What is declared.


def test_a_function_without_a_queue_for_fan_outs_is_refused():
    (route,) = application().routes
    searching = Settings(search="https://search")
    with pytest.raises(SettingsError, match=r"search 'lines' .* STREAMFOLD_JOBS"):
        route.kind.check_settings(route, searching)
    route.kind.check_settings(route, searching._replace(jobs="https://sqs.eu-west-1.amazonaws.com/1/jobs"))


def lacks_the_supplier(product, parts):
    return Document(name="x")


def takes_the_supplier_for_a_part(product, supplier):
    return Document(name="x")


@pytest.mark.parametrize("products", [lacks_the_supplier, takes_the_supplier_for_a_part])
def test_a_parameter_that_is_missing_is_refused_with_the_line(products):
    search = Router().search(
        PRODUCT, parts=[looked_up.PRODUCT_TOTAL], to="x", fields=FIELDS, lookup={"supplier": SUPPLIER}
    )
    with pytest.raises(DeclarationError, match=rf"write\n    def {products.__name__}\(product, parts, supplier\):"):
        search(products)


def test_the_subscriptions_of_a_search_name_its_parts_and_its_referents():
    (route,) = [each for each in looked_up.made(looked_up.document_of_product).routes if each.kind.name == "search"]
    assert [(each.key, each.role) for each in route.kind.subscriptions(route)] == [
        (looked_up.PRODUCT, "source"),
        (looked_up.SUPPLIER, "referent"),
        (looked_up.PRODUCT_TOTAL, "part"),
    ]


# Histories with faults, against the declarations.

each_search = pytest.mark.parametrize(
    "handler",
    [
        looked_up.document_of_line,
        looked_up.documents_of_line,
        looked_up.document_of_product,
        looked_up.document_with_total,
    ],
)


def check_histories(handler, histories, seed=0):
    app = looked_up.made(handler)
    assert check(app, looked_up.items_of(app), histories=histories, seed=seed, processes=0).unproved == ()


@each_search
def test_documents_are_those_of_the_items_and_their_referents(handler):
    check_histories(handler, 8)


@pytest.mark.ci
@each_search
def test_documents_are_those_of_the_items_and_their_referents_in_hundreds_of_histories(handler):
    check_histories(handler, 150, seed=1)
