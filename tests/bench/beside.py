"""A backfill on DynamoDB Local beside a function that takes the changes of a stream, in a process of its own.

The function gets what came since its last batch, up to ``BATCH`` records, as Lambda calls it. How many transactions the
server takes at all is measured first, by a loop that does nothing else: nothing here can be faster than that.
"""

import multiprocessing
import time
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from streamfold import App
from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import BackfillRun, RunHooks, new_job
from streamfold.lifecycle.page import Pages
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.bench.killed import GROUPS, SEGMENTS, application, image
from tests.helpers.records import change
from tests.helpers.tables import make_table

CHANGES_A_SECOND = 100
BATCH = 100
WINDOW_SECONDS = 0.5
"""How long records are gathered for a batch (the setting of a mapping)."""
PAGE = 500
PAGES_MAX = 2
NAIVE_SECONDS = 3.0
WRITES_A_CALL = 25


class Live(NamedTuple):
    """What the function did."""

    changes: int
    seconds: float
    waited: Counter[int]  # changes by the pages that went by from their write to the end of their batch
    failed: int
    added: Counter[int]  # to the amounts of a group

    @property
    def rate(self) -> float:
        return self.changes / max(self.seconds, 0.001)


def beside(endpoint: str, items: int) -> Iterator[str]:
    """Says how fast the server is, and what became of a run over so many items beside the changes."""
    name = f"bench{time.time_ns()}"  # of the tables' owner: each has a database of its own
    client, app = client_of(endpoint, name), application()
    make_table(client, "main", {"PK": "S", "SK": "S"})
    make_table(client, "state", {"pk": "S", "sk": "S"})
    naive = _naive(client)
    yield f"DynamoDB Local takes {naive:.0f} transactions of two items a second from one loop, and nothing else"
    deque(_put(client, (image(n) for n in range(items))), maxlen=0)
    process = LiveProcess(endpoint, name, items)
    began = time.monotonic()
    failed = _filled(app, client, process)
    seconds = time.monotonic() - began
    live = process.end()
    wrong, rows = _wrong(app, client, items, live.added)
    yield (
        f"{items:,} items in {seconds:.0f} s beside {live.changes:,} changes, {live.rate:.0f} a second of the "
        f"{CHANGES_A_SECOND} asked for: {wrong} of {rows} rows wrong, {failed} failed; a record waited for "
        f"{max(live.waited)} pages at most, {_longer(live.waited)} of {live.waited.total()} for more than two, "
        f"{live.failed} failed (goal: 0, 0, 2)"
    )


def _longer(waited: Counter[int]) -> int:
    return sum(number for pages, number in waited.items() if pages > PAGES_MAX)


def client_of(endpoint: str, name: str) -> Any:
    import boto3

    keys = {"aws_access_key_id": name, "aws_secret_access_key": "secret"}
    return boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1", **keys)


def _put(client: Any, images: Iterator[dict[str, Any]]) -> Iterator[int]:
    """Writes items call by call; yields how many each call wrote."""
    while some := [{"PutRequest": {"Item": encode(each)["M"]}} for each in islice(images, WRITES_A_CALL)]:
        client.batch_write_item(RequestItems={"main": some})
        yield len(some)


def _naive(client: Any) -> float:
    """Transactions of two new items a second, one after another."""
    began, number = time.monotonic(), 0
    while time.monotonic() - began < NAIVE_SECONDS:
        keys = ({"pk": {"S": f"naive#{number}"}, "sk": {"S": str(part)}} for part in range(2))
        client.transact_write_items(TransactItems=[{"Put": {"TableName": "state", "Item": key}} for key in keys])
        number += 1
    return number / (time.monotonic() - began)


def _filled(app: App, client: Any, process: "LiveProcess") -> int:
    engine, tables = _engine(app, client), [app.tables["main"]]
    jobs = Jobs(app.name, engine)
    job = new_job(jobs, "backfill", ["total"], tables, SEGMENTS, by="bench")
    pages = Pages(Runtime(app, engine, Settings()), ["total"])
    after = RunHooks(lambda _: process.page())
    progress = BackfillRun(jobs, job, pages, tables, page_items=PAGE, hooks=after).run()
    return len(progress.report.failed)


def _wrong(app: App, client: Any, items: int, added: Counter[int]) -> tuple[int, int]:
    """How many rows are not what the items add up to, and how many there are."""
    rows = _engine(app, client).read_rows(("main", f"TOTAL#g{n}", "TOTAL") for n in range(GROUPS))
    each = items // GROUPS
    expected = {("main", f"TOTAL#g{n}", "TOTAL"): (each, each + added[n]) for n in range(GROUPS)}
    shown = {key: (row["items"], row["total"]) for key, row in rows.items()}
    return sum(shown.get(key) != value for key, value in expected.items()), len(rows)


def _engine(app: App, client: Any) -> DynamoEngine:
    return DynamoEngine(client, {name: (table, name) for name, table in app.tables.items()}, "state")


class LiveProcess:
    """The process of the function, which is told of pages."""

    def __init__(self, endpoint: str, name: str, items: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pages, self.ended, self.found = spawn.Value("i", 0), spawn.Event(), spawn.Queue()
        given = (endpoint, name, items, self.pages, self.ended, self.found)
        self.process = spawn.Process(target=live, args=given, daemon=True)
        self.process.start()
        self.found.get()  # it is about to begin

    def page(self) -> None:
        self.pages.value += 1

    def end(self) -> Live:
        self.ended.set()
        found: Live = self.found.get()
        self.process.join()
        return found


def live(endpoint: str, name: str, items: int, pages: Any, ended: Any, found: Any) -> None:
    """Changes items at a rate, and processes their records batch by batch."""
    app, client, random = application(), client_of(endpoint, name), Random(2)
    engine, amounts = _engine(app, client), Counter[int]()
    run = Runtime(app, engine, Settings())
    added, waited = Counter[int](), Counter[int]()
    done = failed = 0
    found.put("ready")
    began = time.monotonic()
    while not ended.is_set():
        due = min(int((time.monotonic() - began) * CHANGES_A_SECOND) - done, BATCH)
        if due < CHANGES_A_SECOND * WINDOW_SECONDS:
            time.sleep(WINDOW_SECONDS / 10)
            continue
        numbers = random.sample(range(items), due)
        before = {n: amounts[n] + 1 for n in numbers}
        written = [(pages.value, count) for count in _put(client, (image(n, before[n] + 1) for n in numbers))]
        records = [
            change(image(n, before[n]), image(n, before[n] + 1), done + place) for place, n in enumerate(numbers, 1)
        ]
        failed += len(process_changes(run, records).failures)
        amounts.update(numbers)
        added.update(n % GROUPS for n in numbers)
        done += due
        for page, count in written:
            waited[pages.value - page] += count
    found.put(Live(done, time.monotonic() - began, waited, failed, added))
