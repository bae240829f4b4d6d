"""The stream of derived rows that a state holds: its records, and the place up to which they were read."""

from collections.abc import Collection
from typing import Any

from streamfold.engines import OwnRecord
from streamfold.engines.own_records import lambda_form
from streamfold.engines.state_file import StateFile
from streamfold.records.encoded import to_json


class DerivedStream:
    """The own stream of an embedded engine. The caller opens the transaction for each write."""

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def add(self, change: dict[str, Any]) -> None:
        self._file.execute("INSERT INTO stream (record) VALUES (?)", (to_json(change),))

    def pending(self, limit: int) -> list[OwnRecord]:
        """The first records that were not processed yet."""
        rows = self._file.rows(
            "SELECT sequence, record FROM stream WHERE sequence > (SELECT sequence FROM cursor) "
            "ORDER BY sequence LIMIT ?",
            (limit,),
        )
        return [lambda_form(sequence, self._file.item(text)) for sequence, text in rows]

    def advance(self, sequence: int, done: Collection[int]) -> None:
        """Stores the place up to which records were read, and drops those that are done; ``retry`` brings the rest.

        Only records that were processed here are dropped: another process may have put records back meanwhile.
        """
        self._file.executemany("DELETE FROM stream WHERE sequence = ?", ((each,) for each in done))
        self._file.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def retry(self) -> None:
        """Makes the records that failed pending again."""
        self._file.execute("UPDATE cursor SET sequence = coalesce((SELECT min(sequence) - 1 FROM stream), sequence)")
