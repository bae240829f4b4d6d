"""An application with one of what follows from items and from changes, and what a restore has to make of its table."""

from streamfold.batch.process import process_event
from streamfold.derivations.search.indexes import OPENED
from streamfold.engines import DynamoEngine
from streamfold.keys.table import MARKED
from streamfold.records.values import decode
from streamfold.runtime import Runtime
from streamfold.settings import Settings

CODE = """
from streamfold import Add, App, Count, Key, Lookup, Max, Put, Row, Router, Sum, Table

MAIN = Table("main", ttl="expires")
WALL, HOME = "WALL#{author}", Key("HOME#{reader}", "{at:datetime.seconds}#{author}#{post}", table=MAIN)
POST = Key(WALL, "POST#{at:datetime.seconds}#{post}", table=MAIN)
EDGE = Key(WALL, "READER#{reader}", table=MAIN)
ORDER, LINE = Key("ORDER#{order_id}", "META", table=MAIN), Key("ORDER#{order_id}", "LINE#{sku}", table=MAIN)
PRODUCT = Key("PRODUCT#{product_id}", "META", table=MAIN)
router = Router()


@router.feed(POST, audience=EDGE, into=HOME, keep_days=36500)
def home(post, edge):
    return Row(text=post["text"])


@router.view(LINE, into=Key("CATEGORY#{category}", "SALES", table=MAIN), lookup={"product": Lookup(PRODUCT)})
def sales(line, product):
    return Row(category=product["category"], sold=Sum(line["price"]), dearest=Max(line["price"]), lines=Count())


@router.index(ORDER, into=Key("BUYER#{buyer}", "ORDER#{order_id}", table=MAIN))
def orders_of_buyer(order):
    return Row(buyer=order["buyer"])


@router.attributes(LINE, of=ORDER)
def lines_of_order(line):
    return Row(total=Sum(line["price"]), lines=Count())


@router.on(ORDER, into=Key("CHANGES", "ALL", table=MAIN))
def changes(change):
    yield Add(changes=1)


router.audit(ORDER)
app = App("shop", routers=[router])
"""
SEARCH = """

@router.search(ORDER, to="orders", fields={"buyer": "keyword", "prices": "integer"}, parts=[LINE])
def orders(order, parts):
    return Document(buyer=order["buyer"], prices=[each["price"] for each in parts(LINE)])


@router.search(LINE, to="lines", fields={"category": "keyword"}, lookup={"product": Lookup(PRODUCT)})
def lines(line, product):
    return Document(category=product["category"])


router.audit(ORDER)"""
WITH_SEARCH = CODE.replace("\nrouter.audit(ORDER)", SEARCH).replace(
    "import Add, App, Count,", "import Add, App, Count, Document,"
)
AT = "2026-02-01T00:00:00Z"
BEGINNINGS = ("HOME", "CATEGORY", "BUYER", "ORDER", "CHANGES", "AUDIT")


def written(source):
    """The records of the first moment, which the backup has, and those of later ones, which it lacks."""
    first = [
        source.put("WALL#w", "READER#r"),
        source.put("WALL#w", f"POST#{AT}#kept", text="kept"),
        source.put("PRODUCT#p", "META", category="tea"),
        *(source.put(f"ORDER#{number}", "META", buyer="ana") for number in (1, 2)),
        source.put("ORDER#1", "LINE#a", product_id="p", price=5),
    ]
    later = [
        source.put("WALL#w", "READER#late"),
        source.put("WALL#w", f"POST#{AT}#lost", text="lost"),
        source.put("PRODUCT#p", "META", category="herbs"),
        source.put("ORDER#1", "META", buyer="bo"),
        source.put("ORDER#1", "LINE#b", product_id="p", price=7),
        source.put("ORDER#2", "LINE#c", product_id="p", price=9),
    ]
    return first, later


def put(client, table, records):
    """Writes the items of records as a writer does, who leaves derived attributes."""
    for record in records:
        keys, image = record["dynamodb"]["Keys"], record["dynamodb"]["NewImage"]
        own = {name: value for name, value in image.items() if name not in keys}
        if not own:
            client.put_item(TableName=table, Item=image)
            continue
        client.update_item(
            TableName=table,
            Key=keys,
            UpdateExpression="SET " + ", ".join(f"#{number} = :{number}" for number in range(len(own))),
            ExpressionAttributeNames={f"#{number}": name for number, name in enumerate(own)},
            ExpressionAttributeValues={f":{number}": value for number, value in enumerate(own.values())},
        )


def derive(app, client, table, state, records, *, documents=None):
    """Writes items, and has a function of the application process their records; ``documents`` takes those."""
    put(client, table, records)
    engine = DynamoEngine(client, {"main": (app.tables["main"], table)}, state)
    opened = {} if documents is None else {OPENED: documents}
    runtime = Runtime(app, engine, Settings(), opened=opened, outside=documents is not None)
    assert [str(each.error) for each in process_event(runtime, list(records)).failures] == []


def copy_restored(client, table, restored, first, later):
    """Makes a restored table of one that went on: items of the first moment, and all rows as they are."""
    sources = {_key(record["dynamodb"]["Keys"]) for record in (*first, *later)}
    for item in client.scan(TableName=table)["Items"]:
        if _key(item) not in sources or item["PK"]["S"].startswith("ORDER"):
            client.put_item(TableName=restored, Item=item)
    for record in later:
        client.delete_item(TableName=restored, Key=record["dynamodb"]["Keys"])
    put(client, restored, first)
    for item in client.scan(TableName=table)["Items"]:  # with the attributes that were derived later
        if item["PK"]["S"].startswith("ORDER") and item["SK"]["S"] == "META":
            buyer = next(r["dynamodb"]["NewImage"]["buyer"] for r in first if r["dynamodb"]["Keys"]["PK"] == item["PK"])
            client.put_item(TableName=restored, Item={**item, "buyer": buyer})


def _key(item):
    return item["PK"]["S"], item["SK"]["S"]


def rows(client, table, *, of_changes=True):
    """What readers see of rows and of orders."""
    found = {}
    for item in client.scan(TableName=table, ConsistentRead=True)["Items"]:
        row = decode({"M": item})
        begin = row["PK"].partition("#")[0]
        if begin in BEGINNINGS and MARKED not in row and (of_changes or begin not in ("CHANGES", "AUDIT")):
            own = {name: value for name, value in row.items() if name[:4] != "_sf_" and name != "expires"}
            found[row["PK"], row["SK"]] = own
    return found
