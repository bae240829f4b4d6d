"""``streamfold docs`` prints the pages of the documentation that belong to this version, which are in the package."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

import click

from streamfold.cli import shell
from streamfold.cli.output import Grid, Printed, Report
from streamfold.cli.session import Session
from streamfold.errors import SettingsError

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "docs", PACKAGE.parents[1] / "docs")
"""The pages in the wheel, and in a clone of the repository."""
DECISIONS = "decisions"
"""The folder of pages that explain the code, which the wheel leaves out."""
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def pages() -> dict[str, Path]:
    """The pages by name: ``times``, ``how/a-leaderboard``."""
    folder = next((each for each in FOLDERS if each.is_dir()), FOLDERS[0])
    found = sorted(file for file in folder.rglob("*.md") if file.parent.name != DECISIONS)
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in found}


@shell.command(
    "docs",
    "Print a page of the documentation.",
    click.argument("page", required=False),
    shell.flag("--path", "Print the path of the page's file."),
    shell.belongs("--path", "PAGE"),
    shell.json_flag("Print the names and files of the pages, or the file of PAGE, as one JSON object."),
)
def docs(opened: Session) -> Report:
    """Print a page of the documentation, which is part of this version of the package. Without PAGE, list the pages.

    \b
    Examples:
      streamfold docs
      streamfold docs times
      streamfold docs how/a-leaderboard | less
    """
    found, name = pages(), opened.given.page
    if not found:
        raise SettingsError(f"There are no pages in {FOLDERS[0]}: install streamfold again, from its wheel.")
    if name is None:
        return Report(_listed(found), {name: str(file) for name, file in found.items()})
    file = found.get(name.removeprefix("docs/").removesuffix(".md"))
    if file is None:
        near = get_close_matches(name, found, 1)
        instead = f"did you mean {near[0]!r}?" if near else "streamfold docs lists them."
        raise SettingsError(f"There is no page {name!r}: {instead}")
    return Report(
        [str(file) if opened.given.path else file.read_text("utf-8").rstrip()], {"page": name, "file": str(file)}
    )


def _listed(found: dict[str, Path]) -> Iterator[Printed]:
    titles = {name: TITLE.search(file.read_text("utf-8")) for name, file in found.items()}
    yield Grid(("page", "title"), [(name, title[1] if title else "") for name, title in titles.items()])
