"""Reads raw records, as a stream, from recorded files: events, lists and JSON Lines, plain, gzip or standard input."""

import gzip
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EBADF
from hashlib import blake2b
from io import BufferedReader, BytesIO
from itertools import chain
from os import urandom
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from streamfold.errors import RecordError, SettingsError
from streamfold.records.envelope import EXPECTED, RawRecord, records_of
from streamfold.records.kinesis import is_bare, wrapped
from streamfold.settings.readers import read_path

if TYPE_CHECKING:
    from io import RawIOBase
LINES_TOGETHER_MAX, BYTES_TOGETHER_MAX = 100, 1024 * 1024
"""Lines that are parsed together; a single one may be longer."""
LINE_BYTES_MAX = 16 * 1024 * 1024
"""Size of one line, or of a document over several lines: more than two of the largest Lambda events (6 MB, Lambda
quotas)."""
PIECE_BYTES = 64 * 1024
"""The rest of a line that is too long is skipped in pieces of this size."""
AT_ONCE_BYTES_MAX = 6 * 1024 * 1024
VALUES_MAX = 600_000
"""Bytes and values of a text that is parsed at once. A value takes some 100 bytes of memory, whatever its text. Both
images of an item of 400 KB, all of it numbers of one digit, have some 500,000."""
MARK = urandom(16).hex()
BETWEEN = f',"{MARK}",'.encode()
"""Separates lines that are parsed together: a text that is in no file."""
UNPARSED = object()
"""Takes the place of the value of a line that has to be parsed by itself."""
SPACE = re.compile(r"\s*")
HALF_SURROGATE = b"\\ud"
"""Begins the escape of half a surrogate pair in JSON; a half without its other half is no text."""

HEAD = re.compile(rb'\s*(?:\[|\{\s*"Records"\s*:\s*\[)')
"""The begin of a text that holds several records."""
TAIL = re.compile(rb"\s*\]\s*\}?\s*")
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
"""A text of JSON, even an unfinished one, or a character that opens, closes or separates values. Possessive, so that a
text of any length is read once without backtracking."""

NumberedLine = tuple[int, bytes]

STANDARD_INPUT = "-"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
"""The first two bytes of gzip (RFC 1952, 2.3.1)."""
DOCUMENT_BEGIN = re.compile(rb'\s*(\[\s*)?(\{\s*("Records"\s*:\s*(\[\s*(\{\s*)?)?)?)?')
"""A first line that can only be the beginning of a document."""


class Line(NamedTuple):
    """A line of a recorded file."""

    file: str
    number: int
    record_bytes: int = 0  # of each of its records, about

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


class BadLine(NamedTuple):
    """A line without records, and the reason."""

    line: Line
    why: str


def bounded_lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """The lines of a stream as they are; None for one over ``LINE_BYTES_MAX``, whose rest is skipped."""
    while line := stream.readline(LINE_BYTES_MAX + 1):
        if len(line) <= LINE_BYTES_MAX or line.endswith(b"\n"):
            yield line
            continue
        yield None
        while line and not line.endswith(b"\n"):
            line = stream.readline(PIECE_BYTES)


def too_long(what: str) -> str:
    """The reason why a line or document is refused."""
    return f"the {what} is longer than {LINE_BYTES_MAX:,} bytes: write one record or event a line"


def parses_at_once(text: bytes) -> bool:
    """Whether a text can be parsed at once without taking more memory than a process can spare."""
    if len(text) <= VALUES_MAX:  # it cannot have more values
        return True
    return len(text) <= AT_ONCE_BYTES_MAX and text.count(b",") + text.count(b"{") + text.count(b"[") <= VALUES_MAX


def elements(text: bytes) -> Iterator[bytes]:
    """The texts of the members of a list, of an event's Records, or of objects one after another, one at a time.

    Raises ``ValueError`` for another text, or for a member that is too large to be parsed at once.
    """
    head = HEAD.match(text)
    if head is None:
        yield from _objects(text)
        return
    start, depth = head.end(), 0
    for token in TOKEN.finditer(text, start):
        mark = token[0]
        if mark in b"[{":
            depth += 1
        elif mark in b"]}" and depth:
            depth -= 1
        elif mark in b",]" and not depth:
            if text[start : token.start()].strip() or mark == b",":
                yield _element(text[start : token.start()])
            start = token.end()
            if mark == b"]":
                if TAIL.fullmatch(text, token.start()) is None:
                    raise ValueError("it holds more than a list of records")
                return
    raise ValueError("its list of records does not end")


def _objects(text: bytes) -> Iterator[bytes]:
    """The texts of objects one after another, as Firehose writes them."""
    start = depth = 0
    for token in TOKEN.finditer(text):
        depth += (token[0] in b"[{") - (token[0] in b"]}")
        if not depth and token[0] == b"}":
            if not start and not text[token.end() :].strip():
                break
            yield _element(text[start : token.end()])
            start = token.end()
    if not start or text[start:].strip():
        raise ValueError("it is too large to be one record, and no list of records")


def _element(text: bytes) -> bytes:
    if not parses_at_once(text):
        raise ValueError("a record of it is larger than any of DynamoDB")
    return text


def groups(lines: Iterable[NumberedLine | BadLine]) -> Iterator[list[NumberedLine] | BadLine]:
    """Lines that are parsed together, in their order."""
    group: list[NumberedLine] = []
    size = 0
    for line in lines:
        if isinstance(line, BadLine):
            if group:
                yield group
            yield line
            group, size = [], 0
            continue
        group.append(line)
        size += len(line[1])
        if len(group) >= LINES_TOGETHER_MAX or size >= BYTES_TOGETHER_MAX:
            yield group
            group, size = [], 0
    if group:
        yield group


def parsed(texts: Sequence[bytes]) -> Sequence[Any]:
    """The values of lines; ``UNPARSED`` for each where one of them may be bad.

    Two lines that are a value only together would join the separator to that value: if every separator is found, each
    line is a value.
    """
    # One large line would be parsed beside 99 others: the memory of all values at once is not bounded then.
    if not all(map(parses_at_once, texts)):
        return [UNPARSED] * len(texts)
    together = BETWEEN.join(texts)
    if HALF_SURROGATE not in together:
        try:
            values = json.loads(f"[{together.decode()}]")
        except (ValueError, RecursionError):
            values = []
        if len(values) == 2 * len(texts) - 1 and values[1::2] == [MARK] * (len(texts) - 1):
            return list(values[::2])
    return [UNPARSED] * len(texts)


def values_of(text: bytes) -> list[Any]:
    """The values of one line or document: nearly always one, or several objects one after another.

    Firehose writes records without a separator. Raises ``ValueError`` or ``RecursionError`` for another text.
    """
    stripped = text.rstrip().decode()
    try:
        values: list[Any] = [json.loads(stripped)]
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise
        values = _one_after_another(stripped, error)
    # Python reads half a surrogate pair from JSON, and no store can encode it: it fails here, with the line's number.
    if HALF_SURROGATE in text:
        json.dumps(values, ensure_ascii=False).encode()
    return values


def _one_after_another(text: str, error: json.JSONDecodeError) -> list[Any]:
    """The objects of a text, one after another. Raises the error for any other content."""
    decoder, values, position = json.JSONDecoder(), list[Any](), 0
    while position < len(text):
        try:
            found, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            raise error from None
        if not isinstance(found, dict):
            raise error
        values.append(found)
        between = SPACE.match(text, end)
        position = between.end() if between else end
    return values


class FileFormat(NamedTuple):
    """How the JSON values of a file are read."""

    take: Callable[[Any], Sequence[RawRecord]]  # the objects of one JSON value; raises ``RecordError``
    expected: str  # for messages


def _records_of(value: Any) -> list[RawRecord]:
    return [wrapped(record) if is_bare(record) else record for record in records_of(value)]


RECORDS = FileFormat(_records_of, EXPECTED)
ION = b"$ion_1_0"
"""Begins a line of an export in the format ION (Developer Guide, S3DataExport.Output)."""


def check_files(paths: Sequence[str]) -> None:
    """Raises ``SettingsError`` for a file that cannot be read, before anything runs."""
    if list(paths).count(STANDARD_INPUT) > 1:
        raise SettingsError("Standard input (-) is named twice: it can be read once.")
    for path in paths:
        if path == STANDARD_INPUT:
            continue
        if read_path("File", path).is_file():
            _check_readable(path)
            continue
        if Path(path).is_fifo():
            raise SettingsError(f"{path} is a pipe: give it as standard input, COMMAND | streamfold replay -.")
        raise SettingsError(
            f"File {path} {'is no file' if Path(path).exists() else 'does not exist'}: expected a recorded file "
            "(.json, .jsonl, .gz), or - for standard input."
        )


def _check_readable(path: str) -> None:
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise SettingsError(f"File {path} cannot be read ({error.strerror}).") from None


class RecordedFiles:
    """Reads the records of recorded files. ``position_bytes`` of ``size_bytes`` (None: unknown) are read so far.

    With ``digested``, ``digest`` distinguishes files by the lines that were read.
    """

    def __init__(self, paths: Sequence[str], file_format: FileFormat = RECORDS, *, digested: bool = False) -> None:
        self.paths = paths
        self.file_format = file_format
        self._digested = digested
        self._digest = blake2b(digest_size=16)
        self.size_bytes = None if STANDARD_INPUT in paths else sum(Path(path).stat().st_size for path in paths)
        self._before_bytes = 0
        self._raw: IO[bytes] | None = None

    def __iter__(self) -> Iterator[tuple[Line, RawRecord] | BadLine]:
        """Every record of the files in order, with its line; a ``BadLine`` for a line without records."""
        self._before_bytes, self._digest = 0, blake2b(digest_size=16)
        for path in self.paths:
            name = "standard input" if path == STANDARD_INPUT else path
            try:
                with _open(path) as stream:
                    self._raw = getattr(stream, "fileobj", stream) if path != STANDARD_INPUT else None
                    yield from _read(name, stream, self.file_format, self._digest.update if self._digested else None)
                    self._before_bytes, self._raw = self.position_bytes, None
            except OSError as error:
                yield BadLine(Line(name, 0), f"it cannot be read ({error.strerror or error})")

    def digest(self) -> str:
        """The digest of the lines whose records were given."""
        return self._digest.copy().hexdigest()

    @property
    def position_bytes(self) -> int:
        return self._before_bytes + (self._raw.tell() if self._raw and not self._raw.closed else 0)


def _open(path: str) -> IO[bytes]:
    """The file as plain bytes. Gzip is recognised by its first bytes, whatever the file's name."""
    if path == STANDARD_INPUT:
        if sys.stdin is None:  # the caller of the command has closed it
            raise OSError(EBADF, "it is closed")
        given = sys.stdin.buffer
        stream = given if isinstance(given, BufferedReader) else BufferedReader(cast("RawIOBase", given))
        packed = stream.peek(len(GZIP)).startswith(GZIP)
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if packed else stream
    return cast("IO[bytes]", gzip.open(path, "rb")) if _is_packed(path) else Path(path).open("rb")


def _is_packed(path: str) -> bool:
    with Path(path).open("rb") as stream:
        return path.endswith(".gz") or stream.read(len(GZIP)) == GZIP


def _lines(stream: IO[bytes], name: str, before: int = 0) -> Iterator[NumberedLine | BadLine]:
    number = before
    lines = bounded_lines(stream)
    while True:
        number += 1
        try:
            line = next(lines, b"")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield BadLine(Line(name, number), f"its compression is damaged or cut off ({error})")
            return
        except (OSError, ValueError) as error:  # ValueError: standard input was closed
            yield BadLine(Line(name, number), f"it cannot be read ({getattr(error, 'strerror', None) or error})")
            return
        if line is None:
            yield BadLine(Line(name, number), too_long("line"))
            continue
        if not line:
            return
        if line.strip():
            yield number, line.removeprefix(BYTE_ORDER_MARK)


def read_bytes(
    name: str, content: bytes, file_format: FileFormat, before: int = 0
) -> Iterator[tuple[Line, RawRecord] | BadLine]:
    """The entries of some lines of a file; ``before``: the lines that precede them there."""
    stream = gzip.GzipFile(fileobj=BytesIO(content)) if content.startswith(GZIP) else BytesIO(content)
    return _read(name, cast("IO[bytes]", stream), file_format, before=before)


def _read(
    name: str,
    stream: IO[bytes],
    file_format: FileFormat,
    taken: Callable[[bytes], object] | None = None,
    *,
    before: int = 0,
) -> Iterator[tuple[Line, RawRecord] | BadLine]:
    """The entries of a stream; ``taken`` is called with each line before its entries."""
    lines = _lines(stream, name, before)
    first = next(lines, None)
    if first is None:
        return
    if not isinstance(first, BadLine) and begins_document(first[1]):
        yield from _read_document(name, first, lines, file_format, taken)
        return
    for group in groups(chain([first], lines)):
        if isinstance(group, BadLine):
            yield group
            continue
        for (number, text), value in zip(group, parsed([text for _, text in group]), strict=True):
            if taken:
                taken(text)
            yield from _records(Line(name, number, len(text)), text, file_format, value)


def begins_document(line: bytes) -> bool:
    """Whether a first line begins a document over several lines."""
    # A pretty-printed event begins so: its first line alone is no value.
    return DOCUMENT_BEGIN.fullmatch(line) is not None or (line.lstrip()[:1] in b"{[" and _is_open(line))


def _is_open(line: bytes) -> bool:
    if line.rstrip()[-1:] not in b"{[,:" or not parses_at_once(line):
        return False
    try:
        json.loads(line)
    except ValueError as error:
        # A truncated single record ends inside itself too; only a line that ends between two values goes on.
        return bool(getattr(error, "pos", 0) >= len(line.decode(errors="replace").rstrip()) - 1)
    except RecursionError:
        return False
    return False


def _read_document(
    name: str,
    first: NumberedLine,
    lines: Iterator[NumberedLine | BadLine],
    file_format: FileFormat,
    taken: Callable[[bytes], object] | None,
) -> Iterator[tuple[Line, RawRecord] | BadLine]:
    number = first[0]  # of the last line, with the empty ones before it
    gathered = bytearray(first[1])
    for line in lines:
        if isinstance(line, BadLine):
            yield line
            return
        gathered += b"\n" * (line[0] - number - 1) + line[1]
        number = line[0]
        if len(gathered) > LINE_BYTES_MAX:
            yield BadLine(Line(name, first[0]), too_long("document"))
            return
    text = bytes(gathered)
    gathered.clear()
    if taken:
        taken(text)
    if DOCUMENT_BEGIN.fullmatch(first[1]) or not _is_bad(_records(Line(name, first[0], len(text)), text, file_format)):
        yield from _records(Line(name, first[0], len(text)), text, file_format)
        return
    # The first line of JSON Lines may be cut off: if any line is a record by itself, every line is read by itself.
    if any(not _is_bad(entries) for entries in _of_each_line(name, first[0], text, file_format)):
        yield from chain.from_iterable(
            _of_each_line(name, first[0], text, file_format)
        )  # one a line, and the first is cut off
        return
    yield from _records(Line(name, first[0], len(text)), text, file_format)


FoundRecords = Iterator[tuple[Line, RawRecord] | BadLine]


def _is_bad(entries: FoundRecords) -> bool:
    return any(isinstance(entry, BadLine) for entry in entries)


def _of_each_line(name: str, first: int, text: bytes, file_format: FileFormat) -> Iterator[FoundRecords]:
    """The entries of each line of a document."""
    for number, line in enumerate(BytesIO(text), first):
        if line.strip():
            yield _records(Line(name, number, len(line)), line, file_format)


def _records(line: Line, text: bytes, file_format: FileFormat, value: Any = UNPARSED) -> FoundRecords:
    """The records of a line or document, whose value may be known."""
    try:
        if value is UNPARSED and not parses_at_once(text):
            yield from _one_by_one(line, text, file_format)
            return
        values = values_of(text) if value is UNPARSED else [value]
        records = [record for each in values for record in file_format.take(each)]
    except (ValueError, RecordError, RecursionError) as error:
        is_ion = text.startswith(ION) and isinstance(error, json.JSONDecodeError)
        yield (
            BadLine(line, f"this is an export in the format ION, and no record; expected {file_format.expected}")
            if is_ion
            else (_bad_line(line, error, file_format))
        )
        return
    if len(records) > 1:
        line = line._replace(record_bytes=line.record_bytes // len(records))
    for record in records:
        yield line, record


def _one_by_one(line: Line, text: bytes, file_format: FileFormat) -> FoundRecords:
    """The records of a text that would take too much memory at once; those before an error are given."""
    try:
        for element in elements(text):
            for record in file_format.take(values_of(element)):
                yield line._replace(record_bytes=len(element)), record
    except (ValueError, RecordError, RecursionError) as error:
        yield _bad_line(line, error, file_format)


def _bad_line(line: Line, error: Exception, file_format: FileFormat) -> BadLine:
    if isinstance(error, json.JSONDecodeError):
        at = Line(line.file, line.number + error.lineno - 1)
        return BadLine(at, f"this is not JSON ({error.msg} at column {error.colno}); expected {file_format.expected}")
    if isinstance(error, UnicodeDecodeError):
        return BadLine(
            line, f"this is not UTF-8 text ({error.reason} at byte {error.start}); expected {file_format.expected}"
        )
    if isinstance(error, UnicodeEncodeError):
        return BadLine(line, "it holds half of a surrogate pair, which is no text that DynamoDB could hold")
    if isinstance(error, RecordError):
        return BadLine(line, str(error))
    if isinstance(error, RecursionError):
        return BadLine(line, f"this is nested too deeply; expected {file_format.expected}")
    return BadLine(line, f"this is not JSON that can be read ({error}); expected {file_format.expected}")


KEPT_BYTES_MAX = 256 * 1024 * 1024
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
            added = stream.read(KEPT_BYTES_MAX - self._read_bytes + 1)
        if self._read_bytes + len(added) > KEPT_BYTES_MAX:
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
            if size > KEPT_BYTES_MAX:
                raise self._too_large()
            yield entry

    def _too_large(self) -> SettingsError:
        return SettingsError(
            f"File {self.path} holds more than {KEPT_BYTES_MAX // 1024**2} MB of lines, and dev keeps all of them in "
            f"memory. Give its first records: head -n 100000 {self.path} > first.jsonl"
        )
