"""Keys and stored items: as they are typed, as lines of a file, and as commands print them."""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.cli.output import Grid, note
from streamfold.derivations.expected import MadeOf
from streamfold.engines.protocol import Engine, StoredItem
from streamfold.errors import EngineError, RecordError, SettingsError, joined_key, printable, shortened
from streamfold.keys.field import datetime_text
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS, MAIN, Table, is_in_state
from streamfold.records.change import ItemKey, image_of, item_key, typed_values
from streamfold.records.images import hidden
from streamfold.records.values import decode, encode, sortable, to_json
from streamfold.replay.files import LINE_BYTES_MAX, bounded_lines
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

KEY_LINES = (
    "One key a line: PARTITION, a tab and SORT; or JSON, "
    '{"table": "main", "key": {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}}}.'
)
"""The two formats of a line, for help texts and messages."""
SAMPLE_ROWS = 3
SAMPLE_ROWS_MAX = 100
SCANNED_ITEMS_MAX = 2000
"""Items that are read for the samples of a target, in about 20 ms. Without a bound, a sample of a rare target would
read the whole table."""
TEXT_LENGTH_MAX = 60
WORDS = {None: "null", True: "true", False: "false"}
LIKE_ANOTHER = re.compile(r"|null|true|false|nothing|\(redacted\)|-?[0-9.]+(E[-+]?[0-9]+)?|\s.*|.*\s", re.DOTALL)
"""Text that a reader would take for another value, or for the mark that a history prints for no value."""
CHANGED = {"old", "new"}
"""The sides of an attribute's change in a history row."""


def name_text(value: Any) -> str:
    """A name or a key for a person: printable, without its middle if it is long, never quoted."""
    return shortened(printable(str(value)), TEXT_LENGTH_MAX)


def text(value: Any) -> str:
    """A value for a person: without types, without its middle if it is long, and quoted only if the text looks like
    another value.
    """
    return name_text(_plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        if value and value.keys() <= CHANGED:
            return " -> ".join(_plain(value[side]) if side in value else "nothing" for side in ("old", "new"))
        sides = value["redacted"] if value.keys() == {"redacted"} else None
        if isinstance(sides, list) and CHANGED.issuperset(map(str, sides)):
            return "(redacted)"
        return "{" + ", ".join(f"{name}: {_plain(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list | set):
        members = sorted(value, key=str) if isinstance(value, set) else value
        return f"[{', '.join(map(_plain, members))}]"
    if isinstance(value, str):
        return f'"{value}"' if LIKE_ANOTHER.fullmatch(value) else value
    return WORDS[value] if value is None or isinstance(value, bool) else str(value)


def values_text(values: Mapping[str, Any], between: str = "  ") -> str:
    """Names with their values in one line."""
    return between.join(f"{name_text(name)}={text(value)}" for name, value in values.items())


def item_text(item: ItemKey) -> str:
    """An item's or a row's key for a person."""
    table, *values = item
    name = " / ".join(name_text(value) for value in values if value is not None)
    return name if table == MAIN.name else f"{table}: {name}"


def row_text(row: RowKey) -> str:
    """The key of a row, or of an item of the state, for a person."""
    return state_text(row[1:]) if is_in_state(row) else item_text(row)


def state_text(key: Sequence[Any]) -> str:
    """The two keys of an item of the state for a person."""
    return " / ".join(map(name_text, key))


def command_key(item: ItemKey) -> str:
    """The PARTITION and SORT of a command, quoted for a shell."""
    return shlex.join(str(value) for value in item[1:] if value is not None)


def note_absent(engine: Engine, item: ItemKey) -> None:
    """Prints that no item has the typed key: the key may be wrong."""
    if not image_of(engine.read_source(item)):
        note(f"There is no item {item_text(item)} now: check its key, unless it was removed.")


def row_object(app: Application, row: RowKey) -> dict[str, Any]:
    """A row's key as JSON; of an item of the state, its two keys."""
    return {"state": list(row[1:])} if is_in_state(row) else item_object(app, row)


def item_object(app: Application, item: ItemKey) -> dict[str, Any]:
    """The table and the key attributes of an item, in DynamoDB JSON."""
    names = app.tables[item[0]].attributes
    return {"table": item[0], "key": {name: encode(value) for name, value in zip(names, item[1:], strict=False)}}


def typed_item(app: Application, routes: Sequence[Route], partition: str, sort: str | None) -> ItemKey:
    """The item with a typed key that one of these handlers reads. Raises ``SettingsError`` for none or several."""
    keys = read_keys(routes)
    found = [item for item in typed_keys(keys, partition, sort) if app.listeners(item)]
    name = joined_key((partition, sort))
    if not found:
        templates = ", ".join(dict.fromkeys(key.template for key in keys)) or "an item that a handler reads"
        other = typed_keys([each.key for route in routes for each in route.kind.subscriptions(route)], partition, sort)
        what = f"The item {name} only has attributes that handlers derive from others"
        what = what if other else f"No handler reads the item {name}"
        raise SettingsError(f"{what}: expected PARTITION and SORT of {templates}.")
    if len(found) > 1:
        tables = " and ".join(item[0] for item in found)
        raise SettingsError(
            f"Items of tables {tables} may have the key {name}: say which in a file, --keys FILE with the line "
            f"{to_json(item_object(app, found[0]))}."
        )
    return found[0]


def read_keys(routes: Iterable[Route]) -> list[Key]:
    """The keys of the items that handlers are called with. Items that only have derived attributes are left out."""
    return [each.key for route in routes for each in route.kind.subscriptions(route) if each.called]


def made_of_text(source: MadeOf, at: str = " at") -> str:
    return f"{item_text(source.item)}{at} version {name_text(source.version or '-')}"


def made_of_object(app: Application, source: MadeOf) -> dict[str, Any]:
    return {**source._asdict(), "item": item_object(app, source.item)}


def typed_keys(keys: Iterable[Key], partition: str, sort: str | None) -> list[ItemKey]:
    """The keys that the typed texts can mean under these templates, each once."""
    found: dict[ItemKey, None] = {}
    for key in keys:
        values = typed_values(key, partition, sort)
        if values is not None and key.match_values(*values) is not None:
            found[(key.table.name, *values)] = None
    return list(found)


def lines_of(file: Path, option: str) -> Iterator[str]:
    """The lines of the file that an option names, read in pieces. Raises ``SettingsError`` if it cannot be read."""
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
    """The items of the file of ``--keys``. Raises ``SettingsError`` with the number of a bad line."""
    keys = [each.key for route in app.routes for each in route.kind.subscriptions(route)]
    for number, line in enumerate(lines_of(file, "--keys"), 1):
        where = f"{file}:{number}"
        if line.lstrip().startswith("{"):
            try:
                yield item_of(app, json.loads(line), where)
            except (ValueError, RecursionError):
                raise SettingsError(f"{where} is not JSON. Expected: {KEY_LINES}") from None
        elif line.strip():
            partition, tab, sort = line.removesuffix("\r").partition("\t")
            found = typed_keys(keys, partition, sort if tab else None)
            if len(found) > 1:
                tables = " and ".join(item[0] for item in found)
                raise SettingsError(f"{where} may be a key of tables {tables}: give JSON.")
            if not found:
                raise SettingsError(
                    f"{where} holds no key that a handler of the application reads. Expected: {KEY_LINES}"
                )
            yield found[0]


def item_of(app: Application, value: Any, where: str) -> ItemKey:
    """The item of an object as ``item_object`` gives it. Raises ``SettingsError`` for any other value."""
    names = list(app.source_tables)
    try:
        name = value.get("table", names[0] if len(names) == 1 else MAIN.name)
        return item_key(value.get("key", value), app.tables[name])
    except (AttributeError, KeyError, TypeError, ValueError, RecordError):
        raise SettingsError(f"{where} holds no key of a table of the application. Expected: {KEY_LINES}") from None


def present(items: Iterable[StoredItem], *, raw: bool = False) -> Iterator[StoredItem]:
    """The items that readers see, without the framework's attributes; with ``raw`` all of them as they are."""
    for item in items:
        if raw:
            yield item
        elif item.get(CONTRIBUTORS) != {"N": "0"}:
            yield {name: value for name, value in item.items() if not hidden(name)}


class Expiry:
    """Leaves out rows of a local state that have expired by its clock. DynamoDB would have removed them."""

    def __init__(self, app: App, engine: Engine) -> None:
        self.app = app
        self.seconds = 0.0 if engine.own_stream is None else engine.own_stream.clock_seconds
        self.left_out = 0  # rows so far

    def __str__(self) -> str:
        return f"by {datetime_text(datetime.fromtimestamp(int(self.seconds), UTC), 0)}, the time of the newest record,"

    def remaining(self, table: Table, rows: Iterable[StoredItem]) -> Iterator[StoredItem]:
        """The rows of a table that have not expired."""
        name = self.app.tables[table.name].ttl
        for row in rows:
            expires = row.get(name, {}).get("N") if name is not None else None
            if expires is not None and Decimal(expires) < self.seconds:
                self.left_out += 1
            else:
                yield row


def key_values(table: Table, item: StoredItem) -> tuple[Any, Any]:
    """The values of an item's key. Raises ``EngineError`` for an item without a key, which only a damaged state has."""
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
    """The items that match one of these templates."""
    own = [key for key in keys if key.table.name == table.name]
    return (item for item in items if any(key.match_values(*key_values(table, item)) is not None for key in own))


def derived_items(app: App, table: Table, items: Iterable[StoredItem], *, derived: bool = True) -> Iterator[StoredItem]:
    """The items whose key is one of a declared target; with ``derived=False`` the others."""
    return (item for item in items if app.derived((table.name, *key_values(table, item))) == derived)


class Sample(NamedTuple):
    """Some rows of a target."""

    target: Key
    rows: list[StoredItem]
    ended_after: int | None  # the search ended after so many items; None: all were read
    expired: str | None = None  # since when rows have expired that are left out; None: none has


def samples(app: App, engine: Engine, most: int) -> Iterator[Sample]:
    """Up to so many rows of each target."""
    for target in dict.fromkeys(key for route in app.routes for key in route.into):
        near = items_near(app, engine, target)
        expiry = Expiry(app, engine)
        found = present(keyed_items([target], target.table, islice(near, SCANNED_ITEMS_MAX)))
        rows = list(islice(expiry.remaining(target.table, found), most))
        ended_early = len(rows) < most and next(near, None) is not None
        yield Sample(target, rows, SCANNED_ITEMS_MAX if ended_early else None, str(expiry) if expiry.left_out else None)


def items_near(app: App, engine: Engine, key: Key) -> Iterator[StoredItem]:
    """The items of a key and some of its neighbours, sorted; the whole table if the store cannot seek by prefix.

    No source item sorts between the rows of a target.
    """
    if engine.by_prefix is not None:
        begins = (part.begins for part in key.parts)
        return engine.by_prefix.items_from(key.table, *begins, derived=any(key in route.into for route in app.routes))
    return engine.items(key.table)


def item_grid(table: Table, items: Iterable[StoredItem], known: Collection[str] = ()) -> Grid:
    """Keys and attributes of items, but for attributes that are ``known``."""
    names = table.attributes
    left_out = {*names, *known}

    def row(item: StoredItem) -> list[str]:
        others = {name: decode(value) for name, value in sorted(item.items()) if name not in left_out}
        return [*(name_text(decode(item[name])) for name in names), values_text(others)]

    return Grid([*names, "attributes"], map(row, items), long=True)
