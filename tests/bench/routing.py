"""CPU of routing with lazy images, two attributes read of each, against Powertools' BatchProcessor doing the same."""

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType
from aws_lambda_powertools.utilities.data_classes.dynamo_db_stream_event import DynamoDBRecord

from streamfold import Count, Item, Key, Router, Row
from streamfold.keys.table import MAIN
from streamfold.records.envelope import Origins
from streamfold.routes.application import Dispatch, entries_of
from streamfold.routes.checks import checked_routes
from streamfold.settings import Settings
from tests.bench.shop import records

ROUNDS = 21
RECORDS = 2_000


def dispatch_of(routes: int) -> Dispatch:
    """A dispatch of that many routes of different prefixes, order items among them."""
    router = Router()

    def lines(item: Item) -> Iterator[Row]:
        yield Row(lines=Count())

    for number in range(routes):
        prefix = "ORDER" if number == 0 else f"KIND{number}"
        target = Key(f"TOTAL{number}#{{order_id}}", "TOTAL")
        router.view(Key(f"{prefix}#{{order_id}}", "ITEM#{sku}"), into=target, name=f"lines{number}")(lines)
    return Dispatch(entries_of(checked_routes(router.routes), MAIN.name), MAIN.delimiter)


def run(*, large: bool) -> Iterator[str]:
    del large
    raw = list(records(RECORDS, 500))
    for routes in (1, 10, 100):
        dispatch = dispatch_of(routes)
        # one after the other, so that both meet the same machine
        pairs = [(_seconds(_with_dispatch, raw, dispatch), _seconds(_with_powertools, raw)) for _ in range(ROUNDS)]
        ours, ratio = min(seconds for seconds, _ in pairs), median(seconds / other for seconds, other in pairs)
        yield (
            f"{routes} routes: {ours / RECORDS * 1e6:.1f} us a record (goal: at most 5), {ratio:.2f} of "
            "Powertools' BatchProcessor (goal: at most 0.33)"
        )


def _seconds(function: Any, *arguments: Any) -> float:
    begin = time.process_time()
    function(*arguments)
    return time.process_time() - begin


def _with_dispatch(raw: list[dict[str, Any]], dispatch: Dispatch) -> None:
    origins = Origins({MAIN.name: MAIN}, Settings())
    for record in raw:
        change = origins.change(record)
        for _entry, _fields in dispatch.find(*change.item[1:]):
            for image in (change.old, change.new):
                image.get("price"), image.get("quantity")


def _with_powertools(raw: list[dict[str, Any]]) -> None:
    def handle(record: DynamoDBRecord) -> None:
        assert record.dynamodb is not None
        keys = record.dynamodb.keys or {}
        if keys["PK"].startswith("ORDER#") and keys["SK"].startswith("ITEM#"):
            for image in (record.dynamodb.old_image or {}, record.dynamodb.new_image or {}):
                image.get("price"), image.get("quantity")

    processor = BatchProcessor(event_type=EventType.DynamoDBStreams)
    with processor(raw, handle):
        processor.process()
