"""Visits: what is read first, what is visited again, and that one that is refused takes no other along."""

from collections import Counter

import pytest

from streamfold import App, Key, Router, Row, Sum
from streamfold import Count as Counted
from streamfold.batch.process import process_changes
from streamfold.batch.visits import VisitedItem, Visits
from streamfold.commit import ledger_units
from streamfold.engines import MemoryEngine
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, EngineUnavailable
from streamfold.failures.repair import Repair
from streamfold.ledger.contribution import LedgerItem
from streamfold.lifecycle.page import Pages
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import LedgerWrite, Reason, Refused
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
TOTAL = Key("TOTAL#{group}", "TOTAL")
TAG = Key("TAG#{n:06d}", "TOTAL")
WORD = Key("WORD#{n:06d}", "TOTAL")


class Store(MemoryEngine):
    """Notes its calls; ``meanwhile`` is called once, before the next transaction."""

    def __init__(self, app):
        super().__init__(app.tables.values())
        self.source_tables.add("main")
        self.calls = []
        self.meanwhile = None
        self.answer = None

    def _note(self, name):
        self.calls.append(name)

    def read_state(self, keys, **more):
        self._note("read_state")
        return super().read_state(keys, **more)

    def read_source(self, key):
        self._note("read_source")
        return super().read_source(key)

    def read_sources(self, keys):
        self._note("read_sources")
        return {key: found for key in keys if (found := super(Store, self).read_source(key)) is not None}

    def transact(self, writes, expires_at):
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
            self.calls.clear()
        self._note("transact")
        if self.answer is not None:
            return self.answer(writes)
        return super().transact(writes, expires_at)


@pytest.fixture
def app():
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def total(item):
        if item["group"] == "wrong":
            raise ValueError(item["group"])
        return Row(group=item["group"], total=Sum(item["amount"]))

    @router.view(ITEM, into=TAG)
    def tags(item):
        for number in range(*item.get("tags", (0, 0))):
            yield Row(n=number, uses=Counted())

    @router.view(ITEM, into=WORD)
    def words(item):
        for number in range(*item.get("tags", (0, 0))):
            yield Row(n=number, uses=Counted())

    return App("shop", routers=[router])


@pytest.fixture
def store(app):
    return Store(app)


@pytest.fixture
def runtime(app, store):
    return Runtime(app, store, Settings(), pause=lambda _: None)


def put(store, number, version=None, **attributes):
    made = change(None, item(f"ITEM#{number}", "METADATA", **attributes), version or number)
    store.put_sources(newest_sources([made]))
    return made


def keys(*numbers):
    return [("main", f"ITEM#{n}", "METADATA") for n in numbers]


def shown(store):
    return {key[1]: int(row["total"]["N"]) for key, row in store.rows.items() if key[1].startswith("TOTAL#")}


def test_large_contributions_are_read_before_the_source_too(app, store, runtime):
    """Where such a read finds a newer ledger item, an older source would be written on its revision."""
    Pages(runtime, {"tags"}).reconcile([put(store, 1, group="x", amount=2, tags=[0, 99]).item])
    store.calls.clear()
    route = next(route for route in app.routes if route.name == "tags")
    fields = next(fields for each, fields in app.sources(keys(1)[0]) if each is route)
    (visit,) = Visits(runtime=runtime).read([VisitedItem(keys(1)[0], route.group, [(route, fields)])])
    assert store.calls == ["read_state", "read_state", "read_source"]
    assert not visit.differs(visit.steps[0])


def test_an_item_that_is_refused_is_visited_again_alone_and_the_others_are_sent_once(app, store, runtime):
    for number in (1, 2, 3):
        put(store, number, group="x", amount=2)
    newer = put(store, 2, 9, group="x", amount=2)

    def comes():
        newest = put(store, 2, 10, group="y", amount=5)
        assert process_changes(Runtime(app, store, Settings()), [newer, newest]).failures == []

    store.meanwhile = comes
    report = Pages(runtime, {"total"}).reconcile(keys(1, 2, 3))
    assert (shown(store), report.failed) == ({"TOTAL#x": 4, "TOTAL#y": 5}, [])
    assert Counter(store.calls) == Counter({"transact": 3, "read_state": 1, "read_source": 1})


def test_a_refused_visit_whose_deltas_are_not_moved_in_time_fails_alone(app, store, runtime, monkeypatch):
    for number in (1, 2, 3):
        put(store, number, group="x", amount=2)
    newer = put(store, 2, 9, group="x", amount=2)

    def not_in_time(*_):
        raise EngineUnavailable("Pending.")

    def comes():
        newest = put(store, 2, 10, group="y", amount=5)
        assert process_changes(Runtime(app, store, Settings()), [newer, newest]).failures == []
        monkeypatch.setattr(LedgerItem, "waits", True)
        monkeypatch.setattr(ledger_units, "wait_for_items", not_in_time)

    store.meanwhile = comes
    report = Pages(runtime, {"total"}).reconcile(keys(1, 2, 3))
    assert [(failed.item, type(failed.error)) for failed in report.failed] == [(keys(2)[0], EngineUnavailable)]
    assert shown(store) == {"TOTAL#x": 4, "TOTAL#y": 5}


def test_a_handler_that_raises_on_what_came_meanwhile_is_reported_and_the_others_are_led(app, store, runtime):
    put(store, 1, group="x", amount=2, tags=[0, 1])

    def comes():
        newest = put(store, 1, 10, group="wrong", amount=5, tags=[0, 1])
        process_changes(Runtime(app, store, Settings()), [newest])
        put(store, 1, 11, group="wrong", amount=5, tags=[0, 2])

    store.meanwhile = comes
    report = Pages(runtime, {"total", "tags"}).reconcile(keys(1))
    assert [(failed.handler, type(failed.error)) for failed in report.failed] == [("total", ValueError)]
    assert {key[1] for key in store.rows if key[1].startswith("TAG#")} == {"TAG#000000", "TAG#000001"}


def test_handlers_with_too_many_rows_for_one_transaction_go_one_by_one_and_none_is_refused(store, runtime):
    put(store, 1, group="x", amount=2, tags=[0, 90])
    refused = []
    transact = store.transact

    def noted(writes, expires_at):
        refused.append(transact(writes, expires_at))
        return refused[-1]

    store.transact = noted
    report = Pages(runtime, {"tags", "words"}).reconcile(keys(1))
    assert (report.written, report.failed) == (2, [])
    assert Counter(key[1][:4] for key in store.rows) == {"TAG#": 90, "WORD": 90}
    assert refused == [None] * 2


def test_a_dry_run_tells_of_a_large_item_once(store, runtime):
    put(store, 1, group="x", amount=2, tags=[0, 90])
    report = Pages(runtime, {"tags", "words"}, dry_run=True).reconcile(keys(1))
    assert (report.items, report.written, [each.handler for each in report.differing]) == (1, 2, ["tags", "words"])


def test_a_visit_that_meets_others_all_the_time_gives_up_and_says_so(store, runtime):
    put(store, 1, group="x", amount=2)
    store.answer = lambda writes: Refused((Reason("TransactionConflict"), *[None] * (len(writes) - 1)))
    (repaired,) = Repair(runtime, checked=True).item(keys(1)[0], handlers=["total"])
    assert isinstance(repaired.error, Contended)
    assert "do it again later" in str(repaired.error)
    assert store.calls.count("transact") == TRIES_MAX


def test_every_write_of_a_visit_has_a_fence_and_the_revision_that_was_read(store, runtime):
    put(store, 1, group="x", amount=2)
    put(store, 2, group="x", amount=2)
    sent = []
    store.answer = sent.append
    Pages(runtime, {"total"}).reconcile(keys(1, 2))
    guards = [write for writes in sent for write in writes if isinstance(write, LedgerWrite)]
    assert [(guard.fence, guard.revision) for guard in guards] == [(True, 0), (True, 0)]
