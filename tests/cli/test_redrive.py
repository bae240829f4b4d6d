"""``streamfold redrive``: what it takes, does, prints and leaves, on the embedded engine."""

import json
import sqlite3
from base64 import b64decode
from contextlib import closing

import boto3
import pytest

from streamfold.testing import KinesisTwin
from tests.helpers.failures import parked_document, queue_message, s3_object

STATE = ("--state", "state.db")
SHOP = """
from pathlib import Path

from streamfold import Add, App, Count, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
ALL = Key("ALL", "ORDERS")
CHANGES = Key("CHANGES", "TOTAL")

router = Router()


@router.view(ITEM, into=TOTAL, on_error="park")
def order_total(item):
    if item["price"] == 3 and not Path("mended").exists():
        raise LookupError("no price 3")
    yield Row(total=Sum(item["price"]), lines=Count())


@router.view(TOTAL, into=ALL)
def all_orders(order):
    yield Row(total=Sum(order["total"]), orders=Count())


@router.on(ITEM, into=CHANGES)
def changes(change):
    yield Add(changes=1)


app = App("shop", routers=[router])
"""


@pytest.fixture
def folder(folder):
    folder.app(SHOP)
    return folder


@pytest.fixture
def records(source):
    return [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in range(1, 5)]


@pytest.fixture
def parked(folder, records):
    """A state after a replay of which one record was parked, whose cause is corrected since."""
    folder.run("replay", folder.records(*records), *STATE, "--park", "parked.jsonl")
    folder.write("mended", "")
    return "parked.jsonl"


def redriven(ran):
    """What ``--json`` printed: ``{handler: outcome}`` of the last record, and the counts."""
    *lines, counts = map(json.loads, ran.out.splitlines())
    return {line["handler"]: line["outcome"] for line in lines}, counts


def everything(folder):
    """What a state holds: rows, sources and guards."""
    return [folder.run("show", *STATE, "--json", option).out for option in ("--raw", "--source", "--state-items")]


def order_rows(folder):
    return {key: row["total"]["N"] for key, row in folder.rows(*STATE).items() if "total" in row}


def test_a_replay_says_how_its_parked_records_are_redriven(folder, records):
    ran = folder.run("replay", folder.records(*records), *STATE, "--park", "parked records.jsonl")
    assert "streamfold redrive 'parked records.jsonl' --state state.db --apply    processes the parked" in ran.out
    in_memory = folder.run("replay", folder.records(*records), "--park", "parked records.jsonl")
    assert "redrive" not in in_memory.out


def test_parked_record_is_made_good_with_what_is_derived_from_its_row(folder, parked):
    ran = folder.run("redrive", parked, *STATE, "--apply")

    assert ran.code == 0, ran.err
    assert order_rows(folder)["ORDER#3 / TOTAL"] == "3"
    assert order_rows(folder)["ALL / ORDERS"] == "10"


def test_table_shows_what_became_of_each_record(folder, parked):
    ran = folder.run("redrive", parked, *STATE, "--apply")

    headings, row, _, counts = ran.out.splitlines()
    assert headings.split() == ["place", "item", "handler", "outcome", "written", "removed"]
    assert row.split("  ")[0] == "parked.jsonl:1"
    assert [word for word in row.split() if word != "/"][1:] == [
        "ORDER#3",
        "ITEM#a",
        "order_total",
        "applied",
        "1",
        "0",
    ]
    assert counts == "1 document redriven: 1 applied."


def test_nothing_is_done_without_apply(folder, parked):
    before = everything(folder)

    ran = folder.run("redrive", parked, *STATE)

    assert ran.code == 0
    assert "order_total  applied        1        0" in ran.out
    assert ran.out.endswith("Dry run of 1 document: 1 applied. Nothing was written; --apply does it.\n")
    assert everything(folder) == before


def test_second_redrive_changes_nothing(folder, parked):
    folder.run("redrive", parked, *STATE, "--apply")
    rows = folder.rows(*STATE)

    outcomes, _ = redriven(folder.run("redrive", parked, *STATE, "--apply", "--json"))

    assert outcomes == {"order_total": "stale"}
    assert folder.rows(*STATE) == rows


def test_json_prints_a_line_a_record_and_the_counts(folder, parked):
    ran = folder.run("redrive", parked, *STATE, "--json")

    line, counts = map(json.loads, ran.out.splitlines())
    assert line == {
        "place": "parked.jsonl:1",
        "outcome": "applied",
        "item": "ORDER#3 / ITEM#a",
        "sequence": line["sequence"],
        "handler": "order_total",
        "written": 1,
        "removed": 0,
        "why": None,
        "conflicts": 0,
    }
    assert counts == {"dry_run": True, "documents": 1, "outcomes": {"applied": 1}, "conflicts": {}}


def test_record_that_fails_again_is_told_and_exits_with_1(folder, parked):
    (folder.path / "mended").unlink()

    ran = folder.run("redrive", parked, *STATE, "--apply")

    assert ran.code == 1
    assert ran.err == (
        "Failed: parked.jsonl:1: handler 'order_total', item ORDER#3 / ITEM#a: LookupError: no price 3\n"
    )
    assert "1 document redriven: 1 failed." in ran.out


def test_what_is_no_document_is_told_and_the_rest_is_redriven(folder, parked):
    text = (folder.path / parked).read_text()
    folder.write(parked, f"{{}}\n{text}no json\n")

    ran = folder.run("redrive", parked, *STATE, "--apply")

    assert ran.code == 1
    assert "Bad: parked.jsonl:1: This is no failure document: expected a parked record" in ran.err
    assert "Bad: parked.jsonl:3: this is not JSON" in ran.err
    assert "3 documents redriven: 2 bad, 1 applied." in ran.out


def test_unknown_handler_of_a_parked_record_is_told_with_those_near_it(folder, parked, records):
    document = parked_document(records[2], "orders_total")

    ran = folder.run("redrive", folder.write("old.json", json.dumps(document)), *STATE)

    assert ran.code == 1
    assert "names 'orders_total', which is no handler of the application: expected order_total" in ran.err


def test_folder_and_file_are_redriven_together_each_source_once(folder, parked, records):
    (folder.path / "failures" / "aws").mkdir(parents=True)
    (folder.path / "failures" / "aws" / "object").write_bytes(s3_object(*records[:2]))

    outcomes, counts = redriven(folder.run("redrive", "failures", parked, parked, *STATE, "--apply", "--json"))

    assert counts["documents"] == 2
    assert counts["outcomes"] == {"stale": 2, "known": 2, "applied": 1}
    assert outcomes == {"order_total": "applied", "changes": "known"}


def test_object_of_records_that_the_state_never_saw_brings_their_items_with_it(folder, parked, source):
    new = source.put("ORDER#9", "ITEM#a", price=9)
    folder.write("object", s3_object(new))

    for options in ((), ("--apply",)):
        ran = folder.run("redrive", "object", *STATE, *options, "--json")
        assert redriven(ran)[1]["outcomes"] == {"applied": 2}, ran.out
    assert order_rows(folder)["ORDER#9 / TOTAL"] == "9"
    assert "ORDER#9 / ITEM#a" in folder.rows(*STATE, "--source")


def test_state_without_sources_refuses_and_says_what_was_done_before(folder, records):
    folder.run("replay", folder.records(*records[:2]), *STATE)
    with closing(sqlite3.connect(folder.path / "state.db", isolation_level=None)) as state:
        state.execute("DELETE FROM items WHERE version IS NOT NULL")
    rows = order_rows(folder)
    lines = [parked_document(records[3], "changes"), parked_document(records[0], "order_total")]
    folder.write("failures.jsonl", "\n".join(map(json.dumps, lines)))

    ran = folder.run("redrive", "failures.jsonl", *STATE, "--apply")

    assert ran.code == 2
    assert "Error: The state holds no source items of table 'main', so a missing item cannot be recognised" in ran.err
    assert "1 document redriven: 1 applied." in ran.out
    assert order_rows(folder) == rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.jsonl",), "Error: 'missing.jsonl' does not exist: expected a file or folder of documents"),
        (("parked.jsonl", "--state", "missing.db"), "Error: There is no state in missing.db: make one with"),
        (("parked.jsonl", "--app", "nothing:app"), "Error: --app 'nothing:app': there is no module 'nothing'"),
        ((), "Error: Missing argument 'SOURCE...'."),
    ],
)
def test_mistake_is_told_before_anything_runs(folder, parked, arguments, message):
    ran = folder.run("redrive", *arguments)

    assert ran.code == 2
    assert message in ran.err


def test_chain_that_fails_is_told(folder, parked):
    folder.app(SHOP.replace("orders=Count()", "orders=Sum(order['missing'])"))

    ran = folder.run("redrive", parked, *STATE, "--apply")

    assert ran.code == 1
    assert "Failed: chains: handler 'all_orders', item ORDER#3 / TOTAL: AttributeMissing: The item has" in ran.err


def test_reasons_are_printed_up_to_as_many(folder, records, parked, monkeypatch):
    monkeypatch.setattr("streamfold.cli.redrive.SHOWN_MAX", 2)

    ran = folder.run("redrive", folder.records(*records), *STATE)

    assert ran.code == 1
    assert ran.err.count("This is an event or a record, not a failure document: streamfold replay takes it.") == 2
    assert "... and 2 more; --json prints them all." in ran.out


def test_more_records_than_a_person_reads_are_counted(folder, records, parked, monkeypatch):
    monkeypatch.setattr("streamfold.cli.redrive.SHOWN_MAX", 2)
    folder.write("object", s3_object(*records))

    ran = folder.run("redrive", "object", *STATE, "--apply")

    assert ran.out.count("object:1") == 2
    assert "... and 6 more; --json prints them all." in ran.out


def test_message_is_deleted_only_after_it_was_applied(folder, parked, records, queue):
    queue.send((folder.path / parked).read_text())

    assert folder.run("redrive", queue.url, *STATE).code == 0
    assert queue.left() == 1
    (folder.path / "mended").unlink()
    assert folder.run("redrive", queue.url, *STATE, "--apply").code == 1
    assert queue.left() == 1
    folder.write("mended", "")
    assert folder.run("redrive", queue.url, *STATE, "--apply").code == 0
    assert queue.left() == 0
    assert order_rows(folder)["ORDER#3 / TOTAL"] == "3"


def test_message_whose_records_are_gone_says_so_and_stays(folder, parked, records, queue):
    queue.send(queue_message(*records[:2]))

    ran = folder.run("redrive", queue.url, *STATE, "--apply")

    assert ran.code == 1
    assert "Gone: message " in ran.err
    assert f"Records {records[0]['dynamodb']['SequenceNumber']} to " in ran.err
    assert "a stream keeps them for 24 hours." in ran.err
    assert queue.left() == 1


def test_objects_of_a_bucket_are_redriven_and_left(folder, parked, records, aws):
    client = boto3.client("s3")
    client.create_bucket(Bucket="failures")
    client.put_object(Bucket="failures", Key="parked/one.json", Body=(folder.path / parked).read_bytes())
    client.put_object(Bucket="failures", Key="aws/lambda/object", Body=s3_object(records[3]))

    ran = folder.run("redrive", "s3://failures", *STATE, "--apply", "--json")

    assert redriven(ran)[1] == {
        "dry_run": False,
        "documents": 2,
        "outcomes": {"stale": 1, "known": 1, "applied": 1},
        "conflicts": {},
    }
    assert client.list_objects_v2(Bucket="failures")["KeyCount"] == 2


def keys_in(client):
    return [each["Key"] for each in client.list_objects_v2(Bucket="failures").get("Contents", ())]


def test_objects_of_a_bucket_that_took_effect_are_cleared_and_the_others_stay(folder, parked, records, aws):
    client = boto3.client("s3")
    client.create_bucket(Bucket="failures")
    (folder.path / "mended").unlink()  # the parked record fails again
    two = s3_object(records[0]) + b"\n" + s3_object(records[1])
    bodies = {"parked/one": (folder.path / parked).read_bytes(), "lambda/one": s3_object(records[3]), "two": two}
    for key, body in {**bodies, "bad": b"{}"}.items():
        client.put_object(Bucket="failures", Key=key, Body=body)

    assert folder.run("redrive", "s3://failures", *STATE, "--apply").code == 1
    assert keys_in(client) == ["bad", "lambda/one", "parked/one", "two"]
    assert folder.run("redrive", "s3://failures", *STATE, "--apply", "--clear").code == 1
    assert keys_in(client) == ["bad", "parked/one", "two"]
    folder.write("mended", "")
    assert folder.run("redrive", "s3://failures/parked/", *STATE, "--apply", "--clear").code == 0
    assert keys_in(client) == ["bad", "two"]


def test_nothing_is_cleared_without_apply_and_no_file(folder, parked):
    ran = folder.run("redrive", parked, *STATE, "--clear")
    assert (ran.code, "--clear belongs to --apply" in ran.err) == (2, True)
    ran = folder.run("redrive", parked, *STATE, "--apply", "--clear")
    assert (ran.code, "--clear deletes objects in S3, and 'parked.jsonl' is a file" in ran.err) == (2, True)
    assert (folder.path / parked).exists()


def test_queue_that_is_missing_is_an_error(folder, parked, aws):
    ran = folder.run("redrive", "https://sqs.us-east-1.amazonaws.com/123456789012/missing", *STATE)

    assert (ran.code, ran.out) == (2, "")
    assert "sqs:ReceiveMessage is needed there." in ran.err


def test_empty_place_is_no_mistake(folder, parked, queue):
    ran = folder.run("redrive", queue.url, *STATE)

    assert ran.code == 0
    assert "Dry run of 0 documents: nothing to redrive." in ran.out


@pytest.fixture
def kinesis(aws, records):
    """The document that a queue gets of a batch of two changes that came through Kinesis."""
    client, twin = boto3.client("kinesis"), KinesisTwin("changes")
    client.create_stream(StreamName="changes", ShardCount=1)
    arn = client.describe_stream(StreamName="changes")["StreamDescription"]["StreamARN"]
    numbers = []
    for record in records[:2]:
        data = b64decode(twin.append(record)["kinesis"]["data"])
        numbers.append(client.put_record(StreamName="changes", Data=data, PartitionKey="a")["SequenceNumber"])
    names = ("streamArn", "shardId", "startSequenceNumber", "endSequenceNumber")
    batch = dict(zip(names, (arn, "shardId-000000000000", *numbers), strict=True))
    return {"requestContext": {"condition": "RetryAttemptsExhausted"}, "KinesisBatchInfo": batch}


@pytest.fixture
def begun(folder, records):
    """A state that a change came to through Kinesis."""
    folder.run("replay", folder.records(KinesisTwin("changes").append(records[3])), *STATE)
    return folder


def test_numbers_of_records_in_kinesis_are_read_there_again(begun, kinesis):
    late = begun.write("late.json", json.dumps(kinesis))

    ran = begun.run("redrive", late, *STATE, "--apply", "--json")

    assert ran.code == 0, ran.out + ran.err
    assert redriven(ran)[1]["outcomes"] == {"applied": 4}
    assert order_rows(begun)["ALL / ORDERS"] == "7"
    assert redriven(begun.run("redrive", late, *STATE, "--apply", "--json"))[1]["outcomes"] == {"stale": 2, "known": 2}


def test_records_that_kinesis_does_not_hold_any_more_are_told(begun, kinesis):
    boto3.client("kinesis").delete_stream(StreamName="changes")

    ran = begun.run("redrive", begun.write("late.json", json.dumps(kinesis)), *STATE)

    assert ran.code == 1
    assert "is no longer in stream arn:aws:kinesis:us-east-1:123456789012:stream/changes, or never was" in ran.err


USERS = """
from streamfold import App, Key, Router, Row

USER, EMAIL = Key("USER#{user}", "PROFILE"), Key("EMAIL#{email}", "USER")
router = Router()


@router.index(USER, into=EMAIL, unique=True, on_conflict="ON_CONFLICT")
def by_email(user):
    yield Row(email=user["email"], user=user["name"])


app = App("users", routers=[router])
"""


@pytest.fixture
def claimed(folder, source):
    """Two users of one mail address, of whom one has not come yet."""
    first, second = (source.put(f"USER#{name}", "PROFILE", name=name, email="x") for name in "ab")

    def deliver(on_conflict):
        folder.app(USERS.replace("ON_CONFLICT", on_conflict))
        folder.run("replay", folder.records(first), *STATE)
        return folder.write("late.json", s3_object(second))

    return deliver


def test_claim_of_a_row_that_is_claimed_is_counted_and_nothing_is_left_over(folder, claimed):
    late = claimed("report")

    ran = folder.run("redrive", late, *STATE, "--apply")

    assert ran.code == 0
    assert "Index by_email met 1 claims of rows that another item claims too." in ran.out
    assert "1 document redriven: 1 applied." in ran.out


def test_claim_that_is_to_be_parked_stays_where_it_is(folder, claimed):
    late = claimed("park")

    ran = folder.run("redrive", late, *STATE, "--apply")

    assert ran.code == 1
    assert "Conflict: late.json:1: handler 'by_email', item USER#b / PROFILE: The item claims row EMAIL#x / " in ran.err
    assert redriven(folder.run("redrive", late, *STATE, "--json")) == (
        {"by_email": "conflict"},
        {"dry_run": True, "documents": 1, "outcomes": {"conflict": 1}, "conflicts": {"by_email": 1}},
    )


CASCADE = """
from streamfold import Add, App, Key, Router

ORDER, ITEM = Key("ORDER#{order_id}", "METADATA"), Key("ORDER#{order_id}", "ITEM#{sku}")
CHANGES = Key("CHANGES", "TOTAL")
router = Router()
router.cascade(ORDER, children=[ITEM], name="items")


@router.on(ITEM, into=CHANGES)
def changes(change):
    yield Add(**{change.event.lower(): 1})


app = App("shop", routers=[router])
"""


def test_a_removal_that_was_given_up_takes_its_children_along_in_a_local_state(folder, source):
    folder.app(CASCADE)
    made = [source.put("ORDER#1", "METADATA", n=1), source.put("ORDER#1", "ITEM#a", price=1)]
    assert folder.run("replay", folder.records(*made), *STATE).code == 0
    folder.write("object", s3_object(source.remove("ORDER#1", "METADATA")))
    ran = folder.run("redrive", "object", *STATE)
    assert "applied" in ran.out
    assert len(folder.run("show", "--source", "--json", *STATE).out.splitlines()) == 2
    assert "applied" in folder.run("redrive", "object", *STATE, "--apply").out
    assert folder.run("show", "--source", "--json", *STATE).out == ""
