"""Whatever fails, and in whatever order, an index ends with the documents of the items that are there."""

import pytest

from streamfold.testing import check
from tests.derivations.search.applications import ALL, items_of

each_kind = pytest.mark.parametrize("name", ALL)


def check_histories(name, histories, seed=0):
    app = ALL[name]()
    assert check(app, items_of(app), histories=histories, seed=seed, processes=0).unproved == ()


@each_kind
def test_documents_are_those_of_the_items(name):
    check_histories(name, 15)
