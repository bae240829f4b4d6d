"""The stores that carry out plans, behind one small protocol.

``EmbeddedEngine`` is SQLite, ``MemoryEngine`` dictionaries, ``DynamoEngine`` boto3. One contract test runs over all of
them (``tests/engines/test_engines.py``). Each is imported when it is asked for: ``from streamfold.engines import
EmbeddedEngine`` needs no boto3, and ``import streamfold.engines`` no sqlite3.

    engine = EmbeddedEngine(app, path="shop.db")
    app.process(event, engine=engine)
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from streamfold.keys.key import KeyValue
from streamfold.keys.table import Table
from streamfold.records.change import ItemKey
from streamfold.writes.guarded import GuardedWrite, PutRow, Refused, RowKey, StateKey

if TYPE_CHECKING:
    from streamfold.engines.dynamodb import DynamoEngine
    from streamfold.engines.embedded import EmbeddedEngine
    from streamfold.engines.memory import MemoryEngine

__all__ = ["DynamoEngine", "EmbeddedEngine", "Engine", "MemoryEngine"]

PUBLIC = {"DynamoEngine": "dynamodb", "EmbeddedEngine": "embedded", "MemoryEngine": "memory"}
"""The modules of engines, which bring along what few users of this package need: SQLite, boto3."""
StoredItem = Mapping[str, Any]
"""An item as stored: attribute names to DynamoDB attribute values, binary as bytes or base64 text."""


Finished = Mapping[StateKey, Mapping[str, str]]
"""What steps left behind and is finished: of ledger items, by handler, the text that they hold of it."""


Wanted = Callable[[RowKey], bool]
"""Says which rows' changes an engine's own stream keeps."""


class Declared(Protocol):
    """What an engine needs to know of an application: ``App``."""

    @property
    def tables(self) -> Mapping[str, Table]: ...

    def chains(self, row: RowKey) -> bool: ...


def declared(tables: Declared | Iterable[Table], wanted: Wanted | None) -> tuple[Iterable[Table], Wanted | None]:
    """The tables of an engine, and which rows its own stream keeps: those that a handler of the application reads."""
    if isinstance(tables, Iterable):
        return tables, wanted
    return tables.tables.values(), wanted or tables.chains


class Entries(NamedTuple):
    """The first ``most`` entries of a partition behind a place, or the last ones, largest first.

    ``before``, beside ``after``, is a place that all of them lie before.
    """

    partition: str
    most: int
    after: str = ""
    descending: bool = False
    before: str = ""


class Page(NamedTuple):
    """Items of a partition, and the sort key from which the next page goes on; None behind the last."""

    items: Sequence[StoredItem]
    after: KeyValue | None


class Engine(Protocol):
    """A store.

    Every method may raise ``EngineError`` (the store is missing or not reachable) and ``EngineUnavailable`` (the
    outcome is unknown; doing the same again is safe, because guards decide).
    """

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        """Carries out all of the writes, or none: then says why. ``expires_at`` (epoch seconds) stamps what expires."""
        ...

    def insert_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        """Puts rows one by one where none is, of one key the first; returns the keys of those that are not there then.

        A row that is there stays as it is.
        """
        ...

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        """Removes those of the rows whose count of contributors is 0, and returns them."""
        ...

    def forget(self, finished: Finished) -> None:
        """Takes away what ledger items say was left behind, where an item still says just that."""
        ...

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        """The state items that exist, as plain values; eventually consistent if nothing else is asked for."""
        ...

    def read_rows(self, keys: Iterable[RowKey]) -> dict[RowKey, dict[str, Any]]:
        """The rows that exist, whole and as plain values, strongly consistent."""
        ...

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        """Entries below a row, strongly consistent, as many as there are up to ``most``: places and texts of values."""
        ...

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        """Writes a state item with revision + 1 where it has this revision (0: is not there); says whether it did."""
        ...

    def read_source(self, item: ItemKey) -> StoredItem | None:
        """A source item as it is now, strongly consistent; None where there is none.

        Raises ``EngineError`` where that cannot be told: the table is missing, may not be read, or was never kept here.
        """
        ...

    def page(self, table: Table, partition: KeyValue, begins: str, after: KeyValue | None, limit: int) -> Page:
        """Some items of a partition in the order of their sort keys, strongly consistent.

        Those whose sort key, text, begins so (``""``: all), and comes after ``after`` (None: from the first).
        """
        ...

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        """The items of a table, or of one partition of it, sorted by key where the store can."""
        ...

    def state_items(self) -> Iterator[StoredItem]:
        """The items of the state table."""
        ...

    def close(self) -> None: ...


OWN_VERSION = "version"
"""What a record of an own stream says of itself where it is of a source item, that a cascade removed."""


class OwnRecord(NamedTuple):
    """A record of an engine's own stream of derived rows, with its place in it."""

    sequence: int
    record: dict[str, Any]


@runtime_checkable
class OwnStream(Protocol):
    """An engine that keeps the stream records of its own derived rows, so that chains run without AWS."""

    def pending(self, limit: int) -> list[OwnRecord]:
        """The first records that nobody has processed."""
        ...

    def advance(self, sequence: int, done: Collection[int]) -> None:
        """Stores the place up to which records were read, and drops those that are done; the rest is for ``retry``."""
        ...

    def retry(self) -> None:
        """Makes the records that failed pending again."""
        ...


@runtime_checkable
class Seekable(Protocol):
    """An engine that finds items by the beginning of their partition key."""

    def items_from(self, table: Table, prefix: str) -> Iterator[StoredItem]:
        """The items of a table whose partition key begins with this text, sorted by key."""
        ...


class ChainEngine(Engine, OwnStream, Protocol):
    """A store with an own stream."""


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)
