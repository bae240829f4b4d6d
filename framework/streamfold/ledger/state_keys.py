"""Keys of the items of the state table, never the same for two things."""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from streamfold.keys.key import PARTITION_BYTES_MAX, SORT_BYTES_MAX, Key, KeyValues
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import CONTRIBUTORS, STATE
from streamfold.records.change import KEY_READERS, ItemKey, key_text
from streamfold.records.values import number_text
from streamfold.writes.guarded import RowKey, StateKey

ATTRIBUTE_MARK = "@"
"""The begin of a derived attribute's name in its stored row: the state table's own attributes have other names."""
NO_SORT = "-"
BACKLINKS = "refs"
"""Begins the partitions of backlinks."""
WAKES = "wake"
"""Begins the partitions of wakes."""
SUFFIX_BYTES_MAX = 96
"""The bytes that remain for a version or a handler's name behind the sort key."""
DIGITS_OF_A_ROOT = 32
ROW_NAME_BYTES = 6
ROW_NAME_LETTERS = 8
"""Letters of a row's name, in base64."""
ROWS_KEPT_MAX = 10_000
"""Rows whose names are cached: each addition asks for the name of its row."""


def ledger_key(application: str, group: str, item: ItemKey) -> StateKey:
    return _state_key(f"ledger#{application}#{group}", item, "")


class LedgerSource(NamedTuple):
    """The owner of a ledger item."""

    application: str
    group: str
    item: ItemKey


def source_of(key: StateKey) -> LedgerSource | None:
    """The arguments of ``ledger_key`` for a key; None for a key with a hash, or of another kind of item."""
    what, *names = key.pk.split("#", 4)
    if what != "ledger" or len(names) != 4:
        return None
    application, group, table, text = names
    try:
        sort = None if key.sk == NO_SORT else _value(key.sk)
        return LedgerSource(application, group, (table, _value(text), sort))
    except (ValueError, ArithmeticError):
        return None


def contribution_key(key: StateKey, handler: str) -> StateKey:
    """The key of the item that holds a handler's large contribution."""
    return StateKey(key.pk.replace("ledger#", "part#", 1), f"{key.sk}#{handler}")


def is_ledger_key(key: StateKey, application: str) -> bool:
    return key.pk.startswith(f"ledger#{application}#")


class StoredAttributes(NamedTuple):
    """The rows of the state table that hold a handler's attributes, one for each item of ``of``."""

    application: str
    handler: str
    of: Key

    def row(self, values: KeyValues) -> RowKey:
        """The row of an item with these key values."""
        partition, sort = values
        own_sort = "" if sort is None else key_text(sort)
        return STATE.name, self._prefix + key_text(partition), f"{self.handler}#{own_sort}"

    def item(self, row: RowKey) -> ItemKey:
        partition = str(row[1]).removeprefix(self._prefix)
        sort = str(row[2]).removeprefix(self.handler + "#")
        first, *second = (KEY_READERS[component.attribute_type] for component in self.of.parts)
        return self.of.table.name, first(partition), second[0](sort) if second else None

    def holds(self, row: RowKey) -> bool:
        return str(row[2]).partition("#")[0] == self.handler

    @staticmethod
    def shown(stored: Mapping[str, Any] | None) -> dict[str, Any]:
        """The attributes of a stored row, as its item is to show them."""
        if not stored or stored.get(CONTRIBUTORS) == 0:
            return {}
        derived = (name for name in stored if name.startswith(ATTRIBUTE_MARK))
        return {name.removeprefix(ATTRIBUTE_MARK): stored[name] for name in derived}

    @property
    def whose(self) -> str:
        """The owner of the attributes, as items have it: no name of an application or a handler contains a ``/``."""
        return f"{self.application}/{self.handler}"

    @property
    def _prefix(self) -> str:
        return f"attributes#{self.application}#{self.of.table.name}#"


def derived_prefixes(application: str) -> tuple[str, ...]:
    """The beginnings of the partitions that say what an application's rows were derived from."""
    return f"ledger#{application}#", f"claim#{application}#"


def ledger_of_contribution(key: StateKey, application: str, handler: str) -> StateKey | None:
    """The ledger item that a key of ``contribution_key`` was made of; None for another key."""
    if not (key.pk.startswith(f"part#{application}#") and key.sk.endswith(f"#{handler}")):
        return None
    return StateKey(key.pk.replace("part#", "ledger#", 1), key.sk.removesuffix(f"#{handler}"))


def event_key(what: str, application: str, handler: str, item: ItemKey, version: str) -> StateKey:
    """The key of a state item of a handler and a change: ``claim``, ``attempt``, ``cascade``, ``external``."""
    return _state_key(f"{what}#{application}#{handler}", item, f"#{version}")


def claim_key(application: str, handler: str, item: ItemKey, version: str) -> StateKey:
    return event_key("claim", application, handler, item, version)


def claimed_identity(sort_key: str, beginning: str) -> str | None:
    """The identity of a claim's change, which follows the common beginning of the claims of its item.

    None: the claim is of another item, whose sort key begins like this item's. No identity has a ``#``.
    """
    identity = sort_key.removeprefix(beginning)
    return None if "#" in identity else identity


def version_of(identity: str) -> str:
    """The version of a change in its identity, which through Kinesis has a digest behind it."""
    return "/".join(identity.split("/")[:3])


def row_names(rows: Iterable[RowKey]) -> str:
    """The names of rows in the text of a claim: a digest of each row's key, all of one length."""
    return "".join(map(row_name, rows))


@lru_cache(ROWS_KEPT_MAX)
def row_name(row: RowKey) -> str:
    """The name of a row in the texts of claims, deltas and ledger items.

    48 bits distinguish the rows that one handler writes for one item. With 99 names, the most that a change writes, the
    claim still fits one write unit.
    """
    table, partition, sort = row
    text = "\0".join((table, _text(partition), NO_SORT if sort is None else _text(sort)))
    return urlsafe_b64encode(sha256(text.encode(errors="surrogatepass")).digest()[:ROW_NAME_BYTES]).decode()


def names_of_rows(text: str) -> frozenset[str]:
    return frozenset([text[begin : begin + ROW_NAME_LETTERS] for begin in range(0, len(text), ROW_NAME_LETTERS)])


def source_key(application: str, item: ItemKey) -> StateKey:
    """The key of the note which version of a source item a rehearsal has put."""
    return _state_key(f"source#{application}", item, "")


def document_key(application: str, handler: str, item: ItemKey) -> StateKey:
    return _state_key(f"document#{application}#{handler}", item, "")


def index_key(application: str, alias: str) -> StateKey:
    """The key of the mark with the indexes of an alias's documents."""
    return StateKey(f"index#{application}#{alias}", NO_SORT)


def dirty_partition(application: str, index: str) -> str:
    """The partition of the roots whose documents an index may lack while it is built."""
    return f"dirty#{application}#{index}"


def dirty_key(application: str, index: str, counter: StateKey, number: int) -> StateKey:
    """The key of the note that an index may lack the documents that a root's run with this number sent."""
    root = sha256("\0".join(counter).encode()).hexdigest()[:DIGITS_OF_A_ROOT]
    return StateKey(dirty_partition(application, index), f"{root}#{number:020}")


def identity_key() -> StateKey:
    return StateKey("identity", NO_SORT)


ADOPTING = "adopting"
"""Begins the partitions of manifests that are moved to a new name of their application."""


def adopting_key(application: str) -> StateKey:
    """The key of the manifest of an application while the state is moved to its new name."""
    return StateKey(f"{ADOPTING}#{application}", NO_SORT)


def restoring_key(application: str) -> StateKey:
    """The key of the note that rows of a restored table are being removed and derived again."""
    return StateKey(f"restoring#{application}", NO_SORT)


def manifest_key(application: str) -> StateKey:
    return StateKey(f"manifest#{application}", NO_SORT)


def schema_key(application: str, target: str) -> StateKey:
    """The key of the stored schema of a target, which is named by its table and templates."""
    return StateKey(f"kinds#{application}", target if len(target.encode()) <= SORT_BYTES_MAX else _hashed(target))


def jobs_partition(application: str) -> str:
    """The partition of an application's jobs; their ids are the sort keys."""
    return f"job#{application}"


def segments_partition(application: str, job: str) -> str:
    return f"job#{application}#{job}"


def segment_key(application: str, job: str, number: int) -> StateKey:
    return StateKey(segments_partition(application, job), f"seg#{number:06d}")


def fan_outs_partition(application: str) -> str:
    """The partition of the fan-outs that are open; their ids are the sort keys."""
    return f"fan#{application}"


def fan_out_id(handler: str, task: str, *names: str) -> str:
    """The id of the fan-out of a handler's item, the same for all of the item's changes."""
    digest = sha256("\0".join((task, *names)).encode()).hexdigest()[:DIGITS_OF_A_ROOT]
    return f"{handler}-{task}-{digest}"


def side_partition(side: str, application: str, handler: str, joined: str) -> str:
    """The partition of one side of a feed, ``posts`` or ``edges``, for one value of the field that joins them."""
    pk = f"{side}#{application}#{handler}#{joined}"
    return pk if len(pk.encode()) <= PARTITION_BYTES_MAX else f"{side}#{application}#{handler}#{_hashed(joined)}"


def backlinks_partition(application: str, handler: str, referent: ItemKey) -> str:
    """The partition of the items that refer to a referent through a handler."""
    table, partition, sort = referent
    name = "|".join((_text(partition), NO_SORT if sort is None else _text(sort)))
    pk = f"{BACKLINKS}#{application}#{handler}#{table}#{name}"
    if len(pk) * 4 > PARTITION_BYTES_MAX and len(pk.encode()) > PARTITION_BYTES_MAX:
        pk = f"{BACKLINKS}#{application}#{handler}#{table}#{_hashed(name)}"
    return pk


def wakes_partition(application: str, handler: str, stripe: str) -> str:
    """The partition of those wakes of a handler whose items' digests begin with this digit (``ledger.wakes``)."""
    return f"{WAKES}#{application}#{handler}#{stripe}"


def is_wake(key: StateKey) -> bool:
    """Whether a state item is a wake: the head of a stripe is none."""
    return key.pk.startswith(f"{WAKES}#") and not key.sk.startswith("head#")


def wakes_head(application: str, handler: str, stripe: str) -> StateKey:
    """The key of the item that says who visits the items of a stripe's wakes."""
    return StateKey(f"{WAKES}#{application}#{handler}", f"head#{stripe}")


def audience_key(application: str, handler: str, joined: str) -> StateKey:
    """The key of how a feed reaches an audience."""
    return StateKey(side_partition("audience", application, handler, joined), NO_SORT)


def _state_key(prefix: str, item: ItemKey, suffix: str) -> StateKey:
    table, partition, sort = item
    if type(partition) is str and type(sort) is str:  # as nearly always
        pk, sk = f"{prefix}#{table}#S#{partition}", f"S#{sort}"
    else:
        pk, sk = f"{prefix}#{table}#{_text(partition)}", NO_SORT if sort is None else _text(sort)
    if len(pk) * 4 > PARTITION_BYTES_MAX and len(pk.encode()) > PARTITION_BYTES_MAX:
        pk = f"{prefix}#{table}#{_hashed(partition)}"
    sort_bytes_max = SORT_BYTES_MAX - SUFFIX_BYTES_MAX
    if len(sk) * 4 > sort_bytes_max and len(sk.encode()) > sort_bytes_max and sort is not None:
        sk = _hashed(sort)
    return StateKey(pk, sk + suffix)


def _text(value: KeyValue) -> str:
    if isinstance(value, str):
        return f"S#{value}"
    return f"B#{value.hex()}" if isinstance(value, bytes) else f"N#{number_text(value)}"


def _value(text: str) -> KeyValue:
    """The value of ``_text``. Raises ``ValueError`` or ``ArithmeticError`` for another text, such as a hash."""
    tag, _, content = text.partition("#")
    if tag not in KEY_READERS:
        raise ValueError(text)
    return KEY_READERS[tag](content)


def _hashed(value: KeyValue) -> str:
    return f"H#{sha256(_text(value).encode()).hexdigest()}"
