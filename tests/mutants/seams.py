"""Mutants of facts that one field alone would tell, and of readers that check what writers check."""

from collections.abc import Iterator
from unittest.mock import patch

from streamfold import Change
from streamfold.derivations.feed.spreading import Spreading
from streamfold.lambda_entry.function import Function
from streamfold.read import feeds
from streamfold.records import change
from tests.mutants.registry import mutant

CHANGE = "tests/records/test_change.py::"
AGES = "tests/derivations/feed/test_feed_ages.py::"


@mutant(
    "an expiry is known by its identity alone",
    None,
    tests=CHANGE + "test_a_removal_of_an_item_whose_time_to_live_had_passed_counts_as_expired_without_identity",
)
def _() -> Iterator[None]:
    with patch.object(change, "has_expired", lambda *_: False):
        yield


@mutant(
    "hidden attributes are a reason to run",
    None,
    tests=(
        CHANGE + "test_a_change_of_hidden_attributes_alone_is_no_reason_to_run",
        "tests/derivations/feed/test_feed_costs.py::test_a_change_of_replication_attributes_alone_costs_nothing",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Change, "is_hidden", property(lambda _: False)):
        yield


@mutant(
    "what a reader pulls is not checked",
    None,
    tests=AGES + "test_a_post_that_lies_ahead_is_left_out_of_a_pulled_page_and_counted",
)
def _() -> Iterator[None]:
    with patch.object(feeds, "check_post", lambda *_: None):
        yield


@mutant(
    "the age of a row is judged by the option alone",
    None,
    tests=AGES + "test_what_went_while_it_was_too_old_is_not_shown_when_posts_are_kept_longer",
)
def _() -> Iterator[None]:
    with patch.object(feeds, "shown_seconds", lambda route, _: feeds.options_of(route).keep_seconds):
        yield


@mutant(
    "rows from when posts were kept longer are not visited",
    None,
    tests=AGES + "test_what_went_while_posts_were_kept_for_less_is_not_shown_when_they_are_kept_longer_again",
)
def _() -> Iterator[None]:
    with patch.object(Spreading, "_was_kept_longer", lambda *_: False):
        yield


@mutant(
    "a function takes the table of any event",
    None,
    tests="tests/lambda_entry/test_function.py::test_the_table_of_the_function_is_taken_behind_a_test_event",
)
def _() -> Iterator[None]:
    with patch.object(Function, "_check_adopted", lambda *_: None):
        yield
