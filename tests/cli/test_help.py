"""The help of every command, exit codes, settings, and the command line as a process."""

import json
import re
import subprocess
from collections import defaultdict

import click
import pytest

from streamfold.cli import COMMANDS, STOPPED, TASKS, cli
from streamfold.settings import Settings
from tests.helpers.commands import ROOT, command_line, environment


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(folder, command, option):
    ran = folder.run(command, option)

    assert ran.code == 0
    assert ran.out.startswith(f"Usage: streamfold {command}")
    assert "--json" in ran.out


def test_help_lists_the_commands_and_the_exit_codes(folder):
    ran = folder.run("--help")

    assert ran.code == 0
    assert all(f"  {command} " in ran.out for command in COMMANDS)
    assert "Exit codes:" in ran.out


def test_help_lists_each_command_under_one_task(folder):
    assert sorted(name for names in TASKS.values() for name in names) == sorted(COMMANDS)
    lines = folder.run("--help").out.splitlines()
    heads = [number for number, line in enumerate(lines) if line.removesuffix(":") in TASKS]
    for (task, names), start, end in zip(TASKS.items(), heads, [*heads[1:], len(lines)], strict=True):
        assert lines[start] == f"{task}:"
        assert [line.split()[0] for line in lines[start + 1 : end] if line[:3].strip()] == list(names)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(folder, command):
    examples = folder.run(command, "--help").out.partition("Example")[2].partition("Options:")[0]
    assert re.search(rf"^ +(STREAMFOLD_\w+=\w+ )?streamfold {command}\b", examples, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(folder, command):
    lines = folder.run(command, "--help").out.splitlines()

    for number, line in enumerate(lines):
        if line.strip().startswith("--"):
            explained = len(line.split("  ")) > 2 or lines[number + 1].startswith(" " * 10)
            assert explained, line


def options():
    """Every option of every command, with the command's name."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        for inner in command.commands.values() if isinstance(command, click.Group) else [command]:
            for option in inner.params:
                if isinstance(option, click.Option) and not option.hidden:
                    yield f"{name} {inner.name}", option


def test_an_option_with_a_number_says_of_what():
    unnamed = [
        (command, option.opts[0])
        for command, option in options()
        if isinstance(option.type, click.IntRange | click.FloatRange | type(click.INT) | type(click.FLOAT))
        and option.metavar is None
    ]
    assert unnamed == []


def test_options_of_one_name_are_told_in_the_same_words():
    told = defaultdict(set)
    for _, option in options():
        told[option.opts[0]].add(option.help)
    for name in ("--app", "--engine", "--endpoint-url", "--segments", "--read-units", "--max-lag", "--function"):
        assert len(told[name]) == 1, told[name]
    assert all(text.startswith("Print ") for text in told["--json"])
    assert all(text.startswith("Do not ask before ") for text in told["--yes"])


def test_unknown_command_is_an_error_that_names_it(folder):
    ran = folder.run("replays")

    assert ran.code == 2
    assert "No such command 'replays'. Did you mean 'replay'" in ran.err


def test_of_a_command_that_is_far_from_all_only_the_help_is_named(folder):
    assert "No such command 'frobnicate'.\n" in folder.run("frobnicate").err


def test_a_command_that_somebody_expects_is_told_where_it_is_instead(folder):
    told = folder.run("check")

    assert told.code == 2
    assert "No such command 'check'." in told.err
    assert all(each in told.err for each in ("streamfold routes", "streamfold verify", "streamfold.testing.check"))


def test_no_command_shows_the_help(folder):
    ran = folder.run()

    assert ran.code == 2
    assert "Usage: streamfold" in ran.out + ran.err


def test_settings_are_shown_with_value_origin_and_meaning(folder, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_CHUNK_ACTIONS", "50")
    monkeypatch.setenv("STREAMFOLD_TABLE_SHOP", "orders-prod")

    settings = {row["name"]: row for row in map(json.loads, folder.run("settings", "--json").out.splitlines())}

    assert settings["STREAMFOLD_CHUNK_ACTIONS"] == {
        "name": "STREAMFOLD_CHUNK_ACTIONS",
        "value": "50",
        "origin": "STREAMFOLD_CHUNK_ACTIONS",
        "meaning": "the most writes in one transaction, 2 to 100; fewer for a while after a conflict",
    }
    assert settings["STREAMFOLD_EPOCH"]["origin"] == "default"
    assert settings["STREAMFOLD_TABLE_<NAME>"]["value"] == "shop=orders-prod"
    assert settings["STREAMFOLD_OBSERVE"]["value"] == "lines"
    assert settings["STREAMFOLD_OLDER_CODE"]["value"] == "off"


def test_settings_for_a_person_are_a_table(folder):
    ran = folder.run("settings")

    assert ran.out.splitlines()[0].split() == ["setting", "value", "origin", "meaning"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("STREAMFOLD_CHUNKS", "5", "Setting STREAMFOLD_CHUNKS is not known. Did you mean STREAMFOLD_CHUNK_ACTIONS?"),
        ("STREAMFOLD_CHUNK_ACTIONS", "101", "='101' does not fit: expected a whole number from 2 to 100."),
        ("STREAMFOLD_OLDER_CODE", "maybe", "='maybe' is no switch: expected on or off."),
        ("STREAMFOLD_OBSERVE", "on", "='on' is not known: expected lines, powertools, traced, off."),
        ("STREAMFOLD_STATE_TABLE", "", "STREAMFOLD_STATE_TABLE is empty: give a value or leave it out."),
    ],
)
def test_setting_that_is_wrong_is_an_error_of_every_command(folder, monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)

    for command in (("settings",), ("replay", folder.records())):
        ran = folder.run(*command)
        assert ran.code == 2
        assert message in ran.err


def test_reader_that_closes_the_pipe_ends_the_command_quietly():
    command = command_line("settings", "--json")
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()

    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() != 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("settings",), "Stopped. Nothing was written.\n"),
        (("show",), "Stopped. Nothing was written.\n"),
        (("replay", "records.jsonl"), "Stopped. What was written to a state or a table is kept, and the same command"),
        (("backfill",), "Stopped. What was written is kept, and the same command goes on from there.\n"),
        (("rebuild", "order_total"), "Stopped. What was written is kept, and the same command goes on from there.\n"),
        (("search", "rebuild", "x"), "Stopped. What was written is kept, and the same command goes on from there.\n"),
        (("repair", "--key", "a"), "Stopped. What was written is kept. The same command does the rest"),
        (("redrive", "records.jsonl"), "Stopped. What was written is kept. The same command does the rest"),
    ],
)
def test_a_stopped_command_says_what_it_leaves_and_how_it_goes_on(folder, monkeypatch, command, said):
    folder.records()
    monkeypatch.setattr(Settings, "from_environment", _interrupt)

    ran = folder.run(*command)

    assert ran.code == 130
    assert ran.err.startswith(said)


def test_a_stopped_command_advises_no_option_that_it_has_not():
    for name, text in STOPPED.items():
        command = cli.get_command(None, name)
        own = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", text)) <= own


def test_a_question_that_is_not_answered_leaves_nothing_written(folder, monkeypatch):
    monkeypatch.setattr("streamfold.cli.routes.Grid", _abort)

    ran = folder.run("settings")

    assert (ran.code, ran.err) == (130, "Stopped. Nothing was written.\n")


def _abort(*arguments):
    raise click.Abort


def _interrupt(*arguments):
    raise KeyboardInterrupt
