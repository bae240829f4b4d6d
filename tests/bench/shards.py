"""Eight shards' batches at once on one row, with and without ``shards=``: throughput and conflicts.

Latencies are simulated: a transaction locks the items that it writes until it ends, and a transaction that meets a
locked item is refused with a conflict, as in DynamoDB. The processing is real.
"""

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from streamfold import App, Count, Item, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.runtime import Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.writes.guarded import CONFLICT, GuardedWrite, Reason, Refused
from tests.bench.shop import records

WORKERS = 8
BATCHES = 12
BATCH_RECORDS = 50
TRANSACTION_SECONDS = 0.02
ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")


def app_of(shards: int | None) -> App:
    """One row for all items, or as many as there are shards."""
    router = Router()

    def total(item: Item) -> Iterator[Row]:
        yield Row(revenue=Sum(item["price"]), lines=Count())

    into = Key("ALL", "TOTAL") if shards is None else Key("ALL#{shard:02d}", "TOTAL")
    router.view(ITEM, into=into, shards=shards)(total)
    return App("shop", routers=[router])


class Slow:
    """A store with slow transactions, which refuse each other if they share an item."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self.busy: set[Any] = set()
        self.sent = self.conflicts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        keys = {write.key for write in writes}
        with self.lock:
            self.sent += 1
            met = keys & self.busy
            if met:
                self.conflicts += 1
                return Refused(tuple(Reason(CONFLICT[0]) if write.key in met else None for write in writes))
            self.busy |= keys
        time.sleep(TRANSACTION_SECONDS)
        with self.lock:
            self.busy -= keys
            return self.engine.transact(writes, expires_at)

    def read_state(self, keys: Collection[Any], *, consistent: bool = False) -> Any:
        with self.lock:
            return self.engine.read_state(keys, consistent=consistent)


def run(*, large: bool) -> Iterator[str]:
    del large
    plain, measured = _measured(None)
    yield f"one row: {measured}"
    spread, measured = _measured(WORKERS)
    yield f"{WORKERS} shards of the row: {measured}; throughput {spread / plain:.1f} times that of one row"


def _measured(shards: int | None) -> tuple[float, str]:
    app = app_of(shards)
    store = Slow(MemoryEngine(app.tables.values(), app.chains))
    count = WORKERS * BATCHES * BATCH_RECORDS
    shards_records: list[list[dict[str, Any]]] = [[] for _ in range(WORKERS)]
    for record in records(count, count):  # an item's records come through one shard of the stream, in order
        shards_records[int(record["dynamodb"]["Keys"]["PK"]["S"].removeprefix("ORDER#")) % WORKERS].append(record)
    begin = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        failed = sum(pool.map(lambda shard: _work(app, store, shard), shards_records))
    rate = count / (time.monotonic() - begin)
    share = store.conflicts / store.sent
    return rate, f"{share:.0%} of {store.sent} transactions met a conflict, {failed} batches were redelivered"


def _work(app: App, store: Any, shard: Sequence[dict[str, Any]]) -> int:
    """Delivers each batch until nothing of it fails; returns the number of redeliveries."""
    redelivered, pace = 0, SendingPace()
    for start in range(0, len(shard), BATCH_RECORDS):
        batch = list(shard[start : start + BATCH_RECORDS])
        while process_event(Runtime(app, store, Settings(), pace=pace), batch).failures:
            redelivered += 1
    return redelivered
