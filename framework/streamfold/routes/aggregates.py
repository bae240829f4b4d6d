"""Aggregates: the value of one attribute of a row over its sources. One class defines one of them.

| question | answer |
| --- | --- |
| the value of an item | the constructor: a handler yields the value, ``Row(total=Sum(5))`` |
| how values join | ``Added``: amounts are added up; ``Ordered``: entries are kept in an order, and some of them count |
| the value of a row | the sum; or ``show`` of the values that count |
| how shards merge | sums are added up; or ``kept`` of each shard are put in order, and shown as those of a row are |
| how the state knows it | ``form``: another aggregation of the attribute is refused (``ledger.schema``) |
| how proofs check it | ``fold``, a plain function of all values of the sources, which uses none of the above |

**Added** have an inverse. The ledger stores amounts, and one addition to the row, merged over all sources of a batch,
moves them: no read, whatever the number of sources.

**Ordered** have none. A source contributes an *entry*, a state item of its own below its row, sorted by the text of its
value. ``commit.recompute`` reads the entries that count and writes what the class shows of them: a removed extreme
leaves no trace, and the next value is read, not searched for. Beside the row itself that costs two write units for an
entry that appears or disappears, four for one that moves, and one read for each touched row of a batch. If a change
concerns the entries that count, it costs one query and one write more for each row and batch. Ledger and rows name the
class by a stored name: the text ``max:1`` is an ``Aggregation`` of a class, and the number of entries that count.

``shipped_aggregates`` are the framework's; ``streamfold docs aggregates`` shows how to write one of your own.
"""

import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import date
from decimal import Decimal, DecimalException, localcontext
from functools import lru_cache
from types import EllipsisType
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from streamfold.errors import DeclarationError, HandlerError, plain, redacted, shown
from streamfold.records.values import (
    EXACT,
    INTEGER_MAX,
    INTEGER_MIN,
    UNESCAPED,
    Number,
    encode,
    inexact_text,
    number_text,
    sortable,
)

Amounts = tuple[tuple[str, Number], ...]
"""Attributes of a row, each with the amount that is added to it."""
SUM = "Sum"
"""The aggregation of an attribute that is added up."""

ALL_MAX = 1000
"""Entries that are read where all of a row's count: each change reads all of them (for ``Distinct`` with a query for
each value that more than a hundred sources share), and a function has a minute."""
OWN_BYTES_MAX = 2048
"""Bytes of a value of an aggregate that is not the framework's: all that count are read at once."""
ORDER_BYTES_MAX = 400
"""Bytes of a value that orders, as text that sorts as it does: they share a sort key of 1,024 bytes (Developer Guide,
Limits) with the source's."""
VALUE_BYTES_MAX = 32 * 1024
"""Bytes of an entry's value: a transaction of 4 MB holds 98 of them (API Reference, TransactWriteItems)."""
ORDERINGS_KEPT_MAX = 1000
"""Orderings that are kept: an application has a few, and each row is read with one."""
ESCAPED = {code: f"${code:02x}" for code in range(ord("$") + 1)}
"""Letters up to ``$`` are spelled with it, so that the ``#`` behind a text sorts before every continuation of the text.
"""

Moment = Number | str | bytes | date
"""A value that orders entries: a number, text, bytes, or a date or time, which is text in the order of time."""
Saying = Callable[[], str]
"""How a message names a value. It is written when a message is: nearly no value has one."""
Ties = Literal["smallest key", "largest key"]
"""Which of the sources with equal ``by`` counts first: that with the smallest or the largest key."""
TIES: tuple[Ties, Ties] = get_args(Ties)
SMALLEST_KEY, LARGEST_KEY = TIES

OWN = "own/"
"""Begins the stored names of users' aggregates: no later version of the framework uses such a name for its own."""
BY, IN_SHARDS = "-by", "-sharded"
"""End such stored names: values are ordered by another value; the row is one of several shards."""
STORED_NAME = re.compile("[a-z][a-z0-9_]{0,39}")
CHANGES_FORMAT = ("show", "fold", "largest_first", "ties", "in_shards")
"""A class that has the stored name of another class must share these attributes with it."""


class Aggregate:
    """The value of one attribute of a row over its sources."""

    __slots__ = ()

    @abstractmethod
    def form(self) -> str:
        """How the attribute is made, as precisely as one process distinguishes it (``ledger.schema``)."""

    @abstractmethod
    def folded(self, name: str, given: Sequence[Any]) -> Mapping[str, Any]:
        """The attributes of a row whose sources give these values, for proofs to compare with.

        ``given`` are the values in the order of their sources' keys; ``self`` is one of them.
        """


class Added(Aggregate):
    """An aggregate of numbers that are added up: amounts of amended, moved and deleted sources are subtracted again.
    The base of your own: ``amounts`` gives the amounts of a source by attribute. See ``streamfold docs aggregates``.
    """

    __slots__ = ()

    @abstractmethod
    def amounts(self, name: str) -> Amounts:
        """The amounts that this source adds, by attribute, if the row's attribute has this name."""

    def form(self) -> str:
        return SUM  # each of its attributes is a sum like any other

    def folded(self, name: str, given: Sequence["Added"]) -> Mapping[str, Any]:
        found: dict[str, Number] = {}
        for each in given:
            for attribute, amount in each.amounts(name):
                found[attribute] = found.get(attribute, 0) + amount
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Added) and type(self) is type(other) and self.amounts("") == other.amounts("")

    def __hash__(self) -> int:
        return hash((type(self), self.amounts("")))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={amount!r}' for name, amount in self.amounts(''))})"


def checked_number(value: Number, name: str) -> Number:
    """A number that a row can store. Raises ``HandlerError``, which names the aggregate, for any other value."""
    if type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX:  # as nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        hint = _number_remedy(value, name)
        raise HandlerError(f"{name}({shown(value)}) is of type {type(value).__name__}, expected int or Decimal{hint}.")
    number_text(value)  # raises for a number that cannot be stored
    return value


def _number_remedy(value: object, name: str) -> str:
    if isinstance(value, float):
        return f": use Decimal({str(value)!r}); in place of a / b, divide(a, b, places=2)"
    if isinstance(value, str):
        return f": a number that is stored as text becomes one by {name}(Decimal(item[...])); Count() counts items"
    return f": leave {name} out for an item without a value" if value is None else ""


# Aggregates of entries.


class Aggregation(NamedTuple):
    """How an aggregate orders its entries, and which of them a row keeps, under one stored name."""

    name: str  # in ledger and rows: never change it
    descending: bool = False  # the largest ``by`` counts first
    largest_key: bool = False  # among equal ``by``, the source with the largest key counts first
    by_value: bool = False  # the value itself orders, so an entry needs no other content
    once: bool = False  # each value counts once
    collects: bool = False  # the row's cut-off shows whether there are more values
    sharded: str = ""  # the aggregation of the attribute on a row that is spread over shards, if it differs
    keeps: bool = False  # beside its value the row keeps what readers need to merge shards (``kept``)
    aggregate: "type[Ordered]" = None  # type: ignore[assignment]  # set when the class is entered

    @property
    def in_store(self) -> bool:
        """Whether the order, ties included, is the one in which a store reads entries."""
        return self.descending == self.largest_key


AGGREGATIONS: dict[str, Aggregation] = {}
"""The aggregations of all imported classes, by name."""


class Ordering(NamedTuple):
    """An aggregation and the number of entries that count, 0 for all; as text: ``max:1``, ``top:3``."""

    form: Aggregation
    most: int
    text: str

    def in_shards(self) -> "Ordering":
        """The ordering of the same attribute on a row that is spread over shards."""
        return ordering(self.form.sharded, self.most) if self.form.sharded else self


def ordering(name: str, most: int) -> Ordering:
    """The ordering of an aggregation of which ``count`` entries count."""
    return ordering_of(f"{name}:{most}")


@lru_cache(ORDERINGS_KEPT_MAX)
def ordering_of(text: str) -> Ordering:
    """The ordering of a text. Raises ``HandlerError`` if the class of the aggregate was not imported."""
    name, _, most = text.partition(":")
    if name not in AGGREGATIONS:
        raise HandlerError(
            f"Attributes of rows are stored as {name!r}, and this code has no aggregate of that name. Import the "
            "module of its class wherever handlers run. If the aggregate is removed, keep its class until the rows "
            "of its handler are rebuilt or retired."
        )
    return Ordering(AGGREGATIONS[name], int(most), text)


class ShardValue(NamedTuple):
    """An attribute in the row of one shard."""

    form: Aggregation
    name: str
    shown: Any
    position: str  # of the last entry that counts; "" if all do
    kept: Sequence[Any] | None  # entries that the row keeps for its readers; None if the aggregation keeps none


class Ordered(Aggregate):
    """A value with its sort position among those of the other sources. The base of aggregates of your own.

    A class of your own has a name for rows and ledger, ``stored_as``, and two static methods, ``show`` and ``fold``.
    Values are ordered by themselves, or ``by`` another one. ``most`` of them count; by default all of them, 1,000 on a
    row. See ``streamfold docs aggregates``.
    """

    __slots__ = ("by", "content", "message", "order", "ordering", "value")

    stored_as: ClassVar[str] = ""  # never change it, even if the class is renamed
    largest_first: ClassVar[bool] = False
    ties: ClassVar[Ties] = SMALLEST_KEY  # which of the sources with equal ``by`` counts first
    in_shards: ClassVar[bool] = False  # rows with ``shards=`` may have it: each then keeps the values that count
    forms: ClassVar[
        tuple[Aggregation, ...]
    ] = ()  # of the framework's; users' classes derive theirs from the attributes above
    of_one_source: ClassVar[bool] = False  # it shows the value of one source as it is
    declared_at: ClassVar[str] = ""

    by: Any
    value: Any

    def __init__(self, value: Any, *, by: Moment | EllipsisType = ..., most: int = 0) -> None:
        def message() -> str:
            return f"{type(self).__name__}({shown(value)}{'' if by is ... else f', by={shown(by)}'})"

        if not self.stored_as:
            raise HandlerError(f"{message()} has no stored name: give its class a name for rows, stored_as = '...'.")
        if most:
            check_most(most, ALL_MAX, message)
        form = OWN + self.stored_as
        self._set(
            ordering(form, most) if by is ... else ordering(form + BY, most), value if by is ... else by, value, message
        )
        check_size(self.content, message, OWN_BYTES_MAX)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        frame = sys._getframe(1)  # noqa: SLF001 - the one way to know where a class was written
        cls.declared_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        _enter(cls)

    def _set(self, ordering: Ordering, by: Any, value: Any, message: Saying) -> None:
        self.message: Saying = message
        self.by = by
        self.ordering: Ordering = ordering
        self.order: str = order_text(by, message)
        self.value = value
        self.content: str = content_text(value, message)

    @staticmethod
    @abstractmethod
    def show(values: Sequence[Any]) -> Any:
        """The value that a row shows, from the values that count, in their order; there is at least one."""

    @staticmethod
    @abstractmethod
    def fold(given: Sequence[Any]) -> Any:
        """The value that a row must show if its sources give these, in the order of the sources' keys.

        Each has a ``value`` and the value that orders it, ``by``. Proofs compare with the result, so do not call
        ``show``.
        """

    @classmethod
    def keep(cls, form: Aggregation, places: Sequence[str], values: Sequence[Any]) -> list[Any]:
        """The data that a shard's row keeps of the entries that count, for ``kept``."""
        return list(values) if form.by_value else [list(each) for each in zip(places, values, strict=True)]

    @classmethod
    def kept(cls, shard: ShardValue) -> list[tuple[str, Any]]:
        """The entries that count for the row of a shard, each with its sort position, or with the text that orders it.

        Raises ``TypeError`` if the row does not hold them.
        """
        if shard.kept is None:
            raise TypeError(
                f"Attribute {shard.name!r} is made of values that its shards do not keep, because its view has no "
                f"shards=: give the function that combines them, combine={{{shard.name!r}: list}}."
            )
        if shard.form.by_value:
            return [(order_of_read(value), value) for value in shard.kept]
        return [(place, value) for place, value in shard.kept]

    def form(self) -> str:
        return type(self).__name__ if self.forms else OWN + self.stored_as

    def folded(self, name: str, given: Sequence["Ordered"]) -> Mapping[str, Any]:
        return {name: _called(self.ordering.form.aggregate, "fold", given)}

    def with_value(self, value: Any) -> "Ordered":
        """The same with another value, at the same position."""
        other = copy(self)
        other.value = value
        other.content = content_text(value, self.message)
        return other

    def _content(self) -> tuple[Any, ...]:
        return self.ordering.text, self.order, self.content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        return plain(self.message())


def shown_of(form: Aggregation, values: Sequence[Any]) -> Any:
    """The value that a row shows. Raises ``HandlerError`` if the class fails."""
    return _called(form.aggregate, "show", values)


def _called(aggregate: type[Ordered], function: str, values: Sequence[Any]) -> Any:
    """The result of ``show`` or ``fold``. Raises ``HandlerError`` for any error of the class."""
    call = getattr(aggregate, function)
    try:
        # A row is made after the commit, in a thread with a context of its own, which would round.
        with localcontext(EXACT):
            return call(values)
    except DecimalException as error:
        raise HandlerError(f"{_named(aggregate)}: {function} {inexact_text(error)}") from error
    except Exception as error:  # of a user's class, or of values that an earlier aggregate left: no other record fails
        raise HandlerError(
            f"{_named(aggregate)}: {function} raised {type(error).__name__} on {len(values)} values: {redacted(error)}"
        ) from error


def _enter(aggregate: type[Ordered]) -> None:
    """Registers the aggregations of a class. Raises ``DeclarationError`` for a class that rows would confuse with
    another.
    """
    own, base = vars(aggregate), aggregate.__mro__[1]
    names_own = "stored_as" in own or any(form.name.startswith(OWN) for form in aggregate.forms)
    if names_own and aggregate.__module__.startswith("streamfold."):
        raise DeclarationError(
            f"{_named(aggregate)} is the framework's, and its rows would have a name of users' aggregates, {OWN!r}: "
            "give it forms = (Aggregation(...),) in place of stored_as, and an __init__ that calls self._set(...). "
            "See 'Add an aggregate' in .github/CONTRIBUTING.md."
        )
    if "forms" not in own and "stored_as" not in own:
        changed = [name for name in CHANGES_FORMAT if name in own]
        if changed and (aggregate.forms or aggregate.stored_as):
            raise DeclarationError(
                f"{_named(aggregate)} has another {changed[0]} than {base.__name__}, and the same name in rows: "
                "derive it from Ordered, or give it a name of its own, stored_as = '...'."
            )
        return
    if aggregate.forms and "forms" not in own:
        raise DeclarationError(
            f"{_named(aggregate)} has stored_as = {aggregate.stored_as!r}, and {base.__name__} has a stored name of "
            "the framework: derive it from Ordered."
        )
    for form in aggregate.forms or _own_schema(aggregate):
        known = AGGREGATIONS.get(form.name)
        if known is not None and _identity(known.aggregate) != _identity(aggregate):  # or its module is loaded again
            raise DeclarationError(
                f"{_named(aggregate)} is stored as {aggregate.stored_as or form.name!r}, and so is "
                f"{_named(known.aggregate)}: rows would be made by the one or the other. Give one of them another name."
            )
        AGGREGATIONS[form.name] = form._replace(aggregate=aggregate)
    ordering_of.cache_clear()


def _own_schema(aggregate: type[Ordered]) -> list[Aggregation]:
    """The aggregations of a class outside of the framework: its values order themselves or not, in shards or not."""
    name: object = aggregate.stored_as
    if not isinstance(name, str) or not STORED_NAME.fullmatch(name):
        raise DeclarationError(
            f"{_named(aggregate)} has stored_as = {name!r}: expected a name of at most 40 small letters, digits and _ "
            "that begins with a letter, and never changes."
        )
    for function in ("show", "fold"):
        found = next(vars(each)[function] for each in aggregate.__mro__ if function in vars(each))
        if found is vars(Ordered)[function] or not isinstance(found, (staticmethod, classmethod)):
            raise DeclarationError(
                f"{_named(aggregate)} has no static method {function}: expected\n    @staticmethod\n"
                f"    def {function}(values):"
            )
    if aggregate.ties not in TIES:
        raise DeclarationError(
            f"{_named(aggregate)} has ties = {aggregate.ties!r}: expected {TIES[0]!r} or {TIES[1]!r}."
        )
    found_schema = []
    for stored, by_value in ((OWN + name, True), (OWN + name + BY, False)):
        form = Aggregation(stored, aggregate.largest_first, aggregate.ties == LARGEST_KEY, by_value=by_value)
        sharded = stored + IN_SHARDS
        found_schema += [form._replace(sharded=sharded), form._replace(name=sharded, keeps=True)]
    return found_schema


def _identity(aggregate: type) -> tuple[str, str]:
    return aggregate.__module__, aggregate.__qualname__


def _named(aggregate: type[Ordered]) -> str:
    return f"Aggregate {aggregate.__name__} ({aggregate.declared_at})"


def check_most(most: object, limit: int, message: Saying) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= limit:
        raise HandlerError(
            f"{message()} keeps {shown(most)} values: expected a whole number from 1 to {limit}. All records of the "
            "handler fail; a test that calls it once shows it. For more values write a row for each, with an index, "
            "and query them."
        )


def order_text(value: Any, message: Saying) -> str:
    """Text for a value that sorts as the values do: its type, then the value, without any letter up to ``#``.

    Raises ``HandlerError`` for a value that does not compare; ``message`` begins its text.
    """
    if isinstance(value, bool) or not isinstance(value, (int, Decimal, str, bytes, date)):
        hint = f"; for a float, Decimal({str(value)!r})" if isinstance(value, float) else ""
        hint = "; leave it out for an item without a value" if value is None else hint
        if isinstance(value, list | tuple | set | frozenset):
            hint = "; for several values return several rows, one for each"
        elif isinstance(value, dict):
            hint = "; order by one of its values, by="
        raise HandlerError(
            f"{message()} is ordered by {shown(value)} of type {type(value).__name__}, which does not compare: "
            f"expected a number (int or Decimal), text, bytes, a date or a time{hint}."
        )
    if isinstance(value, (str, date)):
        tag, content = "S", str(encode(value)["S"])
        text = content.translate(ESCAPED)
    else:
        tag, content = "B" if isinstance(value, bytes) else "N", ""
        text = sortable(value)
    if len(text) * 4 > ORDER_BYTES_MAX and (size := len(text.encode())) > ORDER_BYTES_MAX:
        counted = " (each of its bytes counts two)" if tag == "B" else ""
        counted = " (each of its letters up to '$' counts three)" if tag == "S" and text != content else counted
        raise HandlerError(
            f"{message()} is ordered by a value of {size} bytes, {ORDER_BYTES_MAX} at most{counted}: order by the "
            "beginning of it, or by a digest."
        )
    return tag + text


def order_of_read(value: Any) -> str:
    """The text that orders a value as it was read: bytes of boto3 have a class of their own."""
    return order_text(getattr(value, "value", value), lambda: shown(value))


def content_text(value: Any, message: Saying) -> str:
    """The canonical text of a value. Raises ``HandlerError`` where it cannot be stored or is too large."""
    text = UNESCAPED.encode(encode(value))
    check_size(text, message, VALUE_BYTES_MAX)
    return text


def check_size(text: str, message: Saying, bytes_max: int) -> None:
    if len(text) * 4 > bytes_max and (size := len(text.encode())) > bytes_max:
        raise HandlerError(
            f"{message()} has a value of {size} bytes, {bytes_max} at most: keep its key, or less of it."
        )
