"""``streamfold new`` makes an application in an empty folder, or adds a handler to the application of this folder."""

from pathlib import Path
from shlex import quote
from typing import Any

import click

from streamfold.cli import shell
from streamfold.cli.output import Report, counted
from streamfold.cli.session import Session
from streamfold.errors import SettingsError
from streamfold.starter.chart import Chart
from streamfold.starter.project import TEMPLATES, new_handler, new_project, project_from
from streamfold.starter.proposal import Proposal

UNSURE_SHOWN_MAX = 20
"""Doubts that are printed; all are comments of the keys and types, and in the JSON."""
HANDLER = "handler"
"""The first argument that asks for a handler; a folder of that name is ./handler."""


@shell.command(
    "new",
    "Make an application, or add a handler to one.",
    click.argument("folder", metavar="DIR|handler", callback=shell.utf8),
    click.argument("handler", metavar="[NAME]", required=False, callback=shell.utf8),
    shell.choice(
        "--template", TEMPLATES, "What the application holds: one view, or the orders of a shop.", default="blank"
    ),
    shell.value(
        "--from",
        "FILE",
        "Propose the keys, types and a recording from a recorded file, or from an export's manifest-files.json.",
        "source",
        callback=shell.utf8,
    ),
    shell.flag("--keep-values", "With --from: the recording has the values as they are."),
    shell.value("--keys", "PK[,SK]", "With --from: the names of the table's key attributes, if they are not found."),
    shell.value("--package", "NAME", "The package of the application. Default: the folder's name."),
    shell.refuses("--from", "--template", why="--from proposes an application of its own: give it without {other}."),
    shell.belongs("--keep-values", "--from"),
    shell.belongs("--keys", "--from"),
    shell.APPLICATION,
    shell.json_flag(),
)
def new(opened: Session) -> Report:
    """Make an application in the folder DIR, which must be new or empty: a package with handlers, one test of each
    sort, a recording, a template, a Makefile, a file for CI and a README.

    With --from, its keys and the types of its items are proposed from records, and the recording has some hundred of
    these. Values are replaced, one by the same other everywhere, by a secret that is not kept; the output lists what
    stays.

    new handler NAME adds a handler to the application of this folder: its keys, its function, its test and an event.

    \b
    Examples:
      streamfold new my_shop --template shop
      streamfold new my_shop --from day.jsonl.gz
      cd my_shop && python -m pytest
      streamfold new handler refunds
    """
    given = opened.given
    if given.folder == HANDLER:
        return _one_more_handler(given.handler, str(given.application))
    if given.handler is not None:
        raise SettingsError(f"new got {given.handler!r} after DIR: expected streamfold new DIR, or new handler NAME.")
    folder = Path(given.folder)
    if given.source is None:
        files, proposal = new_project(folder, given.template, given.package), None
    else:
        keys = [name for name in (given.keys or "").split(",") if name]
        files, proposal = project_from(folder, given.source, given.package, keep_values=given.keep_values, keys=keys)
    package = next(file.parent for file in files if file.name == "__init__.py")
    links = "--find-links wheels " if any(file.parent.name == "wheels" for file in files) else ""
    begin = [
        "Next:",
        f"  cd {quote(str(folder))}",
        f"  pip install {links}'.[testing]'",
        "  python -m pytest",
        f"  streamfold routes  # pyproject.toml names the application, {package}:app",
    ]
    document: dict[str, Any] = {"files": list(map(str, files))}
    lines = [f"Wrote {folder / file}" for file in files]
    if proposal is not None:
        lines += _proposed(proposal, package)
        document |= _document(proposal)
    return Report([*lines, *begin], document)


def _one_more_handler(name: str | None, application: str) -> Report:
    if name is None:
        raise SettingsError("new handler has no NAME: expected the name of a handler, streamfold new handler refunds.")
    files = new_handler(Path(), name, application)
    lines = [f"Wrote {file}" for file in files]
    return Report(
        [*lines, "Next:", "  python -m pytest", "  make template  # writes template.yaml again"],
        {"files": list(map(str, files))},
    )


def _proposed(proposal: Proposal, package: Path) -> list[str]:
    """What was proposed, and what stays in the recording."""
    sample, keys = proposal.sample, proposal.keys
    begin = f"Proposed {counted(len(keys), 'key')} in {package / 'keys.py'} from {counted(sample.read, 'record')}"
    unsure = [f"{name}: {note}" for name, note in proposal.unsure]
    doubts = f"{counted(len(unsure), 'doubt')}, each a comment there" if unsure else "nothing is unsure"
    lines = [f"{begin}: {doubts}."]
    lines += [f"  unsure: {each}" for each in unsure[:UNSURE_SHOWN_MAX]]
    if len(unsure) > UNSURE_SHOWN_MAX:
        lines.append(f"  and {len(unsure) - UNSURE_SHOWN_MAX:,} more, which are comments there")
    lines += [f"  {_table(each)}" for each in proposal.charts]
    lines += [f"Left out: {count:,} {reason}." for reason, count in sample.skipped.items()]
    if proposal.kept is None:
        return [*lines, f"The {proposal.records} records of events/recorded.jsonl have their values: --keep-values."]
    lines.append(
        f"Replaced the values of the {proposal.records} records in events/recorded.jsonl. These stay, look at them:"
    )
    lines.append(f"  literals: {', '.join(sorted(proposal.literals)) or 'none'}")
    lines += [f"  {path}: {', '.join(values)}" for path, values in proposal.kept.values.items()]
    return lines


def _table(chart: Chart) -> str:
    """What a table was taken to have. Records give neither the roles of its key attributes nor its time to live."""
    table = chart.table
    sort = "no sort key" if table.sort is None else f"sort key {table.sort}"
    ttl = "no time to live" if table.ttl is None else f"time to live {table.ttl}"
    tenant = "" if chart.tenant is None else f", tenants by {{{chart.tenant}}}"
    return f"table {table.name}: partition key {table.partition}, {sort}, {ttl}{tenant}"


def _document(proposal: Proposal) -> dict[str, Any]:
    tables = [
        {
            "name": each.table.name,
            "partition": each.table.partition,
            "sort": each.table.sort,
            "ttl": each.table.ttl,
            "tenant": each.tenant,
            "unsure": each.notes,
        }
        for each in proposal.charts
    ]
    return {
        "tables": tables,
        "unsure": [{"name": name, "note": note} for name, note in proposal.unsure],
        "keys": [{"name": key.name, "template": key.key.template, "unsure": key.notes} for key in proposal.keys],
        "records": {"read": proposal.sample.read, "recorded": proposal.records, "skipped": proposal.sample.skipped},
        "literals": sorted(proposal.literals),
        "kept": None if proposal.kept is None else proposal.kept.values,
    }
