"""Counts what the framework's files know of each other, and how deep their functions are nested."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import grimp

PACKAGE = "streamfold"
ROOT = Path(__file__).parents[2] / "framework" / PACKAGE
FUNCTION_LINES_MAX = 40
NESTING_MIN = 4
NESTS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)
KINDS = tuple(sorted(each.name for each in (ROOT / "derivations").iterdir() if (each / "kind.py").exists()))
DOORS = (
    "router.py",
    "__init__.py",
    "cli/search.py",
    "cli/documents.py",
    "cli/history.py",
    "lifecycle/search.py",
    "read/feeds.py",
    "read/histories.py",
)
"""Modules that may import a concrete kind: the router, the public names, and those that serve one kind alone."""


class Module(Protocol):
    """A file of the framework: its path below the package, its text, and the nodes of its tree."""

    @property
    def path(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def nodes(self) -> list[ast.AST]: ...


class Feature(NamedTuple):
    """A feature of the application, the modules that are its own, and the words that name it elsewhere."""

    words: str  # a regular expression
    own: tuple[str, ...]  # paths, or their beginnings


FEATURES = {
    "lookups": Feature(
        "(?i)lookup",
        ("routes/lookups.py", "batch/lookups.py", "batch/referrers.py", "commit/referents.py", "lifecycle/joins.py"),
    ),
    "deltas": Feature(
        "(?i)(?<!time)delta",
        (
            "ledger/deltas.py",
            "commit/buckets.py",
            "commit/taking_back.py",
            "commit/mover.py",
            "lifecycle/buckets.py",
            "cli/buckets.py",
        ),
    ),
    "collections": Feature(
        r"routes\.(?:parts|roots)|(?:commit|batch)\.collections|\b(?:route|part_keys)\.parts\b|\bgathers\b|\bgathering\b",
        ("routes/parts.py", "routes/roots.py", "commit/collections.py", "batch/referrers.py", "lifecycle/joins.py"),
    ),
    "moments": Feature(
        r"\broutes\.moments\b|\b(?:ledger|batch)\.wakes\b|\basks_time\b",
        (
            "routes/moments.py",
            "routes/local_days.py",
            "ledger/wakes.py",
            "batch/wakes.py",
            "deploy/moments.py",
            "proofs/moments.py",
            "batch/timers.py",
            "derivations/timers/",
        ),
    ),
    "lives": Feature(r"(?i)\b(?:life|lives)\b", ("ledger/lives.py",)),
}
"""Who writes a new feature enters it here, so that its maximum shows how far it is threaded through the house."""


def naming(found: Iterable[Module], feature: Feature) -> list[str]:
    """The modules that name a feature and are not its own."""
    word = re.compile(feature.words)
    return [each.path for each in found if not each.path.startswith(feature.own) and word.search(each.text)]


def features(found: list[Module]) -> dict[str, int]:
    return {name: len(naming(found, feature)) for name, feature in FEATURES.items()}


def code_lines(found: Iterable[Module]) -> int:
    """Lines without blank ones, comments and docstrings."""
    return sum(len(_lines_of_code(each)) for each in found)


def _lines_of_code(module: Module) -> list[str]:
    prose: set[int] = set()
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(module.text.splitlines(), start=1)
    return [line for number, line in lines if number not in prose and (text := line.strip()) and text[0] != "#"]


def long_functions(found: Iterable[Module]) -> int:
    """Functions of more lines than a reader holds at once."""
    functions = (
        node for each in found for node in each.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum((node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX for node in functions)


def deep_functions(found: Iterable[Module]) -> int:
    """Functions with statements nested four deep or more."""
    functions = (
        node for each in found for node in each.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum(_depth(node) >= NESTING_MIN for node in functions)


def _depth(node: ast.AST) -> int:
    children = [_depth(child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef)]
    return max(children, default=0) + isinstance(node, NESTS)


def kinds_outside(found: Iterable[Module]) -> list[str]:
    """The modules outside ``derivations/`` that import the room of a concrete kind, and are no door of one kind."""
    room = re.compile(rf"{PACKAGE}\.derivations\.(?:{'|'.join(KINDS)})\b")
    others = (each for each in found if not each.path.startswith("derivations/") and each.path not in DOORS)
    return [each.path for each in others if any(map(room.match, _imported(each)))]


def circles(package: str = PACKAGE) -> list[tuple[str, ...]]:
    """Groups of files that import each other, late imports and those for types included."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    groups = (
        graph.find_upstream_modules(each) & graph.find_downstream_modules(each) | {each} for each in graph.modules
    )
    return sorted({tuple(sorted(group)) for group in groups if len(group) > 1})


def _imported(module: Module) -> Iterator[str]:
    """The dotted names that a module imports: of ``from a import b`` both ``a.b``, if it is a module, and ``a``."""
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith(PACKAGE))
