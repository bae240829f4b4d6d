"""CPU of a replay that keeps nothing, two views, against ``json.loads`` of the same lines.

Both keep what a batch of lines gives until the batch is done, as a replay has to.
"""

import gc
import json
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from handlers import shop
from streamfold import App, Router
from streamfold.cli.session import EMBEDDED_ACTIONS, open_memory
from streamfold.records.envelope import Origins
from streamfold.replay.files import RecordedFiles
from streamfold.replay.replay import BATCH_RECORDS, Replay
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.bench.shop import lines

ROUNDS = 7
RECORDS = 10_000
GOAL_RECORDED, GOALS = 3, {500: 3, 5_000: 5}
"""Times the instructions of ``json.loads`` at most: of recorded events, and by how many items the records are of.

The fewer records an item has in a batch, the less of them is spared the handlers and the ledger.
"""


def two_views() -> App:
    """An application of the shop's two views of order items."""
    router = Router()
    router.view(shop.ORDER_ITEM, into=shop.ORDER_TOTAL)(shop.order_total)
    router.view(shop.ORDER_ITEM, into=shop.SALES)(shop.daily_sales)
    return App("bench", routers=[router])


def run(*, large: bool) -> Iterator[str]:
    del large
    app = two_views()
    with tempfile.TemporaryDirectory() as folder:
        yield _compared(app, "events/shop.jsonl", Path("events/shop.jsonl"), GOAL_RECORDED)
        for items, goal in GOALS.items():
            path = Path(folder) / f"{items}.jsonl"
            path.write_text("".join(lines(RECORDS, items)), "utf-8")
            yield _compared(app, f"{RECORDS:,} records of {items:,} items", path, goal)


def _compared(app: App, name: str, path: Path, goal: int) -> str:
    with path.open("rb") as file:
        text = file.readlines()
    parse, kept, replayed = [], [], []
    for _ in range(ROUNDS):
        parse.append(_seconds(_parse, text))
        kept.append(_seconds(parse_and_keep, text))
        replayed.append(_seconds(replay, app, path))
    micro = [min(seconds) / len(text) * 1e6 for seconds in (kept, parse, replayed)]
    return (
        f"{name}: {micro[2]:.1f} us a record; json.loads of the lines {micro[0]:.1f} us kept by batch, "
        f"{micro[1]:.1f} us dropped: {micro[2] / micro[0]:.1f}x and {micro[2] / micro[1]:.1f}x "
        f"(goal, of instructions: at most {goal}x)"
    )


def _seconds(function, *arguments) -> float:
    """The CPU of a call, without Python's search for cycles, which a replay does between its batches."""
    gc.disable()
    begin = time.process_time()
    function(*arguments)
    gc.enable()
    return time.process_time() - begin


def _parse(text: list[bytes]) -> None:
    for line in text:
        json.loads(line)


def parse_and_keep(text: list[bytes]) -> None:
    rest = iter(text)
    while [json.loads(line) for line in islice(rest, BATCH_RECORDS)]:
        pass


def replay(app: App, path: Path) -> None:
    settings = Settings()
    engine = open_memory(app, settings)
    run = Runtime(app, engine, settings, actions=EMBEDDED_ACTIONS)
    origins = Origins(app.source_tables, settings)
    Replay(run, origins).process(RecordedFiles([str(path)]))
