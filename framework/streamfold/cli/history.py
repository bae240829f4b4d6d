"""``streamfold history``: the life of one item, change by change, or as it was at a time."""

from collections.abc import Mapping
from typing import Any

import click

from streamfold.cli.engines import Store, application_and_settings, open_store, state_options
from streamfold.cli.grids import print_grid
from streamfold.cli.histories import HistoryRow, audited, handler_option, key_attributes, readable, rows_of, time_option
from streamfold.cli.output import echo
from streamfold.cli.rows import name_text, text, typed_key
from streamfold.cli.shared_options import check_one
from streamfold.derivations.audit.history import ItemAsOf, item_as_of
from streamfold.errors import parts_text
from streamfold.records.encoded import to_json
from streamfold.records.values import encode

SIDES = ("old", "new")
NO_TIMES = "Unknown: no row of {name} has a time, because the records of its changes had none."
NO_ROWS = "No rows: no change of {name} was recorded, or its rows have expired. Check the key."


@click.command("history", short_help="Show the life of one item, or the item as it was.")
@click.argument("partition", callback=typed_key)
@click.argument("sort", required=False, callback=typed_key)
@state_options
@handler_option
@click.option("--at", metavar="TIME", help="The item as it was then, after all changes of that second.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The last N changes only.")
@click.option(
    "--json", "json_output", is_flag=True, help="Print one change a line, in DynamoDB JSON; with --at, one object."
)
def command(
    partition: str,
    sort: str | None,
    application: str,
    store: Store,
    tables: tuple[str, ...],
    handler: str | None,
    at: str | None,
    limit: int | None,
    json_output: bool,
) -> None:
    """Show what an audit recorded of the item with the key PARTITION and SORT, oldest change first.

    \b
    Examples:
      streamfold history ORDER#1042 METADATA
      streamfold history ORDER#1042 METADATA --at 2026-03-01T10:00:00Z
      streamfold history ORDER#1042 METADATA --engine dynamodb --table main=shop --json
    """
    check_one({"--at": at, "--limit": limit})
    time = time_option("--at", at)
    app, settings = application_and_settings(application, tables)
    found = audited(app, partition, sort, handler)
    rows = rows_of(open_store(app, settings, store), found)
    name = parts_text((partition, sort))
    if time is not None:
        known = item_as_of((readable(found.target, row) for row in rows), time, key_attributes(found))
        if rows and known.exists is None and known.unknown_before is None and not json_output:
            echo(NO_TIMES.format(name=name), err=True)
            return
        echo(to_json(_as_object(known))) if json_output else _print_item(known, name)
        return
    rows = rows[-limit:] if limit else rows
    if json_output:
        for row in rows:
            echo(to_json(encode(row)["M"]))
    elif rows:
        _print(rows)
    else:
        echo(NO_ROWS.format(name=name), err=True)


def _print(rows: list[HistoryRow]) -> None:
    lines = (
        (name_text(row.get("at", "")), _event(row), name_text(row.get("actor", "")), _changes(row)) for row in rows
    )
    if any("actor" in row for row in rows):
        print_grid(("at", "event", "actor", "changes"), lines)
    else:
        print_grid(("at", "event", "changes"), ((at, event, changes) for at, event, _, changes in lines))


def _event(row: HistoryRow) -> str:
    return name_text(row["event"]) + (" (expired)" if row.get("expired") else "")


def _changes(row: HistoryRow) -> str:
    """A line for each attribute that changed."""
    lines = [f"{name_text(name)}: {_difference(entry)}" for name, entry in sorted(row["changes"].items())]
    return "\n".join([*lines, *(["(attributes did not fit the row)"] if "changes" in row.get("left_out", ()) else [])])


def _difference(entry: Mapping[str, Any]) -> str:
    return " -> ".join(_side(entry, side) for side in SIDES)


def _side(entry: Mapping[str, Any], side: str) -> str:
    if side in entry:
        return text(entry[side])
    if side in entry.get("redacted", ()):
        return "(redacted)"
    if side in entry.get("large", {}):
        return _large(entry["large"][side])
    return "nothing"


def _large(value: Mapping[str, Any]) -> str:
    return f"({value['bytes']:,} bytes, SHA-256 {value['sha256']})"


def _print_item(known: ItemAsOf, name: str) -> None:
    if known.exists is None:
        since = known.unknown_before
        none = NO_ROWS.format(name=name)
        echo(f"Unknown before {name_text(since)}, the time of its first row." if since else none, err=True)
        return
    if known.item is None:
        echo(f"It was not there: removed at {name_text(known.at)}.")
        return
    values = {name: text(value) for name, value in known.item.items()}
    values |= dict.fromkeys(known.redacted, "(redacted)")
    values |= {name: _large(value) for name, value in known.large.items()}
    print_grid(("attribute", "value"), [(name_text(name), value) for name, value in values.items()])
    if known.fields is not None:
        echo(f"Of its attributes, only {', '.join(map(name_text, known.fields))} are recorded.", err=True)
    if not known.whole:
        echo(
            f"It may have had others: what no change has touched since {name_text(known.unknown_before)} is unknown.",
            err=True,
        )


def _as_object(known: ItemAsOf) -> dict[str, Any]:
    return {
        "exists": known.exists,
        "item": None if known.item is None else encode(known.item)["M"],
        "redacted": known.redacted,
        "large": known.large,
        "whole": known.whole,
        "fields": known.fields,
        "version": known.version,
        "at": known.at,
        "unknown_before": known.unknown_before,
    }
