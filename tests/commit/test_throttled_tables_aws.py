"""A throttled table and the limit that was exceeded are named wherever a record fails of it: neither is item data."""

import pytest
from botocore.exceptions import ClientError

from streamfold import App, Count, Key, Max, Router, Row
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine, MemoryEngine
from streamfold.engines.protocol import Entries
from streamfold.errors import EngineError, EngineUnavailable, TableThrottled, public, reason, redacted, refusal
from streamfold.keys.table import MAIN
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import Claim, Reason, Refused, StateKey, exceeded, limits_of
from tests.helpers.answering import Client, error
from tests.helpers.source import Source

ARN = "arn:aws:dynamodb:us-east-1:111122223333:table/five/index/by-day"
NAMED = [{"reason": "IndexWriteKeyRangeThroughputExceeded", "resource": ARN}]
CODES = {"ThrottlingException": "throttlingReasons", "ProvisionedThroughputExceededException": "ThrottlingReasons"}
MESSAGE = "Throughput exceeds the current capacity for one or more global secondary indexes"


def throttled(code):
    refused = error(code)
    refused.response[CODES[code]] = NAMED
    return refused


def engine(*responses):
    return DynamoEngine(Client(*responses), {"main": (MAIN, "five")}, "state", pause=lambda seconds: None)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("claims", [1, 2])
def test_a_refused_write_has_the_limit_and_the_index_that_dynamodb_names(code, claims):
    writes = [Claim(StateKey("claim", str(number))) for number in range(claims)]
    refused = engine(throttled(code)).transact(writes, 0)
    assert {each.limits for each in refused.reasons} == {
        "table/five/index/by-day: IndexWriteKeyRangeThroughputExceeded"
    }


def test_a_refused_read_names_limit_and_table_or_the_table_that_was_read():
    ask = Entries("entries#shop", 1)
    with pytest.raises(TableThrottled, match="table/five/index/by-day: IndexWriteKeyRangeThroughputExceeded"):
        engine(throttled("ThrottlingException")).read_entries(ask)
    with pytest.raises(TableThrottled, match=r"\(table/state: ThrottlingError, why\)"):
        engine(error("ThrottlingException")).read_entries(ask)


def test_a_name_that_is_none_of_a_table_is_in_no_log():
    refused = error("ThrottlingException")
    refused.response["throttlingReasons"] = [{"reason": "ada@example.com", "resource": ARN}]
    (found,) = engine(refused).transact([Claim(StateKey("claim", "1"))], 0).reasons
    assert public(found.limits) == "..."


def test_writes_of_a_cancelled_transaction_are_named_by_their_tables():
    refused = Refused((Reason("ThrottlingError", None, MESSAGE), Reason("TransactionConflict"), None))
    assert limits_of(refused, ["table 'main'", "the state table", "table 'other'"]) == [
        f"table 'main': ThrottlingError, {redacted(MESSAGE)}"
    ]
    assert exceeded(Reason("ThrottlingError"), "table 'main'") == "table 'main': ThrottlingError"


ORDER = Key("ORDER#{order_id}", "META")
router = Router()
router.view(ORDER, into=Key("DAY#{day}", "ALL"), name="days")(lambda order: Row(day=order["day"], orders=Count()))
router.view(ORDER, into=Key("BEST#{day}", "ALL"), name="best")(lambda order: Row(day=order["day"], n=Max(order["n"])))
router.attributes(ORDER, name="open_orders")(lambda order: Row(GSI1PK="OPEN"))
app = App("shop", routers=[router])


class Throttled(MemoryEngine):
    """A store that refuses some writes, as DynamoDB does if their table is throttled."""

    def __init__(self, is_refused):
        super().__init__(app.tables.values())
        self.is_refused = is_refused

    def transact(self, writes, expires_at):
        reasons = [Reason("ThrottlingError", None, MESSAGE) if self.is_refused(write) else None for write in writes]
        return Refused(tuple(reasons)) if any(reasons) else super().transact(writes, expires_at)


def is_row(write):
    return not isinstance(write.key, StateKey) and write.key[1].startswith("DAY#")


@pytest.mark.parametrize(
    "is_refused",
    [is_row, lambda write: True, lambda write: type(write).__name__ == "RecomputedRow"],
    ids=["one row", "all", "a recomputed row"],
)
def test_each_failed_record_names_table_and_limit_in_the_log(is_refused):
    source, store = Source(), Throttled(is_refused)
    if is_refused is not is_row:
        store.is_refused = lambda write: False
        process_event(
            Runtime(app, store, Settings(), pause=lambda _: None), [source.put("ORDER#1", "META", day="1", n=1)]
        )
        store.is_refused = is_refused
    records = [source.put(f"ORDER#{number}", "META", day="1", n=number) for number in (2, 3)]
    failures = process_event(Runtime(app, store, Settings(), pause=lambda _: None), records).failures
    assert {failure.sequence for failure in failures}
    for failure in failures:
        assert isinstance(failure.error, EngineUnavailable)
        assert "ThrottlingError" in failure.reason
        assert (MESSAGE in str(failure.error), MESSAGE in failure.reason) == (True, False)
        assert "table 'main'" in failure.reason or "the state table" in failure.reason


# Credentials and clocks.


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("ExpiredTokenException", "The security token included in the request is expired", "credentials have expired"),
        ("ExpiredToken", "The provided token has expired.", "credentials have expired"),
        ("InvalidSignatureException", "Signature expired: 20261128T100000Z is now earlier than", "clock"),
        ("InvalidSignatureException", "Signature not yet current: 20261128T110000Z is still later than", "clock"),
        ("RequestTimeTooSkewed", "The difference between the request time and the current time is too large.", "clock"),
        ("InvalidSignatureException", "The request signature we calculated does not match", "does not know"),
        ("UnrecognizedClientException", "The security token included in the request is invalid.", "does not know"),
    ],
)
def test_expired_credentials_and_a_wrong_clock_are_named_with_what_to_do(code, message, expected):
    refused = ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}, "GetItem")
    assert (code in refusal(refused), expected in public(refusal(refused))) == (True, True)
    with pytest.raises(EngineError) as raised:
        engine(refused).transact([Claim(StateKey("claim", "1"))], 0)
    assert expected in public(reason(raised.value))


def test_another_refusal_stays_as_it_is():
    assert public(refusal(error("ValidationException"))) == "ValidationException: ..."
