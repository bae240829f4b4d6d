"""Every kind of declaration by itself, in random histories under every fault: redelivered, repaired and redriven."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import App, Router
from streamfold.testing import check
from tests.helpers.everything import whole
from tests.proofs.test_proof import ITEMS

SOURCES = set(ITEMS)
ALONE = {route.name: route for route in whole.routes if SOURCES.issuperset(route.sources)}
"""All but those that read rows of others."""

HISTORIES_AT_ONCE = 10
"""Histories of one seed: the examples are looked at once for all of them."""

each_kind = pytest.mark.parametrize("name", sorted(ALONE))


def check_alone(name, histories, at_once=HISTORIES_AT_ONCE):
    """Runs one handler through so many histories, drawn by Hypothesis."""
    route, router = ALONE[name], Router()
    router.routes = [route]
    app = App("alone", routers=[router])
    items = {key: ITEMS[key] for key in ITEMS if key in (*route.sources, *route.kind.touches(route))}

    @settings(max_examples=histories // at_once, deadline=None, database=None)
    @given(seed=st.integers(0, 2**32 - 1))
    def in_a_history(seed):
        assert check(app, items, histories=at_once, seed=seed, processes=0).unproved == ()

    in_a_history()


@each_kind
def test_a_kind_alone_leads_to_its_model(name):
    check_alone(name, 2, at_once=2)


@pytest.mark.ci
@each_kind
def test_a_kind_alone_leads_to_its_model_in_dozens_of_histories(name):
    check_alone(name, 25)


@pytest.mark.nightly
@each_kind
def test_a_kind_alone_leads_to_its_model_in_thousands_of_histories(name):
    check_alone(name, 2000)
