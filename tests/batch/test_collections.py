"""Rows that are made of an item and the items of its partition."""

from datetime import timedelta

from streamfold import App, Count, Document, Every, Item, Key, Lookup, Newest, Now, Parts, Router, Row, Sum
from streamfold.records.values import decode
from streamfold.testing import Twin
from tests.helpers.looked_up import LookupShop

ORDER = Key("ORDER#{order_id}", "META")
LINE = Key("ORDER#{order_id}", "LINE#{sku}")
SHIPMENT = Key("ORDER#{order_id}", "SHIPMENT#{number:06d}")
STATE = Key("STATE#{state}", "ORDERS")
ROWS = Key("ROW#{order_id}", "ROW")
READING, DEVICE = Key("DEVICE#{device}", "READING#{at}"), Key("DEVICE#{device}", "META")
LAST = Key("LAST#{device}", "ROW")


def state_of(parts):
    shipped, lines = {each["sku"] for each in parts(SHIPMENT)}, {line.key["sku"] for line in parts(LINE)}
    return "shipped" if lines <= shipped else "partly" if shipped else "open"


def shop_of(declare):
    router = Router()
    declare(router)
    return Shop(App("shop", routers=[router]))


class Shop(LookupShop):
    def order(self, number="1", **attributes):
        return self.write(f"ORDER#{number}", "META", attributes)

    def line(self, sku, number="1", **attributes):
        return self.write(f"ORDER#{number}", f"LINE#{sku}", attributes)

    def shipment(self, number, sku, **attributes):
        return self.write("ORDER#1", f"SHIPMENT#{number:06d}", {"sku": sku, **attributes})

    def gone(self, sort, pk="ORDER#1"):
        return self.write(pk, sort, None)

    def row(self, pk, sk="ROW"):
        found = self.engine.read_source(("main", pk, sk))
        own = {name: decode(value) for name, value in (found or {}).items()}
        return (
            None
            if found is None
            else {name: own[name] for name in own if name not in ("PK", "SK") and name[:4] != "_sf_"}
        )

    def states(self):
        rows = (self.row(f"STATE#{each}", "ORDERS") for each in ("open", "partly", "shipped"))
        return [row["orders"] if row else 0 for row in rows]


def states(router):
    @router.view(ORDER, into=STATE, parts=[LINE, Every(SHIPMENT, reads=["sku"])])
    def orders_by_state(order, parts):
        return Row(state=state_of(parts), orders=Count())


def on_order(router):
    @router.attributes(ORDER, parts=[LINE, SHIPMENT])
    def state_of_order(order, parts):
        return Row(state=state_of(parts), lines=len(parts(LINE)))


def last_readings(router):
    @router.index(DEVICE, into=LAST, parts=[Newest(READING, 2)])
    def last(device, parts):
        return Row(values=[each["value"] for each in parts(READING)])


def rows_of_orders(router):
    @router.index(ORDER, into=ROWS, parts=[LINE], optional=True)
    def rows(order, parts, order_id):
        return Row(there=order is not None, lines=len(parts(LINE)), of=order_id)


def test_the_state_of_an_order_follows_its_lines_and_shipments():
    shop = shop_of(states)
    shop.process(shop.order(), shop.line("a"), shop.line("b"))
    assert shop.states() == [1, 0, 0]
    shop.process(shop.shipment(1, "a"))
    assert shop.states() == [0, 1, 0]
    shop.process(shop.shipment(2, "b"))
    assert shop.states() == [0, 0, 1]
    shop.process(shop.line("c"))
    assert shop.states() == [0, 1, 0]
    shop.process(shop.gone("LINE#c"), shop.gone("SHIPMENT#000001"))
    assert shop.states() == [0, 1, 0]
    shop.process(shop.gone("META"))
    assert shop.states() == [0, 0, 0]


def test_parts_before_their_root_write_nothing_and_its_record_reads_them():
    shop = shop_of(states)
    shop.process(shop.line("a"))
    assert [key for key in shop.engine.state if key.pk.startswith("ledger")] == []
    shop.process(shop.shipment(1, "a"))
    shop.process(shop.order())
    assert shop.states() == [0, 0, 1]


def test_attributes_of_the_root_follow_its_parts():
    shop = shop_of(on_order)
    shop.process(shop.order(), shop.line("a"))
    assert shop.row("ORDER#1", "META") == {"state": "open", "lines": 1}
    shop.process(shop.shipment(1, "a"))
    assert shop.row("ORDER#1", "META") == {"state": "shipped", "lines": 1}


def test_the_last_parts_are_read_in_the_order_of_their_sort_keys_however_they_come():
    shop = shop_of(last_readings)
    shop.process(
        shop.write("DEVICE#d", "META", {}), *(shop.write("DEVICE#d", f"READING#{n}", {"value": n}) for n in (3, 1))
    )
    assert shop.row("LAST#d") == {"values": [1, 3]}
    shop.process(shop.write("DEVICE#d", "READING#2", {"value": 2}))
    assert shop.row("LAST#d") == {"values": [2, 3]}
    shop.process(shop.gone("READING#3", "DEVICE#d"))
    assert shop.row("LAST#d") == {"values": [1, 2]}


def test_with_optional_a_row_is_there_while_a_part_is():
    shop = shop_of(rows_of_orders)
    shop.process(shop.line("a"))
    assert shop.row("ROW#1") == {"there": False, "lines": 1, "of": "1"}
    shop.process(shop.order())
    assert shop.row("ROW#1") == {"there": True, "lines": 1, "of": "1"}
    shop.process(shop.gone("LINE#a"))
    assert shop.row("ROW#1") == {"there": True, "lines": 0, "of": "1"}
    shop.process(shop.gone("META"))
    assert shop.row("ROW#1") is None


def test_the_newest_parts_and_the_time_make_a_row_together():
    user, login, locked_users = (
        Key(pk, sk) for pk, sk in (("USER#{u}", "META"), ("USER#{u}", "LOGIN#{at}"), ("X#{u}", "X"))
    )
    router = Router()

    @router.index(user, into=locked_users, parts=[Newest(login, 3)], optional=True)
    def locked(user: Item | None, parts: Parts, now: Now) -> Row | None:
        failures = [each.key["at"] for each in parts(login)]
        if len(failures) < 3 or now.passed(failures[0], after=timedelta(minutes=10)):
            return None
        return Row(since=failures[-1])

    twin = Twin(App("logins", routers=[router]))
    for minute in (55, 56, 58):
        twin.put(login, u="ada", at=f"2026-03-01T08:{minute}:00Z")
    assert twin.row(locked_users, u="ada")["since"] == "2026-03-01T08:58:00Z"
    twin.clock.advance(300)
    assert twin.row(locked_users, u="ada") is None


def test_parts_go_with_lookups_shards_and_unique_rows():
    customer, spread, first = Key("C#{customer}", "META"), Key("S#{city}", "S#{shard:02d}"), Key("F#{city}", "F")
    router = Router()
    options = {"parts": [LINE], "lookup": {"buyer": Lookup(customer, customer="buyer")}}

    @router.view(ORDER, into=spread, shards=2, **options)
    def cities(order, parts, buyer):
        return Row(city=buyer["city"], lines=Sum(len(parts(LINE))))

    @router.index(ORDER, into=first, unique=True, **options)
    def first_of_city(order, parts, buyer, order_id):
        return Row(city=buyer["city"], lines=len(parts(LINE)), of=order_id)

    twin = Twin(App("shop", routers=[router]))
    twin.put(LINE, order_id="1", sku="a")
    twin.put(ORDER, order_id="1", buyer="ada")
    assert twin.row(first, city="x") is None
    twin.put(customer, customer="ada", city="x")
    twin.put(LINE, order_id="1", sku="b")
    assert twin.row(first, city="x")["lines"] == 2
    assert sum(row["lines"] for row in twin.rows(spread)) == 2


def test_a_document_has_the_newest_parts_and_is_not_made_again_for_what_it_does_not_read():
    made, router = [], Router()

    @router.search(DEVICE, to="devices", parts=[Newest(READING, 2, reads=["value"])], fields={"values": "long"})
    def document(device, parts):
        made.append(1)
        return Document(values=[each["value"] for each in parts(READING)])

    twin = Twin(App("devices", routers=[router]))
    twin.put(DEVICE, device="d", name="n")
    for at in "312":
        twin.put(READING, device="d", at=at, value=int(at))
    before = len(made)
    twin.put(READING, device="d", at="3", value=3, note="x")
    assert len(made) == before
    assert [document["values"] for document in twin.documents("devices").values()] == [[2, 3]]
