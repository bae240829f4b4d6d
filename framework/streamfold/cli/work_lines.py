"""The lines between the processes of a run: numbers of parts go in, and what became of each page comes out, as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.app import App
from streamfold.cli.engines import as_json
from streamfold.cli.items import item_object, item_of
from streamfold.lifecycle.backfill import Filling, FillingProgress
from streamfold.lifecycle.page import ItemFailed, PageReport

PART, DONE = "part", "done"
COUNTS = ("items", "written", "equal", "uncompared", "rows")


class FailedElsewhere(Exception):  # noqa: N818 - what another process told of an error
    """An error that another process met, as text."""


def error_text(error: Exception) -> str:
    """The type and the message of an error, whichever process met it."""
    return str(error) if isinstance(error, FailedElsewhere) else f"{type(error).__name__}: {error}"


def page_line(app: App, found: FillingProgress) -> str:
    """What became of a page."""
    report = found.report
    failed = [
        item_object(app, each.item) | {"handler": each.handler, "error": error_text(each.error)}
        for each in report.failed
    ]
    counts = {name: getattr(report, name) for name in COUNTS}
    return as_json({"read": found.read, "unkeyed": found.unkeyed, "waits": found.waits, **counts, "failed": failed})


def failed_line(app: App, failed: Sequence[ItemFailed]) -> str:
    """The failed items of a page, told before its cursor moves."""
    return page_line(app, FillingProgress(report=PageReport(failed=list(failed))))


def part_line(part: int, *, done: bool) -> str:
    """That a part is done, or was stopped."""
    return as_json({PART: part, DONE: done})


def add_page(app: App, parts: Filling, told: Mapping[str, Any]) -> None:
    """Adds what another process told of a page to the progress of these parts, and keeps what failed."""
    progress = parts.progress
    failed = [
        ItemFailed(item_of(app, each, "a line of another process"), each["handler"], FailedElsewhere(each["error"]))
        for each in told["failed"]
    ]
    parts.hooks.keep(failed)
    progress.waits = told["waits"]
    progress.unkeyed += told["unkeyed"]
    parts.count(told["read"], PageReport(failed=failed, **{name: told[name] for name in COUNTS}))
