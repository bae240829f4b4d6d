"""A backfill beside a writer on DynamoDB Local, whose own speed is measured first."""

import threading
import time
from collections import Counter
from itertools import count
from random import Random
from typing import Any

from streamfold import App
from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.beside import Beside
from streamfold.lifecycle.filling import Filling, new_job
from streamfold.lifecycle.page import Pages
from streamfold.records.values import encode
from streamfold.run import Run
from streamfold.settings import Settings
from tests.bench.killed import GROUPS, SEGMENTS, application, image
from tests.helpers.records import change
from tests.helpers.tables import make_table

CHANGES_A_SECOND = 100
PAGE = 500


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
