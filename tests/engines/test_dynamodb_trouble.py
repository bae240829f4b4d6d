"""What the DynamoDB engine makes of trouble: throttling, work left unprocessed, cancelled calls, nobody there."""

import socket
from contextlib import suppress

import pytest
from botocore.exceptions import ConnectTimeoutError, NoCredentialsError, ReadTimeoutError

from streamfold import Table
from streamfold.engines import DynamoEngine, dynamodb_client
from streamfold.engines.deadline import TRIES_MAX, Deadline
from streamfold.engines.dynamodb_client import NAMED, USER_AGENT, make_client
from streamfold.engines.protocol import Entries
from streamfold.engines.requests import STATEMENT_BYTES_MAX
from streamfold.errors import EngineError, EngineUnavailable, is_fatal, public, reason
from streamfold.writes.guarded import VALIDATION, AddRow, Claim, PutRow, Reason, Refused, StateKey
from tests.helpers.answering import BUSY_CODES, Client, error, statement, statements

SHOP = Table("shop", sort=None)
TABLES = {"shop": (SHOP, "real-shop")}
UNREAD = {"Responses": {}, "UnprocessedKeys": {"state": {"Keys": [{"pk": {"S": "claim"}, "sk": {"S": "2"}}]}}}
KEYS = [StateKey("claim", "1"), StateKey("claim", "2")]
CLAIMS = [Claim(key) for key in KEYS]
ROWS = [PutRow(("shop", str(number), None), {"a": number}) for number in range(3)]
PLACES = [row.key for row in ROWS]


def engine(*responses):
    return DynamoEngine(Client(*responses), TABLES, "state", pause=lambda seconds: None)


# Transactions


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("ProvisionedThroughputExceededException", "ProvisionedThroughputExceeded"),
        ("ThrottlingException", "ThrottlingError"),
        ("RequestLimitExceeded", "ThrottlingError"),
        ("TransactionConflictException", "TransactionConflict"),
        ("TransactionInProgressException", "TransactionConflict"),
        ("ReplicatedWriteConflictException", "TransactionConflict"),
        ("ValidationException", "ValidationException"),
        ("IdempotentParameterMismatchException", "IdempotentParameterMismatchException"),
    ],
)
@pytest.mark.parametrize("writes", [CLAIMS, CLAIMS[:1]], ids=["transaction", "one write"])
def test_call_that_is_refused_as_a_whole_refuses_each_write(writes, code, meaning):
    assert engine(error(code)).transact(writes, 0) == Refused((Reason(meaning, None, "why"),) * len(writes))


def test_cancelled_transaction_gives_each_write_its_reason():
    reasons = [
        {"Code": "None"},
        {"Code": "ConditionalCheckFailed", "Message": "no", "Item": {"pk": {"S": "a"}}},
        {"Code": "TransactionConflict", "Message": None},
    ]
    refused = engine(error("TransactionCanceledException", CancellationReasons=reasons)).transact(CLAIMS, 0)
    assert refused.reasons == (
        None,
        Reason("ConditionalCheckFailed", {"pk": "a"}, "no"),
        Reason("TransactionConflict", None, ""),
    )


@pytest.mark.parametrize("more", [{}, {"CancellationReasons": [{"Code": "None"}, {"Code": "None"}]}])
def test_cancelled_transaction_without_a_reason_has_an_unknown_outcome(more):
    with pytest.raises(EngineUnavailable, match="without a reason"):
        engine(error("TransactionCanceledException", **more)).transact(CLAIMS, 0)


@pytest.mark.parametrize(
    "trouble",
    [
        error("InternalServerError", 500),
        error("ServiceUnavailable", 503),
        ReadTimeoutError(endpoint_url="http://127.0.0.1"),
    ],
)
@pytest.mark.parametrize("writes", [CLAIMS, CLAIMS[:1]], ids=["transaction", "one write"])
def test_failure_inside_the_service_has_an_unknown_outcome(writes, trouble):
    with pytest.raises(EngineUnavailable):
        engine(trouble).transact(writes, 0)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ([{}, error("ResourceNotFoundException")], "A table is missing: state does not exist in this account"),
        ([error("ResourceNotFoundException")], "Tables are missing: real-shop, state do not exist in this account"),
        ([error("AccessDeniedException")], "A table is missing: one of real-shop, state does not exist in this"),
        ([NoCredentialsError()], "A table is missing: one of real-shop, state does not exist in this account"),
        ([{}], "A table is missing: one of real-shop, state does not exist in this account and region. Create"),
    ],
)
def test_a_table_that_is_missing_is_named_where_it_can_be_told(described, message):
    with pytest.raises(EngineError, match=message):
        engine(error("ResourceNotFoundException"), *described).transact(CLAIMS, 0)


def test_call_that_is_not_allowed_stops_the_run():
    with pytest.raises(EngineError, match="refused the call with AccessDeniedException: why") as raised:
        engine(error("AccessDeniedException")).transact(CLAIMS, 0)
    assert not isinstance(raised.value, EngineUnavailable)


def test_number_that_cannot_be_stored_refuses_its_write_before_anything_is_sent():
    store = engine()
    refused = store.transact([CLAIMS[0], AddRow(PLACES[0], {"total": int("9" * 39)}, 1)], 0)
    assert [reason and reason.code for reason in refused.reasons] == [None, VALIDATION]
    assert "38 digits" in refused.reasons[1].message
    assert store.client.calls == []


# Rows in batches


def sent(call):
    return [parameters["Parameters"][0]["S"] for parameters in call.Statements]


def test_rows_are_inserted_by_twenty_five_and_the_first_of_each_key():
    rows = [PutRow(("shop", str(number), None), {"a": number}) for number in range(30)]
    store = engine(statements(*[None] * 25), statements(*[None] * 5))
    assert store.insert_rows([*rows, PutRow(("shop", "7", None), {"a": "last"})]).missing == []
    assert [len(call.Statements) for call in store.client.calls] == [25, 5]
    assert store.client.calls[0].Statements[7] == {
        "Statement": "INSERT INTO \"real-shop\" VALUE {'PK': ?, 'a': ?}",
        "Parameters": [{"S": "7"}, {"N": "7"}],
    }


@pytest.mark.parametrize(("name", "calls"), [("n", ["statements"]), ("é", ["put_item"])])
def test_a_statement_is_never_longer_than_dynamodb_takes(name, calls):
    empty = len("""INSERT INTO "real-shop" VALUE {'PK': ?, '': ?}""")
    store = engine(statements(None) if calls == ["statements"] else {})
    row = PutRow(("shop", "1", None), {name * (STATEMENT_BYTES_MAX - empty): 1})
    assert store.insert_rows([row]).missing == []
    assert ["statements" if "Statements" in vars(call) else "put_item" for call in store.client.calls] == calls


def test_notes_of_very_many_handlers_are_cleared_by_a_request_of_their_own():
    store = engine(statements(None))
    notes = {f"{'h' * 61}{number:03}": "[]" for number in range(55)}
    store.clear_pending({KEYS[0]: notes, KEYS[1]: {"total": "[]"}})
    assert [call.operation for call in store.client.calls] == ["batch_execute_statement", "update_item"]
    assert len(store.client.calls[1].ExpressionAttributeNames) == len(notes)


def test_names_in_statements_are_quoted():
    table = Table("odd", partition='a "key"', sort=None)
    store = DynamoEngine(Client(statements(None)), {"odd": (table, "real-odd")}, "state")
    store.insert_rows([PutRow(("odd", "1", None), {"it's": 1})])
    store.remove_empty([("odd", "1", None)])
    insertion, removal = (call.Statements[0]["Statement"] for call in store.client.calls)
    assert insertion == """INSERT INTO "real-odd" VALUE {'a "key"': ?, 'it''s': ?}"""
    assert removal == 'DELETE FROM "real-odd" WHERE "a ""key""" = ? AND "_sf_n" = ? RETURNING ALL OLD *'


def test_row_that_is_there_is_no_failure():
    assert engine(statements(None, "DuplicateItem", None)).insert_rows(ROWS).missing == []


@pytest.mark.parametrize("code", BUSY_CODES)
def test_busy_row_is_inserted_again(code):
    store = engine(statements(None, code, None), statements(None))
    assert store.insert_rows(ROWS).missing == []
    assert [sent(call) for call in store.client.calls] == [["0", "1", "2"], ["1"]]


def test_row_that_is_busy_to_the_end_is_named():
    store = engine(statements(None, None, "ThrottlingError"), statements("ThrottlingError"))
    assert store.insert_rows(ROWS).missing == [PLACES[2]]
    assert len(store.client.calls) == TRIES_MAX


@pytest.mark.parametrize("code", ["ValidationError", "ItemCollectionSizeLimitExceeded"])
def test_row_that_is_refused_for_good_is_named_and_not_tried_again(code):
    store = engine(statements(None, code, None))
    assert store.insert_rows(ROWS).missing == [PLACES[1]]
    assert len(store.client.calls) == 1


def test_row_that_cannot_be_stored_is_named_and_not_sent():
    store = engine(statements(None))
    assert store.insert_rows([PutRow(PLACES[0], {"a": int("9" * 39)}), ROWS[1]]).missing == [PLACES[0]]
    assert [sent(call) for call in store.client.calls] == [["1"]]


def test_throttled_batch_is_sent_again():
    store = engine(error("ProvisionedThroughputExceededException"), statements(None, None, None))
    assert store.insert_rows(ROWS).missing == []
    assert len(store.client.calls) == 2


def test_batch_that_is_throttled_to_the_end_names_all_its_rows_and_what_follows_is_tried_once():
    rows = [PutRow(("shop", str(number), None), {}) for number in range(60)]
    store = engine(error("ThrottlingException"))
    assert store.insert_rows(rows).missing == [row.key for row in rows]
    assert len(store.client.calls) == TRIES_MAX + 2


def test_batch_that_is_refused_for_good_is_inserted_row_by_row():
    refusal = error("ValidationException")
    store = engine(refusal, statements(None), refusal, statements("DuplicateItem"))
    assert store.insert_rows(ROWS).missing == [PLACES[1]]
    assert [sent(call) for call in store.client.calls] == [["0", "1", "2"], ["0"], ["1"], ["2"]]


def test_rows_of_a_batch_without_an_answer_are_named_beside_those_that_are_not_sent():
    rows = [PutRow(("shop", str(number), None), {}) for number in range(75)]
    store = engine(statements(*[None] * 25), ConnectTimeoutError(endpoint_url="https://dynamodb"))
    assert store.insert_rows(rows).missing == [row.key for row in rows[25:]]
    assert len(store.client.calls) == 2


@pytest.mark.parametrize("answer", [statements("AccessDenied"), error("AccessDeniedException")])
def test_insertion_that_is_not_allowed_is_not_passed_over(answer):
    with pytest.raises(EngineError, match=r"AccessDenied(Exception)?: why") as raised:
        engine(answer).insert_rows(ROWS[:1])
    assert not isinstance(raised.value, EngineUnavailable)


# Entries


def test_entries_are_read_on_where_a_page_ended_until_there_are_as_many_as_are_asked_for():
    def page(*places, last=None):
        items = [{"sk": {"S": place}, "s": {"S": "1"}} for place in places]
        return {"Items": items, **({"LastEvaluatedKey": {"sk": {"S": last}}} if last else {})}

    store = engine(page("a", "b", last="b"), page(last="c"), page("d", last="d"))
    assert [place for place, _ in store.read_entries(Entries("entries", 3))] == ["a", "b", "d"]
    assert [call.Limit for call in store.client.calls] == [3, 1, 1]
    assert [getattr(call, "ExclusiveStartKey", None) for call in store.client.calls] == [
        None,
        {"sk": {"S": "b"}},
        {"sk": {"S": "c"}},
    ]


# Pauses, and the time that is left


def test_pauses_grow_have_full_jitter_and_come_only_before_another_try(monkeypatch):
    monkeypatch.setattr("random.random", lambda: 0.5)
    store = engine(statements("ThrottlingError"))
    store.deadline.pause = (pauses := []).append
    store.insert_rows(ROWS[:1])
    assert pauses == [0.025 * 2**number for number in range(TRIES_MAX - 1)]


def timed(seconds, *responses):
    """An engine in a world where only pauses take time, and so many seconds are left to begin a call in."""
    store = engine(*responses)
    left = [seconds]

    def pause(seconds):
        left[0] -= seconds

    store.deadline = Deadline(pause=pause, seconds_left=lambda: left[0])
    return store, left


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        (statements("ThrottlingError"), lambda store: store.insert_rows(ROWS[:1]).missing),
        (statements("ThrottlingError"), lambda store: store.remove_empty(PLACES[:1])),
        (UNREAD, lambda store: store.read_state(KEYS)),
    ],
)
def test_no_pause_is_longer_than_the_time_that_is_left(monkeypatch, answer, call):
    monkeypatch.setattr("random.random", lambda: 0.99)
    store, left = timed(0.5, answer)
    with suppress(EngineUnavailable):
        assert call(store) == PLACES[:1]
    assert left[0] > 0
    assert len(store.client.calls) == 4


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.transact(CLAIMS, 0),
        lambda store: store.transact(CLAIMS[:1], 0),
        lambda store: store.insert_rows(ROWS),
        lambda store: store.remove_empty(PLACES),
        lambda store: store.read_state(KEYS),
        lambda store: store.read_together(KEYS),
        lambda store: store.read_rows(PLACES),
        lambda store: store.read_entries(Entries("entries", 1)),
        lambda store: store.read_source(PLACES[0]),
        lambda store: store.page(SHOP, "1", "", None, 1),
    ],
)
def test_no_call_is_begun_when_the_time_is_over(call):
    store, _ = timed(0, {})
    with pytest.raises(EngineUnavailable, match="time is nearly over"):
        call(store)
    assert store.client.calls == []


def test_what_was_done_is_noted_when_the_time_is_over():
    store, _ = timed(0, {})
    assert store.swap_state(KEYS[0], {}, 0)


# State items


def test_keys_left_unprocessed_are_read_again():
    found = {"Responses": {"state": [{"pk": {"S": "claim"}, "sk": {"S": "1"}, "ttl": {"N": "5"}}]}}
    left = {"state": {"Keys": [{"pk": {"S": "claim"}, "sk": {"S": "2"}}]}}
    store = engine({**found, "UnprocessedKeys": left}, {"Responses": {}, "UnprocessedKeys": {}})
    assert store.read_state(KEYS) == {KEYS[0]: {"ttl": 5}}
    assert store.client.calls[1].RequestItems == left


def test_keys_left_unprocessed_to_the_end_are_no_empty_answer():
    with pytest.raises(EngineUnavailable, match="Table state is throttled: 1 items could not be read"):
        engine(UNREAD).read_state(KEYS)


@pytest.mark.parametrize("consistent", [True, False])
def test_reads_are_consistent_where_that_is_asked_for(consistent):
    store = engine({"Responses": {}})
    store.read_state(KEYS, consistent=consistent)
    assert store.client.calls[0].RequestItems["state"]["ConsistentRead"] is consistent


def strongly(*given):
    """An engine of a table with sort keys, and whether its first call asks for what is newest."""
    store = DynamoEngine(Client(*given), {"main": (Table("main"), "real-main")}, "state", pause=lambda seconds: None)
    return store, lambda: vars(store.client.calls[0]).get("ConsistentRead")


def test_pages_of_a_partition_are_read_strongly():
    store, is_strong = strongly({"Items": []})
    store.page(Table("main"), "ORDER#1", "LINE#", None, 10)
    assert is_strong()


def test_a_source_item_is_read_strongly():
    store, is_strong = strongly({})
    store.read_source(("main", "ORDER#1", "META"))
    assert is_strong()


def test_source_items_are_read_strongly_together():
    store, _ = strongly({"Responses": {}})
    store.read_sources([("main", "ORDER#1", "META"), ("main", "ORDER#2", "META")])
    assert store.client.calls[0].RequestItems["real-main"]["ConsistentRead"]


def test_throttled_read_has_an_unknown_outcome():
    with pytest.raises(EngineUnavailable):
        engine(error("ThrottlingException")).read_state(KEYS)


def test_throttled_swap_has_an_unknown_outcome():
    with pytest.raises(EngineUnavailable):
        engine(error("ThrottlingException")).swap_state(KEYS[0], {}, 0)


# State items as of one moment


def cancelled(*codes):
    return error("TransactionCanceledException", CancellationReasons=[{"Code": code} for code in codes])


TOGETHER = {"Responses": [{}, {"Item": {"pk": {"S": "claim"}, "sk": {"S": "2"}, "s": {"S": "text"}, "r": {"N": "3"}}}]}


@pytest.mark.parametrize(
    "refused",
    [
        cancelled("None", "TransactionConflict"),
        cancelled("ThrottlingError", "None"),
        error("TransactionConflictException"),
        error("ThrottlingException"),
    ],
)
def test_items_of_a_transaction_that_is_under_way_are_asked_for_again(refused):
    store = engine(*[refused] * (TRIES_MAX - 1), TOGETHER)
    assert store.read_together(KEYS) == {KEYS[1]: {"s": "text", "r": 3}}
    gets = [{"Get": {"TableName": "state", "Key": {"pk": {"S": "claim"}, "sk": {"S": sort}}}} for sort in "12"]
    assert [call.TransactItems for call in store.client.calls] == [gets] * TRIES_MAX


@pytest.mark.parametrize("refused", [cancelled("None", "TransactionConflict"), error("ThrottlingException")])
def test_items_that_cannot_be_read_together_are_not_taken_for_missing(refused):
    store = engine(refused)
    with pytest.raises(EngineUnavailable, match="could not be read together: T"):
        store.read_together(KEYS)
    assert len(store.client.calls) == TRIES_MAX


def test_items_that_are_too_large_for_one_answer_are_read_in_halves():
    one, other = {"Responses": [{}]}, {"Responses": TOGETHER["Responses"][1:]}
    store = engine(cancelled("ValidationError", "None"), one, other)
    assert store.read_together(KEYS) == {KEYS[1]: {"s": "text", "r": 3}}
    assert [len(call.TransactItems) for call in store.client.calls] == [2, 1, 1]


def test_a_read_together_that_no_retry_can_help_is_made_once():
    store = engine(error("ValidationException"))
    with pytest.raises(EngineError, match="could not be read together: ValidationException") as raised:
        store.read_together(KEYS[:1])
    assert (len(store.client.calls), isinstance(raised.value, EngineUnavailable)) == (1, False)


# Removal of empty rows


def test_removal_deletes_on_condition_and_asks_for_what_was_there():
    store = engine({"Responses": [{"TableName": "real-shop"}]})
    assert store.remove_empty(PLACES[:1]) == []  # nothing was
    (sent,) = store.client.calls[0].Statements
    assert sent == {
        "Statement": 'DELETE FROM "real-shop" WHERE "PK" = ? AND "_sf_n" = ? RETURNING ALL OLD *',
        "Parameters": [{"S": "0"}, {"N": "0"}],
    }


@pytest.mark.parametrize("code", BUSY_CODES)
def test_removal_that_meets_a_busy_row_is_tried_again_for_that_row(code):
    first = {"Responses": [statement(item=True), statement(code), statement("ConditionalCheckFailed")]}
    store = engine(first, {"Responses": [statement(item=True)]})
    assert store.remove_empty(PLACES) == PLACES[:2]
    assert [parameters["Parameters"][0] for parameters in store.client.calls[1].Statements] == [{"S": "1"}]


def test_removal_that_meets_a_busy_row_to_the_end_has_an_unknown_outcome():
    store = engine({"Responses": [statement("TransactionConflict")]})
    with pytest.raises(EngineUnavailable, match="1 of 1 empty rows could not be removed"):
        store.remove_empty(PLACES[:1])
    assert len(store.client.calls) == TRIES_MAX


def test_removal_that_is_not_allowed_is_not_passed_over():
    with pytest.raises(EngineError, match="AccessDenied: why"):
        engine({"Responses": [statement("AccessDenied")]}).remove_empty(PLACES[:1])


# Nobody there


def test_missing_credentials_are_an_error_with_the_remedy(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    store = DynamoEngine(make_client(), TABLES, "state")
    with pytest.raises(EngineError) as raised:
        store.transact(CLAIMS, 0)
    assert not isinstance(raised.value, EngineUnavailable)
    assert str(raised.value) == (
        "No AWS credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
    )


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]  # bound, but nobody subscriptions


@pytest.fixture
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.transact(CLAIMS, 0),
        lambda store: store.insert_rows(ROWS),
        lambda store: store.remove_empty(PLACES),
        lambda store: store.read_state(KEYS),
        lambda store: store.swap_state(KEYS[0], {}, 0),
        lambda store: list(store.items(SHOP)),
    ],
)
def test_endpoint_where_nobody_answers_is_an_error_that_names_it(monkeypatch, credentials, closed_port, call):
    monkeypatch.setattr(dynamodb_client, "TRIES_MAX", 1)
    url = f"http://127.0.0.1:{closed_port}"
    store = DynamoEngine(make_client(url), TABLES, "state")
    with pytest.raises(EngineError) as raised:
        call(store)
    assert isinstance(raised.value, EngineUnavailable)  # in a batch, that of the other records is told
    assert str(raised.value) == (
        f'No server answers at the DynamoDB endpoint (Could not connect to the endpoint URL: "{url}/"). '
        "Check --endpoint-url and the region."
    )


def send(request, **_):
    raise RuntimeError(request.headers["User-Agent"])


@pytest.mark.parametrize(("named", "begins"), [(None, f"{USER_AGENT} Botocore/"), ("shop", "Boto3/")])
def test_requests_say_who_sends_them(monkeypatch, credentials, named, begins):
    monkeypatch.delenv(NAMED, raising=False)
    if named:
        monkeypatch.setenv(NAMED, named)
    client = make_client()
    client.meta.events.register("before-send.dynamodb", send)
    with pytest.raises(RuntimeError) as raised:
        client.list_tables()
    said = raised.value.args[0].decode()
    assert said.startswith(begins)
    assert ("app/shop" in said.split()) == bool(named)


def test_endpoint_that_is_no_address_is_an_error(credentials):
    with pytest.raises(EngineError, match="The DynamoDB client cannot be made: Invalid endpoint: nowhere"):
        make_client("nowhere")


def test_missing_region_is_an_error_with_the_remedy(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(EngineError, match="No AWS region is set: set AWS_DEFAULT_REGION"):
        make_client()


def test_a_table_of_strong_consistency_across_regions_stops_the_batch_and_is_named():
    message = (
        "Transactional operations are not supported on a table that is a part of a global table with multi-Region "
        "strong consistency"
    )
    refused = error("ValidationException")
    refused.response["Error"]["Message"] = message
    expected = r"one of real-shop, state: the table has strong consistency across regions \(MRSC\)"
    with pytest.raises(EngineError, match=expected) as raised:
        engine(refused).transact(CLAIMS, 0)
    assert is_fatal(raised.value)
    assert "docs sources" in public(reason(raised.value))
