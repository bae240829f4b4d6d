"""The indexes of a rebuild: made, named, pointed to and removed, on a server or in a local state."""

import re
from collections.abc import Iterable
from typing import Any, Protocol

from streamfold.derivations.search.declared import SearchIndex
from streamfold.derivations.search.local import ALIASES, PARTITION, LocalIndex, resolved
from streamfold.derivations.search.names import MADE, in_path, own_alias
from streamfold.derivations.search.opensearch import OpenSearchIndex
from streamfold.derivations.search.sink import VISIBLE, Sink
from streamfold.engines import Entries
from streamfold.errors import Contended, EngineError, SettingsError
from streamfold.limits import ACTIONS_MAX
from streamfold.writes.guarded import DeleteState, StateKey


class Aliases(Protocol):
    """What a rebuild does to the indexes of an alias. Each method may be called again after a failure."""

    @property
    def sink(self) -> Sink: ...

    def behind(self, alias: str) -> list[str]:
        """The indexes that an alias stands for."""
        ...

    def last(self, alias: str) -> int:
        """The highest number of the indexes of an alias that are there."""
        ...

    def create(self, index: SearchIndex, name: str) -> None:
        """Makes an index as it is declared, with an alias that it alone has."""
        ...

    def name_own(self, name: str) -> None:
        """Gives an index the alias that it alone has."""
        ...

    def point(self, alias: str, name: str) -> None:
        """Makes an alias stand for an index and for no other, in one step: no reader sees both, or none."""
        ...

    def delete(self, name: str) -> None:
        """Removes an index with its documents."""
        ...

    def refresh(self, name: str) -> None:
        """Lets searches see what was written so far."""
        ...


def only_behind(aliases: Aliases, alias: str) -> str:
    """The index that an alias stands for. Raises ``SettingsError`` where there are several."""
    found = aliases.behind(alias)
    if len(found) != 1:
        raise SettingsError(
            f"Alias {alias!r} stands for {', '.join(found) or 'no index'}: expected one index. Remove the others from "
            "the alias."
        )
    return found[0]


class ServerAliases:
    """The indexes of a server."""

    def __init__(self, sink: OpenSearchIndex) -> None:
        self.sink: Sink = sink
        self.calls = sink.calls

    def behind(self, alias: str) -> list[str]:
        return sorted(self.calls.ask("GET", f"/_alias/{in_path(alias)}") or {})

    def last(self, alias: str) -> int:
        found = (
            self.calls.ask("GET", f"/{in_path(alias)}{MADE}*", filter_path="*.settings.index.number_of_shards") or {}
        )
        return _last(alias, found)

    def create(self, index: SearchIndex, name: str) -> None:
        own = {own_alias(name): {"filter": VISIBLE, "is_write_index": True}}
        self.calls.ask("PUT", f"/{in_path(name)}", {**index.body, "aliases": own})

    def name_own(self, name: str) -> None:
        self._aliases(_added(name, own_alias(name)))

    def point(self, alias: str, name: str) -> None:
        now = self.behind(alias)
        if now != [name]:
            gone = ({"remove": {"index": each, "alias": alias, "must_exist": True}} for each in now if each != name)
            self._aliases(*gone, _added(name, alias))

    def delete(self, name: str) -> None:
        self.calls.ask("DELETE", f"/{in_path(name)}")  # None where it is gone

    def refresh(self, name: str) -> None:
        self.calls.ask("POST", f"/{in_path(name)}/_refresh")

    def _aliases(self, *actions: Any) -> None:
        if self.calls.ask("POST", "/_aliases", {"actions": actions}) is None:
            raise EngineError("An index or an alias of the rebuild is gone: streamfold search diff INDEX tells more.")


def _added(name: str, alias: str) -> dict[str, Any]:
    return {"add": {"index": name, "alias": alias, "filter": VISIBLE, "is_write_index": True}}


class LocalAliases:
    """The indexes of a local state: they are there as soon as they have a document."""

    def __init__(self, sink: LocalIndex) -> None:
        self.sink: Sink = sink
        self.engine = sink.engine

    def behind(self, alias: str) -> list[str]:
        return [resolved(self.engine, [alias])[alias]]

    def last(self, alias: str) -> int:
        return _last(alias, self.behind(alias))

    def create(self, index: SearchIndex, name: str) -> None:
        """Does nothing: a local index begins with its first document."""

    def name_own(self, name: str) -> None:
        """Does nothing: the alias follows from the name of the index."""

    def point(self, alias: str, name: str) -> None:
        key = StateKey(ALIASES, alias)
        found = self.engine.read_state([key], consistent=True).get(key, {})
        if not self.engine.swap_state(key, {"s": name}, found.get("r", 0)):
            raise Contended(f"Alias {alias!r} was moved by somebody else: the same command goes on.")

    def delete(self, name: str) -> None:
        wanted = Entries(PARTITION + name, ACTIONS_MAX)
        while page := self.engine.read_entries(wanted):
            self.engine.transact([DeleteState(StateKey(wanted.partition, place)) for place, _ in page], 0)

    def refresh(self, name: str) -> None:
        """Does nothing: readers see every write at once."""


def _last(alias: str, names: Iterable[str]) -> int:
    numbers = (re.fullmatch(rf"{re.escape(alias + MADE)}(\d{{6,}})", name) for name in names)
    return max((int(number[1]) for number in numbers if number), default=1)
