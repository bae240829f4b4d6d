"""A backfill that dies again and again on the memory engine, and one beside a writer on DynamoDB Local."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

from streamfold import App, Key, Router, Row, Sum
from streamfold import Count as Counted
from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine, MemoryEngine
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.beside import Beside
from streamfold.lifecycle.filling import Filling, new_job
from streamfold.lifecycle.page import Pages
from streamfold.records.values import encode
from streamfold.run import Run
from streamfold.settings import Settings
from streamfold.testing.invocations import Died
from tests.helpers.records import change, item
from tests.helpers.tables import make_table

KILLED, KILLED_LARGE = 100_000, 1_000_000
KILLS = 20
BESIDE, BESIDE_LARGE = 10_000, 100_000
CHANGES_A_SECOND = 100
GROUPS = 100
PAGE, PAGE_SMALL, SEGMENTS = 500, 200, 4
ITEM = Key("ITEM#{item_id}", "METADATA")


def run(*, large: bool) -> Iterator[str]:
    for page in (PAGE, PAGE_SMALL):
        yield _killed(KILLED_LARGE if large else KILLED, page)
    endpoint = os.environ.get("DYNAMODB_ENDPOINT")
    if endpoint:
        yield _beside(endpoint, BESIDE_LARGE if large else BESIDE)
    else:
        yield "no DynamoDB Local: run tests/tools/engine.py with dynamodb -- python -m tests.bench backfill"


def application() -> App:
    router = Router()

    @router.view(ITEM, into=Key("TOTAL#{group}", "TOTAL"))
    def total(item: Any) -> Row:
        return Row(group=item["group"], total=Sum(item["amount"]), items=Counted())

    return App("shop", routers=[router])


def image(n: int, amount: int = 1) -> dict[str, Any]:
    return item(f"ITEM#{n}", "METADATA", group=f"g{n % GROUPS}", amount=amount)


class Dying(MemoryEngine):
    """A store whose caller dies at some calls, before or after them; writes and reads are counted."""

    def __init__(self, app: App) -> None:
        super().__init__(app.tables.values())
        self.source_tables.add("main")
        self.read: Counter[Any] = Counter()
        self.ledgers: Counter[Any] = Counter()
        self.moments: set[int] = set()
        self.calls = 0

    def _perhaps(self, *, after: bool) -> None:
        """Dies before calls of odd moments, and after those of even ones."""
        self.calls += not after
        if self.calls in self.moments and after == (self.calls % 2 == 0):
            raise Died

    def scan(self, *given: Any) -> Any:
        self._perhaps(after=False)
        found = super().scan(*given)
        self._perhaps(after=True)
        return found

    def read_state(self, keys: Any, *, consistent: bool = False) -> Any:
        self._perhaps(after=False)
        found = super().read_state(keys, consistent=consistent)
        self._perhaps(after=True)
        return found

    def read_sources(self, items: Any) -> Any:
        self._perhaps(after=False)
        known = list(items)
        self.read.update(known)
        found = super().read_sources(known)
        self._perhaps(after=True)
        return found

    def swap_state(self, *given: Any) -> bool:
        self._perhaps(after=False)
        stored = super().swap_state(*given)
        self._perhaps(after=True)
        return stored

    def transact(self, writes: Any, expires_at: int) -> Any:
        self._perhaps(after=False)
        refused = super().transact(writes, expires_at)
        if refused is None:
            self.ledgers.update(write.key for write in writes if str(write.key[0]).startswith("ledger#"))
        self._perhaps(after=True)
        return refused


def _killed(items: int, page: int) -> str:
    app, random = application(), Random(1)
    engine = Dying(app)
    engine.put_sources((("main", f"ITEM#{n}", "METADATA"), encode(image(n))["M"], "0") for n in range(items))
    engine.moments = set(random.sample(range(20, items // 100 + 8 * items // page), KILLS))
    tables, jobs = [app.tables["main"]], Jobs(app.name, engine)
    job, kills = new_job(jobs, "backfill", ["total"], tables, SEGMENTS, by="bench"), 0
    while True:
        try:
            Filling(jobs, job, Pages(app, engine, Run(Settings()), ["total"]), tables, page_items=page).run()
            break
        except Died:
            kills += 1
    rows = engine.read_rows(("main", f"TOTAL#g{n}", "TOTAL") for n in range(GROUPS))
    equal = all(row["total"] == row["items"] == items // GROUPS for row in rows.values())
    twice = sum(each > 1 for each in engine.ledgers.values())
    more = engine.read.total() - 2 * items  # the end of a run looks whether the source of each ledger item is there
    what = f"rows {'equal' if equal else 'DIFFERENT'}, {twice} items written twice, {more:,} sources read again"
    return (
        f"{items:,} items, pages of {page}, {kills} kills: {what}, {more / items:.2%} of the items and "
        f"{more / items / 2:.2%} of the reads (goal: equal, 0, at most 0.5%)"
    )


def _beside(endpoint: str, items: int) -> str:
    import boto3

    client = boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=f"bench{time.time_ns()}",
        aws_secret_access_key="secret",
    )
    app = application()
    make_table(client, "main", {"PK": "S", "SK": "S"})
    make_table(client, "state", {"pk": "S", "sk": "S"})
    for first in range(0, items, 25):
        puts = [{"PutRequest": {"Item": encode(image(n))["M"]}} for n in range(first, first + 25)]
        client.batch_write_item(RequestItems={"main": puts})
    engine = _engine(app, client)
    writer = Writer(app, client, items)
    tables, jobs = [app.tables["main"]], Jobs(app.name, engine)
    job = new_job(jobs, "backfill", ["total"], tables, SEGMENTS, by="bench")
    pages = Pages(app, engine, Run(Settings()), ["total"])
    writer.start()
    progress = Filling(jobs, job, pages, tables, page_items=PAGE, beside=Beside(lambda _: writer.page())).run()
    writer.stop()
    rows = engine.read_rows(("main", f"TOTAL#g{n}", "TOTAL") for n in range(GROUPS))
    wrong = sum(
        (row["items"], row["total"]) != (items // GROUPS, items // GROUPS + writer.added[int(key[1].split("#g")[1])])
        for key, row in rows.items()
    )
    return (
        f"{items:,} items on DynamoDB Local beside {writer.changes:,} changes, {writer.changes / writer.seconds:.0f} a "
        f"second: {wrong} of {len(rows)} rows wrong, {len(progress.report.failed)} failed; a record waited for "
        f"{writer.waited} pages at most, {writer.failed} failed (goal: 0, 0, 2)"
    )


def _engine(app: App, client: Any) -> DynamoEngine:
    return DynamoEngine(client, {name: (table, name) for name, table in app.tables.items()}, "state")


class Writer:
    """Changes items at a rate, and delivers each change as the stream would; counts the pages that it takes."""

    def __init__(self, app: App, client: Any, items: int) -> None:
        self.app, self.client, self.items = app, client, items
        self.changes = self.waited = self.pages = self.failed = 0
        self.seconds = 0.0
        self.added: Counter[int] = Counter()  # by group
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def page(self) -> None:
        self.pages += 1

    def _work(self) -> None:
        live, run, random, began = _engine(self.app, self.client), Run(Settings()), Random(2), time.monotonic()
        amounts: dict[int, int] = {}
        for number in count(1):
            if self._ended.is_set():
                break
            n = random.randrange(self.items)
            before, after = amounts.get(n, 1), amounts.get(n, 1) + 1
            amounts[n] = after
            self.added[n % GROUPS] += 1
            self.client.put_item(TableName="main", Item=encode(image(n, after))["M"])
            page = self.pages
            report = process_changes(self.app, [change(image(n, before), image(n, after), number)], live, run)
            self.failed += len(report.failures)
            self.waited = max(self.waited, self.pages - page)
            self.changes += 1
            time.sleep(max(0.0, began + number / CHANGES_A_SECOND - time.monotonic()))
        self.seconds = time.monotonic() - began
