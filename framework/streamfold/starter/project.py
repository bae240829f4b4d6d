"""Writes a new application into an empty folder."""

import re
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any, Literal

from streamfold.deploy.functions import Deployment
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.template_file import file_text
from streamfold.errors import SettingsError
from streamfold.starter import templates
from streamfold.starter.files import checked_name, imported, installed_wheel, recording, written
from streamfold.starter.handler import handler_files
from streamfold.starter.proposal import MODULES, Proposal, propose
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
    near = {folder.resolve(), folder.resolve().parent}
    return found is not None and not any(Path(found_at).parent.resolve() in near for found_at in _locations(found))


def _locations(spec: ModuleSpec) -> list[str]:
    return [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else [])]


def _written_project(folder: Path, package: str, texts: Mapping[str, str | bytes]) -> list[Path]:
    wheel = installed_wheel()
    words = {
        "project": NOT_IN_NAME.sub("-", folder.resolve().name).strip("-._") or package,
        "package": package,
        "install": "--find-links wheels " if wheel else "",
        "carried": templates.CARRIED if wheel else "",
    }
    files = {
        "pyproject.toml": templates.PYPROJECT,
        "Makefile": templates.MAKEFILE,
        "README.md": templates.README,
        ".gitignore": templates.GITIGNORE,
        ".github/workflows/test.yml": templates.CI,
    }
    paths = written(folder, {path: Template(text).substitute(words) for path, text in files.items()} | dict(texts))
    if wheel is not None:
        paths += written(folder, {f"wheels/{wheel[0]}": wheel[1]})
    with imported(folder, package) as module:
        template = file_text(SamTemplate(Deployment(module.app, module)).content)
    return [*paths, *written(folder, {"template.yaml": template})]
