"""A recording that grows while it is read: its records so far, in memory, and its last line until that is complete."""

from collections.abc import Iterator
from pathlib import Path

from streamfold.errors import SettingsError
from streamfold.records.envelope import RawRecord
from streamfold.replay.files import (
    BYTE_ORDER_MARK,
    GZIP,
    RECORDS,
    BadLine,
    Line,
    RecordedFiles,
    begins_document,
    read_bytes,
)

BYTES_MAX = 256 * 1024 * 1024
"""Size of the lines of a recording that is kept in memory: parsed they take some ten times as much."""


class GrowingRecording:
    """The entries of a file so far. ``read`` adds what was written since.

    JSON Lines are read as far as their lines are complete. Other files, a document or gzip, are read again from their
    begin once they change.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: list[tuple[Line, RawRecord] | BadLine] = []
        self.editions = 0  # how often the file was begun: it grows another one if it was replaced
        self._seen: tuple[int, int, int] | None = None  # inode, size, time
        self._is_document = False  # it is no JSON Lines
        self._read_bytes = 0  # of complete lines
        self._lines = 0
        self._rest = b""  # the last line, which does not end

    def read(self) -> bool:
        """Reads what was added, and returns whether the file has changed.

        Raises ``SettingsError`` for a file that is too large to be kept in memory, or that is gone.
        """
        try:
            stat = Path(self.path).stat()
            now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if now == self._seen:
                return False
            if self._seen is None or not self._has_grown(now):
                self._begin()
            self._seen = now
            self._add()
        except OSError as error:
            raise SettingsError(
                f"File {self.path} cannot be read any more ({error.strerror or error}): expected the recording that "
                "the command began with."
            ) from None
        return True

    @property
    def cut_off(self) -> BadLine | None:
        """The last line, if it ends inside a record; None if every line is complete."""
        if not self._rest.strip():
            return None
        return BadLine(
            Line(self.path, self._lines + 1),
            f"the file ends inside this record, after {len(self._rest):,} bytes of it. The lines before it are folded. "
            "If nothing writes the file any more, it was cut off: remove this line, or record it again.",
        )

    def _has_grown(self, now: tuple[int, int, int]) -> bool:
        inode, size, _ = self._seen or now
        return now[0] == inode and now[1] > size and not self._is_document

    def _begin(self) -> None:
        self.entries, self._is_document, self._read_bytes, self._lines, self._rest = [], False, 0, 0, b""
        self.editions += 1

    def _add(self) -> None:
        with Path(self.path).open("rb") as stream:
            stream.seek(self._read_bytes)
            added = stream.read(BYTES_MAX - self._read_bytes + 1)
        if self._read_bytes + len(added) > BYTES_MAX:
            raise self._too_large()
        first = added.removeprefix(BYTE_ORDER_MARK).lstrip().split(b"\n", 1)[0]
        if (
            not self._read_bytes
            and first
            and (added.startswith(GZIP) or begins_document(first) or self.path.endswith(".gz"))
        ):
            self._is_document, self.entries = True, list(self._bounded())
            return
        end = added.rfind(b"\n") + 1
        self.entries += read_bytes(self.path, added[:end], RECORDS, self._lines)
        self._read_bytes += end
        self._lines += added.count(b"\n")
        self._rest = added[end:]
        last = list(read_bytes(self.path, self._rest, RECORDS, self._lines)) if self._rest.strip() else []
        if last and not any(isinstance(each, BadLine) for each in last):  # only its line feed is missing
            self.entries += last
            self._read_bytes += len(self._rest)
            self._rest = b""

    def _bounded(self) -> Iterator[tuple[Line, RawRecord] | BadLine]:
        size = 0
        for entry in RecordedFiles([self.path]):
            size += 0 if isinstance(entry, BadLine) else entry[0].record_bytes
            if size > BYTES_MAX:
                raise self._too_large()
            yield entry

    def _too_large(self) -> SettingsError:
        return SettingsError(
            f"File {self.path} holds more than {BYTES_MAX // 1024**2} MB of lines, and dev keeps all of them in "
            f"memory. Give its first records: head -n 100000 {self.path} > first.jsonl"
        )
