"""The lines of recorded files, and their JSON: parsed together, in three quarters of the time that each takes alone."""

import json
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


def value_of(text: bytes) -> Any:
    """The value of one line, or of a document. Raises ``ValueError`` or ``RecursionError`` for what is none."""
    event: Any = json.loads(text.rstrip().decode())
    if HALF_SURROGATE in text:
        json.dumps(event, ensure_ascii=False).encode()
    return event
