"""The way in: CONTRIBUTING is short, and names only what exists; the forms are what the forge reads."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from streamfold.cli import COMMANDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github"
CONTRIBUTING = (FOLDER / "CONTRIBUTING.md").read_text("utf-8")
LINES_MAX = 120
PAGES = sorted(FOLDER.glob("*.md"))
ISSUE_FORMS = sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml"))
PATH = re.compile(r"(?<![\w/.-])(?:framework|tests|docs|events|handlers|\.ci|\.github)/[\w./-]*")
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
TARGET = re.compile(r"^(\w+):.* ## ", re.MULTILINE)
ELEMENTS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_contributing_is_short():
    lines = len(CONTRIBUTING.splitlines())
    assert lines <= LINES_MAX, f"{lines} lines, {LINES_MAX} at most: say it in fewer words, or in a page of docs/"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    places = [ROOT / found.rstrip(".") for found in PATH.findall(page.read_text("utf-8"))]
    assert not [str(place) for place in places if not place.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_those_of_the_makefile_and_of_the_command_line(page):
    text = page.read_text("utf-8")
    targets = TARGET.findall((ROOT / "Makefile").read_text("utf-8"))
    assert set(re.findall(r"\bmake ([a-z]+)\b", _code(text))) <= set(targets)
    assert set(re.findall(r"\bstreamfold ([a-z-]+)", _code(text))) <= {*COMMANDS, "--version"}
    assert all(find_spec(name) for name in re.findall(r"python -m (tests\.[\w.]+)", text))


def _code(text):
    """The lines of the page's blocks, and what stands between backticks elsewhere."""
    elsewhere = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return "\n".join([*BLOCK.findall(text), *re.findall(r"`([^`\n]+)`", elsewhere)])


def test_contributing_opens_with_the_commands_of_a_fresh_clone():
    first = BLOCK.findall(CONTRIBUTING)[0]
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make setup", "make replay", "make test"]


@pytest.mark.parametrize("path", ISSUE_FORMS, ids=lambda path: path.name)
def test_a_form_asks_for_what_a_report_needs(path):
    form = yaml.safe_load(path.read_text("utf-8"))
    assert form.keys() >= {"name", "description", "body"}
    assert {element["type"] for element in form["body"]} <= ELEMENTS
    fields = [element for element in form["body"] if element["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert "version" in {field["id"] for field in fields}


def test_a_bug_comes_with_its_recording_and_its_rows():
    form = yaml.safe_load((FOLDER / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8"))
    required = {field["id"] for field in form["body"] if field.get("validations", {}).get("required")}
    assert required >= {"recording", "expected", "version"}
