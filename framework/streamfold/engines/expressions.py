"""The plan's writes as DynamoDB requests: update and condition expressions."""

from collections.abc import Mapping
from typing import Any

from streamfold.engines import Counter
from streamfold.engines.applied import pair_attributes
from streamfold.engines.casts import VALUES, Casts, add_cast, ledger_cast
from streamfold.engines.clauses import Expression, aliased, clauses, has_revision, once_each
from streamfold.engines.keys import key_attributes
from streamfold.keys.table import CONTRIBUTORS, OWNER, PARTNER_VERSION, STAMP, VERSION, Table
from streamfold.records.values import encode, number_text
from streamfold.writes.guarded import (
    AbsentSource,
    AddRow,
    Claim,
    CorrectRow,
    CounterWrite,
    DeleteRow,
    DeleteSource,
    DeleteState,
    GuardedPut,
    GuardedWrite,
    LedgerWrite,
    PutMirror,
    PutPair,
    PutRow,
    PutState,
    RecomputedRow,
    RowKey,
    SourceWrite,
    StateKey,
    StateWrite,
    SwapState,
    UpdateSource,
)

ActionRequest = dict[str, dict[str, Any]]
"""One action of a transaction: ``{"Update": {...}}``."""
OtherStateWrite = Claim | PutState | DeleteState | PutMirror | SwapState | CounterWrite
COMPARED_MAX = 150
"""Attributes of an image that are compared: an expression has 300 operators and 4 KB at most (Developer Guide,
ServiceQuotas), and each attribute but the first takes two operators.
"""


class Requests:
    """Turns writes into actions for the real tables behind logical names."""

    def __init__(self, tables: Mapping[str, tuple[Table, str]], state_table: str) -> None:
        self.tables = tables
        self.state_table = state_table
        self._casts = Casts()

    def action(self, write: GuardedWrite, expires_at: int) -> ActionRequest:
        """The action of a transaction for one write."""
        if isinstance(write, LedgerWrite):  # most writes are one of these two
            return {"Update": self._ledger(write, expires_at)}
        if isinstance(write, AddRow):
            return {"Update": self._add(write)}
        if isinstance(write, StateWrite):
            return self._state_action(write, expires_at)
        match write:
            case PutRow():
                return {
                    "Put": self._of_item(write.key, write.attributes)
                    | _owned(write, self.tables[write.key[0]][0].partition)
                }
            case DeleteRow():
                return {"Delete": self._of_key(write.key) | _owned(write, self.tables[write.key[0]][0].partition)}
            case GuardedPut():
                return {"Put": self._guarded_put(write, expires_at)}
            case PutPair():
                return {"Put": self._pair(write)}
            case RecomputedRow():
                return {"Update": self._of_key(write.key) | _recomputed(write)}
            case CorrectRow():
                return {"Update": self._of_key(write.key) | _corrected(write)}
            case _:
                return self._source_action(write)

    def _source_action(self, write: SourceWrite) -> ActionRequest:
        match write:
            case AbsentSource():
                return {"ConditionCheck": self._absent(write)}
            case DeleteSource():
                return {"Delete": self._delete_source(write)}
            case UpdateSource():
                return {"Update": self._update_source(write)}

    def _state_action(self, write: OtherStateWrite, expires_at: int) -> ActionRequest:
        use = Expression()
        match write:
            case Claim():
                rows = {"s": write.rows} if write.rows else {}
                claim = self._of_item(write.key, {**rows, "ttl": expires_at})
                return {"Put": claim | use.condition("attribute_not_exists(pk)")}
            case SwapState():
                attributes = {**write.attributes, "r": write.revision + 1, "ttl": expires_at}
                return {"Put": self._of_item(write.key, attributes) | use.condition(has_revision(use, write.revision))}
            case PutState():
                return {"Put": self._of_item(write.key, {"s": write.text})}
            case DeleteState():
                same = [] if write.expected is None else [f"{use.name('s')} = {use.value(write.expected)}"]
                return {"Delete": self._of_key(write.key) | use.condition(*same)}
            case PutMirror():
                attributes = {"s": write.text, "v": write.version}
                expires = {} if write.expires is None else {"ttl": write.expires}
                older = f"(attribute_not_exists(pk) OR {use.name('v')} <= {use.value(write.version)})"
                return {"Put": self._of_item(write.key, attributes | expires) | use.condition(older)}
            case CounterWrite():
                return {"Update": self._counter(write, expires_at)}

    def counting(self, counter: Counter, start: int, expires_at: int, *, there: bool) -> dict[str, Any]:
        """An update that raises a counter, for a call of its own.

        ``there``: the item is expected to be there. Refused if that is wrong and decides on the time to live.
        """
        use = Expression()
        number = use.name("n")
        update = f"SET {number} = if_not_exists({number}, {use.value(start)}) + {use.value(1)}"
        if counter.expires or not there:
            update += f", {use.name('ttl')} = {use.value(expires_at)}"
        known = [] if counter.expires else [f"attribute_{'exists' if there else 'not_exists'}(pk)"]
        wanted = {"UpdateExpression": update, "ReturnValues": "ALL_NEW"}
        return self._of_key(counter.key) | wanted | use.condition(*known, tells=False)

    def real_name(self, logical: str) -> str:
        return self.tables[logical][1]

    def key(self, key: RowKey) -> dict[str, Any]:
        """The key attributes of a row, encoded."""
        return key_attributes(self.tables[key[0]][0], key)

    def item(self, row: PutRow) -> dict[str, Any]:
        """The whole item of a row, encoded."""
        attributes: dict[str, Any] = encode(row.attributes)["M"]
        return {**self.key(row.key), **attributes}

    def insertion(self, row: PutRow) -> dict[str, Any]:
        """The arguments of PutItem that insert a row if none is there."""
        absent = f"attribute_not_exists({self._partition(use := Expression(), row.key)})"
        return self._of_item(row.key, row.attributes) | use.condition(absent, tells=False)

    def removal(self, key: RowKey) -> dict[str, Any]:
        """The arguments of DeleteItem that remove a row whose count of contributors is 0, and return the row."""
        condition = (use := Expression()).condition(f"{use.name(CONTRIBUTORS)} = {use.value(0)}", tells=False)
        return self._of_key(key) | condition | {"ReturnValues": "ALL_OLD"}

    def _of_key(self, key: RowKey | StateKey) -> dict[str, Any]:
        if isinstance(key, StateKey):
            return {"TableName": self.state_table, "Key": state_attributes(key)}
        return {"TableName": self.real_name(key[0]), "Key": self.key(key)}

    def _of_item(self, key: RowKey | StateKey, attributes: Mapping[str, Any]) -> dict[str, Any]:
        where = self._of_key(key)
        return {"TableName": where["TableName"], "Item": where["Key"] | encode(attributes)["M"]}

    def _partition(self, use: Expression, key: RowKey) -> str:
        return use.name(self.tables[key[0]][0].partition)

    def _absent(self, write: AbsentSource) -> dict[str, Any]:
        use = Expression()
        absent = f"attribute_not_exists({self._partition(use, write.key)})"
        return self._of_key(write.key) | use.condition(absent, tells=False)

    def _delete_source(self, write: DeleteSource) -> dict[str, Any]:
        use = Expression()
        same = [f"{use.name(name)} = {use.encoded(write.image[name])}" for name in sorted(write.image)[:COMPARED_MAX]]
        return self._of_key(write.key) | use.condition(*same, tells=False)

    def _update_source(self, write: UpdateSource) -> dict[str, Any]:
        use = Expression()
        conditions = [f"attribute_exists({self._partition(use, write.key)})"]
        conditions += [f"{use.name(name)} = {use.value(value)}" for name, value in write.expected.items()]
        conditions += [f"attribute_not_exists({use.name(name)})" for name in write.absent]
        update = {"UpdateExpression": clauses(use, write.values, write.removed)}
        return self._of_key(write.key) | update | use.condition(*conditions, tells=False)

    def _ledger(self, write: LedgerWrite, expires_at: int) -> dict[str, Any]:
        values, pattern = once_each(_ledger_values(write, expires_at))
        parts = tuple([(part.handler, part.left is not None, bool(part.expected)) for part in write.parts])
        numbers = write.revision and 1, write.live_expected and 1, bool(write.live)
        shape = "ledger", parts, pattern, numbers, write.expires, write.fence
        cast = self._casts.get(shape) or self._casts.learn(shape, ledger_cast(write))
        return {"TableName": self.state_table, "Key": state_attributes(write.key), **cast, VALUES: aliased(values)}

    def _counter(self, write: CounterWrite, expires_at: int) -> dict[str, Any]:
        use = Expression()
        same = f"{use.name('n')} = {use.value(write.number)}"
        sets = {"n": write.number if write.raised is None else write.raised}
        if write.expires:
            sets["ttl"] = expires_at
        removes = ["ttl"] if write.expires is False else []
        added, taken = ({"ids": ids} if ids else {} for ids in (write.added, write.removed))
        update = {"UpdateExpression": clauses(use, sets, removes, added, taken)}
        return self._of_key(write.key) | update | use.condition(same)

    def _add(self, write: AddRow) -> dict[str, Any]:
        least = write.contributors_required
        shape = (
            ("add", tuple(write.amounts), tuple(write.values), write.removed),
            (bool(write.contributors), bool(write.stamp), write.unversioned, least is not None),
            (write.life and "life", write.born and write.key[0]),
        )
        table = self.tables[write.key[0]][0]
        cast = self._casts.get(shape) or self._casts.learn(shape, add_cast(write, table.partition))
        values = [{"S": write.life}] if write.born else []
        values += [{"S": write.stamp}] if write.stamp else []
        if write.values:
            values += map(encode, write.values.values())
        values += [{"N": number_text(amount)} for amount in write.amounts.values()]
        if write.contributors:
            values.append({"N": str(write.contributors)})
        if write.life and not write.born:
            values.append({"S": write.life})
        if least is not None:
            values.append({"N": str(least)})
        where = {"TableName": self.real_name(write.key[0]), "Key": self.key(write.key), **cast}
        return {**where, VALUES: aliased(values)} if values else where

    def _pair(self, write: PutPair) -> dict[str, Any]:
        use = Expression()
        names = zip((VERSION, PARTNER_VERSION), write.versions, strict=True)
        older = " AND ".join(f"{use.name(name)} <= {use.value(version)}" for name, version in names)
        absent = "" if write.replaces else f"attribute_not_exists({self._partition(use, write.key)}) OR "
        return self._of_item(write.key, self.pair(write)) | use.condition(f"{absent}({older})")

    def pair(self, write: PutPair) -> dict[str, Any]:
        """The attributes of a row that was made of two items."""
        return pair_attributes(write, self.tables[write.key[0]][0])

    def _guarded_put(self, write: GuardedPut, expires_at: int) -> dict[str, Any]:
        ttl = self.tables[write.key[0]][0].ttl
        tombstone = {CONTRIBUTORS: 0, **({ttl: expires_at} if ttl else {})}
        own: dict[str, Any] = {VERSION: write.version, **({OWNER: write.owner} if write.owner else {})}
        use = Expression()
        version = use.name(VERSION)
        new = f"(attribute_not_exists({version}) AND attribute_not_exists({use.name(CONTRIBUTORS)}))"
        conditions = [f"({new} OR {version} < {use.value(write.version)})"]
        if write.owner:
            owner = use.name(OWNER)
            conditions.append(f"(attribute_not_exists({owner}) OR {owner} = {use.value(write.owner)})")
        attributes = own | (tombstone if write.attributes is None else {**write.attributes})
        return self._of_item(write.key, attributes) | use.condition(*conditions)


def _recomputed(write: RecomputedRow) -> dict[str, Any]:
    use = Expression()
    update = {"UpdateExpression": clauses(use, write.values, write.removed)}
    return update | use.condition(f"{use.name(STAMP)} = {use.value(write.stamp)}")


def _corrected(write: CorrectRow) -> dict[str, Any]:
    use = Expression()
    conditions = [f"{use.name(name)} = {use.value(value)}" for name, value in write.expected.items()]
    conditions += [f"attribute_not_exists({use.name(name)})" for name in write.absent]
    update = {"UpdateExpression": clauses(use, write.values, write.removed, write.amounts)}
    return update | use.condition(*conditions)


def _owned(write: PutRow | DeleteRow, partition: str) -> dict[str, Any]:
    """The condition that a row is its owner's, or is not there; an amendment requires the row."""
    if write.owner is None:
        return {}
    use = Expression()
    own = f"{use.name(OWNER)} = {use.value(write.owner)}"
    if isinstance(write, PutRow) and write.amends:
        return use.condition(own)
    return use.condition(f"attribute_not_exists({use.name(partition)}) OR {own}")


def _ledger_values(write: LedgerWrite, expires_at: int) -> list[Any]:
    """The values of a ledger write, in the order in which ``ledger_cast`` names them."""
    given: list[Any] = []
    if write.revision is None:
        for part in write.parts:
            given += part.version, part.expected
    if write.live_expected is not None:
        given.append(write.live_expected)
    if write.revision:
        given.append(write.revision)
    for part in write.parts:
        given += part.version, part.contribution
        if part.left is not None:
            given.append(part.left)
        if write.fence:
            given.append(True)
    if write.expires:
        given.append(expires_at)
    given.append(1)
    if write.live:
        given.append(write.live)
    return given


def state_attributes(key: StateKey) -> dict[str, Any]:
    """The key attributes of a state item, encoded."""
    return {"pk": {"S": key.pk}, "sk": {"S": key.sk}}
