"""Handlers with a lookup: batches against those without, a referent with many referrers, visits, and imports.

Requests and units are counted over the store in memory. Times compare two things in one run.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from streamfold import App, Count, Item, Key, Lookup, Router, Row, Sum
from tests.helpers.looked_up import LookupShop

LINE, PRODUCT = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("PRODUCT#{product_id}", "META")
SALES, OWN = Key("CATEGORY#{category}", "SALES"), Key("LINE#{order_id}", "{sku}")
BATCH, BATCHES, ROUNDS = 100, 20, 5
MANY, MANY_LARGE = 100_000, 1_000_000
VISITED = 3_000
STORE_SECONDS = 0.005
IMPORTS = 10
GOAL_RECORDS, GOAL_VISITS = 0.5, 1_500
GOALS_SHARED, GOALS_OWN = (0.04, 2.06), (0.05, 4.02)
LINES_AT_ONCE = 1_000


def application(*, looks_up: bool, own_rows: bool = False) -> App:
    """The lines' units by category, of the line or of its product; or a row for each line."""
    router = Router()
    lookup = {"product": Lookup(PRODUCT, reads=["category"])} if looks_up else None
    if own_rows:

        @router.view(LINE, into=OWN, lookup=lookup)
        def own(line: Item, product: Item) -> Row:
            return Row(category=product["category"])

    elif looks_up:

        @router.view(LINE, into=SALES, lookup=lookup)
        def sales(line: Item, product: Item) -> Row:
            return Row(category=product["category"], units=Sum(line["quantity"]), lines=Count())

    else:

        @router.view(LINE, into=SALES)
        def plain_sales(line: Item) -> Row:
            return Row(category=line["category"], units=Sum(line["quantity"]), lines=Count())

    return App("shop", routers=[router])


class Shop(LookupShop):
    """A table with lines and products, and the store that the function derives into."""

    def line(self, number: int, product: int) -> Any:
        return self.line_of(number, str(product), quantity=1, category="c")

    def product(self, number: int, category: str) -> Any:
        return self.write(f"PRODUCT#{number}", "META", {"category": category})

    def derive(self, changes: Sequence[Any]) -> None:
        """Processes a batch, and works on the fan-outs that it opens."""
        assert self.process(*changes) == []
        assert self.fan_out() == []


def run(*, large: bool) -> Iterator[str]:
    for referents in (1, BATCH):
        ratio = median(
            _records_a_second(referents, looks_up=True) / _records_a_second(referents, looks_up=False)
            for _ in range(ROUNDS)
        )
        yield (
            f"records a second of a batch of {BATCH} with {referents} referents: {ratio:.2f} of a handler without a "
            f"lookup (goal: at least {GOAL_RECORDS})"
        )
    for own_rows, goals in ((False, GOALS_SHARED), (True, GOALS_OWN)):
        yield _referrers(MANY_LARGE if large else MANY, goals, own_rows=own_rows)
    yield _visits()
    yield _imports()


def _records_a_second(referents: int, *, looks_up: bool) -> float:
    shop = Shop(application(looks_up=looks_up))
    shop.store = shop.engine  # counting takes time too
    for number in range(referents):
        shop.product(number, "c")
    batches = [
        [shop.line(BATCH * batch + number, number % referents) for number in range(BATCH)] for batch in range(BATCHES)
    ]
    begin = time.process_time()
    for batch in batches:
        shop.derive(batch)
    return BATCH * BATCHES / (time.process_time() - begin)


def _referrers(count: int, goals: tuple[float, float], *, own_rows: bool) -> str:
    shop = Shop(application(looks_up=True, own_rows=own_rows))
    shop.derive([shop.product(0, "a")])
    for start in range(0, count, LINES_AT_ONCE):
        shop.derive([shop.line(number, 0) for number in range(start, min(start + LINES_AT_ONCE, count))])
    shop.store.calls.clear()
    shop.store.writes.clear()
    idle = _memory()
    shop.derive([shop.product(0, "b")])
    requests, units = shop.store.requests / count, shop.store.write_units / count
    rows = [row for key, row in shop.engine.rows.items() if key[1].startswith(("CATEGORY#b", "LINE#"))]
    assert len(rows) == (count if own_rows else 1)
    return (
        f"{count:,} referrers of one referent, {'a row each' if own_rows else 'rows shared'}: {requests:.3f} requests "
        f"and {units:.2f} write units each (goals: at most {goals[0]} and {goals[1]}); {_memory() - idle:.0f} MB more "
        "with the rows"
    )


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Slow:
    """A store that takes its time for each call."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if not callable(found):
            return found

        def call(*given: Any, **more: Any) -> Any:
            time.sleep(STORE_SECONDS)
            return found(*given, **more)

        return call


def _visits() -> str:
    shop = Shop(application(looks_up=True))
    shop.derive([shop.product(0, "a")])
    for start in range(0, VISITED, LINES_AT_ONCE):
        shop.derive([shop.line(number, 0) for number in range(start, start + LINES_AT_ONCE)])
    shop.store = Slow(shop.store)
    begin = time.perf_counter()
    shop.derive([shop.product(0, "b")])
    rate = VISITED / (time.perf_counter() - begin)
    return f"visits a second of one worker, a store that answers in 5 ms: {rate:,.0f} (goal: at least {GOAL_VISITS:,})"


PROGRAM = """
import importlib, sys, time
sys.path[:0] = sys.argv[2:]
import boto3, streamfold
begin = time.process_time()
importlib.import_module(sys.argv[1])
print(1000 * (time.process_time() - begin))
"""
HEAD = """
from streamfold import App, Count, Key, Lookup, Router, Row, Sum

router = Router()
PRODUCT = Key("PRODUCT#{product_id}", "META")
"""
HANDLER = """
LINE_{n} = Key("ORDER{n}#{{order_id}}", "ITEM#{{sku}}")
TOTAL_{n} = Key("ORDER{n}#{{order_id}}", "TOTAL")


@router.view(LINE_{n}, into=TOTAL_{n}{lookup})
def order_total_{n}(item{parameter}):
    return Row(total=Sum(item["price"]), lines=Count())
"""


def _imports() -> str:
    with TemporaryDirectory() as folder:
        for name, lookup, parameter in (
            ("without", "", ""),
            ("with_ten", ', lookup={"product": PRODUCT}', ", product"),
        ):
            handlers = "".join(HANDLER.format(n=n, lookup=lookup, parameter=parameter) for n in range(IMPORTS))
            source = HEAD + handlers + '\napp = App("shop", routers=[router])\n'
            Path(folder, f"{name}.py").write_text(source, "utf-8")
            _milliseconds(name, folder)  # compiles
        more = median(_milliseconds("with_ten", folder) - _milliseconds("without", folder) for _ in range(ROUNDS * 2))
    return (
        f"importing an application of {IMPORTS} handlers with a lookup each takes {more:.1f} ms more (goal: at most 5)"
    )


def _milliseconds(module: str, folder: str) -> float:
    command = [sys.executable, "-c", PROGRAM, module, folder, "framework", "."]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
