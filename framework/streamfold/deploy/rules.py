"""What is right of the mapping of a stream: the generator, the check of a template and doctor take it from here."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from streamfold.deploy.check.review import is_on, one_of, within
from streamfold.deploy.template_file import ABSENT
from streamfold.routes.route import AGE_SECONDS_MAX, ATTEMPTS_MAX
from streamfold.testing.mapping_settings import AGE_SECONDS_MIN, RANGES

READERS_MAX = 2
"""Readers of one shard of a table's stream (DynamoDB Developer Guide, Streams)."""
TOO_MANY_READERS = (
    f"DynamoDB serves {READERS_MAX}, and throttles more at times; run several groups in one function, or read through "
    "Kinesis"
)
PARTIAL_RESPONSE = ["ReportBatchItemFailures"]


class DeploymentRule(NamedTuple):
    """What one property of a mapping has to be."""

    property: str
    accepts: Callable[[Any], bool]
    expected: str  # what is accepted, and why

    def holds(self, content: Mapping[str, Any]) -> bool:
        return self.accepts(content.get(self.property, ABSENT))


def mapping_rules(*, kinesis: bool) -> dict[str, DeploymentRule]:
    most = RANGES["age_seconds_max"][1] if kinesis else AGE_SECONDS_MAX - 1
    rules = (
        DeploymentRule(
            "StartingPosition",
            one_of("TRIM_HORIZON"),
            "TRIM_HORIZON: others miss records while the mapping is made",
        ),
        DeploymentRule(
            "FunctionResponseTypes",
            one_of(PARTIAL_RESPONSE),
            f"{PARTIAL_RESPONSE}: else all records of a batch fail",
        ),
        DeploymentRule(
            "BisectBatchOnFunctionError",
            is_on,
            "true: a batch that ends the function is halved until one record is left",
        ),
        DeploymentRule(
            "MaximumRetryAttempts",
            within(1, ATTEMPTS_MAX),
            "1 to 10000 retries: without a limit, one record may stop its shard until it expires",
        ),
        DeploymentRule(
            "MaximumRecordAgeInSeconds",
            within(AGE_SECONDS_MIN, most),
            f"{AGE_SECONDS_MIN} to {most} seconds: records that are given up are kept, and those that expire are not",
        ),
    )
    return {rule.property: rule for rule in rules}


def has_foreign_readers(readers: int, groups: int) -> bool:
    """Whether a stream has more readers than DynamoDB serves, and than the application has groups that read it."""
    return readers > max(READERS_MAX, groups)
