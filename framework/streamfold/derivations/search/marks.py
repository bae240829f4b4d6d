"""Which indexes the documents of an alias go to: a mark in the state, which is there from the first rebuild on.

A rebuild leads the mark through its phases. Each batch reads it once, strongly, so that every batch which begins after
a phase was written acts by it.

| phase      | documents go to                            | a failure of the second index             |
| ---------- | ------------------------------------------ | ----------------------------------------- |
| none       | the alias                                  |                                           |
| `building` | the alias, and the index that is built     | is noted: the root is sent there again    |
| `both`     | the live index, and the one that is built  | holds the record                          |
| `swapped`  | the live index, and the old one            | holds the record                          |
| `taken`    | the old index, if the replaced search sends |                                          |

From `both` on, indexes are named one by one: a run that is on its way while the alias moves so misses neither of them.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streamfold.derivations.search.names import own_alias
from streamfold.engines import Engine
from streamfold.errors import Contended, damaged
from streamfold.ledger.state_keys import index_key

BUILDING, BOTH, SWAPPED, TAKEN = "building", "both", "swapped", "taken"


class IndexMark(NamedTuple):
    """The mark of an alias."""

    live: str = ""  # the index that the alias stands for; "": the one that it always stood for
    building: str = ""  # the index that is built
    old: str = ""  # the index that the alias stood for before, which is written on
    phase: str = ""
    handler: str = ""  # phase ``taken``: the search whose alias was taken over
    since: int = 0  # epoch seconds at which the phase began
    last: int = 0  # the highest number of an index so far: none is given twice
    revision: int = 0

    @property
    def beside(self) -> str:
        """The second index, "" for none."""
        return self.building or (self.old if self.phase == SWAPPED else "")


class Targets(NamedTuple):
    """Where documents are sent: the names that they are written through."""

    first: str
    beside: str | None = None
    holds: bool = True  # a failure of the second one holds the record


def targets(mark: IndexMark | None, alias: str, handler: str) -> Targets:
    """Where a search sends the documents of an alias."""
    if mark is None or not mark.phase:
        return Targets(alias)
    if mark.phase == TAKEN:
        return Targets(own_alias(mark.old) if handler == mark.handler else alias)
    if mark.phase == BUILDING:
        return Targets(alias, own_alias(mark.building), holds=False)
    return Targets(own_alias(mark.live), own_alias(mark.beside))


def read_marks(application: str, engine: Engine, aliases: Iterable[str]) -> dict[str, IndexMark]:
    """The marks of aliases, read strongly in one call; those that have none are missing."""
    keys = {index_key(application, alias): alias for alias in aliases}
    found = engine.read_state(keys, consistent=True) if keys else {}
    return {keys[key]: _mark(keys[key], item) for key, item in found.items()}


def read_mark(application: str, engine: Engine, alias: str) -> IndexMark:
    """The mark of one alias; an empty one where there is none."""
    return read_marks(application, engine, [alias]).get(alias, IndexMark())


def write_mark(application: str, engine: Engine, alias: str, mark: IndexMark) -> IndexMark:
    """Writes a mark over the revision that it was made of. Raises ``Contended`` where another one is there."""
    fields = {name: value for name, value in mark._asdict().items() if name != "revision"}
    text = json.dumps(fields, sort_keys=True)
    if not engine.swap_state(index_key(application, alias), {"s": text}, mark.revision):
        raise Contended(f"The rebuild of index {alias!r} was led on by somebody else: the same command goes on.")
    return mark._replace(revision=mark.revision + 1)


def _mark(alias: str, item: Mapping[str, object]) -> IndexMark:
    try:
        known = {name: value for name, value in json.loads(str(item["s"])).items() if name in IndexMark._fields}
        return IndexMark(**{**known, "revision": int(str(item["r"]))})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damaged(f"The mark of index {alias!r}") from None
