"""The Kinesis twin, and proofs over records that arrive late and twice."""

import json
from base64 import b64decode
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import App, Router, Table
from streamfold.engines import MemoryEngine
from streamfold.errors import RecordError
from streamfold.proofs.oracle import expected_rows, stored_rows
from streamfold.records.envelope import Origins
from streamfold.records.kinesis import sequence_of
from streamfold.settings import Settings
from streamfold.testing import (
    KinesisTwin,
    Scenario,
    TableTwin,
    TwinError,
    Write,
    check,
    check_scenario,
    piped,
)
from tests.helpers import everything, histories
from tests.proofs.test_proof import ITEMS

BINARY = {"PK": "A", "SK": "B", "b": b"\x00\x01\xff", "set": {b"\x00"}, "deep": {"list": [b"abc", "text"]}}


def told(*writes, **more):
    """The records of Kinesis for puts to a table."""
    table, kinesis = TableTwin(Table("shop")), KinesisTwin(**more)
    return [kinesis.append(table.put(item)) for item in writes]


def data_of(record):
    return json.loads(b64decode(record["kinesis"]["data"]))


def change(record):
    return Origins({"shop": Table("shop")}, Settings()).change(record)


def test_what_is_written_to_a_table_is_what_its_change_holds():
    (record,) = told(BINARY)
    assert data_of(record)["dynamodb"]["NewImage"]["b"] == {"B": "QUFILw=="}
    assert change(record).new == BINARY


def test_changes_of_one_second_have_times_in_their_order():
    items = [{"PK": "A", "SK": "B", "n": number} for number in range(3)]
    versions = [change(record).version_text for record in told(*items)]
    assert versions == sorted(set(versions))


def test_a_stream_of_milliseconds_leaves_out_the_precision_and_is_refused():
    (record,) = told(BINARY, precision="MILLISECOND")
    assert "ApproximateCreationDateTimePrecision" not in data_of(record)["dynamodb"]
    with pytest.raises(RecordError, match="expected MICROSECOND"):
        change(record)


def test_records_without_both_images_cannot_be_told():
    table = TableTwin(view="NEW_IMAGE")
    with pytest.raises(TwinError, match="A record of view type NEW_IMAGE lacks an image that Kinesis needs"):
        KinesisTwin().append(table.put(BINARY))


def test_a_piped_record_holds_what_lambda_wraps():
    (record,) = told(BINARY)
    flat = piped(record)
    assert "kinesis" not in flat
    assert sequence_of(flat) == sequence_of(record)
    assert change(flat) == change(record)


def events_of(records, random, form):
    """Batches of Kinesis records that tell of stream records, all of them at least once and in no order."""
    kinesis = KinesisTwin()
    notices = [kinesis.append(record) for record in records]
    notices += [kinesis.again(notice) for notice in notices if random.random() < 0.3]
    random.shuffle(notices)
    while notices:
        size = random.choice((1, 2, 3, 10))
        batch, notices = notices[:size], notices[size:]
        yield {"Records": batch} if form == "lambda" else list(map(piped, batch))


def in_order(rows):
    """The rows, and those of a history in their order: the versions of the two sources differ."""
    found = {}
    for key, row in sorted(rows.items()):
        if "version" in row:
            found.setdefault(key[1], []).append({name: value for name, value in row.items() if name != "version"})
        else:
            found[key] = row
    return found


@pytest.mark.parametrize("form", ["lambda", "pipe"])
@given(history=histories.writes(), seed=st.integers(0, 1000))
def test_rows_are_those_that_the_tables_own_stream_leads_to(form, history, seed):
    app, records = everything.app, histories.records_of(history)
    engine = MemoryEngine(app.tables.values(), app.chains)
    for event in events_of(records, Random(seed), form):
        assert app.process(event, engine=engine, settings=Settings()) == []
    origins = Origins(app.source_tables, Settings())
    expected = expected_rows(app, map(origins.change, records))
    assert in_order(stored_rows(app, engine.rows.items())) == in_order(expected)


def views_only():
    """One of every view and index: what both sources deliver takes effect twice on all else."""
    router = Router()
    router.routes = [route for route in everything.router.routes if route.kind.contributes]
    return App("views", routers=[router])


@given(history=histories.writes(), overlap=st.integers(0, 5), seed=st.integers(0, 1000))
def test_views_are_right_when_a_table_changes_over_under_a_higher_epoch(history, overlap, seed):
    app, records = views_only(), histories.records_of(history)
    engine, half = MemoryEngine(app.tables.values(), app.chains), len(records) // 2
    assert app.process(records[:half], engine=engine, settings=Settings()) == []
    for event in events_of(records[max(0, half - overlap) :], Random(seed), "lambda"):
        assert app.process(event, engine=engine, settings=Settings(epoch=1)) == []
    origins = Origins(app.source_tables, Settings())
    assert stored_rows(app, engine.rows.items()) == expected_rows(app, map(origins.change, records))


def check_histories(count, seed):
    proof = check(everything.app, ITEMS, histories=count, seed=seed, source="kinesis", processes=0)
    assert {"arrives-late", "arrives-last", "arrives-twice"} <= set(proof.faults)


def test_handlers_hold_under_every_fault_behind_kinesis():
    check_histories(8, seed=3)


@pytest.mark.ci
def test_handlers_hold_under_every_fault_behind_kinesis_in_dozens_of_histories():
    check_histories(20, seed=2)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 110))
def test_handlers_hold_under_every_fault_behind_kinesis_in_many_histories(seed):
    check_histories(1000, seed)


def test_a_scenario_behind_kinesis_is_run_again():
    fields = {"order_id": "1", "sku": "a"}
    item = {"price": 3, "quantity": 2, "day": "2026-03-01", "tags": [], "customer": "ana"}
    writes = [Write(everything.ORDER_ITEM, fields, {**item, "price": price}) for price in (3, 4)]
    check_scenario(everything.app, Scenario(tuple(writes), 1, 25, {1: "arrives-last", 2: "arrives-twice"}, "kinesis"))


def test_a_dynamodb_stream_delivers_in_order_and_once():
    proof = check(everything.app, ITEMS, histories=5, faults=["arrives-twice", "arrives-late"], processes=0)
    assert proof.faults.total() == 0
