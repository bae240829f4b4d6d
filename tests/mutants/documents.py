"""Mutants of search: bump, read, write, and what an index remembers."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.commit import collections
from streamfold.derivations.search import documents, indexes, indexing, options
from streamfold.derivations.search import indexing as sending
from streamfold.derivations.search.accepts import Accepts
from streamfold.derivations.search.documents import Root
from streamfold.derivations.search.indexing import Indexing
from streamfold.derivations.search.kind import Search
from streamfold.derivations.search.sink import Answer, Sent
from streamfold.routes.parts import PART
from streamfold.routes.route import Kind
from tests.mutants.registry import mutant

INDEXING = "tests/derivations/search/test_indexing.py::"
raised, stored, noted, send = Indexing._raised, Indexing._stored, Indexing._noted, sending.send


@mutant("items are read before the counters of their documents are raised", "search")
def _() -> Iterator[None]:
    before: dict[Any, Any] = {}

    def read_first(indexing: Any, roots: Any, *, again: bool) -> Any:
        before.clear()
        before.update(indexing.runtime.engine.read_sources([root.item for root in roots]))
        return raised(indexing, roots, again=again)

    with patch.object(Indexing, "_raised", read_first), patch.object(Indexing, "_stored", lambda *_: dict(before)):
        yield


@mutant("two runs of an item share a number", "search")
def _() -> Iterator[None]:
    def unraised(indexing: Any, roots: Any, *, again: bool) -> Any:
        runs = raised(indexing, roots, again=again)
        for run in runs:
            run.number -= run.number % 2
        return runs

    with patch.object(Indexing, "_raised", unraised), patch.object(Indexing, "_is_applied", lambda *_: True):
        yield


@mutant("a document is that of the record, not of the item as it is", "search")
def _() -> Iterator[None]:
    def images(indexing: Any, runs: Any) -> Any:
        found = stored(indexing, runs)
        for run in runs:
            for change in run.root.changes:
                if change.item == run.root.item:
                    found[run.root.item] = change.new.raw or None
        return {item: image for item, image in found.items() if image}

    with patch.object(Indexing, "_stored", images):
        yield


@mutant("a document whose item is gone stays", "search")
def _() -> Iterator[None]:
    with patch.object(documents, "hidden", lambda _: b'{"title":"gone"}'):
        yield


@mutant(
    "documents that are gone are deleted, and the index forgets them",
    None,
    tests=INDEXING + "test_a_request_that_lands_after_a_removal_brings_no_document_back",
)
def _() -> Iterator[None]:
    with patch.object(indexing, "gone_body", lambda *_: None):
        yield


@mutant(
    "what the index did not take counts as done",
    None,
    tests=INDEXING + "test_nothing_is_acknowledged_that_the_index_did_not_answer_for",
)
def _() -> Iterator[None]:
    def never_fails(*arguments: Any, **named: Any) -> list[Sent]:
        return [sent if sent.error is None else Sent(Answer(200)) for sent in send(*arguments, **named)]

    with patch.object(sending, "send", never_fails):
        yield


@mutant("a change of a part does not reach the document", "search parts")
def _() -> Iterator[None]:
    reached = Kind.subscriptions

    def of_roots(kind: Any, route: Any) -> Any:
        return tuple(each for each in reached(kind, route) if each.role != PART)

    with patch.object(Search, "subscriptions", of_roots):
        yield


@mutant("only the first page of parts is gathered", None, tests=INDEXING + "test_a_document_has_the_parts_of_all_pages")
def _() -> Iterator[None]:
    with patch.object(collections, "range", lambda _: range(1), create=True):
        yield


@mutant("ids are sent that no later run sees", "search ids")
def _() -> Iterator[None]:
    with patch.object(Indexing, "_noted", lambda *_: True):
        yield


@mutant(
    "ids are noted whatever the counter is",
    None,
    tests=INDEXING + "test_a_run_that_was_overtaken_notes_no_id_and_begins_again",
)
def _() -> Iterator[None]:
    def anyway(indexing: Any, run: Any) -> bool:
        own = run.number
        for _ in range(5):
            found = indexing.runtime.engine.read_state([run.key], consistent=True)
            run.number = int(found.get(run.key, {}).get("n", own))
            if noted(indexing, run):
                break
        run.number = own
        return True

    with patch.object(Indexing, "_noted", anyway):
        yield


@mutant("ids are forgotten before their documents are hidden", "search ids")
def _() -> Iterator[None]:
    made = Indexing._made

    def forgotten(indexing: Any, run: Any, stored: Any) -> bool:
        done = made(indexing, run, stored)
        run.actions = [action for action in run.actions if action.id not in run.gone]
        return done

    with patch.object(Indexing, "_made", forgotten):
        yield


@mutant(
    "an index that is newer than its state is taken for a later run's",
    None,
    tests=(
        INDEXING + "test_a_state_that_is_behind_its_index_is_noticed_and_overcome",
        INDEXING + "test_a_document_in_the_last_version_is_told",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Indexing, "_is_applied", lambda *_: True):
        yield


@mutant(
    "the number of the run itself is taken for a later run's",
    None,
    tests=INDEXING + "test_a_state_that_is_behind_its_index_is_noticed_and_overcome",
)
def _() -> Iterator[None]:
    settled = Indexing._is_applied

    def equal_too(indexing: Any, run: Any, held: int, counters: Any) -> bool:
        return held == run.number or settled(indexing, run, held, counters)

    with patch.object(Indexing, "_is_applied", equal_too):
        yield


@mutant(
    "changes that lead there and back are skipped",
    None,
    tests=INDEXING + "test_changes_that_lead_there_and_back_are_not_skipped",
)
def _() -> Iterator[None]:
    def first_and_last(root: Root) -> bool:
        images = root.changes[0].old, root.changes[-1].new
        return options.options_of(root.route).skip_equal and documents._sent_documents(
            root, images[0]
        ) == documents._sent_documents(root, images[1])

    with patch.object(documents, "changes_nothing", first_and_last):
        yield


NAMES = "tests/derivations/search/test_index_names.py::"


@mutant(
    "real names of indexes are not compared", None, tests=NAMES + "test_two_searches_with_one_real_index_are_refused"
)
def _() -> Iterator[None]:
    with patch.object(indexes, "check_real_indexes", lambda *_: None):
        yield


@mutant(
    "an alias of a search that replaces another may be a tenant's",
    None,
    tests=NAMES + "test_tenants_do_not_meet_while_a_search_is_replaced",
)
def _() -> Iterator[None]:
    with patch.object(documents, "NEXT", "-next"):
        yield


@mutant(
    "the local index takes what the mapping does not take",
    None,
    tests="tests/derivations/search/test_accepts.py::test_a_twin_refuses_a_document_that_the_mapping_does_not_take",
)
def _() -> Iterator[None]:
    with patch.object(Accepts, "refusal", lambda *_: None):
        yield
