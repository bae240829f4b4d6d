"""CPU of importing an application, against ``import boto3``, in fresh processes that have boto3."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROUNDS = 9
HANDLERS = 10
PROGRAM = """
import importlib, sys, time
sys.path[:0] = sys.argv[2:]
begin = time.process_time()
import boto3
middle = time.process_time()
importlib.import_module(sys.argv[1])
print((time.process_time() - middle) / (middle - begin))
"""
HEAD = """
from streamfold import App, Count, Key, Router, Row, Sum

router = Router()
"""
HANDLER = """
LINE_{n} = Key("ORDER{n}#{{order_id}}", "ITEM#{{sku}}")
TOTAL_{n} = Key("ORDER{n}#{{order_id}}", "TOTAL")


@router.view(LINE_{n}, into=TOTAL_{n})
def order_total_{n}(item):
    yield Row(total=Sum(item["price"] * item["quantity"]), lines=Count())
"""


def run(*, large: bool) -> Iterator[str]:
    del large
    source = HEAD + "".join(HANDLER.format(n=number) for number in range(HANDLERS))
    with TemporaryDirectory() as folder:
        Path(folder, "application.py").write_text(source + '\napp = App("shop", routers=[router])\n', "utf-8")
        for module, what in (("application", f"{HANDLERS} handlers"), ("handlers", "the shipped application")):
            _ratio(module, folder)  # compiles what is compiled once on every machine
            ratio = median(_ratio(module, folder) for _ in range(ROUNDS))
            yield f"importing {what} takes {ratio:.2f} of import boto3 (goal: at most 0.2)"


def _ratio(module: str, folder: str) -> float:
    command = [sys.executable, "-c", PROGRAM, module, folder, "framework", "."]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
