"""What one source item contributes through one handler, and its stored form."""

import json
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import Any

from streamfold.errors import damaged
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import STATE
from streamfold.ledger.entries import NOTHING, Entry, HeldByName, HeldEntries
from streamfold.ledger.item import REFERENCE
from streamfold.records.encoded import CANONICAL
from streamfold.records.numbers import Number, number_text
from streamfold.records.value_class import Value, value
from streamfold.records.values import decode
from streamfold.writes.guarded import RowKey


@value
class RowPart(Value):
    """What one item contributes to one row."""

    amounts: dict[str, Number]  # to add
    plain: dict[str, Any] | None  # attributes of a row that is put whole; None in the stored form
    digest: str  # of the plain attributes
    ordered: HeldByName = NOTHING  # entries below the row, by attribute
    names: tuple[str, ...] = ()  # of the plain attributes, kept in the stored form so that they can be removed
    life: str = ""  # of a row that expires: the one to which the item contributes (``ledger.lives``)


NO_PART = RowPart({}, None, "")
KEYS_KEPT_MAX = 1000
"""Keys of rows whose texts are kept: a step asks for each of them several times, and a batch has rows in common."""
IN_STATE = f'["{STATE.name}",'
"""How the text of a row in the state table begins."""
ELSEWHERE = f"\n{REFERENCE}"
"""How a text that is kept elsewhere begins on a line of its own."""
LEFT_STAMP_LETTERS = 8
"""Letters of the stamp before what a step left behind."""

Contribution = dict[RowKey, RowPart]
"""All that one item contributes through one handler, by row."""


# The stored form of a contribution: canonical JSON, one array a row. Equal contributions have equal text.


def stored_text(rows: Contribution) -> str:
    """The canonical text of a contribution; ``""`` for none."""
    if not rows:
        return ""
    if len(rows) == 1:
        ((key, part),) = rows.items()
        return f"[{_stored_row(key, part)}]"
    return f"[{','.join(sorted([_stored_row(key, part) for key, part in rows.items()]))}]"


def _stored_row(key: RowKey, part: RowPart) -> str:
    if len(part.amounts) == 1:
        ((name, amount),) = part.amounts.items()
        amounts = f'{quoted(name)}:"{number_text(amount)}"'
    elif not part.amounts:
        amounts = ""
    else:
        amounts = ",".join([f'{quoted(name)}:"{number_text(amount)}"' for name, amount in sorted(part.amounts.items())])
    if not (part.digest or part.ordered or part.names or part.life):
        return f"[{_stored_key(key)},{{{amounts}}}]"
    entries = f",{_stored_entries(part.ordered)}" if part.ordered else ""
    plain = f",[{','.join([quoted(name) for name in part.names])}]" if part.names else ""
    life = f',"{part.life}"' if part.life else ""
    return f'[{_stored_key(key)},{{{amounts}}},"{part.digest}"{entries}{plain}{life}]'


@lru_cache(KEYS_KEPT_MAX)
def _stored_key(key: tuple[KeyValue | None, ...]) -> str:
    return ",".join([quoted(value) if isinstance(value, str) else _tagged(value) for value in key])


def _stored_entries(ordered: HeldByName) -> str:
    """The ordering of each attribute, and the texts that order its entries, each with what its digest is."""
    held = {
        name: [found.ordering, {order: entry.digest for order, entry in found.entries.items()}]
        for name, found in ordered.items()
    }
    return CANONICAL.encode(held)


def _tagged(value: KeyValue | None) -> str:
    if value is None:
        return "null"
    return f'{{"B":"{value.hex()}"}}' if isinstance(value, bytes) else f'{{"N":"{number_text(value)}"}}'  # type: ignore[arg-type]


def stored_rows(text: str) -> Contribution:
    """The contribution of a stored text. Raises ``EngineError`` for one that is damaged."""
    try:
        return _rows(text)
    except (AttributeError, TypeError, ValueError):
        raise damaged("A ledger item") from None


def _rows(text: str) -> Contribution:
    rows: Contribution = {}
    for table, partition, sort, amounts, *rest in json.loads(text) if text else ():
        key = (table, _untagged(partition), _untagged(sort))
        life = rest.pop() if len(rest) > 1 and isinstance(rest[-1], str) else ""
        entries = rest[1] if len(rest) > 1 and isinstance(rest[1], dict) else None
        rows[key] = RowPart(
            {name: decode({"N": text}) for name, text in amounts.items()},
            None,
            rest[0] if rest else "",
            _held(entries) if entries else NOTHING,
            tuple(rest[-1]) if len(rest) > 1 and isinstance(rest[-1], list) else (),
            life,
        )
    return rows


def holds_row(text: str, row: tuple[KeyValue | None, ...]) -> bool:
    """Whether a stored text has a part for a row: quick, because a quotation mark within a text is escaped."""
    return f"[{_stored_key(row)},{{" in text


def needs_no_finishing(*texts: str) -> bool:
    """Whether no row of stored texts is recomputed or copied: quick, and False for texts that it cannot tell.

    A row with entries has a digest behind its amounts. A stored attribute names the table of the state. A text that is
    kept elsewhere does not stand here.
    """
    joined = "\n".join(("", *texts))  # no text has such a letter: it would be escaped
    return '},"' not in joined and IN_STATE not in joined and ELSEWHERE not in joined


def _held(stored: dict[str, Any]) -> HeldByName:
    return {
        name: HeldEntries(ordering, {order: Entry(digest) for order, digest in entries.items()})
        for name, (ordering, entries) in stored.items()
    }


def _untagged(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["B"]) if "B" in value else decode(value)


def left_rows(text: str) -> Contribution:
    """The rows and entries that steps left behind, from the ledger's text, which begins with the last step's stamp."""
    return stored_rows(text[LEFT_STAMP_LETTERS:])
