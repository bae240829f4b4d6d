"""The modules themselves: each subject is short enough to be read as one example, and only declares."""

import ast

import pytest

from tests.helpers.commands import ROOT

LINES_MAX = 60
MODULES = sorted((ROOT / "handlers").glob("*.py"))


def code_lines(text):
    """Lines that are neither empty nor a comment nor part of a docstring."""
    tree = ast.parse(text)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef)]
    texts = [body[0] for body in bodies if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)]
    told = {number for node in texts for number in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(text.splitlines(), 1)
    return [line for number, line in lines if number not in told and line.strip() and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_subject_is_told_in_a_page(module):
    assert len(code_lines(module.read_text("utf-8"))) <= LINES_MAX


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_handlers_only_declare_and_compute(module):
    tree = ast.parse(module.read_text("utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= {"streamfold", "handlers", "collections", "datetime", "decimal"}


def test_what_counts_as_code_leaves_out_what_is_told():
    text = '"""Told."""\n\n# Said.\ndef a():\n    """Told,\n    twice."""\n    return 1\n'
    assert code_lines(text) == ["def a():", "    return 1"]
