"""Roots whose documents an index may lack while it is built, noted in the state until they are sent there.

A note is of one run of a root: its key ends with the run's number. So it is removed by the number that it was read
with, and a note that a later run makes meanwhile stays.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streamfold.engines import Engine, Entries
from streamfold.errors import Contended, damaged
from streamfold.ledger.state_keys import dirty_key, dirty_partition, document_key
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey
from streamfold.records.encoded import COMPACT
from streamfold.records.values import decode, encode
from streamfold.writes.guarded import DeleteState, PutState, StateKey


class DirtyRoot(NamedTuple):
    """A root that an index may lack."""

    handler: str
    item: ItemKey
    number: int  # of the run that could not send it


class DirtyNote(NamedTuple):
    """A note as it is stored."""

    place: str  # its sort key
    root: DirtyRoot


class Dirty:
    """The notes of one index."""

    def __init__(self, application: str, engine: Engine, index: str) -> None:
        self.application = application
        self.engine = engine
        self.index = index

    def note(self, roots: Iterable[DirtyRoot]) -> None:
        """Notes roots. Raises ``EngineUnavailable`` where it is not known whether they all are noted."""
        self._write([PutState(self._key(root), _text(root)) for root in roots])

    def notes(self, most: int, after: str = "") -> list[DirtyNote]:
        """Some notes behind a place; those of one root follow each other."""
        found = self.engine.read_entries(Entries(dirty_partition(self.application, self.index), most, after))
        return [DirtyNote(place, _root(self.index, text)) for place, text in found]

    def remove(self, notes: Iterable[DirtyNote]) -> None:
        """Removes these notes, and no later one of the same roots."""
        partition = dirty_partition(self.application, self.index)
        self._write([DeleteState(StateKey(partition, note.place)) for note in notes])

    def clear(self) -> None:
        """Removes all notes: nobody needs the index any more."""
        while notes := self.notes(ACTIONS_MAX):
            self.remove(notes)

    def _key(self, root: DirtyRoot) -> StateKey:
        counter = document_key(self.application, root.handler, root.item)
        return dirty_key(self.application, self.index, counter, root.number)

    def _write(self, writes: Sequence[PutState | DeleteState]) -> None:
        for start in range(0, len(writes), ACTIONS_MAX):
            if self.engine.transact(writes[start : start + ACTIONS_MAX], 0) is not None:
                raise Contended("Others write the notes of a rebuild; the records come again.")


def _text(root: DirtyRoot) -> str:
    return COMPACT.encode([root.handler, root.number, *map(encode, root.item)])


def _root(index: str, text: str) -> DirtyRoot:
    try:
        handler, number, *item = json.loads(text)
        table, partition, sort = map(decode, item)
        return DirtyRoot(handler, (table, partition, sort), number)
    except (AttributeError, TypeError, ValueError):
        raise damaged(f"A note of the rebuild of {index!r}") from None
