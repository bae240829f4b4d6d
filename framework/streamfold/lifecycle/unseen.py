"""Compares what readers do not see of a row and later steps rely on: the framework's attributes, and entries below it.

The expected values are those of a fold of all items. A row depends on its history in three places, which are allowed
for:

- *The owner.* Additions remove it for good, so a row may lack the owner that its fold has. It never has another one.
- *The cut-off.* If entries beyond it are gone, the row keeps it: it is the position of the last value that the row
  shows.
- *A row that expires* holds the entries that came since it was made, under the life that it has since.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from streamfold.commit.after_commit import cut_offs, read_shows
from streamfold.commit.transactions import in_slots
from streamfold.derivations.expected import Unseen
from streamfold.engines.protocol import Engine, Entries
from streamfold.keys.table import CONTRIBUTORS, EDGE, LIFE, MARK, OWNER, PLACES, PLAIN_NAMES, STAMP
from streamfold.ledger.contribution import partition
from streamfold.records.values import alike
from streamfold.routes.aggregates import ordering_of
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey

ENTRIES = "entries"
"""Before the name of an attribute: the entries below the row that the attribute is made of."""
MISSING, OTHERS = "missing", "others"
PAGE_ENTRIES = 1_000
"""Entries of one attribute that are read at once."""

StoredRow = Mapping[str, Any]
EntryPage = list[tuple[str, str]]


def relied_on(row: StoredRow) -> dict[str, Any]:
    """The attributes of the framework that are the same for the same items, with the mark of a correction left out."""
    found = {name: row[name] for name in row if name.startswith((EDGE, PLACES)) or name in (LIFE, PLAIN_NAMES)}
    if owner := owner_in(row):
        found[OWNER] = owner
    return found | {CONTRIBUTORS: row.get(CONTRIBUTORS, 0)}


def owner_in(row: StoredRow) -> str:
    """The owner of a row that is put whole; "" for a row without one, and in place of the mark of a correction."""
    owner = str(row.get(OWNER, ""))
    return "" if owner.startswith(MARK) else owner


class ComparedRow(NamedTuple):
    """A stored row, and the row of the fold."""

    row: RowKey
    stored: StoredRow
    expected: StoredRow
    retired: Collection[str] = ()  # attributes that retired handlers left: these count as contributors for ever


class UnseenDifferences:
    """Compares rows with those of a fold, many at once.

    folded: the store of the fold; None: the attributes of rows are compared, and no entries.
    has_state: the store of the rows has the state, too.
    """

    def __init__(self, runtime: Runtime, routes: Sequence[Route], folded: Engine | None, *, has_state: bool) -> None:
        self.runtime = runtime
        self.routes = routes
        self.folded = folded
        self.has_state = has_state

    def of(self, rows: Sequence[ComparedRow]) -> dict[RowKey, Unseen]:
        """What differs of each row; rows of which nothing differs are left out."""
        found = {each.row: self._attributes(each) for each in rows}
        if self.has_state and self.folded is not None:
            below = [one for each in rows for one in self._partitions(each)]
            calls = [(one, partial(self._page, one.stored, "")) for one in below]
            for one, page in in_slots(self.runtime.slots, calls):
                if isinstance(page, Exception):
                    raise page
                if how := self._differ(one, page):
                    found[one.row][f"{ENTRIES} of {one.name}" if one.name else ENTRIES] = (how, None)
        return {row: unseen for row, unseen in found.items() if unseen}

    def _attributes(self, each: ComparedRow) -> dict[str, tuple[Any, Any]]:
        stored, expected = relied_on(each.stored), relied_on(each.expected)
        names = [name for name in sorted({*stored, *expected}) if not alike(stored.get(name), expected.get(name))]
        found = {name: (stored.get(name), expected.get(name)) for name in names if self._matters(name, each)}
        if STAMP not in each.stored and any(name.startswith(EDGE) for name in expected):
            found[STAMP] = (None, "")  # without it no entry is ever shown
        return found

    def _matters(self, name: str, each: ComparedRow) -> bool:
        stored, expected = each.stored.get(name), each.expected.get(name)
        if name == CONTRIBUTORS and each.retired:
            return not isinstance(stored, int | Decimal) or stored < (expected or 0)
        if any(name in (EDGE + retired, PLACES + retired) for retired in each.retired):
            return False
        if name == OWNER:
            return bool(owner_in(each.stored))  # without an owner, the next put is sent as an addition
        if name == LIFE:
            return False  # of no fold: ``lifecycle.rows`` compares it with the ledger
        if name.startswith(EDGE):
            return not self._is_kept_cut_off(name.removeprefix(EDGE), each)
        return True

    def _is_kept_cut_off(self, name: str, each: ComparedRow) -> bool:
        """Whether a cut-off is that of the last value that the row shows, while the fold needs none."""
        ordering, _, edge = str(each.stored.get(EDGE + name, "")).partition(" ")
        expected, _, none = str(each.expected.get(EDGE + name, "")).partition(" ")
        if self.folded is None or ordering != expected or none or not edge:
            return False
        life = str(each.expected.get(LIFE, ""))
        return any(
            edge in cut_offs(read_shows(self.folded, where, ordering_of(ordering)), ordering_of(ordering))
            for where in self._named(name, each.row, life)
        )

    def _named(self, name: str, row: RowKey, life: str) -> Iterator[str]:
        for route in self.routes:
            if route.kind.contributes and route.target_of(row) is not None:
                yield partition(self.runtime.application.name, route.name, name, row, life)

    def _partitions(self, each: ComparedRow) -> Iterator["_EntriesBelow"]:
        """The partitions of the entries below a row, of the row and of the fold."""
        lives = [str(row.get(LIFE, "")) for row in (each.stored, each.expected)]
        names = {
            name.removeprefix(EDGE) for row in (each.stored, each.expected) for name in row if name.startswith(EDGE)
        }
        for name in sorted(names):
            own, right = (self._named(name, each.row, life) for life in lives)
            for one, other in zip(own, right, strict=True):
                yield _EntriesBelow(each.row, name, one, other, since_it_was_made=bool(lives[0]))

    def _differ(self, below: "_EntriesBelow", first: EntryPage) -> str:
        """How the entries below a row differ from those of the fold, which a row that expires may lack; "" if they do
        not.
        """
        assert self.folded is not None
        right, lacks = entries_in(partial(page_of_entries, self.folded, below.expected)), False
        for entry in entries_in(partial(self._page, below.stored), first):
            expected = next(right, None)
            while expected is not None and expected[0] < entry[0]:
                expected, lacks = next(right, None), True
            if entry != expected:
                return OTHERS
        lacks = lacks or next(right, None) is not None
        return MISSING if lacks and not below.since_it_was_made else ""

    def _page(self, where: str, after: str) -> EntryPage:
        return page_of_entries(self.runtime.engine, where, after)


class _EntriesBelow(NamedTuple):
    """The entries of one attribute below a row."""

    row: RowKey
    name: str
    stored: str  # their partition
    expected: str  # that of the fold
    since_it_was_made: bool  # the row expires, and may lack entries of the fold


def page_of_entries(engine: Engine, where: str, after: str) -> EntryPage:
    return engine.read_entries(Entries(where, PAGE_ENTRIES, after))


def entries_in(read: Callable[[str], EntryPage], first: EntryPage | None = None) -> Iterator[tuple[str, str]]:
    """The entries of a partition, in order, page by page: a row may have a million. ``first``: a page that is read."""
    page = read("") if first is None else first
    while page:
        yield from page
        page = read(page[-1][0]) if len(page) == PAGE_ENTRIES else []
