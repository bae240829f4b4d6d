"""Writes a new application into an empty folder, and adds a handler to one.

No file is ever overwritten: everything is checked before the first one is written.
"""

import keyword
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module, invalidate_caches
from pathlib import Path
from string import Template
from typing import Any, Literal

from streamfold.deploy.functions import Deployment
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.template_file import file_text
from streamfold.errors import SettingsError
from streamfold.records.encoded import to_json
from streamfold.starter import templates
from streamfold.starter.proposal import MODULES, Proposal, propose
from streamfold.testing.table import TableTwin

Templates = Literal["blank", "shop"]
TEMPLATES: tuple[Templates, ...] = ("blank", "shop")
NAME_LETTERS_MAX = 40
"""A handler's name becomes literals of its keys, which every item of it has."""
IMPORTS = re.compile(r"^from (\w+) import (\w+(?:, \w+)*)$", re.MULTILINE)
ROUTERS = re.compile(r"routers=\[(\w+(?:, \w+)*)\]")
ITEMS: tuple[Mapping[str, Any], ...] = (
    {"item_id": "1", "day": "2026-03-01", "amount": 3},
    {"item_id": "2", "day": "2026-03-01", "amount": 4},
    {"item_id": "2", "day": "2026-03-02", "amount": 5},
)
"""The items of a new handler's recording; the last one changes the second."""
ORDERS: tuple[Mapping[str, Any], ...] = (
    {"PK": "ORDER#1", "SK": "METADATA", "customer_id": "ada", "status": "placed"},
    {"PK": "ORDER#1", "SK": "LINE#tea", "price": 5, "quantity": 2},
    {"PK": "ORDER#1", "SK": "LINE#cup", "price": 8, "quantity": 1},
    {"PK": "ORDER#1", "SK": "METADATA", "customer_id": "ada", "status": "paid"},
    {"PK": "ORDER#1", "SK": "LINE#tea", "price": 5, "quantity": 3},
)


def new_project(folder: Path, template: Templates, package: str | None) -> list[Path]:
    """Writes a new application; returns its files, relative to the folder.

    Raises ``SettingsError`` for a folder that is not empty, and for a name that is no package.
    """
    module = "totals" if template == "blank" else "shop"
    name = _package_of(folder, package, [module])
    words = {"package": name, "name": module, "tenant": ""}
    texts = {f"{name}/__init__.py": Template(templates.APPLICATION).substitute(words)}
    if template == "shop":
        texts[f"{name}/shop.py"] = templates.SHOP
        texts["tests/test_shop.py"] = Template(templates.SHOP_TEST).substitute(words)
        texts["events/shop.jsonl"] = recording(ORDERS)
    else:
        texts |= handler_files(name, module)
    return _written_project(folder, name, texts)


def project_from(
    folder: Path, path: str, package: str | None, *, keep_values: bool = False, keys: Sequence[str] = ()
) -> tuple[list[Path], Proposal]:
    """Writes the application that is proposed from a recorded file, or from an export's manifest.

    Raises ``SettingsError`` as ``new_project`` and ``propose`` do.
    """
    name = _package_of(folder, package, MODULES)
    proposal = propose(path, name, keep_values=keep_values, keys=keys)
    return _written_project(folder, name, proposal.files), proposal


def _package_of(folder: Path, package: str | None, modules: Sequence[str]) -> str:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} is not empty: expected a new folder, or an empty one, for an application.")
    name = checked_name(package or re.sub(r"[-. ]", "_", folder.resolve().name), "--package")
    if name in modules:
        raise SettingsError(f"{name!r} is the name of a module of the template too: give another, --package my_{name}.")
    return name


def _written_project(folder: Path, package: str, texts: dict[str, str]) -> list[Path]:
    words = {"project": folder.resolve().name, "package": package}
    files = {
        "pyproject.toml": templates.PYPROJECT,
        "Makefile": templates.MAKEFILE,
        "README.md": templates.README,
        ".gitignore": templates.GITIGNORE,
        ".github/workflows/test.yml": templates.CI,
    }
    written = _written(folder, {path: Template(text).substitute(words) for path, text in files.items()} | texts)
    return [*written, *_written(folder, {"template.yaml": _deployed(folder, package)})]


def _deployed(folder: Path, package: str) -> str:
    """The template of the new application, as ``streamfold template`` prints it."""
    known = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == package}
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no __pycache__ in a new folder
    sys.path.insert(0, str(folder.resolve()))
    try:
        invalidate_caches()
        module = import_module(package)
        return file_text(SamTemplate(Deployment(module.app, module)).content)
    finally:
        sys.path.remove(str(folder.resolve()))
        sys.dont_write_bytecode = writes_bytecode
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
        sys.modules |= known


def new_handler(folder: Path, name: str, package: str) -> list[Path]:
    """Adds a handler with its keys, its test and a recording, and names it in the application's list of routers.

    Raises ``SettingsError`` for a name that is no module, files that exist, and a list that is not found.
    """
    name = checked_name(name, "NAME")
    if not (folder / package).exists():  # as without STREAMFOLD_APP: the folder's only application is meant
        package = next(iter(_applications(folder)), package)
    application = folder / package / "__init__.py"
    if not application.is_file():
        raise SettingsError(
            f"{application} does not exist: expected the folder of an application, with --app {package}:app. "
            "streamfold new DIR makes one."
        )
    texts = handler_files(package, name)
    if existing := [path for path in texts if (folder / path).exists()]:
        raise SettingsError(f"{existing[0]} exists: give the handler another name.")
    text = application.read_text("utf-8")
    imports = next((each for each in IMPORTS.finditer(text) if each[1] == package), None)
    routers = ROUTERS.search(text)
    if imports is None or routers is None:
        raise SettingsError(
            f"{application} has no lines 'from {package} import ...' and 'routers=[...]' with names: add {name!r} to "
            f"the application by hand, App(..., routers=[..., {name}]), after such lines are there."
        )
    modules = ", ".join(sorted({*imports[2].split(", "), name}))
    text = text.replace(imports[0], f"from {package} import {modules}", 1)
    text = text.replace(routers[0], f"routers=[{routers[1]}, {name}]", 1)
    written = _written(folder, texts)
    application.write_text(text, "utf-8")
    return [*written, application.relative_to(folder)]


def _applications(folder: Path) -> list[str]:
    # Of several none is guessed: a handler would join the wrong one.
    files = [each for each in folder.glob("*/__init__.py") if ROUTERS.search(each.read_text("utf-8"))]
    return [each.parent.name for each in files] if len(files) == 1 else []


def handler_files(package: str, name: str) -> dict[str, str]:
    """The module of a new handler, its test and its recording, by path."""
    literal = name.upper()
    words = {
        "package": package,
        "name": name,
        "Name": name.capitalize().replace("_", " "),
        "ITEM": f"{literal}_ITEM",
        "TOTAL": f"{literal}_TOTAL",
        "Item": "".join(map(str.capitalize, name.split("_"))) + "Item",
    }
    items = [
        {
            "PK": f"{literal}_ITEM#{item['item_id']}",
            "SK": "META",
            **{name: value for name, value in item.items() if name != "item_id"},
        }
        for item in ITEMS
    ]
    return {
        f"{package}/{name}.py": Template(templates.HANDLER).substitute(words),
        f"tests/test_{name}.py": Template(templates.HANDLER_TEST).substitute(words),
        f"events/{name}.jsonl": recording(items),
    }


def recording(items: Iterable[Mapping[str, Any]]) -> str:
    """The records of a table to which these items are written, one a line."""
    table = TableTwin()
    for item in items:
        table.put(item)
    return "".join(to_json(record) + "\n" for shard in table.stream.shards for record in shard.records)


def checked_name(name: str, option: str) -> str:
    """The name of a package or a module. Raises ``SettingsError`` for one that cannot be imported, or is taken."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > NAME_LETTERS_MAX:
        raise SettingsError(
            f"{option} {name!r} is no name of a package: expected a small letter, then small letters, digits and "
            f"underscores, {NAME_LETTERS_MAX} at most, and no word of Python: my_shop."
        )
    if name in sys.stdlib_module_names or name in ("streamfold", "tests"):
        raise SettingsError(f"{option} {name!r} is the name of another package: expected one of your own, my_{name}.")
    return name


def _written(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:  # never over a file that appeared meanwhile
            opened.write(text)
    return [Path(path) for path in texts]
