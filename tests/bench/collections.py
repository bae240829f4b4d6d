"""Collections: the CPU of changes of parts, replayed locally, over that of a ``Sum`` of the same items.

Each change is of a line of another order, so that each reads a collection; the store is a state, as of ``replay``.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from streamfold import App, Item, Key, Parts, Router, Row, Sum
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.records.envelope import Origins
from streamfold.replay.files import RecordedFiles
from streamfold.replay.replay import Replay
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import item, record

ORDER, LINE = Key("ORDER#{order_id}", "META"), Key("ORDER#{order_id}", "LINE#{number:06d}")
TOTAL = Key("TOTAL#{order_id}", "ROW")
ORDERS, PARTS, ROUNDS, LOADED = 100, 1_000, 7, 1_000
GOAL = 60.0
"""CPU of a change of a part over that of a change that a ``Sum`` adds up, at most."""


def application(*, gathers: bool) -> App:
    """A row of each order with the price of its lines: of all lines together, or line by line."""
    router = Router()
    if gathers:

        @router.index(ORDER, into=TOTAL, parts=[LINE])
        def gathered(order: Item, parts: Parts) -> Row:
            return Row(price=sum(line["price"] for line in parts(LINE)))

    else:

        @router.view(LINE, into=TOTAL)
        def added(line: Item) -> Row:
            return Row(price=Sum(line["price"]))

    return App("shop", routers=[router])


def line(order: int, number: int, price: int) -> Any:
    return item(f"ORDER#{order}", f"LINE#{number:06d}", price=price, sku=f"sku-{number}", text="x" * 150)


def loaded() -> Iterator[Any]:
    """The records of all orders and lines, an order after the other."""
    for order in range(ORDERS):
        first = order * (PARTS + 1)
        yield record(None, item(f"ORDER#{order}", "META", customer="c"), first + 1)
        for number in range(PARTS):
            yield record(None, line(order, number, 0), first + number + 2)


def changed(turn: int) -> Iterator[Any]:
    """The records of a change of a line of each order."""
    for order in range(ORDERS):
        sequence = (turn + 1) * 1_000_000 + order
        yield record(line(order, turn, 0), line(order, turn, 1), sequence)


class State:
    """A local state, into which records are replayed."""

    def __init__(self, folder: str, *, gathers: bool) -> None:
        self.path, self.app = Path(folder) / "records.jsonl", application(gathers=gathers)
        self.engine = EmbeddedEngine(self.app.tables.values(), f"{folder}/{gathers}.db", self.app.chains)

    def replay(self, records: Iterable[Any], batch_records: int) -> float:
        """The CPU seconds of a replay of records."""
        self.path.write_text("".join(f"{json.dumps(each)}\n" for each in records), "utf-8")
        begin = time.process_time()
        runtime = Runtime(self.app, self.engine, Settings())
        origins = Origins(self.app.source_tables, Settings(), print, self.app.tables)
        replay = Replay(runtime, origins, batch_records=batch_records, put_sources=self.engine.put_sources)
        summary = replay.process(RecordedFiles([str(self.path)]))
        spent = time.process_time() - begin
        assert not summary.failure_count
        return spent

    @property
    def prices(self) -> list[Any]:
        keys = (("main", f"TOTAL#{order}", "ROW") for order in range(ORDERS))
        return [(self.engine.read_source(each) or {})["price"]["N"] for each in keys]


def run(*, large: bool) -> Iterator[str]:
    del large
    with TemporaryDirectory() as folder, ExitStack() as stack:
        gathering, adding = states = [State(folder, gathers=gathers) for gathers in (True, False)]
        for each in states:
            stack.enter_context(closing(each.engine))
            each.replay(loaded(), LOADED)
        # In pairs, as the machine is now slower and now faster.
        spent = [[each.replay(changed(turn), ORDERS) / ORDERS for each in states] for turn in range(ROUNDS)]
        assert gathering.prices == adding.prices == [str(ROUNDS)] * ORDERS
    yield (
        f"a change of a part in a collection of {PARTS:,}, replayed into a state in batches of {ORDERS}: "
        f"{median(each for each, _ in spent) * 1000:.1f} ms of CPU, "
        f"{median(gathered / added for gathered, added in spent):.0f} times that of a Sum of the same (goal: at most "
        f"{GOAL:.0f})"
    )
