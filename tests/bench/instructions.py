"""Instructions of a replay that keeps nothing, two views, against ``json.loads`` of the same lines: exact anywhere.

Counted by callgrind of Valgrind, which has to be there. The program is run with its work done twice and once, so that
what comes before and after falls out.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.replay import GOAL_RECORDED, GOALS, RECORDS
from tests.bench.shop import lines

PROGRAM = """
import gc
import sys
from pathlib import Path
from tests.bench.replay import parse_and_keep, replay, two_views
gc.disable()
path, rounds, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
app, text = two_views(), path.read_bytes().splitlines(keepends=True)
for _ in range(rounds):
    replay(app, path) if what == "replay" else parse_and_keep(text)
"""
COUNTED = re.compile(r"refs: +([0-9,]+)")


def run(*, large: bool) -> Iterator[str]:
    del large
    if shutil.which("valgrind") is None:
        yield "skipped: it needs valgrind, which is not on the path"
        return
    with TemporaryDirectory() as folder:
        yield _compared("events/shop.jsonl", Path("events/shop.jsonl"), GOAL_RECORDED)
        for items, goal in GOALS.items():
            path = Path(folder) / f"{items}.jsonl"
            path.write_text("".join(lines(RECORDS, items)), "utf-8")
            yield _compared(f"{RECORDS:,} records of {items:,} items", path, goal)


def _compared(name: str, path: Path, goal: int) -> str:
    records = len(path.read_bytes().splitlines())
    subprocess.run([sys.executable, "-c", PROGRAM, str(path), "1", "replay"], check=True)  # writes byte code, once
    replay, parse = (
        (_counted(path, 2, what) - _counted(path, 1, what)) / records / 1000 for what in ("replay", "parse")
    )
    return (
        f"{name}: {replay:.0f},000 instructions a record, json.loads of the lines {parse:.0f},000: "
        f"{replay / parse:.1f}x (goal: at most {goal}x)"
    )


def _counted(path: Path, rounds: int, what: str) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    program = [sys.executable, "-c", PROGRAM, str(path), str(rounds), what]
    done = subprocess.run([*command, *program], capture_output=True, text=True, check=True)
    found = COUNTED.search(done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))
