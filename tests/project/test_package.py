"""The package: what the wheel holds, what it is to import, and which names are public."""

import subprocess
import sys
import zipfile

import pytest

import streamfold
import streamfold.engines
import streamfold.errors
from tests.helpers.commands import ROOT, environment

HEAVY = ("boto3", "botocore", "click", "rich", "aws_lambda_powertools")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def run(*arguments, **variables):
    """What Python prints for these arguments."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_the_package_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"streamfold"}


def test_wheel_says_that_it_is_typed(wheel):
    assert "streamfold/py.typed" in wheel.namelist()


def test_wheel_holds_every_module(wheel):
    modules = {str(path.relative_to(ROOT / "framework")) for path in ROOT.glob("framework/**/*.py")}
    assert modules == {name for name in wheel.namelist() if name.endswith(".py")}


def test_wheel_runs_as_a_module_and_tells_its_version(wheel, tmp_path):
    wheel.extractall(tmp_path)
    assert run("-m", "streamfold", "--version", PYTHONPATH=str(tmp_path)).startswith("streamfold, version 0.")


def test_public_names_are_those_of_the_design():
    declared, given, yielded = (
        "App Router Key Table AUDIT",
        "Change Item Part Parts Version",
        "Row Put Add Delete Document Sum Count Average Min Max Latest First Distinct Collect Top Added Ordered",
    )
    names = f"{declared} {given} {yielded} divide rounded Unprocessable StreamfoldError Failure"
    assert sorted(names.split()) == sorted(streamfold.__all__)


def test_every_public_name_is_there_and_documented():
    for module in (streamfold, streamfold.engines, streamfold.errors):
        for name in module.__all__:
            assert getattr(module, name).__doc__, name
        with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'missing'"):
            _ = module.missing


def test_every_error_of_the_module_may_be_caught():
    errors = {name for name, each in vars(streamfold.errors).items() if isinstance(each, type) and name[0] != "_"}
    assert {name for name in errors if issubclass(getattr(streamfold.errors, name), Exception)} == {
        *streamfold.errors.__all__,
        "SwitchedOff",  # never leaves the framework: why a record is parked
    }


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import streamfold", "streamfold.batch.report"),
        ("import streamfold.engines", "sqlite3"),
        ("from streamfold.engines import EmbeddedEngine, MemoryEngine", "boto3"),
        ("import handlers", "streamfold.batch.process"),
        ("import handlers", "streamfold.commit.plan"),
        ("import handlers", "streamfold.derivations.expected"),
        ("import handlers", "streamfold.derivations.feed.spreading"),
        ("import handlers", "streamfold.engines"),
        ("import handlers", "streamfold.jobs"),
        ("import handlers", "streamfold.ledger.contribution"),
        ("import handlers", "streamfold.runtime"),
        ("import handlers", "streamfold.writes.guarded"),
        ("import streamfold.lambda_entry.function", "difflib"),
        ("import streamfold.lambda_entry.function", "streamfold.lifecycle"),
        ("import streamfold.lambda_entry.function", "streamfold.replay"),
        ("import streamfold.lambda_entry.function", "sqlite3"),
    ],
)
def test_what_few_need_is_imported_when_it_is_asked_for(program, absent):
    brings = run("-c", f"import sys; {program}; print({absent!r} in sys.modules)").strip()
    assert brings == "False", f"{program} brings {absent}: import it in the method that needs it (decision 57)"


@pytest.mark.parametrize("module", ["streamfold", "handlers"])
def test_import_brings_no_client_no_terminal_and_no_powertools(module):
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert run("-c", program).strip() == "[]"
