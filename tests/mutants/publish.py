"""Mutants of publishers: a later change of an item that is sent before an earlier one."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.batch import order
from streamfold.derivations.derivation import Planning
from streamfold.derivations.outside_calls import ItemQueues, OutsideCalls
from streamfold.proofs import driver
from streamfold.proofs.driver import Driver
from tests.mutants.registry import mutant

CHECKED = "tests/derivations/publish/test_publish_order.py::"


@mutant("messages go on behind one of their item that failed", "publish")
def _() -> Iterator[None]:
    def released(self: Any, subject: Any) -> list[Any]:
        self.release(subject)
        return []

    with patch.object(ItemQueues, "hold", released):
        yield


@mutant("the newest message of an item goes first", "publish")
def _() -> Iterator[None]:
    made = ItemQueues.__init__

    def newest_first(self: Any, subjects: Any, item: Any) -> None:
        made(self, reversed([*subjects]), item)

    with patch.object(ItemQueues, "__init__", newest_first):
        yield


@mutant("messages of one item are in flight together", "publish")
def _() -> Iterator[None]:
    made = OutsideCalls.__init__

    def by_message(self: Any, runtime: Any, _: Any, *rest: Any, **options: Any) -> None:
        made(self, runtime, lambda each: each.message.id, *rest, **options)

    with patch.object(OutsideCalls, "__init__", by_message):
        yield


@mutant("a batch is published in the order of its delivery", "publish")
def _() -> Iterator[None]:
    with patch.object(order, "_order", lambda _: None):
        yield


@mutant("a function that raised for a change makes messages of later ones", "publish")
def _() -> Iterator[None]:
    made = Planning.__init__

    def goes_on(self: Any, runtime: Any, fails: Any, *rest: Any) -> None:
        made(self, runtime, lambda *failed: fails(*failed) and False, *rest)

    with patch.object(Planning, "__init__", goes_on):
        yield


@mutant(
    "proofs do not compare the order of messages",
    None,
    tests=(
        CHECKED + "test_check_finds_a_publisher_that_goes_on_behind_a_failure",
        CHECKED + "test_chaos_finds_a_publisher_that_goes_on_behind_a_failure",
    ),
)
def _() -> Iterator[None]:
    with patch.object(driver, "check_order", lambda *_: None):
        yield


@mutant(
    "proofs let no change be overtaken",
    None,
    tests=(
        CHECKED + "test_changes_that_are_given_up_may_be_overtaken",
        CHECKED + "test_changes_that_are_parked_may_be_overtaken_for_their_handler",
        CHECKED + "test_records_that_arrive_behind_later_ones_may_be_overtaken",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Driver, "overtaken_changes", lambda _: {}):
        yield
