"""Each aggregate alone: random histories under faults, redelivery and redrive lead to what sorting its values tells."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import App, Average, Collect, Count, Distinct, First, Key, Latest, Max, Min, Router, Row, Sum, Top
from streamfold.testing import Write, check

PLAY = Key("GAME#{game}", "PLAY#{play}")
GAME = Key("GROUP#{group}", "BEST")
LARGEST = "largest key"


def latest(item, **choice):
    return Row(group=item["group"], shown=Latest({"score": item["score"]}, by=item["at"], **choice))


def first(item, **choice):
    return Row(group=item["group"], shown=First(item["at"], by=item["score"], **choice))


def top(item, **choice):
    return Row(group=item["group"], shown=Top(2, item["at"], by=item["score"], **choice))


KINDS = {
    "sum": lambda item: Row(group=item["group"], shown=Sum(item["score"])),
    "count": lambda item: Row(group=item["group"], shown=Count()),
    "average": lambda item: Row(group=item["group"], shown=Average(item["score"])),
    "max": lambda item: Row(group=item["group"], shown=Max(item["score"])),
    "min": lambda item: Row(group=item["group"], shown=Min(item["at"])),
    "latest": latest,
    "first": first,
    "top": top,
    "latest, largest key": lambda item: latest(item, ties=LARGEST),
    "first, largest key": lambda item: first(item, ties=LARGEST),
    "top, largest key": lambda item: top(item, ties=LARGEST),
    "top, smallest": lambda item: top(item, smallest=True),
    "top, smallest, largest key": lambda item: top(item, smallest=True, ties=LARGEST),
    "distinct": lambda item: Row(group=item["group"], shown=Distinct(item["score"])),
    "set": lambda item: Row(group=item["group"], shown=Collect(item["at"], most=2)),
    "list": lambda item: Row(group=item["group"], shown=Collect(item["score"], most=3, into=list)),
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
