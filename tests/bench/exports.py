"""Peak memory and time of ``verify --export``: all rows against what all items of an export add up to."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.memory import PROGRAM
from tests.helpers.exports import write_export

ITEMS, ITEMS_LARGE = 100_000, 1_000_000
ITEMS_A_ROW = 10
FILES = 20
FAULT_EVERY = 5_000
"""Rows between two that are planted wrong."""
APPLICATION = """
from streamfold import App, Count, Key, Router, Row, Sum

router = Router()


@router.view(Key("ITEM#{item_id}", "METADATA"), into=Key("TOTAL#{group}", "TOTAL"))
def total(item):
    return Row(group=item["group"], total=Sum(item["amount"]), items=Count())


app = App("bench", routers=[router])
"""


def run(*, large: bool) -> Iterator[str]:
    items = ITEMS_LARGE if large else ITEMS
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench_app.py").write_text(APPLICATION, "utf-8")
        few, many = (_verified(Path(folder), count) for count in (items // 100, items))
    yield (
        f"{items:,} items, {items // ITEMS_A_ROW:,} rows: {many['mib']:.0f} MiB peak, {many['mib'] - few['mib']:.0f} "
        f"above that of {items // 100:,} items; {many['seconds']:.0f} s; {many['found']} of {many['planted']} planted "
        "rows found (goal: at most 300 MiB)"
    )


def images(items: int) -> Iterator[dict[str, Any]]:
    """The items and rows of a table, of which some rows are wrong."""
    rows = items // ITEMS_A_ROW
    for n in range(items):
        key = {"PK": {"S": f"ITEM#{n}"}, "SK": {"S": "METADATA"}}
        yield {**key, "group": {"S": f"g{n % rows}"}, "amount": {"N": "3"}, "note": {"S": "x" * 100}}
    for n in range(rows):
        total = ITEMS_A_ROW * 3 + (n % FAULT_EVERY == 0)
        key = {"PK": {"S": f"TOTAL#g{n}"}, "SK": {"S": "TOTAL"}}
        counts = {"total": {"N": str(total)}, "items": {"N": str(ITEMS_A_ROW)}, "_sf_n": {"N": str(ITEMS_A_ROW)}}
        yield key | counts


def _verified(folder: Path, items: int) -> dict[str, float]:
    place = write_export(folder / str(items), images(items), files=FILES, total=items + items // ITEMS_A_ROW)
    here = Path.cwd()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here, here / "framework", folder)))}
    command = ["verify", "--export", place, "--app", "bench_app:app", "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], env=environment, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["rows"]["different"]
    planted = -(-items // ITEMS_A_ROW // FAULT_EVERY)
    peak = int(done.stderr.split("PEAK")[1]) / 1024
    return {"mib": peak, "seconds": time.monotonic() - began, "found": len(found), "planted": planted}
