"""What holds for entries after every call of a store: below a row stand those that the ledger items name, no others."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streamfold.engines import Entries
from streamfold.engines.memory import MemoryEngine
from streamfold.records.change import item_name
from streamfold.records.values import decode_number
from streamfold.writes.guarded import ENTRIES, RowKey, StateKey

ENTRIES_MAX = 1000
"""More than any history puts below a row."""
EntryPlace = tuple[str, str]
"""The partition of entries below a row, and the text that orders one of them."""


class EntryInvariants:
    """Counts the entries that ledger items name, and compares the partitions that a call concerned."""

    def __init__(self, application: str, engine: MemoryEngine) -> None:
        self.application = application
        self.engine = engine
        self.named: dict[StateKey, list[EntryPlace]] = {}
        self.expected: Counter[EntryPlace] = Counter()

    def wrong(self, touched: Iterable[Any], texts: Mapping[StateKey, Mapping[str, str]]) -> str | None:
        """What is wrong below the rows that were touched; ``texts`` are the contributions of touched ledger items."""
        concerned = {key.pk for key in touched if isinstance(key, StateKey) and key.pk.startswith(ENTRIES)}
        for key, by_handler in texts.items():
            before, after = self.named.pop(key, []), list(self._places(by_handler))
            self.expected.subtract(before)
            self.expected.update(after)
            self.named[key] = after
            concerned |= {partition for partition, _ in (*before, *after)}
        for partition in sorted(concerned):
            places = self.engine.read_entries(Entries(partition, ENTRIES_MAX))
            found = Counter(place.partition("#")[0] for place, _ in places)
            named = Counter({order: n for (place, order), n in self.expected.items() if place == partition and n})
            if found != named:
                return f"{partition} holds {dict(found)}, but the ledger items name {dict(named)}"
        return None

    def _places(self, by_handler: Mapping[str, str]) -> Iterator[EntryPlace]:
        for handler, text in by_handler.items():
            for table, partition, sort, _, *rest in json.loads(text):
                row = (table, key_value(partition), key_value(sort))
                held = rest[1] if len(rest) > 1 and isinstance(rest[1], dict) else {}
                life = f"~{rest[-1]}" if len(rest) > 1 and isinstance(rest[-1], str) else ""
                for name, (_, entries) in held.items():
                    yield from ((self._partition(handler, name, row, life), order) for order in entries)

    def _partition(self, handler: str, name: str, row: RowKey, life: str) -> str:
        escaped = name.replace("%", "%25").replace("#", "%23")
        return f"{ENTRIES}{self.application}#{handler}#{escaped}#{row[0]}{life}#{item_name(row)}"


def key_value(value: Any) -> Any:
    """A key's value out of a stored contribution."""
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["B"]) if "B" in value else decode_number(value["N"])
