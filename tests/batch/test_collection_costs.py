"""Requests and units of a change of a part, counted, and what a page of many collections holds at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from streamfold import App, Count, Key, Newest, Router, Row
from streamfold.batch.process import process_changes
from streamfold.commit import collections
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import Page
from streamfold.lifecycle.page import Pages
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.batch.test_collections import LINE, ORDER, ROWS, SHIPMENT, Shop, shop_of

MORE_MB_MAX = 100
PEAK = "from tests.batch.test_collection_costs import peak_mb; print(peak_mb(roots={roots}, gathers={gathers}))"


def two_keys(router):
    @router.index(ORDER, into=ROWS, parts=[LINE, SHIPMENT])
    def sums(order, parts):
        return Row(total=sum(each["price"] for each in parts(LINE)), shipments=len(parts(SHIPMENT)))


def filled(lines, letters=205):
    """An order with so many lines, of 25 bytes more than their text has letters."""
    shop = shop_of(two_keys)
    text = "x" * letters
    shop.process(shop.order(), *(shop.line(f"{number:05}", price=1, text=text) for number in range(lines)))
    return shop, text


@pytest.mark.parametrize(
    ("lines", "letters", "read"), [(10, 205, 4), (100, 205, 9), (1_000, 205, 61), (1_000, 985, 253)]
)
def test_a_change_of_a_part_costs_the_reads_of_its_collection(lines, letters, read):
    shop, text = filled(lines, letters)
    requests, units, written = shop.counted(shop.line("00001", price=2, text=text))
    assert requests == (6 if lines == 1_000 else 5)
    assert abs(units - read) <= 1
    assert written == 4
    requests, _, written = shop.counted(shop.line("00001", price=2, text=text[1:] + "y"))
    assert (requests, written) == (6 if lines == 1_000 else 5, 1)


def test_the_parts_that_a_change_reads_are_counted():
    shop, text = filled(10)
    run = shop.runtime()
    report = process_changes(run, [shop.line("00001", price=2, text=text)])
    assert (report.failures, run.pace.take_parts_read(), run.pace.take_parts_read()) == ([], 10, 0)


def test_a_hundred_roots_of_ten_parts_in_a_batch_cost_two_requests_each():
    shop = shop_of(two_keys)
    keys = [(str(order), f"{line:02}") for order in range(100) for line in range(10)]
    shop.process(*(shop.order(str(order)) for order in range(100)), *(shop.line(sku, of, price=1) for of, sku in keys))
    assert shop.counted(*(shop.line(sku, of, price=2) for of, sku in keys)) == (204, 400, 400)
    assert shop.counted(*(shop.line(sku, of, price=2, note="x") for of, sku in keys)) == (203, 400, 200)


def test_a_handler_without_parts_costs_no_request_more_beside_one_with_parts():
    product, sums = Key("PRODUCT#{product}", "META"), Key("CATEGORY#{category}", "TOTAL")

    def alone(router):
        @router.view(product, into=sums)
        def categories(item):
            return Row(category=item["category"], products=Count())

    def both(router):
        alone(router)
        two_keys(router)

    costs = []
    for declare in (alone, both):
        shop = shop_of(declare)
        shop.process(shop.write("PRODUCT#p", "META", {"category": "x"}))
        costs.append(shop.counted(shop.write("PRODUCT#p", "META", {"category": "y"})))
    assert costs[0] == costs[1]


def test_a_page_holds_the_parts_of_few_roots_at_a_time(monkeypatch):
    held, most = {}, []

    class Watched(collections.Collections):
        def _read_from(self, first):
            super()._read_from(first)
            held[id(self)] = len(self.read)
            most.append(held[id(self)])

    monkeypatch.setattr(collections, "Collections", Watched)
    shop = shop_of(two_keys)
    for number in range(50):
        shop.order(str(number))
        shop.line("a", str(number), price=1)
    report = Pages(shop.runtime(), ["sums"]).reconcile([("main", f"ORDER#{number}", "META") for number in range(50)])
    assert (report.written, len(most)) == (50, 50)
    assert max(most) <= collections.SIDE_BY_SIDE


class LargeRoots(MemoryEngine):
    """A store with 1 MB of lines below each order, made when they are read."""

    lines, text = 100, "x" * 10_000

    def page(self, table, partition, begins, after, limit, **given):
        if not begins.startswith("LINE"):
            return super().page(table, partition, begins, after, limit, **given)
        keys = [{"PK": {"S": partition}, "SK": {"S": f"LINE#{number:05}"}} for number in range(self.lines)]
        texts = ({"S": f"{number:05}{self.text}"} for number in range(self.lines))
        return Page([{**key, "price": {"N": "1"}, "text": text} for key, text in zip(keys, texts, strict=True)], None)


def peak_mb(*, roots, gathers):
    """The peak of this process's memory behind a page of so many orders."""
    router = Router()
    if gathers:

        @router.index(ORDER, into=ROWS, parts=[LINE])
        def sums(order, parts):
            return Row(total=sum(each["price"] + len(each["text"]) for each in parts(LINE)))

    else:

        @router.index(ORDER, into=ROWS)
        def sums(order):
            return Row(total=1_000_600)

    app = App("shop", routers=[router])
    engine = LargeRoots(app.tables.values())
    engine.put_sources([(("main", f"ORDER#{n}", "META"), {"customer": {"S": "c"}}, "1") for n in range(roots)])
    report = Pages(Runtime(app, engine, Settings()), ["sums"]).reconcile(
        [("main", f"ORDER#{number}", "META") for number in range(roots)]
    )
    assert (report.written, report.failed) == (roots, [])
    assert all(engine.read_source(("main", f"ROW#{n}", "ROW"))["total"] == {"N": "1000600"} for n in range(roots))
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(peak) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux has the peak of a process by itself")
@pytest.mark.parametrize(
    "roots", [pytest.param(200, marks=pytest.mark.ci), pytest.param(1_000, marks=pytest.mark.nightly)]
)
def test_a_page_of_roots_of_1_mb_each_takes_at_most_100_mb_more_than_one_of_roots_without_parts(roots):
    peaks = [
        float(subprocess.check_output([sys.executable, "-c", PEAK.format(roots=roots, gathers=gathers)], text=True))
        for gathers in (False, True)
    ]
    assert peaks[1] - peaks[0] < MORE_MB_MAX


@pytest.mark.parametrize("on_error", ["retry", "park"])
def test_more_parts_than_a_root_may_have_park_it_with_their_number(monkeypatch, on_error):
    monkeypatch.setattr("streamfold.commit.collections.PARTS_MAX", 3)
    router = Router()

    @router.index(ORDER, into=ROWS, parts=[LINE], on_error=on_error)
    def lines(order, parts):
        return Row(lines=len(parts(LINE)))

    shop = Shop(App("shop", routers=[router]))
    shop.process(shop.order(), *(shop.line(str(number)) for number in range(3)))
    (failure,) = {str(each.error) for each in shop.process(shop.line("3"))}
    assert "would gather over 3 parts of one item" in failure
    assert "cannot be parked" in failure  # of this test, which has no parking place
    assert shop.row("ROW#1") == {"lines": 3}


def test_newest_reads_a_few_of_many_parts():
    router, reading = Router(), Key("ORDER#{order_id}", "READING#{at}")

    @router.index(ORDER, into=ROWS, parts=[Newest(reading, 3)])
    def last(order, parts):
        return Row(values=[each["value"] for each in parts(reading)])

    shop = Shop(App("shop", routers=[router]))
    shop.process(shop.order())
    for number in range(3_000):  # more than one root may gather
        shop.write("ORDER#1", f"READING#{number:05}", {"value": number})
    requests, read, _ = shop.counted(shop.write("ORDER#1", "READING#99999", {"value": 7}))
    assert shop.row("ROW#1") == {"values": [2998, 2999, 7]}
    assert (requests <= 5, read <= 4) == (True, True)
