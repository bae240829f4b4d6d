"""What the handlers of one version of the code make of items, in a form that two processes can compare."""

import json
from collections.abc import Collection, Mapping
from decimal import localcontext
from typing import Any, NamedTuple

from streamfold.commit.triage import explained
from streamfold.derivations.derivation import contribution
from streamfold.engines import StoredItem
from streamfold.errors import RecordError, is_fatal
from streamfold.ledger.contribution import Contribution, RowPart
from streamfold.ledger.entries import PLAIN_ENTRY, alone
from streamfold.ledger.forms import Forms
from streamfold.records.change import image_of, item_key
from streamfold.records.encoded import to_json
from streamfold.records.images import hidden
from streamfold.records.numbers import EXACT
from streamfold.records.values import decode, encode
from streamfold.routes.application import Application
from streamfold.writes.guarded import RowKey

RowsByPlace = Mapping[str, StoredItem]
"""Rows by their keys as JSON, with the attributes that readers would see if the item were their only one."""


class RaisedError(NamedTuple):
    """What a handler raised."""

    type: str
    message: str


class SideRows(NamedTuple):
    """What one version of the code makes of one item, by handler."""

    rows: Mapping[str, RowsByPlace]
    raised: Mapping[str, RaisedError]

    def line(self) -> str:
        """The same as a line of JSON."""
        return to_json({"rows": self.rows, "raised": self.raised})

    @classmethod
    def of(cls, line: str) -> "SideRows":
        """The value of a line. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for another text."""
        found = json.loads(line)
        return cls(found["rows"], {name: RaisedError(*each) for name, each in found["raised"].items()})


def side_rows(
    app: Application, forms: Forms, table: str, image: StoredItem, handlers: Collection[str] | None = None
) -> SideRows:
    """What handlers make of a stored item; those of views, indexes and derived attributes.

    forms: of attributes, as far as they are known; it learns.
    handlers: only these; None: all.
    """
    rows: dict[str, RowsByPlace] = {}
    raised: dict[str, RaisedError] = {}
    for route, fields in _listeners(app, table, image):
        if not route.kind.contributes or (handlers is not None and route.name not in handlers):
            continue
        try:
            with localcontext(EXACT):
                rows[route.name] = _shown(contribution(route, image_of(image), fields, forms))
        except Exception as error:
            if is_fatal(error):
                raise
            found = explained(route, error)
            raised[route.name] = RaisedError(type(found).__name__, str(found))
    return SideRows(rows, raised)


def row_at(place: str) -> RowKey:
    """The key of a row, of its text."""
    table, *values = json.loads(place)
    return (table, *(None if value is None else decode(value) for value in values))


def _listeners(app: Application, table: str, image: StoredItem) -> list[tuple[Any, Any]]:
    if table not in app.tables:
        return []
    try:
        names = app.tables[table].attributes
        item = item_key({name: image[name] for name in names}, app.tables[table])
    except (KeyError, RecordError):
        return []  # this code declares other key attributes
    return [(each.route, fields) for each, fields in app.listeners(item)]


def _shown(rows: Contribution) -> RowsByPlace:
    return {_place(row): _visible(part) for row, part in rows.items()}


def _place(row: RowKey) -> str:
    table, *values = row
    return to_json([table, *(None if value is None else encode(value) for value in values)])  # type: ignore[arg-type]


def _visible(part: RowPart) -> StoredItem:
    """The attributes of a row of one contribution. A sum of 0 and none are alike."""
    values: dict[str, Any] = {name: amount for name, amount in part.amounts.items() if amount}
    values |= part.plain or {}
    for name, held in part.ordered.items():
        made = alone(held)
        values |= made if name == PLAIN_ENTRY else {name: made}
    found: StoredItem = encode({name: value for name, value in values.items() if not hidden(name)})["M"]
    return found
