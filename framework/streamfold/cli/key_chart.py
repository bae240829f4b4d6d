"""The key chart: handlers with the keys that they read and write, as a table, or as lines where that is too wide."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.cli.grids import is_too_wide, print_grid
from streamfold.cli.output import echo
from streamfold.keys.key import Key
from streamfold.routes.route import GROUP, RETRY, SOURCE, Route

COLUMNS = (
    "sources",
    "parts",
    "handler",
    "group",
    "kind",
    "targets",
    "guard",
    "on_error",
    "partial_since",
    "declared_at",
)
DEFAULTS = {"parts": None, "group": GROUP, "on_error": str(RETRY), "partial_since": None}
"""What need not be said where it is so of every handler: a terminal is narrow."""
WORDS = {"group": "group ", "guard": "guard ", "on_error": "on error ", "partial_since": "partial since "}
"""What stands before a value that does not tell what it is."""
Described = Mapping[str, Any]
"""What the chart says of a handler, by column."""


def described(route: Route) -> dict[str, Any]:
    """What the chart says of a handler, but for what a state knows of it."""
    kind = route.kind
    parts = [place_of(each.key) for each in kind.listens(route) if each.called and each.role != SOURCE]
    return {
        "sources": [place_of(key) for key in route.sources],
        "handler": route.name,
        "group": route.group,
        "kind": route.kind.name,
        "targets": [
            *map(place_of, dict.fromkeys((*route.writes, *kind.touches(route)))),
            *kind.outside_places(route),
        ],
        "guard": route.guard,
        "on_error": str(route.policy),
        "declared_at": os.path.relpath(route.declared_at),
        **({"parts": parts} if parts else {}),
    }


def print_chart(rows: Sequence[Described]) -> None:
    """Prints the chart. Columns in which every handler has the default are left out."""
    names = [name for name in COLUMNS if any(row.get(name) != DEFAULTS.get(name) for row in rows)]
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    headings = [name.replace("_", " ") for name in names]
    if is_too_wide(headings, cells):
        _print_lines(names, rows)
    else:
        print_grid(headings, cells)


def _print_lines(names: Sequence[str], rows: Sequence[Described]) -> None:
    """Prints a handler in a few lines: what it is, what it reads, and behind arrows what it writes."""
    said = [name for name in names if name not in ("sources", "parts", "handler", "targets")]
    for row in rows:
        told = [f"{WORDS.get(name, '')}{row[name]}" for name in said if row.get(name)]
        echo(f"{row['handler']}  ({', '.join(told)})")
        for source in (*row["sources"], *row.get("parts", ())):
            echo(f"    {source}")
        for target in row["targets"]:
            echo(f"    -> {target}")


def _cell(value: Any) -> str:
    return "\n".join(value) if isinstance(value, list) else "" if value is None else str(value)


def place_of(key: Key) -> str:
    """A template, with its table unless that is the one that needs no name."""
    return key.template if key.table.name == "main" else f"{key.table.name}: {key.template}"
