"""Owners of derived attributes: applications and versions of one application keep the attributes of others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import App, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.derivations.attributes.write_back import Own, PutBack, pending_update
from streamfold.keys.table import DERIVED
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.derivations.attributes.test_write_back import Table
from tests.helpers.records import item, record

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
ITEM = ("main", "ORDER#1", "METADATA")
STATE = {"PK": "ORDER#1", "SK": "METADATA"}
ROUNDS_MAX = 60
OWN = Own("shop", frozenset({"total", "open"}), frozenset({"gone"}))


class Calm:
    """What stands for chance where nothing fails."""

    def random(self):
        return 0.5


class Disturbed(Table):
    """A table to which something else happens just before attributes are written."""

    meanwhile = None

    def _update(self, write):
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return super()._update(write)


def summed(name, attribute, field, group="main"):
    def declare(router):
        @router.attributes(ORDER_ITEM, of=ORDER, name=name, group=group)
        def derived(item):
            yield Row(**{attribute: Sum(item[field])})

    return declare


def opened(router):
    @router.attributes(ORDER)
    def open_orders(order):
        if order["status"] == "open":
            yield Row(flag="OPEN")


def app_of(name, *declarations, retired=()):
    router = Router()
    for declare in declarations:
        declare(router)
    return App(name, routers=[router], retired=retired)


TOTAL = summed("total", "total", "price")
WORDS = summed("words", "words", "weight", "search")
OLD, NEW = app_of("shop", TOTAL, opened), app_of("shop", TOTAL, opened, WORDS)
BILLING = app_of("billing", summed("total", "owed", "weight"))


class Readers:
    """Functions that read the stream of one table, each from a place of its own."""

    def __init__(self, *names, table=Table):
        self.table = table(NEW, Calm())
        self.places = dict.fromkeys(names, 0)
        self.process(OLD, [record(None, item("OTHER#1"))])  # it is warm, and compares itself with the state no more

    def deliver(self, reader, app, count=1, group=None):
        """Gives a function its next records; returns what failed of them."""
        place = self.places[reader]
        batch = [record for _, record in self.table.records[place : place + count]]
        self.places[reader] += len(batch)
        return self.process(app, batch, group)

    def process(self, app, batch, group=None):
        run = Runtime(app, self.table, Settings(group=group, older_code=True), pause=lambda _: None)
        return process_event(run, batch).failures

    def drain(self, **apps):
        """Delivers all records, and those of what is written meanwhile; returns how many rounds it took."""
        for number in range(ROUNDS_MAX):
            if all(place == len(self.table.records) for place in self.places.values()):
                return number
            for reader in self.places:
                app, function = apps[reader]
                assert self.deliver(reader, app, 5, function) == []
        raise AssertionError(f"still written to after {ROUNDS_MAX} rounds: {self.order()}")

    def order(self, number="1"):
        found = self.table.item(f"ORDER#{number}", "METADATA")
        return {name: value for name, value in found.items() if name not in ("PK", "SK")}

    def line(self, number="1", sku="a", **attributes):
        self.table.put(f"ORDER#{number}", f"ITEM#{sku}", **attributes)

    def put(self, number="1", **attributes):
        self.table.put(f"ORDER#{number}", "METADATA", **attributes)


def test_two_applications_derive_onto_one_item_and_come_to_an_end():
    readers = Readers("shop", "billing")
    readers.put(status="paid")
    readers.line(price=5, weight=3)
    assert readers.drain(shop=(OLD, None), billing=(BILLING, None)) <= 3
    marks = {"shop/total": {"total"}, "billing/total": {"owed"}}
    assert readers.order() == {"status": "paid", "total": 5, "owed": 3, DERIVED: marks}


def test_two_functions_of_which_one_has_older_code_come_to_an_end():
    readers = Readers("main", "search")
    readers.put(status="paid")
    readers.line(price=5, weight=3)
    readers.drain(main=(OLD, "main"), search=(NEW, "search"))
    assert (readers.order()["total"], readers.order()["words"]) == (5, 3)


def test_older_code_leaves_what_newer_code_derived():
    readers = Readers("main")
    readers.put(status="paid")
    readers.line(price=5, weight=3)
    readers.drain(main=(NEW, None))
    readers.line(sku="b", price=2, weight=1)
    readers.drain(main=(OLD, None))
    assert (readers.order()["total"], readers.order()["words"]) == (7, 3)


def test_a_retired_handler_s_attributes_go_although_older_code_still_derives_them():
    readers, retired = (
        Readers("main", "search"),
        app_of("shop", TOTAL, summed("extra", "extra", "weight", "search"), retired=["words", "open_orders"]),
    )
    readers.put(status="paid")
    readers.line(price=5, weight=3)
    readers.drain(main=(NEW, "main"), search=(NEW, "search"))
    assert readers.order()["words"] == 3
    readers.put(status="late", words=3, **{DERIVED: {"shop/words": {"words"}}})
    readers.drain(main=(NEW, "main"), search=(retired, "search"))
    readers.put(status="paid", words=3, **{DERIVED: {"shop/words": {"words"}}})
    readers.drain(main=(retired, "main"), search=(retired, "search"))
    assert readers.order().keys() == {"status", "total", DERIVED}


def test_of_two_applications_that_derive_one_name_the_first_keeps_it_and_the_other_is_told():
    other = app_of("billing", summed("sums", "total", "weight"))
    readers = Readers("shop", "billing")
    readers.put(status="paid")
    readers.line(price=5, weight=3)
    assert readers.deliver("shop", OLD, 2) == []
    written = len(readers.table.records)
    for _ in range(3):
        readers.places["billing"] = 0
        (failure,) = {str(each.error) for each in readers.deliver("billing", other, written)}
        assert all(name in failure for name in ("'total'", "'shop/total'", "'billing/sums'"))
    assert len(readers.table.records) == written
    assert (readers.order()["total"], readers.order()[DERIVED]) == (5, {"shop/total": {"total"}})


def test_two_applications_that_write_at_once_lose_no_mark():
    readers = Readers("shop", "billing", table=Disturbed)
    readers.put(status="paid")
    readers.line(price=5, weight=3)
    readers.table.meanwhile = lambda: readers.deliver("billing", BILLING, 2)
    readers.deliver("shop", OLD, 2)
    assert readers.order()[DERIVED] == {"shop/total": {"total"}, "billing/total": {"owed"}}


@pytest.fixture
def put_back():
    """Records of an order whose writer put a derived attribute back unmarked, and then set one of its own."""
    readers = Readers("shop")
    readers.put(status="open")
    readers.drain(shop=(OLD, None))
    readers.put(status="paid", flag="OPEN")
    return readers


def test_what_a_writer_sets_as_its_own_stays_when_an_earlier_record_comes_again(put_back):
    earlier = put_back.table.records[-1][1]
    put_back.drain(shop=(OLD, None))
    assert "flag" not in put_back.order()
    put_back.put(status="paid", flag="MINE")
    put_back.drain(shop=(OLD, None))
    assert put_back.process(OLD, [earlier]) == []
    assert put_back.order()["flag"] == "MINE"


def test_what_a_writer_sets_as_its_own_stays_when_an_earlier_record_is_in_the_same_batch(put_back):
    put_back.put(status="paid", flag="MINE")
    put_back.drain(shop=(OLD, None))
    assert put_back.order()["flag"] == "MINE"


def test_what_a_writer_puts_back_unmarked_goes_though_it_writes_something_else_meanwhile(put_back):
    put_back.put(status="paid", flag="OPEN", note="x")
    put_back.drain(shop=(OLD, None))
    assert put_back.order() == {"status": "paid", "note": "x"}


# What is due, item by item


def stored(marks=None, **attributes):
    return {**STATE, **attributes} | ({DERIVED: marks} if marks else {})


@pytest.mark.parametrize(
    ("whose", "removed"),
    [
        ("shop/total", ("_sf_a", "n")),
        ("shop/gone", ("_sf_a", "n")),
        ("shop/newer", None),
        ("billing/total", None),
        ("shopping/total", None),
    ],
)
def test_attributes_that_nothing_derives_go_where_their_handler_is_known_and_of_this_application(whose, removed):
    update = pending_update(OWN, ITEM, stored({whose: {"n"}}, n=1), {}).update
    assert (update and update.removed) == removed


def test_a_copy_says_nothing_of_retired_handlers():
    marked = stored({"shop/gone": {"n"}}, n=1)
    assert pending_update(OWN, ITEM, marked, {}, retire=False).update is None


def test_marks_of_others_stay_beside_those_that_change():
    update = pending_update(
        OWN, ITEM, stored({"billing/total": {"owed"}, "shop/open": {"flag"}}, owed=1, flag=1), {}
    ).update
    assert (update.values, update.removed) == ({DERIVED: {"billing/total": {"owed"}}}, ("flag",))


@pytest.mark.parametrize("whose", ["shop/gone", "shop/open"])
def test_an_attribute_passes_on_to_the_handler_that_derives_it_now(whose):
    found = pending_update(OWN, ITEM, stored({whose: {"n"}}, n=1), {"shop/total": {"n": 2}, "shop/open": {}})
    assert (found.update.values, found.refused) == ({"n": 2, DERIVED: {"shop/total": {"n"}}}, None)


@pytest.mark.parametrize("whose", ["billing/total", "shop/newer"])
def test_an_attribute_of_another_is_free_once_the_item_has_it_no_more(whose):
    shown = {"shop/total": {"n": 2}}
    assert pending_update(OWN, ITEM, stored({whose: {"n"}}, n=1), shown).refused is not None
    assert pending_update(OWN, ITEM, stored({whose: {"n"}}), shown).update.values[DERIVED] == {"shop/total": {"n"}}


def test_an_update_is_made_only_while_the_marks_are_as_they_were_read():
    shown, marks = {"shop/total": {"n": 2}}, {"shop/total": {"n"}}
    assert pending_update(OWN, ITEM, stored(marks, n=1), shown).update.expected == {"n": 1, DERIVED: marks}
    assert pending_update(OWN, ITEM, stored(), shown).update.absent == ("n", DERIVED)


@pytest.mark.parametrize("marks", ["text", {"shop/total": "n"}, {"n"}])
def test_what_the_framework_did_not_write_marks_nothing(marks):
    assert pending_update(OWN, ITEM, stored(marks, n=1), {}).update.removed == (DERIVED,)


@pytest.mark.parametrize(
    ("whose", "value", "goes"), [("shop/total", 1, True), ("shop/total", 2, False), ("x/total", 1, False)]
)
def test_an_attribute_put_back_unmarked_goes_while_it_has_the_value_of_that_change(whose, value, goes):
    found = pending_update(OWN, ITEM, stored(n=1), {}, [PutBack("n", whose, encode(value))])
    assert (found.update is not None) == goes


# Two applications, and two versions of the code of one


ORDERS, SKUS = st.sampled_from("12"), st.sampled_from("ab")
ACTIONS = st.one_of(
    st.tuples(st.just("line"), ORDERS, SKUS, st.integers(0, 3)),
    st.tuples(st.just("unline"), ORDERS, SKUS),
    st.tuples(st.just("order"), ORDERS, st.sampled_from(["open", "paid"])),
    st.tuples(st.just("remove"), ORDERS),
    st.tuples(st.just("put back"), ORDERS, st.integers(0, 9), st.sampled_from(["marked", "unmarked", "spoiled"])),
    st.tuples(st.just("main"), st.sampled_from([OLD, NEW]), st.integers(1, 4)),
    st.tuples(st.just("search"), st.just(NEW), st.integers(1, 4)),
    st.tuples(st.just("billing"), st.just(BILLING), st.integers(1, 4)),
    st.tuples(st.just("again"), st.sampled_from([("main", OLD), ("main", NEW), ("search", NEW), (None, BILLING)])),
)


class Shop(Readers):
    """Orders whose writer puts back what it read at some time, and three functions that derive onto them."""

    def __init__(self):
        super().__init__("main", "search", "billing")
        self.reads = {"1": [], "2": []}
        self.own = {}
        self.unmarked = set()

    def act(self, what, *how):
        if what in self.places:
            assert self.deliver(what, *how, None if what == "billing" else what) == []
        else:
            getattr(self, "_" + what.replace(" ", "_"))(*how)
        for number, reads in self.reads.items():
            if order := self.order(number):
                reads.append(order)

    def _line(self, number, sku, amount):
        self.line(number, sku, price=amount, weight=amount + 1)

    def _unline(self, number, sku):
        self.table.remove(f"ORDER#{number}", f"ITEM#{sku}")

    def _order(self, number, status, **more):
        self.own[number] = status
        self.put(number, status=status, **more)

    def _remove(self, number):
        self.table.remove(f"ORDER#{number}", "METADATA")

    def _put_back(self, number, place, how):
        if reads := self.reads[number]:
            read = dict(reads[-1 - place % len(reads)])
            if how != "marked":
                read.pop(DERIVED, None)
                self.unmarked.add(number)
            if how == "spoiled":
                read |= {name: 99 for name in ("total", "owed") if name in read}
            self._order(number, read.pop("status"), **read)

    def _again(self, reader):
        """A record that was through comes again, to whatever code."""
        function, app = reader
        if done := self.places[function or "billing"]:
            assert self.process(app, [self.table.records[done // 2][1]], function) == []

    def expected(self, number):
        lines = [
            item
            for key, item in self.table.source.items.items()
            if key[0] == f"ORDER#{number}" and key[1] != "METADATA"
        ]
        prices, weights = ([line[name] for line in lines] for name in ("price", "weight"))
        found = {("shop/open_orders", "flag"): "OPEN"} if self.own[number] == "open" else {}
        if lines:
            found[("shop/total", "total")] = sum(prices)
            found[("shop/words", "words")] = found[("billing/total", "owed")] = sum(weights)
        return found

    def check(self, number):
        order, expected = self.order(number), self.expected(number)
        marks = {(whose, name) for whose, names in order.pop(DERIVED, {}).items() for name in names}
        assert (order.pop("status"), marks) == (self.own[number], set(expected))
        assert {key: order.pop(key[1]) for key in expected} == expected
        assert not order or number in self.unmarked


@given(st.lists(ACTIONS, max_size=25))
@settings(max_examples=60, deadline=None)
def test_whatever_two_applications_and_two_versions_do_each_shows_its_own_fold_in_the_end(actions):
    shop = Shop()
    for action in actions:
        shop.act(*action)
    shop.drain(main=(NEW, "main"), search=(NEW, "search"), billing=(BILLING, None))
    for number in "12":
        if shop.order(number):
            shop.check(number)
