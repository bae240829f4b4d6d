"""The lines of recorded files, and their JSON: parsed together, in three quarters of the time that each takes alone."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from os import urandom
from typing import Any, NamedTuple

LINES_TOGETHER_MAX, BYTES_TOGETHER_MAX = 100, 1024 * 1024
"""Lines that are parsed together; a single one may be longer."""
MARK = urandom(16).hex()
BETWEEN = f',"{MARK}",'.encode()
"""What stands between lines that are parsed together: a text that is in no file."""
UNPARSED = object()
"""Stands for the value of a line that has to be parsed by itself."""
SPACE = re.compile(r"\s*")
HALF_SURROGATE = b"\\ud"
"""Begins the escape of half a surrogate pair in JSON; a half without its other half is no text."""

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
