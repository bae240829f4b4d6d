"""Keys of ledger items, read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold.ledger.state_keys import claim_key, contribution_key, document_key, ledger_key, manifest_key, source_of
from streamfold.writes.guarded import StateKey
from tests.helpers.values import numbers

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20) | st.sampled_from(
    ["#", "-", "S#a", "H#", "a#b#c"]
)
values = texts | numbers | st.binary(min_size=1, max_size=20)
names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,10}", fullmatch=True)
ITEM = ("shop", "ORDER#1", "METADATA")
LEDGER = ledger_key("app", "main", ITEM)


@given(names, names, st.tuples(names, values, values | st.none()))
def test_key_is_read_back(application, group, item):
    found = source_of(ledger_key(application, group, item))
    assert found == (application, group, item)


@pytest.mark.parametrize(
    "item",
    [("shop", "x" * 2048, None), ("shop", "x", "y" * 1024), ("shop", b"x" * 1100, "y"), ("shop", "x", b"y" * 600)],
)
def test_key_with_a_hash_is_not_read_back(item):
    assert source_of(ledger_key("app", "main", item)) is None


@pytest.mark.parametrize(
    "key",
    [
        contribution_key(LEDGER, "total"),
        claim_key("app", "total", ITEM, "v1"),
        document_key("app", "total", ITEM),
        manifest_key("app"),
        StateKey("ledger#app", "-"),
        StateKey("ledger#app#main#shop", "-"),
        StateKey("ledger#app#main#shop#ORDER", "-"),
        StateKey("ledger#app#main#shop#N#one", "-"),
        StateKey("ledger#app#main#shop#B#xyz", "-"),
        StateKey(LEDGER.pk, "METADATA"),
        StateKey("jobs", "ledger#app#main#shop#S#a"),
    ],
)
def test_other_keys_are_none_of_a_ledger_item(key):
    assert source_of(key) is None
