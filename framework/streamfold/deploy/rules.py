"""What is right of a deployment, each rule once: the generator, the check of a template and doctor take it from here.

A rule is of one property, as CloudFormation and the services' APIs name it. ``RULES`` has those of each resource. A
relation between two resources is a function that gives the rule of one of them. The order of the rules is that of the
messages.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from streamfold.deploy.alarms import ABOVE, MINUTE, Alarm
from streamfold.deploy.choices import ARCHITECTURES, MEMORY_MB_MIN, choice_of
from streamfold.deploy.functions import QUEUE, STREAM, VERIFIER, Sort
from streamfold.deploy.template_file import ABSENT, is_bucket_arn
from streamfold.errors import manual
from streamfold.keys.table import STRONG
from streamfold.lifecycle.verify import LOOKS_MAX, SPARE_SECONDS, TOLERANCE_SECONDS
from streamfold.settings.limits import CALL_SECONDS_MAX, SECONDS_A_DAY, STOP_SECONDS
from streamfold.testing.mapping_settings import AGE_SECONDS_MIN, RANGES

Predicate = Callable[[Any], bool]
Level = Literal["wrong", "advice"]
WRONG: Level = "wrong"
"""The deployed application would lose, repeat or hide something, or not run."""
ADVICE: Level = "advice"
"""A person may have a reason."""
OURS = "streamfold"
"""The source of a rule that the framework itself has."""
READERS_MAX = 2
"""Readers of one shard of a table's stream (DynamoDB Developer Guide, Streams)."""
FEWER_READERS = "run several groups in one function, or read through Kinesis"
TOO_MANY_READERS = f"DynamoDB serves {READERS_MAX}, and throttles more at times; {FEWER_READERS}"
PARTIAL_RESPONSE = ["ReportBatchItemFailures"]
CONCURRENCY_MIN, CONCURRENCY_MAX, CONCURRENCY = 2, 1000, 10
"""Segments of fan-outs side by side, and what is printed."""
QUEUE_TIMEOUTS, QUEUE_RECEIVES = 6, 5
"""The visibility of a message over its function's timeout, and receives before it is given up."""
VISIBILITY_SECONDS_MAX = 43_200
TIMEOUT_SECONDS_MAX = 900
DEAD_LETTER_SECONDS = 14 * SECONDS_A_DAY
"""The longest that a queue keeps a message."""
TIMEOUT_SECONDS: Mapping[Sort, int] = {STREAM: 60, QUEUE: 120, VERIFIER: TIMEOUT_SECONDS_MAX}
"""What is printed: well above STREAMFOLD_STOP_SECONDS, and long enough for some pages of a segment, or for a sample."""
STOPS = 2
"""A function's time over STREAMFOLD_STOP_SECONDS, at least: within the rest, no call is begun."""
AGAIN, DAILY = "rate(5 minutes)", "rate(1 day)"
"""When segments that stand still are queued again, and when a sample is compared."""
EACH_MINUTE = "rate(1 minute)"
"""When wakes whose moment has come are looked for."""
FUNCTIONS = "Lambda API Reference, CreateFunction"
MAPPINGS = "Lambda API Reference, CreateEventSourceMapping"
MESSAGES = "Lambda Developer Guide, services-sqs-configure"
QUEUES = "SQS API Reference, SetQueueAttributes"
ALARMS = "CloudWatch API Reference, PutMetricAlarm"


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


def is_not_off(value: Any) -> bool:
    return value is ABSENT or is_on(value)


class DeploymentRule(NamedTuple):
    """What one property of a resource has to be."""

    property: str  # a path
    accepts: Predicate
    expected: str  # what is accepted, and why
    value: Any = ABSENT  # what a printed template has; ABSENT: nothing
    choice: str = ""  # the parameter that a printed template has in place of it
    level: Level = WRONG
    source: str = OURS

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
    found = choice_of(choice)
    assert found.minimum is not None
    assert found.most is not None
    expected = f"{found.minimum} to {found.most} {text}".strip()
    accepts = within(found.minimum, found.most, default=default)
    return DeploymentRule(property_, accepts, expected, choice=choice, source=MAPPINGS)


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
    source="Lambda Developer Guide, with-ddb-retry-handling",
)
DESTINATION_TYPE = DeploymentRule("DestinationConfig.OnFailure.Type", one_of("S3"), "S3", "S3")
"""Of an event of SAM; a mapping has no such property."""
ENABLED = DeploymentRule("Enabled", is_not_off, "true: records expire after a day")


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


# The mapping of a queue, the queue, and its dead letters.

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
            source="Lambda API Reference, ScalingConfig",
        ),
        DeploymentRule("FilterCriteria", one_of(ABSENT), "none: a message that is filtered out is deleted"),
    )
}
STANDARD = DeploymentRule(
    "FifoQueue", lambda value: not is_on(value), "a standard queue: segments would wait for each other"
)
RECEIVES = DeploymentRule(
    "RedrivePolicy.maxReceiveCount",
    within(QUEUE_RECEIVES, 1000),
    f"{QUEUE_RECEIVES} or more, and a dead-letter queue",
    QUEUE_RECEIVES,
    source=MESSAGES,
)
KEPT_LETTERS = DeploymentRule(
    "MessageRetentionPeriod",
    within(DEAD_LETTER_SECONDS, DEAD_LETTER_SECONDS, default=345_600),
    f"{DEAD_LETTER_SECONDS}, the longest: a person looks at these messages",
    DEAD_LETTER_SECONDS,
    source=QUEUES,
)
ENCRYPTED = DeploymentRule("SqsManagedSseEnabled", is_on, "true, or a key (KmsMasterKeyId)", True, source=QUEUES)


def visibility_rule(timeout_seconds: float, function: str) -> DeploymentRule:
    """The rule of a queue whose messages a function works on for so long at most."""
    shortest = QUEUE_TIMEOUTS * timeout_seconds
    return DeploymentRule(
        "VisibilityTimeout",
        within(shortest, VISIBILITY_SECONDS_MAX, default=30),
        f"{shortest:.0f} seconds or more, {QUEUE_TIMEOUTS} times the Timeout of {function}",
        int(shortest),
        source=MESSAGES,
    )


def encryption_rules(queue: Mapping[str, Any]) -> Sequence[DeploymentRule]:
    """The rule of a queue without a key of its own."""
    return () if "KmsMasterKeyId" in queue else (ENCRYPTED,)


# Functions.

FUNCTION_RULES = (
    DeploymentRule(
        "Architectures",
        lambda value: value is ABSENT or (isinstance(value, list) and len(value) == 1 and value[0] in ARCHITECTURES),
        " or ".join(ARCHITECTURES),
        [{"Ref": "Architecture"}],
        source=FUNCTIONS,
    ),
    _chosen("MemorySize", "MemorySize", "", default=128)._replace(
        expected=f"{MEMORY_MB_MIN} MB or more: CPU grows with memory", level=ADVICE, source=FUNCTIONS
    ),
    DeploymentRule(
        "ReservedConcurrentExecutions",
        lambda value: value is ABSENT or number(value) != 0,
        "1 or more, or no such property: with 0 the function never runs",
        source="Lambda API Reference, PutFunctionConcurrency",
    ),
    DeploymentRule(
        "FunctionUrlConfig.AuthType",
        one_of(ABSENT, "AWS_IAM"),
        "no URL of the function, or one with AuthType AWS_IAM: anybody could send it records",
    ),
    DeploymentRule(
        "AutoPublishAlias",
        one_of(ABSENT),
        f"no alias; with one, set STREAMFOLD_OLDER_CODE=on while two versions run ({manual('changing-code')})",
        level=ADVICE,
    ),
)
RECURSION = DeploymentRule(
    "RecursiveLoop",
    one_of("Allow"),
    "Allow: it sends itself messages, and Lambda stops that else",
    "Allow",
    source="Lambda Developer Guide, invocation-recursion",
)
TRUSTED = DeploymentRule(
    "Principal",
    one_of({"Service": "lambda.amazonaws.com"}, {"Service": ["lambda.amazonaws.com"]}),
    "the service lambda.amazonaws.com alone, which runs the function",
    {"Service": "lambda.amazonaws.com"},
)
"""Of each statement of a role that says who may have it."""


def runtime_rule(runtime: str) -> DeploymentRule:
    expected = f"{runtime}, for which byte code is made; --runtime names another"
    return DeploymentRule("Runtime", one_of(runtime), expected, runtime)


def pythons_of(build: Path) -> set[str]:
    """The Pythons of the byte code in a folder, as ``python3.13``: a function compiles what is of others at each start.

    Files of an optimized Python, ``a.cpython-313.opt-1.pyc``, are of it too.
    """
    tags = {file.name.rpartition(".cpython-")[2].partition(".")[0] for file in build.rglob("*.cpython-*.pyc")}
    return {f"python{tag[0]}.{tag[1:]}" for tag in tags}


def timeout_seconds_min(stop_seconds: float) -> float:
    """The shortest timeout of a function that begins no call in its last seconds: one call has to fit before them."""
    return stop_seconds + CALL_SECONDS_MAX


def timeout_rule(stop_seconds: float) -> DeploymentRule:
    shortest = timeout_seconds_min(stop_seconds)
    return DeploymentRule(
        "Timeout",
        within(shortest, TIMEOUT_SECONDS_MAX, default=3),
        f"{shortest:.0f} to {TIMEOUT_SECONDS_MAX} seconds: no call is begun in the last {stop_seconds:.0f}",
        source=FUNCTIONS,
    )


def ample_timeout_rule(sort: Sort) -> DeploymentRule:
    """The advice: with little more than the shortest timeout, a function does hardly anything."""
    shortest = STOPS * STOP_SECONDS if sort != VERIFIER else 2 * LOOKS_MAX * TOLERANCE_SECONDS + SPARE_SECONDS
    accepts = within(shortest, TIMEOUT_SECONDS_MAX, default=3)
    expected = f"{shortest:.0f} to {TIMEOUT_SECONDS_MAX} seconds"
    return DeploymentRule("Timeout", accepts, expected, TIMEOUT_SECONDS[sort], level=ADVICE)


def url_rule(function: str) -> DeploymentRule:
    return DeploymentRule(
        "AuthType", one_of("AWS_IAM"), f"AWS_IAM, or no URL: anybody could send records to {function}"
    )


def caller_rule(function: str) -> DeploymentRule:
    return DeploymentRule(
        "Principal", lambda value: value != "*", f"a service or an account: anybody could call {function}"
    )


# Tables, buckets, logs.

RETAINED = tuple(
    DeploymentRule(
        policy,
        one_of("Retain", "RetainExceptOnCreate", "Snapshot"),
        "Retain: what it holds outlives the stack",
        "Retain",
        source=f"CloudFormation User Guide, {policy} attribute",
    )
    for policy in ("DeletionPolicy", "UpdateReplacePolicy")
)
"""Of tables and buckets, beside their properties."""
RECOVERY = DeploymentRule(
    "PointInTimeRecoverySpecification.PointInTimeRecoveryEnabled",
    is_on,
    "true: the table can be restored",
    True,
)
CONSISTENCY = DeploymentRule(
    "MultiRegionConsistency", lambda value: value != STRONG, "EVENTUAL", source="DynamoDB Developer Guide, MRSC"
)
UNREAD = DeploymentRule("StreamSpecification", one_of(ABSENT), "none: nothing is derived from the state", level=ADVICE)
BUCKET_RULES = (
    DeploymentRule(
        "BucketEncryption.ServerSideEncryptionConfiguration",
        lambda value: isinstance(value, list) and bool(value),
        "a rule: AES256, or a key",
        [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}],
    ),
    *(
        DeploymentRule(f"PublicAccessBlockConfiguration.{block}", is_on, "true: it holds contents of items", True)
        for block in ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
    ),
)
ENCRYPTED_REQUESTS = DeploymentRule(
    "Condition",
    lambda value: "SecureTransport" in str(value),
    "aws:SecureTransport false",
    {"Bool": {"aws:SecureTransport": False}},
)
"""Of the statement that denies requests to a bucket or a queue."""
LOG_RULES = (
    DeploymentRule(
        "RetentionInDays",
        lambda value: number(value) is not None,
        "a number of days: the log is kept for ever else",
        choice="LogDays",
        source="CloudWatch Logs API Reference, PutRetentionPolicy",
    ),
    DeploymentRule(
        "LogGroupClass",
        one_of(ABSENT, "STANDARD"),
        "STANDARD, or no such property: of other classes, CloudWatch makes no metrics of log lines",
        source="CloudWatch Logs User Guide, log classes",
    ),
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


def key_schema(attributes: Iterable[str]) -> list[dict[str, str]]:
    both = zip(attributes, ("HASH", "RANGE"), strict=False)
    return [{"AttributeName": name, "KeyType": kind} for name, kind in both]


# Alarms.

COUNTING = ("Sum", "Maximum", "Average")
"""Statistics that are above 0 where anything was counted. ``SampleCount`` counts zeros too."""
REACHING = "GreaterThanOrEqualToThreshold"
MEASURED = DeploymentRule(
    "ComparisonOperator", one_of(ABOVE, REACHING), f"{ABOVE}: more of it is worse", ABOVE, source=ALARMS
)
WITHOUT_POLL = MEASURED._replace(expected=f"{ABOVE}: it is 1 without a poll")
"""Of an alarm that rises where a mapping asks for no records."""
SILENT = DeploymentRule(
    "TreatMissingData", one_of("breaching"), "breaching: a mapping that does not poll counts nothing", source=ALARMS
)
"""Of such an alarm that reads one metric alone."""
ACTING = DeploymentRule("ActionsEnabled", is_not_off, "true: nobody is notified else", source=ALARMS)


LOWER, HIGHER = 15, 48
"""A threshold may be a fifteenth of ours, or 48 times as high: an age of records from a minute to half a day, which is
half of what a stream keeps. A threshold in the wrong unit is out of it.
"""
PASSING_A_MINUTE = 10
"""Errors and throttles that pass by themselves. A function that fails at each try has one to three errors a minute for
each shard (``testing.mapping``): with more shards than that, an owner may wait for more of them."""
LATER = 12
"""How many times as late as ours an alarm may rise: one refused record within 12 minutes, before it is given
up, if Lambda's pauses are those of ``testing.mapping``."""


class ThresholdBounds(NamedTuple):
    """The thresholds with which an alarm still rises, stricter and looser ones than ours."""

    lowest: float
    highest: float

    def accept(self, threshold: float | None, *, reaching: bool = False) -> bool:
        """``reaching``: the alarm rises at its threshold, so that 1 is as strict as 0 is else."""
        if threshold is None:
            return False
        return self.lowest <= threshold <= self.highest or (
            self.highest == 0 and (0 < threshold < 1 or (reaching and threshold == 1))
        )

    def __str__(self) -> str:
        if self.highest == 0:
            return "0, so that one is enough"
        return f"{self.lowest:.0f} to {self.highest:.0f}" if self.highest < inf else f"{self.lowest:.0f} or more"


def bounds_of(alarm: Alarm, period_seconds: float | None = None) -> ThresholdBounds:
    """The bounds of an alarm's threshold. ``period_seconds``: of the alarm of a template, if it is not ours."""
    if alarm.threshold:
        return ThresholdBounds(alarm.threshold / LOWER, alarm.threshold * HIGHER)
    if alarm.latest_seconds:
        return ThresholdBounds(0, inf)  # whoever may wait for a day may wait for many of them
    if alarm.breaching > 1:
        return ThresholdBounds(0, PASSING_A_MINUTE * (period_seconds or alarm.period) / MINUTE)
    return ThresholdBounds(0, 0)


def latest_seconds(alarm: Alarm) -> int:
    return alarm.latest_seconds or LATER * alarm.period * alarm.breaching


def alarm_rules(alarm: Alarm) -> Sequence[DeploymentRule]:
    """The rules of an alarm on one metric. Those of its threshold and its periods are relations to the given alarm."""
    statistics = COUNTING if alarm.threshold == 0 else (alarm.statistic,)
    no_other = f"no Unit, or {alarm.unit}: of others there is no data"
    return (
        DeploymentRule("Statistic", one_of(*statistics), alarm.statistic, alarm.statistic),
        DeploymentRule("Unit", one_of(ABSENT, alarm.unit), no_other, source="CloudWatch User Guide, concepts"),
        MEASURED,
        DeploymentRule(
            "TreatMissingData",
            one_of("breaching") if alarm.missing == "breaching" else lambda value: value != "breaching",
            f"{alarm.missing}: nothing is {'a' if alarm.missing == 'breaching' else 'no'} fault",
            alarm.missing,
            source=ALARMS,
        ),
    )


RULES: Mapping[str, Sequence[DeploymentRule]] = {
    "mapping of a stream": (*mapping_rules(kinesis=False).values(), DESTINATION_TYPE),
    "mapping of Kinesis": (*mapping_rules(kinesis=True).values(), DESTINATION_TYPE),
    "mapping of a queue": tuple(MESSAGE_RULES.values()),
    "queue": (STANDARD, RECEIVES, ENCRYPTED),
    "dead-letter queue": (KEPT_LETTERS, ENCRYPTED),
    "function": FUNCTION_RULES,
    "function of a queue": (RECURSION,),
    "role": (TRUSTED,),
    "table": (RECOVERY, CONSISTENCY),
    "state": (RECOVERY, UNREAD),
    "table or bucket": RETAINED,
    "bucket": BUCKET_RULES,
    "log": LOG_RULES,
    "alarm": (MEASURED, ACTING),
    "alarm on polls": (WITHOUT_POLL, SILENT, ACTING),
}
"""The rules of each resource that need nothing of another one, nor of the application."""


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
