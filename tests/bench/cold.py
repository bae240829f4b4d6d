"""CPU of a cold start of the shipped application, against a function that imports boto3 and makes a client.

A cold start imports the application and makes what an execution environment keeps, with the settings of template.yaml.
Fresh processes that have byte code, as the built artifact has.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.helpers.artifact import BUILD, RUNTIME
from tests.helpers.template import load_template, properties

ROUNDS = 9
TIMED = """
import sys, time
sys.path[:0] = ["framework", "."]
begin = time.process_time()
{}
print(time.process_time() - begin)
"""
CLIENT = "import boto3; boto3.client('dynamodb')"
FUNCTION = """
import os
from handlers import app
from streamfold.lambda_entry.function import Function
from streamfold.settings import Settings
Function(app, Settings.from_environment(os.environ))
"""
DEPLOYED = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "STREAMFOLD_TABLE_MAIN": "orders",
    "STREAMFOLD_STATE_TABLE": "state",
    "STREAMFOLD_GROUP": "main",
    "STREAMFOLD_PARK": "s3://failures/parked",
    "STREAMFOLD_JOBS": "https://sqs.us-east-1.amazonaws.com/123456789012/jobs",
    "STREAMFOLD_ARCHIVE": "s3://archive",
}
"""The settings of the function that template.yaml declares."""


def run(*, large: bool) -> Iterator[str]:
    del large
    with TemporaryDirectory() as folder:
        for goal, observe in ((1.25, "lines"), (1.5, "powertools")):
            environment = {
                **os.environ,
                **DEPLOYED,
                "STREAMFOLD_OBSERVE": observe,
                "PYTHONPYCACHEPREFIX": folder,
                "PYTHONDONTWRITEBYTECODE": "",
            }
            _ratio(environment)  # compiles what is compiled once on every machine
            ratio = median(_ratio(environment) for _ in range(ROUNDS))
            yield f"STREAMFOLD_OBSERVE={observe}: {ratio:.2f} of boto3 and a client (goal: at most {goal})"
    yield _of_artifact()


def _of_artifact() -> str:
    """The built function with its own byte code, in the Python that the template gives it."""
    version = str(properties(load_template(), "Projector")["Runtime"])
    installed = map(str, Path.home().glob(f".pyenv/versions/{version[6:]}.*/bin/{version}"))  # before pyenv's shims
    python = next(installed, shutil.which(version))
    if python is None or not (RUNTIME / ".made").exists() or not (BUILD / "Projector").exists():
        return f"the built function: not measured, for want of {version} or of make build runtime"
    with TemporaryDirectory() as folder:
        runtime = shutil.copytree(RUNTIME, Path(folder) / "runtime")  # of another Python; what is loaded is pure
        subprocess.run([python, "-m", "compileall", "-q", runtime], check=True)
        path = f"import sys; sys.path[:0] = {[str(BUILD / 'Projector'), str(runtime)]!r}\n"

        def ratio() -> float:
            return _isolated(python, path, FUNCTION) / _isolated(python, path, CLIENT)

        found = median(ratio() for _ in range(ROUNDS))
    return f"the built function in {version}: {found:.2f} of boto3 and a client (goal: at most 1.25)"


def _isolated(python: str, path: str, program: str) -> float:
    command = [
        python,
        "-I",
        "-S",
        "-B",
        "-c",
        path + TIMED.replace('sys.path[:0] = ["framework", "."]', "").format(program),
    ]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=DEPLOYED).stdout)


def _ratio(environment: dict[str, str]) -> float:
    return _seconds(FUNCTION, environment) / _seconds(CLIENT, environment)


def _seconds(program: str, environment: dict[str, str]) -> float:
    command = [sys.executable, "-c", TIMED.format(program)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
