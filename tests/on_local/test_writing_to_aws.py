"""A replay without ``--endpoint-url`` writes to AWS, here DynamoDB Local in its place: it shows where, and asks."""

import json
import os
import pty
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.helpers.commands import ROOT, command_line, embedded_rows, environment, shown
from tests.helpers.here import streamfold
from tests.helpers.template import create_table, load_template

SMALL = ROOT / "events" / "special" / "order_modified_twice_in_batch.json"
REPLAY = ("replay", SMALL, "--engine", "dynamodb")
WHERE = "This writes to AWS, account 123456789012, region us-east-1: derived rows to shop, state to shop-state."
IDENTITY = b"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:iam::123456789012:user/nobody</Arn><UserId>AIDA</UserId><Account>123456789012</Account>
</GetCallerIdentityResult></GetCallerIdentityResponse>"""


class TokenService(BaseHTTPRequestHandler):
    """Knows who calls, whoever calls."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(IDENTITY)

    def log_message(self, *arguments):
        """Nothing on standard error."""


@pytest.fixture
def token_service():
    with HTTPServer(("127.0.0.1", 0), TokenService) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def aws(dynamodb, dynamodb_endpoint, access_key, token_service):
    """The environment in which boto3's own addresses lead here; the tables are there."""
    template = load_template()
    create_table(dynamodb, template, "Table", "shop")
    create_table(dynamodb, template, "StateTable", "shop-state")
    return {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_endpoint,
        "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": dynamodb_endpoint,
        "AWS_ENDPOINT_URL_STS": token_service,
    }


def item_count(dynamodb):
    return sum(dynamodb.scan(TableName=name, Select="COUNT")["Count"] for name in ("shop", "shop-state"))


def answer(text, aws):
    """Runs the replay on a terminal and answers its question; its exit code and what it printed there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command_line(*REPLAY),
        env=environment(**aws, TERM="dumb"),
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        os.write(ours, text.encode())
        _, printed = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    return process.returncode, printed.decode()


def test_where_nobody_can_be_asked_nothing_is_written_without_yes(aws, dynamodb):
    ran = streamfold(*REPLAY, **aws)
    assert ran.code == 2
    assert ran.err.splitlines() == [
        WHERE,
        "Error: Nobody can be asked for confirmation here: give --yes to write to AWS.",
    ]
    assert item_count(dynamodb) == 0


def test_redrive_asks_before_it_writes_as_a_replay_does(aws, dynamodb, tmp_path):
    (tmp_path / "object").write_text(json.dumps({"payload": SMALL.read_text("utf-8")}))
    redrive = ("redrive", tmp_path / "object", "--engine", "dynamodb")
    assert (streamfold(*redrive, **aws).err, item_count(dynamodb)) == ("", 0)
    ran = streamfold(*redrive, "--apply", **aws)
    assert ran.code == 2
    assert "Error: Nobody can be asked for confirmation here" in ran.err
    assert item_count(dynamodb) == 0
    of_main = {"STREAMFOLD_GROUP": "main", **aws}  # searches are of another, and there is no server for them
    where, *skipped = streamfold(*redrive, "--apply", "--yes", **of_main).err.splitlines()
    assert where == WHERE
    assert all("The handler is of group 'search'" in line for line in skipped)
    assert item_count(dynamodb) > 0


def test_yes_shows_where_it_writes_and_goes_on(aws, tmp_path):
    ran = streamfold(*REPLAY, "--yes", **aws)
    assert ran.code == 0
    assert ran.err.splitlines() == [WHERE]
    rows = shown(streamfold("show", "--engine", "dynamodb", "--table", "main=shop", "--json", **aws))
    assert rows == embedded_rows(SMALL, state=tmp_path / "embedded.db", run=streamfold)


def test_person_who_says_no_ends_it_before_anything_is_written(aws, dynamodb):
    code, printed = answer("n\n", aws)
    assert code == 130
    assert WHERE in printed
    assert item_count(dynamodb) == 0


def test_person_who_says_yes_lets_it_go_on(aws, dynamodb):
    code, printed = answer("y\n", aws)
    assert code == 0
    assert "Go on? [y/N]" in printed
    assert item_count(dynamodb) > 0


def test_dry_run_asks_nobody(aws, dynamodb):
    ran = streamfold(*REPLAY, "--dry-run", **aws)
    assert (ran.code, ran.err) == (0, "")
    assert item_count(dynamodb) == 0


def test_account_that_cannot_be_asked_for_ends_it(aws, dynamodb):
    ran = streamfold(*REPLAY, "--yes", **{**aws, "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:1"}, AWS_MAX_ATTEMPTS="1")
    assert ran.code == 2
    assert ran.err.startswith("Error: The AWS account could not be asked for")
    assert item_count(dynamodb) == 0
