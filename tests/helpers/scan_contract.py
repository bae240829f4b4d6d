"""What every engine does alike when a table is scanned: each key once, over all segments, from any page on."""

from collections import Counter
from decimal import Decimal

import pytest

from streamfold.engines.protocol import Segment
from streamfold.keys.key import Key
from streamfold.keys.table import STATE
from streamfold.ledger.state_keys import StoredAttributes
from streamfold.writes.guarded import AddRow, Claim, DeleteRow, DeleteState, PutRow, StateKey
from tests.helpers.engine_contract import BINARY, EXPIRES, LEDGER, NUMBERED, PLAIN, SHOP, TABLES

NUMBERS = (0, -15, 10, 200, Decimal("-1.5"), Decimal("1.25"), Decimal("1E-100"), 10**37)


def scanned(store, table, of=1, limit=3):
    """All keys of all segments, page by page."""
    return [key for number in range(of) for key in rest(store, table, Segment(number, of), None, limit)]


def rest(store, table, part, after, limit=3):
    """The keys of a segment behind a place."""
    found = []
    while True:
        page = store.engine.scan(table, part, after, limit)
        assert len(page.keys) <= limit
        found += page.keys
        if page.after is None:
            return found
        assert isinstance(page.after, str)
        after = page.after


def shop_keys(count):
    return [("shop", f"ORDER#{number // 3}", f"ITEM#{number}") for number in range(count)]


def insert(store, keys):
    assert store.engine.insert_rows([PutRow(key, {"a": 1}) for key in keys]).missing == []


class ScanContract:
    """Wants a fixture ``store``."""

    def test_empty_table_has_no_keys(self, store):
        assert scanned(store, SHOP) == scanned(store, SHOP, of=4) == scanned(store, STATE) == []

    @pytest.mark.parametrize("of", [1, 2, 7, 1000])
    def test_every_key_is_in_one_segment(self, store, of):
        keys = shop_keys(20)
        insert(store, keys)
        assert Counter(scanned(store, SHOP, min(of, 7))) == Counter(keys)
        assert set(rest(store, SHOP, Segment(of - 1, of), None)) <= set(keys)

    @pytest.mark.parametrize("limit", [1, 3, 20, 100])
    def test_pages_have_any_size(self, store, limit):
        keys = shop_keys(20)
        insert(store, keys)
        assert Counter(scanned(store, SHOP, limit=limit)) == Counter(keys)

    def test_scan_goes_on_behind_any_page(self, store):
        insert(store, shop_keys(10))
        part, places = Segment(), [None]
        while len(places) == 1 or places[-1] is not None:
            places.append(store.engine.scan(SHOP, part, places[-1], 2).after)
        whole = rest(store, SHOP, part, None)
        for number, place in enumerate(places[:-1]):
            assert rest(store, SHOP, part, place) == whole[2 * number :]

    def test_sort_keys_of_a_partition_are_in_their_order(self, store):
        keys = [("numbered", "a", number) for number in NUMBERS]
        insert(store, keys)
        assert scanned(store, NUMBERED) == sorted(keys, key=lambda key: key[2])

    def test_number_keys_come_as_they_were_put(self, store):
        keys = [("numbered", name, number) for name in "ab" for number in NUMBERS]
        insert(store, keys)
        assert Counter(scanned(store, NUMBERED, of=2)) == Counter(keys)

    def test_binary_keys_of_a_table_without_sort_key(self, store):
        keys = [("binary", bytes([number, 255]), None) for number in range(9)]
        insert(store, keys)
        assert Counter(scanned(store, BINARY, of=2, limit=2)) == Counter(keys)

    def test_source_items_and_derived_rows_are_among_the_keys(self, store):
        row, source = ("shop", "SALES#1", "SKU#a"), ("shop", "ORDER#1", "METADATA")
        store.write(AddRow(row, {"units": 1}, 1))
        store.put(source, {"price": 1})
        assert Counter(scanned(store, SHOP, of=3)) == Counter([row, source])

    def test_attributes_of_any_name_are_keys(self, store):
        insert(store, [("plain", "CUSTOMER#1", "ORDERS")])  # name is a reserved word
        assert scanned(store, PLAIN) == [("plain", "CUSTOMER#1", "ORDERS")]

    def test_tables_are_scanned_alone(self, store):
        insert(store, [("shop", "A", "B"), ("plain", "C", "D")])
        store.write(Claim(LEDGER))
        assert [len(scanned(store, table)) for table in (SHOP, PLAIN, BINARY)] == [1, 1, 0]
        assert [table.name for table in TABLES] == ["shop", "plain", "numbered", "binary", "marked"]

    def test_items_that_come_and_go_meanwhile_do_no_harm(self, store):
        keys = shop_keys(20)
        insert(store, keys)
        first = store.engine.scan(SHOP, Segment(), None, 7)
        gone, left = first.keys[-1], [key for key in keys if key not in first.keys]
        store.write(DeleteRow(gone, None), DeleteRow(left[0], None))
        insert(store, [("shop", f"ORDER#{number}", "NEW") for number in range(7)])
        later = rest(store, SHOP, Segment(), first.after)
        assert Counter(key for key in later if key[2] != "NEW") == Counter(left[1:])
        assert max(Counter(later).values()) == 1

    def test_next_scan_sees_what_was_written_since(self, store):
        insert(store, shop_keys(3))
        assert len(scanned(store, SHOP, of=2)) == 3
        store.write(DeleteRow(shop_keys(1)[0], None))
        insert(store, shop_keys(6))
        store.put(("shop", "SOURCE", "1"), {"a": 1})
        store.put(("shop", "SOURCE", "1"), {"a": 2}, "v2")
        assert Counter(scanned(store, SHOP, of=2)) == Counter([*shop_keys(6), ("shop", "SOURCE", "1")])

    def test_state_items_are_keys_of_the_state_table(self, store):
        keys = [StateKey(f"ledger#shop#main#shop#S#ORDER#{number}", "-") for number in range(5)]
        store.write(*map(Claim, keys), Claim(StateKey(keys[0].pk, "S#2")))
        assert store.engine.swap_state(StateKey("manifest#shop", "-"), {}, 0)
        store.write(DeleteState(keys[4]))
        expected = [*keys[:4], StateKey(keys[0].pk, "S#2"), StateKey("manifest#shop", "-")]
        assert Counter(scanned(store, STATE, of=3, limit=2)) == Counter((STATE.name, *key) for key in expected)

    def test_items_of_the_state_that_are_written_between_scans_are_found(self, store):
        store.write(Claim(LEDGER))
        assert len(scanned(store, STATE)) == 1
        other = StateKey("ledger#shop#main#shop#S#ORDER#2", "-")
        store.engine.transact([Claim(other)], EXPIRES)
        store.engine.transact([DeleteState(LEDGER)], EXPIRES)
        assert scanned(store, STATE) == [(STATE.name, *other)]

    @pytest.mark.parametrize("partition", ["ORDER#1", "x" * 2048])
    def test_rows_of_derived_attributes_are_in_the_state_table(self, store, partition):
        stored = StoredAttributes("shop", "totals", Key("{order_id}", "{place}", table=SHOP))
        store.write(*(AddRow(stored.row((partition, f"y{number}")), {"@total": 5}, 1) for number in range(4)))
        store.write(Claim(LEDGER))
        keys = scanned(store, STATE, limit=2)
        assert len(set(keys)) == len(keys) == 5
        assert {(*LEDGER,)} == {key[1:] for key in keys if not key[1].startswith("attributes#shop#")}
