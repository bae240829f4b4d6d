"""An application of seven handlers, and records of a made-up market place for it: what replays are measured with.

An order's id is random, as a UUID is, so that nothing of it comes in the order of keys.
"""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from streamfold import App, Collect, Count, Item, Key, Max, Min, Router, Row, Sum, Top

ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/market/stream/2026-03-01T10:00:00.000"
FIRST_VERSION = 10**24
CUSTOMERS, PRODUCTS, SHOPS = 4_000, 900, 40
INSERTED, REMOVED = 0.45, 0.1
"""The shares of records that insert and that remove an item; the others amend one."""
RECENT, RECENT_STEADY = 20_000, 2_000
"""An amended item is one of so many that were inserted last. The first records of a file amend less, as there are not
so many yet: with the larger number until the 57,000th record, with the smaller one until the 6,000th.
"""

ORDER = Key("ORDER#{order_id}", "ORDER")
CUSTOMER = Key("CUSTOMER#{customer}", "SPENT")
HOUR = Key("HOUR#{hour}", "SHOP#{shop}")
BY_STATUS = Key("SHOP#{shop}#{status}", "ORDER#{order_id}")
BUYERS = Key("PRODUCT#{product}", "BUYERS")
NEWEST = Key("CUSTOMER#{customer}", "NEWEST")
LEADERS = Key("SHOP#{shop}", "LEADERS")

router = Router()


@router.view(ORDER, into=CUSTOMER)
def spent(order: Item) -> Iterator[Row]:
    price = order["price"]
    yield Row(customer=order["customer"], total=Sum(price), lowest=Min(price), highest=Max(price))


@router.view(ORDER, into=HOUR)
def hourly(order: Item) -> Iterator[Row]:
    yield Row(hour=order["at"][:13], shop=order["shop"], orders=Count())


@router.index(ORDER, into=BY_STATUS)
def by_status(order: Item) -> Iterator[Row]:
    yield Row(shop=order["shop"], status=order["status"], at=order["at"], price=order["price"])


@router.view(ORDER, into=BUYERS)
def buyers(order: Item) -> Iterator[Row]:
    yield Row(product=order["product"], buyers=Collect(order["customer"], most=500))


@router.view(ORDER, into=NEWEST)
def newest(order: Item) -> Iterator[Row]:
    yield Row(customer=order["customer"], last=order["product"], status=order["status"], wins=order["at"])


@router.view(ORDER, into=LEADERS)
def leaders(order: Item) -> Iterator[Row]:
    best = {"customer": order["customer"], "price": order["price"]}
    yield Row(shop=order["shop"], leaders=Top(20, best, by=order["price"]))


router.audit(ORDER)
app = App("market", routers=[router])


def records(count: int, seed: int = 1, recent_max: int = RECENT) -> Iterator[dict[str, Any]]:
    """Inserts, amendments and removals of orders, with both images."""
    random = Random(seed)
    stored: dict[str, dict[str, Any]] = {}
    recent: list[str] = []
    for number in range(count):
        name, old, new = _step(random, number, stored, recent, recent_max)
        body = {"Keys": _keys(name), "SequenceNumber": str(FIRST_VERSION + number), "SizeBytes": 600}
        body |= {"StreamViewType": "NEW_AND_OLD_IMAGES", "ApproximateCreationDateTime": 1772359200.0 + number}
        yield {
            "eventID": f"{number:032x}",
            "eventName": "INSERT" if old is None else "REMOVE" if new is None else "MODIFY",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": "eu-west-1",
            "dynamodb": body | ({"OldImage": old} if old else {}) | ({"NewImage": new} if new else {}),
            "eventSourceARN": ARN,
        }


def _step(
    random: Random, number: int, stored: dict[str, dict[str, Any]], recent: list[str], recent_max: int
) -> tuple[str, dict[str, Any] | None, dict[str, Any] | None]:
    kind = random.random()
    if kind < INSERTED or not recent:
        name = f"{random.getrandbits(64):016x}"
        recent.append(name)
        if len(recent) > recent_max:
            stored.pop(recent.pop(0), None)
        stored[name] = _order(random, name, number)
        return name, None, stored[name]
    at = random.randrange(len(recent))
    name = recent[at]
    old = stored[name]
    if kind < INSERTED + REMOVED:
        del recent[at], stored[name]
        return name, old, None
    stored[name] = {**old, **random.choice([{"status": _text(random.choice(STATES))}, _priced(random)])}
    return name, old, stored[name]


STATES = ("open", "paid", "sent", "back")


def _order(random: Random, name: str, number: int) -> dict[str, Any]:
    minutes = number // 20
    day, hour, minute = 1 + minutes // 1440 % 28, minutes // 60 % 24, minutes % 60
    return {
        **_keys(name),
        **_priced(random),
        "customer": _text(f"c{int(CUSTOMERS * random.random() ** 2):05d}"),
        "product": _text(f"p{int(PRODUCTS * random.random() ** 2):04d}"),
        "shop": _text(f"s{random.randrange(SHOPS):02d}"),
        "status": _text("open"),
        "at": _text(f"2026-03-{day:02d}T{hour:02d}:{minute:02d}:{random.randrange(60):02d}Z"),
        "note": _text("x" * random.randrange(60, 180)),
        "size": {"M": {"width": {"N": "10"}, "height": {"N": "20"}}},
    }


def _keys(name: str) -> dict[str, Any]:
    return {"PK": _text(f"ORDER#{name}"), "SK": _text("ORDER")}


def _priced(random: Random) -> dict[str, Any]:
    return {"price": {"N": f"{random.randrange(1, 500_000) / 100:.2f}"}}


def _text(text: str) -> dict[str, str]:
    return {"S": text}


def lines(count: int, recent_max: int = RECENT) -> Iterator[str]:
    found = records(count, recent_max=recent_max)
    return (json.dumps(record, separators=(",", ":")) + "\n" for record in found)
