"""Clauses and conditions of a DynamoDB request, with every name and value under a short alias."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamfold.records.values import encode
from streamfold.writes.guarded import NO_VALUES, LedgerPart

ALIASES = tuple(f":{number}" for number in range(100))
"""Aliases of values that are made once; few requests have more."""


def aliased(values: Sequence[Any]) -> dict[str, Any]:
    """Attribute values under the aliases that an ``Expression`` gives them one after another."""
    if len(values) <= len(ALIASES):
        return dict(zip(ALIASES, values, strict=False))
    return {f":{number}": value for number, value in enumerate(values)}


def once_each(given: Iterable[Any]) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
    """Attribute values of texts, whole numbers and ``True``, each text once; and for each text which of them it is."""
    values: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    pattern = []
    for value in given:
        if type(value) is not str:
            values.append({"BOOL": True} if value is True else {"N": str(value)})
            continue
        place = places.setdefault(value, len(values))
        pattern.append(place)
        if place == len(values):
            values.append({"S": value} if value.isascii() else encode(value))
    return values, tuple(pattern)


class Expression:
    """Collects the names and values of one request under short aliases. ``once``: equal texts have one alias."""

    def __init__(self, *, once: bool = False) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.texts: dict[str, str] | None = {} if once else None  # the alias of each text

    def name(self, name: str) -> str:
        return self.names.setdefault(name, f"#{len(self.names)}")

    def value(self, value: Any) -> str:
        if self.texts is None or not isinstance(value, str):
            return self.encoded(encode(value))
        if value not in self.texts:
            self.texts[value] = self.encoded(encode(value))
        return self.texts[value]

    def encoded(self, value: Any) -> str:
        """The alias of an attribute value."""
        alias = f":{len(self.values)}"
        self.values[alias] = value
        return alias

    def arguments(self) -> dict[str, Any]:
        """The names and values; DynamoDB refuses either of them empty."""
        names = {alias: name for name, alias in self.names.items()}
        given = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": self.values}
        return {argument: aliases for argument, aliases in given.items() if aliases}

    def condition(self, *terms: str, tells: bool = True) -> dict[str, Any]:
        """The condition that all terms hold, if there is one. ``tells``: a refusal brings the item that was found."""
        condition = {"ConditionExpression": " AND ".join(terms)} if terms else {}
        found = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"} if terms and tells else {}
        return condition | found | self.arguments()


def clauses(
    use: Expression,
    values: Mapping[str, Any],
    removed: Iterable[str],
    amounts: Mapping[str, Any] = NO_VALUES,
    taken: Mapping[str, Any] = NO_VALUES,
) -> str:
    """An update that sets and removes attributes, adds to numbers and sets, and takes members from sets."""
    sets = ", ".join(f"{use.name(name)} = {use.value(value)}" for name, value in values.items())
    removes = ", ".join(use.name(name) for name in removed)
    adds = ", ".join(f"{use.name(name)} {use.value(amount)}" for name, amount in amounts.items())
    deletes = ", ".join(f"{use.name(name)} {use.value(members)}" for name, members in taken.items())
    made = (("SET", sets), ("REMOVE", removes), ("ADD", adds), ("DELETE", deletes))
    return " ".join(f"{verb} {what}" for verb, what in made if what)


def still_expected(use: Expression, part: LedgerPart) -> str:
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


def counts_live(use: Expression, live: int) -> str:
    name, same = use.name("live"), f"{use.name('live')} = {use.value(live)}"
    return same if live else f"(attribute_not_exists({name}) OR {same})"


def has_revision(use: Expression, revision: int) -> str:
    name = use.name("r")
    return f"{name} = {use.value(revision)}" if revision else f"attribute_not_exists({name})"
