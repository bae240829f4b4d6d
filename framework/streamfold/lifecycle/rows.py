"""Verifies that rows are the sums of their sources: folds the sources in a temporary state, and compares row by row."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from streamfold.batch.fan_outs import run_chains
from streamfold.batch.manifest import read_manifest
from streamfold.derivations.derivation import derived
from streamfold.derivations.expected import NOTHING_UNSEEN, RowDifference, ShownRow, VerifiedRows
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.local_store import page_of
from streamfold.engines.protocol import Engine, Page, StoredItem
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import CONTRIBUTORS, LIFE, Table, is_writers
from streamfold.ledger.deltas import BUCKETS
from streamfold.ledger.schema import Schema
from streamfold.ledger.state_keys import ledger_key
from streamfold.lifecycle.buckets import pending_rows
from streamfold.lifecycle.explain import Explaining, entries_in_ledger
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_sources import retired_attributes, retired_in, rows_that_agree
from streamfold.lifecycle.sources import pages, scanned, source_tables
from streamfold.lifecycle.unseen import ComparedRow, UnseenDifferences, relied_on
from streamfold.lifecycle.verify import stable
from streamfold.records.change import ItemKey, image_of, item_key
from streamfold.records.images import hidden
from streamfold.records.values import alike, is_zero, sortable
from streamfold.routes.application import Application
from streamfold.routes.route import SOURCE, Route
from streamfold.runtime import MICROSECONDS, Runtime
from streamfold.writes.guarded import RowKey

FOLDS_MAX = 3
"""Folds of a live system; a row that changed in each of them counts as moving."""
WATCHED_ROWS = 100
"""Rows that are read after each page of a fold about some rows only: one BatchGetItem."""
ACTIONS = 2_000
"""Writes in one transaction of a fold, or of loaded items: local stores have no limit."""


def verified_routes(app: Application, routes: Iterable[Route]) -> list[Route]:
    """The routes whose rows can be folded, and all others that write the same rows."""
    wanted = {key for route in routes if route.kind.contributes for key in route.into}
    return [route for route in app.routes if route.kind.contributes and wanted & set(route.into)]


def is_target(routes: Iterable[Route], key: RowKey) -> bool:
    """Whether one of these routes can write a row of this key."""
    return any(target.takes(key) for route in routes for target in route.into)


def visible(
    app: Application, row: RowKey, attributes: ShownRow | None, retired: frozenset[str] = frozenset()
) -> ShownRow | None:
    """A row as its readers see it: without the framework's attributes, absent without contributors.

    retired: ignored attributes. A row that shows only these counts as absent: the retired handler's item counts as a
    contributor for ever.
    """
    if attributes is None or attributes.get(CONTRIBUTORS) == 0:
        return None
    own = {*app.tables[row[0]].attributes, *retired}
    found = {name: value for name, value in attributes.items() if not (hidden(name) or name in own or is_zero(value))}
    return found if found or not retired else None


class _Fold(EmbeddedEngine):
    """The temporary state of a fold. Items that it does not make itself, such as referents, are read behind it."""

    behind: Engine
    is_folded: Callable[[ItemKey], bool]

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        wanted = list(items)
        own = super().read_sources([item for item in wanted if self.is_folded(item) or self._row(item) is not None])
        others = [item for item in wanted if item not in own and not self.is_folded(item)]
        return {**own, **self.behind.read_sources(others)} if others else own

    def page(
        self,
        table: Table,
        partition: KeyValue,
        begins: str,
        after: KeyValue | None,
        limit: int,
        *,
        descending: bool = False,
    ) -> Page:
        """A page of what the fold has made, and of the items behind it that the fold does not make."""
        own = _items_of(super().page, (table, partition, begins, after, limit), descending=descending)
        behind = _items_of(self.behind.page, (table, partition, begins, after, limit), descending=descending)
        both = {key: each for key, each in behind.items() if not self.is_folded(key)} | own
        found = [both[key] for key in sorted(both, key=lambda key: sortable(key[2]), reverse=descending)]
        return page_of(table, found, limit)

    def _keeps_sources(self, table: str) -> bool:  # noqa: ARG002 - what is not here is behind it
        return True


def _items_of(
    read: Callable[..., Page], wanted: tuple[Table, KeyValue, str, KeyValue | None, int], *, descending: bool
) -> dict[ItemKey, StoredItem]:
    """The next items of a partition by key: one more than a page has, so that it is seen whether more follow."""
    table, partition, begins, after, limit = wanted
    found: dict[ItemKey, StoredItem] = {}
    for _ in range(limit + 1):  # each page but the last has an item
        page = read(table, partition, begins, after, limit + 1, descending=descending)
        found |= {item_key({name: each[name] for name in table.attributes}, table): each for each in page.items}
        after = page.after
        if after is None or len(found) > limit:
            break
    return found


class RowsVerifier:
    """Compares all rows of some handlers with the sums of their sources.

    ``live``: others write meanwhile, so that a difference is compared again after ``tolerance_seconds``.
    ``has_state``: the store has the state too, whose entries are compared; exports may lack it.
    """

    def __init__(
        self,
        runtime: Runtime,
        routes: Collection[Route],
        *,
        live: bool,
        tolerance_seconds: float = 0,
        has_state: bool = True,
    ) -> None:
        self.runtime = runtime
        self.app = runtime.application
        self.engine = runtime.engine
        self.has_state = has_state
        self.routes = verified_routes(self.app, routes)
        self.retired = retired_attributes(self.routes, runtime.known.schema)
        self.live = live
        self.tolerance_seconds = tolerance_seconds
        self.found = VerifiedRows()
        self.suspected: Collection[RowKey] = ()  # rows that changed at every look, and differed
        self.lacking: set[RowKey] = set()  # rows that expire, below which entries are missing
        self.lives: set[int] = set()  # digests of rows that expire, each with a life that the ledger names
        self.expiring = set(runtime.known.lives.targets)  # templates of targets whose rows expire
        self.changed: set[RowKey] = set()  # rows that changed before or during the last fold
        self.watched: deque[RowKey] = deque()  # the rows of the last fold, in the order in which they are read next
        self.before: Mapping[RowKey, ShownRow | None] = {}  # the watched rows before the fold
        self.pending: set[RowKey] = set()  # that were passed over
        self.awaited: set[RowKey] = set()  # so were these, because a moment of an item has just come

    def verify(self) -> VerifiedRows:
        """Folds and compares, again while suspected rows change."""
        suspected: Mapping[RowKey, RowDifference] = self._compared(None)
        if self.live:
            self.found.different, suspected = stable(
                self.runtime,
                suspected,
                self._compared,
                looks_max=FOLDS_MAX,
                tolerance_seconds=self.tolerance_seconds,
                is_same=lambda before, now: before == now and now.row not in self.changed,
            )
            self.found.moving, self.suspected = len(suspected), suspected.keys()
        else:
            self.found.different += suspected.values()
        self.found.different.sort(key=lambda each: str(each.row))
        self.found.pending = len(self.pending)
        self.found.moving += len(self.awaited)
        return self.found

    def _compared(self, only: Collection[RowKey] | None) -> dict[RowKey, RowDifference]:
        """The rows that differ from a new fold; ``only`` these, if given. A row that changed meanwhile differs too."""
        self.changed, self.watched = set(), deque(only or ())
        self.before = self._stored(self.watched)
        with self._folded(only) as folded:
            unseen = UnseenDifferences(self.runtime, self.routes, folded, has_state=self.has_state)
            found: dict[RowKey, RowDifference] = {}
            for rows in pages(only) if only is not None else self._all_rows(folded):
                stored, expected = self._stored(rows), self._stored(rows, folded)
                self.found.rows += len(rows) if only is None else 0
                self._note_changed(stored)
                differing = unseen.of(
                    [each for row in rows if (each := self._both_sides(row, stored, expected)) is not None]
                )
                for row in rows:
                    shown, right = self._visible(row, stored[row]), self._visible(row, expected[row])
                    if is_writers(stored[row]):
                        self.found.writers += only is None and right is None
                        if right is not None:
                            found[row] = RowDifference(row, shown, right, taken=True)
                        continue
                    wrong = not alike(shown, right) or row in differing or self._is_lost(row, stored[row])
                    if wrong or row in self.changed or row in self.lacking:
                        found[row] = RowDifference(row, shown, right, differing.get(row, NOTHING_UNSEEN))
            return self._without_expired(self._without_pending(self._without_awaited(found)))

    def _both_sides(
        self, row: RowKey, stored: Mapping[RowKey, ShownRow | None], expected: Mapping[RowKey, ShownRow | None]
    ) -> ComparedRow | None:
        one, other = stored[row], expected[row]
        if one is None or other is None:
            return None
        return ComparedRow(row, one, other, retired_in(self.retired, row) & one.keys())

    def _is_lost(self, row: RowKey, stored: ShownRow | None) -> bool:
        """Whether a row counts contributors, and no contribution of the ledger is of its life."""
        if stored is None or not stored.get(CONTRIBUTORS) or not self._expires(row):
            return False
        return self.has_state and hash((row, str(stored.get(LIFE, "")))) not in self.lives

    def _expires(self, row: RowKey) -> bool:
        return any(
            target.stored_name in self.expiring and target.takes(row) for route in self.routes for target in route.into
        )

    def _without_pending(self, found: dict[RowKey, RowDifference]) -> dict[RowKey, RowDifference]:
        """Leaves out rows of which something waits in deltas: they are the fold once it is added.

        Read after the rows: what was moved into a row meanwhile makes it another row at the next look.
        """
        name = self.app.name
        # The mark is read now: the command may have begun before a process noted that it puts deltas.
        if read_manifest(name, self.engine).deltas is None:
            return found
        rows, unread = pending_rows(name, self.engine, range(BUCKETS))
        for delta, why in unread.items():  # what it adds is in no row: its rows differ
            self.runtime.warn_once(("delta", delta), why)
        pending = {row for row in rows if is_target(self.routes, row)}
        self.pending |= pending
        return {row: each for row, each in found.items() if row not in pending}

    def _without_awaited(self, found: dict[RowKey, RowDifference]) -> dict[RowKey, RowDifference]:
        """Leaves out rows of items that are about to be derived again, because a moment has just come."""
        asking = [route for route in self.routes if route.asks_time]
        if not (found and asking and self.has_state):
            return found
        from streamfold.batch.wakes import awaited_rows  # few handlers ask for the time

        awaited = awaited_rows(self.runtime, asking)
        self.awaited |= awaited & found.keys()
        return {row: each for row, each in found.items() if row not in awaited}

    def _without_expired(self, found: dict[RowKey, RowDifference]) -> dict[RowKey, RowDifference]:
        """Leaves out expired rows, and rows that were made again and hold the contributions since.

        A fold of all items does not know which contributions came since. The ledger notes the life of each row.
        """
        rows = [row for row in found if self._expires(row)]
        if not rows:
            return found
        shown = [row for row in rows if found[row].shown is not None]
        agree = rows_that_agree(Explaining(self.app, self.engine, self.runtime.known.schema), shown)
        left_out = {row for row in rows if found[row].shown is None} | agree
        return {row: each for row, each in found.items() if row not in left_out}

    def _stored(self, rows: Collection[RowKey], engine: Engine | None = None) -> dict[RowKey, ShownRow | None]:
        stored = (engine or self.engine).read_rows(rows) if rows else {}
        return {row: stored.get(row) for row in rows}

    def _visible(self, row: RowKey, stored: ShownRow | None) -> ShownRow | None:
        return visible(self.app, row, stored, retired_in(self.retired, row))

    def _watch(self) -> None:
        """Reads some of the watched rows: a row may change during the fold and change back before its end."""
        some = [self.watched.popleft() for _ in range(min(WATCHED_ROWS, len(self.watched)))]
        self._note_changed(self._stored(some))
        self.watched.extend(row for row in some if row not in self.changed)

    def _note_changed(self, stored: Mapping[RowKey, ShownRow | None]) -> None:
        self.changed.update(
            row for row, now in stored.items() if row in self.before and self._has_changed(row, self.before[row], now)
        )

    def _has_changed(self, row: RowKey, before: ShownRow | None, now: ShownRow | None) -> bool:
        if before is None or now is None:
            return (before is None) != (now is None)
        shown = alike(self._visible(row, before), self._visible(row, now))
        return not (shown and alike(relied_on(before), relied_on(now)))

    def _all_rows(self, folded: EmbeddedEngine) -> Iterator[list[RowKey]]:
        """The rows of the handlers' targets, in the table or in the fold, each once."""
        for table in {key.table.name: key.table for route in self.routes for key in route.into}.values():
            yield from self._rows_of(self.engine, table)
            for rows in self._rows_of(folded, table):
                stored = self.engine.read_rows(rows)
                if missing := [row for row in rows if row not in stored]:
                    yield missing

    def _rows_of(self, engine: Engine, table: Table) -> Iterator[list[RowKey]]:
        for keys in pages(scanned(engine, table)):
            if rows := [key for key in keys if is_target(self.routes, key)]:
                yield rows

    @contextmanager
    def _folded(self, only: Collection[RowKey] | None) -> Iterator[EmbeddedEngine]:
        """A temporary state with the sums of all sources; only in the rows ``only``, if given."""
        with TemporaryDirectory() as folder:
            path = str(Path(folder) / "fold.db")
            tables, names = self.app.tables.values(), [route.name for route in self.routes]
            with closing(_Fold(tables, path, self.app.chains, actions_max=ACTIONS)) as folded:
                folded.behind, folded.is_folded = self.engine, self._is_folded
                if self.app.asks_time:
                    folded.advance_clock(self.runtime.moment / MICROSECONDS)
                runtime = self.runtime.on(folded, actions=ACTIONS, handlers=frozenset(names), parking=None)
                reconciling = Pages(runtime, names)
                self.found.failed = []
                self.lacking = set()
                for table in source_tables(self.routes):
                    for keys in pages(scanned(self.engine, table)):
                        self._fold(reconciling, folded, [key for key in keys if not self._is_folded(key)], only)
                        self._watch()
                run_chains(runtime, folded)
                yield folded

    def _fold(
        self, reconciling: Pages, folded: EmbeddedEngine, keys: Sequence[ItemKey], only: Collection[RowKey] | None
    ) -> None:
        wanted = [key for key in keys if self.app.listeners(key)]
        sources = self.engine.read_sources(wanted) if wanted else {}
        if only is not None:
            schema = reconciling.runtime.known.schema
            sources = {key: image for key, image in sources.items() if self._leads_to(key, image, schema, only)}
        with folded.batch():  # a page is one transaction of the file, whose items are read and written once
            folded.put_sources((key, image, "0") for key, image in sources.items())
            self.found.failed += reconciling.reconcile(sources).failed
        self.expiring |= reconciling.runtime.known.lives.targets
        if self.expiring and self.has_state:
            self._note_lives(sources)

    def _is_folded(self, key: RowKey) -> bool:
        # A row that other rows of the fold make is folded too. Rows of handlers that are not compared are sources.
        return self.app.derived(key) and is_target(self.routes, key)

    def _leads_to(self, item: ItemKey, image: StoredItem, schema: Schema, only: Collection[RowKey]) -> bool:
        """Whether an item may contribute to one of these rows, also through a chain, or a handler raises on it."""
        read = [(each, fields) for each, fields in self.app.listeners(item) if each.route in self.routes]
        own = [(each.route, fields) for each, fields in read if each.role == SOURCE]
        # Rows depend on referents, parts or the time. The part of an absent root leads to the root's row.
        if any(route.planned_from_ledger for route, _ in own) or any(each.route.optional for each, _ in read):
            return True
        made = (derived(route, image_of(image), fields, schema) for route, fields in own)
        return any(
            each.error is not None or any(row in only or self.app.chains(row) for row in each.rows) for each in made
        )

    def _note_lives(self, items: Iterable[ItemKey]) -> None:
        """Notes the lives of rows that the ledger names, and the rows below which entries of the ledger are missing.

        A fold does not know since when a row that expires holds contributions.
        """
        groups = {route.group for route in self.routes}
        keys = [ledger_key(self.app.name, group, item) for item in items for group in groups]
        named = entries_in_ledger(self.app, self.engine, keys)
        self.lives.update(hash((row, life)) for row, life in named.lives if self._expires(row))
        self.lacking.update(row for row in named.lacking if self._expires(row))
