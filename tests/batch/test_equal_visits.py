"""Visits and records that change nothing cost no more than they have to."""

import pytest

from streamfold import App, Key, Lookup, Router, Row
from streamfold.records.values import decode
from tests.helpers.looked_up import LINE, PRODUCT, LookupShop

TICKET, AGENT = Key("TICKET#{ticket_id}", "META"), Key("AGENT#{agent_id}", "META")


def shop_of_rows(rows, size):
    router = Router()

    @router.index(LINE, into=Key("OWN#{order_id}#{sku}", "ROW#{n:06d}"), lookup={"product": PRODUCT})
    def own(line, product):
        for number in range(rows):
            yield Row(n=number, text="x" * size * product.get("times", 1))

    return LookupShop(App("shop", routers=[router]))


@pytest.mark.parametrize(("rows", "size"), [(1, 10), (60, 200), (90, 1000)])
def test_an_equal_visit_writes_the_ledger_item_alone_however_large_the_contribution(rows, size):
    shop = shop_of_rows(rows, size)
    shop.process(shop.write("PRODUCT#p", "META", {"a": 1}))
    shop.process(shop.line_of(1, "p", quantity=1))
    requests, read, written = shop.counted(shop.write("PRODUCT#p", "META", {"a": 2}))
    assert (requests, read, written) == ((5, 4.0, 1) if rows == 1 else (6, 6.0, 1))


def test_a_large_contribution_that_changes_is_put_again():
    shop = shop_of_rows(60, 200)
    shop.process(shop.write("PRODUCT#p", "META", {"a": 1}))
    shop.process(shop.line_of(1, "p", quantity=1))
    shop.process(shop.write("PRODUCT#p", "META", {"times": 2}))
    shop.process(shop.write("PRODUCT#p", "META", {"times": 1}))
    rows = [row for row in map(decode_row, shop.engine.items(LINE.table)) if row["PK"].startswith("OWN#")]
    assert [len(row["text"]) for row in rows] == [200] * 60


def decode_row(row):
    return {name: decode(value) for name, value in row.items()}


def ticket_shop(*, optional):
    router = Router()

    @router.attributes(TICKET, lookup={"agent": Lookup(AGENT, agent_id="assigned_to", optional=optional)})
    def name_of_agent(ticket, agent):
        return Row(agent_name=agent["name"] if agent else "nobody")

    return LookupShop(App("shop", routers=[router]))


def written_back(shop):
    row = decode_row(shop.engine.read_source(("main", "TICKET#7", "META")))
    return {name: value for name, value in row.items() if name not in ("PK", "SK")}


def test_the_record_of_a_write_back_reads_no_referent_and_writes_nothing():
    shop = ticket_shop(optional=False)
    shop.process(shop.write("AGENT#ada", "META", {"name": "Ada"}))
    shop.process(shop.write("TICKET#7", "META", {"assigned_to": "ada"}))
    assert shop.counted(shop.write("TICKET#7", "META", written_back(shop))) == (2, 2.0, 0)


def test_a_record_that_changes_more_than_what_was_written_back_is_derived():
    shop = ticket_shop(optional=True)
    shop.process(shop.write("AGENT#ada", "META", {"name": "Ada"}))
    shop.process(shop.write("TICKET#7", "META", {"assigned_to": "ada"}))
    back = shop.write("TICKET#7", "META", written_back(shop))
    shop.process(back, shop.write("TICKET#7", "META", written_back(shop) | {"assigned_to": "bob"}))
    assert written_back(shop)["agent_name"] == "nobody"
