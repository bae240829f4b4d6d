"""The pending work of a step is finished by a redelivery or by the next step, even if the process died."""

from unittest.mock import patch

import pytest

from streamfold import App, Count, Key, Max, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.failures.repair import Repair
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.values import decode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source

ITEM = Key("ITEM#{i}", "META")
CUSTOMER = Key("CUSTOMER#{c}", "META")
DAY = Key("DAY#{day}", "SUM")
BEST = Key("BEST#{n}", "ROW")
VIEWS = ["NEW_AND_OLD_IMAGES", "NEW_IMAGE"]


class Died(BaseException):
    """The process ended here."""


class Store(MemoryEngine):
    """Dictionaries of which one method fails once when ``failing`` names it, after so many calls of it."""

    failing: tuple[str, int, BaseException] | None = None

    def _fail(self, name):
        if self.failing is not None and self.failing[0] == name:
            _, left, error = self.failing
            self.failing = (name, left - 1, error) if left else None
            if not left:
                raise error

    def remove_empty(self, rows):
        self._fail("remove_empty")
        return super().remove_empty(rows)

    def read_rows(self, keys, **how):
        self._fail("read_rows")
        return super().read_rows(keys)

    def clear_pending(self, finished):
        self._fail("clear_pending")
        super().clear_pending(finished)

    def transact(self, writes, expires_at):
        refused = super().transact(writes, expires_at)
        self._fail("transact")
        return refused


def app_of(day=lambda item: item["day"]):
    router = Router()

    @router.view(ITEM, into=DAY)
    def sums(item):
        if "day" in item:
            yield Row(day=day(item), total=Sum(item["price"]), count=Count())

    return App("shop", routers=[router])


class Shop:
    """A table, its stream, and a store."""

    def __init__(self, app=None, **source):
        self.app = app or app_of()
        self.store = Store(self.app.tables.values())
        self.source = Source(**source)

    def put(self, **attributes):
        return self.source.put("ITEM#1", "META", **attributes)

    def deliver(self, *records, app=None, **settings):
        run = Runtime(app or self.app, self.store, Settings(**settings), pause=lambda seconds: None)
        return process_event(run, list(records)).failures

    def die(self, *records, at="remove_empty", after=0, error=None):
        """Delivers records to a process that dies, or to which the store does not answer once."""
        self.store.failing = (at, after, error or Died())
        try:
            return self.deliver(*records)
        except Died:
            return []

    def rows(self):
        return {key[1]: {name: decode(value) for name, value in row.items()} for key, row in self.store.rows.items()}

    def ledger(self, handler="sums"):
        return self.store.state[ledger_key("shop", "main", ("main", "ITEM#1", "META"))].get(handler + ".u")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("error", [Died(), EngineUnavailable("throttled")], ids=["dies", "throttled"])
def test_a_row_that_a_step_left_empty_is_removed_when_the_record_comes_again(view, error):
    shop = Shop(view=view)
    shop.deliver(shop.put(day="1", price=5))
    changed = shop.put(day="2", price=5)
    shop.die(changed, error=error)
    assert shop.rows()["DAY#1"]["_sf_n"] == 0
    assert shop.deliver(changed) == []
    assert list(shop.rows()) == ["DAY#2"]


def test_a_row_that_a_parked_record_would_have_left_is_removed():
    shop = Shop()
    shop.deliver(shop.put(day="1", price=5))
    shop.put(day="3", price=5)  # never delivered
    changed = shop.put(day="2", price=5)
    shop.die(changed)
    assert shop.deliver(changed) == []
    assert list(shop.rows()) == ["DAY#2"]


def test_a_row_that_old_code_named_is_removed_by_new_code():
    shop, newer = Shop(), app_of(lambda item: item["other"])
    shop.deliver(shop.put(day="1", other="8", price=5))
    changed = shop.put(day="2", other="9", price=5)
    shop.die(changed)
    assert shop.deliver(changed, app=newer) == []
    assert list(shop.rows()) == ["DAY#2"]


def test_a_row_that_a_handler_left_empty_is_removed_by_code_that_has_retired_it():
    both, newer = Router(), Router()
    for router in (both, newer):
        router.view(ITEM, into=Key("ALL", "SUM"), name="all")(counted)
    both.view(ITEM, into=DAY, name="sums")(by_day)
    shop = Shop(App("shop", routers=[both]))
    shop.deliver(shop.put(day="1", price=5))
    gone = shop.source.remove("ITEM#1", "META")
    shop.die(gone)
    assert shop.deliver(gone, app=App("shop", routers=[newer], retired=["sums"])) == []
    assert shop.rows() == {}


def counted(item):
    yield Row(count=Count())


def by_day(item):
    yield Row(day=item["day"], count=Count())


@pytest.mark.parametrize("view", VIEWS)
def test_what_an_unfinished_step_left_is_finished_by_the_next_step_that_leaves_a_row(view):
    shop = Shop(view=view)
    shop.deliver(shop.put(day="1", price=5))
    shop.die(shop.put(day="2", price=5))
    assert shop.deliver(shop.put(day="3", price=5)) == []
    assert list(shop.rows()) == ["DAY#3"]


def test_what_an_unfinished_step_left_is_finished_by_a_batch_that_assumes_just_what_is_stored():
    shop = Shop()
    first, gone, later = shop.put(day="1", price=5), shop.put(price=5), shop.put(price=6)
    shop.deliver(first)
    shop.die(gone)
    assert shop.deliver(first, gone, later) == []
    assert shop.rows() == {}


@pytest.mark.parametrize("view", VIEWS)
def test_what_is_finished_is_taken_out_of_the_ledger(view):
    shop = Shop(view=view)
    shop.deliver(shop.put(day="1", price=5), shop.put(day="2", price=5))
    shop.deliver(shop.put(day="3", price=5))
    assert shop.ledger() is None


def test_what_is_not_finished_stays_in_the_ledger():
    shop = Shop()
    shop.deliver(shop.put(day="1", price=5))
    shop.die(shop.put(day="2", price=5), error=EngineUnavailable("throttled"))
    assert "DAY#1" in shop.ledger()


def test_a_ledger_that_does_not_forget_fails_no_record():
    shop = Shop()
    shop.deliver(shop.put(day="1", price=5))
    assert shop.die(shop.put(day="2", price=5), at="clear_pending", error=EngineUnavailable("throttled")) == []
    assert shop.deliver(shop.put(day="3", price=5)) == []
    assert list(shop.rows()) == ["DAY#3"]


def test_a_repair_finishes_what_a_step_left():
    shop = Shop()
    shop.deliver(shop.put(day="1", price=5))
    changed = shop.put(day="2", price=5)
    shop.die(changed)
    shop.store.put_sources([(("main", "ITEM#1", "META"), changed["dynamodb"]["NewImage"], "1")])
    [repaired] = Repair(Runtime(shop.app, shop.store, Settings())).item(("main", "ITEM#1", "META"))
    assert (repaired.error, repaired.removed) == (None, 1)
    assert (list(shop.rows()), shop.ledger()) == (["DAY#2"], None)


def many():
    router = Router()

    @router.view(ITEM, into=BEST)
    def best(item):
        for n in range(item.get("rows", 0)):
            yield Row(n=f"{item['at']}{n}", best=Max(item["price"]), count=Count())

    return App("shop", routers=[router])


@pytest.mark.parametrize("view", VIEWS)
def test_every_page_of_a_large_step_is_finished(view):
    shop = Shop(many(), view=view)
    other = shop.source.put("ITEM#2", "META", rows=90, at="a", price=1)
    shop.deliver(shop.put(rows=90, at="a", price=9))
    shop.deliver(other)
    changed = shop.put(rows=1, at="b", price=9)
    shop.die(changed, at="read_rows")
    assert shop.deliver(changed) == []
    assert {row["best"] for key, row in shop.rows().items() if key.startswith("BEST#a")} == {1}
    assert shop.ledger("best") is None


def bearing(parent=lambda item: item["c"]):
    router = Router()

    @router.attributes(ITEM, of=CUSTOMER)
    def spent(item):
        yield Row(c=parent(item), spent=Sum(item["price"]))

    return App("shop", routers=[router])


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("skipped", [False, True], ids=["", "a record before was given up"])
@pytest.mark.parametrize("newer", [None, bearing(lambda item: item["d"])], ids=["", "changed code"])
@pytest.mark.parametrize("error", [Died(), EngineUnavailable("throttled")], ids=["dies", "throttled"])
def test_a_parent_that_an_item_left_does_not_keep_its_amount(view, skipped, newer, error):
    shop = Shop(bearing(), view=view)
    for name in "ABC":
        shop.store.put_sources([(("main", f"CUSTOMER#{name}", "META"), {"name": {"S": name}}, "0")])
    shop.deliver(shop.put(c="A", d="B", price=5))
    if skipped:
        shop.put(c="C", d="B", price=5)
    changed = shop.put(c="B", d="B", price=5)
    shop.die(changed, at="read_rows", error=error)
    assert shop.deliver(changed, app=newer) == []
    bearers = {name: shop.store.read_source(("main", f"CUSTOMER#{name}", "META")) for name in "AB"}
    assert "spent" not in bearers["A"]
    assert bearers["B"]["spent"] == {"N": "5"}


# What is forgotten late, and what an older record finds.


def days(app=None):
    """An item that is in a row and out of it, of a stream of new images: only the ledger tells of the row."""
    shop = Shop(app, view="NEW_IMAGE")
    shop.deliver(shop.put(day="1", price=5))
    return shop


def test_who_forgets_late_what_a_step_left_forgets_nothing_of_a_later_step():
    shop, late = days(), []
    with patch.object(shop.store, "clear_pending", late.append):
        shop.deliver(shop.put(nothing=True))
    shop.deliver(shop.put(day="1", price=5))
    out = shop.put(nothing=True)
    shop.die(out)
    shop.store.clear_pending(*late)
    assert shop.deliver(out) == []
    assert shop.rows() == {}


def test_an_older_record_finishes_what_a_newer_one_left():
    shop = days()
    older, newer = shop.put(day="1", price=6), shop.put(nothing=True)
    shop.die(older, newer)
    assert shop.deliver(older) == []
    assert shop.rows() == {}
