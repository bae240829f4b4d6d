"""PartiQL statements, each on one row and on a condition, 25 a call: BatchWriteItem knows no conditions."""

from collections.abc import Mapping
from typing import Any

from streamfold.engines import Counter
from streamfold.engines.expressions import Requests, state_attributes
from streamfold.keys.table import CONTRIBUTORS, PARTNER_VERSION, VERSION, Table
from streamfold.records.values import encode
from streamfold.writes.guarded import CONDITION, CONFLICT, PutPair, PutRow, RowKey, StateKey

BUSY = (*CONFLICT, "RequestLimitExceeded", "InternalServerError")
"""Codes after which another try may help."""
UNSTORABLE = (
    "ValidationError",
    "ValidationException",
    "ItemCollectionSizeLimitExceeded",
    "ItemCollectionSizeLimitExceededException",
)
"""Codes of a row that the store will never take (API Reference, BatchStatementError, PutItem)."""
DUPLICATE = "DuplicateItem"
"""The code of an ``INSERT`` whose row is there."""
OTHERWISE = (DUPLICATE, CONDITION)
"""Codes of a counter that is there although none was expected, or is not there."""

PLACEHOLDERS = ("#", ":")
"""What a name of a key attribute may not begin with: DynamoDB takes it for a placeholder of an expression, and refuses
each such statement with a ValidationError."""

Statement = Mapping[str, Any]
Answered = Mapping[str, Any]


def names_keys(table: Table) -> bool:
    """Whether statements can name the key attributes of a table."""
    return not any(name.startswith(PLACEHOLDERS) for name in table.attributes)


def insertion(requests: Requests, row: PutRow) -> Statement:
    """Inserts a row if none is there. Raises ``HandlerError`` for values that cannot be stored."""
    item = requests.item(row)
    attributes = ", ".join(_text(name) + ": ?" for name in item)
    return {
        "Statement": f"INSERT INTO {_name(requests.real_name(row.key[0]))} VALUE {{{attributes}}}",
        "Parameters": list(item.values()),
    }


def pair_insertion(requests: Requests, pair: PutPair) -> Statement:
    """Inserts a row that is made of two items if none is there. Raises ``HandlerError`` as ``insertion`` does."""
    return insertion(requests, PutRow(pair.key, requests.pair(pair)))


def pair_update(requests: Requests, pair: PutPair) -> Statement:
    """Writes over a row that was made of two items if neither of its versions is newer, and returns the row.

    Raises ``HandlerError`` for values that cannot be stored.
    """
    key, values = requests.key(pair.key), encode(requests.pair(pair))["M"]
    sets = " ".join(f"SET {_name(name)} = ?" for name in values)
    removes = "".join(f" REMOVE {_name(name)}" for name in pair.removed if name not in values)
    where = " AND ".join(_name(name) + " = ?" for name in key)
    older = f"{_name(VERSION)} <= ? AND {_name(PARTNER_VERSION)} <= ?"
    table = _name(requests.real_name(pair.key[0]))
    return {
        "Statement": f"UPDATE {table} {sets}{removes} WHERE {where} AND {older} RETURNING ALL NEW *",
        "Parameters": [*values.values(), *key.values(), *({"S": version} for version in pair.versions)],
    }


def removal(requests: Requests, key: RowKey) -> Statement:
    """Removes a row whose count of contributors is 0, and returns the row."""
    attributes = requests.key(key)
    where = " AND ".join(_name(name) + " = ?" for name in [*attributes, CONTRIBUTORS])
    return {
        "Statement": f"DELETE FROM {_name(requests.real_name(key[0]))} WHERE {where} RETURNING ALL OLD *",  # noqa: S608 - quoted
        "Parameters": [*attributes.values(), {"N": "0"}],
    }


def forgetting(requests: Requests, key: StateKey, texts: Mapping[str, str]) -> Statement:
    """Removes what was left behind from a ledger item, by handler, if the item still holds exactly these texts."""
    names = [_name(handler + ".u") for handler in texts]
    removes = " ".join(f"REMOVE {name}" for name in names)
    where = " AND ".join(f"{name} = ?" for name in ('"pk"', '"sk"', *names))
    return {
        "Statement": f"UPDATE {_name(requests.state_table)} {removes} WHERE {where}",
        "Parameters": [*state_attributes(key).values(), *({"S": text} for text in texts.values())],
    }


def counting(requests: Requests, counter: Counter, start: int, expires_at: int) -> Statement:
    """Raises a counter that is there, and returns its item; or inserts one where none is expected to be there."""
    key, table, expires = state_attributes(counter.key), _name(requests.state_table), {"N": str(expires_at)}
    if counter.new:
        item = {**key, "n": {"N": str(start + 1)}, "ttl": expires}
        attributes = ", ".join(_text(name) + ": ?" for name in item)
        return {"Statement": f"INSERT INTO {table} VALUE {{{attributes}}}", "Parameters": list(item.values())}
    sets = 'SET "n" = "n" + 1' + (' SET "ttl" = ?' if counter.expires else "")
    return {
        "Statement": f'UPDATE {table} {sets} WHERE "pk" = ? AND "sk" = ? RETURNING ALL NEW *',
        "Parameters": [*([expires] if counter.expires else []), *key.values()],
    }


def code(answer: Answered) -> str | None:
    """The code of a statement's error; None if it was carried out."""
    found: str | None = answer.get("Error", {}).get("Code")
    return found


def message(answer: Answered) -> str:
    """What a statement's error says."""
    found: str = answer.get("Error", {}).get("Message") or ""
    return found


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
