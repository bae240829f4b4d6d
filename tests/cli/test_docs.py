"""``streamfold docs`` prints the pages of the installed version, which messages name."""

import ast
import re

import pytest

from streamfold.cli import docs as pages_of_the_package
from streamfold.errors import manual
from tests.helpers.commands import ROOT

FRAMEWORK = ROOT / "framework" / "streamfold"
ADDRESS = re.compile(r"``streamfold docs ([a-z][a-z/-]*)``")
PATH = re.compile(r"\b(?:docs|tests|handlers|events|\.site|\.github)/[\w/-]+\.(?:md|py|jsonl)")


def messages(file):
    """The texts of a module, without docstrings."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    bodies = [node.body for node in nodes if isinstance(getattr(node, "body", None), list)]
    documented = {id(each.value) for body in bodies for each in body if isinstance(each, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def named_pages():
    for file in FRAMEWORK.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "manual":
                yield from (each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant))


def test_a_page_is_printed_as_it_is(folder):
    ran = folder.run("docs", "times")

    assert (ran.code, ran.out) == (0, (ROOT / "docs/times.md").read_text("utf-8"))


@pytest.mark.parametrize("name", ["docs/times.md", "times.md"])
def test_a_page_may_be_named_as_its_file(folder, name):
    assert folder.run("docs", name).out.startswith("# Times")


def test_the_pages_are_listed_with_their_titles(folder):
    ran = folder.run("docs")

    assert re.search(r"^how/a-leaderboard +How do I keep a leaderboard\? *$", ran.out, re.MULTILINE)


def test_the_file_of_a_page_is_named(folder):
    assert folder.run("docs", "times", "--path").out.strip() == str(ROOT / "docs/times.md")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tims"], "There is no page 'tims': did you mean 'times'?"),
        (["zzzzz"], "There is no page 'zzzzz': streamfold docs lists them."),
        (["--path"], "--path belongs to PAGE."),
    ],
)
def test_a_page_that_is_not_there_is_refused(folder, arguments, expected):
    ran = folder.run("docs", *arguments)

    assert (ran.code, expected in ran.err) == (2, True), ran.err


def test_a_package_without_pages_says_what_to_do(folder, monkeypatch):
    monkeypatch.setattr(pages_of_the_package, "FOLDERS", (folder.path / "none",))

    assert "install streamfold again, from its wheel." in folder.run("docs", "times").err


def test_every_page_that_a_message_names_is_in_the_package():
    named = {
        *named_pages(),
        *(name for file in FRAMEWORK.rglob("*.py") for name in ADDRESS.findall(file.read_text("utf-8"))),
    }

    assert len(named) >= 10
    assert named - {*pages_of_the_package.pages(), "times"} == set()
    assert manual("times") == "streamfold docs times"


def test_no_message_names_a_file_of_the_repository():
    found = [
        (file.relative_to(FRAMEWORK).as_posix(), path)
        for file in FRAMEWORK.rglob("*.py")
        for text in messages(file)
        for path in PATH.findall(text)
        if path.startswith("docs/") or (ROOT / path).exists()
        if "starter" not in file.parts  # whose texts name files of a new application
    ]

    assert found == [], "Name a page with errors.manual: a wheel has no repository around it."
