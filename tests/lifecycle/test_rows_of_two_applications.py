"""A row to which two applications add: a repair by one of them never takes out what the other one added.

Earlier commits let two applications add to one row. Their rows may still be there.
"""

import pytest

from streamfold import App, Count, Key, Max, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.lifecycle.row_repair import RowCorrection
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import AddRow
from tests.helpers.source import Source

SALE = Key("SHOP#{shop}", "SALE#{sale}")
SHARED, OWN = ("main", "TOTAL#a", "ALL"), ("main", "LARGEST#a", "one")


def application(name):
    router = Router()

    @router.view(SALE, into=Key("TOTAL#{shop}", "ALL"))
    def total(item):
        return Row(total=Sum(item["price"]), **{f"sales_{name}": Count()})

    @router.view(SALE, into=Key("LARGEST#{shop}", name))
    def largest(item):
        return Row(largest=Max(item["price"]), total=Sum(item["price"]))

    return App(name, routers=[router])


def new_run(app, engine):
    return Runtime(app, engine, Settings(), pause=lambda seconds: None)


@pytest.fixture(autouse=True)
def _as_earlier_commits(monkeypatch):
    monkeypatch.setattr("streamfold.batch.ownership.Ownership._check_local", lambda _: None)


def folded(engine_class, *names):
    apps, source = [application(name) for name in names], Source()
    engine = engine_class(apps[0].tables.values())
    records = [source.put("SHOP#a", f"SALE#{number}", price=number) for number in (1, 20, 3)]
    for app in apps:
        assert process_event(new_run(app, engine), records).failures == []
    return apps[0], engine


def corrected(app, engine, row):
    return RowCorrection(new_run(app, engine)).correct([row])


@pytest.mark.parametrize("engine_class", [MemoryEngine, EmbeddedEngine])
def test_what_another_application_added_stays_and_the_row_is_told(engine_class):
    app, engine = folded(engine_class, "one", "two")
    before = engine.read_rows([SHARED])
    assert before[SHARED]["total"] == 48
    found = corrected(app, engine, SHARED)
    assert (found.corrected, [left.row for left in found.remaining]) == ([], [SHARED])
    assert found.remaining[0].why.startswith(
        "Application 'two' writes the same target, and its contributions are not known here"
    )
    assert engine.read_rows([SHARED]) == before


@pytest.mark.parametrize(("names", "row"), [(("one", "two"), OWN), (("one",), SHARED)])
def test_a_row_of_one_application_is_mended_beside_another(names, row):
    app, engine = folded(MemoryEngine, *names)
    before = engine.read_rows([row])
    engine.transact([AddRow(row, {"total": 7}, 0)], 0)
    assert corrected(app, engine, row).corrected == [row]
    assert engine.read_rows([row])[row]["total"] == before[row]["total"] == 24
