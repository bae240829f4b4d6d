"""Instructions of a replay that keeps nothing, two views, against ``json.loads`` of the same lines."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.callgrind import MISSING, is_there, of_one_round
from tests.bench.replay import GOAL_RECORDED, GOALS, RECORDS
from tests.bench.shop import lines

PROGRAM = """
import gc
import sys
from pathlib import Path
from tests.bench.replay import parse_and_keep, replay, two_views
gc.disable()
rounds, path, what = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
app, text = two_views(), path.read_bytes().splitlines(keepends=True)
for _ in range(rounds):
    replay(app, path) if what == "replay" else parse_and_keep(text)
"""


def run(*, large: bool) -> Iterator[str]:
    del large
    if not is_there():
        yield MISSING
        return
    with TemporaryDirectory() as folder:
        yield _compared("events/shop.jsonl", Path("events/shop.jsonl"), GOAL_RECORDED)
        for items, goal in GOALS.items():
            path = Path(folder) / f"{items}.jsonl"
            path.write_text("".join(lines(RECORDS, items)), "utf-8")
            yield _compared(f"{RECORDS:,} records of {items:,} items", path, goal)


def _compared(name: str, path: Path, goal: int) -> str:
    records = len(path.read_bytes().splitlines())
    replay, parse = (of_one_round(PROGRAM, str(path), what) / records / 1000 for what in ("replay", "parse"))
    return (
        f"{name}: {replay:.0f},000 instructions a record, json.loads of the lines {parse:.0f},000: "
        f"{replay / parse:.1f}x (goal: at most {goal}x)"
    )
