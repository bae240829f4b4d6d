"""Built functions, called as Lambda calls them: ``sam build`` makes them, ``tests/tools/invoke.py`` runs them."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from tests.helpers.commands import ROOT
from tests.helpers.template import load_template, properties

BUILD, RUNTIME = ROOT / ".aws-sam" / "build", ROOT / ".aws-sam" / "runtime"
FUNCTIONS = ("Projector", "Spreader", "Searcher")
NAMES = {
    "Table": "shop",
    "StateTable": "shop-state",
    "FailureBucket": "failures",
    "ArchiveBucket": "archive",
    "Doorbell": "https://sqs.us-east-1.amazonaws.com/123456789012/doorbell",
}
TABLES = ("Table", "StateTable")
BATCH_RECORDS = 100
OWN = ("streamfold/**/*.py", "handlers/**/*.py", "handlers/mappings/*.json")
NOT_DEPLOYED = ("streamfold/cli/", "streamfold/proofs/", "streamfold/testing/", "streamfold/__main__.py")
LAMBDA = {
    "AWS_LAMBDA_FUNCTION_NAME": "projector",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


def sources(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for pattern in OWN for path in folder.glob(pattern)}


def is_built():
    tree = {name: text for name, text in sources(ROOT / "framework").items() if not name.startswith(NOT_DEPLOYED)}
    tree |= sources(ROOT)
    return all(sources(BUILD / name) == tree for name in FUNCTIONS) and (RUNTIME / ".made").exists()


def built_template():
    """The template of the build; built now if it is missing or of other sources."""
    if not is_built():
        if os.environ.get("REQUIRE_ENGINES") == "1":
            pytest.fail(f"{BUILD} is missing or was built from other sources: run make build runtime first")
        subprocess.run(["make", "--no-print-directory", "build", "runtime"], cwd=ROOT, check=True)
    return load_template(BUILD / "template.yaml")


class Function:
    """One execution environment of a built function."""

    def __init__(self, template, name, log, **variables):
        declared = properties(template, name)
        own = declared["Environment"]["Variables"]
        own = {variable: _resolved(value) for variable, value in own.items() if variable not in variables}
        self.process = subprocess.Popen(
            [*isolated(ROOT / "tests" / "tools" / "invoke.py"), BUILD / name, RUNTIME, declared["Handler"]],
            env={**LAMBDA, **own, **variables},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def __call__(self, event):
        self.process.stdin.write(json.dumps(event) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def deliver(self, records):
        """Delivers records as an event source mapping does, in batches, and expects that none fails."""
        for start in range(0, len(records), BATCH_RECORDS):
            assert self({"Records": records[start : start + BATCH_RECORDS]}) == {"batchItemFailures": []}

    def end(self):
        self.process.communicate()


@contextmanager
def bucket():
    """A bucket for a function that only puts: what it was given by path, and the address that it subscriptions at."""

    class Bucket(BaseHTTPRequestHandler):
        objects: ClassVar = {}

        def do_PUT(self):
            self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Bucket) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Bucket.objects, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _resolved(value):
    """A value of the expanded template, as CloudFormation fills it in."""
    if not isinstance(value, dict):
        return str(value)
    if "Ref" in value:
        return NAMES[value["Ref"]]
    text = value["Fn::Sub"]
    for name, filled in NAMES.items():
        text = text.replace(f"${{{name}}}", filled)
    return text


def isolated(*arguments):
    """An interpreter without this environment's packages, variables and folder, which writes no bytecode."""
    return [sys.executable, "-I", "-S", "-B", *arguments]
