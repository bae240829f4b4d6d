"""Declarations that need no function, because they take the item as it is."""

from collections.abc import Collection, Sequence
from typing import Unpack

from streamfold.derivations.archive.declared import checked_place
from streamfold.derivations.archive.kind import ARCHIVE
from streamfold.derivations.audit.declared import audit_targets
from streamfold.derivations.audit.kind import AUDIT_ROWS
from streamfold.derivations.audit.options import Recorded, checked_recorded
from streamfold.derivations.cascade.declared import checked_children
from streamfold.derivations.cascade.kind import CASCADE
from streamfold.derivations.copy.declared import copy_keys
from streamfold.derivations.copy.kind import COPY
from streamfold.derivations.decorators import Declarations
from streamfold.keys.key import Key
from streamfold.keys.table import Table
from streamfold.routes.declaration import CommonOptions, Keys, Made, caller, check_options, declared_route
from streamfold.routes.route import Kind, Route


class ItemDeclarations(Declarations):
    """The part of a ``Router`` that declares what happens to whole items."""

    def audit(
        self,
        *sources: Key,
        into: Key | None = None,
        redact: Collection[str] = (),
        fields: Collection[str] | None = None,
        actor: str | None = None,
        unchanged: bool = True,
        keep_days: int | None = None,
        versions: Key | None = None,
        latest: Key | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        """Declares an append-only history: one row per change with each field's old and new value.

        Rows go to ``AUDIT`` in the source's table, or to ``into``, whose template must hold ``{version}`` and either
        ``{item}`` or every field of the source's key. ``redact`` names attributes whose change is noted without values,
        ``fields`` the only ones that are recorded. ``actor`` is the attribute in which each writer says who it is. A
        row also holds what its change left alone, unless ``unchanged=False``: each tells the whole item. It expires
        ``keep_days`` after the change, by the time-to-live attribute of its table. ``versions`` is the key of a row for
        every number that the writer gave the item, in an attribute that it raises with each edit; ``latest`` that of a
        row that names the newest. See docs/audit.md.
        """

        def made(keys: Keys, at: str) -> tuple[Keys, Recorded]:
            return audit_targets(into, keys, at), checked_recorded(at, redact, fields, actor, unchanged, keep_days)

        routes = [_route(AUDIT_ROWS, sources, common, made)]
        if versions is not None or latest is not None:
            # brings along what writes rows, which few cold starts need
            from streamfold.derivations.audit.numbered import numbered_route

            routes.append(numbered_route(routes[0], versions, latest))
        self._add(*routes)

    def copy(self, *sources: Key, to: Table, **common: Unpack[CommonOptions]) -> None:
        """Declares that items are kept in another table too, which may be in another region: ``Table(..., region=)``.

        A copy has its item's key and attributes, and bears the version that it was written by: an older change never
        overwrites a newer one, and a removal leaves a tombstone. Each is a single put of its own, so a copy may lag
        behind the rows that were derived of the same record. Copies are not copied again: items that bear such a
        version themselves, and changes of nothing but a global table's replication attributes, are passed over.
        """
        self._add(_route(COPY, sources, common, lambda keys, at: (copy_keys(keys, to, at), None)))

    def cascade(self, *parents: Key, children: Sequence[Key], **common: Unpack[CommonOptions]) -> None:
        """Declares that an item's removal, expiry included, removes its children: items of the same partition.

        A child's template begins with the parent's partition and holds every field of the parent's key. Children go
        page by page, each page in one transaction on the parent's absence and on the children as they were read; a
        cursor in the state keeps the place, so that what an invocation's time does not suffice for goes on when the
        record comes again. Where the parent exists again, the rest of its children is kept, and counted as ``kept``.
        Children written while their parent is away cannot be told from older ones, and go too.
        """
        self._add(_route(CASCADE, parents, common, lambda _, at: ((), checked_children(children, at))))

    def archive(self, *sources: Key, to: str, **common: Unpack[CommonOptions]) -> None:
        """Declares that removed items, expired ones included, are kept as compressed JSON Lines by date.

        ``to`` is ``s3://BUCKET/PREFIX``, or for local replays ``file:FOLDER``; the setting ``STREAMFOLD_ARCHIVE`` gives
        another place. At least once: ``streamfold.read.archived`` reads each once.
        """
        self._add(_route(ARCHIVE, sources, common, lambda _, at: ((), checked_place(to, at))))


def _route(kind: Kind, sources: Keys, common: CommonOptions, made: Made) -> Route:
    """The route of a declaration."""
    check_options(kind.name, common)
    return declared_route(kind.name, kind, sources, common, made, caller(2))
