"""Rows against what their sources add up to: planted faults are found, and nothing that moves is called different."""

import pytest

from streamfold import App, Count, Key, Router, Row, Sum, Top
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.records.values import encode
from streamfold.replay.replay import newest_sources
from streamfold.run import Run
from streamfold.settings import Settings
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
TOTAL = Key("TOTAL#{group}", "TOTAL")
OWN = Key("OWN#{item_id}", "OWN")
ALL = Key("ALL", "ALL")


@pytest.fixture
def app():
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def total(item, item_id):
        return Row(group=item["group"], total=Sum(item["amount"]), best=Top(2, item_id, by=item["amount"]))

    @router.index(ITEM, into=OWN)
    def own(item):
        return Row(amount=item["amount"])

    @router.view(TOTAL, into=ALL)
    def groups(row):
        return Row(groups=Count())

    return App("shop", routers=[router])


@pytest.fixture
def engine(app):
    engine = MemoryEngine(app.tables.values(), app.chains)
    changes = [change(None, item(f"ITEM#{n}", "METADATA", group=f"g{n % 3}", amount=n), n) for n in range(1, 31)]
    engine.put_sources(newest_sources(changes))
    process_changes(app, changes, engine, run_of())
    for each in engine.pending(100):
        app.process({"Records": [each.record]}, engine=engine)
    return engine


def run_of():
    return Run(Settings(), pause=lambda _: None)


def verified(app, engine, *, live=False):
    return RowsVerifier(app, engine, run_of(), app.routes, live=live).verify()


def test_rows_that_agree_are_not_different(app, engine):
    found = verified(app, engine)
    assert (found.rows, found.different, found.failed) == (34, [], [])


def test_rows_that_were_changed_removed_or_put_by_hand_are_found(app, engine):
    engine.rows["main", "TOTAL#g1", "TOTAL"] |= {"total": {"N": "1"}}
    del engine.rows["main", "OWN#4", "OWN"]
    engine.rows["main", "OWN#99", "OWN"] = encode(item("OWN#99", "OWN", amount=1))["M"]
    found = verified(app, engine)
    assert [(each.what, each.row[1]) for each in found.different] == [
        ("missing", "OWN#4"),
        ("extra", "OWN#99"),
        ("different", "TOTAL#g1"),
    ]


@pytest.mark.parametrize("live", [True, False])
def test_a_row_that_lost_a_record_is_different(app, engine, live):
    engine.put_sources(
        [(("main", "ITEM#3", "METADATA"), encode(item("ITEM#3", "METADATA", group="g0", amount=99))["M"], "9")]
    )
    found = verified(app, engine, live=live)
    assert {each.row[1] for each in found.different} == {"TOTAL#g0", "OWN#3"}
    Pages(app, engine, run_of(), {"total", "own"}).reconcile([("main", "ITEM#3", "METADATA")])
    assert verified(app, engine, live=live).different == []


def test_rows_that_move_while_they_are_compared_are_not_different(app, engine):
    read, numbers, inside = engine.read_rows, iter(range(100, 10_000)), []

    def moves(keys):
        if inside:  # a batch reads rows too
            return read(keys)
        number = next(numbers)
        changed = change(None, item(f"ITEM#{number}", "METADATA", group="g1", amount=1), number)
        engine.put_sources(newest_sources([changed]))
        answer = read(keys)
        inside.append(True)
        process_changes(app, [changed], engine, run_of())
        inside.clear()
        return answer

    engine.read_rows = moves
    found = verified(app, engine, live=True)
    assert found.different == []


def test_an_item_on_which_a_handler_raises_is_told(app, engine):
    engine.put_sources([(("main", "ITEM#5", "METADATA"), encode(item("ITEM#5", "METADATA"))["M"], "9")])
    assert {each.item[1] for each in verified(app, engine).failed} == {"ITEM#5"}
