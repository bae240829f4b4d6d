"""Rebuilds at any moment of a history: readers never miss a document, and the new index ends with the items."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from streamfold.derivations.search import indexing
from streamfold.derivations.search import maintenance as copying
from streamfold.derivations.search.documents import known_items
from streamfold.derivations.search.indexing import Dirty, Targets
from streamfold.derivations.search.maintenance import Copying
from streamfold.lifecycle.search import Rebuild
from tests.helpers.rebuild_histories import KINDS, check

each_kind = pytest.mark.parametrize("name", KINDS)
MUTANT_HISTORIES = 1_500


@each_kind
def test_an_index_that_is_rebuilt_is_as_the_items(name):
    check(name, 60)


@pytest.mark.ci
@each_kind
def test_an_index_that_is_rebuilt_is_as_the_items_in_a_thousand_histories(name):
    check(name, 400, 100)


@pytest.mark.nightly
@each_kind
def test_an_index_that_is_rebuilt_is_as_the_items_in_many_thousands_of_histories(name):
    check(name, 35_000, 10_000)


@contextmanager
def source_before_number():
    numbered, before = Copying._numbered, {}

    def read_first(copying, roots):
        before.clear()
        before.update(copying.runtime.engine.read_sources({item for root in roots for item in known_items(root)}))
        return numbered(copying, roots)

    with (
        patch.object(Copying, "_numbered", read_first),
        patch.object(copying, "known_sources", lambda *_: dict(before)),
    ):
        yield


@contextmanager
def only_the_alias():
    with patch.object(indexing, "targets", lambda mark, alias, handler: Targets(alias)):
        yield


@contextmanager
def notes_of_a_root_are_one():
    remove = Dirty.remove

    def all_of_the_roots(dirty, notes):
        items = {note.root.item for note in notes}
        remove(dirty, [note for note in dirty.notes(1_000) if note.root.item in items])

    with patch.object(Dirty, "remove", all_of_the_roots):
        yield


@contextmanager
def nothing_is_noted():
    with patch.object(Dirty, "note", lambda *_: None):
        yield


@contextmanager
def notes_are_left():
    with patch.object(Rebuild, "drain", lambda *_: []):
        yield


MUTANTS = {
    "documents go to the alias alone": (only_the_alias, 0),
    "a root has one note, whatever its number": (notes_of_a_root_are_one, 1_200),
    "what the new index did not take is not noted": (nothing_is_noted, 0),
    "what is noted is not sent again": (notes_are_left, 0),
}
"""What is made wrong, and the first of the histories that notice it. Two more mistakes need more at once than histories
have: tests of single steps notice them (``test_search_rebuild.py``)."""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rebuild_with_a_mistake_is_noticed(mutant):
    made, first = MUTANTS[mutant]
    with made(), pytest.raises(AssertionError):
        check("one item", MUTANT_HISTORIES, first)
