"""The tables that an application reads and writes, by logical name."""

import re
from typing import Literal, get_args

from streamfold.errors import DeclarationError, HandlerError, shown
from streamfold.limits import NAME_BYTES_MAX

ViewType = Literal["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""Names of applications, tables, groups and handlers: they become parts of state keys and attribute names."""
REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]+"
"""Names of regions (General Reference, rande), those of other partitions too."""

RESERVED_PREFIX = "_sf_"
"""The framework's own attributes on derived rows begin with this; handlers and readers do not see them."""

CONTRIBUTORS = RESERVED_PREFIX + "n"
"""How many contributions a row stands on. At 0 the row is absent to every reader."""
VERSION = RESERVED_PREFIX + "v"
"""The version of the change that a row-guarded row was last written by."""
PARTNER_VERSION = RESERVED_PREFIX + "x"
"""Beside ``VERSION`` on a row that was made of two items: the version of the second."""
DERIVED = RESERVED_PREFIX + "a"
"""On an item of the application: the names of the attributes that are derived onto it, by ``APPLICATION/HANDLER``."""
OWNER = RESERVED_PREFIX + "o"
"""The source item that owns a row, where the templates alone cannot show it."""
MARK = "#"
"""Begins what stands in the owner's place while a row is corrected: no application's name begins so. Every write of the
row takes it away, so what was found out about the row before is not written after it."""
STAMP = RESERVED_PREFIX + "s"
"""Unique to the last step that moved entries below a row: what was read before it cannot be written after it."""
EDGE = RESERVED_PREFIX + "e_"
"""Before an attribute's name: its ordering, and the last place below the row that counts for it."""
PLACES = RESERVED_PREFIX + "p_"
"""Before an attribute's name: the places of the entries that it lists, where the lists of shards are to be merged."""
LIFE = RESERVED_PREFIX + "l"
"""The life of a row that expires: unique to the step that made the row, so that a row made again has another one."""
PLAIN_NAMES = RESERVED_PREFIX + "w"
"""The names of a row's plain attributes, where several sources have them and one wins."""


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


class Table:
    """A DynamoDB table, by a logical name.

    ``name`` is logical: ``STREAMFOLD_TABLE_<NAME>`` or ``--table name=real`` gives the real one, which is otherwise
    the name itself. ``partition`` and ``sort`` are the key attributes (``sort=None`` for a table with a partition key
    only), ``ttl`` the table's time-to-live attribute if it has one, ``view`` the stream's view type if it is known:
    what cannot work under it is then refused when the application is built. ``delimiter`` separates the fields of a
    key. ``region`` is another region than the application's: such a table holds copies (``Router.copy``), nothing else.
    """

    __slots__ = ("_said", "attributes", "delimiter", "name", "partition", "region", "sort", "ttl", "view")

    def __init__(
        self,
        name: str,
        partition: str = "PK",
        sort: str | None = "SK",
        ttl: str | None = None,
        view: ViewType | None = None,
        delimiter: str = "#",
        region: str | None = None,
    ) -> None:
        self.name, self.partition, self.sort = name, partition, sort
        self.ttl, self.view, self.delimiter, self.region = ttl, view, delimiter, region
        self.attributes = (partition,) if sort is None else (partition, sort)
        """The names of the key attributes."""
        self._said = (name, partition, sort, ttl, view, delimiter, region)
        _check_table(self)

    def without_ttl(self) -> "Table":
        """The table as a key knows it that says nothing of its time to live."""
        return Table(self.name, self.partition, self.sort, None, self.view, self.delimiter, self.region)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Table) and self._said == other._said)

    def __hash__(self) -> int:
        return hash(self._said)

    def __repr__(self) -> str:
        names = ("name", "partition", "sort", "ttl", "view", "delimiter", "region")
        return f"Table({', '.join(f'{name}={said!r}' for name, said in zip(names, self._said, strict=True))})"


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

Another key of the application may say more of it, ``Table("main", ttl="expires")``.
"""
STATE = Table("streamfold.state", "pk", "sk", ttl="ttl")
"""The state table as a place of rows, which a handler's ``attributes`` are before they are copied onto their items."""


def merged(one: Table, other: Table) -> Table | None:
    """What two declarations of one table say together; None where they say different things.

    Only a key that names no table says nothing of its time to live.
    """
    if one == other or one == MAIN == other.without_ttl():
        return other
    return one if other == MAIN == one.without_ttl() else None


def is_in_state(row: tuple[object, ...]) -> bool:
    """Whether a row lies in the state table: its kind brings what it holds to where it is read."""
    return row[0] == STATE.name
