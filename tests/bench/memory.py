"""Peak memory of ``replay --state`` over many records and over few, both over the same 5,000 items, views only."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.shop import lines

ITEMS = 5_000
FEW, MANY, MANY_LARGE = 10_000, 100_000, 1_000_000
APPLICATION = "from tests.bench.replay import two_views\napp = two_views()\n"
PROGRAM = """
import sys
sys.argv = ["streamfold", *sys.argv[1:]]
from streamfold.cli import main
try:
    main()
finally:  # the peak of ``getrusage`` is at least that of the process which started this one
    (peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("PEAK", peak, file=sys.stderr)
"""


def run(*, large: bool) -> Iterator[str]:
    if not Path("/proc/self/status").exists():
        yield "skipped: only Linux tells the peak of a process alone"
        return
    many = MANY_LARGE if large else MANY
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench_app.py").write_text(APPLICATION, "utf-8")
        peaks = [_peak_kib(Path(folder), count) / 1024 for count in (FEW, many)]
    few, more = (f"{count:,} records {peak:.0f} MiB" for count, peak in zip((FEW, many), peaks, strict=True))
    yield f"{more}, {few}: {peaks[1] - peaks[0]:+.0f} MiB (goal: within 50)"


def _peak_kib(folder: Path, count: int) -> int:
    path = folder / f"{count}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines(count, ITEMS))
    here = Path.cwd()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here, here / "framework", folder)))}
    command = ["replay", str(path), "--app", "bench_app:app", "--state", str(folder / f"{count}.db"), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stderr.split("PEAK")[1])
