"""What is right of a deployment, each rule once: the generator, the check of a template and doctor take it from here.

A rule is of one property, as CloudFormation and the services' APIs name it. Relations between two resources are
functions of both. The order of the rules is that of the messages.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streamfold.deploy.choices import CHOICES
from streamfold.deploy.template_file import ABSENT, is_bucket_arn
from streamfold.settings.limits import CALL_SECONDS_MAX, SECONDS_A_DAY
from streamfold.testing.mapping_settings import AGE_SECONDS_MIN, RANGES

Predicate = Callable[[Any], bool]
READERS_MAX = 2
"""Readers of one shard of a table's stream (DynamoDB Developer Guide, Streams)."""
TOO_MANY_READERS = (
    f"DynamoDB serves {READERS_MAX}, and throttles more at times; run several groups in one function, or read through "
    "Kinesis"
)
PARTIAL_RESPONSE = ["ReportBatchItemFailures"]
CONCURRENCY_MIN, CONCURRENCY_MAX, CONCURRENCY = 2, 1000, 10
"""Segments of fan-outs side by side (Lambda API Reference, ScalingConfig), and what is printed."""
QUEUE_TIMEOUTS, QUEUE_RECEIVES = 6, 5
"""The visibility of a message over its function's timeout, and receives before it is given up (Lambda Developer Guide,
services-sqs-configure)."""
VISIBILITY_SECONDS_MAX = 43_200
TIMEOUT_SECONDS_MAX = 900
"""Of a function (Lambda API Reference, CreateFunction)."""
DEAD_LETTER_SECONDS = 14 * SECONDS_A_DAY
"""The longest that a queue keeps a message (SQS API Reference, SetQueueAttributes)."""


# What a value may be.


def number(value: Any) -> float | None:
    """A number, which CloudFormation and SQS also give as text; None for another value."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def within(minimum: float, most: float, *, default: float | None = None) -> Predicate:
    """Accepts whole numbers in a range; with a default, a missing value too."""

    def accepts(value: Any) -> bool:
        found = default if value is ABSENT else number(value)
        return found is not None and found == int(found) and minimum <= found <= most

    return accepts


def one_of(*values: Any) -> Predicate:
    return lambda value: value in values


def is_on(value: Any) -> bool:
    """Whether a switch is on, which CloudFormation also takes as text."""
    return value is True or str(value).lower() == "true"


class DeploymentRule(NamedTuple):
    """What one property of a resource has to be."""

    property: str  # a path
    accepts: Predicate
    expected: str  # what is accepted, and why
    value: Any = ABSENT  # what a printed template has; ABSENT: nothing
    choice: str = ""  # the parameter that a printed template has in place of it

    def found(self, content: Mapping[str, Any]) -> Any:
        """The value of the property in plain values, such as the answer of a service."""
        found: Any = content
        for step in self.property.split("."):
            found = found.get(step, ABSENT) if isinstance(found, Mapping) else ABSENT
        return found

    def holds(self, content: Mapping[str, Any]) -> bool:
        return self.accepts(self.found(content))


def _chosen(property_: str, choice: str, text: str, *, default: float | None = None) -> DeploymentRule:
    """A rule whose bounds are those of a parameter."""
    (found,) = [each for each in CHOICES if each.name == choice]
    assert found.minimum is not None
    assert found.most is not None
    bounds = f"{found.minimum} to {found.most}"
    return DeploymentRule(
        property_, within(found.minimum, found.most, default=default), f"{bounds} {text}".strip(), choice=choice
    )


# The mapping of a stream.

STARTS = DeploymentRule(
    "StartingPosition",
    one_of("TRIM_HORIZON"),
    "TRIM_HORIZON: others miss records while the mapping is made",
    "TRIM_HORIZON",
)
RESPONSES = DeploymentRule(
    "FunctionResponseTypes",
    one_of(PARTIAL_RESPONSE),
    f"{PARTIAL_RESPONSE}: else all records of a batch fail",
    PARTIAL_RESPONSE,
)
HALVES = DeploymentRule(
    "BisectBatchOnFunctionError",
    is_on,
    "true: a batch that ends the function is halved until one record is left",
    True,
)
RETRIES = _chosen(
    "MaximumRetryAttempts",
    "Retries",
    "retries: without a limit, one record may stop its shard until it expires",
)
AGE = _chosen(
    "MaximumRecordAgeInSeconds",
    "RecordAgeSeconds",
    "seconds: records that are given up are kept, and those that expire are not",
)
AGE_OF_KINESIS = AGE._replace(
    accepts=within(AGE_SECONDS_MIN, RANGES["age_seconds_max"][1]),
    expected=f"{AGE_SECONDS_MIN} to {RANGES['age_seconds_max'][1]} seconds: records that are given up are kept",
)
DESTINATION = DeploymentRule(
    "DestinationConfig.OnFailure.Destination",
    lambda value: is_bucket_arn(str(value)),
    "a bucket, which gets the records that are given up; a queue gets their numbers only",
)
ENABLED = DeploymentRule("Enabled", lambda value: value is ABSENT or is_on(value), "true: records expire after a day")


def mapping_rules(*, kinesis: bool) -> dict[str, DeploymentRule]:
    """The rules of the mapping of a stream, by property."""
    rules = (
        STARTS,
        _chosen("BatchSize", "BatchSize", "records", default=100),
        _chosen("MaximumBatchingWindowInSeconds", "WindowSeconds", "seconds", default=0),
        _chosen("ParallelizationFactor", "ParallelizationFactor", "", default=1),
        RESPONSES,
        HALVES,
        RETRIES,
        AGE_OF_KINESIS if kinesis else AGE,
        DeploymentRule(
            "TumblingWindowInSeconds", within(0, 0, default=0), "none: the function keeps no state of a window"
        ),
        ENABLED,
        DeploymentRule(
            "MetricsConfig.Metrics",
            lambda value: isinstance(value, list) and "EventCount" in value,
            "[EventCount], which the alarms read",
            ["EventCount"],
        ),
        DESTINATION,
    )
    return {rule.property: rule for rule in rules}


def has_foreign_readers(readers: int, groups: int) -> bool:
    """Whether a stream has more readers than DynamoDB serves, and than the application has groups that read it."""
    return readers > max(READERS_MAX, groups)


# The mapping of a queue, and the queue.

MESSAGE_RULES: Mapping[str, DeploymentRule] = {
    rule.property: rule
    for rule in (
        DeploymentRule("BatchSize", within(1, 1), "1: each segment has an invocation of its own", 1),
        RESPONSES._replace(expected=f"{PARTIAL_RESPONSE}: else a failure is acknowledged"),
        ENABLED._replace(expected="true: no fan-out goes on else"),
        DeploymentRule(
            "ScalingConfig.MaximumConcurrency",
            within(CONCURRENCY_MIN, CONCURRENCY_MAX, default=CONCURRENCY_MIN),
            f"{CONCURRENCY_MIN} to {CONCURRENCY_MAX}",
            CONCURRENCY,
        ),
        DeploymentRule("FilterCriteria", one_of(ABSENT), "none: a message that is filtered out is deleted"),
    )
}
RECEIVES = DeploymentRule(
    "RedrivePolicy.maxReceiveCount",
    within(QUEUE_RECEIVES, 1000),
    f"{QUEUE_RECEIVES} or more, and a dead-letter queue",
    QUEUE_RECEIVES,
)
STANDARD = DeploymentRule(
    "FifoQueue", lambda value: not is_on(value), "a standard queue: segments would wait for each other"
)
KEPT_LETTERS = DeploymentRule(
    "MessageRetentionPeriod",
    within(DEAD_LETTER_SECONDS, DEAD_LETTER_SECONDS, default=345_600),
    f"{DEAD_LETTER_SECONDS}, the longest: a person looks at these messages",
    DEAD_LETTER_SECONDS,
)


def visibility_rule(timeout_seconds: float, function: str) -> DeploymentRule:
    """The rule of a queue whose messages a function works on for so long at most."""
    shortest = QUEUE_TIMEOUTS * timeout_seconds
    return DeploymentRule(
        "VisibilityTimeout",
        within(shortest, VISIBILITY_SECONDS_MAX, default=30),
        f"{shortest:.0f} seconds or more, {QUEUE_TIMEOUTS} times the Timeout of {function}",
        int(shortest),
    )


# Functions and tables.


def timeout_seconds_min(stop_seconds: float) -> float:
    """The shortest timeout of a function that begins no call in its last seconds: one call has to fit before them."""
    return stop_seconds + CALL_SECONDS_MAX


def timeout_rule(stop_seconds: float) -> DeploymentRule:
    """The rule of such a function."""
    shortest = timeout_seconds_min(stop_seconds)
    return DeploymentRule(
        "Timeout",
        within(shortest, TIMEOUT_SECONDS_MAX, default=3),
        f"{shortest:.0f} to {TIMEOUT_SECONDS_MAX} seconds: no call is begun in the last {stop_seconds:.0f}",
    )


RECOVERY = DeploymentRule(
    "PointInTimeRecoverySpecification.PointInTimeRecoveryEnabled",
    is_on,
    "true: the table can be restored",
    True,
)


def time_to_live_rules(attribute: str) -> Sequence[DeploymentRule]:
    """The rules of a table whose items expire by an attribute."""
    return (
        DeploymentRule(
            "TimeToLiveSpecification.AttributeName",
            one_of(attribute),
            f"{attribute}, by which items expire",
            attribute,
        ),
        DeploymentRule("TimeToLiveSpecification.Enabled", is_on, "true", True),
    )


def as_properties(rules: Iterable[DeploymentRule], values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The right values of rules as properties of a resource. ``values``: those that a resource has of its own."""
    found: dict[str, Any] = {}
    for rule in rules:
        value = (values or {}).get(rule.property, {"Ref": rule.choice} if rule.choice else rule.value)
        if value is ABSENT:
            continue
        *before, last = rule.property.split(".")
        inner = found
        for step in before:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return found
