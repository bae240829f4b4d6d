"""Stored items as a command prints them: as their readers see them, or raw."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streamfold.app import App
from streamfold.cli.grids import print_grid
from streamfold.engines import Engine, StoredItem
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.sortable import sortable
from streamfold.key import Key
from streamfold.table import CONTRIBUTORS, Table
from streamfold.values import decode, hidden

SAMPLE_ROWS = 3
SCANNED_ITEMS_MAX = 2000
"""Items looked at for samples in a store that cannot seek by prefix."""
TEXT_LENGTH_MAX = 60


def present(items: Iterable[StoredItem], *, raw: bool = False) -> Iterator[StoredItem]:
    """The items that readers see, without the framework's attributes; with ``raw`` all of them as they are."""
    for item in items:
        if raw:
            yield item
        elif item.get(CONTRIBUTORS) != {"N": "0"}:
            yield {name: value for name, value in item.items() if not hidden(name)}


def key_values(table: Table, item: StoredItem) -> tuple[Any, Any]:
    """The values of an item's key."""
    return decode(item[table.partition]), decode(item[table.sort]) if table.sort else None


def sort_key(table: Table, item: StoredItem) -> tuple[str, str]:
    partition, sort = key_values(table, item)
    return sortable(partition), sortable(sort)


def derived_items(app: App, table: Table, items: Iterable[StoredItem], *, derived: bool = True) -> Iterator[StoredItem]:
    """The items whose key is one of a declared target; with ``derived=False`` the others."""
    return (item for item in items if app.derived((table.name, *key_values(table, item))) == derived)


def samples(app: App, engine: Engine) -> Iterator[tuple[Key, list[StoredItem]]]:
    """Up to three rows of each target."""
    for target in dict.fromkeys(key for route in app.routes for key in route.into):
        rows: list[StoredItem] = []
        for number, item in enumerate(present(_items_near(engine, target))):
            if target.match_values(*key_values(target.table, item)) is not None:
                rows.append(item)
            if len(rows) == SAMPLE_ROWS or number > SCANNED_ITEMS_MAX:
                break
        yield target, rows


def _items_near(engine: Engine, target: Key) -> Iterator[StoredItem]:
    first = target.partition.pieces[0]
    if isinstance(engine, EmbeddedEngine):
        return engine.items_from(target.table, first if isinstance(first, str) else "")
    return engine.items(target.table)


def text(value: Any) -> str:
    """A value for a person: long ones are cut."""
    shown = value if isinstance(value, str) else str(sorted(value, key=str)) if isinstance(value, set) else str(value)
    if not shown.isprintable():
        shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)
    return shown if len(shown) <= TEXT_LENGTH_MAX else shown[: TEXT_LENGTH_MAX - 3] + "..."


def print_items(table: Table, items: Iterable[StoredItem]) -> None:
    """A table of keys and attributes."""
    names = table.attributes
    rows = ([*(text(decode(item[name])) for name in names), _attributes(names, item)] for item in items)
    print_grid([*names, "attributes"], rows)


def _attributes(keys: tuple[str, ...], item: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={text(decode(value))}" for name, value in sorted(item.items()) if name not in keys)
