"""The package: what the wheel holds, what it is to import, and which names are public."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import streamfold

ROOT = Path(__file__).parent.parent
HEAVY = ("boto3", "botocore", "click", "rich", "aws_lambda_powertools", "opensearchpy")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_wheel_holds_the_package_and_nothing_else(wheel_names):
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"streamfold"}


def test_wheel_says_that_it_is_typed(wheel_names):
    assert "streamfold/py.typed" in wheel_names


def test_public_names_are_those_of_the_design():
    names = "App Router Key Table Change Item Version Row Sum Count Put Add Delete AUDIT StreamfoldError"
    assert sorted(names.split()) == sorted(streamfold.__all__)


def test_importing_an_application_imports_no_client_no_terminal_and_no_powertools():
    program = f"import sys, handlers; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "streamfold", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("streamfold, version 0.")
