"""One more handler: where it joins, its keys in the application's table, and what is refused."""

import pytest

from streamfold.errors import SettingsError
from streamfold.keys.table import MAIN, Table
from streamfold.starter.files import imported, recording
from streamfold.starter.handler import new_handler
from streamfold.starter.project import new_project, project_from
from streamfold.testing.table import TableTwin


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
