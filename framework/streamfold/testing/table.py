"""A DynamoDB table in process: it takes writes, refuses what DynamoDB refuses, and leaves records in its stream."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

from streamfold.keys.table import MAIN, KeyType, Table, ViewType
from streamfold.records.change import EXPIRED_SECONDS_MAX
from streamfold.records.values import AttributeValue
from streamfold.settings.limits import ACTIONS_MAX, BYTES_MAX
from streamfold.testing.items import (
    CheckItem,
    ConditionFailed,
    DeleteItem,
    ItemImage,
    KeyOfItem,
    KeySchema,
    PutItem,
    StoredImage,
    StoredKey,
    TableAction,
    TransactionCancelled,
    TwinError,
    UpdateItem,
    WriteRefused,
    encoded,
    key_name,
    updated,
)
from streamfold.testing.stream import Clock, StreamTwin, TwinRecord, label_after

BATCH_MAX = 25
"""Puts and deletes of one call (API Reference, BatchWriteItem)."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class TableTwin:
    """The items of one table, and its stream.

    A write returns its record, or None: a write without a change leaves no record (Developer Guide, Streams), nor does
    any write while the stream is switched off. ``view`` is the stream's view type (the table's, else both images),
    ``shards`` the number of shards at the beginning of a stream, ``key_types`` the types of the key attributes that are
    not text: ``{"SK": "N"}``. ``seed`` varies event ids and sequence numbers; nothing else is random.

    Raises ``WriteRefused`` for a write that DynamoDB refuses with a ValidationException, and ``ConditionFailed`` if the
    write's ``exists`` does not hold. Nothing is written then.
    """

    def __init__(
        self,
        table: Table = MAIN,
        *,
        real_name: str | None = None,
        view: ViewType | None = None,
        shards: int = 1,
        clock: Clock | None = None,
        stream: bool = True,
        key_types: Mapping[str, KeyType] | None = None,
        seed: int = 0,
    ) -> None:
        self.table = table
        self.real_name: str = real_name or table.name
        self.clock: Clock = clock or Clock()
        self.streams: list[StreamTwin] = []
        self._items: dict[StoredKey, StoredImage] = {}
        self._shards, self._seed = shards, seed
        self._schema = KeySchema(table, key_types or {})
        self._live: StreamTwin | None = None
        if stream:
            self.enable_stream(view)

    def get(self, key: KeyOfItem) -> dict[str, Any] | None:
        """A stored item in Python values, or None."""
        stored = self._items.get(self._schema.key_of(self._schema.key_image(key)))
        return None if stored is None else stored.plain()

    def items(self) -> list[dict[str, Any]]:
        """All items, in the order in which they were first written."""
        return [stored.plain() for stored in self._items.values()]

    # --- the stream ---------------------------------------------------------------------------------------------------

    @property
    def stream(self) -> StreamTwin:
        """The latest stream: the one in use, or the one that was switched off last, still readable for 24 hours."""
        if not self.streams:
            raise TwinError(f"Table {self.real_name!r} never had a stream: switch it on with enable_stream().")
        return self.streams[-1]

    def enable_stream(self, view: ViewType | None = None) -> StreamTwin:
        """Switches the stream on: a new one with a label, an ARN and sequence numbers of its own.

        The view type of a stream cannot be changed; a new stream may have another (Developer Guide, Streams).
        """
        if self._live is not None:
            raise TwinError(f"Table {self.real_name!r} has its stream on already: disable_stream() comes first.")
        if (view := view or self.table.view or "NEW_AND_OLD_IMAGES") not in get_args(ViewType):
            raise TwinError(f"A stream cannot have view={view!r}: expected one of {', '.join(get_args(ViewType))}.")
        label = label_after(self.streams[-1].label if self.streams else "", self.clock.now)
        self._live = StreamTwin(self.real_name, label, view, self.clock, shards=self._shards, seed=self._seed)
        self.streams.append(self._live)
        return self._live

    def disable_stream(self) -> None:
        """Switches the stream off: writes leave no record from now on."""
        if self._live is None:
            raise TwinError(f"Table {self.real_name!r} has its stream off already.")
        self._live.disable()
        self._live = None

    # --- writes -------------------------------------------------------------------------------------------------------

    def put(self, item: ItemImage, *, exists: bool | None = None) -> TwinRecord | None:
        """Puts an item, and replaces the one with its key (API Reference, PutItem)."""
        new = self._schema.stored(encoded(item, "Item"))
        self._require(new.key, exists)
        return self._write(new.key, new)

    def update(
        self,
        key: KeyOfItem,
        *,
        put: Mapping[str, Any] = NOTHING,
        add: Mapping[str, Any] = NOTHING,
        remove: Iterable[str] = (),
        exists: bool | None = None,
    ) -> TwinRecord | None:
        """Changes attributes of an item; if it does not exist, creates it (API Reference, UpdateItem).

        ``add`` takes numbers, and begins at 0 if the attribute is absent.
        """
        new = updated(self._schema, self._items, UpdateItem(key, put, add, remove))
        self._require(new.key, exists)
        return self._write(new.key, new)

    def delete(self, key: KeyOfItem, *, exists: bool | None = None) -> TwinRecord | None:
        """Deletes an item; an absent item leaves no record (API Reference, DeleteItem)."""
        stored_key = self._schema.key_of(self._schema.key_image(key))
        self._require(stored_key, exists)
        return self._write(stored_key, None)

    def batch(self, puts: Iterable[ItemImage] = (), deletes: Iterable[KeyOfItem] = ()) -> list[TwinRecord]:
        """Puts and deletes, 25 at most and each item once, else all are refused (API Reference, BatchWriteItem)."""
        actions: list[TableAction] = [*map(PutItem, puts), *map(DeleteItem, deletes)]
        if not 1 <= len(actions) <= BATCH_MAX:
            raise WriteRefused(f"A batch of {len(actions)} writes was refused: expected 1 to {BATCH_MAX}.")
        return self._write_all(self._each_once(actions))

    def transact(self, *actions: TableAction) -> list[TwinRecord]:
        """All of the actions or none: 100 at most, 4 MB, each item once (API Reference, TransactWriteItems).

        The records do not show that they belong together (Developer Guide, transaction-apis). Raises
        ``TransactionCancelled`` if a condition does not hold, ``WriteRefused`` for an invalid action. AWS reports some
        of these as a cancellation too, with the reason ValidationError.
        """
        if not 1 <= len(actions) <= ACTIONS_MAX:
            raise WriteRefused(f"A transaction of {len(actions)} actions was refused: expected 1 to {ACTIONS_MAX}.")
        writes = self._each_once(actions)
        if (size_bytes := sum(new.image_bytes for new in writes.values() if new is not None)) > BYTES_MAX:
            raise WriteRefused(f"A transaction of {size_bytes} bytes was refused: expected {BYTES_MAX} at most.")
        holds = [self._holds(key, action.exists) for key, action in zip(writes, actions, strict=True)]
        if not all(holds):
            raise TransactionCancelled(tuple("None" if held else "ConditionalCheckFailed" for held in holds))
        return self._write_all(writes)

    def expire(self) -> list[TwinRecord]:
        """Removes the items whose time to live has passed on the clock; their records carry the service's identity.

        The attribute must be a number of epoch seconds, no further back than five years: others are ignored. On AWS the
        removal may take days; until then the items exist (Developer Guide, howitworks-ttl, time-to-live-ttl-streams).
        """
        name = self.table.ttl
        if name is None:
            raise TwinError(
                f"Table {self.table.name!r} has no time to live, so nothing can expire: declare it, "
                f'Table({self.table.name!r}, ttl="expires").'
            )
        now = self.clock.now
        passed = [key for key, stored in self._items.items() if _has_passed(stored.image.get(name, NOTHING), now)]
        records = [self._write(key, None, expired=True) for key in passed]
        return [record for record in records if record is not None]

    def _write(self, key: StoredKey, new: StoredImage | None, *, expired: bool = False) -> TwinRecord | None:
        old = self._items.get(key)
        if new is None:
            if old is None:
                return None
            del self._items[key]
        # Encoded values have one spelling, so that equal numbers and sets are equal texts.
        elif old is not None and old.image == new.image:
            return None
        else:
            self._items[key] = new
        return None if self._live is None else self._live.append(old, new, expired=expired)

    def _write_all(self, writes: Mapping[StoredKey, StoredImage | None]) -> list[TwinRecord]:
        records = [self._write(key, new) for key, new in writes.items()]
        return [record for record in records if record is not None]

    def _each_once(self, actions: Sequence[TableAction]) -> dict[StoredKey, StoredImage | None]:
        """The new image of each item. Nothing is written yet, so that an invalid action leaves no trace."""
        writes: dict[StoredKey, StoredImage | None] = {}
        for action in actions:
            key, new = self._outcome(action)
            if key in writes:
                raise WriteRefused(
                    f"The {len(actions)} writes were refused: item {key_name(key)} is in them twice. One call may hold "
                    "each item once."
                )
            writes[key] = new
        return writes

    def _outcome(self, action: TableAction) -> tuple[StoredKey, StoredImage | None]:
        if isinstance(action, PutItem):
            new = self._schema.stored(encoded(action.item, "Item"))
            return new.key, new
        if isinstance(action, UpdateItem):
            new = updated(self._schema, self._items, action)
            if not (action.put or action.add or action.remove):
                raise WriteRefused(
                    f"The update of {key_name(new.key)} was refused: in a transaction it has to change something (API "
                    "Reference, Update). Give put, add or remove, or use CheckItem or PutItem."
                )
            return new.key, new
        key = self._schema.key_of(self._schema.key_image(action.key))
        return key, self._items.get(key) if isinstance(action, CheckItem) else None

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _holds(self, key: StoredKey, exists: bool | None) -> bool:  # noqa: FBT001 - one of three
        return exists is None or exists == (key in self._items)

    def _require(self, key: StoredKey, exists: bool | None) -> None:  # noqa: FBT001 - one of three
        if not self._holds(key, exists):
            found, wanted = ("does not exist", "exists") if exists else ("exists", "does not exist")
            raise ConditionFailed(f"Item {key_name(key)} {found}, and the write requires that it {wanted}.")


def _has_passed(value: AttributeValue, now: float) -> bool:
    return "N" in value and 0 <= now - float(value["N"]) <= EXPIRED_SECONDS_MAX
