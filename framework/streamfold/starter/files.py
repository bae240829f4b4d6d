"""The files of a new application: written, imported, a recording of a table, and the wheel of streamfold itself.

No file is ever overwritten: everything is checked before the first one is written.
"""

import io
import keyword
import re
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from importlib import import_module, invalidate_caches
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from streamfold.errors import SettingsError, StreamfoldError, reason
from streamfold.records.encoded import to_json
from streamfold.testing.table import TableTwin

NAME_LETTERS_MAX = 40
"""A handler's name becomes literals of its keys, which every item of it has."""
PACKAGE = Path(__file__).parents[1]
PAGES = (PACKAGE / "docs", PACKAGE.parents[1] / "docs")
"""The pages of the documentation in an installed wheel, and in a clone of the repository."""
OF_AN_INSTALLATION = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")
"""Files that pip writes when it installs a wheel, and that are not part of it (Binary distribution format)."""
DATE = (1980, 1, 1, 0, 0, 0)
"""The date of each file, the first that a ZIP archive can have: equal files make an equal wheel."""


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
    record = "".join(f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in files.items())
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


def _digest(content: bytes) -> str:
    return urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
