"""Older changes of ``on`` handlers on DynamoDB Local, from which rows go at any moment."""

import pytest

from tests.helpers.older_changes import wrong
from tests.versions.api import LocalStore

BOTH = "NEW_AND_OLD_IMAGES"


def check(client, seeds, **options):
    for seed in seeds:
        for found in wrong([seed], engine=LocalStore(BOTH, client).engine, **options):
            pytest.fail(found, pytrace=False)


@pytest.mark.parametrize("kinesis", [False, True])
def test_rows_that_go_at_any_moment_do_not_come_back_by_older_changes(dynamodb, kinesis):
    check(dynamodb, range(2), kinesis=kinesis)


@pytest.mark.nightly
@pytest.mark.parametrize("kinesis", [False, True])
def test_rows_that_go_at_any_moment_do_not_come_back_by_older_changes_in_a_hundred_histories(dynamodb, kinesis):
    check(dynamodb, range(100, 150), kinesis=kinesis)
