"""Compiles a package of a built function again, without what nothing reads there: ``byte_code.py ARTIFACT PACKAGE``.

Run by the Python of the functions. Docstrings and the annotations of functions go: these are evaluated at each cold
start. With ``-X no_debug_ranges`` the columns of each instruction go, too: Lambda's log shows lines of code and no
columns. ``compileall`` drops docstrings only with the ``assert`` statements, which a function keeps.

The sources stay, so that a stack trace shows lines of code. Docstrings and comments become empty lines in them: they
are a quarter of their size, and no stack trace shows them.
"""

import ast
import io
import marshal
import sys
import tokenize
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from types import CodeType
from typing import TypeGuard

TASK = Path("/var/task")
"""Where a function's files are (Lambda Developer Guide, python-package)."""
UNCHECKED_HASH = (1).to_bytes(4, "little")
"""The flags of byte code that is never compared with its source (PEP 552)."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    artifact, package = Path(sys.argv[1]), sys.argv[2]
    for file in sorted((artifact / package).rglob("*.py")):
        source = bare(file.read_bytes())
        file.write_bytes(source)
        code = compiled(source, TASK / file.relative_to(artifact))
        target = Path(cache_from_source(str(file)))
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(b"".join([MAGIC_NUMBER, UNCHECKED_HASH, source_hash(source), marshal.dumps(code)]))


def compiled(source: bytes, file: Path) -> CodeType:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None and not is_dataclass(node):
            node.body = node.body[1:] or [ast.copy_location(ast.Pass(), node.body[0])]
    return compile(tree, file, "exec", dont_inherit=True)


def bare(source: bytes) -> bytes:
    """The source without docstrings and comments; each line of code keeps its number."""
    lines = source.decode().split("\n")
    for text in documentation(ast.parse(source)):
        if not lines[text.lineno - 1][: text.col_offset].strip():  # no code before it
            lines[text.lineno - 1 : text.end_lineno] = [""] * ((text.end_lineno or text.lineno) - text.lineno + 1)
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines).encode()


def documentation(tree: ast.Module) -> Iterator[ast.Expr]:
    """The docstrings, those of constants too. A block keeps one that is all of it, and a dataclass its own."""
    for node in ast.walk(tree):
        block = getattr(node, "body", None)
        if isinstance(block, list) and len(block) > 1:
            yield from filter(is_text, block[1 if is_dataclass(node) and is_text(block[0]) else 0 :])


def is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_dataclass(node: ast.AST) -> bool:
    # Without a docstring it would make one of its signature, at each cold start.
    return isinstance(node, ast.ClassDef) and bool(node.decorator_list)


if __name__ == "__main__":
    main()
