"""States and tables that part, on DynamoDB Local: histories, and the page for a lost region on two tables."""

from collections import Counter
from itertools import count

import pytest

from streamfold.engines import DynamoEngine
from streamfold.keys.table import MAIN, is_marker
from streamfold.records.values import decode, encode
from tests.helpers.lost_states import INCIDENTS, History, MemoryTables
from tests.helpers.tables import make_table

HISTORIES = 20


class Named:
    """A table by its name, as histories have it."""

    def __init__(self, name):
        self.name = name

    def __getitem__(self, what):
        assert what == "named"
        return self


class LocalTables:
    """Tables and states on DynamoDB Local."""

    numbers = count(1)

    def __init__(self, client):
        self.client = client

    def _made(self, begins, *keys):
        name = f"{begins}-{next(self.numbers)}"
        make_table(self.client, name, dict.fromkeys(keys, "S"))
        return Named(name)

    def table(self):
        return self._made("orders", "PK", "SK")

    def state(self):
        return self._made("state", "pk", "sk")

    def copy_table(self, table):
        return self._copied(table, self.table())

    def copy_state(self, state):
        return self._copied(state, self.state())

    def _copied(self, one, other):
        for item in self._items(one):
            self.client.put_item(TableName=other.name, Item=item)
        return other

    def _items(self, table):
        return self.client.scan(TableName=table.name, ConsistentRead=True)["Items"]

    def engine(self, app, table, state):
        del app
        return DynamoEngine(self.client, {"main": (MAIN, table.name)}, state.name)

    def put(self, table, partition, item):
        if item is None:
            self.put_row(table, (partition, "METADATA"), None)
        else:
            self.client.put_item(TableName=table.name, Item=encode(item)["M"])

    def rows(self, table):
        rows = [decode({"M": item}) for item in self._items(table)]
        return {(row["PK"], row["SK"]): row for row in rows if not is_marker(row["PK"])}

    def put_row(self, table, key, row):
        if row is None:
            key = {"PK": {"S": key[0]}, "SK": {"S": key[1]}}
            self.client.delete_item(TableName=table.name, Key=key)
        else:
            self.client.put_item(TableName=table.name, Item=encode(row)["M"])

    def remove_marker(self, table):
        for row in (decode({"M": item}) for item in self._items(table)):
            if is_marker(row["PK"]):
                self.put_row(table, (row["PK"], row["SK"]), None)


def test_a_batch_is_refused_or_each_row_is_the_fold(dynamodb):
    seen = Counter()
    for seed in range(HISTORIES):
        history = History(seed, LocalTables(dynamodb))
        history.play()
        seen += history.seen
    assert set(seen) == set(INCIDENTS)


@pytest.mark.parametrize("incident", ["region", "table restored", "both restored", "renamed", "lost"])
def test_the_procedure_of_the_page_leads_to_the_fold_of_the_items(dynamodb, incident):
    """As ``docs/regions.md``, ``docs/operations.md`` and ``docs/adopting.md`` have it."""
    history = History(7, LocalTables(dynamodb))
    for _ in range(4):
        history.step()
    history.incident(incident)
    for _ in range(4):
        history.step()
    history.check()


def test_memory_and_tables_are_driven_alike():
    assert {name for name in vars(MemoryTables) if name[0] != "_"} - {"names", "named"} <= set(vars(LocalTables))
