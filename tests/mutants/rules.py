"""Mutants of rules of deployments: each rule accepts anything."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from streamfold.deploy.alarms import STREAM_AGE
from streamfold.deploy.check.review import Review
from streamfold.deploy.rules import (
    CONSISTENCY,
    DESTINATION_TYPE,
    KEPT_LETTERS,
    MESSAGE_RULES,
    RECEIVES,
    RECOVERY,
    RULES,
    DeploymentRule,
    alarm_rules,
    mapping_rules,
    time_to_live_rules,
)
from tests.mutants.registry import mutant

TESTS = "tests/deploy/test_rules.py::"
OF_STREAMS = TESTS + "test_a_wrong_value_of_a_streams_mapping_is_wrong_to_the_check_and_to_doctor"
OF_QUEUES = TESTS + "test_a_wrong_value_of_a_queues_mapping_is_wrong_to_the_check_and_to_doctor"
OF_OTHERS = TESTS + "test_a_wrong_value_of_a_queue_a_function_or_a_table_is_wrong_to_both"
BY_CHECK = {
    **dict.fromkeys(("function", "function of a queue", "role"), "a_function_or_its_role"),
    **dict.fromkeys(("queue", "dead-letter queue"), "a_queue"),
    **dict.fromkeys(("table", "state", "table or bucket", "bucket", "log"), "a_table_a_bucket_or_a_log"),
    **dict.fromkeys(("alarm", "alarm on polls"), "an_alarm"),
}
"""Whose wrong values a test has, by resource of ``RULES``."""
OF_ALARMS = TESTS + "test_a_wrong_value_of_an_alarm_is_named_by_the_check"
TESTS_OF = {
    **{
        rule.property: TESTS + f"test_a_wrong_value_of_{named}_is_named_by_the_check"
        for kind, named in BY_CHECK.items()
        for rule in RULES[kind]
    },
    **dict.fromkeys((each.property for each in alarm_rules(STREAM_AGE)), OF_ALARMS),
    **dict.fromkeys((each.property for each in (RECEIVES, KEPT_LETTERS, RECOVERY)), OF_OTHERS),
    **dict.fromkeys((each.property for each in time_to_live_rules("expires")), OF_OTHERS),
    **dict.fromkeys(("VisibilityTimeout", "Timeout"), OF_OTHERS),
    **dict.fromkeys(MESSAGE_RULES, OF_QUEUES),
    **dict.fromkeys(mapping_rules(kinesis=False), OF_STREAMS),
    DESTINATION_TYPE.property: TESTS + "test_a_destination_of_another_type_is_wrong_to_the_check",
    "Enabled": TESTS + "test_a_mapping_that_is_off_is_wrong_to_both",
    "Runtime": TESTS + "test_another_python_is_wrong_to_the_check",
    "AuthType": TESTS + "test_who_may_call_a_function_is_named_by_the_check",
}


def accepts_anything(wanted: str) -> Callable[[], Iterator[None]]:
    """Makes the check pass over a property."""

    def made() -> Iterator[None]:
        obey = Review.obey

        def obeys_others(review: Review, at: Any, given: Any, *rules: DeploymentRule) -> None:
            obey(review, at, given, *(rule for rule in rules if rule.property != wanted))

        with patch.object(Review, "obey", obeys_others):
            yield

    return made


for _property, _tests in TESTS_OF.items():
    if _property not in ("Timeout", CONSISTENCY.property):
        mutant(f"the check accepts any {_property}", None, tests=_tests)(accepts_anything(_property))


@mutant("the check accepts any timeout", None, tests=OF_OTHERS)
def _() -> Iterator[None]:
    from streamfold.deploy.check import functions

    with patch.object(functions, "_check_timeout", lambda *_: None):
        yield


@mutant("the check accepts strong consistency across regions", None, tests=OF_OTHERS)
def _() -> Iterator[None]:
    from streamfold.deploy import rules

    with patch.object(rules, "CONSISTENCY", CONSISTENCY._replace(accepts=lambda value: True)):
        yield


@mutant(
    "a role needs the id of each table that it writes to",
    None,
    tests="tests/deploy/test_doctor.py::test_the_printed_role_of_a_handler_that_writes_to_another_table_is_good",
)
def _() -> Iterator[None]:
    from streamfold.deploy import doctor, functions, permissions

    class UnreadToo(functions.Deployment):
        def permissions(self, function: Any, **_: Any) -> Any:
            return permissions.permissions(self.app, function.runner)

    with patch.object(doctor, "Deployment", UnreadToo):
        yield


@mutant("doctor accepts whatever a rule refuses", None, tests=(OF_STREAMS, OF_QUEUES))
def _() -> Iterator[None]:
    with patch.object(DeploymentRule, "holds", lambda *_: True):
        yield


@mutant(
    "a printed template has no value of a rule", None, tests=TESTS + "test_a_printed_value_is_right_by_its_own_rule"
)
def _() -> Iterator[None]:
    from tests.deploy import test_rules

    with patch.object(test_rules, "as_properties", lambda *_: {}):
        yield


@mutant(
    "the check accepts any threshold of an alarm",
    None,
    tests="tests/deploy/test_check_alarms.py::test_a_threshold_may_be_stricter_or_looser_within_its_bounds",
)
def _() -> Iterator[None]:
    from streamfold.deploy.rules import ThresholdBounds

    with patch.object(ThresholdBounds, "accept", lambda *_, **__: True):
        yield
