"""``streamfold doctor``: its lines, as text and as JSON, and its exit code."""

import json
from datetime import UTC, datetime

import pytest

from streamfold.deploy.deployed import Account as Asked
from tests.helpers.account import Account


@pytest.fixture
def account(monkeypatch):
    made = Account(now=datetime.now(UTC))
    monkeypatch.setattr("streamfold.cli.doctor.Account", lambda: Asked(made.client))
    return made


def test_without_aws_it_looks_at_the_application_and_the_settings_of_the_environment(folder):
    ran = folder.run("doctor")
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "good: shop, application: 1 handlers",
            "good: this environment, settings: 0 are set, the others have their defaults",
            "2 good, 0 bad, 0 not allowed to look.",
        ],
    )


def test_a_wrong_setting_of_the_environment_is_bad(folder, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_LANES", "0")
    ran = folder.run("doctor")
    assert ran.code == 1
    assert "bad: this environment, settings: Setting STREAMFOLD_LANES='0' does not fit" in ran.out
    assert "-> correct the setting" in ran.out


@pytest.mark.parametrize("command", ["doctor", "template"])
def test_a_runtime_that_lambda_has_no_name_for_is_refused(folder, command):
    ran = folder.run(command, "--runtime", "3.13")
    assert (ran.code, ran.err) == (
        2,
        "Error: --runtime is '3.13': expected python3.N, as Lambda names it, such as python3.13.\n",
    )


def test_without_a_region_and_credentials_the_remedy_is_printed(folder, monkeypatch):
    assert "without an AWS region: set AWS_DEFAULT_REGION" in folder.run("doctor", "--stack", "shop").err
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setattr("botocore.credentials.CredentialResolver.load_credentials", lambda self: None)
    assert "No AWS credentials were found: set AWS_PROFILE" in folder.run("doctor", "--stack", "shop").err


def test_the_template_of_the_folder_is_held_against_the_routes(folder):
    handlers = (folder.path / "handlers.py").read_text("utf-8")
    folder.app(f"{handlers}\nlambda_handler, verify_handler = app.lambda_handler, app.verify_handler\n")
    printed = folder.run("template", "--json")
    assert printed.code == 0, printed.err
    folder.write("template.yaml", printed.out.encode())  # JSON is YAML, too
    ran = folder.run("doctor")
    assert (ran.err, ran.out.splitlines()[1:]) == (
        "",
        [
            "good: template.yaml, template: it gives the application what the routes ask for",
            "2 good, 0 bad, 0 not allowed to look.",
        ],
    )

    folder.write("other.yaml", printed.out.replace('"TRIM_HORIZON"', '"LATEST"').encode())
    ran = folder.run("doctor", "--template", "other.yaml")
    assert ran.code == 1
    assert "bad: other.yaml, Projector, template: Properties.Events.TableStream.Properties.S" in ran.out
    assert "-> correct the template" in ran.out


def test_an_application_that_cannot_be_imported_is_the_only_line(folder):
    folder.app("from streamfold import Nothing")
    ran = folder.run("doctor", "--json")
    (line,) = map(json.loads, ran.out.splitlines())
    assert (ran.code, line["check"], line["state"]) == (1, "application", "bad")
    assert "Nothing" in line["found"]


def test_byte_code_of_another_python_is_bad(folder):
    (folder.path / "build").mkdir()
    folder.write("build/x.cpython-311.pyc", b"")
    ran = folder.run("doctor", "--build", "build")
    assert ran.code == 1
    assert "bad: build, byte code: build has byte code of python3.11, which python3.13 cannot use" in ran.out


@pytest.mark.parametrize("options", [("--stack", "shop"), ("--function", "projector", "--function", "spreader")])
def test_a_stack_and_the_names_of_its_functions_give_the_same_lines(folder, account, options):
    ran = folder.run("doctor", "--json", *options)
    lines = ran.objects()
    assert ran.code == 0, ran.out
    assert {line["state"] for line in lines} == {"good"}
    assert {"projector", "spreader", "orders", "state"} < {line["subject"] for line in lines}


def test_a_bad_line_and_its_command_are_printed_with_exit_code_1(folder, account):
    account.recovered.remove("orders")
    ran = folder.run("doctor", "--stack", "shop")
    assert ran.code == 1
    assert "bad: orders, recovery: point-in-time recovery is off -> aws dynamodb update-continuous-backups" in ran.out
    assert ", 1 bad, 0 not allowed to look." in ran.out


def test_what_nobody_may_look_at_is_no_failure_and_no_success(folder, account):
    account.refused.add("describe_continuous_backups")
    ran = folder.run("doctor", "--stack", "shop")
    assert ran.code == 0
    assert "not allowed to look: orders, recovery: dynamodb:DescribeContinuousBackups is not permitted" in ran.out
    assert ", 0 bad, 2 not allowed to look." in ran.out


def test_a_stack_and_a_function_do_not_go_together(folder):
    ran = folder.run("doctor", "--stack", "shop", "--function", "projector")
    assert (ran.code, "--stack and --function do not go together" in ran.err) == (2, True)
