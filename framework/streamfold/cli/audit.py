"""``streamfold audit verify``: whether history rows are as they were written, and none is missing between two."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import dropwhile
from time import time as now

import click

from streamfold.app import App
from streamfold.cli.engines import REPORTED, Store, application_and_settings, as_json, open_store, state_options
from streamfold.cli.grids import counted
from streamfold.cli.histories import Audited, HistoryRow, all_rows, audited, handler_option, rows_of, time_option
from streamfold.cli.output import echo
from streamfold.cli.rows import typed_key
from streamfold.derivations.audit.history import AT_THE_END, MEANINGS, NOT_FOUND, Finding, behind, findings
from streamfold.engines import Engine
from streamfold.errors import SettingsError, printable
from streamfold.keys.field import datetime_text
from streamfold.records.change import image_of, typed

FINDINGS_KEPT_MAX = 1000


@dataclass(slots=True)
class Checked:
    """What was looked at, and what was found. ``findings`` are the first of them, ``problems`` counts all.

    ``not_found`` says what could not have been.
    """

    not_found: tuple[str, ...]
    items: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)

    def walk(self, found: Audited, rows: list[HistoryRow], key: bytes) -> None:
        """Goes along the history of one item."""
        self.items += 1
        self.rows += len(rows)
        self.add(findings(found.item, rows, key, partial(_has_expired, found.target.table.ttl, now())))

    def add(self, found: Iterable[Finding]) -> None:
        for finding in found:
            self.problems[finding.problem] += 1
            if len(self.findings) < FINDINGS_KEPT_MAX:
                self.findings.append(finding)


@click.group("audit", short_help="Check the histories of items.")
def command() -> None:
    """Check the histories that audits keep. The rows themselves are shown by history.

    \b
    Examples:
      streamfold audit verify ORDER#1042 METADATA
      streamfold audit verify --all --json
    """


@command.command("verify", short_help="Find rows that were forged, and rows that are missing.")
@click.argument("partition", required=False, callback=typed_key)
@click.argument("sort", required=False, callback=typed_key)
@state_options
@handler_option
@click.option("--all", "every", is_flag=True, help="The histories of all items.")
@click.option("--since", metavar="TIME", help="Leave out what is older, for example rows from before there was a key.")
@click.option(
    "--source",
    is_flag=True,
    help="Compare the last row with the item as it is now: finds rows missing at the end, and changes on their way.",
)
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def verify(
    partition: str | None,
    sort: str | None,
    application: str,
    store: Store,
    tables: tuple[str, ...],
    handler: str | None,
    every: bool,
    since: str | None,
    source: bool,
    json_output: bool,
) -> None:
    """Walk along the history of the item with the key PARTITION and SORT, or of all items, and check the digests.

    Needs STREAMFOLD_AUDIT_KEY, the key that the rows were written with. Finds rows that were edited, moved or made up,
    and rows that are missing between two others. What it cannot find: rows that are missing at the beginning or the end
    of a history (the end with --source), or where the item came back to what it was before them. Exit code 1 when
    something was found.

    \b
    Examples:
      streamfold audit verify ORDER#1042 METADATA
      streamfold audit verify --all --since 2026-03-01T00:00:00Z
      streamfold audit verify --all --engine dynamodb --table main=shop --json
    """
    if every == (partition is not None):
        raise SettingsError("Say which histories: PARTITION and SORT of one item, or --all.")
    first = time_option("--since", since)
    app, settings = application_and_settings(application, tables)
    if settings.audit_key is None:
        raise SettingsError(
            "STREAMFOLD_AUDIT_KEY is not set: without the key that the rows were written with, nothing can be checked. "
            "Rows that are written without a key carry no digests."
        )
    opened = open_store(app, settings, store)
    checked = Checked(not_found=tuple(what for what in NOT_FOUND if not (source and what == AT_THE_END)))
    for found, every_row in _histories(opened, app, (partition, sort), handler):
        rows = _since(every_row, first)
        checked.walk(found, rows, settings.audit_key)
        if source:
            checked.add(_behind(opened, found, rows, settings.audit_key))
    _print_json(checked) if json_output else _print(checked)
    if checked.problems:
        sys.exit(REPORTED)


def _histories(
    store: Engine, app: App, key: tuple[str | None, str | None], handler: str | None
) -> Iterable[tuple[Audited, list[HistoryRow]]]:
    partition, sort = key
    if partition is None:
        return all_rows(store, app, handler)
    found = audited(app, partition, sort, handler)
    rows = rows_of(store, found)
    if not rows:
        raise SettingsError(f"Item {typed(found.item)} has no history: nothing was recorded, or all of it is gone.")
    return [(found, rows)]


def _has_expired(ttl: str | None, time: float, row: HistoryRow) -> bool:
    expires = None if ttl is None else row.get(ttl)
    return isinstance(expires, int | Decimal) and expires <= time


def _behind(store: Engine, found: Audited, rows: list[HistoryRow], key: bytes) -> Iterator[Finding]:
    """Whether the last row leaves the item as it is now; of an item whose name does not tell its key, nothing."""
    if found.key is not None:
        finding = behind(found.item, rows, key, found.source.table.name, image_of(store.read_source(found.key)))
        yield from [finding] if finding else []


def _since(rows: list[HistoryRow], time: datetime | None) -> list[HistoryRow]:
    """The rows without those at the beginning that are older."""
    if time is None:
        return rows
    first = datetime_text(time)
    return list(dropwhile(lambda row: str(row.get("at", "")) < first, rows))


def _print(checked: Checked) -> None:
    for finding in checked.findings:
        echo(printable(str(finding)))
    for line in _summary(checked):
        echo(line)


def _summary(checked: Checked) -> Iterator[str]:
    left = checked.problems.total() - len(checked.findings)
    if left:
        yield f"... and {left:,} more."
    found = ", ".join(f"{count:,} {problem}" for problem, count in checked.problems.items()) or "nothing found"
    yield f"{counted(checked.items, 'item')}, {counted(checked.rows, 'row')}: {found}."
    if checked.rows and checked.problems["forged"] == checked.rows:
        yield "Every row is called forged: is STREAMFOLD_AUDIT_KEY the key that they were written with?"
    yield f"Not found in this way: {'; '.join(checked.not_found)}."


def _print_json(checked: Checked) -> None:
    found = [finding._asdict() | {"meaning": MEANINGS[finding.problem]} for finding in checked.findings]
    echo(
        as_json(
            {
                "items": checked.items,
                "rows": checked.rows,
                "problems": checked.problems,
                "findings": found,
                "not_found": checked.not_found,
            }
        )
    )
