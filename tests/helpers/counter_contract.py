"""What every engine does alike with counters: numbers of state items that only rise, and ids beside them."""

import pytest

from streamfold.engines.protocol import Counter
from streamfold.writes.guarded import CONDITION, Claim, CounterWrite, StateKey
from tests.helpers.engine_contract import CLAIM, EXPIRES, is_permanent

ONE, OTHER = StateKey("document#shop#orders#shop#S#ORDER#1", "S#METADATA"), StateKey("document#shop#orders", "-")
START = 1_700_000_000_000
LATER = EXPIRES + 5


class CounterContract:
    """Wants a fixture ``store``, as the contract of engines does."""

    def count(self, store, *counters, start=START, expires_at=EXPIRES):
        return store.engine.count_up(counters, start, expires_at)

    def item(self, store, key=ONE):
        item = store.state(key)
        return item and {name: frozenset(value) if name == "ids" else value for name, value in item.items()}

    # Numbers

    @pytest.mark.parametrize("new", [True, False])
    @pytest.mark.parametrize("expires", [True, False])
    def test_counter_begins_above_the_start_and_its_new_item_expires(self, store, new, expires):
        expected = {ONE: {"n": START + 1, "ttl": EXPIRES}}
        assert self.count(store, Counter(ONE, new, expires)) == expected
        assert store.engine.read_state([ONE]) == expected

    @pytest.mark.parametrize("new", [True, False])
    def test_counter_rises_by_one_wherever_it_would_begin_now(self, store, new):
        self.count(store, Counter(ONE))
        for raised in (2, 3):
            found = self.count(store, Counter(ONE, new), start=START * raised, expires_at=LATER)
            assert found == {ONE: {"n": START + raised, "ttl": LATER}}
        assert self.item(store) == {"n": START + 3, "ttl": LATER}

    @pytest.mark.parametrize("new", [True, False])
    def test_counter_that_does_not_expire_keeps_the_time_to_live_that_it_has(self, store, new):
        self.count(store, Counter(ONE))
        assert self.count(store, Counter(ONE, new, expires=False), expires_at=LATER)[ONE]["ttl"] == EXPIRES
        store.write(CounterWrite(ONE, START + 2, expires=False))
        assert self.count(store, Counter(ONE, new, expires=False), expires_at=LATER) == {ONE: {"n": START + 3}}

    def test_counters_are_raised_each_on_its_own_whatever_was_expected_of_them(self, store):
        keys = [StateKey("document#shop#orders", f"S#{number:03d}") for number in range(60)]
        self.count(store, *map(Counter, keys[:30]))
        wanted = [Counter(key, new=number % 2 == 0) for number, key in enumerate(keys)]
        found = self.count(store, *wanted)
        assert {key: item["n"] - START for key, item in found.items()} == {
            key: 2 if number < 30 else 1 for number, key in enumerate(keys)
        }
        assert store.engine.read_state(keys) == found

    def test_key_that_is_given_twice_is_counted_once(self, store):
        assert self.count(store, Counter(ONE), Counter(OTHER), Counter(ONE))[ONE]["n"] == START + 1
        assert self.item(store)["n"] == START + 1

    def test_no_counters_are_raised(self, store):
        assert self.count(store) == {}

    def test_items_that_were_counted_are_not_the_stored_ones(self, store):
        self.count(store, Counter(ONE))[ONE]["n"] = 5
        assert self.item(store)["n"] == START + 1

    # Ids

    def write(self, store, number=START + 1, key=ONE, **what):
        store.write(CounterWrite(key, number, **what))
        return self.item(store, key)

    def test_ids_are_added_and_removed_without_a_change_of_anything_else(self, store):
        self.count(store, Counter(ONE))
        both = {"n": START + 1, "ttl": EXPIRES}
        assert self.write(store, added=frozenset("ba")) == {**both, "ids": {"a", "b"}}
        assert self.write(store, added=frozenset("bc")) == {**both, "ids": {"a", "b", "c"}}
        assert self.write(store, removed=frozenset("ax")) == {**both, "ids": {"b", "c"}}
        assert self.write(store, removed=frozenset("bc")) == both
        assert self.write(store, removed=frozenset("b")) == both

    def test_ids_come_back_with_the_number(self, store):
        self.count(store, Counter(ONE))
        self.write(store, added=frozenset({"größe|1", "a"}), expires=False)
        (found,) = self.count(store, Counter(ONE, expires=False)).values()
        assert (found["n"], frozenset(found["ids"]), found.keys()) == (START + 2, {"größe|1", "a"}, {"n", "ids"})
        (again,) = self.count(store, Counter(ONE, new=True, expires=False)).values()
        assert frozenset(again["ids"]) == {"größe|1", "a"}

    def test_time_to_live_is_set_and_removed_with_the_ids(self, store):
        self.count(store, Counter(ONE))
        assert self.write(store, added=frozenset("a"), expires=False) == {"n": START + 1, "ids": {"a"}}
        assert self.write(store, expires=False) == {"n": START + 1, "ids": {"a"}}
        assert self.write(store, removed=frozenset("a"), expires=True) == {"n": START + 1, "ttl": EXPIRES}

    def test_references_replace_the_stored_ones_and_come_back_with_the_number(self, store):
        self.count(store, Counter(ONE))
        assert self.write(store, references="[1]", expires=False) == {"n": START + 1, "refs": "[1]"}
        both = self.write(store, references="[2]", added=frozenset("a"))
        assert both == {"n": START + 1, "refs": "[2]", "ids": {"a"}}
        assert self.count(store, Counter(ONE, expires=False))[ONE]["refs"] == "[2]"
        assert self.write(store, START + 2, removed=frozenset("a")) == {"n": START + 2, "refs": "[2]"}
        assert self.write(store, START + 2, references="", expires=True) == {"n": START + 2, "ttl": EXPIRES}

    def test_number_is_set_where_the_one_that_was_read_is_stored(self, store):
        self.count(store, Counter(ONE))
        assert self.write(store, raised=START * 2, added=frozenset("a"))["n"] == START * 2
        assert self.count(store, Counter(ONE))[ONE]["n"] == START * 2 + 1

    def test_write_that_changes_nothing_is_one(self, store):
        self.count(store, Counter(ONE))
        assert self.write(store) == {"n": START + 1, "ttl": EXPIRES}

    @pytest.mark.parametrize("number", [START, START + 2])
    def test_write_over_another_number_is_refused_with_what_is_stored(self, store, number):
        self.count(store, Counter(ONE))
        self.write(store, added=frozenset("a"))
        (reason,) = store.refused(CounterWrite(ONE, number, START * 2, added=frozenset("b"), expires=False))
        assert (reason.code, reason.item["n"], frozenset(reason.item["ids"])) == (CONDITION, START + 1, {"a"})
        assert self.item(store) == {"n": START + 1, "ttl": EXPIRES, "ids": {"a"}}

    def test_write_is_refused_without_an_item_where_there_is_none(self, store):
        (reason,) = store.refused(CounterWrite(ONE, START, removed=frozenset("a")))
        assert (reason.code, reason.item, self.item(store)) == (CONDITION, None, None)

    def test_ids_over_400_kilobytes_are_refused_for_good(self, store):
        self.count(store, Counter(ONE))
        large = frozenset(f"{number:03d}" + "x" * 1500 for number in range(300))
        assert is_permanent(store.refused(CounterWrite(ONE, START + 1, added=large))[0])
        assert self.item(store) == {"n": START + 1, "ttl": EXPIRES}

    def test_ids_over_4_megabytes_are_refused_for_good(self, store):
        keys = [StateKey("document#shop#orders", f"S#{number:03d}") for number in range(12)]
        self.count(store, *map(Counter, keys))
        large = frozenset(f"{number:03d}" + "x" * 1900 for number in range(200))
        assert all(map(is_permanent, store.refused(*(CounterWrite(key, START + 1, added=large) for key in keys))))
        store.write(*(CounterWrite(key, START + 1, added=large) for key in keys[:10]))
        assert self.item(store, keys[0])["ids"] == large

    def test_refused_write_keeps_others_from_being_made(self, store):
        self.count(store, Counter(ONE), Counter(OTHER))
        added = frozenset("a")
        reasons = store.refused(CounterWrite(ONE, START + 1, added=added), CounterWrite(OTHER, 1, added=added))
        assert [reason and reason.code for reason in reasons] == [None, CONDITION]
        assert "ids" not in self.item(store)
        store.write(CounterWrite(ONE, START + 1, added=added), CounterWrite(OTHER, START + 1), Claim(CLAIM))
        assert self.item(store)["ids"] == added
