"""A rehearsal: what an emulator takes of a template, which rows are compared, and what is said where a tool lacks."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamfold.starter import rehearsal
from streamfold.starter.project import new_project
from streamfold.starter.rehearsal import Rehearsal, RehearsalFailed, emulated, main, shown, tables_of
from tests.helpers.commands import ROOT, environment
from tests.helpers.template import load_template


@pytest.fixture
def template():
    return load_template()


def test_an_emulator_gets_no_alarm_of_several_metrics_and_no_filter_that_it_misreads(template):
    taken = emulated(template)
    assert not [name for name, each in taken["Resources"].items() if "Metrics" in each.get("Properties", {})]
    assert "$or" not in json.dumps(taken)


def test_a_filter_that_an_emulator_reads_stays():
    def content(pattern):
        events = {"Stream": {"Properties": {"FilterCriteria": {"Filters": [{"Pattern": pattern}]}}}}
        return {"Resources": {"F": {"Type": "AWS::Serverless::Function", "Properties": {"Events": events}}}}

    assert emulated(content("{}")) == content("{}")
    events = emulated(content('{"$or": []}'))["Resources"]["F"]["Properties"]["Events"]
    assert events == {"Stream": {"Properties": {}}}


def test_tables_are_found_by_the_settings_of_functions(template):
    assert tables_of(template)["MAIN"] == "Table"


def test_rows_of_histories_are_not_compared():
    history = {"item": {"S": "a"}, "version": {"S": "1"}, "event": {"S": "INSERT"}}
    row = {"PK": {"S": "A"}, "version": {"N": "1"}}
    assert shown("\n".join(map(json.dumps, [history, row]))) == {json.dumps(row, sort_keys=True)}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A new application whose template counts as built."""
    new_project(tmp_path / "my_shop", "blank", None)
    monkeypatch.chdir(tmp_path / "my_shop")
    built = tmp_path / "my_shop" / rehearsal.BUILT
    built.parent.mkdir(parents=True)
    built.write_text((tmp_path / "my_shop" / "template.yaml").read_text("utf-8"), "utf-8")
    monkeypatch.setattr(rehearsal.shutil, "which", lambda name: f"/tools/{name}")
    monkeypatch.setattr(rehearsal, "ROWS_SECONDS", 0.2)
    return tmp_path / "my_shop"


class Emulated:
    """An emulator of a test: it notes commands and items, and shows the rows that it is given."""

    address = "http://127.0.0.1:1"

    def __init__(self, rows):
        self.rows = rows
        self.commands, self.items, self.removed = [], [], []
        self.table = "rehearsal-Table-1"

    def run(self, *command):
        self.commands.append(command)
        if "show" in command:
            return self.rows["live" if "dynamodb" in command else "replayed"]
        if command[:2] == ("sam", "deploy") and len(self.commands) > 1 and "moved" in self.rows:
            self.table = "another"
        return ""

    def client(self, service):
        return self

    def describe_stack_resources(self, **_):
        return {"StackResources": [{"LogicalResourceId": "Table", "PhysicalResourceId": self.table}]}

    def put_item(self, **given):
        self.items.append(given)

    def delete_item(self, **given):
        self.removed.append(given)


def rehearsed(project, **rows):
    running = Emulated({"live": "", "replayed": "", **rows})
    files = [str(file) for file in sorted((project / "events").glob("*.jsonl"))]
    Rehearsal(running, files, project).run()
    return running


def test_the_items_of_the_recording_are_written_and_the_stack_is_updated_and_deleted(project, capsys):
    running = rehearsed(project)
    assert {item["TableName"] for item in running.items} == {"rehearsal-Table-1"}
    assert [item["Item"]["amount"] for item in running.items][-1] == {"N": "5"}
    assert [command[1] for command in running.commands if command[0] == "sam"] == ["deploy", "deploy", "delete"]
    assert "rows right" in capsys.readouterr().out


def test_a_row_that_differs_fails_the_rehearsal(project):
    row = json.dumps({"PK": {"S": "A"}})
    with pytest.raises(RehearsalFailed, match="not those of a replay"):
        rehearsed(project, live=row)


def test_an_update_that_replaces_a_table_fails_the_rehearsal(project):
    with pytest.raises(RehearsalFailed, match="The update replaced a table"):
        rehearsed(project, moved="")


def test_missing_tools_are_named_with_the_way_to_get_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal.shutil, "which", lambda name: None)
    assert main([]) == 1
    said = capsys.readouterr().err
    assert "ministack is not in PATH: pip install ministack" in said
    assert "sam is not in PATH: pip install aws-sam-cli" in said
    assert "make build makes it" in said
    assert "No recording is given" in said


def test_the_log_of_the_emulator_follows_the_reason(project, monkeypatch, capsys):
    @contextmanager
    def fails(program, log):
        log.write_text("the emulator's last line", "utf-8")
        raise RehearsalFailed("it ended")
        yield

    monkeypatch.setattr(rehearsal, "emulator", fails)
    assert main(["events/totals.jsonl"]) == 1
    assert capsys.readouterr().err == "it ended\nthe emulator's last line\n"


TOOLS = [ROOT / ".venv-sam" / "bin", ROOT / ".venv-rehearsal" / "bin"]


def steps_of_the_page():
    """The commands of docs/stages.md that lead to a rehearsed stack, one a line."""
    page = (ROOT / "docs/stages.md").read_text("utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page.partition("## From nothing")[2].partition("\n## ")[0], re.DOTALL)
    return block.splitlines()


def test_the_page_has_the_steps_that_the_workflow_has(tmp_path):
    new_project(tmp_path / "my_shop", "blank", None)
    workflow = (tmp_path / "my_shop/.github/workflows/test.yml").read_text("utf-8")
    called = [line for line in steps_of_the_page() if line.startswith("make ")]
    assert called == ["make test", "make replay", "make check", "make tools", "make rehearse"]
    assert all(line in workflow for line in called if line != "make test")
    assert next(line for line in steps_of_the_page() if line.startswith("pip")) in workflow


@pytest.mark.ci
@pytest.mark.skipif(not all(folder.is_dir() for folder in TOOLS), reason="make rehearse installs the tools")
def test_every_step_of_the_page_runs_as_it_is_written(tmp_path):
    """But for what installs: the packages and tools of this checkout take its place."""
    installs = ("pip install", "make tools")
    script = "\n".join(["set -eu", *(line for line in steps_of_the_page() if not line.startswith(installs))])
    path = os.pathsep.join([str(Path(sys.executable).parent), *map(str, TOOLS), os.environ["PATH"]])
    ran = subprocess.run(
        ["bash"],
        input=script,
        cwd=tmp_path,
        env=environment(PATH=path, PYTHONPATH=str(ROOT / "framework"), PYTHONWARNINGS="default"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert re.findall(r"^ *\d+ s  (.*)$", ran.stdout, re.MULTILINE) == [
        "deployed",
        "3 items written, rows right",
        "stack updated, tables kept",
        "stack deleted",
    ]
