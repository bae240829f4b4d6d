"""An application whose handlers read other items, a table of its items with rows, and faults planted in the rows."""

from random import Random

from streamfold import App, Count, Every, Key, Lookup, Max, Newest, Now, Router, Row, Sum
from streamfold.batch.process import process_changes, process_event
from streamfold.engines import MemoryEngine
from streamfold.records.values import decode, encode
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
LINE = Key("ORDER#{order_id}", "ITEM#{sku}")
SHIPMENT = Key("ORDER#{order_id}", "SHIPMENT#{number:06d}")
PRODUCT = Key("PRODUCT#{product_id}", "META")
SUPPLIER = Key("SUPPLIER#{supplier_id}", "META")
TAG = Key("TAG#{tag}", "META")
DAY = Key("USER#{user}", "DAY#{day}")
CLICK = Key("USER#{user}", "CLICK#{day}#{at}")
NOTE = Key("USER#{user}", "NOTE#{day}")
SALES = Key("CATEGORY#{category}", "SALES")
router = Router()


@router.view(LINE, into=SALES, lookup={"product": Lookup(PRODUCT, reads=["category"])})
def sales(line, product):
    if line["quantity"] == 13:
        raise LookupError("no 13")
    return Row(category=product["category"], units=Sum(line["quantity"]), lines=Count())


@router.view(PRODUCT, into=SALES)
def products(product):
    return Row(category=product["category"], products=Count())


@router.view(LINE, into=Key("TAGGED#{tag}", "TAGGED"), lookup={"tags": Lookup(TAG, tag="tags", many=True)})
def tagged(line, tags):
    for each in tags:
        yield Row(tag=each["name"], most=Max(line["quantity"]), lines=Count())


@router.index(
    LINE,
    into=Key("SOLD#{order_id}#{sku}", "SOLD"),
    lookup={"product": Lookup(PRODUCT, key="product_key"), "supplier": Lookup(SUPPLIER, through="product")},
)
def sold(line, product, supplier):
    return Row(supplier=supplier["name"], product=product["category"])


@router.index(
    ORDER,
    into=Key("STATE#{order_id}", "STATE"),
    parts=[Every(LINE, reads=["quantity"]), Newest(SHIPMENT, 2)],
    lookup={"tag": Lookup(TAG, tag="main_tag", optional=True)},
)
def state(order, parts, tag):
    return Row(
        lines=len(parts(LINE)), last=[each.key["number"] for each in parts(SHIPMENT)], tag=tag["name"] if tag else "-"
    )


@router.view(DAY, into=Key("DAYS#{day}", "DAYS"), parts=[CLICK, NOTE], optional=True)
def days(day_item, parts, day):
    noted = parts.one(NOTE)
    return Row(day=day, clicks=Sum(len(parts(CLICK))), known=Sum(int(day_item is not None)), notes=Sum(len(noted)))


@router.view(SALES, into=Key("BEST", "BEST"), lookup={"tag": Lookup(TAG, tag="category", optional=True)})
def best(row, tag):
    return Row(best=Max(row["units"]), tagged=Sum(int(tag is not None))) if "units" in row else None


@router.view(SUPPLIER, into=Key("ACTIVE", "ACTIVE"))
def active(supplier, now: Now):
    return Row(active=Count()) if now.passed(supplier["until"]) else None


app = App("shop", routers=[router])


def images(seed, size=60):
    """Items at random: references to items that do not exist, lists, orphans, keys that begin like those of parts."""
    random, found = Random(seed), []
    for n in range(size // 3):
        found.append(item(f"PRODUCT#{n}", "META", category=f"c{n % 4}", supplier_id=str(random.randrange(9)), more=n))
        found.append(item(f"TAG#t{n}" if n % 3 else f"TAG#c{n % 4}", "META", name=f"n{n % 5}"))
        found.append(item(f"SUPPLIER#{n % 8}", "META", name=f"s{n}", until=f"2026-0{n % 8 + 1}-01T00:00:00Z"))
    for n in range(size):
        order, product = random.randrange(size // 6), random.randrange(size // 3 + 3) * random.randrange(2)
        tags = [f"t{random.randrange(12)}" for _ in range(random.randrange(4))]
        more = {"product_id": str(product), "product_key": f"PRODUCT#{product}"} if n % 7 else {}
        found.append(item(f"ORDER#{order}", f"ITEM#{n}", quantity=random.randrange(16), tags=tags, **more))
        found.append(item(f"ORDER#{order}", f"SHIPMENT#{n:06}", carrier="x"))
        found.append(item(f"ORDER#{order}", f"SHIPMENT#{n:06}#LABEL", carrier="x"))
        day, user = f"0{random.randrange(3)}", random.randrange(4)
        found.append(item(f"USER#{user}", f"CLICK#{day}#{n}", page="p"))
        if n % 3 == 0:
            found.append(item(f"ORDER#{n % 40}", "METADATA", main_tag=f"t{random.randrange(20)}"))
            found.append(item(f"USER#{user}", f"NOTE#{day}", text="n"))
            found.append(item(f"USER#{random.randrange(4)}", f"DAY#{day}", kind="d"))
    return list({(each["PK"], each["SK"]): each for each in found}.values())


def table(items, *, at=1_772_355_600.0):
    """The items with the rows that a function makes of them, in DynamoDB JSON."""
    engine = MemoryEngine(app.tables.values(), app.chains)
    changes = [change(None, each, number) for number, each in enumerate(items, 1)]
    engine.put_sources(newest_sources(changes))
    runtime = Runtime(app, engine, Settings(), clock=lambda: at)
    process_changes(runtime, changes)
    process_event(runtime, [each.record for each in engine.pending(10_000)])
    return [*engine.items(app.tables["main"])]


def with_faults(stored, seed):
    """The same table after a row was removed, one changed, one added, and an item changed behind its rows."""
    random = Random(seed)
    rows = [each for each in stored if app.derived(("main", each["PK"]["S"], each["SK"]["S"]))]
    others = [each for each in stored if each not in rows]
    random.shuffle(rows)
    found = rows[1:]
    for number in range(min(3, len(found))):
        own = decode({"M": found[number]})
        name = next(name for name in sorted(own) if name not in ("PK", "SK") and not name.startswith("_"))
        found[number] = encode({**own, name: 999})["M"]
    extra = encode(item("CATEGORY#none", "SALES", units=3, lines=1, _sf_n=1))["M"]
    random.shuffle(others)
    return [*others[2:], *found, extra]
