"""The stream of derived rows that a state holds: its records, and the place up to which they were read."""

import json
import sqlite3
from collections.abc import Collection
from typing import Any

from streamfold.engines import OwnRecord, StoredItem
from streamfold.values import same, to_json

STREAM_LABEL = "embedded"


class DerivedStream:
    """The own stream of an embedded engine. What writes belongs into a transaction of the connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, table: str, key: StoredItem, before: StoredItem | None, after: StoredItem | None) -> None:
        """Adds the record of a write, unless it changed nothing."""
        if before == after or (before and after and same({"M": before}, {"M": after})):
            return
        event = "REMOVE" if after is None else "MODIFY" if before else "INSERT"
        images = {name: image for name, image in (("OldImage", before), ("NewImage", after)) if image is not None}
        record = {"table": table, "eventName": event, "Keys": key, **images}
        self._connection.execute("INSERT INTO stream (record) VALUES (?)", (to_json(record),))

    def pending(self, limit: int) -> list[OwnRecord]:
        """The first records that nobody has processed."""
        rows = self._connection.execute(
            "SELECT sequence, record FROM stream WHERE sequence > (SELECT sequence FROM cursor) "
            "ORDER BY sequence LIMIT ?",
            (limit,),
        )
        return [OwnRecord(sequence, _lambda_form(sequence, text)) for sequence, text in rows]

    def advance(self, sequence: int, done: Collection[int]) -> None:
        """Stores the place up to which records were read, and drops what is done; the rest is for ``retry``.

        Only what was processed here is dropped: another process may have put records back in the meantime.
        """
        self._connection.executemany("DELETE FROM stream WHERE sequence = ?", ((each,) for each in done))
        self._connection.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def retry(self) -> None:
        """Makes the records that failed pending again."""
        self._connection.execute(
            "UPDATE cursor SET sequence = coalesce((SELECT min(sequence) - 1 FROM stream), sequence)"
        )


def _lambda_form(sequence: int, text: str) -> dict[str, Any]:
    record = json.loads(text)
    table = record.pop("table")
    event = record.pop("eventName")
    body = {
        **record,
        "SequenceNumber": str(sequence),
        "StreamViewType": "NEW_AND_OLD_IMAGES",
        "ApproximateCreationDateTime": 0,
    }
    return {
        "eventID": f"{STREAM_LABEL}-{sequence}",
        "eventName": event,
        "eventSource": "aws:dynamodb",
        "eventSourceARN": f"arn:aws:dynamodb:local:000000000000:table/{table}/stream/{STREAM_LABEL}",
        "dynamodb": body,
    }
