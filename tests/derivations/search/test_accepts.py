"""Which documents the local index takes: as OpenSearch does under the declared mapping."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import App, Document, Key, Router
from streamfold.derivations.search.accepts import Accepts
from streamfold.derivations.search.documents import hidden
from streamfold.derivations.search.indexes import accepts_of
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.options import index_mapping
from streamfold.derivations.search.sink import Action
from streamfold.engines import MemoryEngine
from streamfold.settings import Settings
from streamfold.testing import HandlerFails, Twin, check
from tests.helpers.document_cases import CASES

THING = Key("THING#{id}", "META")


def answered(case, text):
    index = LocalIndex(MemoryEngine([]), lambda _: Accepts(case.mapping, case.settings))
    (answer,) = index.bulk([Action("things", "a", 1, text.encode())])
    return answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_local_index_takes_what_a_server_takes(case):
    assert [text[:80] for text in case.taken if not answered(case, text).is_done] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_local_index_refuses_what_a_server_refuses(case):
    assert [text[:80] for text in case.refused if answered(case, text).status != 400] == []


def test_a_refused_document_leaves_the_one_that_is_there():
    index = LocalIndex(MemoryEngine([]), lambda _: Accepts(index_mapping(None, {"n": "long"}, "here"), {}))
    index.bulk([Action("things", "a", 1, b'{"n":1}')])
    (answer,) = index.bulk([Action("things", "a", 2, b'{"n":"x"}')])
    assert (answer.status, answer.reason) == (400, "failed to parse field [n] of type [long]: for input [x]")
    assert index.read("things", ["a"])["a"].body == {"n": 1}


def test_a_hidden_document_is_taken_under_every_mapping():
    body = json.loads(hidden(1_772_359_200))
    assert Accepts(index_mapping(None, {"n": "long"}, "here"), {}).refusal(body) is None


ACCEPTS = [Accepts(case.mapping, case.settings) for case in CASES]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text() | st.sampled_from("abcdefo"), VALUES, max_size=4))
def test_every_document_is_taken_or_refused_with_a_reason(document):
    assert "" not in [accepts.refusal(document) for accepts in ACCEPTS]


def search(value, **options):
    router = Router()

    @router.search(THING, to="things", fields={"name": "keyword", "n": "long"}, **options)
    def thing(item):
        return Document(name=item["name"], n=value)

    return App("shop", routers=[router])


@pytest.mark.parametrize("value", ["abc", 10**30, True, {"a": 1}])
def test_a_twin_refuses_a_document_that_the_mapping_does_not_take(value):
    with pytest.raises(HandlerFails, match=r"OpenSearch refused the document \(400: failed to parse field \[n\]"):
        Twin(search(value)).put(THING, id="1", name="a")


def test_a_check_refuses_a_document_that_the_mapping_does_not_take():
    with pytest.raises(AssertionError, match=r"failed to parse field \[n\] of type \[long\]"):
        check(search("abc"), {THING: [{"name": "a"}]})


@pytest.mark.parametrize("value", [None, 1, Decimal("1.5"), "12", [1, 2], 2**63 - 1])
def test_a_twin_takes_a_document_that_the_mapping_takes(value):
    twin = Twin(search(value))
    twin.put(THING, id="1", name="a")
    assert twin.documents("things") == {"THING#1|META": {"name": "a", "n": value}}


@pytest.mark.parametrize("name", ["things", "things~000002", "things~000002~write", "things~write"])
def test_every_name_of_an_index_has_the_mapping_of_its_search(name):
    assert accepts_of(search(1).routes, Settings())(name).refusal({"n": "x"})


def test_an_index_that_no_search_declares_takes_every_object():
    assert accepts_of(search(1).routes, Settings())("others") is None
    (answer,) = LocalIndex(MemoryEngine([])).bulk([Action("others", "a", 1, b'{"n":"x"}')])
    assert answer.is_done


def test_the_mapping_is_found_by_the_real_name():
    accepts = accepts_of(search(1).routes, Settings(indexes={"things": "prod-things"}))
    assert accepts("prod-things").refusal({"n": "x"})
    assert accepts("things") is None
