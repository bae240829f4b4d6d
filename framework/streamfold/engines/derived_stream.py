"""The stream of derived rows that a state holds: its records, and the place up to which they were read."""

from collections.abc import Collection
from itertools import islice
from typing import Any

from streamfold.engines import OwnRecord
from streamfold.engines.own_records import lambda_form
from streamfold.engines.state_file import StateFile
from streamfold.records.encoded import to_json

BEHIND = "SELECT sequence, record FROM stream WHERE sequence > ? ORDER BY sequence LIMIT ?"


class DerivedStream:
    """The own stream of an embedded engine. The caller opens the transaction for each write.

    What is added is written with ``write_out``, but for records that were done with before.
    """

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._added: dict[int, dict[str, Any]] = {}  # by sequence number, in order
        self._position: int | None = None  # up to where records were read; None: as the file says
        self._last: int | None = None  # the last sequence number that was given; None: as the file says

    def add(self, change: dict[str, Any]) -> None:
        self._last = self._stored_last() + 1 if self._last is None else self._last + 1
        self._added[self._last] = change

    def pending(self, limit: int) -> list[OwnRecord]:
        """The first records that were not processed yet."""
        position = self._stored_position() if self._position is None else self._position
        stored = self._file.rows(BEHIND, (position, limit))
        found = [lambda_form(sequence, self._file.item(text)) for sequence, text in stored]
        added = (sequence for sequence in self._added if sequence > position)
        return found + [lambda_form(each, self._added[each]) for each in islice(added, limit - len(found))]

    def advance(self, sequence: int, done: Collection[int]) -> None:
        """Stores the place up to which records were read, and drops those that are done; ``retry`` brings the rest.

        Only records that were processed here are dropped: another process may have put records back meanwhile.
        """
        stored = [(each,) for each in done if self._added.pop(each, None) is None]
        self._file.put_all("DELETE FROM stream WHERE sequence = ?", stored)
        self._position = sequence

    def retry(self) -> None:
        """Makes the records that failed pending again."""
        (first,) = self._file.one("SELECT min(sequence) FROM stream", ())
        left = [sequence for sequence in (first, next(iter(self._added), None)) if sequence is not None]
        if left:
            self._position = min(left) - 1

    def write_out(self) -> None:
        """Writes what was added and is not done with, and the place."""
        if self._position is not None:
            self._file.execute("UPDATE cursor SET sequence = ?", (self._position,))
        texts = [(sequence, to_json(change)) for sequence, change in self._added.items()]
        self._file.put_all("INSERT INTO stream VALUES (?, ?)", texts)
        if self._last is not None and self._last not in self._added:
            self._store_last(self._last)
        self.forget()

    def forget(self) -> None:
        """Forgets what was not written: what the file says holds."""
        self._added, self._position, self._last = {}, None, None

    def _stored_position(self) -> int:
        return int(self._file.one("SELECT sequence FROM cursor", ())[0])

    def _stored_last(self) -> int:
        found = self._file.one("SELECT seq FROM sqlite_sequence WHERE name = 'stream'", ())
        return int(found[0]) if found else 0

    def _store_last(self, last: int) -> None:
        """Numbers are never given twice, also those of records that were never written (SQLite, "AUTOINCREMENT")."""
        if not self._file.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'stream'", (last,)).rowcount:
            self._file.execute("INSERT INTO sqlite_sequence VALUES ('stream', ?)", (last,))
