"""The tables that an application reads and writes, by logical name, and the keys of the framework's own items in them.

No template matches the key of an item of the framework's own.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from streamfold.errors import DeclarationError, HandlerError, SettingsError, shown
from streamfold.keys.key_part import KeyValue
from streamfold.settings import TABLE_PREFIX, environment_name
from streamfold.settings.limits import NAME_BYTES_MAX
from streamfold.settings.readers import account_of_role

KeyType = Literal["S", "N", "B"]
"""Types of key attributes (Developer Guide, HowItWorks.NamingRulesDataTypes)."""
IndexKeys = Mapping[str, Mapping[str, KeyType]]
"""Secondary indexes by name, each with its key attributes and their types: the partition key, then the sort key."""
ViewType = Literal["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"]

STRONG = "STRONG"
"""Of a global table: strong consistency across regions (API Reference, TableDescription, MultiRegionConsistency)."""
NO_TRANSACTIONS = (
    "the table has strong consistency across regions (MRSC), and takes neither transactions nor a time to live: no "
    "handler may write to it"
)
"""DynamoDB Developer Guide, global tables, consistency modes."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""Names of applications, tables, groups and handlers: state keys and attribute names contain them."""
REGION = r"[a-z]{2,4}(-[a-z]+)+-[0-9]+"
"""Names of regions (General Reference, rande), also of other partitions."""

RESERVED_PREFIX = "_sf_"
"""The framework's own attributes on derived rows begin with this; handlers and readers do not see them."""

CONTRIBUTORS = RESERVED_PREFIX + "n"
"""The number of contributions to a row. At 0 the row is absent to every reader."""
VERSION = RESERVED_PREFIX + "v"
"""The version of the change that a row-guarded row was last written by."""
PARTNER_VERSION = RESERVED_PREFIX + "x"
"""On a row that is made of two items: the version of the second; ``VERSION`` is that of the first."""
DERIVED = RESERVED_PREFIX + "a"
"""On an item of the application: the names of its derived attributes, by ``APPLICATION/HANDLER``."""
OWNER = RESERVED_PREFIX + "o"
"""The source item that owns a row, where the templates alone cannot show it."""
MARK = "#"
"""Begins the mark that replaces the owner while a row is corrected: no application's name begins so. Every write of the
row removes the mark, so that a correction from an older read is refused.
"""
STAMP = RESERVED_PREFIX + "s"
"""Unique to the last step that changed entries below a row: a write from an older read of the entries is refused."""
EDGE = RESERVED_PREFIX + "e_"
"""Before an attribute's name: its ordering, and the cut-off, the sort position of the last entry that counts."""
PLACES = RESERVED_PREFIX + "p_"
"""Before an attribute's name: the sort positions of the entries that it lists, for merging the lists of shards."""
LIFE = RESERVED_PREFIX + "l"
"""The life of a row that expires: unique to the step that made the row, so that a row made again has another one."""
MARKED = RESERVED_PREFIX + "i"
"""On the marker of a table: which applications and states its rows are of."""
PLAIN_NAMES = RESERVED_PREFIX + "w"
"""The names of a row's plain attributes, where several sources have them and one wins."""
MARKS_OF_ROWS = frozenset((CONTRIBUTORS, OWNER, VERSION))
"""Each row has one of these attributes at least, but for the rows of a history, which are inserted and never replaced.
"""


def is_writers(item: Mapping[str, Any] | None) -> bool:
    """Whether an item at the key of a row is one of the application's own: it has no mark of a row."""
    return item is not None and item.keys().isdisjoint(MARKS_OF_ROWS)


def is_name(value: object) -> bool:
    """Whether a value can name an application, a table or a handler."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def checked_attribute_name(name: object) -> str:
    """The name of an attribute or of a map's entry. Raises ``HandlerError`` for a name that DynamoDB does not store."""
    if not isinstance(name, str) or not name:
        raise HandlerError(f"Name {shown(name)} of an attribute cannot be used: expected text that is not empty.")
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        raise HandlerError(
            f"Name {shown(name)} of an attribute cannot be used: it holds half of a surrogate pair."
        ) from None
    if size > NAME_BYTES_MAX:
        raise HandlerError(
            f"Name {shown(name)} of an attribute has {size} bytes, and DynamoDB takes {NAME_BYTES_MAX} at most: "
            "use a shorter name, or a row for each value."
        )
    return name


INDEX_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
"""Names of secondary indexes (API Reference, GlobalSecondaryIndex)."""
INDEX_KEY_BYTES_MAX = (2048, 1024)
"""Lengths of a partition key and of a sort key (Developer Guide, ServiceQuotas)."""
NO_INDEXES: IndexKeys = MappingProxyType({})


class IndexKey(NamedTuple):
    """The requirements of a table's secondary indexes for one attribute."""

    name: str  # of the first of them
    type: KeyType
    bytes_max: int

    def fault(self, value: Mapping[str, Any]) -> str | None:
        """Why an encoded value cannot be a key, without its content; None if it can."""
        tag, content = next(iter(value.items()))
        if tag != self.type:
            return f"expected type {self.type}, found {tag}"
        if tag == "N":
            return None
        if not content:
            return f"expected {'text' if tag == 'S' else 'bytes'}, found none in it"
        size = _key_bytes(tag, content)
        return None if size <= self.bytes_max else f"expected {self.bytes_max} bytes at most, found {size}"


def _key_bytes(tag: str, content: str | bytes) -> int:
    if isinstance(content, bytes):
        return len(content)
    if tag == "B":  # as base64
        return len(content) * 3 // 4 - content.count("=")
    return len(content.encode(errors="replace"))


class Table:
    """A DynamoDB table, by a logical name.

    ``name`` is logical: ``STREAMFOLD_TABLE_<NAME>`` or ``--table name=real`` gives the real name; by default it is the
    same. ``partition`` and ``sort`` are the key attributes (``sort=None`` for a table with a partition key only),
    ``ttl`` the table's time-to-live attribute if it has one, ``view`` the stream's view type if it is known: handlers
    that cannot work under it are then refused when the application is built. ``delimiter`` separates the fields of a
    key. ``region`` is another region than the application's: such a table holds copies (``Router.copy``), nothing else.
    ``indexes`` are the secondary indexes with the types of their keys, ``{"GSI1": {"GSI1PK": "S", "GSI1SK": "N"}}``:
    twins and local states then refuse the same values as keys of an index as DynamoDB does. The attributes of a key are
    its partition key and, if there are two, its sort key.
    """

    __slots__ = (
        "_declared",
        "attributes",
        "delimiter",
        "index_keys",
        "indexes",
        "name",
        "partition",
        "region",
        "sort",
        "ttl",
        "view",
    )

    def __init__(
        self,
        name: str,
        partition: str = "PK",
        sort: str | None = "SK",
        ttl: str | None = None,
        view: ViewType | None = None,
        delimiter: str = "#",
        region: str | None = None,
        indexes: IndexKeys | None = None,
    ) -> None:
        self.name: str = name
        self.partition: str = partition
        self.sort: str | None = sort
        self.ttl: str | None = ttl
        self.view: ViewType | None = view
        self.delimiter: str = delimiter
        self.region: str | None = region
        self.attributes: tuple[str] | tuple[str, str] = (partition,) if sort is None else (partition, sort)
        """The names of the key attributes."""
        self.indexes: IndexKeys = NO_INDEXES if indexes is None else _frozen_indexes(name, indexes)
        self.index_keys: Mapping[str, IndexKey] = _index_keys(name, self.indexes)
        """The requirements of the indexes, by the attribute's name."""
        own = tuple((index, tuple(keys.items())) for index, keys in self.indexes.items())
        self._declared = (name, partition, sort, ttl, view, delimiter, region, own)
        _check_table(self)

    def __reduce__(self) -> tuple[type["Table"], tuple[object, ...]]:
        """A copy for another process is declared again there: the read-only mappings of indexes cannot be sent."""
        *declared, own = self._declared
        return Table, (*declared, {index: dict(keys) for index, keys in own} or None)

    def as_unsaid(self) -> "Table":
        """The same table without its time to live and its indexes, as a key without ``table=`` has it."""
        return Table(self.name, self.partition, self.sort, None, self.view, self.delimiter, self.region)

    def index_key_fault(self, item: Mapping[str, Any], names: Iterable[str] | None = None) -> str | None:
        """Why DynamoDB would refuse an encoded item for the keys of secondary indexes; None if it does not.

        names: the attributes to check; None for all.
        """
        for name in self.index_keys if names is None else names:
            if name in item and name in self.index_keys and (fault := self.index_keys[name].fault(item[name])):
                return (
                    f"attribute {name!r} is a key of index {self.index_keys[name].name!r} of table {self.name!r}: "
                    f"{fault}. An item without the attribute is left out of the index"
                )
        return None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Table) and self._declared == other._declared)

    def __hash__(self) -> int:
        return hash(self._declared)

    def __repr__(self) -> str:
        names = ("name", "partition", "sort", "ttl", "view", "delimiter", "region")
        declared = [f"{name}={declared!r}" for name, declared in zip(names, self._declared, strict=False)]
        declared += [f"indexes={ {index: dict(keys) for index, keys in self.indexes.items()} }"] if self.indexes else []
        return f"Table({', '.join(declared)})"


def _frozen_indexes(table: str, indexes: object) -> IndexKeys:
    """The indexes of a declaration. Raises ``DeclarationError`` for indexes that no table can have."""
    expected = 'expected {"GSI1": {"GSI1PK": "S", "GSI1SK": "N"}}'
    if not isinstance(indexes, Mapping):
        raise DeclarationError(f"Table {table!r} has indexes={indexes!r}: {expected}.")
    for index, keys in indexes.items():
        if not isinstance(index, str) or not INDEX_NAME.fullmatch(index):
            raise DeclarationError(
                f"Table {table!r} has an index {index!r}: expected 3 to 255 letters, digits, '_', '-' and '.'."
            )
        named = isinstance(keys, Mapping) and all(isinstance(name, str) and name for name in keys)
        if not named or not 1 <= len(keys) <= len(INDEX_KEY_BYTES_MAX):
            raise DeclarationError(
                f"Table {table!r} has the index {index!r} with the keys {keys!r}: expected a partition key and at most "
                f"a sort key with their types, {expected.removeprefix('expected ')}."
            )
        for name, tag in keys.items():
            if tag not in get_args(KeyType):
                raise DeclarationError(
                    f"Table {table!r} has the index {index!r} with the key {name!r} of type {tag!r}: expected 'S' for "
                    "text, 'N' for a number or 'B' for bytes."
                )
    return MappingProxyType({index: MappingProxyType(dict(keys)) for index, keys in indexes.items()})


def _index_keys(table: str, indexes: IndexKeys) -> Mapping[str, IndexKey]:
    """The requirements of the indexes for each attribute. Raises ``DeclarationError`` where they require two types."""
    found: dict[str, IndexKey] = {}
    for index, keys in indexes.items():
        for (name, tag), bytes_max in zip(keys.items(), INDEX_KEY_BYTES_MAX, strict=False):
            known = found.setdefault(name, IndexKey(index, tag, bytes_max))
            if known.type != tag:
                raise DeclarationError(
                    f"Table {table!r} has the key {name!r} of type {known.type!r} in index {known.name!r} and of type "
                    f"{tag!r} in index {index!r}: an attribute that is a key has one type in its table."
                )
            found[name] = known._replace(bytes_max=min(known.bytes_max, bytes_max))
    return found


def _check_table(table: Table) -> None:
    if not is_name(table.name):
        raise DeclarationError(
            f"Table name {table.name!r} cannot be used: expected a letter, then letters, digits, '_', '-' or '.', "
            "64 characters at most. The name is logical; STREAMFOLD_TABLE_<NAME> gives the real one."
        )
    if table.view is not None and table.view not in get_args(ViewType):
        raise DeclarationError(
            f"Table {table.name!r} has view={table.view!r}: expected one of {', '.join(get_args(ViewType))}."
        )
    if len(table.delimiter) != 1 or table.delimiter.isalnum() or table.delimiter in "{}":
        raise DeclarationError(
            f"Table {table.name!r} has delimiter={table.delimiter!r}: expected one character that is no letter, "
            "digit or brace."
        )
    if table.region is not None and not re.fullmatch(REGION, table.region):
        raise DeclarationError(
            f"Table {table.name!r} has region={table.region!r}: expected the name of an AWS region, 'eu-west-1'."
        )
    if not all(table.attributes) or table.partition == table.sort:
        raise DeclarationError(
            f"Table {table.name!r} has partition={table.partition!r} and sort={table.sort!r}: expected the names of "
            "two attributes, or sort=None for a table with a partition key only."
        )


MAIN = Table("main")
"""The table of every ``Key`` that names none: an application with only such keys takes any single table's records.

Another key of the application may declare more of it, ``Table("main", ttl="expires")``.
"""
STATE = Table("streamfold.state", "pk", "sk", ttl="ttl")
"""The state table as a table of rows: it holds the rows of ``attributes`` until they are copied onto their items."""


def merged(one: Table, other: Table) -> Table | None:
    """Two declarations of one table as one; None if they contradict each other.

    Only the table of a key without ``table=`` has no statement about time to live and indexes.
    """
    if one == other or one == MAIN == other.as_unsaid():
        return other
    return one if other == MAIN == one.as_unsaid() else None


def is_in_state(row: tuple[object, ...]) -> bool:
    """Whether a row is in the state table: its kind copies its attributes to where they are read."""
    return row[0] == STATE.name


def check_variables(names: Iterable[str]) -> None:
    """Raises ``DeclarationError`` where one setting would give two tables their real name."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(variable := environment_name(name), name)
        if other != name:
            raise DeclarationError(
                f"Tables {other!r} and {name!r} would both be named by the setting {TABLE_PREFIX}{variable}, and all "
                "records would go to the first: give one of them a logical name that differs in letters or digits."
            )


def check_real_names(
    tables: Mapping[str, tuple[Table, str]],
    state_table: str | None = None,
    role_of: Callable[[str], str | None] = lambda _: None,
) -> None:
    """Raises ``SettingsError`` where two declared tables, or one and the state, are really one.

    role_of: the role by which a table is used, by its logical name. Roles of two accounts use two tables of one name.
    """
    known: dict[tuple[str, str | None, str | None], str] = {}
    of_state = account_of_role(role_of(STATE.name))
    for name, (table, real) in tables.items():
        if name == STATE.name:
            continue
        account = account_of_role(role_of(name))
        if real == state_table and table.region is None and account == of_state:
            raise SettingsError(
                f"Table {name!r} and the state table are both {real!r}: every note of the state would be a record of "
                "the application's stream. Give the state a table of its own, STREAMFOLD_STATE_TABLE."
            )
        other = known.setdefault((real, table.region, account), name)
        if other != name:
            raise SettingsError(
                f"Tables {other!r} and {name!r} are both {real!r}, and its records would go to the first alone: "
                f"expected one declared table for each. Change {TABLE_PREFIX}{environment_name(other)} or "
                f"{TABLE_PREFIX}{environment_name(name)}, or declare one Table and give it to the Keys of both."
            )


MARKER = RESERVED_PREFIX + "marker"
"""The text of the key attributes of a table's marker, which says whose rows the table has (``batch.ownership``). The
marker is an item of the table itself, so that a copy, a backup and a replica of the table bring it along."""
MARKER_BYTES = MARKER.encode()
MARKER_NUMBER = Decimal("-9.9999999999999999999999999999999999999E+125")
"""The least number that DynamoDB stores (API Reference, Data Types, Number): the least likely key of an item."""
MARKER_VALUES: Mapping[str, KeyValue] = {"S": MARKER, "B": MARKER_BYTES, "N": MARKER_NUMBER}
"""By the type of the key attribute."""


def marker_key(table: Table, types: Mapping[str, str]) -> tuple[str, KeyValue, KeyValue | None]:
    sort = None if table.sort is None else MARKER_VALUES[types[table.sort]]
    return table.name, MARKER_VALUES[types[table.partition]], sort


def is_reserved(partition: object) -> bool:
    """Whether a partition key is one of the framework's own items, such as a marker or a reader's pulled authors."""
    if isinstance(partition, str):
        return partition.startswith(RESERVED_PREFIX)
    return partition in (MARKER_BYTES, MARKER_NUMBER)


def is_marker(partition: object) -> bool:
    return partition in (MARKER, MARKER_BYTES, MARKER_NUMBER)


def may_be_reserved(begins: str) -> bool:
    """Whether a partition key that begins so may be one of the framework's own; "" for a template without a literal."""
    return begins.startswith(RESERVED_PREFIX[: len(begins)])
