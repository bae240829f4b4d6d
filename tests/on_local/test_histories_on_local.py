"""Histories of items on DynamoDB Local: any redelivery, and calls that fail, leave the rows of the model."""

from random import Random

import pytest

from streamfold.engines import DynamoEngine
from streamfold.settings import Settings
from tests.helpers import everything
from tests.helpers.histories import batches, random_steps, random_writes, records_of
from tests.helpers.model import model, stored
from tests.helpers.tables import make_table
from tests.helpers.watched import driven

STATE = "everything-state"


@pytest.fixture
def make_engine(dynamodb):
    """An engine over empty tables."""

    def make(app):
        tables = {name: (table, f"real-{name}") for name, table in app.tables.items()}
        for name, keys in (*((name, ("PK", "SK")) for _, name in tables.values()), (STATE, ("pk", "sk"))):
            if name in dynamodb.list_tables()["TableNames"]:
                dynamodb.delete_table(TableName=name)
            make_table(dynamodb, name, dict.fromkeys(keys, "S"))
        return DynamoEngine(dynamodb, tables, STATE, pause=lambda seconds: None)

    return make


def check(app, make_engine, seed, view):
    random = Random(seed)
    records = records_of(random_writes(random, 25), view=view)

    engine = make_engine(app)

    assert driven(app, engine, records, random) == model(app, records)
    for batch in batches(records, random_steps(random, 3)):
        assert app.process(batch, engine=engine, settings=Settings()) == []
    assert stored(app, engine) == model(app, records)


@pytest.mark.parametrize("seed", range(5))
def test_faults_and_redelivery_leave_the_rows_of_the_model(make_engine, seed):
    check(everything.without_chains, make_engine, seed, "NEW_AND_OLD_IMAGES")


@pytest.mark.parametrize("seed", range(5, 8))
def test_new_images_alone_lead_to_the_rows_of_the_model_too(make_engine, seed):
    check(everything.new_images_without_chains, make_engine, seed, "NEW_IMAGE")


@pytest.mark.parametrize("view", ["NEW_AND_OLD_IMAGES", "NEW_IMAGE"])
@pytest.mark.parametrize("seed", range(8, 11))
def test_claims_to_the_same_rows_leave_those_of_the_model(make_engine, seed, view):
    check(everything.claimed, make_engine, seed, view)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_faults_and_redelivery_leave_the_rows_of_the_model_in_many_histories(make_engine, first):
    for seed in range(first, first + 20):
        check(everything.without_chains, make_engine, seed, "NEW_AND_OLD_IMAGES")
