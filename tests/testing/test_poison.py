"""One poison record among a hundred, delivered to an application by the mapping through the entry that Lambda calls."""

import json

import pytest

from streamfold import Add, App, Count, Key, Router, Row, Sum
from streamfold.engines import EmbeddedEngine
from streamfold.lambda_entry.function import Function
from streamfold.settings import Settings
from streamfold.testing import BucketTwin, MappingSettings, MappingTwin
from tests.helpers.model import model, stored
from tests.helpers.source import Source
from tests.testing.streams import Part, Stream, sequence

LINE = Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
SALES = Key("SALES#{day}", "TOTAL")
BY_STATE = Key("STATE#{state}", "ORDER#{order_id}#LINE#{sku}")
CHANGES = Key("CHANGES", "TOTAL")

POISON = 42
RECORDS = 100
ITEMS = 20


def application(*, refuses_poison):
    """Five handlers of one item; all but the history, which computes nothing, raise on the poison."""
    router = Router()
    router.audit(LINE)

    def checked(image):
        if refuses_poison and image.get("number") == POISON:
            raise LookupError("poison")
        return image

    @router.view(LINE, into=TOTAL)
    def order_total(line):
        yield Row(total=Sum(checked(line)["number"]), lines=Count())

    @router.view(LINE, into=SALES)
    def daily_sales(line):
        yield Row(day=checked(line)["day"], units=Sum(1))

    @router.index(LINE, into=BY_STATE)
    def by_state(line):
        yield Row(state=checked(line)["state"])

    @router.on(LINE, into=CHANGES)
    def changes(change):
        checked(change.new)
        yield Add(changes=1)

    return App("shop", routers=[router])


@pytest.fixture
def stream():
    """A hundred changes of twenty items; the poison is the third change of its item, of five."""
    source = Source()
    records = [
        source.put(f"ORDER#{number % 4}", f"LINE#{number % ITEMS}", number=number, day=f"d{number % 3}", state="open")
        for number in range(RECORDS)
    ]
    return Stream([Part(records=records)])


def delivered(app, stream, destination, **settings):
    """The mapping after it has delivered everything, and the engine that it filled."""
    function = Function(app, Settings(observe="off", state_table="state"), client=object())
    function.engine = EmbeddedEngine(app.tables.values())
    twin = MappingTwin(
        stream, function, MappingSettings(report_item_failures=True, **settings), destination=destination
    )
    twin.run()
    return twin, function.engine


def expected(stream):
    """The rows of all records, but one change that was not counted."""
    rows = model(application(refuses_poison=False), stream.shards[0].records)
    rows["main", "CHANGES", "TOTAL"]["changes"] -= 1
    return rows


def test_exactly_the_poison_record_reaches_the_destination(stream):
    bucket = BucketTwin()
    twin, _ = delivered(application(refuses_poison=True), stream, bucket, bisect=True, retries_max=2)
    (document,) = bucket.documents()
    assert json.loads(document["payload"])["Records"] == [stream.shards[0].records[POISON]]
    assert (twin.metrics["OnFailureDestinationDeliveredEventCount"], twin.caught_up) == (1, True)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("batch_size", [7, RECORDS])
def test_every_other_record_is_applied_once(stream, batch_size, lanes):
    app = application(refuses_poison=True)
    _, engine = delivered(
        app, stream, None, bisect=True, retries_max=2, batch_size=batch_size, parallelization_factor=lanes
    )
    assert stored(app, engine) == expected(stream)


def test_a_lost_checkpoint_changes_nothing(stream):
    app = application(refuses_poison=True)
    twin, engine = delivered(app, stream, None, bisect=True, retries_max=1)
    twin.rewind()
    twin.run()
    assert stored(app, engine) == expected(stream)
    assert len(twin.discarded) == 2


def test_without_bisect_the_neighbours_behind_it_are_lost_too(stream):
    twin, _ = delivered(application(refuses_poison=True), stream, None, retries_max=2)
    (lost,) = twin.discarded
    assert [sequence(record) for record in lost.records] == [
        sequence(record) for record in stream.shards[0].records[POISON:]
    ]
