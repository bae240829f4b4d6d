"""The driver finds what is wrong with plain updates: the same faults that streamfold's guards take are not harmless."""

import pytest

from tests.helpers.baselines import DRIVERS, FEW_FAULTS, measured

HISTORIES = 200
SHARE_MIN = 0.1


@pytest.mark.parametrize("only", [None, FEW_FAULTS], ids=["all-faults", "few-faults"])
@pytest.mark.parametrize("name", [name for name in DRIVERS if name != "streamfold"])
def test_updates_without_a_guard_in_their_own_transaction_diverge(name, only):
    assert measured(name, HISTORIES, only=only).share > SHARE_MIN


@pytest.mark.parametrize("only", [None, FEW_FAULTS], ids=["all-faults", "few-faults"])
def test_the_same_histories_lead_streamfold_to_the_declared_rows(only):
    assert measured("streamfold", HISTORIES, only=only).diverged == 0


@pytest.mark.parametrize("name", DRIVERS)
def test_without_faults_every_way_of_writing_leads_to_the_declared_rows(name):
    assert measured(name, HISTORIES, only=frozenset()).diverged == 0
