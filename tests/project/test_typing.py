"""mypy --strict and pyright accept what is right, and catch a forgotten ``yield`` and a wrong argument in a test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent

HEAD = """
from collections.abc import Iterator
from streamfold import Add, Change, Count, Item, Key, Put, Router, Row, Sum

ORDER = Key("ORDER#{order_id}", "METADATA")
TOTAL = Key("TOTAL#{order_id}", "TOTAL")
router = Router()
"""
RIGHT = """
@router.view(ORDER, into=TOTAL)
def total(item: Item, order_id: str) -> Iterator[Row]:
    yield Row(total=Sum(item["total"]), orders=Count())

@router.on(ORDER, into=[TOTAL], events=["INSERT"])
def placed(change: Change) -> Iterator[Put | Add]:
    yield Put(TOTAL, at=change.at)

@router.view(ORDER, into=TOTAL)
def one(item: Item) -> Row | None:
    return Row(total=Sum(item["total"])) if "total" in item else None

@router.index(ORDER, into=TOTAL)
def several(item: Item) -> list[Row]:
    return [Row(line=line) for line in item["lines"]]

@router.on(ORDER, into=TOTAL)
def effect(change: Change) -> Put:
    return Put(at=change.at)

returned: Row | None = one({"total": 3})

@router.on(ORDER, external=True)
def mail(change: Change) -> None:
    print(change.event)

rows: list[Row] = list(total({"total": 3}, order_id="1"))
"""
FORGOTTEN_YIELD = """
@router.view(ORDER, into=TOTAL)
def total(item: Item) -> Iterator[Row]:
    Row(total=Sum(item["total"]))
"""
NUMBER_RETURNED = """
@router.view(ORDER, into=TOTAL)
def total(item: Item) -> int:
    return 3
"""
WRONG_ARGUMENT = """
@router.view(ORDER, into=TOTAL)
def total(item: Item, order_id: str) -> Iterator[Row]:
    yield Row(total=Sum(item["total"]))

list(total({"total": 3}, order_id=1))
"""
WRONG_EFFECT = """
@router.on(ORDER, into=TOTAL)
def placed(change: Change) -> Iterator[Row]:
    yield Row(at=change.at)
"""
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-incremental", "--config-file="],
    "pyright": [str(SCRIPTS / "pyright")],
}


def checked(checker, folder, *files):
    if checker == "pyright":
        config = {
            "typeCheckingMode": "strict",
            "extraPaths": [str(ROOT / "framework"), str(ROOT)],
            "pythonVersion": "3.11",
            "include": files,
        }
        (folder / "pyrightconfig.json").write_text(json.dumps(config), "utf-8")
        files = ("--project", str(folder))
    path = f"{ROOT / 'framework'}:{ROOT}"
    environment = {"PATH": f"{SCRIPTS}:/usr/bin:/bin", "MYPYPATH": path, "HOME": os.environ.get("HOME", "/")}
    command = [*CHECKERS[checker], *files]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def written(folder, text):
    path = folder / "example.py"
    path.write_text(HEAD + text, "utf-8")
    return str(path)


@pytest.mark.parametrize("checker", CHECKERS)
def test_shipped_handlers_are_accepted(checker, tmp_path):
    done = checked(checker, tmp_path, *(str(path) for path in ROOT.glob("handlers/*.py")))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_handlers_are_accepted(checker, tmp_path):
    done = checked(checker, tmp_path, written(tmp_path, RIGHT))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(FORGOTTEN_YIELD, id="forgotten yield"),
        pytest.param(NUMBER_RETURNED, id="number returned"),
        pytest.param(WRONG_ARGUMENT, id="wrong argument"),
        pytest.param(WRONG_EFFECT, id="wrong effect"),
    ],
)
def test_wrong_handlers_are_caught(checker, text, tmp_path):
    done = checked(checker, tmp_path, written(tmp_path, text))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "example.py" in done.stdout
