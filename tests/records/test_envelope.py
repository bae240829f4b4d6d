"""From what is handed over to raw records, and from a record's ARN to its table and the beginning of its versions."""

import json
from pathlib import Path

import pytest

from streamfold import Table
from streamfold.errors import RecordError
from streamfold.keys.table import MAIN
from streamfold.records.change import UNLABELLED
from streamfold.records.envelope import Origins, Seen, number_of, records_of
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin, piped
from tests.helpers.records import LABEL, item, record

RECORD = record(None, item("ORDER#1"), 7)
KINESIS = KinesisTwin().append(RECORD)
SHOP, ARCHIVE = Table("shop"), Table("archive")


def origins(*tables, warn=None, **settings):
    known = {table.name: table for table in tables or (MAIN,)}
    return Origins(known, Settings(**settings), *([warn] if warn else []))


@pytest.mark.parametrize("event", [{"Records": [RECORD]}, [RECORD], RECORD])
def test_an_event_a_list_and_a_single_record_are_unwrapped(event):
    assert records_of(event) == [RECORD]


@pytest.mark.parametrize("event", [{"Records": []}, []])
def test_an_empty_batch_has_no_records(event):
    assert records_of(event) == []


def test_the_sample_event_that_aws_publishes_is_unwrapped():
    event = json.loads((Path(__file__).parents[1] / "samples" / "aws_sample.json").read_text())
    assert [raw["eventName"] for raw in records_of(event)] == ["INSERT", "MODIFY", "REMOVE"]


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ({"detail": {}, "source": "x"}, "found an object with the keys ['detail', 'source']."),
        ({"Records": None}, "found an object with the keys ['Records']."),
        ({}, "found an object with the keys []."),
        ("text", "found str."),
        (None, "found NoneType."),
    ],
)
def test_an_unknown_envelope_is_refused_with_what_was_expected_and_found(event, found):
    with pytest.raises(RecordError) as caught:
        records_of(event)
    assert str(caught.value).startswith('This is no event that streamfold knows: expected a Lambda event {"Records": ')
    assert str(caught.value).endswith(found)


@pytest.mark.parametrize("source", ["aws:sqs", None])
def test_a_record_of_another_service_is_refused(source):
    with pytest.raises(RecordError, match=f"A record comes from {source!r}: expected a DynamoDB stream"):
        records_of({"Records": [RECORD, {**RECORD, "eventSource": source}]})


def test_a_record_that_is_no_object_is_refused():
    with pytest.raises(RecordError, match=r"A record is str, 'text': expected a Lambda event"):
        records_of([RECORD, "text"])


@pytest.mark.parametrize("event", [{"Records": [KINESIS]}, [KINESIS], KINESIS, [piped(KINESIS)], piped(KINESIS)])
def test_records_of_kinesis_come_as_event_as_a_pipes_list_or_alone(event):
    (found,) = records_of(event)
    assert number_of(found) == KINESIS["kinesis"]["sequenceNumber"]
    assert origins().change(found).item == ("main", "ORDER#1", "METADATA")


@pytest.mark.parametrize("record", [{}, {"dynamodb": None}, {"dynamodb": {"SequenceNumber": 7}}, {"kinesis": None}])
def test_a_record_without_a_sequence_number_has_none(record):
    assert number_of(record) is None


def test_the_version_of_a_change_begins_with_epoch_and_stream_label():
    assert origins(epoch=3).change(RECORD).version_text == f"03/{LABEL}/{7:040d}"


@pytest.mark.parametrize(
    "arn",
    [
        f"arn:aws:dynamodb:us-east-1:123456789012:table/shop/stream/{LABEL}",
        f"arn:aws-cn:dynamodb:cn-north-1:123456789012:table/shop/stream/{LABEL}",
        f"arn:aws:dynamodb:ddblocal:000000000000:table/shop/stream/{LABEL}",
    ],
)
def test_the_table_and_label_are_read_from_the_arn_of_any_region(arn):
    found = origins(SHOP).change({**RECORD, "eventSourceARN": arn})
    assert (found.table, found.version.label) == (SHOP, LABEL)


@pytest.mark.parametrize("arn", ["", "shop", "arn:aws:dynamodb:us-east-1:1:table/shop", "x:table/shop/stream/", 5])
def test_a_malformed_arn_is_refused_with_its_form(arn):
    with pytest.raises(RecordError, match="expected arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/LABEL"):
        origins().change({**RECORD, "eventSourceARN": arn})


def without_arn(sequence=7):
    return {name: value for name, value in record(None, item("A"), sequence).items() if name != "eventSourceARN"}


def test_records_without_an_arn_have_a_stated_label_and_one_warning():
    warnings = []
    reader = origins(warn=warnings.append)
    found = [reader.change(without_arn(sequence)) for sequence in (7, 8)]
    assert [each.version.label for each in found] == [UNLABELLED, UNLABELLED]
    (warning,) = warnings
    assert warning.startswith(f"Records without a stream ARN are given the stream label {UNLABELLED}: their versions")


def test_every_real_stream_is_newer_than_records_without_an_arn():
    reader = origins()
    assert reader.change(without_arn(999)).version < reader.change(RECORD).version


def test_a_record_without_an_arn_is_refused_where_several_tables_are_read():
    with pytest.raises(RecordError, match=r"has no eventSourceARN, and the application reads several tables \(shop"):
        origins(SHOP, ARCHIVE).change(without_arn())


def of(table):
    return record(None, item("ORDER#1"), table=table)


def test_an_application_whose_keys_name_no_table_takes_those_of_the_first_that_it_sees():
    reader = origins()
    assert reader.change(of("orders-prod")).table is MAIN
    assert reader.real_names() == {"main": "orders-prod"}
    with pytest.raises(RecordError) as caught:
        reader.change(of("users-prod"))
    assert str(caught.value) == (
        "A record is of table 'users-prod', but the application knows 'main' (really 'orders-prod'). "
        "Is that the table? Then set --table main=users-prod, or STREAMFOLD_TABLE_MAIN=users-prod. "
        "Is it a second table? Then declare it, Table(...), and give it to its Keys."
    )


@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_a_record_with_other_keys_does_not_make_its_table_the_first(source):
    reader, foreign = origins(), record(None, {"id": "ana"}, table="users-prod", names=("id",))
    for _ in range(2):
        with pytest.raises(RecordError, match=r"has the key attributes .*id.*: table 'main' is declared with PK, SK"):
            reader.change(KinesisTwin().append(foreign) if source == "kinesis" else foreign)
    assert (reader.real_names(), reader.sources) == ({}, {})
    assert told(reader, "orders-prod", source).table is MAIN
    assert reader.real_names() == {"main": "orders-prod"}


def test_the_real_name_of_the_first_table_is_not_known_before_its_first_record():
    assert origins(MAIN, SHOP).real_names() == {"shop": "shop"}


def test_a_table_has_the_real_name_that_is_set_and_else_its_own():
    reader = origins(SHOP, ARCHIVE, tables={"shop": "shop-prod"})
    assert reader.change(of("shop-prod")).table == SHOP
    assert reader.change(of("archive")).table == ARCHIVE
    assert reader.real_names() == {"shop": "shop-prod", "archive": "archive"}


def test_a_table_that_the_application_does_not_know_is_refused():
    with pytest.raises(RecordError, match=r"table 'shop', but the application knows 'shop' \(really 'shop-prod'\)"):
        origins(SHOP, tables={"shop": "shop-prod"}).change(of("shop"))


def test_the_main_table_s_real_name_may_be_set():
    reader = origins(tables={"main": "orders"})
    assert reader.change(of("orders")).table is MAIN
    with pytest.raises(RecordError, match="is of table 'users', but the application knows 'main'"):
        reader.change(of("users"))


def test_records_of_tables_without_sources_are_taken_where_a_recording_holds_them():
    reader = Origins({"shop": SHOP}, Settings(), others={"archive": ARCHIVE, "shop": SHOP})
    assert reader.change(of("archive")).table == ARCHIVE
    assert reader.real_names() == {"shop": "shop"}


def told(reader, table, source):
    raw = of(table)
    return reader.change(KinesisTwin().append(raw) if source == "kinesis" else raw)


def test_one_kinesis_stream_may_tell_of_several_tables():
    reader, kinesis = origins(SHOP, ARCHIVE, tables={"shop": "shop-prod"}), KinesisTwin()
    found = [reader.change(kinesis.append(of(name))) for name in ("shop-prod", "archive")]
    assert [each.table for each in found] == [SHOP, ARCHIVE]
    assert reader.sources == {"shop": Seen("kinesis", "shop-prod"), "archive": Seen("kinesis", "archive")}


def test_tables_may_have_different_sources():
    reader = origins(SHOP, ARCHIVE)
    assert told(reader, "shop", "kinesis").version.label == "kinesis"
    assert told(reader, "archive", "stream").version.label == LABEL
    assert reader.sources == {"shop": Seen("kinesis", "shop"), "archive": Seen("stream", "archive")}


@pytest.mark.parametrize(("first", "second"), [("kinesis", "stream"), ("stream", "kinesis")])
def test_a_table_that_is_read_through_both_sources_is_refused(first, second):
    reader = origins(SHOP)
    told(reader, "shop", first)
    with pytest.raises(RecordError, match=r"table 'shop' comes from (Kinesis|its DynamoDB stream), and others came"):
        told(reader, "shop", second)


def test_a_record_without_an_arn_is_one_of_a_dynamodb_stream():
    reader = origins()
    reader.change(without_arn())
    assert reader.sources == {"main": Seen("stream")}


def test_a_table_is_asked_for_its_id_once_and_again_with_a_new_stream():
    asked = []
    reader = Origins({"shop": SHOP}, Settings(), identify=lambda _, name, __: asked.append(name) or str(len(asked)))
    first, second = of("shop"), of("shop")
    second["eventSourceARN"] = second["eventSourceARN"].replace("2026", "2027")
    for raw, identity in ((first, "1"), (first, "1"), (second, "2")):
        reader.change(raw)
        assert reader.sources == {"shop": Seen("stream", "shop", identity)}
    told(Origins({"shop": SHOP}, Settings(), identify=lambda *given: asked.append(given)), "shop", "kinesis")
    assert asked == ["shop", "shop"]


def test_rows_that_a_recording_holds_beside_the_sources_have_no_source_kind():
    reader = Origins({"shop": SHOP}, Settings(), others={"archive": ARCHIVE})
    told(reader, "archive", "kinesis")
    assert reader.sources == {}


def test_a_table_that_kinesis_tells_of_and_nobody_knows_is_refused():
    with pytest.raises(RecordError, match="A record is of table 'users', but the application knows 'shop'"):
        told(origins(SHOP), "users", "kinesis")
