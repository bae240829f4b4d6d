"""The settings of an event source mapping, checked against the limits of Lambda, and its filter patterns.

A record passes if it matches one of the patterns (Developer Guide, invocation-eventfiltering). A pattern is an object
like the record, with a list in place of each value; one entry of the list must match. This has surprising consequences
(Developer Guide, with-ddb-filtering):

- the type tag is part of the path, ``{"dynamodb": {"Keys": {"PK": {"S": [{"prefix": "ORDER#"}]}}}}``, so ``numeric``
  never matches an ``N``, whose content is text;
- ``exists`` checks values only: ``[{"exists": false}]`` on an attribute, above its type tag, matches every record;
- of two members of one name in an object, the last one is the only one.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from streamfold.errors import SettingsError

FILTERS_MAX = 10
"""Patterns of one mapping: five, up to ten on request (Developer Guide, invocation-eventfiltering)."""
PATTERN_CHARACTERS_MAX = 4096
"""Length of one pattern (API Reference, Filter)."""
OR_BRANCHES_MIN = 2

Test = Callable[[Any], bool]
"""Whether a value matches; ``ABSENT`` is a missing value."""


class _Absent:
    """The type of ``ABSENT``."""


ABSENT = _Absent()
NOTHING: Mapping[str, Any] = {}
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "=": lambda value, bound: value == bound,
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
}


class PatternError(Exception):
    """Raised inside this module for an invalid pattern, with the reason."""


class Filters:
    """The patterns of a mapping: ``filters(record)`` is True if the function gets the record.

    Without patterns it gets all of them. Raises ``SettingsError`` for patterns that Lambda refuses.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        if isinstance(patterns, str) or len(patterns) > FILTERS_MAX:
            raise SettingsError(
                f"filters={patterns!r:.200} does not fit: expected a tuple of at most {FILTERS_MAX} patterns, each a "
                "JSON text."
            )
        self._tests = [_compiled(pattern) for pattern in patterns]

    def __call__(self, record: Mapping[str, Any]) -> bool:
        return not self._tests or any(test(record) for test in self._tests)


def _compiled(pattern: object) -> Test:
    try:
        if not isinstance(pattern, str) or len(pattern) > PATTERN_CHARACTERS_MAX:
            raise PatternError(f"expected a JSON text of at most {PATTERN_CHARACTERS_MAX} characters")
        parsed = json.loads(pattern)
        if not isinstance(parsed, dict):
            raise PatternError('expected an object such as {"eventName": ["INSERT"]}')
        return _object(parsed)
    except (PatternError, ValueError, RecursionError) as error:
        raise SettingsError(f"Invalid filter pattern definition: {pattern!r:.200}: {error}.") from None


def _object(pattern: Mapping[str, Any]) -> Test:
    """A test of an object: of every member, and of one branch of each ``$or``."""
    if not pattern:
        raise PatternError("an object is empty")
    branches = [_or(inner) for name, inner in pattern.items() if name == "$or"]
    members = [(name, _member(name, inner)) for name, inner in pattern.items() if name != "$or"]

    def test(value: Any) -> bool:
        if isinstance(value, list) and value:
            return any(test(entry) for entry in value)
        found = value if isinstance(value, Mapping) else NOTHING
        for name, matches in members:
            if not matches(found.get(name, ABSENT)):
                return False
        return all(any(matches(found) for matches in branch) for branch in branches)

    return test


def _or(branches: object) -> list[Test]:
    if not isinstance(branches, list) or len(branches) < OR_BRANCHES_MIN:
        raise PatternError(f'"$or" holds {branches!r:.80}: expected a list of at least {OR_BRANCHES_MIN} objects')
    return [_member("$or", branch) for branch in branches if _is_object(branch)]


def _is_object(branch: object) -> bool:
    if not isinstance(branch, dict):
        raise PatternError(f'"$or" holds {branch!r:.80}: expected objects only')
    return True


def _member(name: str, pattern: object) -> Test:
    if isinstance(pattern, dict):
        return _object(pattern)
    if not isinstance(pattern, list) or not pattern:
        raise PatternError(f'"{name}" holds {json.dumps(pattern):.80}: expected a list of values, or an object')
    entries = [_entry(entry) for entry in pattern]

    def test(value: Any) -> bool:
        return any(matches(leaf) for leaf in _leaves(value) for matches in entries)

    return test


def _leaves(value: Any) -> Iterator[Any]:
    """The values at the end of a path; ``ABSENT`` if there are none, as above an object."""
    if not isinstance(value, (list, Mapping)):
        yield value
    elif isinstance(value, list) and (found := [leaf for entry in value for leaf in _leaves(entry)]):
        yield from found
    else:
        yield ABSENT


def _entry(entry: object) -> Test:
    """The test of one entry of a list: a value, or an object with one operator."""
    if not isinstance(entry, dict):
        if isinstance(entry, list):
            raise PatternError(f"a list holds a list, {entry!r:.80}: expected values or operators")
        return lambda value: _same(value, entry)
    if len(entry) != 1:
        raise PatternError(f"{json.dumps(entry):.80} holds {len(entry)} operators: expected one")
    ((operator, operand),) = entry.items()
    if operator not in OPERATORS:
        raise PatternError(f"operator {operator!r} is not known: expected {', '.join(OPERATORS)}")
    return OPERATORS[operator](operand)


def _same(value: object, expected: object) -> bool:
    """JSON's equality: ``true`` is not 1, and ``"1"`` is not 1."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    return value == expected


def _exists(operand: object) -> Test:
    if not isinstance(operand, bool):
        raise PatternError(f'"exists" is given {operand!r:.80}: expected true or false')
    return lambda value: (value is not ABSENT) is operand


def _anything_but(operand: object) -> Test:
    refused = operand if isinstance(operand, list) else [operand]
    if not refused or not all(isinstance(entry, (str, int, float)) for entry in refused):
        raise PatternError(f'"anything-but" is given {operand!r:.80}: expected a text or number, or a list of those')
    return lambda value: value is not ABSENT and not any(_same(value, entry) for entry in refused)


def _text(operand: object) -> str:
    if not isinstance(operand, str):
        raise PatternError(f"an operator on text is given {operand!r:.80}: expected a text")
    return operand


def _prefix(operand: object) -> Test:
    beginning = _text(operand)
    return lambda value: isinstance(value, str) and value.startswith(beginning)


def _suffix(operand: object) -> Test:
    end = _text(operand)
    return lambda value: isinstance(value, str) and value.endswith(end)


def _equals_ignore_case(operand: object) -> Test:
    lowered = _text(operand).lower()
    return lambda value: isinstance(value, str) and value.lower() == lowered


def _numeric(operand: object) -> Test:
    """``["=", 5]``, or a lower and an upper bound, ``[">", 0, "<=", 5]``."""
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise PatternError(f'"numeric" is given {operand!r:.80}: expected ["=", 5] or [">", 0, "<=", 5]')
    bounds = list(zip(operand[::2], operand[1::2], strict=True))
    for comparison, bound in bounds:
        if comparison not in COMPARISONS or not _is_number(bound):
            raise PatternError(f'"numeric" is given {operand!r:.80}: expected one of {" ".join(COMPARISONS)}, a number')
    return lambda value: _is_number(value) and all(COMPARISONS[name](value, bound) for name, bound in bounds)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


OPERATORS: Mapping[str, Callable[[object], Test]] = {
    "exists": _exists,
    "prefix": _prefix,
    "suffix": _suffix,
    "anything-but": _anything_but,
    "numeric": _numeric,
    "equals-ignore-case": _equals_ignore_case,
}
"""Operators by name (Developer Guide, invocation-eventfiltering); null, "", equality and ``$or`` need none."""

StartingPosition = Literal["TRIM_HORIZON", "LATEST"]

FOREVER = -1
"""As a limit of retries or age: until the records expire."""
AGE_SECONDS_MIN = 60
"""The lowest age limit other than none (API Reference, EventSourceMappingConfiguration)."""
RANGES = {
    "batch_size": (1, 10_000),
    "window_seconds": (0, 300),
    "parallelization_factor": (1, 10),
    "retries_max": (FOREVER, 10_000),
    "age_seconds_max": (FOREVER, 604_800),
}
"""Least and most of each number (API Reference, CreateEventSourceMapping)."""


@dataclass(frozen=True, slots=True)
class MappingSettings:
    """The settings of an event source mapping, with Lambda's defaults.

    ``batch_size`` is BatchSize, ``window_seconds`` MaximumBatchingWindowInSeconds, ``retries_max``
    MaximumRetryAttempts, ``age_seconds_max`` MaximumRecordAgeInSeconds (both -1: until the records expire), ``bisect``
    BisectBatchOnFunctionError, ``report_item_failures`` the response type ReportBatchItemFailures, ``filters`` the
    patterns of FilterCriteria as JSON text. Only ``starting_position`` has no default at Lambda.
    Raises ``SettingsError`` for a value that Lambda refuses.
    """

    batch_size: int = 100
    window_seconds: int = 0
    parallelization_factor: int = 1
    bisect: bool = False
    retries_max: int = FOREVER
    age_seconds_max: int = FOREVER
    report_item_failures: bool = False
    filters: tuple[str, ...] = ()
    starting_position: StartingPosition = "TRIM_HORIZON"

    def __post_init__(self) -> None:
        for name, (minimum, maximum) in RANGES.items():
            _check_number(name, getattr(self, name), minimum, maximum)
        if 0 <= self.age_seconds_max < AGE_SECONDS_MIN:
            raise SettingsError(
                f"age_seconds_max={self.age_seconds_max} does not fit: expected {FOREVER} for no limit, or at least "
                f"{AGE_SECONDS_MIN}."
            )
        if self.starting_position not in get_args(StartingPosition):
            raise SettingsError(
                f"starting_position={self.starting_position!r} does not fit: expected "
                f"{' or '.join(get_args(StartingPosition))}. A DynamoDB stream cannot be read from a time on."
            )
        Filters(self.filters)


def _check_number(name: str, value: object, minimum: int, maximum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise SettingsError(f"{name}={value!r} does not fit: expected a whole number from {minimum} to {maximum}.")
