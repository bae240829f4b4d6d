"""The kind ``copy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamfold.derivations.derivation import Derivation, Planned
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.table import Table
from streamfold.routes.route import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Finishing, Planning, Work
    from streamfold.derivations.expected import Expected, History
    from streamfold.routes.route import Needs, Route


def copy_keys(sources: tuple[Key, ...], to: Any, at: str) -> tuple[Key, ...]:
    """The keys of the copies: the keys of the sources, in the other table.

    Raises ``DeclarationError`` for a table that cannot hold them.
    """
    if not isinstance(to, Table):
        raise DeclarationError(f'copy at {at} has to={to!r}: expected a Table, to=Table("copies", region="eu-west-1").')
    for source in sources:
        if source.table.name == to.name:
            raise DeclarationError(f"copy at {at} has to={to.name!r}, which {source!r} is of: expected another table.")
        if (source.table.attributes, source.table.delimiter) != (to.attributes, to.delimiter):
            raise DeclarationError(
                f"copy at {at} has to={to.name!r} with the key attributes {', '.join(to.attributes)} and the delimiter "
                f"{to.delimiter!r}: a copy has its item's key, so expected those of {source!r}, "
                f"{', '.join(source.table.attributes)} and {source.table.delimiter!r}."
            )
    keys = tuple(Key(source.partition.text, source.sort.text if source.sort else None, to) for source in sources)
    for key in keys:
        key.declared_at = at
    return keys


class Copy(Derivation):
    """Copies of items in another table, which may be in another region."""

    name = "copy"
    write_units = "1"
    elsewhere = True
    reconciles = True
    redriven_by_record = True  # the copy's version guards it; the item is read only if the copy is missing

    def guard(self, route: Route) -> str:
        return "row guard"

    def needs(self, route: Route) -> Needs:
        return "new"

    def target(self, route: Route, key: Key, *, sole_writer: bool) -> Target:
        return Target(key, owned=True, sole_writer=sole_writer)

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        from streamfold.derivations.copy.copies import newest

        return Planned(deferred=[copy for work in works for copy in newest(work, planning)])

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        from streamfold.derivations.copy.copies import Copied, Copies

        return Copies(finishing).write([each for each in deferred if isinstance(each, Copied)])

    def reconcile(self, work: Work, finishing: Finishing) -> Outcome:
        """Puts the copy of an item as it is now; reads the copy first, so that a record that comes meanwhile wins."""
        from streamfold.derivations.copy.copies import Copied, Copies, reconciled_copy

        key = (work.route.into[0].table.name, *work.item[1:])
        row = finishing.runtime.engine.read_rows([key]).get(key, {})
        put = reconciled_copy(work.route, work.item, row, finishing.runtime.engine.read_source(work.item))
        return Copies(finishing).write([Copied(work.route, tuple(work.changes), put)] if put is not None else [])

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import dynamodb, table_of

        return dynamodb(table_of(route.into[0]), "PutItem")

    def reconcile_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import dynamodb, of_items, table_of

        return of_items(route) | dynamodb(table_of(route.into[0]), "BatchGetItem")

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected

        expected = Expected()
        for change, _ in history.changes_of(route):
            key = (route.into[0].table.name, *change.item[1:])
            expected.rows.pop(key, None)
            if change.new:
                expected.rows[key] = {name: value for name, value in change.new.items() if name not in change.keys}
        return expected


COPY = Copy()
