"""Counts how finely the framework is cut: ``python -m tests.tools.house_figures`` prints figures, features, old words.

``--lower`` writes what is smaller now into tests/project/house.toml. A figure above its maximum there fails a test.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.tools import house_structure, old_words, record_walk

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "framework" / "streamfold"
MAXIMA = ROOT / "tests" / "project" / "house.toml"
INIT_LINES_MAX = 30
"""An ``__init__.py`` that is no longer holds a docstring or names alone, and is no module that a reader looks for."""
SHORT_LINES_MAX = 2
RESTATED_SHARE = 0.6
STEM_LETTERS = 5
"""Words with the same first letters are one word: reads, reading, reader."""
STOPWORDS = re.compile(
    "and|any|are|been|each|every|for|from|has|have|into|its|none|not|one|only|other|such|than|that|the|their|them|there"
    "|they|this|those|was|were|what|when|where|which|who|whose|with"
)
CONTENT_LETTERS_MIN = 3
"""Shorter words say nothing of what a function does."""
WITH_ROOM = (
    "lines",
    "lines of code",
    "lines of imports",
    "lines of commands",
    "private functions with one caller, by name",
    "private functions with one caller in their module",
)
"""Figures that any addition raises: without room, an option of fourteen lines would be five figures to raise."""
ROOM_SHARE = 0.01
ADVICE = (
    "Fold first: a function with one caller into it, a new module into a neighbour, a copy into what it copies; for an "
    "old word, tests/tools/old_words.py has the new one; for a feature, find the seam that keeps it in its modules. If "
    "the addition is worth it, raise the figure in tests/project/house.toml by hand, and give the reason in the commit."
)
Functions = ast.FunctionDef | ast.AsyncFunctionDef
Imports = ast.Import | ast.ImportFrom


class Module(NamedTuple):
    """A file of the framework."""

    path: str  # below the package
    text: str
    nodes: list[ast.AST]

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_counted(self) -> bool:
        return not self.path.endswith("__init__.py") or self.lines > INIT_LINES_MAX

    @property
    def is_of_commands(self) -> bool:
        return self.path.startswith("cli/")

    @property
    def functions(self) -> Iterator[Functions]:
        return (node for node in self.nodes if isinstance(node, Functions))


def modules(package: Path = PACKAGE) -> list[Module]:
    found = ((path, path.read_text("utf-8")) for path in sorted(package.rglob("*.py")))
    return [Module(path.relative_to(package).as_posix(), text, list(ast.walk(ast.parse(text)))) for path, text in found]


def import_lines(found: list[Module]) -> int:
    """Lines of import statements, late ones and those for types too."""
    statements = (node for each in found for node in each.nodes if isinstance(node, Imports))
    return sum((node.end_lineno or 0) - node.lineno + 1 for node in statements)


def one_caller_by_name(found: list[Module]) -> int:
    """Names of private functions and methods that the framework reads once; two functions of one name are one."""
    read = Counter(name for each in found for name in names_read(each))
    return sum(read[name] == 1 for name in {each.name for module in found for each in private(module)})


def one_caller_in_module(found: list[Module]) -> int:
    """Private functions and methods whose name their own module reads once: called once, or passed on once."""
    count = 0
    for module in found:
        read = Counter(names_read(module))
        count += sum(read[each.name] == 1 for each in private(module))
    return count


def names_read(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def private(module: Module) -> Iterator[Functions]:
    return (each for each in module.functions if is_private(each))


def is_private(function: Functions) -> bool:
    return function.name.startswith("_") and not function.name.startswith("__")


def is_short(function: Functions) -> bool:
    """Whether a function has a docstring, and below it one line or two."""
    body = function.body[1:]
    return (
        ast.get_docstring(function) is not None
        and bool(body)
        and (body[-1].end_lineno or 0) - body[0].lineno < SHORT_LINES_MAX
    )


def restates(function: Functions) -> bool:
    """Whether most words of a short function's one-line docstring are in its name, its parameters or its body."""
    docstring = ast.get_docstring(function) or ""
    said = stems(docstring)
    known = stems(f"{function.name} {ast.unparse(function.args)}")
    known = known.union(*(stems(ast.unparse(each)) for each in function.body[1:]))
    return "\n" not in docstring and bool(said) and len(said & known) >= RESTATED_SHARE * len(said)


def stems(text: str) -> set[str]:
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
    return {word[:STEM_LETTERS] for word in words if len(word) >= CONTENT_LETTERS_MIN and not STOPWORDS.fullmatch(word)}


def contribution_calls(found: list[Module]) -> int:
    """Calls of ``contribution``, a function or a method, outside of the rooms of the kinds, which answer them."""
    calls = (node.func for each in found if not each.path.startswith("derivations/") for node in _calls(each))
    return sum(_last_name(function) == "contribution" for function in calls)


def engine_comparisons(found: list[Module]) -> int:
    """``isinstance`` tests on an engine's class or protocol, and comparisons of ``engine`` with a text."""
    engines = {
        node.name
        for each in found
        if each.path.startswith("engines/")
        for node in each.nodes
        if isinstance(node, ast.ClassDef)
        if node.name.endswith("Engine") or any(_last_name(base) == "Protocol" for base in node.bases)
    }
    return sum(_asks_engine(node, engines) for each in found for node in each.nodes)


def _asks_engine(node: ast.AST, engines: set[str]) -> bool:
    if isinstance(node, ast.Call) and _last_name(node.func) == "isinstance":
        return any(_last_name(each) in engines for each in ast.walk(node.args[1]))
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        texts = any(
            isinstance(each, ast.Constant) and isinstance(each.value, str) for side in sides for each in ast.walk(side)
        )
        return texts and any(_last_name(side) == "engine" for side in sides)
    return False


def _calls(module: Module) -> Iterator[ast.Call]:
    return (node for node in module.nodes if isinstance(node, ast.Call))


def _last_name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _short(found: Iterable[Module], test: Callable[[Functions], bool]) -> int:
    return sum(is_short(each) and test(each) for module in found for each in module.functions)


FIGURES: dict[str, Callable[[list[Module]], int]] = {
    "modules": lambda found: sum(each.is_counted for each in found),
    "lines": lambda found: sum(each.lines for each in found),
    "lines of code": house_structure.code_lines,
    "lines of imports": import_lines,
    "modules of commands": lambda found: sum(each.is_counted and each.is_of_commands for each in found),
    "lines of commands": lambda found: sum(each.lines for each in found if each.is_of_commands),
    "private functions with one caller, by name": one_caller_by_name,
    "private functions with one caller in their module": one_caller_in_module,
    "docstrings on private functions of one or two lines": lambda found: _short(found, is_private),
    "docstrings on functions of one or two lines": lambda found: _short(found, lambda _: True),
    "docstrings that restate": lambda found: _short(found, restates),
    "calls of a handler's contribution": contribution_calls,
    "comparisons on an engine's type or name": engine_comparisons,
    "functions of more than 40 lines": house_structure.long_functions,
    "functions nested four deep or more": house_structure.deep_functions,
    "modules outside derivations that import a kind": lambda found: len(house_structure.kinds_outside(found)),
}


def figures(found: list[Module]) -> dict[str, int]:
    return {name: figure(found) for name, figure in FIGURES.items()}


def tables() -> dict[str, dict[str, int]]:
    """What house.toml bounds, as it is today."""
    found = modules()
    return {
        "figures": figures(found) | {"circles of files": len(house_structure.circles())},
        "modules that name a feature of others": house_structure.features(found),
        "one INSERT through one view": record_walk.figures(),
        "words in modules": old_words.counted((each.text, each.nodes) for each in found),
        "words in pages": old_words.counted_in_prose(old_words.pages(ROOT / "docs")),
    }


def maxima() -> dict[str, dict[str, int]]:
    return tomllib.loads(MAXIMA.read_text("utf-8"))


def grown(counts: dict[str, int], bounds: dict[str, int]) -> dict[str, tuple[int, int]]:
    """The figures of a table above their maximum, room included: today's figure, and the most that it may be."""
    most = {name: bound + int(bound * ROOM_SHARE * (name in WITH_ROOM)) for name, bound in bounds.items()}
    return {name: (count, most[name]) for name, count in counts.items() if count > most.get(name, count)}


def lowered(today: dict[str, dict[str, int]], before: dict[str, dict[str, int]]) -> str:
    """The text of house.toml with no maximum above today's figure."""
    lines = [line for line in MAXIMA.read_text("utf-8").splitlines() if line.startswith("#")]
    for table, counts in today.items():
        lines += ["", f'["{table}"]']
        lines += [f'"{name}" = {min(count, before.get(table, {}).get(name, count))}' for name, count in counts.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    today, before = tables(), maxima()
    if "--lower" in sys.argv[1:]:
        MAXIMA.write_text(lowered(today, before), "utf-8")
        before = maxima()
    for table, counts in today.items():
        print(f"{table:<56}{'today':>8}{'maximum':>10}")
        for name, count in counts.items():
            print(f"  {name:<54}{count:>8}{before.get(table, {}).get(name, '-'):>10}")
    over = {name: found for table, counts in today.items() for name, found in grown(counts, before[table]).items()}
    if over:
        print(f"Too large (today, at most with {ROOM_SHARE:.0%} of room where there is some): {over}\n{ADVICE}")
    share = today["figures"]["lines of imports"] / today["figures"]["lines"]
    print(f"Imports are {share:.1%} of all lines.")


if __name__ == "__main__":
    main()
