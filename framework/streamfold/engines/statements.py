"""PartiQL statements, each on one row and on a condition, 25 a call: BatchWriteItem knows no conditions."""

from collections.abc import Mapping
from typing import Any

from streamfold.engines.expressions import Requests, state_attributes
from streamfold.keys.table import CONTRIBUTORS
from streamfold.writes.guarded import CONFLICT, PutRow, RowKey, StateKey

STATEMENTS_MAX = 25
"""Statements of one call (API Reference, BatchExecuteStatement)."""
BUSY = (*CONFLICT, "RequestLimitExceeded", "InternalServerError")
"""Codes of a statement that is worth another try."""
UNSTORABLE = ("ValidationError", "ValidationException", "ItemCollectionSizeLimitExceeded")
"""Codes of a statement whose row the store will never take (API Reference, BatchStatementError)."""
DUPLICATE = "DuplicateItem"
"""The code of an ``INSERT`` whose row is there."""

Statement = Mapping[str, Any]
Answered = Mapping[str, Any]


def insertion(requests: Requests, row: PutRow) -> Statement:
    """Writes a row where none is. Raises ``HandlerError`` for what cannot be stored."""
    item = requests.item(row)
    attributes = ", ".join(_text(name) + ": ?" for name in item)
    return {
        "Statement": f"INSERT INTO {_name(requests.real_name(row.key[0]))} VALUE {{{attributes}}}",
        "Parameters": list(item.values()),
    }


def removal(requests: Requests, key: RowKey) -> Statement:
    """Removes a row whose count of contributors is 0, and asks for what was there."""
    attributes = requests.key(key)
    where = " AND ".join(_name(name) + " = ?" for name in [*attributes, CONTRIBUTORS])
    return {
        "Statement": f"DELETE FROM {_name(requests.real_name(key[0]))} WHERE {where} RETURNING ALL OLD *",  # noqa: S608 - quoted
        "Parameters": [*attributes.values(), {"N": "0"}],
    }


def forgetting(requests: Requests, key: StateKey, texts: Mapping[str, str]) -> Statement:
    """Takes away what a ledger item says was left behind, by handler, while it says just that."""
    names = [_name(handler + ".u") for handler in texts]
    removes = " ".join(f"REMOVE {name}" for name in names)
    where = " AND ".join(f"{name} = ?" for name in ('"pk"', '"sk"', *names))
    return {
        "Statement": f"UPDATE {_name(requests.state_table)} {removes} WHERE {where}",
        "Parameters": [*state_attributes(key).values(), *({"S": text} for text in texts.values())],
    }


def code(answer: Answered) -> str | None:
    """The code of a statement's error; None for one that was carried out."""
    found: str | None = answer.get("Error", {}).get("Code")
    return found


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
