"""The store in dictionaries: what it tells of itself beyond the contracts that it shares with other engines."""

import pytest

from streamfold import Table
from streamfold.engines import MemoryEngine
from streamfold.engines.protocol import Counter, Segment
from streamfold.errors import EngineError
from streamfold.keys.table import CONTRIBUTORS, MAIN
from streamfold.writes.guarded import AddRow, Claim, CounterWrite, DeleteRow, PutRow, StateKey

SHOP = Table("shop", sort=None)
CLAIM = Claim(StateKey("claim", "1"))
COUNTED = AddRow(("shop", "1", None), {"units": 1}, 1)


@pytest.fixture
def engine():
    return MemoryEngine([SHOP])


def test_stored_values_are_never_changed_in_place(engine):
    engine.transact([COUNTED], 0)
    before = engine.rows[COUNTED.key]
    engine.transact([COUNTED], 0)
    assert before == {"PK": {"S": "1"}, "units": {"N": "1"}, CONTRIBUTORS: {"N": "1"}}


def test_state_item_that_was_read_is_a_copy(engine):
    engine.transact([CLAIM], 5)
    engine.read_state([CLAIM.key])[CLAIM.key]["ttl"] = 6
    assert engine.read_state([CLAIM.key]) == {CLAIM.key: {"ttl": 5}}


def test_keys_that_were_written_are_told_to_who_asked_for_them(engine):
    engine.transact([CLAIM], 5)
    assert engine.touched is None
    engine.touched = set()
    engine.transact([COUNTED, CLAIM], 5)  # refused
    assert engine.touched == set()
    engine.insert_rows([PutRow(("shop", "2", None), {})])
    engine.transact([AddRow(COUNTED.key, {}, 0)], 0)
    engine.swap_state(StateKey("manifest", "1"), {}, 0)
    assert engine.touched == {("shop", "2", None), COUNTED.key, ("manifest", "1")}


def test_table_whose_source_items_were_never_put_cannot_tell_whether_one_is_gone(engine):
    engine.transact([COUNTED], 0)
    assert engine.read_source(COUNTED.key)["units"] == {"N": "1"}
    with pytest.raises(EngineError) as raised:
        engine.read_source(("shop", "2", None))
    assert str(raised.value) == (
        "No source items of table 'shop' were put, so a missing item cannot be recognised. A replay with "
        "--state FILE keeps them beside its rows. Only records with new images have them."
    )


def test_counters_that_were_raised_are_told_to_who_asked_for_them(engine):
    engine.touched = set()
    engine.count_up([Counter(CLAIM.key)], 1, 5)
    assert engine.touched == {CLAIM.key}


def test_ids_of_a_counter_that_were_read_are_never_changed_in_place(engine):
    engine.count_up([Counter(CLAIM.key)], 1, 5)
    engine.transact([CounterWrite(CLAIM.key, 2, added=frozenset("ba"))], 5)
    (before,) = engine.read_state([CLAIM.key]).values()
    engine.transact([CounterWrite(CLAIM.key, 2, removed=frozenset("a"))], 5)
    engine.count_up([Counter(CLAIM.key)], 1, 6)
    assert before == {"n": 2, "ttl": 5, "ids": ["a", "b"]}


def test_write_of_a_counter_does_not_add_and_remove_ids():
    with pytest.raises(ValueError, match="adds ids or removes some"):
        CounterWrite(CLAIM.key, 2, added=frozenset("a"), removed=frozenset("b"))


def test_source_items_of_a_table_whose_items_were_never_put_cannot_be_told_from_those_that_are_gone(engine):
    engine.put_sources([(("other", "1", None), {"PK": {"S": "1"}}, "v1")])
    with pytest.raises(EngineError, match="No source items of table 'shop' were put"):
        engine.read_sources([("other", "1", None), ("shop", "2", None)])


def test_table_whose_source_items_are_all_there_has_none_that_was_not_put(engine):
    engine.source_tables.add("shop")
    assert engine.read_source(("shop", "2", None)) is None


def keys(engine, of=1):
    return sorted(key[1] for number in range(of) for key in engine.scan(SHOP, Segment(number, of), None, 10).keys)


def test_rows_that_were_changed_behind_its_back_are_scanned_as_they_are(engine):
    engine.insert_rows([PutRow(("shop", name, None), {}) for name in "abc"])
    assert keys(engine, 3) == ["a", "b", "c"]
    del engine.rows["shop", "a", None]
    engine.rows["shop", "d", None] = engine.rows["shop", "b", None]
    engine.rows["shop", "e", None] = engine.rows["shop", "b", None]
    assert keys(engine, 3) == ["b", "c", "d", "e"]
    engine.rows = {("shop", "x", None): engine.rows["shop", "b", None]}
    assert keys(engine) == ["x"]


def test_keys_are_ordered_once_and_kept_up(engine, monkeypatch):
    engine.insert_rows([PutRow(("shop", "a", None), {})])
    assert keys(engine) == ["a"]
    monkeypatch.setattr("streamfold.engines.memory.KeyOrder", None)
    engine.insert_rows([PutRow(("shop", "b", None), {})])
    engine.put_sources([(("shop", "c", None), {"PK": {"S": "c"}}, "v1"), (("shop", "b", None), None, "v1")])
    engine.transact([DeleteRow(("shop", "a", None), None)], 5)
    assert keys(engine) == ["b", "c"]
    engine.insert_rows([PutRow(("shop", "a", None), {})])
    assert keys(engine) == ["a", "b", "c"]


def test_a_page_looks_at_the_keys_of_its_partition_alone(monkeypatch):
    engine = MemoryEngine([MAIN])
    engine.insert_rows([PutRow(("main", f"P{number}", f"S{each}"), {}) for number in range(300) for each in range(3)])
    looked_at, is_there = [], engine._is_there
    monkeypatch.setattr(engine, "_is_there", lambda key: looked_at.append(key) or is_there(key))

    page = engine.page(MAIN, "P7", "S", "S0", 1)

    assert [item["SK"] for item in page.items] == [{"S": "S1"}]
    assert len(looked_at) <= 3
    assert [item["SK"]["S"] for item in engine.items(MAIN, "P7")] == ["S0", "S1", "S2"]


def test_a_removed_item_that_came_again_is_in_its_partition_once():
    engine = MemoryEngine([MAIN])
    key = ("main", "P", "S")
    for _ in range(3):
        engine.insert_rows([PutRow(key, {})])
        assert len(engine.page(MAIN, "P", "", None, 10).items) == 1
        engine.transact([DeleteRow(key)], 0)
        assert engine.page(MAIN, "P", "", None, 10).items == []
