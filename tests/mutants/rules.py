"""Mutants of rules of deployments: each rule accepts anything."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from streamfold.deploy.check.review import Review
from streamfold.deploy.rules import (
    KEPT_LETTERS,
    MESSAGE_RULES,
    RECEIVES,
    RECOVERY,
    STANDARD,
    DeploymentRule,
    mapping_rules,
    time_to_live_rules,
)
from tests.mutants.registry import mutant

TESTS = "tests/deploy/test_rules.py::"
OF_STREAMS = TESTS + "test_a_wrong_value_of_a_streams_mapping_is_wrong_to_the_check_and_to_doctor"
OF_QUEUES = TESTS + "test_a_wrong_value_of_a_queues_mapping_is_wrong_to_the_check_and_to_doctor"
OF_OTHERS = TESTS + "test_a_wrong_value_of_a_queue_a_function_or_a_table_is_wrong_to_both"
TESTS_OF = {
    **dict.fromkeys((each.property for each in (RECEIVES, KEPT_LETTERS, RECOVERY)), OF_OTHERS),
    **dict.fromkeys((each.property for each in time_to_live_rules("expires")), OF_OTHERS),
    **dict.fromkeys(("VisibilityTimeout", "Timeout"), OF_OTHERS),
    STANDARD.property: TESTS + "test_a_queue_in_order_is_wrong_to_the_check",
    **dict.fromkeys(MESSAGE_RULES, OF_QUEUES),
    **dict.fromkeys(mapping_rules(kinesis=False), OF_STREAMS),
    "Enabled": TESTS + "test_a_mapping_that_is_off_is_wrong_to_both",
}


def accepts_anything(wanted: str) -> Callable[[], Iterator[None]]:
    """Makes the check pass over a property."""

    def made() -> Iterator[None]:
        obey = Review.obey

        def obeys_others(review: Review, at: Any, given: Any, *rules: DeploymentRule, **more: Any) -> None:
            obey(review, at, given, *(rule for rule in rules if rule.property != wanted), **more)

        with patch.object(Review, "obey", obeys_others):
            yield

    return made


for _property, _tests in TESTS_OF.items():
    if _property != "Timeout":
        mutant(f"the check accepts any {_property}", None, tests=_tests)(accepts_anything(_property))


@mutant("the check accepts any timeout", None, tests=OF_OTHERS)
def _() -> Iterator[None]:
    from streamfold.deploy.check import functions

    with patch.object(functions, "_check_timeout", lambda *_: None):
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
