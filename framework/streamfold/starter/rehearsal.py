"""Rehearse a deployment on this machine: ``python -m streamfold.starter.rehearsal events/*.jsonl``.

What ``sam build`` made is deployed into ministack, an emulator of AWS, in a process of its own on loopback. The items
of the recordings are written to the tables of the stack, and its rows have to be those of a replay of the same files.
Then the stack is deleted. The emulator shows that the template deploys, and that the functions start and derive rows.
It is no judge of permissions, alarms, filters and retries of mappings.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

from streamfold.deploy.template_file import read_template
from streamfold.settings import TABLE_PREFIX, environment_name

BUILT = Path(".aws-sam/build/template.yaml")
STACK, REGION = "rehearsal", "us-east-1"
ACCOUNT = "123456789012"
"""An access key of twelve digits is an account of its own in ministack."""
START_SECONDS, ROWS_SECONDS, STOP_SECONDS = 60, 90, 15
OUTPUT_LETTERS = 3000
"""Letters of a command's output that a message has at most: the end names the reason."""
NEEDED = {
    "ministack": "pip install ministack aws-sam-translator boto3",
    "sam": "pip install aws-sam-cli",
}
OF_HISTORY = frozenset(("event", "item", "version"))
"""Attributes of history rows. They name the record, which has another number in each stream."""
FUNCTION = "AWS::Serverless::Function"
COMMAND = (sys.executable, "-m", "streamfold")


class RehearsalFailed(Exception):  # noqa: N818 - named by its cause
    """Raised when a step of the rehearsal did not do what it has to."""


class Emulator(NamedTuple):
    """A running ministack: its address, and the environment of commands that use it."""

    address: str
    environment: Mapping[str, str]

    def run(self, *command: str) -> str:
        """The output of a command. Raises ``RehearsalFailed`` with the end of its output where it fails."""
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)  # noqa: S603
        if ran.returncode:
            output = f"{ran.stdout[-OUTPUT_LETTERS:]}\n{ran.stderr[-OUTPUT_LETTERS:]}"
            raise RehearsalFailed(f"{' '.join(command[:4])} ended with {ran.returncode}:\n{output}")
        return ran.stdout

    def client(self, service: str) -> Any:
        """A client of boto3."""
        import boto3

        session = boto3.Session(ACCOUNT, "rehearsal", region_name=REGION)
        return session.client(service, endpoint_url=self.address)


@contextmanager
def emulator(program: str | Path, log: Path) -> Iterator[Emulator]:
    """Runs ministack on a free port of loopback, and ends it with all functions that it runs."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    with log.open("w") as output:
        process = subprocess.Popen([program], env=environment, stdout=output, stderr=output, start_new_session=True)  # noqa: S603
    address = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": ACCOUNT, "AWS_SECRET_ACCESS_KEY": "rehearsal", "AWS_DEFAULT_REGION": REGION}
    try:
        _await_answer(f"{address}/_ministack/health", process)
        yield Emulator(address, {**os.environ, **keys, "AWS_ENDPOINT_URL": address, "SAM_CLI_TELEMETRY": "0"})
    finally:
        # Its functions run in processes of their own, which outlive it unless the whole group ends.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _await_answer(address: str, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=1):  # noqa: S310 - of loopback
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise RehearsalFailed(f"ministack did not answer within {START_SECONDS} seconds.")


def emulated(content: dict[str, Any]) -> dict[str, Any]:
    """A template as ministack takes it, changed in place.

    It knows no alarm of several metrics, and takes ``$or`` of a filter for the name of an attribute.
    """
    for resource in content["Resources"].values():
        properties = resource.get("Properties", {})
        if "Metrics" in properties:
            properties |= {"Namespace": "AWS/Lambda", "MetricName": "PolledEventCount", "Period": 3600}
            del properties["Metrics"]
            properties.setdefault("Statistic", "Sum")
    for function in _functions(content):
        for event in function.get("Events", {}).values():
            if "$or" in json.dumps(event["Properties"].get("FilterCriteria")):
                del event["Properties"]["FilterCriteria"]
    return content


def tables_of(content: Mapping[str, Any]) -> dict[str, str]:
    """The resources of the tables, by the name that settings have for them."""
    found = {}
    for function in _functions(content):
        for name, value in function.get("Environment", {}).get("Variables", {}).items():
            if name.startswith(TABLE_PREFIX) and isinstance(value, Mapping) and "Ref" in value:
                found[name.removeprefix(TABLE_PREFIX)] = str(value["Ref"])
    return found


def _functions(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each["Properties"] for each in content["Resources"].values() if each["Type"] == FUNCTION]


class Rehearsal:
    """One stack in an emulator. ``files``: recordings whose items are written to it."""

    def __init__(self, running: Emulator, files: Sequence[str], folder: Path) -> None:
        self.running = running
        self.files = files
        self.folder = folder
        self.content = emulated(json.loads(json.dumps(read_template(BUILT).content)))
        self.began = time.monotonic()

    def run(self) -> None:
        """All steps. Raises ``RehearsalFailed`` at the first that goes wrong."""
        self.deploy()
        self._done("deployed")
        tables = self.tables()
        count = self.write(tables)
        self.await_rows(tables)
        self._done(f"{count} items written, rows right")
        self.deploy("OlderCode=on")
        if self.tables() != tables:
            raise RehearsalFailed("The update replaced a table.")
        self._done("stack updated, tables kept")
        self.running.run("sam", "delete", "--stack-name", STACK, "--no-prompts", "--region", REGION)
        self._done("stack deleted")

    def deploy(self, *parameters: str) -> None:
        """Makes or updates the stack."""
        template = BUILT.with_name("rehearsed.json")  # beside the built functions, which it names by relative paths
        template.write_text(json.dumps(self.content), "utf-8")
        options = ("--resolve-s3", "--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset", "--no-progressbar")
        given = ("--parameter-overrides", *parameters) if parameters else ()
        self.running.run("sam", "deploy", "--stack-name", STACK, "--template-file", str(template), *options, *given)

    def tables(self) -> dict[str, str]:
        """The real names of the tables of the stack, by the names that settings have for them."""
        found = self.running.client("cloudformation").describe_stack_resources(StackName=STACK)["StackResources"]
        real = {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found}
        return {name: real[resource] for name, resource in tables_of(self.content).items() if resource in real}

    def write(self, tables: Mapping[str, str]) -> int:
        """Carries out the changes of the recordings; returns their number."""
        dynamodb, count = self.running.client("dynamodb"), 0
        for record in self._records():
            name = record["eventSourceARN"].rpartition(":table/")[2].partition("/")[0]
            change = record["dynamodb"]
            table = tables[environment_name(name)]
            if record["eventName"] == "REMOVE":
                dynamodb.delete_item(TableName=table, Key=change["Keys"])
            else:
                dynamodb.put_item(TableName=table, Item=change["NewImage"])
            count += 1
        return count

    def _records(self) -> Iterator[dict[str, Any]]:
        for file in self.files:
            for line in Path(file).read_text("utf-8").splitlines():
                yield json.loads(line)

    def await_rows(self, tables: Mapping[str, str]) -> None:
        """Waits until the rows of the stack are those of a replay of the recordings."""
        state = ("--state", str(self.folder / "replay.db"))
        self.running.run(*COMMAND, "replay", *self.files, *state, "--fresh")
        expected = shown(self.running.run(*COMMAND, "show", *state, "--json"))
        named = [option for name, real in tables.items() for option in ("--table", f"{name.lower()}={real}")]
        live = (*COMMAND, "show", "--engine", "dynamodb", "--endpoint-url", self.running.address, "--json")
        end = time.monotonic() + ROWS_SECONDS
        while (found := shown(self.running.run(*live, *named))) != expected:
            if time.monotonic() > end:
                unlike = "\n".join(sorted(expected ^ found)[:10])
                raise RehearsalFailed(f"The rows are not those of a replay after {ROWS_SECONDS} seconds:\n{unlike}")
            time.sleep(0.3)

    def _done(self, what: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self.began:5.0f} s  {what}\n")
        sys.stdout.flush()


def shown(output: str) -> set[str]:
    """The rows that ``show --json`` printed, but for those of histories."""
    rows = (json.loads(line) for line in output.splitlines())
    return {json.dumps(row, sort_keys=True) for row in rows if not row.keys() >= OF_HISTORY}


def main(files: Iterable[str]) -> int:
    """Runs the rehearsal; returns the exit code."""
    missing = [
        f"{name} is not in PATH: {how}, in an environment of its own."
        for name, how in NEEDED.items()
        if shutil.which(name) is None
    ]
    if not BUILT.exists():
        missing.append(f"{BUILT} is missing: make build makes it.")
    recordings = list(files)
    if not recordings:
        missing.append("No recording is given: expected events/*.jsonl, as streamfold record writes them.")
    if missing:
        sys.stderr.write("\n".join([*missing, ""]))
        return 1
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ministack.log"
        try:
            with emulator(shutil.which("ministack") or "ministack", log) as running:
                Rehearsal(running, recordings, Path(folder)).run()
        except RehearsalFailed as failed:
            sys.stderr.write(f"{failed}\n{log.read_text('utf-8', 'replace')[-OUTPUT_LETTERS:]}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
