"""Guarded writes as DynamoDB requests: their descriptions as expressions of updates and conditions, and as PartiQL.

The text of an expression, with the names in it, is made once for all writes of one shape and the same attributes, and
filled with the values of each. Statements are for rows and state items that are written one by one, 25 a call:
BatchWriteItem knows no conditions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from streamfold.engines.keys import key_attributes
from streamfold.engines.local_writes import NO_ITEM, SHAPES_MAX, local_write
from streamfold.keys.table import STATE, Table
from streamfold.records.values import encode
from streamfold.writes.descriptions import (
    ONE,
    Absent,
    All,
    Attribute,
    Attributes,
    Check,
    Delete,
    Description,
    Either,
    Exists,
    Is,
    Names,
    Next,
    NoneOf,
    Put,
    Same,
    Shape,
    Term,
    Unchanged,
    Update,
    Value,
    described,
    shape_of,
)
from streamfold.writes.guarded import LedgerWrite, RowKey, StateKey

T = TypeVar("T")

ActionRequest = dict[str, dict[str, Any]]
"""One action of a transaction: ``{"Update": {...}}``."""
Statement = Mapping[str, Any]
"""A PartiQL statement with its parameters."""
COMPARED_MAX = 150
"""Attributes of an image that are compared: an expression has 300 operators and 4 KB at most (Developer Guide,
ServiceQuotas), and each attribute but the first takes two operators.
"""
NAMES, VALUES = "ExpressionAttributeNames", "ExpressionAttributeValues"
VERBS: Mapping[type, str] = {Put: "Put", Update: "Update", Delete: "Delete", Check: "ConditionCheck"}
ALIASES = tuple(f":{number}" for number in range(100))
"""Aliases of values that are made once; few requests have more."""
PLACEHOLDERS = ("#", ":")
"""What a name of a key attribute may not begin with: DynamoDB takes it for a placeholder of an expression, and refuses
each such statement with a ValidationError."""


class Expression:
    """Collects the names and values of one request under short aliases."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: list[Any] = []

    def name(self, name: str) -> str:
        return self.names.setdefault(name, f"#{len(self.names)}")

    def value(self, value: Any) -> str:
        self.values.append(encode(value))
        return f":{len(self.values) - 1}"

    def arguments(self) -> dict[str, Any]:
        """The names and values; DynamoDB refuses either of them empty."""
        given = {NAMES: {alias: name for name, alias in self.names.items()}, VALUES: aliased(self.values)}
        return {argument: aliases for argument, aliases in given.items() if aliases}


class Values(NamedTuple):
    """What writes of one shape put into their expressions."""

    names: Callable[[Any], tuple[tuple[str, ...], ...]]  # those in the mappings of a write: they are part of the text
    values: Callable[[Any, int], list[Any]]  # of a write and ``expires_at``


class Requests:
    """Turns writes into actions for the real tables behind logical names."""

    def __init__(self, tables: Mapping[str, tuple[Table, str]], state_table: str) -> None:
        self.tables = tables
        self.state_table = state_table
        self._values: dict[Shape, Values] = {}
        self._texts: dict[Shape, tuple[str, dict[str, Any]]] = {}

    def action(self, write: Any, expires_at: int) -> ActionRequest:
        """The action of a transaction for one write. Raises ``HandlerError`` for values that cannot be stored."""
        key, table = write.key, self._table(write.key)
        shape = shape_of(write, table)
        values = self._values.get(shape) or self._learn_values(shape, write, table)
        given, places = values.values(write, expires_at), None
        if type(write) is LedgerWrite:
            given, places = once_each(given)
        text_shape = shape, table.name, values.names(write), places
        verb, text = self._texts.get(text_shape) or self._learn_text(text_shape, write, table, places)
        request = {"TableName": self._real_name(key), **text}
        if verb == "Put":
            request["Item"] = self.item(write, expires_at)
        else:
            request["Key"] = self.key(key)
        if given:
            request[VALUES] = aliased(given)
        return {verb: request}

    def request(self, write: Any, expires_at: int = 0) -> dict[str, Any]:
        """The arguments of the call that makes a write alone."""
        (request,) = self.action(write, expires_at).values()
        return request

    def item(self, write: Any, expires_at: int = 0) -> dict[str, Any]:
        """The whole item that a write makes where there is none, encoded."""
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
        """Inserts what a write makes where there is no item, if there is none.

        Raises ``HandlerError`` for values that cannot be stored.
        """
        item = self.item(write, expires_at)
        attributes = ", ".join(_text(name) + ": ?" for name in item)
        table = _quoted(self._real_name(write.key))
        return {"Statement": f"INSERT INTO {table} VALUE {{{attributes}}}", "Parameters": list(item.values())}

    def update(self, write: Any, expires_at: int = 0, *, removed: Iterable[str] = (), returning: str = "") -> Statement:
        """Carries out an update of an item that is there, or puts one in its place, without attributes ``removed``.

        Raises ``HandlerError`` as ``insertion`` does.
        """
        description = described(write, self._table(write.key))
        use = _StatementText(write)
        if isinstance(description.change, Update):
            changes = use.update(description.change)
            values = _getter(tuple(use.codes))(write, expires_at)
        else:
            key = self.key(write.key)
            item = {name: value for name, value in self.item(write, expires_at).items() if name not in key}
            changes = [f"SET {_quoted(name)} = ?" for name in item]
            changes += [f"REMOVE {_quoted(name)}" for name in removed if name not in item]
            values = list(item.values())
        return self._on_key(write, f"UPDATE {{}} {' '.join(changes)}", values, description.guard, returning)

    def deletion(self, write: Any, returning: str = "") -> Statement:
        """Removes an item that is there."""
        return self._on_key(write, "DELETE FROM {}", [], described(write, self._table(write.key)).guard, returning)

    def _on_key(self, write: Any, verb: str, values: list[Any], guard: All | Either, returning: str) -> Statement:
        use, key = _StatementText(write), self.key(write.key)
        where = [*(_quoted(name) + " = ?" for name in key), *use.conjunction(guard)]
        statement = f"{verb.format(_quoted(self._real_name(write.key)))} WHERE {' AND '.join(where)}"
        return {
            "Statement": f"{statement} RETURNING {returning} *" if returning else statement,
            "Parameters": [*values, *key.values(), *_getter(tuple(use.codes))(write, 0)],
        }

    def _table(self, key: RowKey | StateKey) -> Table:
        return STATE if type(key) is StateKey else self.tables[key[0]][0]

    def _real_name(self, key: RowKey | StateKey) -> str:
        return self.state_table if type(key) is StateKey else self.tables[key[0]][1]

    def _learn_values(self, shape: Shape, write: Any, table: Table) -> Values:
        use = _ExpressionText(write, table)
        use.request(described(write, table))
        names = "".join(f"tuple({mapping}), " for mapping in use.mappings)
        made = Values(_function("write", f"({names})"), _getter(tuple(use.codes)))
        return _learn(self._values, shape, made)

    def _learn_text(
        self, shape: Shape, write: Any, table: Table, places: Sequence[int] | None
    ) -> tuple[str, dict[str, Any]]:
        description = described(write, table)
        request = _ExpressionText(write, table, places).request(description)
        return _learn(self._texts, shape, (VERBS[type(description.change)], request))


class _Text(ABC):
    """The text of a condition. Its values are collected as the code that gives them, in the order of the text."""

    def __init__(self, write: Any) -> None:
        self.write = write
        self.codes: list[str] = []
        self.mappings: list[str] = []  # code of the mappings whose names are in the text

    def condition(self, group: All | Either) -> str:
        """The terms of a group; "" where it requires nothing."""
        word = " AND " if isinstance(group, All) else " OR "
        return word.join([text for term in self.open_terms(group) for text in self.terms(term)])

    def open_terms(self, group: All | Either) -> Sequence[Term]:
        """The terms that may hold, and may not."""
        return group.terms

    def terms(self, term: Term) -> list[str]:
        match term:
            case Exists(there):
                return [f"attribute_{'exists' if there else 'not_exists'}({self.partition()})"]
            case Absent(name):
                return [f"attribute_not_exists({self.name(name)})"]
            case Is(name, operator, value):
                return [f"{self.name(name)} {operator} {self.value(value)}"]
            case NoneOf(names):
                self.mappings.append(f"write.{names}")
                return [f"attribute_not_exists({self.name(name)})" for name in getattr(self.write, names)]
            case Same(mapping):
                return [f"{name} = {value}" for name, value in self.each(mapping)]
            case Unchanged(image):
                self.mappings.append(f"compared(write.{image})")
                self.codes.append(f"*compared(write.{image}).values()")
                return [f"{self.name(name)} = {self.next_value()}" for name in compared(getattr(self.write, image))]
            case All() | Either():
                text = self.condition(term)
                return [text if len(self.open_terms(term)) == 1 else f"({text})"]

    def each(self, mapping: str) -> list[tuple[str, str]]:
        """The names and values of a mapping of the write."""
        self.mappings.append(f"write.{mapping}")
        self.codes.append(f"*map(encode, write.{mapping}.values())")
        return [(self.name(name), self.next_value()) for name in getattr(self.write, mapping)]

    def attributes(self, parts: Iterable[Attribute | Attributes]) -> list[tuple[str, str]]:
        """The names and values of what is set or added."""
        found: list[tuple[str, str]] = []
        for part in parts:
            if isinstance(part, Attributes):
                found += self.each(part.mapping)
            else:
                found.append((self.name(part.name), self.value(part.value)))
        return found

    def listed(self, removes: Iterable[str | Names]) -> list[str]:
        """The names of what is removed."""
        found: list[str] = []
        for part in removes:
            if isinstance(part, Names):
                self.mappings.append(f"write.{part.names}")
                found += map(self.name, getattr(self.write, part.names))
            else:
                found.append(self.name(part))
        return found

    def value(self, value: Value) -> str:
        self.codes.append(f"encode({value.code})")
        return self.next_value()

    @abstractmethod
    def name(self, name: str) -> str: ...

    @abstractmethod
    def next_value(self) -> str:
        """Stands for the value whose code was added."""

    @abstractmethod
    def partition(self) -> str: ...


class _ExpressionText(_Text):
    """The expressions of a request, with names and values under short aliases."""

    def __init__(self, write: Any, table: Table, places: Sequence[int] | None = None) -> None:
        super().__init__(write)
        self.table = table
        self.places = places  # of each value among those that are sent; None: each is sent
        self._aliases: dict[str, str] = {}
        self._count = 0

    def request(self, description: Description) -> dict[str, Any]:
        """The arguments of a call, but for table, key and values; DynamoDB refuses each of them empty."""
        condition = self.condition(description.guard)
        given = {
            "UpdateExpression": self.update(description.change) if isinstance(description.change, Update) else None,
            "ConditionExpression": condition or None,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD" if condition and description.tells else None,
            NAMES: {alias: name for name, alias in self._aliases.items()} or None,
        }
        return {argument: content for argument, content in given.items() if content is not None}

    def update(self, change: Update) -> str:
        sets: list[str] = []
        for part in change.sets:
            if isinstance(part, Next):
                name = self.name(part.name)
                sets.append(f"{name} = if_not_exists({name}, {self.value(part.start)}) + {self.value(ONE)}")
            else:
                sets += [f"{name} = {value}" for name, value in self.attributes([part])]
        made = {
            "SET": sets,
            "REMOVE": self.listed(change.removes),
            "ADD": [f"{name} {value}" for name, value in self.attributes(change.adds)],
            "DELETE": [f"{name} {value}" for name, value in self.attributes(change.takes)],
        }
        return " ".join(f"{verb} {', '.join(texts)}" for verb, texts in made.items() if texts)

    def name(self, name: str) -> str:
        return self._aliases.setdefault(name, f"#{len(self._aliases)}")

    def value(self, value: Value) -> str:
        if type(self.write) is not LedgerWrite:
            return super().value(value)
        self.codes.append(value.code)  # ``once_each`` encodes it
        return self.next_value()

    def next_value(self) -> str:
        place = self._count if self.places is None else self.places[self._count]
        self._count += 1
        return f":{place}"

    def partition(self) -> str:
        return "pk" if type(self.write.key) is StateKey else self.name(self.table.partition)


class _StatementText(_Text):
    """The clauses of a statement on an item that is there: what asks whether it is there is left out."""

    def open_terms(self, group: All | Either) -> Sequence[Term]:
        return [term for term in group.terms if not isinstance(term, Exists)]

    def conjunction(self, group: All | Either) -> list[str]:
        """The terms of a group, to be joined with others by AND."""
        terms = self.open_terms(group)
        if isinstance(group, All):
            return [text for term in terms for text in self.terms(term)]
        if len(terms) == 1 and isinstance(terms[0], All | Either):
            return self.conjunction(terms[0])
        return self.terms(group)

    def update(self, change: Update) -> list[str]:
        clauses: list[str] = []
        for part in change.sets:
            if isinstance(part, Next):
                clauses.append(f"SET {self.name(part.name)} = {self.name(part.name)} + 1")
            else:
                clauses += [f"SET {name} = {value}" for name, value in self.attributes([part])]
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
    """Attribute values of texts, whole numbers and ``True``, each text once; and which of them each value is.

    A ledger write says most texts several times, such as the version of a change.
    """
    values: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    places = []
    for value in given:
        place = len(values)
        if type(value) is str:
            place = known.setdefault(value, place)
            if place == len(values):
                values.append({"S": value} if value.isascii() else encode(value))
        else:
            values.append({"BOOL": True} if value is True else {"N": str(value)})
        places.append(place)
    return values, tuple(places)


def compared(image: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an image that an expression compares."""
    return {name: image[name] for name in sorted(image)[:COMPARED_MAX]}


@lru_cache(SHAPES_MAX)
def _getter(codes: tuple[str, ...]) -> Callable[[Any, int], list[Any]]:
    """What gives the values of a write and ``expires_at``, in order."""
    made: Callable[[Any, int], list[Any]] = _function("write, expires_at", f"[{', '.join(codes)}]")
    return made


def _function(arguments: str, code: str) -> Any:
    # The code is the descriptions': nothing of an item or of a handler is compiled.
    return eval(f"lambda {arguments}: {code}", {"encode": encode, "compared": compared})  # noqa: S307


def _learn(known: dict[Shape, T], shape: Shape, made: T) -> T:
    """Keeps what was made for a shape."""
    if len(known) >= SHAPES_MAX:
        known.clear()
    known[shape] = made
    return made


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
