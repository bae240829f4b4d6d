"""The lines of recorded files, and their JSON: parsed together, in three quarters of the time that each takes alone.

A small file may unpack to anything, so it is read in pieces: no line is longer than ``LINE_BYTES_MAX``. A line whose
values would take much more memory than its text is split into its records, one at a time.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from os import urandom
from typing import IO, Any, NamedTuple

LINES_TOGETHER_MAX, BYTES_TOGETHER_MAX = 100, 1024 * 1024
"""Lines that are parsed together; a single one may be longer."""
LINE_BYTES_MAX = 16 * 1024 * 1024
"""Size of one line, or of a document over several lines: more than two of the largest Lambda events (6 MB, Lambda
quotas)."""
PIECE_BYTES = 64 * 1024
"""In which the rest of a line is passed over that is too long."""
AT_ONCE_BYTES_MAX = 6 * 1024 * 1024
VALUES_MAX = 600_000
"""Bytes and values of a text that is parsed at once. A value takes some 100 bytes of memory, whatever its text. Both
images of an item of 400 KB, all of it numbers of one digit, have some 500,000."""
MARK = urandom(16).hex()
BETWEEN = f',"{MARK}",'.encode()
"""What stands between lines that are parsed together: a text that is in no file."""
UNPARSED = object()
"""Stands for the value of a line that has to be parsed by itself."""
SPACE = re.compile(r"\s*")
HALF_SURROGATE = b"\\ud"
"""Begins the escape of half a surrogate pair in JSON; a half without its other half is no text."""

HEAD = re.compile(rb'\s*(?:\[|\{\s*"Records"\s*:\s*\[)')
"""How a text begins that holds several records."""
TAIL = re.compile(rb"\s*\]\s*\}?\s*")
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
"""A text of JSON, even one that does not end, or what opens, closes or separates values. Possessive, so that a text of
any length is gone over once and keeps no state."""

NumberedLine = tuple[int, bytes]


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
    """The lines of a stream as they are; None for one over ``LINE_BYTES_MAX``, whose rest is passed over."""
    while line := stream.readline(LINE_BYTES_MAX + 1):
        if len(line) <= LINE_BYTES_MAX or line.endswith(b"\n"):
            yield line
            continue
        yield None
        while line and not line.endswith(b"\n"):
            line = stream.readline(PIECE_BYTES)


def too_long(what: str) -> str:
    """Why a line, or a document, is refused."""
    return f"the {what} is longer than {LINE_BYTES_MAX:,} bytes: write one record or event a line"


def fits_at_once(text: bytes) -> bool:
    """Whether the values of a text, parsed at once, take no more memory than a process can spare."""
    if len(text) <= VALUES_MAX:  # it cannot have more values
        return True
    return len(text) <= AT_ONCE_BYTES_MAX and text.count(b",") + text.count(b"{") + text.count(b"[") <= VALUES_MAX


def elements(text: bytes) -> Iterator[bytes]:
    """The texts of the members of a list, of an event's Records, or of objects one after another, one at a time.

    Raises ``ValueError`` for another text, or for a member that does not fit at once.
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
    """The texts of objects that stand one after another, as Firehose writes them."""
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
    if not fits_at_once(text):
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

    Lines of which only two together are a value would take what stands between them into that value: so each is one.
    """
    if not all(map(fits_at_once, texts)):
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
    """The values of one line, or of a document: nearly always one, several where they stand one after another.

    Firehose writes records so, without anything between them. Raises ``ValueError`` or ``RecursionError`` for what is
    no value.
    """
    whole = text.rstrip().decode()
    try:
        values: list[Any] = [json.loads(whole)]
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise
        values = _one_after_another(whole, error)
    if HALF_SURROGATE in text:
        json.dumps(values, ensure_ascii=False).encode()
    return values


def _one_after_another(text: str, error: json.JSONDecodeError) -> list[Any]:
    """The objects of a text, which stand one after another. Raises the error if there is anything else."""
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
