"""Laws of all aggregates: rows of entries are the fold of their sources, in any order and in any shards."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import Ordered
from streamfold.commit.after_commit import _show, read_shows
from streamfold.engines import MemoryEngine
from streamfold.ledger.contribution import entry_of, joined, partition, sort_key_of, source_text
from streamfold.read.derived_rows import together
from streamfold.records.images import hidden
from streamfold.routes.aggregates import AGGREGATIONS, ordering_of
from streamfold.routes.shipped_aggregates import Claimed, Winner, claims_in_order
from streamfold.writes.guarded import ChangedEntries, PutState, StateKey
from tests.derivations.view.test_own_aggregates import LastSays, Median, RunnerUp, Spread
from tests.helpers import aggregates

pytestmark = pytest.mark.usefixtures("exact")

ROW = ("main", "GAME#a", "STATS")
ORDERED = {
    **aggregates.ORDERED,
    "wins": lambda value, by: Winner({"x": value}, by),
    "own: median": lambda value, by: Median(by),
    "own: runner-up": RunnerUp,
    "own: last says": lambda value, by: LastSays(value, by=by),
}
IN_ONE_ROW = {
    **ORDERED,
    **aggregates.UNMERGED,
    **{
        f"claim {number}": lambda value, by, order=order: Claimed({"x": value}, by, order, "claims")
        for number, order in enumerate(
            claims_in_order(smallest=smallest, ties=ties)
            for smallest in (False, True)
            for ties in ("smallest key", "largest key")
        )
    },
}
GIVEN = st.lists(st.tuples(st.text("abc", min_size=1, max_size=2), st.integers(-2, 3)), min_size=1, max_size=14)
"""What the sources of a row give: the key of each, and the value that orders."""
SHARDS_MAX = 4


def sources(make, given):
    """What each source gives, by its key, in the order of the keys."""
    by_key = {key: make(f"{key}!", by) for key, by in given}
    return dict(sorted(by_key.items()))


def row(given, *, spread):
    """The row that the entries of sources make of one attribute, or of all its plain attributes."""
    engine = MemoryEngine([])
    name = "" if isinstance(next(iter(given.values())), (Winner, Claimed)) else "x"
    where, text = partition("games", "stats", name, ROW), ""
    for key, value in given.items():
        mine = entry_of(value, spread=spread)
        text = mine.ordering
        for order, entry in mine.entries.items():
            found = PutState(StateKey(where, sort_key_of(order, source_text(("main", key, None)))), entry.content)
            assert engine.transact([found], 0) is None
    values, removed = {}, []
    changed = ChangedEntries(where, name, text, frozenset())
    _show({}, changed, read_shows(engine, where, ordering_of(text)), values, removed)
    return values


def folded(given):
    values = [*given.values()]
    found = values[0].folded("x", values)
    return found["x"] if isinstance(values[0], (Winner, Claimed)) else found


def shown(row):
    return {name: value for name, value in row.items() if not hidden(name)}


def test_every_form_is_looked_at():
    looked_at = {make("a", 1).ordering for make in IN_ONE_ROW.values()}
    own = {f"own/{name}{by}" for name in ("median", "runner_up", "last_says") for by in ("", "-by")}
    names = {name for each in looked_at for name in (each.form.name, each.in_shards().form.name)}
    missing = {name for name in AGGREGATIONS if "/" not in name} - names
    assert not missing, f"enter the class in tests/helpers/aggregates.py, with each of its choices: {missing}"
    assert own & names == {"own/median", "own/runner_up-by", "own/last_says-by"}


@pytest.mark.parametrize("kind", IN_ONE_ROW)
@given(GIVEN)
@settings(max_examples=40)
def test_a_row_shows_what_is_folded(kind, given):
    all_sources = sources(IN_ONE_ROW[kind], given)
    assert shown(row(all_sources, spread=False)) == folded(all_sources)


@pytest.mark.parametrize("kind", ORDERED)
@given(GIVEN, st.data())
@settings(max_examples=40)
def test_shards_make_together_what_is_folded_however_sources_are_spread(kind, given, data):
    all_sources = sources(ORDERED[kind], given)
    shards = [data.draw(st.integers(0, SHARDS_MAX - 1), label=key) for key in all_sources]
    parts = [
        {key: value for (key, value), own in zip(all_sources.items(), shards, strict=True) if own == shard}
        for shard in range(SHARDS_MAX)
    ]
    rows = [row(part, spread=True) for part in parts if part]
    for order in (rows, rows[::-1]):
        assert together(order, (), {}) == folded(all_sources)


ADDED = {**aggregates.ADDED, "of one's own": Spread}


@pytest.mark.parametrize("kind", ADDED)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=6), st.lists(st.integers(-5, 5), max_size=6))
def test_amounts_of_shards_add_up_to_what_is_folded_and_are_taken_back(kind, some, others):
    def added(values):
        found = {}
        for value in values:
            for name, amount in ADDED[kind](value).amounts("x"):
                found[name] = found.get(name, 0) + amount
        return found

    def all_of(values):
        given = [ADDED[kind](value) for value in values]
        return given[0].folded("x", given)

    rows = [each for each in (added(some), added(others)) if each]
    assert together(rows, (), {}) == all_of([*some, *others])
    left = {name: amount - added(others).get(name, 0) for name, amount in all_of([*some, *others]).items()}
    assert left == all_of(some)


@pytest.mark.parametrize("kind", ORDERED)
@given(st.lists(st.integers(-2, 3), min_size=3, max_size=3, unique=True))
@settings(max_examples=10)
def test_entries_of_one_source_join_in_whatever_order_and_grouping(kind, orders):
    values = [entry_of(ORDERED[kind](f"{by}!", by)) for by in orders]
    assert len({held_of(joined(joined(one, two), three)) for one, two, three in permutations(values)}) == 1
    assert len({held_of(joined(one, joined(two, three))) for one, two, three in permutations(values)}) == 1


def held_of(entries):
    return entries.ordering, tuple(
        sorted((order, entry.digest, entry.content) for order, entry in entries.entries.items())
    )


def test_the_base_of_all_has_no_form():
    assert not Ordered.forms
    assert not Ordered.stored_as
