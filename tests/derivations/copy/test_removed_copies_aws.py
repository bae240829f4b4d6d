"""Copies that are gone, because their own table expires them or somebody removed them, and records that come late."""

import pytest

from streamfold import App, Key, Router, Table
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.failures.failed_records import Waiting
from streamfold.failures.redrive import Redrive
from streamfold.lifecycle.page import Pages
from streamfold.records.envelope import Origins
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import DeleteRow
from tests.helpers.failures import parked_document

ITEM = ("main", "ORDER#1", "METADATA")
COPY = ("copies", "ORDER#1", "METADATA")


class Shop:
    """An application that copies orders, on a store that holds them."""

    def __init__(self, source):
        router = Router()
        router.copy(Key("ORDER#{order_id}", "METADATA"), to=Table("copies", ttl="expires"), name="copy")
        self.app = App("shop", routers=[router])
        self.engine, self.source = MemoryEngine(self.app), source
        self.origins = Origins(self.app.source_tables, Settings())

    def put(self, total):
        return self._put(self.source.put("ORDER#1", total=total))

    def remove(self):
        return self._put(self.source.remove("ORDER#1"))

    def _put(self, record):
        change = self.origins.change(record)
        self.engine.put_sources([(change.item, change.new.raw or None, change.version_text)])
        return record

    def redrive(self, record, engine=None):
        run = Runtime(self.app, engine or self.engine, Settings(), pause=lambda _: None)
        redrive = Redrive(run, self.origins, fetch=None)
        (told,) = redrive.process(Waiting("here", parked_document(record, "copy")))
        return told.what

    def lose(self):
        assert self.engine.transact([DeleteRow(COPY)], 0) is None

    def total(self):
        return self.engine.read_rows([COPY]).get(COPY, {}).get("total")


@pytest.fixture
def shop(source):
    return Shop(source)


def test_an_older_record_brings_no_copy_back_that_is_gone(shop):
    older, newer = shop.put(1), shop.put(2)
    shop.redrive(newer)
    shop.lose()
    assert shop.redrive(older) == "stale"
    assert shop.total() is None


def test_an_older_record_brings_no_copy_of_an_item_back_that_is_removed(shop):
    older, newer = shop.put(1), shop.remove()
    shop.redrive(newer)
    shop.lose()
    assert shop.redrive(older) == "stale"
    assert shop.total() is None


def test_the_newest_record_makes_a_copy_that_is_not_there(shop):
    newest = shop.put(1)
    assert shop.redrive(newest) == "applied"
    assert shop.total() == 1


def test_a_copy_that_is_there_is_guarded_by_its_version_and_its_item_is_not_read(shop):
    older, newer = shop.put(1), shop.put(2)
    shop.redrive(newer)
    assert shop.redrive(older, Silent(shop.engine, EngineError("forbidden"))) == "stale"
    assert shop.total() == 2


@pytest.mark.parametrize("is_gone", [True, False])
def test_an_older_record_does_not_set_back_a_copy_that_a_backfill_led_to_its_item(shop, is_gone):
    oldest, older = shop.put(1), shop.put(2)
    shop.redrive(oldest)
    if is_gone:
        shop.lose()
    shop.put(4)
    Pages(Runtime(shop.app, shop.engine, Settings(), pause=lambda _: None), ["copy"]).reconcile([ITEM])
    assert shop.redrive(older) == "stale"
    assert shop.total() == 4


class Silent:
    """A store whose source items cannot be read, as one of AWS."""

    is_local = False
    separate = by_prefix = None

    def __init__(self, engine, error):
        self.error = error
        for name in (
            "transact",
            "read_rows",
            "read_state",
            "swap_state",
            "insert_rows",
            "read_entries",
            "remove_empty",
        ):
            setattr(self, name, getattr(engine, name))

    def read_source(self, item):
        raise self.error


@pytest.mark.parametrize("error", [EngineError("forbidden"), EngineUnavailable("no answer")])
def test_a_record_is_left_over_where_the_copy_is_gone_and_its_item_cannot_be_read(shop, error):
    older, newer = shop.put(1), shop.put(2)
    shop.redrive(newer)
    shop.lose()
    assert shop.redrive(older, Silent(shop.engine, error)) == "failed"
    assert shop.total() is None


def test_a_local_state_without_source_items_takes_the_record_as_it_is(source):
    shop = Shop(source)
    shop.put = lambda total: source.put("ORDER#1", total=total)
    assert shop.redrive(shop.put(1)) == "applied"
    assert shop.total() == 1
