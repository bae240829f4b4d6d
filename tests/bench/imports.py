"""CPU of importing an application of thirty handlers, against ``import boto3``, in fresh processes that have boto3."""

import subprocess
import sys
from collections.abc import Iterator
from statistics import median

ROUNDS = 9
PROGRAM = """
import sys, time
sys.path.insert(0, ".")
begin = time.process_time()
import boto3
middle = time.process_time()
import handlers
print((time.process_time() - middle) / (middle - begin))
"""


def run(*, large: bool) -> Iterator[str]:
    del large
    ratios = [
        float(subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout)
        for _ in range(ROUNDS)
    ]
    yield f"importing thirty handlers takes {median(ratios):.2f} of import boto3 (goal of ten: at most 0.25)"
