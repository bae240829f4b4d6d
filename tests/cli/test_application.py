"""``--app``: found from the folder one stands in, and told with the user's own line when it does not import."""

import pytest

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
    assert "Stand in the folder that holds it, or name another with --app." in ran.err


def test_application_is_handlers_app_if_not_said_otherwise(folder):
    (folder.path / "handlers.py").unlink()

    assert "--app 'handlers:app': there is no module 'handlers'" in folder.run("routes").err


@pytest.mark.parametrize("place", ["handlers", ":app", "handlers:", ""])
def test_place_that_names_no_application_is_refused_with_the_form(folder, place):
    ran = folder.run("routes", "--app", place)

    assert ran.code == 2
    assert f"--app {place!r} names no application: expected MODULE:NAME, for example handlers:app." in ran.err


def test_syntax_error_is_shown_with_its_file_and_line(folder):
    folder.app("from streamfold import App\n\napp = App('shop', routers=[)\n")

    ran = folder.run("routes")

    assert ran.code == 2
    assert "--app 'handlers:app' does not import: SyntaxError: closing parenthesis ')'" in ran.err
    assert f"  at {folder.path / 'handlers.py'}:3" in ran.err


def test_syntax_error_in_a_module_that_is_imported_is_shown_where_it_is(folder):
    folder.write("shop.py", "def f(:\n")
    folder.app("import shop\n")

    assert f"  at {folder.path / 'shop.py'}:1" in folder.run("routes").err


def test_module_that_raises_is_shown_with_its_own_line(folder):
    folder.write("shop.py", "def made():\n    raise ZeroDivisionError('no shop')\n")
    folder.app("import shop\n\napp = shop.made()\n")

    ran = folder.run("routes")

    assert ran.code == 2
    assert "--app 'handlers:app' does not import: ZeroDivisionError: no shop" in ran.err
    assert f"  at {folder.path / 'shop.py'}:2" in ran.err


def test_module_that_imports_what_is_not_installed_is_shown_with_the_line(folder):
    folder.app("import no_such_package\n")

    ran = folder.run("routes")

    assert ran.code == 2
    assert "does not import: No module named 'no_such_package'" in ran.err
    assert f"  at {folder.path / 'handlers.py'}:1" in ran.err


def test_module_that_leaves_the_process_is_an_error(folder):
    folder.app("import sys\n\nsys.exit(0)\n")

    ran = folder.run("routes")

    assert ran.code == 2
    assert "--app 'handlers:app' does not import: SystemExit" in ran.err


def test_module_without_the_name_is_told_what_to_write(folder):
    folder.app("shop = 1\n")

    ran = folder.run("routes")

    assert ran.code == 2
    assert "--app 'handlers:app' is no application: the module has no 'app'." in ran.err
    assert 'Expected app = App("...", routers=[...]) in' in ran.err


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
