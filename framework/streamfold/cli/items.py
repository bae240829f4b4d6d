"""Keys of items: as they are typed, as lines of a file, and as commands print them."""

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from streamfold.cli.output import echo
from streamfold.cli.rows import name_text
from streamfold.derivations.audit.kind import typed_values
from streamfold.engines import Engine
from streamfold.errors import RecordError, SettingsError, parts_text
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN, is_in_state
from streamfold.records.change import ItemKey, image_of, item_key
from streamfold.records.encoded import to_json
from streamfold.records.values import encode
from streamfold.replay.files import LINE_BYTES_MAX, bounded_lines
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

FORMS = (
    "One key a line: PARTITION, a tab and SORT; or JSON, "
    '{"table": "main", "key": {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}}}.'
)
"""The forms of a line, for the help of options."""


def item_text(item: ItemKey) -> str:
    """An item's or a row's key for a person."""
    table, *values = item
    name = " / ".join(name_text(value) for value in values if value is not None)
    return name if table == MAIN.name else f"{table}: {name}"


def command_key(item: ItemKey) -> str:
    """An item's key as the arguments of a command."""
    return shlex.join(str(value) for value in item[1:] if value is not None)


def tell_absent(engine: Engine, item: ItemKey) -> None:
    """Tells that there is no item with a key that was typed: it may be a wrong one."""
    if not image_of(engine.read_source(item)):
        echo(
            f"There is no item {item_text(item)} now: check its key, unless it was removed.",
            err=True,
        )


def row_text(row: RowKey) -> str:
    """A row's key for a person. The row may be an item of the state."""
    return " / ".join(name_text(value) for value in row[1:]) if is_in_state(row) else item_text(row)


def row_object(app: Application, row: RowKey) -> dict[str, Any]:
    """A row's key as JSON; of an item of the state, its two keys."""
    return {"state": list(row[1:])} if is_in_state(row) else item_object(app, row)


def item_object(app: Application, item: ItemKey) -> dict[str, Any]:
    """An item's key as JSON: its table, and its key attributes in DynamoDB JSON."""
    names = app.tables[item[0]].attributes
    return {"table": item[0], "key": {name: encode(value) for name, value in zip(names, item[1:], strict=False)}}


def item_line(app: Application, item: ItemKey) -> str:
    """The same as a line of a file of keys."""
    return to_json(item_object(app, item))


def typed_item(app: Application, routes: Sequence[Route], partition: str, sort: str | None) -> ItemKey:
    """The item with a key as it was typed, which one of these handlers reads. Raises ``SettingsError``."""
    keys = read_keys(routes)
    found = [item for item in typed_keys(keys, partition, sort) if app.listeners(item)]
    name = parts_text((partition, sort))
    if not found:
        templates = ", ".join(dict.fromkeys(key.template for key in keys)) or "an item that a handler reads"
        bears = typed_keys([each.key for route in routes for each in route.kind.listens(route)], partition, sort)
        what = (
            f"The item {name} only bears what handlers derive of others"
            if bears
            else f"No handler reads the item {name}"
        )
        raise SettingsError(f"{what}: expected PARTITION and SORT of {templates}.")
    if len(found) > 1:
        tables = " and ".join(item[0] for item in found)
        raise SettingsError(
            f"Items of tables {tables} may have the key {name}: say which in a file, --keys FILE with the line "
            f"{item_line(app, found[0])}."
        )
    return found[0]


def read_keys(routes: Iterable[Route]) -> list[Key]:
    """The keys of the items that handlers are called with; not those of items that only bear attributes."""
    return [each.key for route in routes for each in route.kind.listens(route) if each.called]


def typed_keys(keys: Sequence[Key], partition: str, sort: str | None) -> list[ItemKey]:
    """The keys, each once, that typed texts are of some templates."""
    found: dict[ItemKey, None] = {}
    for key in keys:
        values = typed_values(key, partition, sort)
        if values is not None and key.match_values(*values) is not None:
            found[(key.table.name, *values)] = None
    return list(found)


def lines_of(file: Path, option: str) -> Iterator[str]:
    """The lines of the file that an option names, read in pieces. Raises ``SettingsError`` where it cannot be read."""
    why = ""
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(bounded_lines(stream), 1):
                if line is None:
                    why = f"its line {number} is longer than {LINE_BYTES_MAX:,} bytes"
                    break
                # some editors begin a file with a mark
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeError:
        why = "it is no UTF-8 text"
    if why:
        raise SettingsError(f"{option} {file} cannot be read: {why}. Name another file.")


def items_in(app: Application, file: Path) -> Iterator[ItemKey]:
    """The items of the file of ``--keys``. Raises ``SettingsError`` with the line that is none."""
    for number, line in enumerate(lines_of(file, "--keys"), 1):
        if line.strip():
            yield _item(app, line.removesuffix("\r"), f"{file}:{number}")


def item_of(app: Application, value: Any, place: str) -> ItemKey:
    """The item of an object as ``item_object`` gives it. Raises ``SettingsError``."""
    try:
        name, key = value.get("table", _only_table(app)), value.get("key", value)
        return item_key(key, app.tables[name])
    except (AttributeError, KeyError, TypeError, ValueError, RecordError):
        raise SettingsError(f"{place} holds no key of a table of the application. Expected: {FORMS}") from None


def _item(app: Application, line: str, place: str) -> ItemKey:
    if line.lstrip().startswith("{"):
        try:
            return item_of(app, json.loads(line), place)
        except (ValueError, RecursionError):
            raise SettingsError(f"{place} is not JSON. Expected: {FORMS}") from None
    partition, tab, sort = line.partition("\t")
    keys = [each.key for route in app.routes for each in route.kind.listens(route)]
    found = typed_keys(keys, partition, sort if tab else None)
    if len(found) == 1:
        return found[0]
    if found:
        raise SettingsError(f"{place} may be a key of tables {' and '.join(item[0] for item in found)}: give JSON.")
    raise SettingsError(f"{place} holds no key that a handler of the application reads. Expected: {FORMS}")


def _only_table(app: Application) -> str:
    names = list(app.source_tables)
    return names[0] if len(names) == 1 else MAIN.name
