"""The plan's writes as DynamoDB requests: update and condition expressions with every name aliased."""

from collections.abc import Iterable, Mapping
from typing import Any

from streamfold.engines.keys import key_attributes
from streamfold.keys.table import CONTRIBUTORS, OWNER, STAMP, VERSION, Table
from streamfold.records.values import encode
from streamfold.writes.guarded import (
    AbsentSource,
    AddRow,
    Claim,
    DeleteRow,
    DeleteSource,
    DeleteState,
    GuardedPut,
    GuardedWrite,
    LedgerPart,
    LedgerWrite,
    PutRow,
    PutState,
    RecomputedRow,
    RowKey,
    StateKey,
    StateWrite,
    SwapState,
    UpdateSource,
)

ActionRequest = dict[str, dict[str, Any]]
"""One action of a transaction: ``{"Update": {...}}``."""
COMPARED_MAX = 150
"""Attributes of an image that are compared: an expression has 300 operators and 4 KB at most (Developer Guide,
ServiceQuotas), and each attribute but the first takes two operators.
"""


class Expression:
    """Collects the names and values of one request under short aliases."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def name(self, name: str) -> str:
        return self.names.setdefault(name, f"#{len(self.names)}")

    def value(self, value: Any) -> str:
        return self.encoded(encode(value))

    def encoded(self, value: Any) -> str:
        """The alias of an attribute value."""
        alias = f":{len(self.values)}"
        self.values[alias] = value
        return alias

    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"ExpressionAttributeNames": {alias: name for name, alias in self.names.items()}}
        return arguments | ({"ExpressionAttributeValues": self.values} if self.values else {})


class Requests:
    """Turns writes into actions for the real tables behind logical names."""

    def __init__(self, tables: Mapping[str, tuple[Table, str]], state_table: str) -> None:
        self.tables = tables
        self.state_table = state_table

    def action(self, write: GuardedWrite, expires_at: int) -> ActionRequest:
        """The action of a transaction for one write."""
        if isinstance(write, StateWrite):
            return self._state_action(write, expires_at)
        match write:
            case AddRow():
                return {"Update": self._add(write)}
            case PutRow():
                return {"Put": self._put(write)}
            case DeleteRow():
                return {"Delete": self._delete(write)}
            case GuardedPut():
                return {"Put": self._guarded_put(write, expires_at)}
            case RecomputedRow():
                return {"Update": self._recompute(write)}
            case AbsentSource():
                return {"ConditionCheck": self._absent(write)}
            case DeleteSource():
                return {"Delete": self._delete_source(write)}
            case UpdateSource():
                return {"Update": self._update_source(write)}

    def _state_action(self, write: StateWrite, expires_at: int) -> ActionRequest:
        match write:
            case LedgerWrite():
                return {"Update": self._ledger(write, expires_at)}
            case Claim():
                return {"Put": self._claim(write, expires_at)}
            case SwapState():
                return {"Put": self._swap(write, expires_at)}
            case PutState():
                item = state_attributes(write.key) | encode({"s": write.contribution})["M"]
                return {"Put": {"TableName": self.state_table, "Item": item}}
            case DeleteState():
                return {"Delete": {"TableName": self.state_table, "Key": state_attributes(write.key)}}

    def key(self, key: RowKey) -> dict[str, Any]:
        """The key attributes of a row, encoded."""
        return key_attributes(self.tables[key[0]][0], key)

    def item(self, row: PutRow) -> dict[str, Any]:
        """The whole item of a row, encoded."""
        attributes: dict[str, Any] = encode(row.attributes)["M"]
        return {**self.key(row.key), **attributes}

    def real_name(self, logical: str) -> str:
        return self.tables[logical][1]

    def _swap(self, write: SwapState, expires_at: int) -> dict[str, Any]:
        use = Expression()
        attributes = {**write.attributes, "r": write.revision + 1, "ttl": expires_at}
        return {
            "TableName": self.state_table,
            "Item": state_attributes(write.key) | encode(attributes)["M"],
            "ConditionExpression": _revision(use, write.revision),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **use.arguments(),
        }

    def _absent(self, write: AbsentSource) -> dict[str, Any]:
        use = Expression()
        table, real_name = self.tables[write.key[0]]
        return {
            "TableName": real_name,
            "Key": self.key(write.key),
            "ConditionExpression": f"attribute_not_exists({use.name(table.partition)})",
            **use.arguments(),
        }

    def _delete_source(self, write: DeleteSource) -> dict[str, Any]:
        use = Expression()
        names = sorted(write.image)[:COMPARED_MAX]
        return {
            "TableName": self.real_name(write.key[0]),
            "Key": self.key(write.key),
            "ConditionExpression": " AND ".join(
                f"{use.name(name)} = {use.encoded(write.image[name])}" for name in names
            ),
            **use.arguments(),
        }

    def _update_source(self, write: UpdateSource) -> dict[str, Any]:
        use = Expression()
        partition = use.name(self.tables[write.key[0]][0].partition)
        conditions = [f"attribute_exists({partition})"]
        conditions += [f"{use.name(name)} = {use.value(value)}" for name, value in write.expected.items()]
        conditions += [f"attribute_not_exists({use.name(name)})" for name in write.absent]
        return {
            "TableName": self.real_name(write.key[0]),
            "Key": self.key(write.key),
            "UpdateExpression": _clauses(use, write.values, write.removed),
            "ConditionExpression": " AND ".join(conditions),
            **use.arguments(),
        }

    def _ledger(self, write: LedgerWrite, expires_at: int) -> dict[str, Any]:
        use = Expression()
        sets, removes, conditions = [], [], []
        for part in write.parts:
            sets.append(f"{use.name(part.handler + '.v')} = {use.value(part.version)}")
            sets.append(f"{use.name(part.handler + '.s')} = {use.value(part.contribution)}")
            if part.left is not None:
                sets.append(f"{use.name(part.handler + '.u')} = {use.value(part.left)}")
            if write.fence:
                sets.append(f"{use.name(part.handler + '.fence')} = {use.value(value=True)}")
            else:
                removes.append(use.name(part.handler + ".fence"))
            if write.revision is None:
                conditions.append(_optimistic(use, part))
        if write.expires:
            sets.append(f"{use.name('ttl')} = {use.value(expires_at)}")
        else:
            removes.append(use.name("ttl"))
        if write.live_expected is not None:
            conditions.append(_live(use, write.live_expected))
        if write.revision is not None:
            conditions.append(_revision(use, write.revision))
        adds = f"ADD {use.name('r')} {use.value(1)}" + (
            f", {use.name('live')} {use.value(write.live)}" if write.live else ""
        )
        return {
            "TableName": self.state_table,
            "Key": state_attributes(write.key),
            "UpdateExpression": f"SET {', '.join(sets)} {'REMOVE ' + ', '.join(removes) if removes else ''} {adds}",
            "ConditionExpression": " AND ".join(conditions),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **use.arguments(),
        }

    def _claim(self, write: Claim, expires_at: int) -> dict[str, Any]:
        return {
            "TableName": self.state_table,
            "Item": state_attributes(write.key) | encode({"ttl": expires_at})["M"],
            "ConditionExpression": "attribute_not_exists(pk)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _add(self, write: AddRow) -> dict[str, Any]:
        use = Expression()
        amounts = {**write.amounts, CONTRIBUTORS: write.contributors} if write.contributors else write.amounts
        sets = {STAMP: write.stamp, **write.values} if write.stamp else write.values
        clauses = _clauses(use, sets, write.removed if write.unversioned else (*write.removed, OWNER))
        adds = ", ".join(f"{use.name(name)} {use.value(amount)}" for name, amount in amounts.items())
        return {
            "TableName": self.real_name(write.key[0]),
            "Key": self.key(write.key),
            "UpdateExpression": f"{clauses} {'ADD ' if adds else ''}{adds}".strip(),
            **_takes(use, write),
            **use.arguments(),
        }

    def _recompute(self, write: RecomputedRow) -> dict[str, Any]:
        use = Expression()
        return {
            "TableName": self.real_name(write.key[0]),
            "Key": self.key(write.key),
            "UpdateExpression": _clauses(use, write.values, write.removed),
            "ConditionExpression": f"{use.name(STAMP)} = {use.value(write.stamp)}",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **use.arguments(),
        }

    def _put(self, write: PutRow) -> dict[str, Any]:
        return {"TableName": self.real_name(write.key[0]), "Item": self.item(write), **self._owner(write)}

    def _delete(self, write: DeleteRow) -> dict[str, Any]:
        return {"TableName": self.real_name(write.key[0]), "Key": self.key(write.key), **self._owner(write)}

    def _owner(self, write: PutRow | DeleteRow) -> dict[str, Any]:
        if write.owner is None:
            return {}
        use = Expression()
        partition, owner = use.name(self.tables[write.key[0]][0].partition), use.name(OWNER)
        return {
            "ConditionExpression": f"attribute_not_exists({partition}) OR {owner} = {use.value(write.owner)}",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **use.arguments(),
        }

    def _guarded_put(self, write: GuardedPut, expires_at: int) -> dict[str, Any]:
        table, real_name = self.tables[write.key[0]]
        attributes: dict[str, Any] = {VERSION: write.version}
        if write.owner:
            attributes[OWNER] = write.owner
        if write.attributes is not None:
            attributes |= write.attributes
        else:
            attributes |= {CONTRIBUTORS: 0} | ({table.ttl: expires_at} if table.ttl else {})
        use = Expression()
        version, added_to = use.name(VERSION), use.name(CONTRIBUTORS)
        new = f"(attribute_not_exists({version}) AND attribute_not_exists({added_to}))"
        older = f"({new} OR {version} < {use.value(write.version)})"
        if write.owner:
            older += f" AND (attribute_not_exists({use.name(OWNER)}) OR {use.name(OWNER)} = {use.value(write.owner)})"
        return {
            "TableName": real_name,
            "Item": self.key(write.key) | encode(attributes)["M"],
            "ConditionExpression": older,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **use.arguments(),
        }


def state_attributes(key: StateKey) -> dict[str, Any]:
    """The key attributes of a state item, encoded."""
    return {"pk": {"S": key.pk}, "sk": {"S": key.sk}}


def _clauses(use: Expression, values: Mapping[str, Any], removed: Iterable[str]) -> str:
    """An update that sets and removes attributes."""
    sets = ", ".join(f"{use.name(name)} = {use.value(value)}" for name, value in values.items())
    removes = ", ".join(use.name(name) for name in removed)
    return " ".join([f"SET {sets}"] * bool(sets) + [f"REMOVE {removes}"] * bool(removes))


def _takes(use: Expression, write: AddRow) -> dict[str, str]:
    """The condition of an addition, where it has one."""
    terms = [f"attribute_not_exists({use.name(VERSION)})"] if write.unversioned else []
    if write.least is not None:
        terms.append(f"{use.name(CONTRIBUTORS)} >= {use.value(write.least)}")
    if not terms:
        return {}
    return {"ConditionExpression": " AND ".join(terms), "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _optimistic(use: Expression, part: LedgerPart) -> str:
    """The part is of an older version, holds what the effects were computed from, bears no fence, and nothing that an
    earlier step left is still to be finished.
    """
    version, stored = use.name(part.handler + ".v"), use.name(part.handler + ".s")
    older = (
        f"{version} < {use.value(part.version)} AND {stored} = {use.value(part.expected)} "
        f"AND attribute_not_exists({use.name(part.handler + '.fence')})"
    )
    holds = f"({older})" if part.expected else f"(attribute_not_exists({version}) OR ({older}))"
    return f"{holds} AND attribute_not_exists({use.name(part.handler + '.u')})"


def _live(use: Expression, live: int) -> str:
    name, same = use.name("live"), f"{use.name('live')} = {use.value(live)}"
    return same if live else f"(attribute_not_exists({name}) OR {same})"


def _revision(use: Expression, revision: int) -> str:
    name = use.name("r")
    return f"{name} = {use.value(revision)}" if revision else f"attribute_not_exists({name})"
