"""The failed records of one item among documents that wait to be redriven: who failed on which record, and in which
invocation. Nothing is written, and nothing is acknowledged.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from streamfold.batch.visits import item_of_record
from streamfold.engines.own_stream import STREAM_LABEL
from streamfold.errors import RecordError
from streamfold.failures.failed_records import Delivered, FailureDocument, StreamRange, Waiting, left_of
from streamfold.parking import Parked
from streamfold.records.change import ItemKey
from streamfold.records.envelope import Origins, RawRecord, number_of
from streamfold.routes.application import Application
from streamfold.settings import Settings

IsOfItem = Callable[[RawRecord], bool]
"""Whether a record of a stream, or of a visit, is of the item. Raises ``RecordError`` for one that it cannot place."""


def is_of_item(app: Application, settings: Settings, item: ItemKey) -> IsOfItem:
    origins = Origins(app.source_tables, settings, others=app.tables)
    # Records of a local state's own stream name tables by their logical names.
    local = Origins(app.tables, settings._replace(tables={name: name for name in app.tables}))

    def is_of(record: RawRecord) -> bool:
        visited = item_of_record(record, app.tables)
        if visited is not None:
            return visited == item
        is_local = str(record.get("eventSourceARN")).endswith(f"/stream/{STREAM_LABEL}")
        return (local if is_local else origins).change(record).item == item

    return is_of


class WaitingRecord(NamedTuple):
    """A record of the item that waits: a parked one, or one of a batch that Lambda gave up."""

    location: str  # of its document
    handler: str | None  # None: the batch failed, and its log lines name the handler
    sequence: str | None  # None: an item that was visited, which has no record of its own
    request_id: str | None  # of the invocation that failed last; None: outside of Lambda, or of an earlier release
    why: str  # the error, or Lambda's reason to give the batch up
    attempts: int | None
    at: str  # ISO text


class WaitingOfItem(NamedTuple):
    """What the documents hold of an item."""

    records: list[WaitingRecord]
    ranges: int  # documents with sequence numbers only: redrive reads their records from the stream
    unread: list[str]  # documents that cannot be read, each with the reason


def waiting_of_item(documents: Iterable[Waiting], is_of_item: IsOfItem) -> WaitingOfItem:
    """The records of an item. Raises ``LocationError`` if a location cannot be read."""
    found = WaitingOfItem([], 0, [])
    for each in documents:
        try:
            of_document = _of_document(each, is_of_item)
        except RecordError as error:
            found.unread.append(f"{each.location}: {error}")
            continue
        found.records.extend(of_document or ())
        found = found._replace(ranges=found.ranges + (of_document is None))
    return found


def _of_document(waiting: Waiting, is_of_item: IsOfItem) -> list[WaitingRecord] | None:
    """None: the document holds sequence numbers only."""
    if waiting.document is None:
        raise RecordError(waiting.why)
    contents = left_of(waiting.document)
    if isinstance(contents, StreamRange):
        return None
    if isinstance(contents, Delivered):
        return [*_of_batch(waiting.location, waiting.document, contents, is_of_item)]
    return [_of_parked(waiting.location, contents)] if is_of_item(contents.record) else []


def _of_parked(location: str, parked: Parked) -> WaitingRecord:
    why = f"{parked.error_type}: {parked.error}"
    number = number_of(parked.record)
    return WaitingRecord(location, parked.handler, number, parked.request_id, why, parked.attempts, parked.at)


def _of_batch(
    location: str, document: FailureDocument, batch: Delivered, is_of_item: IsOfItem
) -> Iterator[WaitingRecord]:
    context = document.get("requestContext")
    given = context if isinstance(context, dict) else {}
    request_id, condition, count = (given.get(name) for name in ("requestId", "condition", "approximateInvokeCount"))
    for record in batch.records:
        if is_of_item(record):
            yield WaitingRecord(
                location,
                None,
                number_of(record),
                request_id if isinstance(request_id, str) else None,
                f"given up by Lambda: {condition}" if isinstance(condition, str) else "given up by Lambda",
                count if isinstance(count, int) else None,
                str(document.get("timestamp", "")),
            )
