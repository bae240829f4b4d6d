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
from streamfold.keys.table import OWNER
from streamfold.ledger.contribution import LedgerItem, RowContribution
from streamfold.ledger.deltas import ROWS_MAX, Additions, Delta, bucket_of, may_wait, names_in
from streamfold.ledger.state_keys import claim_key, ledger_key, row_name
from streamfold.ledger.step import Step
from streamfold.routes.checks import checked_routes
from streamfold.runtime import Knowledge, Shared, Sharing
from streamfold.settings.limits import BYTES_MAX
from streamfold.writes.guarded import AddRow, Claim, GuardedPut, LedgerWrite, PutRow, SwapText
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


# Additions that go through deltas.


def sharing(rows=None, *, may_put=True):
    """Additions to these rows go through deltas; to all rows without any."""
    known = Sharing()
    if rows is not None:
        known.learn({row_name(("main", f"GROUP#{group}", "TOTAL")): 0.0 for group in rows})
    return Shared(known, Knowledge(), may_put, takes_all=rows is None)


def group(name):
    return ("main", f"GROUP#{name}", "TOTAL")


def puts(transaction):
    """The deltas of a transaction, by name."""
    return {write.key.sk: Delta.of(write.text) for write in transaction.writes if isinstance(write, SwapText)}


def names_of(guard):
    """The deltas that a guard names, by handler."""
    if isinstance(guard, Claim):
        return {"log": names_in(guard.deltas)}
    return {each.handler: names_in(each.deltas or "") for each in guard.contributions}


@given(batches, st.integers(2, 8))
def test_a_plan_without_shared_rows_is_the_same_whoever_may_put_deltas(units, actions):
    plain = pack(units, actions)
    for shared_rows in (sharing(()), sharing(may_put=False)):
        packed = pack(units, actions, shared_rows)
        assert [transaction.units for transaction in packed] == [transaction.units for transaction in plain]
        assert [transaction.writes[len(transaction.units) :] for transaction in packed] == [
            transaction.writes[len(transaction.units) :] for transaction in plain
        ]


@given(batches, st.integers(2, 8))
def test_guards_of_optimistic_steps_alone_change_where_deltas_may_be_pending(units, actions):
    for transaction in pack(units, actions, sharing(())):
        for unit, guard in zip(transaction.units, transaction.guards, strict=True):
            if isinstance(guard, LedgerWrite) and guard.revision is None:
                assert {each.gone for each in guard.contributions} == {""}
                plain = [each._replace(gone=None) for each in guard.contributions]
                assert guard._replace(contributions=tuple(plain)) == unit.guard
            else:
                assert guard == unit.guard


def direct_rows(unit):
    """The rows to which some handler of a unit writes what cannot wait."""
    return {effect.key for effect in unit.effects if not may_wait(effect)}


@given(batches, st.integers(2, 8))
def test_what_goes_through_deltas_adds_up_to_the_effects_of_the_units(units, actions):
    transactions = pack(units, actions, sharing())
    writes = [write for transaction in transactions for write in transaction.writes]
    waiting = [each for transaction in transactions for delta in puts(transaction).values() for each in delta.additions]
    assert totals([*writes, *waiting]) == totals(effect for unit in units for effect in unit.effects)
    for transaction in transactions:
        added = {write.key for write in transaction.writes if may_wait(write)}
        assert added <= {row for unit in transaction.units for row in direct_rows(unit)}


@given(batches, st.integers(2, 8))
def test_each_unit_with_deltas_is_in_one_chunk_that_is_no_larger_than_asked(units, actions):
    transactions = pack(units, actions, sharing())
    packed = Counter(unit.guard.key for transaction in transactions for unit in transaction.units)
    assert packed == Counter(unit.guard.key for unit in units)
    assert all(len(each.writes) <= actions or len(each.units) == 1 for each in transactions)


@given(batches)
def test_a_guard_names_just_the_deltas_that_hold_what_its_unit_adds(units):
    for transaction in pack(units, ACTIONS_MAX, sharing()):
        deltas = puts(transaction)
        for unit, guard in zip(transaction.units, transaction.guards, strict=True):
            rows = {effect.key for effect in unit.effects} - direct_rows(unit)
            found = [(name, some) for each in names_of(guard).values() for name, some in each.items()]
            assert {row for _, some in found for row in some} == {row_name(row) for row in rows}
            assert all(some <= deltas[name].rows for name, some in found)


def test_a_transaction_puts_one_delta_for_each_bucket():
    units = [ledger(number, (ONE, {}, shared(**{f"g{number}": 1}))) for number in range(40)]
    for transaction in pack(units, ACTIONS_MAX, sharing()):
        buckets = [int(name[0], 16) for name in puts(transaction)]
        assert len(buckets) == len(set(buckets))
        for name, delta in puts(transaction).items():
            assert {bucket_of(each.key) for each in delta.additions} == {int(name[0], 16)}


def test_a_delta_is_put_where_nothing_is_and_its_name_is_another_each_time():
    units = [ledger(1, (ONE, {}, shared(a=1)))]
    (one,), (other,) = pack(units, 25, sharing()), pack(units, 25, sharing())
    assert [write.expected for write in one.writes if isinstance(write, SwapText)] == [None]
    assert puts(one).keys().isdisjoint(puts(other))


def test_units_of_one_bucket_share_a_chunk_and_its_delta():
    units = [ledger(number, (ONE, {}, shared(**{"ab"[number % 2]: 1}))) for number in range(60)]
    transactions = pack(units, ACTIONS_MAX, sharing())
    assert [len(transaction.writes) for transaction in transactions] == [62]


def rows_of_bucket(count):
    names = (f"r{number}" for number in range(10**6))
    found = (name for name in names if bucket_of(group(name)) == 0)
    return [next(found) for _ in range(count)]


def test_a_delta_has_at_most_99_rows():
    rows = rows_of_bucket(ROWS_MAX + 1)
    units = [ledger(number, (ONE, {}, shared(**{row: 1}))) for number, row in enumerate(rows)]
    transactions = pack(units, 200, sharing())
    assert sorted(len(delta.rows) for each in transactions for delta in puts(each).values()) == [1, ROWS_MAX]


def test_a_unit_of_99_rows_of_one_bucket_puts_one_delta():
    unit = ledger(1, (ONE, {}, shared(**dict.fromkeys(rows_of_bucket(ROWS_MAX), 1))))
    (transaction,) = pack([unit], 25, sharing())
    assert len(transaction.writes) == 2
    (delta,) = puts(transaction).values()
    assert len(delta.rows) == ROWS_MAX


def test_a_delta_keeps_apart_what_new_items_add_and_what_the_row_must_count():
    units = [ledger(1, (ONE, {}, shared(a=5))), ledger(2, (ONE, shared(a=3), {}))]
    (transaction,) = pack(units, 25, sharing())
    (delta,) = puts(transaction).values()
    halves = Additions(delta.additions)
    assert halves.entering(group("a")).amounts == {"n": 5}
    assert (halves.counted(group("a")).amounts, halves.counted(group("a")).contributors_min) == ({"n": -3}, 1)


def test_a_delta_names_its_handlers_and_the_rows_at_which_the_process_met_others():
    shared_rows = sharing()
    shared_rows.sharing.met([group("a")], 0.0, first=True)
    unit = ledger(1, (ONE, {}, shared(a=1)), (TWO, {}, shared(a=2)))
    (transaction,) = pack([unit], 25, shared_rows)
    (delta,) = puts(transaction).values()
    assert (delta.handlers, delta.met) == (("one", "two"), (row_name(group("a")),))


def test_each_handler_names_the_rows_that_it_adds_to():
    unit = ledger(1, (ONE, {}, shared(a=1, b=1)), (TWO, {}, shared(b=2)))
    (transaction,) = pack([unit], 25, sharing())
    names = names_of(transaction.guards[0])
    rows = {handler: frozenset().union(*found.values()) for handler, found in names.items()}
    assert rows == {"one": {row_name(group("a")), row_name(group("b"))}, "two": {row_name(group("b"))}}


@pytest.mark.parametrize("values", [({"name": "x"}, {}), ({}, {"name": "x"})])
def test_a_unit_adds_to_a_row_directly_if_one_handler_adds_what_cannot_wait(values):
    unit = ledger(1, (ONE, {}, shared(a=1, b=3)), (TWO, {}, shared(a=2)))
    of_a = [replace(each, values=some) for each, some in zip(additions_to("a", unit), values, strict=True)]
    unit = replace(unit, effects=(*of_a, *additions_to("b", unit)))
    (transaction,) = pack([unit], 25, sharing())
    (name,) = puts(transaction)
    assert [(write.key, write.amounts) for write in transaction.writes if isinstance(write, AddRow)] == [
        (group("a"), {"n": 3})
    ]
    assert names_of(transaction.guards[0]) == {"one": {name: {row_name(group("b"))}}, "two": {}}


def additions_to(row, unit):
    return [effect for effect in unit.effects if effect.key == group(row)]


@pytest.mark.parametrize("contributors_min", [None, 1])
def test_no_delta_holds_what_two_handlers_add_if_the_sum_has_too_many_digits(contributors_min):
    unit = ledger(1, (ONE, {}, shared(a=9 * 10**37 + 1)), (TWO, {}, shared(a=9 * 10**37 + 3)))
    one, two = unit.effects
    unit = replace(unit, effects=(one, replace(two, contributors_min=contributors_min)))
    with_deltas, without = ([each.writes[1:] for each in pack([unit], 25, some)] for some in (sharing(), None))
    assert with_deltas == without


def test_only_shared_rows_go_through_deltas():
    units = [ledger(number, (ONE, {}, shared(hot=1, **{f"g{number}": 1}))) for number in range(3)]
    (transaction,) = pack(units, 25, sharing(["hot"]))
    (delta,) = puts(transaction).values()
    assert delta.rows == {row_name(group("hot"))}
    assert {write.key for write in transaction.writes if isinstance(write, AddRow)} == {
        group(f"g{number}") for number in range(3)
    }


def test_a_claim_names_the_deltas_of_its_change():
    unit = claim(1, 1, AddRow(group("a"), {"n": 1}, 0))
    (transaction,) = pack([unit], 25, sharing())
    assert names_of(transaction.guards[0]) == {
        "log": dict.fromkeys(puts(transaction), frozenset([row_name(group("a"))]))
    }


def test_a_claim_that_adds_to_no_shared_row_stays_as_it_is():
    unit = claim(1, 1, put(1, 1))
    (transaction,) = pack([unit], 25, sharing())
    assert transaction.writes == (unit.guard, *unit.effects)


def test_an_optimistic_step_takes_the_names_that_the_process_saw_gone():
    unit, shared_rows = ledger(1, (ONE, {}, shared(a=1))), sharing(())
    shared_rows.known.note_gone(unit.guard.key, "one", "gone")
    (transaction,) = pack([unit], 25, shared_rows)
    (contribution,) = transaction.guards[0].contributions
    assert (contribution.gone, contribution.deltas) == ("gone", "")  # it names them no more


def found_ledger(deltas=""):
    attributes = {"r": 4, "live": 1, "one.v": version(0), "one.s": "", **({"one.p": deltas} if deltas else {})}
    return LedgerItem.of(attributes)


def test_a_step_that_read_its_ledger_item_is_guarded_by_its_revision_alone():
    unit = again(ledger(1, (ONE, {}, shared(a=1))), found_ledger())
    (transaction,) = pack([unit], 25, sharing(()))
    assert transaction.guards[0] == unit.guard


def test_a_step_goes_on_naming_what_other_rows_refuse():
    kept = "0" * 18 + row_name(group("z"))
    unit = again(ledger(1, (ONE, {}, shared(a=1))), found_ledger(kept))
    for shared_rows, names in ((sharing(()), {"0" * 18}), (sharing(), {"0" * 18, None})):
        (transaction,) = pack([unit], 25, shared_rows)
        found = {name if name == "0" * 18 else None for name in names_of(transaction.guards[0])["one"]}
        assert found == names


def test_pages_of_a_large_step_put_no_deltas():
    unit = replace(ledger(1, (ONE, {}, shared(a=1))), partial=True)
    (transaction,) = pack([unit], 25, sharing())
    assert puts(transaction) == {}
    assert transaction.writes[1:] == unit.effects


def test_sums_of_too_many_digits_go_into_two_chunks():
    large = 9 * 10**37 + 1
    units = [ledger(number, (ONE, {}, shared(a=large))) for number in range(2)]
    units += [ledger(number, (ONE, {}, shared(a=Decimal("1E-9")))) for number in range(2, 4)]
    transactions = pack(units, 25, sharing())
    assert sum(len(transaction.units) for transaction in transactions) == 4
    assert all(puts(transaction) for transaction in transactions)


def test_an_addition_that_clears_the_mark_of_a_removed_row_waits_for_nothing():
    effect = AddRow(group("a"), {}, 0, contributors_min=0, removed=(OWNER,), contributors_below=1)
    unit = replace(ledger(1, (ONE, {}, shared(a=1))), effects=(effect,))
    (transaction,) = pack([unit], 25, sharing())
    assert transaction.writes[1:] == (effect,)
