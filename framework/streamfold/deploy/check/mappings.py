"""The event sources of functions: each reads its stream from the beginning, gives a failing record up by itself, keeps
it, and passes every record that a handler wants.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Any

from streamfold.deploy import rules
from streamfold.deploy.check.review import VARIABLES, FoundFunction, Review, described
from streamfold.deploy.filters import PATTERNS_MAX, Beginning, beginnings_of, filter_of
from streamfold.deploy.functions import QUEUE, STREAM, VERIFIER
from streamfold.deploy.template_file import ABSENT, Mapped, Resource, Unknown
from streamfold.errors import SettingsError, manual
from streamfold.keys.key import Key
from streamfold.lambda_entry.queue import RING, STILL_SECONDS, WAKE
from streamfold.lifecycle.verify import AskedSample
from streamfold.settings.readers import PREFIX
from streamfold.testing.mapping_settings import Filters

STREAMS = ("DynamoDB", "Kinesis")


def check_mappings(review: Review) -> None:
    """Notes what is wrong with what starts the functions."""
    readers: dict[str, list[tuple[str, str | None]]] = {}
    for found in review.of(STREAM):
        reads: dict[str, str] = {}
        for each in found.mappings:
            if each.type in STREAMS:
                _check_stream(review, found, each)
                for table in tables_of(review, found, each):
                    reads[table] = each.resource
                reader = each.resource, found.function.group
                readers.setdefault(str(review.template.first(each.source)), []).append(reader)
        _check_read(review, found, set(reads))
    for stream, reading in readers.items():
        if "inesis" not in stream:
            _check_readers(review, stream, [name for name, _ in reading], len({group for _, group in reading}))
    for found in review.of(QUEUE):
        _check_queue(review, found)
    for found in review.of(VERIFIER):
        _check_verifier(review, found)


def _check_readers(review: Review, stream: str, names: Sequence[str], groups: int) -> None:
    if len(names) <= rules.READERS_MAX:
        return
    if rules.has_foreign_readers(len(names), groups):
        text = (
            f"it is reader {len(names)} of stream {stream}, beside {' and '.join(names[:-1])}: expected one for each "
        )
        review.wrong(
            names[-1], "Properties", f"{text}group, and {rules.READERS_MAX} at most, because more are throttled"
        )
    else:
        text = f"{' and '.join(names)} read stream {stream}: {rules.TOO_MANY_READERS} ({manual('sources')})"
        review.advise(names[-1], "Properties", text)


def tables_of(review: Review, found: FoundFunction, mapping: Mapped) -> Iterator[str]:
    """The logical tables whose changes a mapping brings."""
    source = review.template.first(mapping.source)
    stream = review.template.resource_of(source)
    for name, variable in review.deployment.environment_names.items():
        given = review.variable(found, variable)
        table = review.template.resource_of(given)
        sends_to = None
        if table is not None:
            (sends_to,) = review.values(table.properties, "KinesisStreamSpecification.StreamArn")[:1]
        if stream is not None:
            # A table of another stack may send its changes to this stream of Kinesis.
            is_kinesis = stream.type.startswith("AWS::Kinesis")
            is_it = is_kinesis if table is None else stream in (table, review.template.resource_of(sends_to))
        elif table is not None and (isinstance(source, Unknown) or source is None):
            is_it = sends_to == source  # the stream of a table of this template is known
        else:
            is_it = isinstance(source, Unknown) or source is None or _names(source, given)
        if is_it:
            yield name


def _names(source: Any, table: Any) -> bool:
    text = str(source)  # of Kinesis: its ARN names no table
    return isinstance(table, Unknown) or f":table/{table}/" in text or ":kinesis:" in text or "${" in text


def _check_read(review: Review, found: FoundFunction, read: set[str]) -> None:
    for table, subscribed in found.function.subscribed.items():
        if table not in read:
            names = list(dict.fromkeys(route.name for _, route in subscribed))
            review.wrong(
                found.name,
                "Properties.Events",
                f"no mapping brings the changes of table {table!r}: expected one for handlers {', '.join(names[:3])}",
            )
    for table in read - found.function.subscribed.keys():
        if not any(key.table.name == table for key in review.deployment.app.watched(found.function.group)):
            review.advise(found.name, "Properties.Events", f"no handler of the function reads table {table!r}")


def _check_stream(review: Review, found: FoundFunction, mapping: Mapped) -> None:
    at, given = (mapping.resource, mapping.path), mapping.properties
    kinesis = mapping.type == "Kinesis"

    # A bucket may also be a resource of the template.
    review.obey(
        at, given, *(rule for rule in rules.mapping_rules(kinesis=kinesis).values() if rule is not rules.DESTINATION)
    )
    _check_destination(review, mapping)
    _check_filter(review, found, mapping, kinesis=kinesis)


def _check_destination(review: Review, mapping: Mapped) -> None:
    at = mapping.resource, mapping.path

    def is_bucket(value: Any) -> bool:
        resource = review.template.resource_of(value)
        return resource.type == "AWS::S3::Bucket" if resource is not None else rules.DESTINATION.accepts(value)

    review.obey(at, mapping.properties, rules.DESTINATION._replace(accepts=is_bucket))
    if "Events" in mapping.path:
        review.obey(at, mapping.properties, rules.DESTINATION_TYPE)


# Filters.


def _check_filter(review: Review, found: FoundFunction, mapping: Mapped, *, kinesis: bool) -> None:
    path = f"{mapping.path}.FilterCriteria"
    for criteria in review.values(mapping.properties, "FilterCriteria"):
        if isinstance(criteria, Unknown):
            review.advise(mapping.resource, path, f"{criteria.text} is known to AWS only: expected the filter itself")
        if not isinstance(criteria, Mapping) or not criteria.get("Filters"):
            continue
        patterns: list[Any] = [
            each.get("Pattern") if isinstance(each, Mapping) else None for each in criteria["Filters"]
        ]
        try:
            Filters(patterns)
        except SettingsError as error:
            review.wrong(mapping.resource, path, str(error).rstrip("."))
            continue
        if len(patterns) > PATTERNS_MAX:
            text = f"it has {len(patterns)} patterns: AWS takes {PATTERNS_MAX} unless it grants more"
            review.advise(mapping.resource, path, text)
        branches = [branch for text in patterns for branch in _branches(json.loads(text), kinesis=kinesis)]
        tables = [*tables_of(review, found, mapping)]
        dropped = {table: _dropped(found, table, branches) for table in tables}
        if len(tables) > 1 and not all(dropped.values()):  # a stream of another stack is of one of these tables
            tables = [table for table in tables if not dropped[table]]
        for table in tables:
            _check_wanted(review, found, mapping, table, branches)


class _Branch:
    """One way through a pattern: what it asks of key attributes, and the first other thing that it asks for."""

    def __init__(self, keys: Mapping[str, Any], other: str | None) -> None:
        self.keys = keys
        self.other = other


def _branches(pattern: Mapping[str, Any], *, kinesis: bool) -> Iterator[_Branch]:
    for conditions in _conditions(pattern):
        found, keys, other = dict(conditions), {}, None
        before = ("data", "dynamodb", "Keys") if kinesis else ("dynamodb", "Keys")
        for path, tests in found.items():
            if path[: len(before)] == before and len(path) == len(before) + 2:
                keys[path[len(before)]] = (path[-1], tests)
            else:
                other = other or ".".join(path)
        yield _Branch(keys, other)


def _conditions(pattern: Mapping[str, Any]) -> Iterator[tuple[tuple[tuple[str, ...], Any], ...]]:
    """Each way through the ``$or`` of a pattern, as conditions: a path and its tests."""
    ways: list[tuple[tuple[tuple[str, ...], Any], ...]] = [()]
    for name, inner in pattern.items():
        if name == "$or":
            more = [way for branch in inner for way in _conditions(branch)]
        elif isinstance(inner, Mapping):
            more = [tuple(((name, *path), tests) for path, tests in way) for way in _conditions(inner)]
        else:
            more = [(((name,), inner),)]
        ways = [(*way, *each) for way in ways for each in more]
    yield from ways


def _check_wanted(
    review: Review, found: FoundFunction, mapping: Mapped, table: str, branches: Sequence[_Branch]
) -> None:
    """Every key that a handler reads passes by a pattern that asks for nothing but keys."""
    path = f"{mapping.path}.FilterCriteria"
    if dropped := _dropped(found, table, branches):
        key, names = next(iter(dropped.items()))
        asking = next((each.other for each in branches if each.other and _covers(_Branch(each.keys, None), key)), None)
        why = (
            f"a pattern asks for {asking}, which not every change of it has" if asking else "no pattern lets it through"
        )
        review.wrong(
            mapping.resource,
            path,
            f"it drops records of {key!r}, which {names[0]} reads: {why}"
            f"{f' (and of {len(dropped) - 1} more keys)' if len(dropped) > 1 else ''}; expected the patterns of "
            "streamfold template, or no filter. Dropped records are lost for good",
        )
    else:
        _advise_rows(review, found, mapping, table)


def _dropped(found: FoundFunction, table: str, branches: Sequence[_Branch]) -> dict[Key, list[str]]:
    """The keys of a table that no pattern lets through, with the handlers that read them."""
    wanted: dict[Key, list[str]] = {}
    for key, route in found.function.subscribed.get(table, ()):
        wanted.setdefault(key, []).append(route.name)
    return {key: names for key, names in wanted.items() if not any(_covers(each, key) for each in branches)}


def _advise_rows(review: Review, found: FoundFunction, mapping: Mapped, table: str) -> None:
    given = filter_of(review.deployment.app, found.function.group, table, kinesis=mapping.type == "Kinesis")
    (criteria,) = review.values(mapping.properties, "FilterCriteria")[:1]
    own = [json.loads(each["Pattern"]) for each in criteria["Filters"]]
    lacking = [
        each
        for each in map(json.loads, given.patterns)
        if "OldImage" in json.dumps(each) and not all(_asks_less(own, way) for way in _ways(each))
    ]
    if lacking and any("Keys" in json.dumps(each) for each in own):
        review.advise(
            mapping.resource,
            f"{mapping.path}.FilterCriteria",
            "it drops removals of rows that handlers add to: nobody notices that somebody removed one. streamfold "
            "template prints the pattern",
        )


def _asks_less(patterns: Iterable[Mapping[str, Any]], wanted: AbstractSet[str]) -> bool:
    return any(way <= wanted for pattern in patterns for way in _ways(pattern))


def _ways(pattern: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    """Each way through a pattern, as texts of its conditions: one test of each path."""
    for conditions in _conditions(pattern):
        paths = [[json.dumps((path, test), sort_keys=True) for test in tests] for path, tests in conditions]
        yield from map(frozenset, product(*paths))


def _covers(branch: _Branch, key: Key) -> bool:
    if branch.other is not None:
        return False
    begun = beginnings_of(key)
    own = dict(zip(key.table.attributes, begun, strict=False))
    types = dict(zip(key.table.attributes, (each.attribute_type for each in key.parts), strict=False))
    return all(
        name in own and types[name] == tag and _lets_through(tests, own[name])
        for name, (tag, tests) in branch.keys.items()
    )


def _lets_through(tests: Iterable[Any], beginning: Beginning | None) -> bool:
    for test in tests:
        if test in ({"exists": True}, {"prefix": ""}):
            return True
        if beginning is None:
            continue
        text, complete = beginning
        if isinstance(test, Mapping) and isinstance(test.get("prefix"), str) and text.startswith(test["prefix"]):
            return True
        if complete and test == text:
            return True
    return False


# The queue's function, and the function that compares.


def _check_queue(review: Review, found: FoundFunction) -> None:
    messages = [each for each in found.mappings if each.type == "SQS"]
    if not messages:
        review.wrong(found.name, "Properties.Events", "no queue calls it: expected an event of SQS with BatchSize 1")
    for each in messages:
        review.obey((each.resource, each.path), each.properties, *rules.MESSAGE_RULES.values())
    sources = [review.named(each.source) for each in messages]
    for other in (*review.of(STREAM), found):
        if found.function.group in (None, other.function.group):
            _check_jobs(review, other, sources)
    schedules = [each for each in found.mappings if each.type.startswith("Schedule")]
    if found.function.is_woken and not any(_calls(review, each, WAKE, WAKE_SECONDS) for each in schedules):
        review.wrong(
            found.name,
            "Properties.Events",
            "no schedule looks for items whose moment has come: their rows never change by time. Expected "
            f"{rules.EACH_MINUTE} with the input {json.dumps(WAKE)}",
        )
    if not any(_calls(review, each, RING, STILL_SECONDS) for each in schedules):
        resource, where = (schedules[0].resource, schedules[0].path) if schedules else (found.name, "Properties.Events")
        review.wrong(
            resource,
            where,
            "no schedule queues segments again that stand still: expected "
            f"{rules.AGAIN} with the input {json.dumps(RING)}",
        )


def _check_jobs(review: Review, found: FoundFunction, sources: Sequence[Resource | None]) -> None:
    queue = review.template.resource_of(review.variable(found, PREFIX + "JOBS"))
    if queue is not None and queue not in sources:
        calls = " and ".join(each.name for each in sources if each is not None) or "no queue"
        review.wrong(
            found.name,
            f"{VARIABLES}.{PREFIX}JOBS",
            f"{described(queue.name)}: expected {calls}, which calls the function of it",
        )


WAKE_SECONDS = 300
"""A schedule of visits at wakes that is less frequent lets rows be late by more than the alarm on them takes."""


def _calls(review: Review, mapping: Mapped, wanted: Mapping[str, Any], seconds_max: int) -> bool:
    """Whether a schedule calls a function with an event, and often enough."""
    given = mapping.properties
    try:
        event = json.loads(str(review.template.first(given.get("Input", ABSENT))))
    except ValueError:
        return False
    seconds = rate_seconds(review.template.first(given.get("Schedule", given.get("ScheduleExpression", ABSENT))))
    return bool(event == wanted and seconds is not None and seconds <= seconds_max and _is_enabled(given))


def _is_enabled(given: Mapping[str, Any]) -> bool:
    return str(given.get("State", "ENABLED")) == "ENABLED" and str(given.get("Enabled", True)).lower() != "false"


def rate_seconds(schedule: Any) -> float | None:
    """The seconds of ``rate(5 minutes)``; None for another text, such as a ``cron`` expression."""
    words = str(schedule).removeprefix("rate(").removesuffix(")").split()
    units = {"minute": 60, "hour": 3600, "day": 86_400}
    if not str(schedule).startswith("rate(") or len(words) != 2 or words[1].rstrip("s") not in units:
        return None
    count = rules.number(words[0])
    return None if count is None else count * units[words[1].rstrip("s")]


def _check_verifier(review: Review, found: FoundFunction) -> None:
    schedules = [each for each in found.mappings if each.type.startswith("Schedule")]
    if not schedules:
        review.wrong(found.name, "Properties.Events", f"no schedule calls it: expected {rules.DAILY}")
    for each in schedules:
        if not _is_enabled(each.properties):
            review.wrong(each.resource, each.path, "the schedule is off: expected one that is on, each day")
        text = review.template.first(each.properties.get("Input", ABSENT))
        try:
            AskedSample.of(json.loads(text) if isinstance(text, str) else {})
        except (ValueError, SettingsError) as error:
            review.wrong(each.resource, f"{each.path}.Input", f"{text}: {error}")
