"""``streamfold adopt``: rows that another state, or another name of the application, derived."""

import json

import pytest

from streamfold.batch.ownership import key_of
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine
from streamfold.errors import NotOwned
from streamfold.keys.table import MARKED
from streamfold.records.values import decode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source
from tests.helpers.tables import make_table

SHOP = """
from streamfold import App, Add, Count, Key, Max, Router, Row, Sum

ORDER = Key("ORDER#{order_id}", "METADATA")
TOTALS = Key("TOTALS", "{city}")
router = Router()


@router.view(ORDER, into=TOTALS)
def totals(order):
    yield Row(city=order["city"], total=Sum(order["total"]), orders=Count(), largest=Max(order["total"]))


@router.index(ORDER, into=Key("OWN#{order_id}", "ROW"))
def owned(order):
    yield Row(total=order["total"])


@router.attributes(ORDER)
def keys(order):
    yield Row(city_key=order["city"])


@router.on(ORDER, into=Key("CHANGES", "ALL"))
def changes(change):
    yield Add(changes=1)


app = App("shop", routers=[router])
"""


class Shop:
    """Five orders on moto, derived with the first state."""

    def __init__(self, on_aws, folder):
        self.on_aws, self.folder = on_aws, folder
        folder.app(SHOP)
        make_table(on_aws.client, "new-state", {"pk": "S", "sk": "S"})
        self.source, self.state = Source(), "shop-state"
        self.deliver(*(self.put(number) for number in range(5)))

    def put(self, number, total=10):
        return self.source.put(f"ORDER#{number}", city=f"c{number % 2}", total=total)

    def deliver(self, *records):
        """Puts items as a writer does, who keeps derived attributes, and processes the records."""
        app = self.folder.load()
        for record in records:
            image = record["dynamodb"]["NewImage"]
            self.on_aws.client.update_item(
                TableName="shop",
                Key=record["dynamodb"]["Keys"],
                UpdateExpression="SET #c = :c, #t = :t",
                ExpressionAttributeNames={"#c": "city", "#t": "total"},
                ExpressionAttributeValues={":c": image["city"], ":t": image["total"]},
            )
        engine = DynamoEngine(self.on_aws.client, {"main": (app.tables["main"], "shop")}, self.state)
        report = process_event(Runtime(app, engine, Settings()), list(records))
        assert report.failures == []

    def rename(self):
        self.folder.app(SHOP.replace('App("shop"', 'App("store"'))

    def rows(self):
        items = self.on_aws.client.scan(TableName="shop")["Items"]
        rows = {(item["PK"]["S"], item["SK"]["S"]): decode({"M": item}) for item in items}
        return {
            key: {name: value for name, value in row.items() if name[:4] != "_sf_" and name not in ("PK", "SK")}
            for key, row in rows.items()
            if key[0] in ("TOTALS", "CHANGES") or key[0].startswith(("OWN#", "ORDER#"))
        }

    def marker(self):
        (key,) = {key_of(target.key) for target in self.folder.load().routes[0].targets}
        item = self.on_aws.client.get_item(TableName="shop", Key={"PK": {"S": key[1]}, "SK": {"S": key[2]}})["Item"]
        return json.loads(item[MARKED]["S"])


@pytest.fixture
def shop(on_aws, folder):
    return Shop(on_aws, folder)


def total(shop, city="c0"):
    row = shop.rows()["TOTALS", city]
    return int(row["orders"]), int(row["total"]), int(row["largest"])


def test_rows_are_taken_over_by_an_empty_state_and_follow_from_there(shop, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "new-state")
    shop.state = "new-state"
    with pytest.raises(NotOwned):
        shop.deliver(shop.put(0))
    before = shop.rows()

    dry = shop.on_aws.run("adopt", "--dry-run")
    ran = shop.on_aws.run("adopt", "--yes", "--json")

    assert (dry.code, "5 items with contributions" in dry.out) == (0, True)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {
        "from": None,
        "dry_run": False,
        "items": 5,
        "moved": 0,
        "rows": 7,
        "corrected": 0,
        "remaining": [],
        "failed": 0,
        "continued": ["changes"],
        "marked": True,
    }
    assert "'shop-state'" in ran.err
    assert shop.rows() == before
    assert shop.marker()["shop"]["state"][0] == "new-state"
    shop.deliver(shop.put(0, total=30))
    assert total(shop) == (3, 50, 30)
    assert shop.on_aws.run("verify", "--rows").code == 0


def test_a_renamed_application_takes_the_state_of_its_old_name_over(shop, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "shop-state")  # by default the table has the application's name
    shop.rename()
    with pytest.raises(NotOwned):
        shop.deliver(shop.put(0))
    before = shop.rows()

    ran = shop.on_aws.run("adopt", "--from", "shop", "--yes")

    assert ran.code == 0, ran.err
    assert shop.rows() == before
    assert set(shop.marker()) == {"store"}
    shop.deliver(shop.put(0, total=30), shop.put(1, total=5))
    assert (total(shop), total(shop, "c1")) == ((3, 50, 30), (2, 15, 10))
    assert shop.rows()["OWN#0", "ROW"] == {"total": 30}
    assert shop.rows()["ORDER#1", "METADATA"]["city_key"] == "c1"
    assert shop.on_aws.run("verify", "--full").code == 0


def test_nothing_is_taken_over_where_all_fits(shop):
    ran = shop.on_aws.run("adopt", "--yes")
    assert (ran.code, "Expected an empty state" in ran.err) == (2, True)


def test_a_handler_that_is_retired_with_its_rows_leaves_the_marker(shop, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_HANDLERS_OFF", "totals")
    assert set(shop.marker()["shop"]["handlers"]) == {"totals", "owned", "changes"}
    assert shop.on_aws.run("retire", "totals", "--rows", "remove", "--yes").code == 0
    assert set(shop.marker()["shop"]["handlers"]) == {"owned", "changes"}


def test_a_local_state_has_nothing_to_take_over_but_another_name(folder):
    records = [Source().put("ORDER#1", "ITEM#a", price=3)]
    assert folder.run("replay", folder.records(*records), "--state", "state.db").code == 0
    ran = folder.run("adopt", "--state", "state.db")
    assert (ran.code, "one file" in ran.err) == (2, True)
    folder.app((folder.path / "handlers.py").read_text().replace('App("shop"', 'App("store"'))
    assert folder.run("replay", "records.jsonl", "--state", "state.db").code == 2
    assert folder.run("adopt", "--from", "shop", "--state", "state.db").code == 0
    assert folder.run("replay", "records.jsonl", "--state", "state.db").code == 0
    assert folder.totals() == {"ORDER#1": 3}
