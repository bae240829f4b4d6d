"""New applications: their files, their names, and what is refused before anything is written."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from streamfold.cli import main
from streamfold.errors import SettingsError
from streamfold.starter.files import checked_name, installed_wheel
from streamfold.starter.handler import new_handler
from streamfold.starter.project import TEMPLATES, new_project
from tests.helpers.commands import environment, streamfold


def run_tests(folder):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--streamfold-histories=5"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("template", "passed"), [("blank", 6), pytest.param("shop", 7, marks=pytest.mark.ci)])
def test_a_new_application_passes_its_tests_and_replays_its_events(tmp_path, template, passed):
    folder = tmp_path / "my-shop"
    new_project(folder, template, None)
    new_handler(folder, "refunds", "my_shop")
    assert f"{passed} passed" in run_tests(folder)
    events = [file.relative_to(folder) for file in sorted(folder.glob("events/*.jsonl"))]
    replayed = streamfold("replay", *events, folder=folder)
    assert (replayed.code, "Nothing failed." in replayed.out) == (0, True), replayed.err


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_package_is_named_by_its_folder(tmp_path, template):
    new_project(tmp_path / "my-shop", template, None)
    project = tomllib.loads((tmp_path / "my-shop/pyproject.toml").read_text("utf-8"))
    assert project["project"]["name"] == "my-shop"
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["my_shop"]
    assert "STREAMFOLD_APP = my_shop:app" in (tmp_path / "my-shop/Makefile").read_text("utf-8")


def test_every_file_that_is_reported_was_written(tmp_path):
    written = new_project(tmp_path / "x1", "blank", None)
    assert {file for file in written if not (tmp_path / "x1" / file).is_file()} == set()


def test_a_new_application_has_its_template(tmp_path):
    new_project(tmp_path / "x1", "shop", None)
    template = (tmp_path / "x1" / "template.yaml").read_text("utf-8")
    assert "Handler: x1.lambda_handler" in template
    assert "Handler: x1.verify_handler" in template
    assert "x1" not in sys.modules
    assert not list(tmp_path.glob("**/__pycache__"))


def test_a_folder_that_is_not_empty_is_left_as_it_is(tmp_path):
    (tmp_path / "mine").write_text("mine", "utf-8")
    with pytest.raises(SettingsError, match="is not empty: expected a new folder, or an empty one"):
        new_project(tmp_path, "blank", "shop_of_mine")
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_an_empty_folder_is_taken(tmp_path):
    assert new_project(tmp_path, "blank", "mine")


@pytest.mark.parametrize("name", ["1shop", "My", "class", "a b", "", "a" * 41, "é"])
def test_a_name_that_is_no_package_is_refused(name):
    with pytest.raises(SettingsError, match=r"--package .* is no name of a package: expected a small letter"):
        checked_name(name, "--package")


@pytest.mark.parametrize("name", ["json", "streamfold", "tests"])
def test_the_name_of_another_package_is_refused(name):
    with pytest.raises(SettingsError, match=f"is the name of another package: expected one of your own, my_{name}"):
        checked_name(name, "--package")


@pytest.mark.parametrize("name", ["click", "boto3", "pytest", "events", "wheels"])
def test_the_name_of_an_installed_package_or_of_a_folder_is_refused(tmp_path, name):
    with pytest.raises(SettingsError, match=f"expected one of its own, --package my_{name}"):
        new_project(tmp_path / name, "blank", None)
    assert not (tmp_path / name).exists()


def test_a_folder_may_have_any_name(tmp_path):
    new_project(tmp_path / "Ada's shop (1)", "blank", "shop_of_ada")
    project = tomllib.loads((tmp_path / "Ada's shop (1)/pyproject.toml").read_text("utf-8"))
    assert project["project"]["name"] == "Ada-s-shop-1"


def test_a_package_is_not_named_as_its_module(tmp_path):
    with pytest.raises(SettingsError, match="give another, --package my_shop"):
        new_project(tmp_path / "shop", "shop", None)
    assert not (tmp_path / "shop").exists()


@pytest.mark.slow
@pytest.mark.parametrize("function", ["Projector", "Verifier", "MailProjector", "Spreader"])
def test_a_new_application_builds_its_functions_without_an_index(tmp_path, function):
    new_project(tmp_path / "my_shop", "blank", None)
    built = tmp_path / "built"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["make", "--silent", f"build-{function}", f"ARTIFACTS_DIR={built}"],
        cwd=tmp_path / "my_shop",
        env={**os.environ, "PATH": path, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {file.name for file in built.iterdir()} >= {"my_shop", "streamfold"}
    found = subprocess.run(
        [sys.executable, "-c", "import my_shop, streamfold; print(my_shop.jobs_handler, streamfold.__file__)"],
        cwd=built,
        env={**os.environ, "PYTHONPATH": str(built)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(built) in found.stdout


def test_the_wheel_that_goes_along_is_what_was_installed(tmp_path):
    name, content = installed_wheel()
    (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / name) as wheel:
        names = set(wheel.namelist())
        record = wheel.read(next(each for each in names if each.endswith("/RECORD"))).decode()
    assert {line.rpartition(",")[0].rpartition(",")[0] for line in record.splitlines()} == names
    assert {"streamfold/app.py", "streamfold/py.typed", "streamfold/docs/starting.md"} < names
    assert not [each for each in names if "__pycache__" in each or "direct_url" in each]


def run(capsys, monkeypatch, *arguments):
    """The exit code of a command, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["streamfold", *arguments])
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code
    return code, capsys.readouterr()


def test_the_command_lists_its_files_and_what_comes_next(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown = run(capsys, monkeypatch, "new", "my_shop", "--template", "shop")
    assert code == 0
    assert "Wrote my_shop/my_shop/shop.py" in shown.out
    assert "pyproject.toml names the application, my_shop:app" in shown.out
    assert "export" not in shown.out
    monkeypatch.chdir(tmp_path / "my_shop")
    code, shown = run(capsys, monkeypatch, "new", "handler", "refunds", "--json")
    assert code == 0
    assert '"my_shop/refunds.py"' in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "handler"], "new handler has no NAME"),
        (["new", "a", "b"], "new got 'b' after DIR"),
        (["new", "."], "is no name of a package"),
    ],
)
def test_wrong_arguments_are_answered(tmp_path, capsys, monkeypatch, arguments, message):
    (tmp_path / "Wrong-1").mkdir()
    monkeypatch.chdir(tmp_path / "Wrong-1")
    code, shown = run(capsys, monkeypatch, *arguments)
    assert (code, message in shown.err) == (2, True), shown.err


def test_the_help_in_an_empty_folder_says_how_to_begin(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, shown = run(capsys, monkeypatch, "--help")
    assert "streamfold new my_shop --template" in " ".join(shown.out.split())
    (tmp_path / "handlers.py").write_text("", "utf-8")
    _, shown = run(capsys, monkeypatch, "--help")
    assert "streamfold new my_shop" not in " ".join(shown.out.split())


def test_a_command_in_an_empty_folder_says_how_to_begin(tmp_path):
    ran = streamfold("routes", folder=tmp_path)
    assert (ran.code, "streamfold new DIR makes an application." in ran.err) == (2, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell, tmp_path):
    source = streamfold(folder=tmp_path, _STREAMFOLD_COMPLETE=f"{shell}_source")
    assert "_streamfold_completion" in source.out, source.err
    asked = {"COMP_WORDS": "streamfold new --te", "COMP_CWORD": "--te" if shell == "fish" else "2"}
    completed = streamfold(folder=tmp_path, _STREAMFOLD_COMPLETE=f"{shell}_complete", **asked)
    assert "--template" in completed.out, completed.err
