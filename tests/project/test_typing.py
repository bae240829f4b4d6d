"""mypy --strict and pyright accept what is right, and catch a forgotten ``yield`` and a wrong argument in a test."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.tools.reference_docs import MODULES

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent

HEAD = """
from collections.abc import Iterator, Sequence
from typing import Any
from streamfold import Add, Added, Change, Count, Item, Key, Ordered, Put, Router, Row, Sum

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

class Middle(Ordered):
    stored_as = "middle"
    in_shards = True

    @staticmethod
    def show(values: Sequence[int]) -> int:
        return values[(len(values) - 1) // 2]

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return sorted(each.value for each in given)[(len(given) - 1) // 2]

class Squares(Added):
    def __init__(self, value: int) -> None:
        self.value = value

    def amounts(self, name: str) -> tuple[tuple[str, int], ...]:
        return (name, self.value * self.value),

@router.view(ORDER, into=TOTAL)
def own(item: Item) -> Row:
    return Row(middle=Middle(item["total"], most=5), squares=Squares(item["total"]))
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
WRONG_AGGREGATE = """
class Last(Ordered):
    stored_as = "last"

    @staticmethod
    def show(values: Sequence[int]) -> int:
        return values[-1]

    @staticmethod
    def fold(given: Sequence[Ordered]) -> int:
        return len(given)

last = Last(5, by=[5])
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


WRONG = {
    "forgotten_yield": FORGOTTEN_YIELD,
    "number_returned": NUMBER_RETURNED,
    "wrong_argument": WRONG_ARGUMENT,
    "wrong_effect": WRONG_EFFECT,
    "wrong_aggregate": WRONG_AGGREGATE,
}
ERROR = re.compile(r"(\w+)\.py:\d+.*\berror\b")


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_and_shipped_handlers_are_accepted_and_each_wrong_one_is_caught(checker, tmp_path):
    for name, text in {"right": RIGHT, **WRONG}.items():
        (tmp_path / f"{name}.py").write_text(HEAD + text, "utf-8")
    done = checked(checker, tmp_path, *map(str, [*tmp_path.glob("*.py"), *ROOT.glob("handlers/*.py")]))
    assert done.returncode == 1, done.stdout + done.stderr
    assert set(ERROR.findall(done.stdout)) == set(WRONG), done.stdout


TYPED = """
from dataclasses import dataclass
from typing import NotRequired, TypedDict
from streamfold import Key, Lookup, Parts, Put, Router, Row, Sum, TypedChange

ORDER = Key("ORDER#{order_id}", "METADATA")
TOTAL = Key("TOTAL#{order_id}", "TOTAL")
router = Router()

class Bill(TypedDict):
    day: str
    total: int
    note: NotRequired[str]

@dataclass(frozen=True)
class Line:
    sku: str
    quantity: int
    gift: bool | None = None

@router.view(ORDER, into=TOTAL)
def of_dict(bill: Bill) -> Row:
    return Row(day=bill["day"].upper(), total=Sum(bill["total"] + 1), note=bill.get("note"))

@router.view(ORDER, into=TOTAL, lookup={"line": Lookup(ORDER, optional=True)})
def of_object(first: Line, line: Line | None) -> Row:
    return Row(day=first.sku, total=Sum(first.quantity), other=line.sku if line else None)

@router.on(ORDER, into=TOTAL)
def of_change(change: TypedChange[Line]) -> Put | None:
    return Put(at=change.at, sku=change.new.sku) if change.new and change.event == "INSERT" else None

def of_parts(parts: Parts) -> int:
    found = parts.one(ORDER, Line)
    return sum(line.quantity for line in parts(ORDER, Line)) + (found.quantity if found else 0)

bill: Bill = {"day": "a", "total": 3}
line = Line("a", 3)
"""
TYPE_MISTAKES = (
    'print(bill["totl"])',
    'print(bill["day"] + 1)',
    'print(bill["total"].upper())',
    'print(bill["total"] + bill["day"])',
    "print(bill.totl)",
    'number: int = bill["day"]',
    'wrong: Bill = {"day": "a"}',
    'more: Bill = {"day": "a", "total": 3, "other": 1}',
    'other: Bill = {"day": 1, "total": 3}',
    'print(of_dict({"day": "a", "total": "3"}))',
    "print(line.skuu)",
    "print(line.quantity.upper())",
    "print(line.sku + 1)",
    "print(line.gift + 1)",
    'print(line["sku"])',
    'print(Line("a", "3"))',
    'print(Line("a"))',
    "print(of_object(bill, None))",
    "def changed(change: TypedChange[Line]) -> str: return change.new.sku",
    "def one(parts: Parts) -> str: return parts.one(ORDER, Line).sku",
)


@pytest.mark.parametrize("checker", CHECKERS)
def test_typed_items_are_accepted_and_each_mistake_is_caught(checker, tmp_path):
    (tmp_path / "right.py").write_text(TYPED, "utf-8")
    for number, mistake in enumerate(TYPE_MISTAKES):
        (tmp_path / f"mistake{number:02}.py").write_text(f"{TYPED}\n{mistake}\n", "utf-8")
    done = checked(checker, tmp_path, *map(str, tmp_path.glob("*.py")))
    caught = set(ERROR.findall(done.stdout))
    assert caught == {f"mistake{number:02}" for number in range(len(TYPE_MISTAKES))}, done.stdout


@pytest.mark.ci
def test_every_public_name_is_fully_typed(tmp_path):
    command = [*CHECKERS["pyright"], "--verifytypes", "streamfold", "--ignoreexternal", "--outputjson"]
    environment = {**os.environ, "PATH": f"{SCRIPTS}:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "framework")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    modules = [*(module for module, _ in MODULES.values()), "streamfold.errors"]
    public = {f"{module}.{name}" for module in modules for name in import_module(module).__all__}
    # A public name may be an alias: then pyright reports where it is defined.
    found = {each["name"]: each["isTypeKnown"] for each in json.loads(done.stdout)["typeCompleteness"]["symbols"]}
    assert sum(name in found for name in public) >= len(public) * 0.9
    assert [name for name in sorted(public) if found.get(name) is False] == []
