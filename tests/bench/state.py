"""A replay into a state file against one in memory, seven handlers: CPU, bytes written, and CPU as the state grows.

``--large`` replays 500,000 records instead of 60,000 as the many, which takes a quarter of an hour.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bench import seven

FEW, MANY, MANY_LARGE = 30_000, 60_000, 500_000
ROUNDS = 2
PROGRAM = """
import json, resource, sys
sys.argv = ["streamfold", *sys.argv[1:]]
from streamfold.cli import main
try:
    main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    (wrote,) = (line.split()[1] for line in open("/proc/self/io") if line.startswith("wchar"))
    print("MEASURED", json.dumps([used.ru_utime + used.ru_stime, int(wrote), used.ru_maxrss]), file=sys.stderr)
"""


class Used(NamedTuple):
    """What a replay used."""

    cpu_seconds: float
    wrote_bytes: int
    peak_kib: int


def run(*, large: bool) -> Iterator[str]:
    if not Path("/proc/self/io").exists():
        yield "skipped: only Linux counts the bytes that a process writes"
        return
    with tempfile.TemporaryDirectory() as folder:
        file = _recorded(Path(folder), FEW)
        pairs = [(_used(file), _used(file, Path(folder, f"{number}.db"))) for number in range(ROUNDS)]
        memory, state = (min(each, key=lambda used: used.cpu_seconds) for each in zip(*pairs, strict=True))
        yield f"{FEW:,} records in memory: {_told(memory, FEW)}"
        yield f"{FEW:,} records into a state: {_told(state, FEW)}"
        yield f"CPU {state.cpu_seconds / memory.cpu_seconds:.2f} of that in memory (goal: at most 1.15)"
        yield from _growth(Path(folder), MANY_LARGE if large else MANY)


def _growth(folder: Path, many: int) -> Iterator[str]:
    """How much more CPU a record takes where the state has grown, over files whose mix of records is steady."""
    few_file, many_file = (_recorded(folder, count, seven.RECENT_STEADY) for count in (FEW, many))
    yield f"The mix of these records is the same all along: an amended order is one of {seven.RECENT_STEADY:,}"
    few, more = _used(few_file, folder / "few.db"), _used(many_file, folder / "many.db")
    few_in_memory, more_in_memory = _used(few_file), _used(many_file)
    yield f"{FEW:,} records into a state: {_told(few, FEW)}"
    yield f"{many:,} records into a state: {_told(more, many)}"
    ratio, in_memory = _grown(few, more, many), _grown(few_in_memory, more_in_memory, many)
    yield f"CPU a record {ratio:.2f} of that of {FEW:,} (goal: at most 1.3); in memory {in_memory:.2f}: rows grow too"


def _grown(few: Used, more: Used, many: int) -> float:
    return more.cpu_seconds / many / (few.cpu_seconds / FEW)


def _recorded(folder: Path, count: int, recent_max: int = seven.RECENT) -> Path:
    path = folder / f"{count}-{recent_max}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(seven.lines(count, recent_max))
    return path


def _told(used: Used, records: int) -> str:
    return (
        f"{used.cpu_seconds / records * 1e6:,.0f} us of CPU a record, "
        f"{used.wrote_bytes / records / 1000:.1f} KB written a record, peak {used.peak_kib / 1024:.0f} MiB"
    )


def _used(file: Path, state: Path | None = None) -> Used:
    command = ["replay", str(file), "--app", "tests.bench.seven:app", "--json"]
    command += ["--state", str(state), "--fresh"] if state else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(Path.cwd() / "framework")])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], env=environment, capture_output=True, text=True, check=True
    )
    return Used(*json.loads(done.stderr.split("MEASURED")[1]))
