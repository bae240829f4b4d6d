"""The store of a run: what the application and handlers write to items leaves records, in one order."""

import pytest

from streamfold import App, Key, Router
from streamfold.proofs.store import Contents, ProofStore
from streamfold.records.change import BY_OURSELVES
from streamfold.records.values import encode
from streamfold.writes.guarded import DeleteSource, UpdateSource
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
KEY = ("main", "ORDER#1", "METADATA")
FIRST, SECOND = item("ORDER#1", total=1), item("ORDER#1", total=2)


@pytest.fixture
def store():
    router = Router()
    router.cascade(ORDER, children=[Key("ORDER#{order_id}", "ITEM#{sku}")])
    return ProofStore(App("shop", routers=[router]).tables.values())


def raw(fields):
    return encode(fields)["M"] if fields else None


def put(store, before, after, sequence):
    store.write_own(change(before, after, sequence), raw(after))


def told(store):
    return [(each.event, own, each.old.get("total"), each.new.get("total")) for each, own, _ in store.delivered]


def test_what_is_written_as_it_was_given_leaves_the_given_record(store):
    given = change(None, FIRST, 1)
    store.write_own(given, raw(FIRST))
    assert store.delivered[0].change is given


def test_record_has_the_images_that_the_table_had(store):
    put(store, FIRST, SECOND, 1)
    assert told(store) == [("INSERT", True, None, 2)]


def test_write_that_changes_nothing_leaves_no_record(store):
    put(store, None, FIRST, 1)
    put(store, SECOND, FIRST, 2)
    put(store, FIRST, None, 3)
    put(store, FIRST, None, 4)
    assert told(store) == [("INSERT", True, None, 1), ("REMOVE", True, 1, None)]


def test_what_handlers_write_is_told_behind_the_write_that_it_follows(store):
    put(store, None, FIRST, 1)
    assert store.transact([UpdateSource(KEY, {"total": 1}, ("lines",), {"lines": 3})], 0) is None
    assert store.transact([DeleteSource(KEY, store.source(KEY), "")], 0) is None
    put(store, FIRST, SECOND, 2)
    assert told(store) == [
        ("INSERT", True, None, 1),
        ("MODIFY", False, 1, 1),
        ("REMOVE", False, 1, None),
        ("INSERT", True, None, 2),
    ]
    versions = [each.version_text for each, *_ in store.delivered]
    assert versions == sorted(set(versions))
    assert [BY_OURSELVES in version for version in versions] == [False, True, True, False]
    assert dict(store.sources()) == {KEY: raw(SECOND)}


def test_update_of_an_item_that_is_not_there_makes_none(store):
    assert store.transact([UpdateSource(KEY, {}, ("lines",), {"lines": 3})], 0) is not None
    assert (store.delivered, store.source(KEY)) == ([], None)


def test_archive_is_read_as_it_was_written(store):
    place = Contents(store, store.archive)
    place.write("archive/date=2026-03-02/b", b"2")
    place.write("archive/date=2026-03-01/a", b"1")
    assert list(place.folders("archive/")) == ["date=2026-03-01", "date=2026-03-02"]
    assert list(place.names("archive/date=2026-03-02/")) == ["archive/date=2026-03-02/b"]
    assert place.read("archive/date=2026-03-01/a").read() == b"1"
