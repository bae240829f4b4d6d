"""What commands on DynamoDB refuse before they reach it, and what they say when they cannot reach it."""

import socket

import pytest

from tests.helpers.commands import ROOT

SMALL = ROOT / "events" / "special" / "order_modified_twice_in_batch.json"
ON_DYNAMODB = ("--engine", "dynamodb")
ELSEWHERE = "http://192.0.2.1:8000"


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "unused")


@pytest.fixture
def region(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def silent():
    """An address on loopback at which nothing subscriptions."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def commands(endpoint, out):
    """One of each command that talks to DynamoDB."""
    at = ("--endpoint-url", endpoint)
    return {
        "replay": ("replay", SMALL, *ON_DYNAMODB, *at),
        "create tables": ("replay", SMALL, *ON_DYNAMODB, *at, "--create-tables"),
        "show": ("show", *ON_DYNAMODB, *at, "--table", "shop"),
        "record": ("record", "--table", "shop", *at, "--out", out),
    }


COMMANDS = list(commands("", ""))


def refused(ran):
    """The one message of a command that did nothing."""
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert ran.out == ""
    (message,) = [line for line in ran.err.splitlines() if not line.startswith("Note: ")]
    return message


@pytest.mark.usefixtures("keys", "region")
@pytest.mark.parametrize("option", ["--put-sources", "--create-tables"])
@pytest.mark.parametrize("endpoint", [(), ("--endpoint-url", ELSEWHERE)])
def test_what_is_for_rehearsals_is_refused_without_a_loopback_endpoint(folder, option, endpoint):
    message = refused(folder.run("replay", SMALL, *ON_DYNAMODB, *endpoint, option))
    assert message.startswith(f"Error: {option} needs a loopback endpoint")


@pytest.mark.parametrize("option", [("--put-sources",), ("--create-tables",), ("--endpoint-url", ELSEWHERE)])
def test_options_of_dynamodb_are_refused_on_the_embedded_engine(folder, option):
    assert refused(folder.run("replay", SMALL, *option)) == f"Error: {option[0]} belongs to --engine dynamodb."


@pytest.mark.parametrize("option", [("--state", "some.db"), ("--fresh",)])
def test_options_of_the_embedded_engine_are_refused_on_dynamodb(folder, option):
    message = refused(folder.run("replay", SMALL, *ON_DYNAMODB, "--endpoint-url", ELSEWHERE, *option))
    assert message.startswith("Error: --state and --fresh belong to --engine embedded")


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("command", COMMANDS)
def test_missing_region_is_named_with_the_variable_that_boto3_reads(folder, command, silent, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    arguments = commands(silent, tmp_path / "out.jsonl")[command]
    message = refused(folder.run(*arguments))
    assert message == "Error: No AWS region is set: set AWS_DEFAULT_REGION, or region in the AWS profile."


@pytest.mark.usefixtures("region")
@pytest.mark.parametrize("command", COMMANDS)
def test_missing_credentials_are_named_with_the_variables_to_set(folder, command, silent, tmp_path):
    message = refused(folder.run(*commands(silent, tmp_path / "out.jsonl")[command]))
    assert message.startswith("Error: No AWS credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and")


@pytest.mark.usefixtures("keys", "region")
@pytest.mark.parametrize("command", COMMANDS)
def test_endpoint_at_which_nothing_answers_is_named(folder, command, silent, tmp_path):
    message = refused(folder.run(*commands(silent, tmp_path / "out.jsonl")[command]))
    assert message.startswith("Error: No server answers at the DynamoDB endpoint")
    assert silent in message


@pytest.mark.usefixtures("keys", "region")
@pytest.mark.parametrize("command", COMMANDS)
def test_endpoint_that_is_no_address_is_refused(folder, command, tmp_path):
    message = refused(folder.run(*commands("127.0.0.1:8000", tmp_path / "out.jsonl")[command]))
    assert "127.0.0.1:8000" in message
