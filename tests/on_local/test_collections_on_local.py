"""Histories of roots and parts on DynamoDB Local, whose calls are put into any order, with faults and two versions."""

import pytest

from streamfold.engines import DynamoEngine
from tests.helpers.collection_walks import DESIGNS, CollectionWalk
from tests.helpers.lookup_walks import ScheduledStore
from tests.helpers.tables import make_table

HISTORIES = 50
TABLE, STATE = "collections", "collections-state"


class ScheduledTable(ScheduledStore):
    """Tables, whose calls by workers are carried out when the scheduler chooses to."""

    def __init__(self, engine):
        self.engine = engine


class LocalWalk(CollectionWalk):
    """One history, in the tables of a client."""

    def __init__(self, client, design, seed):
        self.client = client
        super().__init__(design, seed)

    def open(self):
        tables = {name: (table, TABLE) for name, table in self.app.tables.items()}
        self.engine = DynamoEngine(self.client, tables, STATE, pause=lambda _: None)
        self.store = ScheduledTable(self.engine)
        self.index = None

    def checking(self):
        return self.engine

    def follow_chains(self, runtime):
        """No handler reads rows."""

    def check(self):
        """The rows of the end tell: of tables no invariant is read after each call."""

    def put(self, place, raw, version_text):
        if raw is None:
            self.client.delete_item(TableName=TABLE, Key={"PK": {"S": place[1]}, "SK": {"S": place[2]}})
        else:
            self.client.put_item(TableName=TABLE, Item=raw)

    def carry_out(self, name, given, named, *, stale=False):
        return getattr(self.engine, name)(*given, **named)  # a read that is not strong may be old: here it never is

    def stored(self):
        items = self.client.scan(TableName=TABLE, ConsistentRead=True)["Items"]
        return [(("main", each["PK"]["S"], each["SK"]["S"]), each) for each in items]


@pytest.mark.parametrize("number", range(HISTORIES))
def test_histories_of_collections_lead_to_the_rows_of_the_model(dynamodb, number):
    for name, types in ((TABLE, {"PK": "S", "SK": "S"}), (STATE, {"pk": "S", "sk": "S"})):
        make_table(dynamodb, name, types)
    design = [*DESIGNS.values()][number % len(DESIGNS)]
    assert LocalWalk(dynamodb, design, 4_000_000 + number).run() is None
