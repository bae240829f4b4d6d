"""One more handler of an application: its keys, in the table that the application has, its test and its recording."""

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.errors import KeyValueError, SettingsError
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN, Table, merged
from streamfold.proofs.histories import usual_values
from streamfold.starter import templates
from streamfold.starter.files import checked_name, imported, recording, written
from streamfold.starter.proposal import key_arguments, literal_text, table_text
from streamfold.testing.table import TableTwin

IMPORTS = re.compile(r"^from (\w+) import (\w+(?:, \w+)*)$", re.MULTILINE)
ROUTERS = re.compile(r"routers=\[(\w+(?:, \w+)*)\]")
APP = "app"
TAKEN = (APP, "router", "lambda_handler", "jobs_handler", "verify_handler", "int", "str")
"""Names of what a handler's module, its test or the application has beside the handler."""
ITEMS: tuple[Mapping[str, Any], ...] = (
    {"item_id": "1", "day": "2026-03-01", "amount": 3},
    {"item_id": "2", "day": "2026-03-01", "amount": 4},
    {"item_id": "2", "day": "2026-03-02", "amount": 5},
)
"""The items of a new handler's recording; the last one changes the second."""
OWN_NAMES = frozenset({"item_id", "day", "amount", "items"})
"""Fields and attributes of a new handler's items and rows."""


class HandlerKeys(NamedTuple):
    """The keys of a new handler: of its items and of their totals, with the values of the tenant's field."""

    item: Key
    total: Key
    tenant: Mapping[str, Any]  # empty where the application has no tenants


def new_handler(folder: Path, name: str, application: str) -> list[Path]:
    """Adds a handler with its keys, its test and a recording, and names it in the application's list of routers.

    ``application`` is ``PACKAGE:NAME``. Nothing stays written if the application does not import with the handler.
    Raises ``SettingsError`` for a name that is taken or no module, for files that exist, for a list that is not found,
    and for an application that does not import.
    """
    package, _, attribute = application.partition(":")
    attribute = attribute or APP
    _check_name(name)
    if not (folder / package).exists():  # as without STREAMFOLD_APP: the folder's only application is meant
        package = next(iter(_applications(folder)), package)
    file = folder / package / "__init__.py"
    if not file.is_file():
        raise SettingsError(
            f"{file} does not exist: expected the folder of an application, with --app {package}:app. "
            "streamfold new DIR makes one."
        )
    if existing := [path for path in _paths(package, name) if (folder / path).exists()]:
        raise SettingsError(f"{existing[0]} exists: give the handler another name.")
    before = file.read_text("utf-8")
    after = _with_router(before, file, package, name)
    with imported(folder, package) as module:
        app = _application(module, attribute, file)
        if any(route.name == name for route in app.routes):
            raise SettingsError(f"The application has a handler {name!r} already: give another name, more_{name}.")
        texts = handler_files(package, name, app, module, attribute)
    paths = written(folder, texts)
    file.write_text(after, "utf-8")
    try:
        _check_imports(folder, package)
    except SettingsError:
        file.write_text(before, "utf-8")
        for path in paths:
            (folder / path).unlink()
        raise
    return [*paths, file.relative_to(folder)]


def _check_name(name: str) -> None:
    checked_name(name, "NAME")
    if name in TAKEN:
        raise SettingsError(
            f"NAME {name!r} is a name that every handler's module or test has: give another, my_{name}."
        )


def _check_imports(folder: Path, package: str) -> None:
    with imported(folder, package):
        pass


def _applications(folder: Path) -> list[str]:
    # Of several none is guessed: a handler would join the wrong one.
    files = [each for each in folder.glob("*/__init__.py") if ROUTERS.search(each.read_text("utf-8"))]
    return [each.parent.name for each in files] if len(files) == 1 else []


def _application(module: ModuleType, attribute: str, file: Path) -> App:
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise SettingsError(f"{file} has no application {attribute!r}: name it, --app {module.__name__}:NAME.")
    return app


def _with_router(text: str, file: Path, package: str, name: str) -> str:
    """The text of the application with one router more."""
    imports = next((each for each in IMPORTS.finditer(text) if each[1] == package), None)
    routers = ROUTERS.search(text)
    if imports is None or routers is None:
        raise SettingsError(
            f"{file} has no lines 'from {package} import ...' and 'routers=[...]' with names: add {name!r} to "
            f"the application by hand, App(..., routers=[..., {name}]), after such lines are there."
        )
    modules = ", ".join(sorted({*imports[2].split(", "), name}))
    text = text.replace(imports[0], f"from {package} import {modules}", 1)
    return text.replace(routers[0], f"routers=[{routers[1]}, {name}]", 1)


def _paths(package: str, name: str) -> tuple[str, str, str]:
    return f"{package}/{name}.py", f"tests/test_{name}.py", f"events/{name}.jsonl"


def handler_files(
    package: str, name: str, app: App | None = None, module: ModuleType | None = None, attribute: str = APP
) -> dict[str, str | bytes]:
    """The module of a new handler, its test and its recording, by path.

    ``app`` is the application that the handler joins; None for a new one. ``module`` is the application's package, in
    which ``attribute`` is its name.
    """
    keys = _keys(name.upper(), app)
    table, where, table_import = keys.item.table, "", ""
    if not _is_main(table):
        known = None if module is None else _name_of(table, module)
        table_import = f"from {known[0]} import {known[1]}\n" if known else ""
        where = known[1] if known else "TABLE"
    declared = f"{where} = {table_text(table)}\n" if where and not table_import else ""
    streamfold = ["Count", "Key", "Router", "Row", "Sum", *(["Table"] if declared else [])]
    words = {
        "package": package,
        "name": name,
        "Name": name.capitalize().replace("_", " "),
        "ITEM": f"{name.upper()}_ITEM",
        "TOTAL": f"{name.upper()}_TOTAL",
        "Item": "".join(map(str.capitalize, name.split("_"))) + "Item",
        "imports": ", ".join(sorted([APP if attribute == APP else f"{attribute} as {APP}", name])),
        "streamfold": ", ".join(streamfold),
        "table_import": table_import,
        "table": declared,
        "item_key": key_arguments(keys.item, where),
        "total_key": key_arguments(keys.total, where),
        "tenant": "".join(f"{field}={literal_text(value)}, " for field, value in keys.tenant.items()),
    }
    items = [
        {**keys.item.key(**keys.tenant, item_id=item["item_id"]), "day": item["day"], "amount": item["amount"]}
        for item in ITEMS
    ]
    texts = Template(templates.HANDLER), Template(templates.HANDLER_TEST)
    contents = *(text.substitute(words) for text in texts), recording(items, TableTwin(table))
    return dict(zip(_paths(package, name), contents, strict=True))


def _keys(literal: str, app: App | None) -> HandlerKeys:
    """Keys in a table that the application reads, or in one of their own where its keys leave no room for them."""
    tables = [MAIN] if app is None else list(app.source_tables.values())
    own = Table(f"{literal.lower()}_items")
    tables.sort(key=lambda table: table.name != MAIN.name)
    return next(found for table in (*tables, own) if (found := _keys_in(table, literal, app)) is not None)


def _keys_in(table: Table, literal: str, app: App | None) -> HandlerKeys | None:
    """None where key attributes of the table are no text, or have names of the handler's own, and where the table's
    keys match these too, or the values do not.
    """
    known = [] if app is None else [key for key in app.keys if key.table.name == table.name]
    if table.region is not None or not OWN_NAMES.isdisjoint(table.attributes):
        return None
    if any(part.attribute_type != "S" for key in known for part in key.parts):
        return None
    field = None if app is None or app.tenant is None or not app.keys else app.keys[0].types[app.tenant]
    tenant = {} if field is None else {field.name: usual_values(field)[0]}
    segments = [] if field is None else [str(field)]

    def made(kind: str, name: str, sort: str) -> Key:
        partition = table.delimiter.join([*segments, f"{literal}_{kind}", f"{{{name}}}"])
        return Key(partition, sort if table.sort else None, None if _is_main(table) else table)

    keys = HandlerKeys(made("ITEM", "item_id", "META"), made("TOTAL", "day", "TOTAL"), tenant)
    for key, name in ((keys.item, "item_id"), (keys.total, "day")):
        with suppress(KeyValueError):
            found = [key.match(key.key(**tenant, **{name: item[name]})) for item in ITEMS]
            if None not in found and not any(key.overlaps(other) for other in known):
                continue
        return None
    return keys


def _is_main(table: Table) -> bool:
    return merged(table, MAIN) is not None


def _name_of(table: Table, module: ModuleType) -> tuple[str, str] | None:
    """The module of a package, and the name under which it has a table."""
    modules = [each for name, each in sys.modules.items() if name.startswith(f"{module.__name__}.")]
    found = sorted(
        (each.__name__, name)
        for each in modules
        for name, value in vars(each).items()
        if isinstance(value, Table) and value == table and name.isupper()
    )
    return next(iter(found), None)
