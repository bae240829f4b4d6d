"""The contract of ``commit`` on DynamoDB Local, whose refusals are worded otherwise."""

import pytest

from streamfold.engines import DynamoEngine
from tests.helpers.commit_contract import CommitContract, Setting, make_app
from tests.helpers.counter_examples import CounterExamples
from tests.helpers.tables import make_table


@pytest.fixture
def setting(dynamodb):
    make_table(dynamodb, "shop", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "shop-state", {"pk": "S", "sk": "S"})

    def make(app, **source):
        tables = {"main": (app.tables["main"], "shop")}
        return Setting(app, DynamoEngine(dynamodb, tables, "shop-state", pause=lambda seconds: None), **source)

    return make


@pytest.fixture
def at(setting):
    return setting(make_app())


class TestCommit(CommitContract):
    """The contract on DynamoDB Local."""


class TestCounterExamples(CounterExamples):
    """The counter-examples on DynamoDB Local."""
