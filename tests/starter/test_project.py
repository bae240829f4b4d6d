"""New applications and handlers: their files, names and keys, and what is refused before anything is written."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from streamfold.cli import main
from streamfold.errors import SettingsError
from streamfold.keys.table import MAIN, Table
from streamfold.starter.project import (
    TEMPLATES,
    checked_name,
    imported,
    installed_wheel,
    new_handler,
    new_project,
    project_from,
    recording,
)
from streamfold.testing.table import TableTwin
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


@pytest.fixture
def folder(tmp_path):
    new_project(tmp_path / "mine", "blank", None)
    return tmp_path / "mine"


def test_a_handler_joins_the_routers(folder):
    new_handler(folder, "refunds", "mine")
    text = (folder / "mine/__init__.py").read_text("utf-8")
    assert "from mine import refunds, totals\n" in text
    assert "routers=[totals, refunds]" in text


def test_a_handler_that_exists_is_not_overwritten(folder):
    with pytest.raises(SettingsError, match=r"mine/totals.py exists: give the handler another name"):
        new_handler(folder, "totals", "mine")


def test_an_application_that_lists_its_routers_otherwise_is_left_alone(folder):
    application = folder / "mine/__init__.py"
    application.write_text("from mine import totals\nROUTERS = [totals]\n", "utf-8")
    with pytest.raises(SettingsError, match=r"add 'refunds' to the application by hand"):
        new_handler(folder, "refunds", "mine")
    assert not (folder / "mine/refunds.py").exists()


def test_the_only_application_of_a_folder_is_found(folder):
    new_handler(folder, "refunds", "handlers")
    assert (folder / "mine/refunds.py").is_file()


def test_a_folder_without_an_application_gets_no_handler(tmp_path):
    with pytest.raises(SettingsError, match="streamfold new DIR makes one"):
        new_handler(tmp_path, "refunds", "handlers")


def passes(folder, package, name):
    """Imports an application, and runs the plain tests of a handler."""
    with imported(folder, package) as module:
        tests = {}
        exec((folder / f"tests/test_{name}.py").read_text("utf-8"), tests)
        tests["test_an_item_adds_its_amount_to_its_day"]()
        tests["test_the_total_follows_its_items"]()
        return module.app.tables


@pytest.mark.parametrize("name", ["test", "testimonials", "test_x", "key", "row", "count", "match", "mine", "a_"])
def test_a_handler_may_have_any_name_of_a_module(folder, name):
    new_handler(folder, name, "mine")
    passes(folder, "mine", name)
    imports = (folder / f"tests/test_{name}.py").read_text("utf-8")
    assert f"from mine import {', '.join(sorted(['app', name]))}\n" in imports  # the module: pytest collects functions


@pytest.mark.parametrize("name", ["app", "router", "lambda_handler", "jobs_handler", "verify_handler", "int"])
def test_a_name_that_a_handlers_module_has_is_refused(folder, name):
    with pytest.raises(SettingsError, match=f"give another, my_{name}"):
        new_handler(folder, name, "mine")


def test_the_name_of_a_handler_in_another_module_is_refused(folder):
    file = folder / "mine/totals.py"
    file.write_text(file.read_text("utf-8").replace("def totals", "def refunds"), "utf-8")
    with pytest.raises(SettingsError, match="has a handler 'refunds' already"):
        new_handler(folder, "refunds", "mine")


def test_an_application_that_does_not_import_is_named_with_the_reason(folder):
    (folder / "mine/totals.py").write_text("import nothing_of_this_name", "utf-8")
    with pytest.raises(SettingsError, match=r"mine does not import: ModuleNotFoundError: .*nothing_of_this_name"):
        new_handler(folder, "refunds", "mine")
    assert not (folder / "mine/refunds.py").exists()


def test_nothing_stays_written_if_the_application_does_not_import_with_the_handler(folder):
    application = folder / "mine/__init__.py"
    text = application.read_text("utf-8") + "assert len(app.routes) == 1\n"
    application.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match="mine does not import: AssertionError"):
        new_handler(folder, "refunds", "mine")
    assert application.read_text("utf-8") == text
    assert sorted(file.name for file in folder.rglob("*refunds*")) == []


SMALL = Table("main", partition="pk", sort="sk")
TENANTS = [f"{tenant}#{entity}#x{n}" for n in range(6) for tenant in ("acme", "bolt") for entity in ("USER", "ORDER")]
TIMES = [{"d": "x", "at": 1_772_359_200 + n} for n in range(6)]
TABLES = {
    "small letters": (SMALL, [{"pk": f"ORDER#o{n}", "sk": "META", "total": n} for n in range(6)], "main"),
    "no sort key": (Table("main", "id", None), [{"id": f"v{n}x"} for n in range(6)], "main"),
    "slashes": (SMALL, [{"pk": f"users/u{n}", "sk": f"posts/p{n}"} for n in range(6)], "main"),
    "numbers": (Table("main", "id", None), [{"id": n} for n in range(6)], "refunds_items"),
    "times as sort keys": (Table("main", "d", "at"), TIMES, "refunds_items"),
    "bytes": (Table("main", "k", None), [{"k": bytes([n])} for n in range(6)], "refunds_items"),
    "a name of its own": (Table("main", "day", None), [{"day": f"v{n}x"} for n in range(6)], "refunds_items"),
    "tenants": (MAIN, [{"PK": text, "SK": "META"} for text in TENANTS], "main"),
}
KEY_TYPES = {"numbers": {"id": "N"}, "times as sort keys": {"at": "N"}, "bytes": {"k": "B"}}


@pytest.mark.parametrize("case", TABLES)
def test_the_keys_of_a_new_handler_are_in_the_table_of_the_application(tmp_path, case):
    table, items, expected = TABLES[case]
    twin = TableTwin(table, key_types=KEY_TYPES.get(case))
    file = tmp_path / "items.jsonl"
    file.write_text(recording(items, twin), "utf-8")
    project_from(tmp_path / "from_items", str(file), None)
    new_handler(tmp_path / "from_items", "refunds", "from_items:app")
    assert expected in passes(tmp_path / "from_items", "from_items", "refunds")


def test_the_table_is_imported_from_the_module_that_has_it(tmp_path):
    file = tmp_path / "items.jsonl"
    file.write_text(recording(TABLES["small letters"][1], TableTwin(SMALL)), "utf-8")
    project_from(tmp_path / "from_items", str(file), None)
    new_handler(tmp_path / "from_items", "refunds", "from_items:app")
    text = (tmp_path / "from_items/from_items/refunds.py").read_text("utf-8")
    assert "from from_items.keys import TABLE\n" in text
    assert 'Key("REFUNDS_ITEM#{item_id}", "META", TABLE)' in text
