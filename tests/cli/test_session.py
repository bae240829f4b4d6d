"""``--app``: the application of the current folder, and an error with the user's line if it does not import."""

import pytest

from streamfold.cli.session import program

COMMANDS = [("routes",), ("replay", "records.jsonl"), ("show",)]


@pytest.fixture(autouse=True)
def records(folder):
    folder.records()


@pytest.mark.parametrize("command", COMMANDS)
def test_module_that_is_missing_is_named_with_the_folder_and_the_option(folder, command):
    ran = folder.run(*command, "--app", "shop.missing:app")

    assert ran.code == 2
    assert ran.out == ""
    assert f"--app 'shop.missing:app': there is no module 'shop' in {folder.path}." in ran.err
    assert "Change to the folder that holds it, or name another with --app." in ran.err


def test_application_is_handlers_app_if_not_said_otherwise(folder):
    (folder.path / "handlers.py").unlink()

    assert "--app 'handlers:app': there is no module 'handlers'" in folder.run("routes").err


def test_application_is_that_of_the_environment_unless_the_option_names_another(folder, monkeypatch):
    folder.write("other.py", (folder.path / "handlers.py").read_text().replace('App("shop"', 'App("other"'))
    monkeypatch.setenv("STREAMFOLD_APP", "other:app")

    assert "other.py" in folder.run("routes", "--json").out
    assert "handlers.py" in folder.run("routes", "--json", "--app", "handlers:app").out


@pytest.mark.parametrize("place", ["handlers", ":app", "handlers:", ""])
def test_place_that_names_no_application_is_refused_with_the_form(folder, place):
    ran = folder.run("routes", "--app", place)

    assert ran.code == 2
    assert f"--app {place!r} names no application: expected MODULE:NAME, for example handlers:app." in ran.err


def test_syntax_error_in_a_module_that_is_imported_is_shown_where_it_is(folder):
    folder.write("shop.py", "def f(:\n")
    folder.app("import shop\n")

    assert f"  at {folder.path / 'shop.py'}:1" in folder.run("routes").err


FAILING = {
    "syntax error": (
        "from streamfold import App\n\napp = App('shop', routers=[)\n",
        "does not import: SyntaxError: closing parenthesis ')'",
        "  at {folder}/handlers.py:3",
    ),
    "imported module raises": (
        "import shop\n\napp = shop.made()\n",
        "does not import: ZeroDivisionError: no shop",
        "  at {folder}/shop.py:2",
    ),
    "package not installed": (
        "import no_such_package\n",
        "does not import: No module named 'no_such_package'",
        "  at {folder}/handlers.py:1",
    ),
    "module leaves the process": ("import sys\n\nsys.exit(0)\n", "does not import: SystemExit", ""),
    "name is missing": (
        "shop = 1\n",
        "is no application: the module has no 'app'.",
        'Expected app = App("...", routers=[...]) in',
    ),
}


@pytest.mark.parametrize("mistake", FAILING)
def test_module_that_gives_no_application_is_told_why_and_at_which_of_the_users_own_lines(folder, mistake):
    text, why, more = FAILING[mistake]
    folder.write("shop.py", "def made():\n    raise ZeroDivisionError('no shop')\n")
    folder.app(text)

    ran = folder.run("routes")

    assert ran.code == 2
    assert f"--app 'handlers:app' {why}" in ran.err
    assert more.format(folder=folder.path) in ran.err


def test_name_that_is_something_else_is_told(folder):
    folder.app("app = 17\n")

    assert "--app 'handlers:app' is no application: it is int." in folder.run("routes").err


def test_name_that_is_a_package_without_a_file_is_told(folder):
    (folder.path / "empty").mkdir()

    ran = folder.run("routes", "--app", "empty:app")

    assert ran.code == 2
    assert "the module has no 'app'" in ran.err


def test_wrong_declaration_is_shown_as_it_is(folder):
    folder.app('from streamfold import Key\n\nORDER = Key("ORDER#{order_id", "METADATA")\n')

    ran = folder.run("routes")

    assert ran.code == 2
    assert "The application handlers:app is not declared well." in ran.err
    assert "Key template 'ORDER#{order_id' is malformed at character 7" in ran.err
    assert f"  at {folder.path / 'handlers.py'}:3" in ran.err


@pytest.mark.parametrize(
    ("called", "installed", "shown"),
    [
        ("{folder}/.venv/bin/streamfold", None, ".venv/bin/streamfold"),
        ("{folder}/.venv/bin/streamfold", "/usr/bin/streamfold", "streamfold"),
        ("{folder}/streamfold/__main__.py", None, "streamfold"),
    ],
)
def test_command_is_told_by_its_place_where_its_name_would_not_find_it(folder, monkeypatch, called, installed, shown):
    monkeypatch.setattr("sys.argv", [called.format(folder=folder.path)])
    monkeypatch.setattr("shutil.which", lambda _: installed)
    assert program() == shown


@pytest.mark.parametrize(
    ("given", "module"),
    [
        ("./handlers.py:app", "handlers:app"),
        ("handlers.py", "handlers:app"),
        ("{folder}/shop/__init__.py:shop", "shop:shop"),
        ("shop/orders.py:app", "shop.orders:app"),
        ("../shop/handlers.py:app", "handlers:app in the folder ../shop"),
        ("/shop/handlers.py:app", "handlers:app in the folder /shop"),
    ],
)
def test_a_file_in_place_of_a_module_is_told_with_the_module(folder, given, module):
    place = given.format(folder=folder.path)
    said = f"--app {place!r} names a file: expected a module, such as {module}."
    assert said in folder.run("routes", "--app", place).err


def test_what_is_no_application_is_told_with_the_one_that_the_module_has(folder):
    said = "--app 'handlers:router' is no application: it is Router. Did you mean handlers:app?"
    assert said in folder.run("routes", "--app", "handlers:router").err


def test_a_wrong_application_of_the_environment_is_not_blamed_on_the_option(folder, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_APP", "shop:app")
    assert "Error: STREAMFOLD_APP 'shop:app': there is no module 'shop'" in folder.run("routes").err


def test_pyproject_names_the_application_for_commands_as_for_tests(folder, monkeypatch):
    folder.write("other.py", (folder.path / "handlers.py").read_text())
    (folder.path / "handlers.py").unlink()
    folder.write("pyproject.toml", '[tool.pytest.ini_options]\nstreamfold_app = "other:app"\n')
    monkeypatch.delenv("STREAMFOLD_APP", raising=False)
    assert "other.py" in folder.run("routes", "--json").out
    assert "there is no module 'nothing'" in folder.run("routes", "--app", "nothing:app").err
    monkeypatch.setenv("STREAMFOLD_APP", "nothing:app")
    assert "there is no module 'nothing'" in folder.run("routes").err


@pytest.mark.parametrize("text", ["not = [toml", "", "[tool]\npytest = 3\n", "[tool.pytest.ini_options]\nx = 3\n"])
def test_a_pyproject_that_names_none_leaves_the_default(folder, text):
    folder.write("pyproject.toml", text)
    assert "handlers.py" in folder.run("routes", "--json").out
