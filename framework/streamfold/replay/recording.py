"""Records a table's stream as JSON Lines that can be replayed; a recording that was killed resumes where it stopped."""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from streamfold.replay.shards import ShardCursor, StreamRecord
from streamfold.replay.stream import StreamError, StreamReader
from streamfold.settings.readers import make_private


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """What one call of ``record_stream`` added to its file. ``events`` counts records by INSERT, MODIFY and REMOVE."""

    records: int
    pages: int
    events: Mapping[str, int]
    trimmed_shards: tuple[str, ...]


def record_stream(
    reader: StreamReader,
    out_path: Path,
    *,
    follow: bool = False,
    on_page: Callable[[Sequence[StreamRecord]], None] | None = None,
) -> RecordedStream:
    """Appends the stream's records to ``out_path`` as JSON Lines, each once, however often it is killed and resumed.

    ``OUT.cursor`` beside it says how far the stream was read and how long OUT was then: a page is on disk before the
    cursor is replaced, and what OUT holds beyond that length is cut off when the recording resumes. ``on_page`` is
    called with each page's records once they are safe.

    Raises StreamError when the cursor does not fit OUT or the table's stream.
    """
    cursor_path = out_path.with_name(out_path.name + ".cursor")
    length_bytes, cursor = _resume(out_path, cursor_path)
    source = reader.pages(cursor, follow=follow)
    events: Counter[str] = Counter()
    pages = 0
    # Before the first line: lines without a cursor are never ours, so they are never cut off.
    _replace(cursor_path, length_bytes, cursor)
    make_private(out_path)
    with out_path.open("ab") as out:
        out.truncate(length_bytes)
        for page in source:
            length_bytes += _append(out, page.records)
            _replace(cursor_path, length_bytes, page.cursor)
            events.update(record["eventName"] for record in page.records)
            pages += 1
            if on_page is not None:
                on_page(page.records)
    return RecordedStream(events.total(), pages, dict(events), tuple(reader.trimmed_shards))


def _resume(out_path: Path, cursor_path: Path) -> tuple[int, ShardCursor | None]:
    """The length in bytes up to which OUT is vouched for, and the cursor behind it."""
    size_bytes = out_path.stat().st_size if out_path.exists() else 0
    if not cursor_path.exists():
        if size_bytes:
            raise StreamError(
                f"{out_path} holds {size_bytes} bytes, but {cursor_path.name} is missing: it says how far the stream "
                "was read. Put it back, or record into another file."
            )
        return 0, None
    try:
        saved = json.loads(cursor_path.read_text("utf-8"))
        length_bytes, cursor = int(saved["length_bytes"]), saved["cursor"]
    except (ValueError, KeyError, TypeError) as error:
        raise StreamError(f"{cursor_path} is no recording's cursor ({error!r}). Record into another file.") from error
    if size_bytes < length_bytes:
        raise StreamError(
            f"{out_path} holds {size_bytes} bytes, but {cursor_path.name} vouches for {length_bytes}: the file was "
            "shortened or replaced. Put it back, or record into another file."
        )
    return length_bytes, cursor


def _append(out: IO[bytes], records: Sequence[StreamRecord]) -> int:
    """Appends lines and returns their length in bytes, once they are on disk."""
    lines = b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)
    out.write(lines)
    out.flush()
    os.fsync(out.fileno())
    return len(lines)


def _replace(cursor_path: Path, length_bytes: int, cursor: ShardCursor | None) -> None:
    new_path = cursor_path.with_name(cursor_path.name + ".new")
    make_private(new_path)
    with new_path.open("w", encoding="utf-8") as new:
        json.dump({"length_bytes": length_bytes, "cursor": cursor}, new)
        new.flush()
        os.fsync(new.fileno())
    # An older cursor that comes back after a power cut does no harm: what OUT holds beyond it is read again.
    new_path.replace(cursor_path)
