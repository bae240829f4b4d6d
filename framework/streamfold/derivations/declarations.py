"""What becomes of items beside rows: declarations that need no function, because they take the item as it is."""

import re
import sys
from abc import abstractmethod
from collections.abc import Sequence
from hashlib import sha256

from streamfold.derivations.archive.declared import PLACES, is_place
from streamfold.derivations.archive.kind import ARCHIVE
from streamfold.derivations.cascade.kind import CASCADE
from streamfold.derivations.copy.kind import COPY
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN, Table
from streamfold.routes.policy import OnError, Policy, checked_policy
from streamfold.routes.route import GROUP, Route

NAME_WORD = re.compile("[a-z0-9]+")
DEFAULT_NAME_LENGTH_MAX = 54
"""Length of a name that is made: 64 (``is_name``), less the longest suffix of a handler that is declared beside."""
NAME_DIGEST_LENGTH = 8
"""Hexadecimal digits, 32 bits, that tell long names apart; two that are alike all the same are refused."""


class Lifecycle:
    """The part of a ``Router`` that declares what happens to whole items."""

    @abstractmethod
    def _add(self, route: Route) -> None: ...

    def copy(
        self,
        *sources: Key,
        to: Table,
        name: str | None = None,
        group: str = GROUP,
        on_error: OnError = "retry",
        attempts_max: int | None = None,
        age_seconds_max: int | None = None,
    ) -> None:
        """Declares that items are kept in another table too, which may be in another region: ``Table(..., region=)``.

        A copy has its item's key and attributes, and bears the version that it was written by: an older change never
        overwrites a newer one, and a removal leaves a tombstone. Each is a single put of its own, so a copy may lag
        behind the rows that were derived of the same record. Copies are not copied again: items that bear such a
        version themselves, and changes of nothing but a global table's replication attributes, are passed over.
        """
        at = _declared_at()
        keys = source_keys(sources, "copy", at)
        targets = _copies(keys, to, at)
        policy = checked_policy(Policy(on_error, attempts_max, age_seconds_max), "router.copy", at)
        name = default_name("copy", keys[0]) if name is None else name
        self._add(Route(name, COPY, keys, targets, None, at, group, policy=policy))

    def cascade(
        self,
        *parents: Key,
        children: Sequence[Key],
        name: str | None = None,
        group: str = GROUP,
        on_error: OnError = "retry",
        attempts_max: int | None = None,
        age_seconds_max: int | None = None,
    ) -> None:
        """Declares that an item's removal, expiry included, removes its children: items of the same partition.

        A child's template begins with the parent's partition and holds every field of the parent's key. Children go
        page by page, each page in one transaction on the parent's absence and on the children as they were read; a
        cursor in the state keeps the place, so that what an invocation's time does not suffice for goes on when the
        record comes again. Where the parent exists again, the rest of its children is kept, and counted as ``kept``.
        Children written while their parent is away cannot be told from older ones, and go too.
        """
        at = _declared_at()
        keys = source_keys(parents, "cascade", at)
        if not isinstance(children, list | tuple) or not children or not all(isinstance(key, Key) for key in children):
            raise DeclarationError(
                f"cascade at {at} has children={children!r}: expected a list of Keys, children=[ORDER_ITEM]."
            )
        policy = checked_policy(Policy(on_error, attempts_max, age_seconds_max), "router.cascade", at)
        below = tuple(dict.fromkeys(children))
        name = default_name("cascade", keys[0]) if name is None else name
        self._add(Route(name, CASCADE, keys, (), None, at, group, options=below, policy=policy))

    def archive(
        self,
        *sources: Key,
        to: str,
        name: str | None = None,
        group: str = GROUP,
        on_error: OnError = "retry",
        attempts_max: int | None = None,
        age_seconds_max: int | None = None,
    ) -> None:
        """Declares that removed items, expired ones included, are kept as compressed JSON Lines by date.

        ``to`` is ``s3://BUCKET/PREFIX``, or for local replays ``file:FOLDER``; the setting ``STREAMFOLD_ARCHIVE`` gives
        another place. At least once: ``streamfold.read.archived`` reads each once.
        """
        at = _declared_at()
        keys = source_keys(sources, "archive", at)
        if not is_place(to):
            raise DeclarationError(f"archive at {at} has to={to!r}: {PLACES}.")
        policy = checked_policy(Policy(on_error, attempts_max, age_seconds_max), "router.archive", at)
        name = default_name("archive", keys[0]) if name is None else name
        self._add(Route(name, ARCHIVE, keys, (), None, at, group, options=to, policy=policy))


def source_keys(sources: tuple[Key, ...], kind: str, at: str, mark: str = "") -> tuple[Key, ...]:
    """The sources of a declaration, each once. Raises ``DeclarationError`` for anything but keys."""
    if not sources or not all(isinstance(source, Key) for source in sources):
        form = f"{mark}router.{kind}(ORDER, ...)"
        raise DeclarationError(f"{kind} at {at} has the sources {sources!r}: expected one or several Keys, {form}.")
    return tuple(dict.fromkeys(sources))


def default_name(kind: str, source: Key) -> str:
    """The name of a declaration that gives none: its kind and the literals of its first source, ``audit_order_item``.

    A table other than the main one is named before them. Further sources leave the name as it is.
    """
    table = "" if source.table.name == MAIN.name else source.table.name
    literals = [piece for part in source.parts for piece in part.pieces if isinstance(piece, str)]
    name = "_".join([kind, *NAME_WORD.findall(" ".join([table, *literals]).lower())])
    if len(name) <= DEFAULT_NAME_LENGTH_MAX:
        return name
    digest = sha256(name.encode()).hexdigest()[:NAME_DIGEST_LENGTH]
    return f"{name[: DEFAULT_NAME_LENGTH_MAX - NAME_DIGEST_LENGTH - 1]}_{digest}"


def _declared_at() -> str:
    frame = sys._getframe(2)  # noqa: SLF001 - the one way to know where it was declared
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _copies(sources: tuple[Key, ...], to: Table, at: str) -> tuple[Key, ...]:
    """The keys of the copies: those of the sources, in the other table."""
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
