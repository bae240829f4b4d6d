"""Event filters of a stream's mapping: a function is started for the records that its handlers want, and few others.

A filter that drops a wanted record loses it for good, and a narrower one does so at the first deployment. So a pattern
is positive, of literal beginnings of keys only: ``ORDER#{order_id}`` wants each partition key that begins with
``ORDER#``. A pattern of sources reads no image and no event name: removals and expiries are wanted too. Rows of
handlers are kept out because nothing names them. Rows that handlers add to are named, but only their REMOVE records
pass, and only of rows that still counted items: somebody removed such a row. The framework itself removes a row that
has an owner, a version or a life while it counts its item; such a row does not pass.

The records of write-backs pass: views read derived attributes, and no test of one record separates a write-back from a
writer that puts back an item that it read before (decision 96).

A template that begins with a field, or whose key attribute is a number or binary, has no beginning. Its sort key is
taken then; without one either, the table has no filter (``Filter.widened_by`` names the handlers).
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from streamfold.errors import SettingsError
from streamfold.keys.key import Key
from streamfold.keys.key_part import KeyComponent
from streamfold.keys.table import CONTRIBUTORS, LIFE, OWNER, VERSION
from streamfold.routes.application import Application
from streamfold.testing.mapping_settings import PATTERN_CHARACTERS_MAX

PATTERNS_MAX = 5
"""Patterns of one mapping, unless AWS grants more (Lambda Developer Guide, invocation-eventfiltering)."""

Beginning = tuple[str, bool]
"""The beginning of a key's value, and whether it is all of it."""
Pattern = Mapping[str, Any]


class Filter(NamedTuple):
    """The filter of one function's mapping of one table."""

    patterns: tuple[str, ...]  # none: every record passes
    widened_by: tuple[str, ...] = ()  # handlers whose keys have no beginning: the table has no filter because of them
    counts_removals: bool = True  # whether removed rows of handlers pass, which needs old images

    @property
    def criteria(self) -> Mapping[str, Any] | None:
        """The filter as CloudFormation takes it; None where there is none."""
        return {"Filters": [{"Pattern": pattern} for pattern in self.patterns]} if self.patterns else None


def united(before: Sequence[str], now: Filter) -> Filter:
    """A filter that passes what an earlier filter passed, and what this one passes.

    CloudFormation updates a function before its mapping. Code with a new handler would wait behind the earlier filter,
    and lose the records of its keys. So this filter is deployed first, beside the earlier code. ``before``: the
    patterns; none for a mapping without a filter. Raises ``SettingsError`` where both need too many patterns.
    """
    if not before or not now.patterns:
        return now._replace(patterns=())
    parsed = [json.loads(text) for text in now.patterns]
    patterns = (*now.patterns, *(text for text in dict.fromkeys(before) if json.loads(text) not in parsed))
    if len(patterns) > PATTERNS_MAX:
        raise SettingsError(
            f"The filter of before and the one of now have {len(patterns)} patterns, and a mapping takes "
            f"{PATTERNS_MAX}: deploy once without a filter, and then with the new one."
        )
    return now._replace(patterns=patterns)


class Beginnings(NamedTuple):
    """What a key's partition and sort key begin with; None: with anything."""

    partition: Beginning | None
    sort: Beginning | None


def filter_of(
    app: Application, group: str | None, table: str, *, old_images: bool = True, kinesis: bool = False
) -> Filter:
    """The filter of the function of a group, or of all groups, for the records of one table.

    old_images: whether the stream's view has them. kinesis: the records come through Kinesis Data Streams.
    """
    routes = [route for route in app.routes if group in (None, route.group)]
    subscribed = [
        (each.key, route)
        for route in routes
        for each in route.kind.subscriptions(route)
        if each.key.table.name == table
    ]
    begun = {key: beginnings_of(key) for key, _ in subscribed}
    widening = {route.name for key, route in subscribed if begun[key] == (None, None)}
    watched = [key for key in app.watched(group) if key.table.name == table]
    if widening or not subscribed:
        return Filter((), tuple(sorted(widening)), old_images)
    names = app.tables[table].attributes
    own = _fitting(set(begun.values()), names, kinesis=kinesis)
    removals = {beginnings_of(key) for key in watched} - set(begun.values()) if old_images else set()
    if Beginnings(None, None) in removals:
        removals = {Beginnings(None, None)}
    rows = _removals(removals, names, kinesis=kinesis) if removals else ()
    return Filter((*own, *rows), (), old_images or not watched)


def beginnings_of(key: Key) -> Beginnings:
    """The literal beginnings of a template."""
    return Beginnings(_beginning(key.partition), None if key.sort is None else _beginning(key.sort))


def _beginning(component: KeyComponent) -> Beginning | None:
    first = component.pieces[0]
    if component.attribute_type != "S" or not isinstance(first, str):
        return None
    return first, len(component.pieces) == 1


# Patterns that fit the limits.


def _fitting(begun: Collection[Beginnings], names: Sequence[str], *, kinesis: bool) -> tuple[str, ...]:
    """The patterns of these beginnings. What is too long loses its sort keys, then gets shorter beginnings, and is
    split at last: each step lets more records through, never fewer.
    """
    branches = _branches(begun, names)
    if len(text := _text(branches, kinesis=kinesis)) <= PATTERN_CHARACTERS_MAX:
        return (text,)
    partitions = {each if each.partition is None else Beginnings(each.partition, None) for each in begun}
    branches = _branches(partitions, names)
    text = _text(branches, kinesis=kinesis)
    while len(text) > PATTERN_CHARACTERS_MAX and (shorter := _merged(branches)) != branches:
        branches, text = shorter, _text(shorter, kinesis=kinesis)
    return (text,) if len(text) <= PATTERN_CHARACTERS_MAX else _split(branches, kinesis=kinesis)


def _branches(begun: Collection[Beginnings], names: Sequence[str]) -> list[dict[str, Any]]:
    """The conditions on keys: partitions that have the same sort keys share one."""
    partitions: dict[Beginning | None, set[Beginning | None]] = {}  # by sort key
    for each in begun:
        partitions.setdefault(each.sort, set()).add(each.partition)
    sorts: dict[frozenset[Beginning | None], set[Beginning | None]] = {}
    for sort, own in partitions.items():
        sorts.setdefault(frozenset(own), set()).add(sort)
    found = [
        {name: {"S": _tests(each)} for name, each in zip(names, both, strict=False) if None not in each}
        for both in sorts.items()
    ]
    return sorted(found, key=json.dumps)


def _tests(beginnings: Iterable[Beginning | None]) -> list[Any]:
    kept: list[Beginning] = []
    for text, complete in sorted(each for each in beginnings if each is not None):
        if not any(not other_complete and text.startswith(other) for other, other_complete in kept):
            kept.append((text, complete))
    return [text if complete else {"prefix": text} for text, complete in kept]


def _merged(branches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The branches, the two likest beginnings of one made one; the same branches if none are alike."""
    found: tuple[int, int, str, list[Any]] | None = None
    for number, branch in enumerate(branches):
        for name, tests in branch.items():
            texts = [each["prefix"] if isinstance(each, Mapping) else each for each in tests["S"]]
            for at, (one, other) in enumerate(pairwise(texts)):
                common = "".join(letter for letter, _ in takewhile(_is_same, zip(one, other, strict=False)))
                if common and (found is None or len(common) > found[0]):
                    found = len(common), number, name, [*tests["S"][:at], {"prefix": common}, *tests["S"][at + 2 :]]
    if found is None:
        return branches
    _, number, name, tests = found
    begun = [(each["prefix"], False) if isinstance(each, Mapping) else (each, True) for each in tests]
    return [*branches[:number], {**branches[number], name: {"S": _tests(begun)}}, *branches[number + 1 :]]


def _is_same(letters: tuple[str, str]) -> bool:
    return letters[0] == letters[1]


def _split(branches: list[dict[str, Any]], *, kinesis: bool) -> tuple[str, ...]:
    """Several patterns, each as long as may be; none where more than ``PATTERNS_MAX`` would be needed."""
    single = [
        {name: {"S": [test]} if name == first else tests for name, tests in branch.items()}
        for branch in branches
        for first in list(branch)[:1]
        for test in branch[first]["S"]
    ]
    groups: list[list[dict[str, Any]]] = [[]]
    for branch in single:
        if len(_text([*groups[-1], branch], kinesis=kinesis)) > PATTERN_CHARACTERS_MAX:
            groups.append([])
        groups[-1].append(branch)
    return tuple(_text(group, kinesis=kinesis) for group in groups) if len(groups) <= PATTERNS_MAX else ()


def _removals(begun: Collection[Beginnings], names: Sequence[str], *, kinesis: bool) -> tuple[str, ...]:
    """The pattern of rows that counted items and are gone: no new image, and an old one that counts any.

    As ``batch.order.is_of_counted_row`` decides it.
    """
    # ``exists`` sees the end of a path only (Developer Guide, with-ddb-filtering): each test names the type, text.
    unmarked = {name: {"S": [{"exists": False}]} for name in (OWNER, VERSION, LIFE)}
    images = {
        "NewImage": {CONTRIBUTORS: {"N": [{"exists": False}]}},
        "OldImage": {CONTRIBUTORS: {"N": [{"anything-but": ["0"]}]}, **unmarked},
    }
    for found in (begun, {Beginnings(each.partition, None) for each in begun}, {Beginnings(None, None)}):
        branches = _branches(found, names)
        keys = _either(branches) if all(branches) else {}  # a branch without a condition: any key
        text = _wrapped({**keys, **images}, kinesis=kinesis)
        if len(text) <= PATTERN_CHARACTERS_MAX:
            return (text,)
    raise AssertionError  # the last has no keys


def _text(branches: Sequence[Pattern], *, kinesis: bool) -> str:
    return _wrapped(_either(branches), kinesis=kinesis)


def _either(branches: Sequence[Pattern]) -> dict[str, Any]:
    # Lambda refuses an ``$or`` of one branch.
    return {"Keys": branches[0] if len(branches) == 1 else {"$or": branches}}


def _wrapped(inner: Pattern, *, kinesis: bool) -> str:
    pattern: Pattern = {"dynamodb": inner}
    return json.dumps({"data": pattern} if kinesis else pattern, separators=(",", ":"), ensure_ascii=False)
