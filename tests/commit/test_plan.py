"""The plan of a batch: units merged per row and cut into transactions, none of them lost, split or doubled."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Key, Router
from streamfold.commit.plan import (
    ACTIONS_MAX,
    KeyedPut,
    Plan,
    Transaction,
    Unit,
    again,
    by_handler,
    claim_unit,
    ledger_unit,
    pack,
    without,
)
from streamfold.ledger.contribution import LedgerItem, RowContribution
from streamfold.ledger.state_keys import claim_key, ledger_key
from streamfold.ledger.step import Step
from streamfold.routes.checks import checked_routes
from streamfold.settings.limits import BYTES_MAX
from streamfold.writes.guarded import AddRow, Claim, GuardedPut, LedgerWrite, PutRow
from tests.helpers.records import VERSION_PREFIX, change, item

SOURCE, GROUP, LOG = Key("A#{a}", "B"), Key("GROUP#{group}", "TOTAL"), Key("LOG#{a}", "{n}")


def nothing(subject):
    yield from ()


def routes():
    router = Router()
    for name in ("one", "two"):
        router.view(SOURCE, into=[GROUP, Key(f"{name}#{{a}}", "{n}")], name=name)(nothing)
    router.on(SOURCE, into=LOG, name="log")(nothing)
    return checked_routes(router.routes)


ONE, TWO, ON = routes()
pytestmark = pytest.mark.usefixtures("exact")


def version(number):
    return f"{VERSION_PREFIX}{number:040d}"


def shared(**amounts):
    """A contribution of an amount ``n`` to rows by group."""
    return {
        ("main", f"GROUP#{group}", "TOTAL"): RowContribution({"n": amount}, None, "")
        for group, amount in amounts.items()
    }


def owned(name, count, size=1, number=1):
    """A contribution to rows that are put whole."""
    return {
        ("main", f"{name}#{number}", str(n)): RowContribution({}, {"text": "x" * size}, f"d{n}") for n in range(count)
    }


def ledger(number, *steps):
    """The unit of an item's steps, each a route with what it contributed before and contributes now."""
    source = ("main", f"A#{number}", "B")
    planned = tuple(Step(route, version(1), before, after) for route, before, after in steps)
    changes = (change(None, item(f"A#{number}", "B")),)
    return ledger_unit(ledger_key("shop", "main", source), source, planned, changes, None)


def claim(number, sequence, *rows):
    of = change(None, item(f"A#{number}", "B"), sequence)
    return claim_unit(claim_key("shop", "log", of.item, of.version_text), ON, of, rows)


def put(number, sequence):
    return GuardedPut(("main", f"LOG#{number}", "x"), {"at": sequence}, version(sequence))


# What must hold of every plan.

numbers = st.integers(-5, 5) | st.decimals(-5, 5, places=1)
contributions = st.dictionaries(st.sampled_from("abcdef"), numbers, max_size=4).map(lambda each: shared(**each))
steps = st.tuples(st.sampled_from([ONE, TWO]), contributions, contributions)
ledger_units = st.builds(ledger, st.integers(0, 10**6), steps) | st.builds(
    lambda number, one, two: ledger(number, (ONE, *one[1:]), (TWO, *two[1:])), st.integers(0, 10**6), steps, steps
)
claim_units = st.builds(
    lambda number, sequence: claim(number, sequence, put(number, sequence)), st.integers(0, 3), st.integers(1, 99)
)
batches = st.lists(ledger_units | claim_units, max_size=12, unique_by=lambda unit: unit.guard.key)


@given(batches, st.integers(2, 8))
def test_every_unit_is_in_one_chunk_and_whole(units, actions):
    transactions = pack(units, actions)
    packed = [unit for transaction in transactions for unit in transaction.units]
    assert Counter(unit.guard.key for unit in units) == Counter(unit.guard.key for unit in packed)
    assert all(unit in units for unit in packed)


@given(batches, st.integers(2, 8))
def test_a_chunk_is_no_larger_than_asked_unless_one_unit_is(units, actions):
    assert all(
        len(transaction.writes) <= actions or len(transaction.units) == 1 for transaction in pack(units, actions)
    )


@given(batches, st.integers(2, 8))
def test_a_chunk_begins_with_the_guards_of_its_units_and_writes_no_key_twice(units, actions):
    for transaction in pack(units, actions):
        assert tuple(unit.guard for unit in transaction.units) == transaction.writes[: len(transaction.units)]
        assert len(transaction.writes) == len({write.key for write in transaction.writes})


def totals(writes):
    """What is added to each row in all, without zeros."""
    found = Counter()
    for write in writes:
        if isinstance(write, AddRow):
            found.update({(write.key, name): amount for name, amount in write.amounts.items()})
            found[write.key, "contributors"] += write.contributors
    return {name: amount for name, amount in found.items() if amount}


@given(batches, st.integers(2, 8))
def test_merged_additions_add_up_to_those_of_the_units(units, actions):
    merged = totals(write for transaction in pack(units, actions) for write in transaction.writes)
    assert totals(effect for unit in units for effect in unit.effects) == merged


@given(batches, st.integers(2, 8))
def test_claims_are_made_in_the_order_of_their_changes(units, actions):
    claims = [unit for unit in units if isinstance(unit.guard, Claim)]
    assert claims == [
        unit for transaction in pack(units, actions) for unit in transaction.units if isinstance(unit.guard, Claim)
    ]


# How units share chunks.


def test_units_that_touch_a_row_are_grouped_and_their_additions_merged():
    units = [ledger(number, (ONE, {}, shared(**{"ab"[number % 2]: 1}))) for number in range(8)]
    first, second = pack(units, 5)
    assert [AddRow(("main", "GROUP#a", "TOTAL"), {"n": 4}, 4)] == [*first.writes[4:]]
    assert [AddRow(("main", "GROUP#b", "TOTAL"), {"n": 4}, 4)] == [*second.writes[4:]]


def test_units_that_share_a_hot_row_are_grouped_by_the_next_row_that_they_share():
    units = [ledger(number, (ONE, {}, shared(hot=1, **{f"g{number % 10}": 1}))) for number in range(60)]
    transactions = pack(units, 15)
    assert [len(transaction.units) for transaction in transactions] == [12] * 5
    assert (
        sum(len(transaction.writes) for transaction in transactions) == 60 + 5 + 10
    )  # ledger items, the hot row, each group once


def test_additions_that_cancel_each_other_out_are_not_written():
    units = [ledger(1, (ONE, shared(a=5), {})), ledger(2, (ONE, {}, shared(a=5)))]
    (transaction,) = pack(units, 25)
    assert tuple(unit.guard for unit in transaction.units) == transaction.writes


def test_several_puts_of_one_row_collapse_to_the_newest_and_keep_their_claims():
    units = [claim(1, sequence, put(1, sequence)) for sequence in (1, 3, 2)]
    (transaction,) = pack(units, 25)
    assert put(1, 3) == transaction.writes[-1]
    assert len(transaction.writes) == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GuardedPut(("main", "X", "Y"), {}, version(1)), AddRow(("main", "X", "Y"), {"n": 1}, 0)),
        (GuardedPut(("main", "X", "Y"), {}, version(1), "a"), GuardedPut(("main", "X", "Y"), {}, version(2), "b")),
        (AddRow(("main", "X", "Y"), {"n": Decimal("1E+37")}, 0), AddRow(("main", "X", "Y"), {"n": Decimal("1E-9")}, 0)),
        (PutRow(("main", "X", "Y"), {}), PutRow(("main", "X", "Y"), {})),
    ],
    ids=["put and add", "owners", "too many digits", "two puts"],
)
def test_writes_of_one_row_that_cannot_be_one_go_into_two_chunks(one, other):
    units = [claim(1, 1, one), claim(2, 2, other)]
    assert [(one,), (other,)] == [transaction.writes[1:] for transaction in pack(units, 25)]


def test_two_units_of_one_guard_go_into_two_chunks():
    units = [ledger(1, (ONE, {}, shared(a=1))), ledger(1, (TWO, {}, shared(a=2)))]
    assert [len(transaction.units) for transaction in pack(units, 25)] == [1, 1]


def test_a_unit_that_needs_more_than_is_asked_has_a_chunk_of_its_own():
    units = [ledger(n, (ONE, {}, owned("one", 40) if n == 1 else shared(a=1))) for n in range(3)]
    assert sorted(len(transaction.writes) for transaction in pack(units, 25)) == [3, 41]


def test_a_unit_of_99_effects_fits_one_transaction():
    (transaction,) = pack([ledger(1, (ONE, {}, owned("one", 99)))], 25)
    assert len(transaction.writes) == ACTIONS_MAX


def test_a_unit_that_needs_more_than_a_transaction_takes_is_split_by_handler():
    unit = ledger(1, (ONE, {}, owned("one", 60)), (TWO, {}, owned("two", 60)))
    transactions = pack([unit], 25)
    assert [tuple(route.name for route in transaction.units[0].routes) for transaction in transactions] == [
        ("one",),
        ("two",),
    ]
    assert [len(transaction.writes) for transaction in transactions] == [61, 61]


@pytest.mark.parametrize(("effects", "transactions"), [(99, 1), (100, 2)])
def test_a_unit_of_several_handlers_is_split_only_when_it_must_be(effects, transactions):
    unit = ledger(1, (ONE, {}, owned("one", 50)), (TWO, {}, owned("two", effects - 50)))
    assert transactions == len(pack([unit], 25))


def test_handlers_whose_additions_to_one_row_cannot_be_one_are_split_and_none_is_lost():
    unit = ledger(1, (ONE, {}, shared(a=Decimal("1E+37"))), (TWO, {}, shared(a=Decimal("1E-9"))))
    other = ledger(2, (ONE, {}, shared(a=1)))
    assert [tuple(route.name for route in transaction.units[0].routes) for transaction in pack([unit], 25)] == [
        ("one",),
        ("two",),
    ]
    transactions = pack([other, unit], 25)
    packed = [unit for transaction in transactions for unit in transaction.units]
    assert sorted(route.name for unit in packed for route in unit.routes) == ["one", "one", "two"]
    assert all(transaction.units for transaction in transactions)


def transaction_bytes(transaction):
    return sum(len(repr(write)) for write in transaction.writes)


def test_chunks_are_cut_below_the_size_of_a_transaction():
    units = [ledger(number, (ONE, {}, owned("one", 1, size=300_000, number=number))) for number in range(30)]
    transactions = pack(units, 100)
    assert 1 < len(transactions) < 30
    assert all(transaction_bytes(transaction) < BYTES_MAX for transaction in transactions)
    assert sum(len(transaction.units) for transaction in transactions) == 30


def test_large_contributions_count_towards_the_size_of_a_chunk():
    large = {**shared(**{f"{n:02d}" + "x" * 1900: 1 for n in range(90)}), **shared(a=1)}
    units = [ledger(number, (ONE, large, {**large, **shared(a=2)})) for number in range(30)]
    transactions = pack(units, 100)
    assert 1 < len(transactions) < 30
    assert all(transaction_bytes(transaction) < BYTES_MAX for transaction in transactions)


def test_the_contributions_in_the_guards_count_towards_the_size_of_a_chunk():
    large = shared(**{f"{n:02d}" + "x" * 900: 1 for n in range(4)})
    route = [replace(ONE, name=f"view{n}") for n in range(10)]
    units = [ledger(number, *((each, large, large) for each in route)) for number in range(90)]
    assert all(transaction_bytes(transaction) < BYTES_MAX for transaction in pack(units, 100))


# Planning again.


def test_a_unit_is_split_so_that_each_handler_stands_alone():
    unit = ledger(1, (ONE, {}, shared(a=1)), (TWO, shared(a=2), {}))
    one, two = by_handler(unit)
    assert [one.routes, two.routes] == [(ONE,), (TWO,)]
    assert [one.guard.live, two.guard.live] == [1, -1]
    assert unit.changes == one.changes == two.changes


def test_a_unit_of_one_handler_is_not_split():
    unit = again(ledger(1, (ONE, {}, shared(a=1))), LedgerItem(4, 0, {}))
    assert [unit] == by_handler(unit)


def test_a_unit_whose_old_image_is_not_known_is_split_as_if_nothing_was_stored():
    source = ("main", "A#1", "B")
    planned = tuple(Step(route, version(1), None, shared(a=1)) for route in (ONE, TWO))
    unit = ledger_unit(ledger_key("shop", "main", source), source, planned, (), LedgerItem.of(None))
    assert [part.expected for each in by_handler(unit) for part in each.guard.contributions] == ["", ""]


def test_a_unit_is_planned_again_from_what_the_ledger_holds():
    unit = ledger(1, (ONE, shared(a=1), shared(a=3)))
    planned = again(unit, LedgerItem.of({"r": 4, "live": 0, "one.v": version(0), "one.s": ""}))
    assert planned.guard.revision == 4
    assert (AddRow(("main", "GROUP#a", "TOTAL"), {"n": 3}, 1),) == planned.effects
    assert again(unit, LedgerItem.of({"r": 4, "live": 0, "one.v": version(1), "one.s": ""})) is None


def test_a_stale_effect_is_left_out_of_its_unit():
    stale, fresh = put(1, 1), put(2, 1)
    unit = claim(1, 1, stale, fresh)
    assert (fresh,) == without(unit, [stale.key]).effects
    assert unit.guard == without(unit, [stale.key]).guard


def test_a_plan_can_be_compared():
    unit = ledger(1, (ONE, {}, shared(a=1)))
    of, row = change(None, item("A#1", "B")), PutRow(("main", "AUDIT#1", "v"), {"event": "INSERT"})
    plan = Plan(tuple(pack([unit], 25)), (KeyedPut(ON, of, row),))
    assert plan == Plan((Transaction((unit,), (unit.guard, *unit.effects)),), (KeyedPut(ON, of, row),))


def test_a_unit_tells_what_it_guards_by_its_kind():
    assert isinstance(ledger(1, (ONE, {}, {})).guard, LedgerWrite)
    assert isinstance(claim(1, 1), Unit)
