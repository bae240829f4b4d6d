"""How commands print: text as it is meant, and nothing that a terminal would take for a command.

Keys, attributes, errors of handlers, names of files and answers of servers may hold anything. A value within a line is
made printable where the line is composed (``errors.printable``, ``rows.text``), and ``echo`` escapes what is left.
"""

import re
import sys
from typing import IO, Any

import click

CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]",
)
"""What moves a cursor, changes a terminal or the order of letters, and half surrogates, which no output takes. Newlines
and tabs stay."""
C0_LAST = 0x1F
FAILED_OUTPUT = "backslashreplace"


def escaped(text: str) -> str:
    """A text without control characters. JSON stays the same JSON: outside of its escapes it has none below 0x20."""
    return CONTROLS.sub(_escape, text)


def echo(text: object = "", *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Prints a text on standard output, or with ``err`` on standard error, without control characters."""
    click.echo(escaped(str(text)), err=err, nl=nl, file=file)  # noqa: TID251 - its one place


def can_ask() -> bool:
    """Whether somebody answers on standard input. It may be closed."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def on_terminal() -> bool:
    """Whether standard output is a terminal. It may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def take_all_letters() -> None:
    """Lets both outputs take letters that their encoding has not: printed as an escape, they end no command."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=FAILED_OUTPUT)


def machine_error(error: OSError) -> str:
    """An error of the operating system as a sentence, with its file."""
    file = f"{error.filename} " if error.filename is not None else ""
    return f"{file}cannot be read or written: {error.strerror or error}."


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code <= C0_LAST else f"\\u{code:04x}"
