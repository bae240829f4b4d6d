"""Instructions of a Python program, counted by callgrind of Valgrind: the same to a thousandth, where time is not.

Texts have the same hashes in each run. What is left are the turns of threads.
"""

import os
import re
import shutil
import subprocess
import sys

MISSING = "skipped: it needs valgrind, which is not on the path"
COUNTED = re.compile(r"refs: +([0-9,]+)")


def is_there() -> bool:
    return shutil.which("valgrind") is not None


def of_one_round(program: str, *given: str) -> int:
    """The instructions of one round of a program's work, without what comes before and after.

    The program's first argument is how often to do its work.
    """
    subprocess.run([sys.executable, "-c", program, "1", *given], check=True)  # writes byte code, once
    return _counted(program, "2", *given) - _counted(program, "1", *given)


def _counted(program: str, *given: str) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-c", program, *given]
    same_hashes = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=same_hashes, capture_output=True, text=True, check=True)
    found = COUNTED.search(done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))
