"""The code of each handler as a digest, and which handlers an edit of it may concern.

A digest covers the statement that declares a handler and all statements of the application that this one names, in any
of its modules: comments, layout and the code of other handlers make no difference. Names are looked up as they are
written. Where they do not show what a handler runs, for example behind a function that makes handlers, its digest
covers all files of the application.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from streamfold.routes.application import Application
from streamfold.routes.route import Route

EVERYTHING = "*"
"""In place of a name: all of a module."""
Reference = tuple[str, str]
"""A module, and a name in it or ``EVERYTHING``."""


class ModuleCode:
    """The top-level statements of a module, by the names that they bind."""

    def __init__(self, name: str, text: bytes, *, is_package: bool) -> None:
        self.package = name if is_package else name.rpartition(".")[0]
        found = ast.parse(text).body
        texts = [each for each in found if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
        self.statements = [each for each in found if each not in texts]
        self.bound: dict[str, list[ast.stmt]] = {}
        self.always: list[ast.stmt] = []  # they bind nothing, so they may do anything
        for each in self.statements:
            names = set(_bound(each))
            for bound in names:
                self.bound.setdefault(bound, []).append(each)
            if not names:
                self.always.append(each)

    def statement_at(self, line: int) -> ast.stmt | None:
        """The statement with this line, its decorators included."""
        for each in self.statements:
            first = min([each.lineno, *(decorator.lineno for decorator in getattr(each, "decorator_list", ()))])
            if first <= line <= (each.end_lineno or each.lineno):
                return each
        return None

    def references(self, statement: ast.stmt, own: str) -> Iterator[Reference]:
        """What a statement names: of this module ``own``, and of those that it imports."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield own, node.id
            elif isinstance(node, ast.Import):
                yield from ((alias.name, EVERYTHING) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._imported(node)
                for alias in node.names:
                    yield base, alias.name
                    yield f"{base}.{alias.name}", EVERYTHING  # it may be a module of a package

    def _imported(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        above = self.package.split(".")
        return ".".join([*above[: len(above) - node.level + 1], *filter(None, [node.module])])


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a top-level statement binds in its module."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


class ApplicationCode:
    """The modules of an application, by name, and its other files, such as the mapping of an index."""

    def __init__(self, modules: Mapping[str, Path], others: Iterable[Path]) -> None:
        texts = {name: file.read_bytes() for name, file in modules.items()}
        self.names = {str(file.absolute()): name for name, file in modules.items()}
        self.modules = {
            name: ModuleCode(name, text, is_package=modules[name].name == "__init__.py") for name, text in texts.items()
        }
        self.others = [file.read_bytes() for file in sorted(others)]

    def digests(self, app: Application) -> dict[str, str]:
        return {route.name: self._digest(app, route) for route in app.routes}

    def _digest(self, app: Application, route: Route) -> str:
        found = blake2b(repr((app.name, app.tenant, route.name, route.group)).encode(), digest_size=16)
        for text in [*self.others, *self._texts(route)]:
            found.update(len(text).to_bytes(8) + text)
        return found.hexdigest()

    def _texts(self, route: Route) -> list[bytes]:
        file, _, line = route.declared_at.rpartition(":")
        name = self.names.get(str(Path(file).absolute()), "")
        statement = self.modules[name].statement_at(int(line)) if name else None
        if statement is None or _makes_handlers(statement, route):
            reached = [(each, statement) for each, code in self.modules.items() for statement in code.statements]
        else:
            reached = self._reached(name, statement)
        return sorted(f"{module}\n{ast.dump(each)}".encode() for module, each in reached)

    def _reached(self, module: str, statement: ast.stmt) -> list[tuple[str, ast.stmt]]:
        """A statement, and all others that it names directly or through others."""
        found: dict[int, tuple[str, ast.stmt]] = {}
        waiting = [(module, statement)]
        while waiting:
            own, each = waiting.pop()
            if id(each) in found:
                continue
            found[id(each)] = own, each
            waiting += ((own, always) for always in self.modules[own].always)
            for named, name in self.modules[own].references(each, own):
                code = self.modules.get(named)
                if code is not None:
                    some = code.statements if name == EVERYTHING else code.bound.get(name, ())
                    waiting += ((named, each) for each in some)
        return list(found.values())


def _makes_handlers(statement: ast.stmt, route: Route) -> bool:
    """Whether a handler's function is not the statement's own: its code may depend on how that is called."""
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return statement.name != getattr(route.function, "__name__", None)


def depends(reader: Route, writer: Route) -> bool:
    """Whether what a handler makes may depend on what another one writes: a row that it reads or shares, or an item."""
    if writer.kind.calls_once(writer) == reader.name:
        return True  # it is called at the moments that the other one has
    read = [each.key for each in reader.kind.subscriptions(reader)]
    written = dict.fromkeys((*writer.writes, *writer.into, *writer.kind.touches(writer)))
    return any(key.overlaps(target) for target in written for key in (*read, *reader.into))


def closure(names: Collection[str], following: Mapping[str, Collection[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += following[name]
    return found


class Dependencies:
    """Which handlers' rows depend on the rows of other handlers.

    ``readers``: by a handler's name, the handlers that depend on its rows. ``writers``: those whose rows it depends on.
    """

    def __init__(self, routes: Collection[Route]) -> None:
        found = [(one, other) for one in routes for other in routes if one is not other and depends(one, other)]
        self.readers = {route.name: [one.name for one, other in found if other is route] for route in routes}
        self.writers = {route.name: [other.name for one, other in found if one is route] for route in routes}

    def concerned(self, changed: Collection[str]) -> set[str]:
        """The handlers whose rows may differ once the code of these has changed."""
        return closure(changed, self.readers)

    def needed(self, names: Collection[str]) -> set[str]:
        """The handlers to fold for the rows of these."""
        return closure(names, self.writers)
