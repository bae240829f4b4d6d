"""The house: rooms in layers, no circle, and nobody outside of the kinds' rooms knows a kind."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import streamfold
from streamfold.derivations import KINDS
from streamfold.derivations.derivation import Derivation

PACKAGE = Path(streamfold.__file__).parent
ROOMS_MAX = 27  # deploy and pages: what follows from the routes; starter: new applications. No function imports them
NAMES_TWICE_MAX = 5
CLASS_LINES_MAX = 260
OPTIONS = {"shards", "unique", "stored_attributes", "recorded", "children", "external", "redact", "place"}
"""What the options of one kind are called: nobody outside of its room reads them of a route."""


@cache
def modules():
    return [
        (".".join(path.relative_to(PACKAGE).with_suffix("").parts), ast.parse(path.read_text("utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def outside_of_kinds():
    return ((name, tree) for name, tree in modules() if not name.startswith("derivations."))


def test_the_package_has_few_rooms():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert len(rooms - {"__init__", "__main__"}) <= ROOMS_MAX


def test_no_module_imports_itself_over_others():
    imports = {name: set(imported(tree)) for name, tree in modules()}
    names = imports.keys()
    graph = {name: {each for each in found if each in names} for name, found in imports.items()}
    while leaves := [name for name, found in graph.items() if not found]:
        for name in leaves:
            del graph[name]
        for found in graph.values():
            found.difference_update(leaves)
    assert not graph, f"these import each other: {sorted(graph)}"


def imported(tree):
    """The modules of the package that a module imports when it is imported itself."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamfold."):
            base = node.module.removeprefix("streamfold.")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_every_kind_is_in_the_list_and_in_the_docs():
    names = (name for name, _ in modules() if name.startswith("derivations.") and name.endswith(".kind"))
    rooms = [vars(import_module(f"streamfold.{name}")) for name in names]
    made = {each for room in rooms for each in room.values() if isinstance(each, Derivation)}
    assert made == set(KINDS), "a kind is in the list KINDS of derivations/__init__.py"
    for page in ("architecture", "glossary", "guarantees"):
        told = (PACKAGE.parents[1] / "docs" / f"{page}.md").read_text("utf-8")
        missing = [kind.name for kind in KINDS if not re.search(rf"`[^`\n]*\b{kind.name}\b", told)]
        assert not missing, f"docs/{page}.md names every kind"


def test_nobody_outside_of_the_kinds_compares_the_name_of_a_kind():
    kinds = {kind.name for kind in KINDS}
    found = []
    for name, tree in outside_of_kinds():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(_is_kind(side) for side in (node.left, *node.comparators)):
                found.append(f"{name}:{node.lineno}")
            if isinstance(node, ast.MatchValue) and _text(node.value) in kinds and _is_kind(node.value):
                found.append(f"{name}:{node.lineno}")
    assert not found


def _is_kind(node):
    """Whether one side of a comparison is the kind of a route, or its name, and the other no value of that."""
    if isinstance(node, ast.Attribute) and node.attr == "name" and isinstance(node.value, ast.Attribute):
        return node.value.attr == "kind"
    return False


def _text(node):
    return node.value if isinstance(node, ast.Constant) else None


def test_nobody_outside_of_the_kinds_reads_an_option_of_one_kind():
    found = [
        f"{name}:{node.lineno}"
        for name, tree in outside_of_kinds()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "route"
        if node.attr in {*OPTIONS, "options"}
    ]
    assert not found


def test_nobody_compares_a_kind_with_a_text():
    names = {kind.name for kind in KINDS}
    found = [
        f"{name}:{node.lineno}"
        for name, tree in outside_of_kinds()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for sides in [(node.left, *node.comparators)]
        if any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides)
        if any(_text(side) in names for each in sides for side in ast.walk(each))
    ]
    assert not found


def test_no_class_is_long():
    classes = [(name, node) for name, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    lines = {f"{name}.{node.name}": node.end_lineno - node.lineno + 1 for name, node in classes}
    assert {name: count for name, count in lines.items() if count > CLASS_LINES_MAX} == {}


def test_names_of_types_are_their_own():
    found = Counter()
    for _, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name] += 1
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
                    found[target.id] += 1
    twice = {name for name, count in found.items() if count > 1}
    assert len(twice) <= NAMES_TWICE_MAX, f"give one of two classes another name: one of {sorted(twice)} is new"


ONE_VIEW = """
import sys
from streamfold import App, Key, Router, Row, Sum
from streamfold.engines import MemoryEngine
from streamfold.settings import Settings
from tests.helpers.records import item, record
router = Router()
@router.view(Key("ORDER#{order_id}", "ITEM#{sku}"), into=Key("SALES#{day}", "TOTAL"))
def total(item):
    return Row(day=item["day"], amount=Sum(item["amount"]))
app = App("shop", routers=[router])
engine = MemoryEngine(app.tables.values(), app.chains)
new = record(None, item("ORDER#1", "ITEM#a", day="d", amount=2), 1)
assert app.process([new], engine=engine, settings=Settings()) == []
assert engine.rows
print(*(name for name in sys.modules if name.startswith("streamfold.derivations.")))
"""


def test_an_application_with_one_view_imports_of_search_feed_and_audit_their_declarations_alone():
    done = subprocess.run([sys.executable, "-c", ONE_VIEW], capture_output=True, text=True, check=True)
    parts = [name.split(".")[2:] for name in done.stdout.split()]
    assert {room[1] for room in parts if room[0] in ("search", "feed", "audit") and room[1:]} == {"kind", "options"}
