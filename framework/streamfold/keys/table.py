"""The tables that an application reads and writes, by logical name."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from streamfold.errors import DeclarationError

ViewType = Literal["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""Names of applications, tables, groups and handlers: they become parts of state keys and attribute names."""
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+")
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
STAMP = RESERVED_PREFIX + "s"
"""Unique to the last step that moved entries below a row: what was read before it cannot be written after it."""
EDGE = RESERVED_PREFIX + "e_"
"""Before an attribute's name: its ordering, and the last place below the row that counts for it."""
PLACES = RESERVED_PREFIX + "p_"
"""Before an attribute's name: the places of the entries that it lists, where the lists of shards are to be merged."""
PLAIN_NAMES = RESERVED_PREFIX + "w"
"""The names of a row's plain attributes, where several sources have them and one wins."""


def is_name(value: object) -> bool:
    """Whether a value can name an application, a table or a handler."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Table:
    """A DynamoDB table, by a logical name.

    ``name`` is logical: ``STREAMFOLD_TABLE_<NAME>`` or ``--table name=real`` gives the real one, which is otherwise
    the name itself. ``partition`` and ``sort`` are the key attributes (``sort=None`` for a table with a partition key
    only), ``ttl`` the table's time-to-live attribute if it has one, ``view`` the stream's view type if it is known:
    what cannot work under it is then refused when the application is built. ``delimiter`` separates the fields of a
    key. ``region`` is another region than the application's: such a table holds copies (``Router.copy``), nothing else.
    """

    name: str
    partition: str = "PK"
    sort: str | None = "SK"
    ttl: str | None = None
    view: ViewType | None = None
    delimiter: str = "#"
    region: str | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise DeclarationError(
                f"Table name {self.name!r} cannot be used: expected a letter, then letters, digits, '_', '-' or '.', "
                "64 characters at most. The name is logical; STREAMFOLD_TABLE_<NAME> gives the real one."
            )
        if self.view is not None and self.view not in get_args(ViewType):
            raise DeclarationError(
                f"Table {self.name!r} has view={self.view!r}: expected one of {', '.join(get_args(ViewType))}."
            )
        if len(self.delimiter) != 1 or self.delimiter.isalnum() or self.delimiter in "{}":
            raise DeclarationError(
                f"Table {self.name!r} has delimiter={self.delimiter!r}: expected one character that is no letter, "
                "digit or brace."
            )
        if self.region is not None and not REGION.fullmatch(self.region):
            raise DeclarationError(
                f"Table {self.name!r} has region={self.region!r}: expected the name of an AWS region, 'eu-west-1'."
            )
        if not all(self.attributes) or self.partition == self.sort:
            raise DeclarationError(
                f"Table {self.name!r} has partition={self.partition!r} and sort={self.sort!r}: expected the names of "
                "two attributes, or sort=None for a table with a partition key only."
            )

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the key attributes."""
        return (self.partition,) if self.sort is None else (self.partition, self.sort)


MAIN = Table("main")
"""The table of every ``Key`` that names none: an application with only such keys takes any single table's records."""
STATE = Table("streamfold.state", "pk", "sk", ttl="ttl")
"""The state table as a place of rows, which a handler's ``attributes`` are before they are copied onto their items."""


def is_in_state(row: tuple[object, ...]) -> bool:
    """Whether a row lies in the state table: its kind brings what it holds to where it is read."""
    return row[0] == STATE.name
