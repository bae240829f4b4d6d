"""Built functions, called as Lambda calls them: ``sam build`` makes them, ``tests/tools/invoke.py`` runs them.

``RuntimeFunction`` runs one under Lambda's own runtime client, which asks an address for events, and may be killed.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import ClassVar

import pytest

from tests.helpers.commands import ROOT
from tests.helpers.template import load_template, properties
from tests.tools.byte_code import bare

BUILD, RUNTIME = ROOT / ".aws-sam" / "build", ROOT / ".aws-sam" / "runtime"
FUNCTIONS = ("Projector", "Spreader", "Searcher")
NAMES = {
    "Table": "shop",
    "StateTable": "shop-state",
    "FailureBucket": "failures",
    "ArchiveBucket": "archive",
    "OlderCode": "off",
    "Doorbell": "https://sqs.us-east-1.amazonaws.com/123456789012/doorbell",
}
TABLES = ("Table", "StateTable")
BATCH_RECORDS = 100
OWN = ("streamfold/**/*.py", "handlers/**/*.py", "handlers/mappings/*.json")
LAMBDA = {
    "AWS_LAMBDA_FUNCTION_NAME": "projector",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


def sources(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for pattern in OWN for path in folder.glob(pattern)}


@cache
def not_deployed():
    """The folders and files of the framework that the Makefile leaves out."""
    command = ["make", "--silent", "--eval=not-deployed: ; @echo $(NOT_DEPLOYED)", "not-deployed"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def is_deployed(name):
    return not any(name == each or name.startswith(f"{each}/") for each in not_deployed())


def is_built():
    """Whether the build is of these sources; with byte code, the framework's have no docstrings and no comments."""
    own = {name: text for name, text in sources(ROOT / "framework").items() if is_deployed(name)}
    compiled = {name: bare(text) for name, text in own.items()}
    trees = [tree | sources(ROOT) for tree in (own, compiled)]
    return all(sources(BUILD / name) in trees for name in FUNCTIONS) and (RUNTIME / ".made").exists()


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


class RuntimeFunction:
    """One execution environment under ``awslambdaric``: events are fetched and answered over HTTP, as on Lambda."""

    BOOT = """
import sys
sys.path[:0] = sys.argv[1:3]
from awslambdaric.__main__ import main
main(["bootstrap", sys.argv[3]])
"""
    PREFIX = "/2018-06-01/runtime/invocation/"
    SECONDS = 60

    def __init__(self, template, name, log, **variables):
        declared = properties(template, name)
        own = declared["Environment"]["Variables"]
        own = {variable: _resolved(value) for variable, value in own.items() if variable not in variables}
        self.events, self.answers, self.began, self.number = Queue(), Queue(), Queue(), 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._api())
        self.server.daemon_threads = True
        Thread(target=self.server.serve_forever, daemon=True).start()
        api = {"AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self.server.server_port}", "LAMBDA_TASK_ROOT": str(BUILD / name)}
        self.process = subprocess.Popen(
            [*isolated("-c", self.BOOT), BUILD / name, RUNTIME, declared["Handler"]],
            env={**LAMBDA, **own, **api, **variables},
            cwd="/",
            stdout=log,
            stderr=log,
        )

    def _api(self):
        function = self

        class Api(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                number, event = function.events.get()
                function.began.put(number)
                body = json.dumps(event).encode()
                headers = {  # all that Lambda sends: without one of them the client crashes
                    "Content-Type": "application/json",
                    "Content-Length": len(body),
                    "Lambda-Runtime-Aws-Request-Id": f"request-{number}",
                    "Lambda-Runtime-Deadline-Ms": int((time.time() + function.SECONDS) * 1000),
                    "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:123456789012:function:projector",
                    "Lambda-Runtime-Trace-Id": "Root=1-00000000-000000000000000000000000",
                }
                self.send_response(200)
                for name, value in headers.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                function.answers.put((self.path.rpartition("/")[2], json.loads(body)))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def handle(self):
                with suppress(ConnectionError):  # the function was killed
                    super().handle()

            def log_message(self, *_):
                """Says nothing."""

        return Api

    def __call__(self, event, kill_after=None, bytes_max=None):
        """What the function answers; None if it was killed before: after so many seconds, or above so much memory."""
        self.number += 1
        self.events.put((self.number, event))
        self.began.get(timeout=self.SECONDS)
        end = time.monotonic() + (self.SECONDS if kill_after is None else kill_after)
        while True:
            try:
                kind, answer = self.answers.get(timeout=0.001 if bytes_max else max(end - time.monotonic(), 0.001))
            except Empty:
                if time.monotonic() < end and not (bytes_max and self.resident_bytes() > bytes_max):
                    continue
                assert bytes_max or kill_after is not None, "the function did not answer"
                self.process.kill()
                self.process.wait()
                return None
            assert kind == "response", answer
            return answer

    def resident_bytes(self):
        """How much memory the process has."""
        counts = Path(f"/proc/{self.process.pid}/statm").read_text("utf-8")
        return int(counts.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.server.shutdown()
        self.server.server_close()


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
