"""What goes to Lambda: the files of handlers/ that git tracks, and of the framework what a function runs."""

import shutil
import subprocess
import sys

import pytest

from tests.helpers.commands import ROOT, environment

NOT_DEPLOYED = ("cli/", "proofs/", "testing/", "__main__.py")
FRAMEWORK = ROOT / "framework" / "streamfold"
DEPLOYED = ["handlers/__init__.py", "handlers/mappings/shop.json", "handlers/shop.py"]
RUN = [path for path in FRAMEWORK.rglob("*.py") if not str(path.relative_to(FRAMEWORK)).startswith(NOT_DEPLOYED)]


@pytest.fixture
def checkout(tmp_path):
    """A checkout with two files of handlers and a mapping, and one file that nobody should see."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "handlers" / "mappings").mkdir(parents=True)
    for name in ("__init__.py", "shop.py", "mappings/shop.json", ".env.local"):
        (tmp_path / "handlers" / name).write_text("")
    return tmp_path


def run(checkout, *command):
    variables = environment(GIT_CONFIG_GLOBAL="/dev/null", GIT_CEILING_DIRECTORIES=str(checkout.parent))
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=True)


def deployed(checkout):
    made = run(checkout, "make", "--no-print-directory", "--silent", "deployed-handlers")
    return sorted(made.stdout.split()), made.stderr


def test_only_files_that_git_tracks_are_deployed_and_others_are_named(checkout):
    run(checkout, "git", "init", "--quiet")
    run(checkout, "git", "add", "handlers/__init__.py", "handlers/shop.py", "handlers/mappings/shop.json")
    names, told = deployed(checkout)
    assert names == DEPLOYED
    assert told == "Not deployed, because git does not track it: handlers/.env.local\n"


def test_without_git_python_files_and_mappings_alone_are_deployed_and_that_is_said(checkout):
    names, told = deployed(checkout)
    assert names == DEPLOYED
    assert told == "git does not track handlers/: its Python files and mappings are deployed, and nothing else.\n"


def test_all_mappings_of_the_searches_are_deployed():
    mappings = {f"handlers/mappings/{path.name}" for path in (ROOT / "handlers" / "mappings").iterdir()}
    assert mappings
    assert mappings <= set(deployed(ROOT)[0])


def test_what_a_function_runs_names_neither_the_command_line_nor_the_test_tools():
    naming = [
        path.name
        for path in RUN
        for what in ("cli", "proofs", "testing")
        if f"streamfold.{what}" in path.read_text("utf-8")
    ]
    assert naming == []


def test_a_function_runs_without_the_command_line_and_the_test_tools(tmp_path):
    for path in RUN:
        target = tmp_path / "streamfold" / path.relative_to(FRAMEWORK)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    program = (
        "import importlib, sys; from pathlib import Path; from handlers import app; root = Path(sys.argv[1]); "
        "[importlib.import_module('.'.join(path.relative_to(root).with_suffix('').parts)) "
        "for path in root.rglob('*.py') if path.name != '__init__.py']; print(sys.modules['streamfold'].__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == str(tmp_path / "streamfold" / "__init__.py")
