"""A search that looks items up, on DynamoDB Local: documents, references and backlinks after each change."""

import pytest

from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import DynamoEngine
from streamfold.keys.table import MAIN
from streamfold.ledger.state_keys import document_key
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.derivations.search.test_lookups_of_search import ITEM, application
from tests.helpers.records import change, item
from tests.helpers.tables import make_table

TABLE, STATE = "lookups-of-search", "lookups-of-search-state"


class Shop:
    """An application over two tables."""

    def __init__(self, client):
        for name, keys in ((TABLE, ("PK", "SK")), (STATE, ("pk", "sk"))):
            make_table(client, name, dict.fromkeys(keys, "S"))
        self.client, self.app = client, application()
        self.engine = DynamoEngine(client, {"main": (MAIN, TABLE)}, STATE, pause=lambda _: None)
        self.index = LocalIndex(self.engine)
        self.items, self.sequence = {}, 0

    def put(self, pk, sk, **attributes):
        """An item as it is now; without attributes it is removed."""
        old, self.sequence = self.items.get(pk), self.sequence + 1
        new = self.items[pk] = item(pk, sk, **attributes) if attributes else None
        if new is None:
            self.client.delete_item(TableName=TABLE, Key=encode({"PK": pk, "SK": sk})["M"])
        else:
            self.client.put_item(TableName=TABLE, Item=encode(new)["M"])
        runtime = Runtime(self.app, self.engine, Settings(), opened={OPENED: self.index}, outside=True)
        assert process_changes(runtime, [change(old, new, self.sequence)]).failures == []

    def state(self):
        """The document's name, the referents in the counter's item, those with a backlink, and a time to live."""
        names = [each.body["name"] for each in self.index.documents("lines")]
        key = document_key("shop", "lines", ITEM)
        counter = self.engine.read_state([key], consistent=True).get(key, {})
        held = [each for each in "pq" if f'"PRODUCT#{each}"' in counter.get("refs", "")]
        partitions = [stored["pk"]["S"] for stored in self.engine.state_items()]
        linked = [
            each for each in "pq" if any(pk.startswith("refs#") and f"PRODUCT#{each}|" in pk for pk in partitions)
        ]
        return names, held, linked, "ttl" in counter


@pytest.fixture
def shop(dynamodb):
    made = Shop(dynamodb)
    yield made
    for name in (TABLE, STATE):
        dynamodb.delete_table(TableName=name)


def test_documents_references_and_backlinks_follow_both_sides(shop):
    shop.put("ORDER#1", "ITEM#a", product_id="p", units=1)
    assert shop.state() == ([], ["p"], ["p"], False)
    shop.put("PRODUCT#p", "META", name="tea")
    assert shop.state() == (["tea"], ["p"], ["p"], False)
    shop.put("PRODUCT#p", "META", name="herbs")
    assert shop.state() == (["herbs"], ["p"], ["p"], False)
    shop.put("ORDER#1", "ITEM#a", product_id="q", units=1)
    assert shop.state() == ([], ["q"], ["q"], False)
    shop.put("PRODUCT#q", "META", name="cup")
    assert shop.state() == (["cup"], ["q"], ["q"], False)
    shop.put("ORDER#1", "ITEM#a")
    assert shop.state() == ([], [], [], True)
