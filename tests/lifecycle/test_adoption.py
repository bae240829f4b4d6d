"""Rows are taken over: by an empty state, and by an application under a new name."""

from itertools import count

import pytest

from streamfold import App, Count, Key, Max, Router, Row, Sum, Table
from streamfold.batch.process import check_application, process_event
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.protocol import NamedTable
from streamfold.errors import NotOwned, SettingsError
from streamfold.keys.table import STATE
from streamfold.ledger.state_keys import adopting_key, manifest_key
from streamfold.lifecycle.adoption import Adoption, Renaming, foreign_tables
from streamfold.records.values import decode
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings
from tests.helpers.separate import Died, SeparateStore, process
from tests.helpers.source import Source

ORDER, TOTALS, OWN = Key("ORDER#{order_id}", "METADATA"), Key("TOTALS", "{city}"), Key("OWN#{order_id}", "ROW")
NEW_STATE = NamedTable("new-state", "s-2")


def app(name="shop", *, attributes=False):
    router = Router()

    @router.view(ORDER, into=TOTALS)
    def totals(order):
        yield Row(city=order["city"], orders=Count(), total=Sum(order["total"]), largest=Max(order["total"]))

    @router.index(ORDER, into=OWN)
    def owned(order):
        yield Row(total=order["total"])

    if attributes:

        @router.attributes(ORDER)
        def marked(order):
            yield Row(city_key=order["city"])

    router.copy(ORDER, to=Table("copies"), name="copied")
    return App(name, routers=[router])


class Shop:
    """A table of orders with two states; the rows are those of the first."""

    def __init__(self, store=None):
        self.app = app()
        self.store = store or SeparateStore(self.app)
        self.source = Source(table="orders")
        self.orders, self.versions = {}, count(10**9)
        for number in range(6):
            self.deliver(self.put(number, city=f"c{number % 2}", total=number))

    def put(self, number, **order):
        return self._known(self.source.put(f"ORDER#{number}", **order))

    def _known(self, record):
        key = ("main", record["dynamodb"]["Keys"]["PK"]["S"], "METADATA")
        self.orders[key] = record["dynamodb"].get("NewImage")
        return record

    def items(self, store):
        """Puts the items as they are into a store: as a table has them that was copied or replicated."""
        for key, image in self.orders.items():
            if image is not None or key in store._sources:
                store.put_sources([(key, image, str(next(self.versions)))])

    def deliver(self, *records, name="shop", store=None):
        store = store or self.store
        self.items(store)
        report = process_event(process(app(name), store), list(records))
        assert report.failures == []

    def lose_state(self):
        """The same table with an empty state."""
        other = SeparateStore(self.app, rows=self.store, named={STATE.name: NEW_STATE})
        self.items(other)
        return other

    def expected(self):
        """The rows by a plain fold of the orders."""
        rows = {}
        for key, image in self.orders.items():
            if image is not None:
                order = decode({"M": image})
                row = rows.setdefault(("TOTALS", order["city"]), {"orders": 0, "total": 0, "largest": 0})
                row["orders"] += 1
                row["total"] += order["total"]
                row["largest"] = max(row["largest"], order["total"])
                rows[f"OWN#{key[1][6:]}", "ROW"] = {"total": order["total"]}
        return rows


def shown(store):
    found = {}
    for (table, partition, sort), row in store.derived.items():
        plain = {name: decode(value) for name, value in row.items() if not name.startswith("_sf_")}
        if table == "main" and not partition.startswith("ORDER#") and decode(row["_sf_n"]):
            found[partition, sort] = {name: value for name, value in plain.items() if name not in ("PK", "SK")}
    return found


@pytest.fixture
def shop():
    return Shop()


def test_an_empty_state_takes_rows_over_without_adding_anything_twice(shop):
    empty, before = shop.lose_state(), dict(shop.store.derived)
    report = Adoption(process(shop.app, empty)).go()
    assert (report.items, report.corrected, report.remaining, report.failed, report.marked) == (6, [], [], [], True)
    assert shop.store.derived == before
    assert shown(empty) == shop.expected()
    assert report.continued == ["copied"]


def test_a_state_that_took_rows_over_follows_every_change(shop):
    empty = shop.lose_state()
    Adoption(process(shop.app, empty)).go()
    shop.deliver(shop.put(0, city="c1", total=50), store=empty)
    shop.deliver(shop._known(shop.source.remove("ORDER#3")), store=empty)
    shop.deliver(shop.put(9, city="c0", total=1), store=empty)
    assert shown(empty) == shop.expected()


def test_rows_that_are_not_the_fold_are_corrected(shop):
    shop.put(1, city="c0", total=100)  # replicated, and its record lost with the other region
    empty = shop.lose_state()
    report = Adoption(process(shop.app, empty)).go()
    assert report.corrected
    assert report.marked
    assert shown(empty) == shop.expected()


def test_the_state_before_is_refused_once_another_one_took_the_rows_over(shop):
    empty = shop.lose_state()
    Adoption(process(shop.app, empty)).go()
    with pytest.raises(NotOwned, match="'new-state'"):
        check_application(process(app(), SeparateStore(shop.app, rows=shop.store)))


def test_a_dry_run_writes_nothing(shop):
    empty = shop.lose_state()
    report = Adoption(process(shop.app, empty)).go(dry_run=True)
    assert (report.items, report.marked, empty.state) == (6, False, {})
    assert [each.state for each in foreign_tables(process(shop.app, empty), "shop")] == ["orders-state"]


def test_an_adoption_that_dies_anywhere_refuses_the_state_until_it_is_run_again():
    calls = Shop().lose_state()
    Adoption(process(app(), calls)).go()
    for dies_at in range(0, len(calls.calls), 5):
        shop = Shop()
        empty = shop.lose_state()
        empty.dies_at = dies_at
        with pytest.raises(Died):
            Adoption(process(app(), empty)).go()
        empty.dies_at = None
        try:
            adoption = Adoption(process(app(), empty))
        except SettingsError:  # the tables are marked, and perhaps the manifest is written
            check_application(process(app(), empty))
        else:
            with pytest.raises(NotOwned):
                check_application(process(app(), empty))
            assert adoption.go().marked
        assert shown(empty) == shop.expected()
        shop.deliver(shop.put(2, city="c1", total=20), store=empty)
        assert shown(empty) == shop.expected()


def test_an_adoption_into_a_state_with_a_manifest_is_refused(shop):
    with pytest.raises(SettingsError, match="Expected an empty state"):
        Adoption(process(shop.app, shop.store))


def test_an_adoption_of_tables_without_rows_of_others_is_refused(shop):
    with pytest.raises(SettingsError, match="nothing is to be taken over"):
        Adoption(process(shop.app, SeparateStore(shop.app)))


LINE = Key("ORDER#{order_id}", "LINE#{line}")


class Lines:
    """A table whose orders have the sums of their lines, with a state that is lost."""

    def __init__(self):
        router = Router()

        @router.attributes(LINE, of=ORDER)
        def summed(line):
            return Row(total=Sum(line["amount"]), largest=Max(line["amount"]))

        self.app, self.source = App("shop", routers=[router]), Source(table="orders")
        self.store = SeparateStore(self.app)

    def deliver(self, *records):
        for record in records:
            key = record["dynamodb"]["Keys"]
            image = record["dynamodb"].get("NewImage")
            self.store.put_sources([(("main", key["PK"]["S"], key["SK"]["S"]), image, "1")])
        assert process_event(process(self.app, self.store), list(records)).failures == []

    def lose_state(self):
        rows, items = self.store.rows, SeparateStore(self.app, rows=self.store, named={STATE.name: NEW_STATE})
        items.rows = {key: row for key, row in rows.items() if key[0] != STATE.name}
        self.store = items

    def shown(self, order):
        found = self.store.read_source(("main", order, "METADATA"))
        return {name: decode(found[name]) for name in ("total", "largest") if name in found}


def test_sums_on_items_are_taken_over_with_changes_that_came_while_the_state_was_lost():
    table = Lines()
    put, remove = table.source.put, table.source.remove
    table.deliver(put("ORDER#1", name="one"), *(put("ORDER#1", f"LINE#{number}", amount=number) for number in (1, 2)))
    table.deliver(put("ORDER#2", name="two"), put("ORDER#2", "LINE#1", amount=5))
    table.lose_state()
    lost = [put("ORDER#1", "LINE#3", amount=3), remove("ORDER#2", "LINE#1")]
    with pytest.raises(NotOwned):
        table.deliver(*lost)
    report = Adoption(process(table.app, table.store)).go()
    assert (report.marked, report.remaining) == (True, [])
    table.deliver(*lost)
    assert (table.shown("ORDER#1"), table.shown("ORDER#2")) == ({"total": 6, "largest": 3}, {})
    table.deliver(put("ORDER#1", "LINE#4", amount=4))
    assert table.shown("ORDER#1") == {"total": 10, "largest": 4}


# A new name


def test_a_renamed_application_goes_on_with_state_and_rows(shop):
    before = shown(shop.store)
    report = Renaming(process(app("store"), shop.store), "shop").go()
    assert (report.marked, report.corrected, report.remaining) == (True, [], [])
    assert shown(shop.store) == before
    assert not [key for key in shop.store.state if key.pk.split("#")[1:2] == ["shop"]]
    shop.deliver(shop.put(0, city="c1", total=50), name="store")
    shop.deliver(shop._known(shop.source.remove("ORDER#3")), name="store")
    assert shown(shop.store) == shop.expected()


def test_the_old_name_is_refused_from_then_on(shop):
    Renaming(process(app("store"), shop.store), "shop").go()
    with pytest.raises(NotOwned, match="'store'"):
        check_application(process(app(), shop.store))


def test_rows_that_are_put_whole_get_the_new_name(shop):
    Renaming(process(app("store"), shop.store), "shop").go()
    owners = {decode(row["_sf_o"]).partition("/")[0] for row in shop.store.rows.values() if "_sf_o" in row}
    assert owners == {"store"}


def test_a_local_state_with_derived_attributes_is_made_anew(shop):
    with pytest.raises(SettingsError, match="replay --fresh"):
        Renaming(process(app("store", attributes=True), shop.store), "shop")


def test_a_renaming_that_dies_anywhere_refuses_both_names_until_it_is_run_again():
    calls = Shop().store
    begun = len(calls.calls)
    Renaming(process(app("store"), calls), "shop").go()
    for dies_at in range(begun, len(calls.calls), 3):
        shop = Shop()
        shop.store.dies_at = dies_at
        with pytest.raises(Died):
            Renaming(process(app("store"), shop.store), "shop").go()
        shop.store.dies_at = None
        if adopting_key("store") in shop.store.state:
            for name in ("shop", "store") if manifest_key("shop") not in shop.store.state else ("store",):
                with pytest.raises(NotOwned):
                    check_application(process(app(name), shop.store))
        try:
            Renaming(process(app("store"), shop.store), "shop").go()
        except SettingsError:  # all is moved
            check_application(process(app("store"), shop.store))
        shop.deliver(shop.put(0, city="c1", total=50), name="store")
        assert shown(shop.store) == shop.expected()


def test_a_local_state_is_renamed_too(tmp_path):
    with_name = {name: app(name) for name in ("shop", "store")}
    engine = EmbeddedEngine(with_name["shop"], path=str(tmp_path / "state.db"))
    source = Source()
    records = [source.put(f"ORDER#{number}", city="c", total=number) for number in range(3)]
    assert with_name["shop"].process(records, engine=engine, settings=Settings()) == []
    assert Renaming(Runtime(with_name["store"], engine, Settings(), Knowledge()), "shop").go().marked
    more = [source.put("ORDER#9", city="c", total=9)]
    assert with_name["store"].process(more, engine=engine, settings=Settings()) == []
    (row,) = engine.read_rows([("main", "TOTALS", "c")]).values()
    assert (row["orders"], row["total"], row["largest"]) == (4, 12, 9)
    engine.close()


def test_an_unknown_name_is_refused(shop):
    with pytest.raises(SettingsError, match="no application 'shoop'"):
        Renaming(process(app("store"), shop.store), "shoop")
