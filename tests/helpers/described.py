"""The descriptions of writes, evaluated as they are read: a model of every store, without a line of a store's code."""

from decimal import Decimal

from streamfold.keys.table import STATE
from streamfold.records.values import decode, encode, same
from streamfold.writes import descriptions as d
from streamfold.writes.guarded import StateKey

OPERATORS = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">=": lambda one, other: one >= other,
}


def equal(one, other):
    return same(encode(one), encode(other))


class Model:
    """One write on one item, both with plain values; None: there is no item. ``table`` is that of a row."""

    def __init__(self, write, table=STATE, expires_at=0):
        self.write, self.expires_at = write, expires_at
        self.described = d.described(write, table)
        key = write.key if isinstance(write.key, StateKey) else write.key[1:]
        self.key = {name: value for name, value in zip(table.attributes, key, strict=False) if value is not None}

    def value(self, value):
        return eval(value.code, {"write": self.write, "expires_at": self.expires_at})

    def given(self, part):
        """The attributes that a part of a change gives."""
        if isinstance(part, d.AttributesOf):
            return dict(getattr(self.write, part.mapping))
        return {part.name: self.value(part.value)}

    def holds(self, item, term=None):
        term = self.described.guard if term is None else term
        stored = item or {}
        match term:
            case d.Exists(exists):
                return (item is not None) is exists
            case d.Absent(name) | d.Present(name):
                return (name in stored) is isinstance(term, d.Present)
            case d.Is(name, "=", value):
                return name in stored and equal(stored[name], self.value(value))
            case d.Is(name, operator, value):
                return name in stored and OPERATORS[operator](stored[name], self.value(value))
            case d.Same(mapping):
                given = getattr(self.write, mapping)
                return all(name in stored and equal(stored[name], given[name]) for name in given)
            case d.NoneOf(names):
                return not set(getattr(self.write, names)) & stored.keys()
            case d.Unchanged(image):
                return item is not None and equal(item, decode({"M": getattr(self.write, image)}))
            case d.All(terms):
                return all(self.holds(item, each) for each in terms)
            case d.Either(terms):
                return any(self.holds(item, each) for each in terms)
        raise AssertionError(term)

    def after(self, item):
        """The item after the write, where its guard holds."""
        change = self.described.change
        match change:
            case "ConditionCheck":
                return item
            case "Delete":
                return None
            case d.Replace(attributes):
                made = dict(self.key)
                for part in attributes:
                    made |= self.given(part)
                return made
        return self._updated(dict(item or self.key), change)

    def _updated(self, made, change):
        for part in change.adds:
            for name, amount in self.given(part).items():
                if isinstance(amount, frozenset):
                    made[name] = made.get(name, set()) | amount
                else:
                    made[name] = Decimal(made.get(name, 0)) + amount
        for part in change.takes:
            made[part.name] = made.get(part.name, set()) - self.value(part.value)
        for part in change.sets:
            if isinstance(part, d.Increment):
                made[part.name] = made.get(part.name, self.value(part.start)) + 1
            else:
                made |= self.given(part)
        gone = [name for part in change.removes for name in self._names(part)]
        return {name: value for name, value in made.items() if name not in gone and value != set()}

    def _names(self, part):
        return [part] if isinstance(part, str) else getattr(self.write, part.names)
