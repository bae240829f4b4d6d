"""Stored items as a command prints them: as their readers see them, or raw."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

import click

from streamfold.app import App
from streamfold.cli.grids import print_long_grid
from streamfold.cli.output import echo, on_terminal
from streamfold.engines import Engine, Seekable, StoredItem
from streamfold.errors import EngineError, SettingsError, printable, shortened
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS, Table
from streamfold.records.images import hidden
from streamfold.records.values import decode, sortable

SAMPLE_ROWS = 3
SAMPLE_ROWS_MAX = 100
LIMIT_ON_TERMINAL = 50
LIMIT_MAX = 1_000_000_000
"""Of ``--limit``: SQLite and Python count to 2^63 - 1, and no terminal shows more than this."""
SCANNED_ITEMS_MAX = 2000
"""Items that are looked at for the samples of a target: 20 ms. Only others like them, or DynamoDB, have more."""
TEXT_LENGTH_MAX = 60
WORDS = {None: "null", True: "true", False: "false"}
LIKE_ANOTHER = re.compile(r"|null|true|false|nothing|\(redacted\)|-?[0-9.]+(E[-+]?[0-9]+)?|\s.*|.*\s", re.DOTALL)
"""Text that would be taken for another value, or for what a history says where there is none."""
CHANGED = {"old", "new"}
"""The sides of an attribute's change in a history row."""


def typed_key(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Part of a key as it was typed. Raises ``SettingsError`` for bytes that are no text in UTF-8."""
    return _typed(str(parameter.name).upper(), value)


def typed_text(_context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The text or texts of an option, as ``typed_key``."""
    for each in value if isinstance(value, tuple) else [value]:
        _typed(parameter.opts[0], each)
    return value


def _typed(name: str, value: str | None) -> str | None:
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise SettingsError(f"{name} is {value!a}: expected text in UTF-8.") from None
    return value


def print_some(found: Iterator[Any], limit: int | None, show: Callable[[Iterator[Any]], None], nothing: str) -> None:
    """Prints so many of what was found, on a terminal the first of them, and whether there is more."""
    most = LIMIT_ON_TERMINAL if limit is None and on_terminal() else limit
    first = next(found, None)
    if first is None:
        echo(nothing, err=True)
        return
    show(islice(chain([first], found), most))
    if limit is None and next(found, None) is not None:
        echo(f"... and more: the first {most} are shown; --limit N or --json shows others.", err=True)


def present(items: Iterable[StoredItem], *, raw: bool = False) -> Iterator[StoredItem]:
    """The items that readers see, without the framework's attributes; with ``raw`` all of them as they are."""
    for item in items:
        if raw:
            yield item
        elif item.get(CONTRIBUTORS) != {"N": "0"}:
            yield {name: value for name, value in item.items() if not hidden(name)}


def key_values(table: Table, item: StoredItem) -> tuple[Any, Any]:
    """The values of an item's key. Raises ``EngineError`` for an item without one, which no store takes."""
    try:
        return decode(item[table.partition]), decode(item[table.sort]) if table.sort else None
    except KeyError as missing:
        raise EngineError(
            f"An item of table {table.name!r} has no attribute {missing}: the state is damaged. replay --fresh starts "
            "anew."
        ) from None


def sort_key(table: Table, item: StoredItem) -> tuple[str, str]:
    partition, sort = key_values(table, item)
    return sortable(partition), sortable(sort)


def keyed_items(keys: Collection[Key], table: Table, items: Iterable[StoredItem]) -> Iterator[StoredItem]:
    """The items whose key is one of these."""
    own = [key for key in keys if key.table.name == table.name]
    return (item for item in items if any(key.match_values(*key_values(table, item)) is not None for key in own))


def derived_items(app: App, table: Table, items: Iterable[StoredItem], *, derived: bool = True) -> Iterator[StoredItem]:
    """The items whose key is one of a declared target; with ``derived=False`` the others."""
    return (item for item in items if app.derived((table.name, *key_values(table, item))) == derived)


class Sample(NamedTuple):
    """Some rows of a target."""

    target: Key
    rows: list[StoredItem]
    ended_after: int | None  # so many items were looked at, and those behind them were not; None: all were


def samples(app: App, engine: Engine, most: int) -> Iterator[Sample]:
    """Up to so many rows of each target."""
    for target in _targets(app):
        near = items_near(app, engine, target)
        rows = list(islice(present(keyed_items([target], target.table, islice(near, SCANNED_ITEMS_MAX))), most))
        ended_early = len(rows) < most and next(near, None) is not None
        yield Sample(target, rows, SCANNED_ITEMS_MAX if ended_early else None)


def _targets(app: App) -> dict[Key, None]:
    return dict.fromkeys(key for route in app.routes for key in route.into)


def items_near(app: App, engine: Engine, key: Key) -> Iterator[StoredItem]:
    """The items of a key and some of its neighbours, sorted; all of its table where the store cannot seek by prefix.

    No source item stands between the rows of a target.
    """
    if isinstance(engine, Seekable):
        begins = (part.begins for part in key.parts)
        return engine.items_from(key.table, *begins, derived=key in _targets(app))
    return engine.items(key.table)


def name_text(value: Any) -> str:
    """A name or a key for a person: what ``text`` gives, never quoted."""
    return _printable(str(value))


def text(value: Any) -> str:
    """A value for a person: without types, without the middle of what is long, and without quotes but for text that
    looks like something else.
    """
    return _printable(_plain(value))


def _printable(plain: str) -> str:
    return shortened(printable(plain), TEXT_LENGTH_MAX)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        if value and value.keys() <= CHANGED:
            return " -> ".join(_plain(value[side]) if side in value else "nothing" for side in ("old", "new"))
        if value.keys() == {"redacted"} and _is_sides(value["redacted"]):
            return "(redacted)"
        return "{" + ", ".join(f"{name}: {_plain(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list | set):
        members = sorted(value, key=str) if isinstance(value, set) else value
        return f"[{', '.join(map(_plain, members))}]"
    if isinstance(value, str):
        return f'"{value}"' if LIKE_ANOTHER.fullmatch(value) else value
    return WORDS[value] if value is None or isinstance(value, bool) else str(value)


def _is_sides(value: Any) -> bool:
    return isinstance(value, list) and all(side in ("old", "new") for side in value)


def print_items(table: Table, items: Iterable[StoredItem], known: Collection[str] = ()) -> None:
    """A table of keys and attributes, but for those that are ``known``."""
    names = table.attributes
    left_out = {*names, *known}
    rows = ([*(name_text(decode(item[name])) for name in names), _attributes(left_out, item)] for item in items)
    print_long_grid([*names, "attributes"], rows)


def _attributes(left_out: Collection[str], item: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={text(decode(value))}" for name, value in sorted(item.items()) if name not in left_out)
