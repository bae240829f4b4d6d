"""Each aggregate alone: random histories under faults, redelivery and redrive lead to what sorting its values tells."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import App, Key, Router, Row
from streamfold.testing import Write, check
from tests.helpers.aggregates import ADDED, ORDERED, UNMERGED

PLAY = Key("GAME#{game}", "PLAY#{play}")
GAME = Key("GROUP#{group}", "BEST")


def row_with(make, *given):
    """A handler whose row shows what the aggregate makes of these attributes."""
    return lambda item: Row(group=item["group"], shown=make(*(item[name] for name in given)))


KINDS = {
    **{name: row_with(make, "score") for name, make in ADDED.items()},
    **{f"{name}, of numbers": row_with(make, "at", "score") for name, make in (ORDERED | UNMERGED).items()},
    "min, of texts": row_with(ORDERED["min"], "score", "at"),
    "latest, of texts": row_with(ORDERED["latest"], "score", "at"),
    "latest, largest key, of texts": row_with(ORDERED["latest, largest key"], "score", "at"),
    "set, of texts": row_with(ORDERED["set"], "score", "at"),
    "wins": lambda item: Row(group=item["group"], at=item["at"], **item["more"], wins=item["score"]),
}
ITEMS = st.fixed_dictionaries(
    {
        "group": st.sampled_from(["a", "b"]),
        "score": st.sampled_from([-3, 0, 1, 7, Decimal("7.5")]),
        "at": st.sampled_from(["2026-03-01", "2026-03-02", "", "2026-03-01 #$"]),
        "more": st.sampled_from([{}, {"note": "n"}]),
    }
)
KEYS = st.sampled_from([{"game": game, "play": play} for game in ("1", "2") for play in "xyz"])
HISTORIES = st.lists(st.builds(Write, st.just(PLAY), KEYS, st.one_of(ITEMS, ITEMS, st.none())), min_size=1, max_size=14)


def app_of(kind):
    router = Router()

    @router.view(PLAY, into=GAME)
    def shown(item):
        return KINDS[kind](item)

    return App("games", routers=[router])


def check_kind(kind, writes, seed):
    check(app_of(kind), writes=writes, histories=1, seed=seed, processes=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(HISTORIES, st.integers(0, 2**32))
@settings(max_examples=10)
def test_histories_lead_to_the_model(kind, writes, seed):
    check_kind(kind, writes, seed)


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
@given(HISTORIES, st.integers(0, 2**32))
@settings(max_examples=50)
def test_fifty_histories_lead_to_the_model(kind, writes, seed):
    check_kind(kind, writes, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@given(HISTORIES, st.integers(0, 2**32))
@settings(max_examples=2000)
def test_two_thousand_histories_lead_to_the_model(kind, writes, seed):
    check_kind(kind, writes, seed)
