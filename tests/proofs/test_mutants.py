"""The suite notices every guard that is made wrong, and nothing where there is nothing to notice."""

from pathlib import Path

import pytest

from tests.mutants import MUTANTS
from tests.mutants.search import UNCHANGED, killed
from tests.mutants.suite import failed_tests

EQUIVALENT = [*UNCHANGED, *(mutant for mutant in MUTANTS if mutant.equivalent)]
HISTORIES_FEW = 40
HISTORIES_MANY = 6_000
PAGE = Path(__file__).parents[2] / "docs" / "proof.md"


def named(mutants):
    return [pytest.param(mutant, id=mutant.name) for mutant in mutants]


@pytest.mark.ci
@pytest.mark.parametrize("mutant", named(mutant for mutant in MUTANTS if mutant.tests))
def test_a_mutant_fails_the_tests_that_are_named_for_it(mutant):
    assert failed_tests(mutant) == set(mutant.tests)


@pytest.mark.ci
@pytest.mark.parametrize("mutant", named(mutant for mutant in MUTANTS if not mutant.tests and not mutant.equivalent))
def test_a_mutant_does_not_survive_a_search_of_histories_under_faults(mutant):
    assert killed(mutant, HISTORIES_MANY) is not None


@pytest.mark.parametrize("mutant", named(EQUIVALENT))
def test_what_is_equivalent_survives_a_search(mutant):
    assert killed(mutant, HISTORIES_FEW) is None


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", named(EQUIVALENT))
def test_what_is_equivalent_survives_a_long_search(mutant):
    assert killed(mutant, HISTORIES_MANY, seed=1) is None


def test_every_mutant_has_a_name_of_its_own():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))


def test_the_page_of_proofs_has_every_mutant():
    page = PAGE.read_text("utf-8")
    missing = [mutant.name for mutant in MUTANTS if mutant.name[1:] not in page]
    assert not missing, "write it again: .venv/bin/python -m tests.tools.proof_table"
