"""Writes the files of a new application into an empty folder, and those of one more handler into an application.

No file is ever overwritten: everything is checked before the first one is written.
"""

import io
import keyword
import re
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from importlib import import_module, invalidate_caches
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from string import Template
from types import ModuleType
from typing import Any, Literal, NamedTuple

from streamfold.app import App
from streamfold.deploy.functions import Deployment
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.template_file import file_text
from streamfold.errors import KeyValueError, SettingsError, StreamfoldError, reason
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN, Table, merged
from streamfold.proofs.histories import usual_values
from streamfold.records.values import to_json
from streamfold.starter import templates
from streamfold.starter.proposal import MODULES, Proposal, key_arguments, literal_text, propose, table_text
from streamfold.testing.table import TableTwin

Templates = Literal["blank", "shop"]
TEMPLATES: tuple[Templates, ...] = ("blank", "shop")
FOLDERS = ("tests", "events", "wheels")
NOT_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
"""Letters that the name of a distribution does not have (Core metadata specifications, Name)."""
ORDERS: tuple[Mapping[str, Any], ...] = (
    {"PK": "ORDER#1", "SK": "METADATA", "customer_id": "ada", "status": "placed"},
    {"PK": "ORDER#1", "SK": "LINE#tea", "price": 5, "quantity": 2},
    {"PK": "ORDER#1", "SK": "LINE#cup", "price": 8, "quantity": 1},
    {"PK": "ORDER#1", "SK": "METADATA", "customer_id": "ada", "status": "paid"},
    {"PK": "ORDER#1", "SK": "LINE#tea", "price": 5, "quantity": 3},
)
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
NAME_LETTERS_MAX = 40
"""A handler's name becomes literals of its keys, which every item of it has."""
PACKAGE = Path(__file__).parents[1]
PAGES = (PACKAGE / "docs", PACKAGE.parents[1] / "docs")
"""The pages of the documentation in an installed wheel, and in a clone of the repository."""
OF_AN_INSTALLATION = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")
"""Files that pip writes when it installs a wheel, and that are not part of it (Binary distribution format)."""
DATE = (1980, 1, 1, 0, 0, 0)
"""The date of each file, the first that a ZIP archive can have: equal files make an equal wheel."""


def new_project(folder: Path, template: Templates, package: str | None) -> list[Path]:
    """Writes a new application; returns its files, relative to the folder.

    Raises ``SettingsError`` for a folder that is not empty, and for a name that is no package.
    """
    module = "totals" if template == "blank" else "shop"
    name = _package_of(folder, package, [module])
    words = {"package": name, "name": module, "tenant": ""}
    texts: dict[str, str | bytes] = {f"{name}/__init__.py": Template(templates.APPLICATION).substitute(words)}
    if template == "shop":
        texts[f"{name}/shop.py"] = templates.SHOP
        texts["tests/test_shop.py"] = Template(templates.SHOP_TEST).substitute(words)
        texts["events/shop.jsonl"] = recording(ORDERS, TableTwin())
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
    if name in FOLDERS or _is_installed(name, folder):
        raise SettingsError(
            f"--package {name!r} is the name of an installed package, or of a folder of the application: expected one "
            f"of its own, --package my_{name}."
        )
    if name in modules:
        raise SettingsError(f"{name!r} is the name of a module of the template too: give another, --package my_{name}.")
    return name


def _is_installed(name: str, folder: Path) -> bool:
    """Whether another package of this name is found, which the new one would hide, or the other way round."""
    found = find_spec(name)
    if found is None:
        return False
    near = {folder.resolve(), folder.resolve().parent}
    locations = [*(found.submodule_search_locations or ()), *([found.origin] if found.origin else [])]
    return not any(Path(location).parent.resolve() in near for location in locations)


def _written_project(folder: Path, package: str, texts: Mapping[str, str | bytes]) -> list[Path]:
    wheel = installed_wheel()
    words = {
        "project": NOT_IN_NAME.sub("-", folder.resolve().name).strip("-._") or package,
        "package": package,
        "install": "--find-links wheels " if wheel else "",
        "carried": templates.CARRIED if wheel else "",
        "stack": package.replace("_", "-"),
    }
    stages = (Template(templates.STAGE).substitute(words, stage=stage) for stage in templates.STAGES)
    words["stages"] = "".join(stages)
    files = {
        "pyproject.toml": templates.PYPROJECT,
        "Makefile": templates.MAKEFILE,
        "README.md": templates.README,
        ".gitignore": templates.GITIGNORE,
        ".github/workflows/test.yml": templates.CI,
        ".github/workflows/deploy.yml": templates.DEPLOY,
        ".github/workflows/rollout.yml": templates.ROLLOUT,
        "samconfig.toml": templates.SAMCONFIG,
    }
    paths = written(folder, {path: Template(text).substitute(words) for path, text in files.items()} | dict(texts))
    if wheel is not None:
        paths += written(folder, {f"wheels/{wheel[0]}": wheel[1]})
    with imported(folder, package) as module:
        template = file_text(SamTemplate(Deployment(module.app, module)).content)
    return [*paths, *written(folder, {"template.yaml": template})]


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
        app = getattr(module, attribute, None)
        if not isinstance(app, App):
            raise SettingsError(f"{file} has no application {attribute!r}: name it, --app {package}:NAME.")
        if any(route.name == name for route in app.routes):
            raise SettingsError(f"The application has a handler {name!r} already: give another name, more_{name}.")
        texts = handler_files(package, name, app, module, attribute)
    paths = written(folder, texts)
    file.write_text(after, "utf-8")
    try:
        with imported(folder, package):
            pass  # it imports with the handler
    except SettingsError:
        file.write_text(before, "utf-8")
        for path in paths:
            (folder / path).unlink()
        raise
    return [*paths, file.relative_to(folder)]


def _check_name(name: str) -> None:
    if checked_name(name, "NAME") in TAKEN:
        raise SettingsError(
            f"NAME {name!r} is a name that every handler's module or test has: give another, my_{name}."
        )


def _applications(folder: Path) -> list[str]:
    # Of several none is guessed: a handler would join the wrong one.
    files = [each for each in folder.glob("*/__init__.py") if ROUTERS.search(each.read_text("utf-8"))]
    return [each.parent.name for each in files] if len(files) == 1 else []


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


def written(folder: Path, texts: Mapping[str, str | bytes]) -> list[Path]:
    """Writes files, and returns their paths in the folder. Raises ``FileExistsError`` for a file that exists."""
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as opened:  # never over a file that appeared meanwhile
            opened.write(text.encode() if isinstance(text, str) else text)
    return [Path(path) for path in texts]


@contextmanager
def imported(folder: Path, package: str) -> Iterator[ModuleType]:
    """The package of a folder, imported anew, and forgotten at the end.

    Raises ``SettingsError`` for one that does not import, with the reason.
    """
    known = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == package}
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no __pycache__ in a new folder
    sys.path.insert(0, str(folder.resolve()))
    try:
        invalidate_caches()
        try:
            module = import_module(package)
        except Exception as error:
            why = reason(error) if isinstance(error, StreamfoldError) else f"{type(error).__name__}: {error}"
            raise SettingsError(f"{folder / package} does not import: {why}") from error
        yield module
    finally:
        sys.path.remove(str(folder.resolve()))
        sys.dont_write_bytecode = writes_bytecode
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
        sys.modules |= known


def recording(items: Iterable[Mapping[str, Any]], table: TableTwin) -> str:
    """The records of a table to which these items are written, one a line."""
    for item in items:
        table.put(item)
    return "".join(to_json(record) + "\n" for shard in table.stream.shards for record in shard.records)


@lru_cache(1)
def installed_wheel() -> tuple[str, bytes] | None:
    """The wheel's name and content, made of the files that this process runs; None if no distribution has them."""
    try:
        found = distribution(PACKAGE.name)
    except PackageNotFoundError:
        return None
    name = f"{PACKAGE.name}-{found.version}"
    files = dict(sorted({**_modules(), **_metadata(found, name)}.items()))
    record = ""
    for path, content in files.items():
        digest = urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{name}.dist-info/RECORD"] = f"{record}{name}.dist-info/RECORD,,\n".encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for path, content in files.items():
            opened.writestr(zipfile.ZipInfo(path, DATE), content, zipfile.ZIP_DEFLATED)
    return f"{name}-py3-none-any.whl", archive.getvalue()


def _modules() -> dict[str, bytes]:
    """The files of the package, with the pages of its documentation."""
    pages = next((folder for folder in PAGES if folder.is_dir()), PAGES[0])
    found = {PACKAGE.name / file.relative_to(PACKAGE): file for file in _files(PACKAGE) if PAGES[0] not in file.parents}
    found |= {
        Path(PACKAGE.name, "docs") / file.relative_to(pages): file
        for file in _files(pages)
        if file.suffix == ".md" and file.parent.name != "decisions"
    }
    return {PurePosixPath(path).as_posix(): file.read_bytes() for path, file in found.items()}


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def _metadata(found: Distribution, name: str) -> dict[str, bytes]:
    """What describes the wheel: its metadata, its entry points, its licence."""
    described = {}
    for file in found.files or ():
        folder, *inside = file.parts
        if folder == f"{name}.dist-info" and inside[-1] not in OF_AN_INSTALLATION:
            described["/".join((folder, *inside))] = Path(str(found.locate_file(file))).read_bytes()
    return described
