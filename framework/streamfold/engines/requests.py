"""Guarded writes as DynamoDB requests: their descriptions as expressions of updates and conditions, and as PartiQL.

The text of an expression, with the names in it, is made once for all writes of one shape and the same attributes, and
filled with the values of each. Statements are for rows and state items that are written one by one, 25 a call:
BatchWriteItem knows no conditions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from streamfold.engines.keys import key_attributes
from streamfold.engines.local_writes import NO_ITEM, local_write
from streamfold.keys.table import STATE, Table
from streamfold.records.values import encode
from streamfold.writes import descriptions as terms
from streamfold.writes.guarded import LedgerWrite, RowKey, StateKey

ActionRequest = dict[str, dict[str, Any]]
"""One action of a transaction: ``{"Update": {...}}``."""
Statement = Mapping[str, Any]
"""A PartiQL statement with its parameters."""
COMPARED_MAX = 150
"""Attributes of an image that are compared: an expression has 300 operators and 4 KB at most (Developer Guide,
ServiceQuotas), and each attribute but the first takes two operators.
"""
NAMES, VALUES = "ExpressionAttributeNames", "ExpressionAttributeValues"
ALIASES = tuple(f":{number}" for number in range(100))
"""Aliases of values that are made once; few requests have more."""
PLACEHOLDERS = ("#", ":")
"""A name of a key attribute must not begin with these: DynamoDB takes it for a placeholder of an expression, and
refuses each such statement with a ValidationError.
"""

STATEMENT_BYTES_MAX = 8192
"""The length of a PartiQL statement (service model of the API, PartiQLStatement; counted in bytes to be safe). The
statement names each attribute, so a row with some hundred of them has a longer one.
"""


class WriteValues(NamedTuple):
    """The values and names of writes of one shape for their expressions."""

    names: Callable[[Any], tuple[tuple[str, ...], ...]]  # names in the mappings of a write: the text has them too
    values: Callable[[Any, int], list[Any]]  # of a write and ``expires_at``


class Requests:
    """Turns writes into actions for the real tables behind logical names."""

    def __init__(self, tables: Mapping[str, tuple[Table, str]], state_table: str) -> None:
        self.tables = tables
        self.state_table = state_table
        self._values: dict[terms.WriteShape, WriteValues] = {}
        self._texts: dict[terms.WriteShape, tuple[str, dict[str, Any]]] = {}

    def action(self, write: Any, expires_at: int) -> ActionRequest:
        """The action of a transaction for one write. Raises ``HandlerError`` for values that cannot be stored."""
        key, table = write.key, self._table(write.key)
        shape = terms.shape_of(write, table)
        values = self._values.get(shape) or self._learn_values(shape, write, table)
        given, positions = values.values(write, expires_at), None
        if type(write) is LedgerWrite:
            given, positions = once_each(given)
        text_shape = shape, table.name, values.names(write), positions
        verb, text = self._texts.get(text_shape) or self._learn_text(text_shape, write, table, positions)
        request = {"TableName": self._real_name(key), **text}
        if verb == "Put":
            request["Item"] = self.item(write, expires_at)
        else:
            request["Key"] = self.key(key)
        if given:
            request[VALUES] = aliased(given)
        return {verb: request}

    def request(self, write: Any, expires_at: int = 0) -> dict[str, Any]:
        (request,) = self.action(write, expires_at).values()
        return request

    def item(self, write: Any, expires_at: int = 0) -> dict[str, Any]:
        """The item that a write makes where there is none, with its key, encoded."""
        table = self._table(write.key)
        after: dict[str, Any] = local_write(write, table).after(write, NO_ITEM, table, expires_at)
        if not isinstance(write.key, StateKey):
            return after
        attributes: dict[str, Any] = encode(after)["M"]
        return {**self.key(write.key), **attributes}

    def real_name(self, logical: str) -> str:
        return self.tables[logical][1]

    def key(self, key: RowKey | StateKey) -> dict[str, Any]:
        """The key attributes of a row or a state item, encoded."""
        if isinstance(key, StateKey):
            return {"pk": {"S": key.pk}, "sk": {"S": key.sk}}
        return key_attributes(self.tables[key[0]][0], key)

    def takes_statements(self, key: RowKey) -> bool:
        """Whether statements can name the key attributes of a row's table."""
        return not any(name.startswith(PLACEHOLDERS) for name in self.tables[key[0]][0].attributes)

    def insertion(self, write: Any, expires_at: int = 0) -> Statement:
        """Inserts the item that a write makes, if there is none. Raises ``HandlerError`` for values that cannot be
        stored.
        """
        item = self.item(write, expires_at)
        attributes = ", ".join(_text(name) + ": ?" for name in item)
        table = _quoted(self._real_name(write.key))
        return {"Statement": f"INSERT INTO {table} VALUE {{{attributes}}}", "Parameters": list(item.values())}

    def update(self, write: Any, expires_at: int = 0, *, removed: Iterable[str] = (), returning: str = "") -> Statement:
        """Carries out an update of an existing item, or replaces it, without attributes ``removed``.

        Raises ``HandlerError`` as ``insertion`` does.
        """
        use, change = _StatementText(write), terms.described(write, self._table(write.key)).change
        if isinstance(change, terms.Update):
            changes, values = use.update(change), _getter(tuple(use.codes))(write, expires_at)
        else:
            key = self.key(write.key)
            item = {name: value for name, value in self.item(write, expires_at).items() if name not in key}
            changes = [f"SET {_quoted(name)} = ?" for name in item]
            changes += [f"REMOVE {_quoted(name)}" for name in removed if name not in item]
            values = list(item.values())
        return self._on_key(write, "UPDATE", changes, values, returning)

    def deletion(self, write: Any, returning: str = "") -> Statement:
        return self._on_key(write, "DELETE FROM", (), (), returning)

    def _on_key(
        self, write: Any, verb: str, changes: Iterable[str], values: Iterable[Any], returning: str
    ) -> Statement:
        use, key = _StatementText(write), self.key(write.key)
        guard = use.conjunction(terms.described(write, self._table(write.key)).guard)
        where = " AND ".join([*(_quoted(name) + " = ?" for name in key), *guard])
        words = [verb, _quoted(self._real_name(write.key)), *changes, "WHERE", where]
        words += [f"RETURNING {returning} *"] if returning else []
        return {
            "Statement": " ".join(words),
            "Parameters": [*values, *key.values(), *_getter(tuple(use.codes))(write, 0)],
        }

    def _table(self, key: RowKey | StateKey) -> Table:
        return STATE if type(key) is StateKey else self.tables[key[0]][0]

    def _real_name(self, key: RowKey | StateKey) -> str:
        return self.state_table if type(key) is StateKey else self.tables[key[0]][1]

    def _learn_values(self, shape: terms.WriteShape, write: Any, table: Table) -> WriteValues:
        use = _ExpressionText(write, table)
        use.request(terms.described(write, table))
        names = "".join(f"tuple({mapping}), " for mapping in use.mappings)
        made = WriteValues(_function("write", f"({names})"), _getter(tuple(use.codes)))
        return terms.learn(self._values, shape, made)

    def _learn_text(
        self, shape: terms.WriteShape, write: Any, table: Table, positions: Sequence[int] | None
    ) -> tuple[str, dict[str, Any]]:
        description = terms.described(write, table)
        request = _ExpressionText(write, table, positions).request(description)
        change = description.change
        verb = change if isinstance(change, str) else "Put" if isinstance(change, terms.Replace) else "Update"
        return terms.learn(self._texts, shape, (verb, request))


class _Text(ABC):
    """The text of a condition. Its values are collected as the code that gives them, in the order of the text."""

    def __init__(self, write: Any) -> None:
        self.write = write
        self.codes: list[str] = []
        self.mappings: list[str] = []  # code of the mappings whose names are in the text

    def condition(self, group: terms.Requirement) -> str:
        """The terms of a group; "" where it requires nothing."""
        word = " AND " if isinstance(group, terms.All) else " OR "
        return word.join([text for term in self.open_terms(group) for text in self.texts(term)])

    def open_terms(self, group: terms.Requirement) -> Sequence[terms.Term]:
        """The terms that may hold, and may not."""
        return group.terms

    def texts(self, term: terms.Term) -> list[str]:
        match term:
            case terms.Exists(exists):
                return [f"attribute_{'exists' if exists else 'not_exists'}({self.partition()})"]
            case terms.Absent(name):
                return [f"attribute_not_exists({self.name(name)})"]
            case terms.Present(name):
                return [f"attribute_exists({self.name(name)})"]
            case terms.Is(name, operator, value):
                return [f"{self.name(name)} {operator} {self.value(value)}"]
            case terms.NoneOf(names):
                self.mappings.append(f"write.{names}")
                return [f"attribute_not_exists({self.name(name)})" for name in getattr(self.write, names)]
            case terms.Same(mapping):
                return [f"{name} = {value}" for name, value in self.each(mapping)]
            case terms.Unchanged(image):
                self.mappings.append(f"compared(write.{image})")
                self.codes.append(f"*compared(write.{image}).values()")
                return [f"{self.name(name)} = {self.next_value()}" for name in compared(getattr(self.write, image))]
            case terms.All() | terms.Either():
                text = self.condition(term)
                return [text if len(self.open_terms(term)) == 1 else f"({text})"]

    def each(self, mapping: str) -> list[tuple[str, str]]:
        """The names and values of a mapping of the write."""
        self.mappings.append(f"write.{mapping}")
        self.codes.append(f"*map(encode, write.{mapping}.values())")
        return [(self.name(name), self.next_value()) for name in getattr(self.write, mapping)]

    def attributes(self, given_attributes: Iterable[terms.Attribute | terms.AttributesOf]) -> list[tuple[str, str]]:
        """The names and values that are set or added."""
        found: list[tuple[str, str]] = []
        for given in given_attributes:
            if isinstance(given, terms.AttributesOf):
                found += self.each(given.mapping)
            else:
                found.append((self.name(given.name), self.value(given.value)))
        return found

    def listed(self, removes: Iterable[str | terms.NamesOf]) -> list[str]:
        """The names that are removed."""
        found: list[str] = []
        for given in removes:
            if isinstance(given, terms.NamesOf):
                self.mappings.append(f"write.{given.names}")
                found += map(self.name, getattr(self.write, given.names))
            else:
                found.append(self.name(given))
        return found

    def value(self, value: terms.WriteValue) -> str:
        self.codes.append(f"encode({value.code})")
        return self.next_value()

    @abstractmethod
    def name(self, name: str) -> str: ...

    @abstractmethod
    def next_value(self) -> str:
        """The placeholder of the value whose code was added."""

    @abstractmethod
    def partition(self) -> str: ...


class _ExpressionText(_Text):
    """The expressions of a request, with names and values under short aliases."""

    def __init__(self, write: Any, table: Table, positions: Sequence[int] | None = None) -> None:
        super().__init__(write)
        self.table = table
        self.positions = positions  # of each value among the sent ones; None: each is sent
        self._aliases: dict[str, str] = {}
        self._count = 0

    def request(self, description: terms.Description) -> dict[str, Any]:
        """The arguments of a call, but for table, key and values; DynamoDB refuses each of them empty."""
        condition = self.condition(description.guard)
        given = {
            "UpdateExpression": self.update(description.change)
            if isinstance(description.change, terms.Update)
            else None,
            "ConditionExpression": condition or None,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD" if condition and description.returns_item else None,
            NAMES: {alias: name for name, alias in self._aliases.items()} or None,
        }
        return {argument: content for argument, content in given.items() if content is not None}

    def update(self, change: terms.Update) -> str:
        sets: list[str] = []
        for given in change.sets:
            if isinstance(given, terms.Increment):
                name = self.name(given.name)
                sets.append(f"{name} = if_not_exists({name}, {self.value(given.start)}) + {self.value(terms.ONE)}")
            else:
                sets += [f"{name} = {value}" for name, value in self.attributes([given])]
        made = {
            "SET": sets,
            "REMOVE": self.listed(change.removes),
            "ADD": [f"{name} {value}" for name, value in self.attributes(change.adds)],
            "DELETE": [f"{name} {value}" for name, value in self.attributes(change.takes)],
        }
        return " ".join(f"{verb} {', '.join(texts)}" for verb, texts in made.items() if texts)

    def name(self, name: str) -> str:
        return self._aliases.setdefault(name, f"#{len(self._aliases)}")

    def value(self, value: terms.WriteValue) -> str:
        if type(self.write) is not LedgerWrite:
            return super().value(value)
        self.codes.append(value.code)  # ``once_each`` encodes it
        return self.next_value()

    def next_value(self) -> str:
        position = self._count if self.positions is None else self.positions[self._count]
        self._count += 1
        return f":{position}"

    def partition(self) -> str:
        return "pk" if type(self.write.key) is StateKey else self.name(self.table.partition)


class _StatementText(_Text):
    """The clauses of a statement on an existing item, without the check that it exists."""

    def open_terms(self, group: terms.Requirement) -> Sequence[terms.Term]:
        return [term for term in group.terms if not isinstance(term, terms.Exists)]

    def conjunction(self, group: terms.Requirement) -> list[str]:
        """The terms of a group, to be joined with others by AND."""
        found = self.open_terms(group)
        if isinstance(group, terms.All):
            return [text for term in found for text in self.texts(term)]
        if len(found) == 1 and isinstance(found[0], terms.All | terms.Either):
            return self.conjunction(found[0])
        return self.texts(group)

    def update(self, change: terms.Update) -> list[str]:
        clauses: list[str] = []
        for given in change.sets:
            if isinstance(given, terms.Increment):
                clauses.append(f"SET {self.name(given.name)} = {self.name(given.name)} + 1")
            else:
                clauses += [f"SET {name} = {value}" for name, value in self.attributes([given])]
        return clauses + [f"REMOVE {name}" for name in self.listed(change.removes)]

    def name(self, name: str) -> str:
        return _quoted(name)

    def next_value(self) -> str:
        return "?"

    def partition(self) -> str:
        raise AssertionError(self.write)


def aliased(values: Sequence[Any]) -> dict[str, Any]:
    """Attribute values under the aliases that expressions give them one after another."""
    if len(values) <= len(ALIASES):
        return dict(zip(ALIASES, values, strict=False))
    return {f":{number}": value for number, value in enumerate(values)}


def once_each(given: Iterable[Any]) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    """Attribute values of texts, whole numbers and ``True``, each text once; and the index of each value among them. A
    ledger write has most texts several times, such as the version of a change.
    """
    values: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    positions = []
    for value in given:
        position = len(values)
        if type(value) is str:
            position = known.setdefault(value, position)
            if position == len(values):
                values.append({"S": value} if value.isascii() else encode(value))
        else:
            values.append({"BOOL": True} if value is True else {"N": str(value)})
        positions.append(position)
    return values, tuple(positions)


def compared(image: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an image that an expression compares."""
    return {name: image[name] for name in sorted(image)[:COMPARED_MAX]}


@lru_cache(terms.SHAPES_MAX)
def _getter(codes: tuple[str, ...]) -> Callable[[Any, int], list[Any]]:
    made: Callable[[Any, int], list[Any]] = _function("write, expires_at", f"[{', '.join(codes)}]")
    return made


def _function(arguments: str, code: str) -> Any:
    # The code is the descriptions': nothing of an item or of a handler is compiled.
    return eval(f"lambda {arguments}: {code}", {"encode": encode, "compared": compared})  # noqa: S307


def is_sent(statement: Statement) -> bool:
    """Whether DynamoDB takes a statement of this length. A longer write goes as a request of its own, which names
    attributes beside its expressions, and has no such limit.
    """
    text: str = statement["Statement"]
    return len(text) <= STATEMENT_BYTES_MAX and (text.isascii() or len(text.encode()) <= STATEMENT_BYTES_MAX)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
