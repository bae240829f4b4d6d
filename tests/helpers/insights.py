"""A small interpreter of CloudWatch Logs Insights: the commands that the pages use, on recorded log events.

Known are ``fields``, ``display``, ``filter``, ``sort``, ``limit`` and ``stats`` with ``count``, ``sum``, ``min``,
``max`` and ``bin``; of conditions ``and``, ``or``, ``not``, comparisons, ``like``, ``in`` and ``ispresent`` (CloudWatch
Logs User Guide, CWL_QuerySyntax). Anything else raises ``ValueError``: a page has no query that nobody tested.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
TOKEN = re.compile(
    r"""\s*("[^"]*"|'[^']*'|/(?:\\.|[^/\\])*/|\d+[smhd]\b|\d+(?:\.\d+)?|@?[A-Za-z_][\w.]*|!=|<=|>=|[=<>(),*\[\]])"""
)
LIMIT = 10_000
"""The events that a query returns without ``limit`` (User Guide, CWL_QuerySyntax-Limit)."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
AGGREGATES: Mapping[str, Callable[[list[Any]], Any]] = {"count": len, "sum": sum, "min": min, "max": max}
FUNCTIONS = ("ispresent", "bin", *AGGREGATES)


class Event(NamedTuple):
    """A log event: epoch seconds, and the line."""

    at: float
    line: str

    def row(self) -> Row:
        """The event's fields. Those of a line of JSON are found by their paths (User Guide, discovered fields)."""
        found: Row = {"@timestamp": self.at, "@message": self.line}
        try:
            content = json.loads(self.line)
        except ValueError:
            return found
        return {**found, **dict(_flat(content, ""))} if isinstance(content, dict) else found


def _flat(content: Mapping[str, Any], path: str) -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        elif value is not None and not isinstance(value, list):
            yield path + name, value


def run(query: str, events: Iterable[Event]) -> list[Row]:
    """The rows that a query returns. Raises ``ValueError`` for one that is not known here."""
    rows, shown = [event.row() for event in events], None
    for text in _split(query, "|"):
        name, _, rest = text.strip().partition(" ")
        if name in ("fields", "display"):
            shown = [*(shown or []) * (name == "fields"), *(each.strip() for each in rest.split(","))]
            _check_names(shown)
        elif name == "filter":
            condition = _Parser(rest).condition()
            rows = [row for row in rows if condition(row)]
        elif name == "sort":
            rows = _sorted(rows, rest)
        elif name == "limit":
            rows = rows[: int(rest)]
        elif name == "stats":
            rows, shown = _stats(rows, rest), None
        else:
            raise ValueError(f"Command {name!r} of {query!r} is not known here.")
    return [row if shown is None else {name: row[name] for name in shown if name in row} for row in rows[:LIMIT]]


def _check_names(names: Sequence[str]) -> None:
    if wrong := [name for name in names if not re.fullmatch(r"@?\w[\w.]*", name)]:
        raise ValueError(f"Fields {wrong} are not known here.")


def _split(text: str, at: str) -> list[str]:
    """The parts of a text between separators that are in no quotes, regular expressions or parentheses."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'/":
            quote = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == at and not depth:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def _sorted(rows: list[Row], text: str) -> list[Row]:
    name, _, order = text.strip().partition(" ")
    if order.strip() not in ("asc", "desc"):
        raise ValueError(f"sort {text!r}: expected a field, and asc or desc.")
    present = sorted((row for row in rows if name in row), key=lambda row: row[name], reverse=order.strip() == "desc")
    return [*present, *(row for row in rows if name not in row)]


def _stats(rows: list[Row], text: str) -> list[Row]:
    made, *by = re.split(r"\bby\b", text)
    keys = [_named(each) for each in _split(by[0], ",")] if by else []
    values = [_named(each) for each in _split(made, ",")]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(_value(key, row) for _, key in keys), []).append(row)
    return [
        {
            **{name: value for (name, _), value in zip(keys, group, strict=True) if value is not None},
            **{name: _aggregate(call, own) for name, call in values},
        }
        for group, own in groups.items()
    ]


def _named(text: str) -> tuple[str, str]:
    call, _, name = re.sub(r"\s+", " ", text.strip()).partition(" as ")
    return name or call, call


def _value(text: str, row: Row) -> Any:
    if found := re.fullmatch(r"bin\((\d+)([smhd])\)", text):
        return row["@timestamp"] - row["@timestamp"] % (int(found[1]) * UNITS[found[2]])
    _check_names([text])
    return row.get(text)


def _aggregate(text: str, rows: list[Row]) -> Any:
    found = re.fullmatch(r"(\w+)\(([@\w.]+|\*)\)", text)
    if found is None or found[1] not in AGGREGATES:
        raise ValueError(f"Aggregate {text!r} is not known here.")
    given = rows if found[2] == "*" else [row[found[2]] for row in rows if found[2] in row]
    return AGGREGATES[found[1]](given) if given or found[1] in ("count", "sum") else None


class _Parser:
    """Reads a condition, as a function of a row."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position, text = 0, text.strip()
        while position < len(text):
            found = TOKEN.match(text, position)
            if found is None:
                raise ValueError(f"Condition {text!r} is not known here, from {text[position:]!r} on.")
            self.tokens.append(found[1])
            position = found.end()

    def condition(self) -> Callable[[Row], bool]:
        found = self._either()
        if self.tokens:
            raise ValueError(f"A condition ends with {self.tokens}.")
        return found

    def _either(self) -> Callable[[Row], bool]:
        found = [self._all()]
        while self._takes("or"):
            found.append(self._all())
        return lambda row: any(each(row) for each in found)

    def _all(self) -> Callable[[Row], bool]:
        found = [self._one()]
        while self._takes("and"):
            found.append(self._one())
        return lambda row: all(each(row) for each in found)

    def _one(self) -> Callable[[Row], bool]:
        if self._takes("not"):
            negated = self._one()
            return lambda row: not negated(row)
        if self._takes("("):
            inner = self._either()
            self._expect(")")
            return inner
        name = self.tokens.pop(0)
        if name == "ispresent":
            self._expect("(")
            field = self.tokens.pop(0)
            self._expect(")")
            return lambda row: field in row
        _check_names([name])
        return self._compared(name, self.tokens.pop(0))

    def _compared(self, name: str, operator: str) -> Callable[[Row], bool]:
        if operator == "in":
            self._expect("[")
            values = []
            while not self._takes("]"):
                values.append(_literal(self.tokens.pop(0)))
                self._takes(",")
            return lambda row: row.get(name) in values
        given = self.tokens.pop(0)
        if operator == "like":
            pattern = re.compile(given[1:-1] if given[0] == "/" else re.escape(_literal(given)))
            return lambda row: pattern.search(str(row.get(name, ""))) is not None
        if operator not in COMPARISONS:
            raise ValueError(f"Operator {operator!r} is not known here.")
        value, compare = _literal(given), COMPARISONS[operator]
        return lambda row: name in row and compare(row[name], value)

    def _takes(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise ValueError(f"Expected {token!r} before {self.tokens}.")


def _literal(token: str) -> Any:
    if token[0] in "\"'":
        return token[1:-1]
    return float(token) if "." in token else int(token)
