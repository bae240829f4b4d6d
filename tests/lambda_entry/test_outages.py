"""A store in trouble behind the Lambda entry: no invocation outlives its deadline, and no good record is given up."""

from collections import Counter
from functools import partial

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from streamfold import App, Count, Key, Max, Router, Row, Table
from streamfold.engines import DynamoEngine, MemoryEngine
from streamfold.lambda_entry.function import Function
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.settings.limits import BACKOFF_SECONDS_MAX, CALL_SECONDS_MAX, CONNECT_SECONDS_MAX, TRIES_MAX
from streamfold.testing import Clock, MappingSettings, MappingTwin, TableTwin
from tests.helpers.template import load_template, properties

ORDER = Key("ORDER#{order_id}", "METADATA")
CITY = Key("CITY#{city}", "ORDERS")
RECORDS = 100
ENDPOINT = "https://dynamodb"
CONNECT_SECONDS = TRIES_MAX * CONNECT_SECONDS_MAX + BACKOFF_SECONDS_MAX
THROTTLING = ClientError(
    {"Error": {"Code": "ProvisionedThroughputExceededException", "Message": ""}, "ResponseMetadata": {}}, "Operation"
)
TROUBLES = {
    "throttled": (BACKOFF_SECONDS_MAX, THROTTLING),
    "connect": (CONNECT_SECONDS, ConnectTimeoutError(endpoint_url=ENDPOINT)),
    "read": (CALL_SECONDS_MAX, ReadTimeoutError(endpoint_url=ENDPOINT)),
}
"""The seconds that a call takes before it fails, both tries together, and what it fails with."""


class Failing:
    """A client whose calls take their time and fail."""

    def __init__(self, shop):
        self.shop = shop

    def __getattr__(self, operation):
        def call(**_):
            seconds, error = TROUBLES.get(self.shop.trouble(), (0, THROTTLING))
            self.shop.sent += 1
            self.shop.clock.advance(seconds)
            raise error

        return call


class TroubledStore:
    """Dictionaries while there is no trouble; else the DynamoDB engine, on a client that fails. A call whose answer is
    not read took effect.
    """

    separate = by_prefix = None

    def __init__(self, shop):
        tables = shop.app.tables
        self.shop = shop
        self.memory = MemoryEngine(tables.values())
        self.dynamo = DynamoEngine(Failing(shop), {name: (table, name) for name, table in tables.items()}, "state")

    @property
    def deadline(self):
        return self.dynamo.deadline

    @deadline.setter
    def deadline(self, deadline):
        self.dynamo.deadline = deadline

    def __getattr__(self, name):
        def call(*arguments, **how):
            trouble = self.shop.trouble()
            if trouble is None:
                self.shop.sent += 1
            if trouble in (None, "read"):
                found = getattr(self.memory, name)(*arguments, **how)
            return found if trouble is None else getattr(self.dynamo, name)(*arguments, **how)

        return call


def application(called):
    router = Router()
    router.audit(ORDER)
    router.copy(ORDER, to=Table("copies"))

    @router.view(ORDER, into=CITY)
    def counted(order):
        yield Row(city=order["city"], orders=Count(), largest=Max(order["total"]))

    @router.attributes(ORDER)
    def derived(order):
        yield Row(GSI1PK=order["city"])

    @router.on(ORDER, external=True)
    def mail(change):
        called[change.item] += 1

    return App("shop", routers=[router])


@pytest.fixture(scope="module")
def settings():
    """Those of the template's mapping."""
    (event,) = properties(load_template(), "Projector")["Events"].values()
    mapping = event["Properties"]
    return MappingSettings(
        batch_size=mapping["BatchSize"],
        window_seconds=mapping["MaximumBatchingWindowInSeconds"],
        bisect=mapping["BisectBatchOnFunctionError"],
        retries_max=mapping["MaximumRetryAttempts"],
        age_seconds_max=mapping["MaximumRecordAgeInSeconds"],
        report_item_failures=mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"],
    )


class Shop:
    """Orders in a table whose stream a mapping brings to the function."""

    def __init__(self, settings, monkeypatch):
        self.called, self.clock, self.sent, self.trouble = Counter(), Clock(), 0, lambda: None
        self.app = application(self.called)
        self.store = TroubledStore(self)
        in_time = partial(Runtime, pause=self.clock.advance, clock=lambda: self.clock.now)
        monkeypatch.setattr("streamfold.lambda_entry.function.Runtime", in_time)
        self.function = Function(self.app, Settings(observe="off"), Failing(self))
        self.function.engine = self.store
        self.table = TableTwin(Table("main"), clock=self.clock)
        timeout = properties(load_template(), "Projector")["Timeout"]
        self.invocations = []
        self.mapping = MappingTwin(self.table.stream, self.invoke, settings, timeout_seconds=timeout)
        for number in range(RECORDS):
            item = {"PK": f"ORDER#{number}", "SK": "METADATA", "city": f"c{number % 10}", "total": number}
            self.store.memory.put_sources([(("main", item["PK"], item["SK"]), encode(item)["M"], "v1")])
            self.table.put(item)

    def invoke(self, event, context):
        sent = self.sent
        response = self.function(event, context)
        assert context.get_remaining_time_in_millis() > 0
        self.invocations.append((len(response["batchItemFailures"]), self.sent - sent))
        return response

    def is_whole(self):
        """Whether every order has taken effect once."""
        rows = {row["PK"]: row for row in self.rows("main")}
        cities = [rows[f"CITY#c{number}"] for number in range(10)]
        assert [city["orders"] for city in cities] == [RECORDS // 10] * 10
        assert [city["largest"] for city in cities] == list(range(RECORDS - 10, RECORDS))
        orders = self.store.memory.read_rows([("main", f"ORDER#{number}", "METADATA") for number in range(RECORDS)])
        assert all(order["GSI1PK"] == order["city"] for order in orders.values())
        assert len(self.rows("copies")) == len(self.called) == RECORDS
        return True

    def rows(self, table):
        return [decode({"M": item}) for item in self.store.memory.items(self.app.tables[table])]


@pytest.fixture
def shop(settings, monkeypatch):
    return Shop(settings, monkeypatch)


@pytest.mark.parametrize("begins", [0, 2, 6, 20, 30])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_invocation_ends_in_time_with_a_response_and_few_sends(shop, trouble, begins):
    shop.trouble = lambda: trouble if shop.sent > begins else None
    (made,) = shop.mapping.run(invocations_max=1)
    assert made.outcome in ("failure", "partial")
    ((failed, sent),) = shop.invocations
    assert failed > 0
    assert (sent - begins) / failed < 1.5
    shop.trouble = lambda: None
    shop.mapping.run()
    assert shop.is_whole()
    assert shop.mapping.discarded == []


@pytest.mark.parametrize("seconds", [60, 600])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_outage_gives_up_no_record(shop, trouble, seconds):
    over = shop.clock.now + seconds
    shop.trouble = lambda: trouble if shop.clock.now < over else None
    made = shop.mapping.run()
    assert {each.outcome for each in made} <= {"success", "partial", "failure"}
    assert shop.mapping.discarded == []
    assert shop.mapping.caught_up
    assert shop.is_whole()
