"""The decorators and declarations of all kinds, and the routes that they add."""

import inspect
import linecache
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from streamfold.derivations.archive.kind import ARCHIVE, checked_location
from streamfold.derivations.audit.kind import AUDIT_ROWS
from streamfold.derivations.audit.options import Recorded, audit_targets, checked_recorded
from streamfold.derivations.cascade.kind import CASCADE, checked_children
from streamfold.derivations.copy.kind import COPY, copy_keys
from streamfold.derivations.derivation import Derivation
from streamfold.derivations.feed.kind import FEED
from streamfold.derivations.feed.options import FEED_ATTRIBUTE, INLINE, MOST, FeedOptions, Unfollow, checked_feed
from streamfold.derivations.on.kind import GivesMoment
from streamfold.derivations.search.kind import SEARCH
from streamfold.derivations.search.options import (
    Deletes,
    Document,
    FieldTypes,
    IndexOptions,
    SearchOptions,
    checked_search,
)
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.table import Table, is_name
from streamfold.routes.declaration import (
    NO_READS,
    CommonOptions,
    GivenReads,
    Keys,
    Made,
    caller,
    check_handler,
    check_options,
    check_plain,
    declared_route,
    source_line,
    target_keys,
)
from streamfold.routes.effects import Row
from streamfold.routes.lookups import INLINE as ITEMS_INLINE
from streamfold.routes.lookups import Lookups
from streamfold.routes.parts import GivenParts
from streamfold.routes.route import Kind, Route

if TYPE_CHECKING:
    from streamfold.derivations.timers.declaration import Moments

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="Declarations")

DocumentsHandler = TypeVar("DocumentsHandler", bound=Callable[..., Document | Iterable[Document] | None])
"""A handler of a search: it returns a document, several or none, or yields them."""
FeedHandler = TypeVar("FeedHandler", bound=Callable[..., Row | Iterable[Row] | None])
"""A handler of a feed: it gets a post and an edge, and returns a row or None, or yields one."""


class Declarations:
    """Collects the routes of a ``Router``."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def _decorator(
        self,
        name: str,
        kind: Derivation,
        sources: Keys,
        common: CommonOptions,
        made: Made,
        *,
        added: Callable[[Route], Sequence[Route]] | None = None,
        reads: GivenReads = NO_READS,
    ) -> Callable[[T], T]:
        """A decorator that adds the routes of its handler: ``added`` makes them of its own one."""
        check_options(name, common)

        def declare(handler: Any) -> Any:
            if kind.outside:
                check_plain(handler, coroutines=kind.takes_coroutines)
            else:
                check_handler(handler, name)
            route = declared_route(name, kind, sources, common, made, source_line(handler), handler, reads=reads)
            self._add(*(added(route) if added else (route,)))
            return handler

        return declare

    def _add(self, *routes: Route) -> None:
        for route in routes:
            for what, value in (("name", route.name), ("group", route.group)):
                if not is_name(value):
                    raise DeclarationError(
                        f"Handler {route.name!r} at {route.declared_at} has {what}={value!r}: expected a letter, then "
                        "letters, digits, '_', '-' or '.', 64 characters at most."
                    )
            self.routes.append(route)


def given_moments(at: GivesMoment | None, **filters: Any) -> "Moments | None":
    """What a declaration has with ``at=``, beside filters of changes; None without it."""
    if at is None:
        return None
    from streamfold.derivations.timers.declaration import Moments  # few applications have timers

    return Moments(at, filters)


def with_targets(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Checks a decorator's call: without targets, the error shows the corrected line, which Python's does not."""

    @wraps(method)
    def checked(router: R, /, *sources: P.args, **options: P.kwargs) -> T:
        check_call(router, method.__name__, sources)
        if "into" not in options:
            at = caller(1)
            file, _, number = at.rpartition(":")
            line = linecache.getline(file, int(number)).strip()
            if not (line.startswith("@") and line.endswith(")")):
                line = f"@router.{method.__name__}({', '.join(map(repr, sources))})"
            known = {*inspect.signature(method).parameters, *CommonOptions.__annotations__}
            if other := [name for name in options if name not in known]:
                raise TypeError(
                    f"{method.__name__} at {at} has {other[0]}=, which is no option of it, and no into=, the Key or "
                    f"Keys that the handler may write: write\n    {line.replace(f'{other[0]}=', 'into=')}"
                )
            raise TypeError(
                f"{method.__name__} at {at} has no into=, the Key or Keys that the handler may write: write\n"
                f"    {line[:-1]}, into=TARGET)"
            )
        return method(router, *sources, **options)

    return checked


def check_call(router: object, kind: str, sources: tuple[object, ...]) -> None:
    """Refuses a decorator of the class, ``router = Router``, which would take its first source as the router, and
    ``@router.view`` for ``@router.view(...)``, which would take the handler as a source.
    """
    if not isinstance(router, Declarations):
        raise TypeError(f"{kind} is called on the class Router, not on a router: write router = Router().")
    if len(sources) == 1 and inspect.isroutine(handler := sources[0]):
        raise TypeError(
            f"Handler {handler.__name__} at {source_line(handler)} is decorated without source and target: write\n"
            f"    @router.{kind}(SOURCE, into=TARGET)"
        )


class ItemDeclarations(Declarations):
    """The declarations of a ``Router`` about whole items."""

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
        ``{item}`` or every field of the source's key. ``redact`` names attributes whose change is recorded without
        values, ``fields`` the only ones that are recorded. ``actor`` is the attribute with the writer's identity. A row
        also holds the attributes that its change left alone, so that each row has the whole item, unless
        ``unchanged=False``. A row expires ``keep_days`` after the change, by the time-to-live attribute of its table.
        ``versions`` is the key of a row for every number that the writer gave the item, in an attribute that the writer
        raises with each edit; ``latest`` is the key of a row that names the newest. See ``streamfold docs audit``.
        """

        def made(keys: Keys, at: str) -> tuple[Keys, Recorded]:
            return audit_targets(into, keys, at), checked_recorded(at, redact, fields, actor, unchanged, keep_days)

        routes = [_route(AUDIT_ROWS, sources, common, made)]
        if versions is not None or latest is not None:
            # numbered versions import the writers of rows, which few cold starts need
            from streamfold.derivations.audit.numbered import numbered_route

            routes.append(numbered_route(routes[0], versions, latest))
        self._add(*routes)

    def copy(self, *sources: Key, to: Table, **common: Unpack[CommonOptions]) -> None:
        """Declares that items are copied to another table, which may be in another region: ``Table(..., region=)``.

        A copy has its item's key and attributes, and the version that it was written by: an older change never
        overwrites a newer one, and a removal leaves a tombstone. Each copy is a single put of its own, so it may lag
        behind the derived rows of the same record. Copies are not copied again: items with such a version, and changes
        of nothing but a global table's replication attributes, are skipped.
        """
        self._add(_route(COPY, sources, common, lambda keys, at: (copy_keys(keys, to, at), None)))

    def cascade(self, *parents: Key, children: Sequence[Key], **common: Unpack[CommonOptions]) -> None:
        """Declares that an item's removal, also its expiry, removes its children: items of the same partition.

        A child's template begins with the parent's partition and holds every field of the parent's key. Children are
        removed page by page, each page in one transaction on the parent's absence and on the children as they were
        read. A cursor in the state keeps the progress, so that work beyond an invocation's time goes on when the record
        is redelivered. If the parent exists again, its remaining children are kept, and counted as ``kept``. Children
        that were written while their parent was missing cannot be distinguished from older ones, and are removed too.
        """
        self._add(_route(CASCADE, parents, common, lambda _, at: ((), checked_children(children, at))))

    def archive(self, *sources: Key, to: str, **common: Unpack[CommonOptions]) -> None:
        """Declares that removed items, also expired ones, are kept as compressed JSON Lines by date.

        ``to`` is ``s3://BUCKET/PREFIX``, or for local replays ``file:FOLDER``; the setting ``STREAMFOLD_ARCHIVE`` gives
        another location. At least once: ``streamfold.read.archived`` yields each item once.
        """
        self._add(_route(ARCHIVE, sources, common, lambda _, at: ((), checked_location(to, at))))


def _route(kind: Kind, sources: Keys, common: CommonOptions, made: Made) -> Route:
    check_options(kind.name, common)
    return declared_route(kind.name, kind, sources, common, made, caller(2))


class ReaderDeclarations(Declarations):
    """The declarations of a ``Router`` of search documents and feeds."""

    def search(  # noqa: PLR0913 - one call declares all, by name
        self,
        *sources: Key,
        to: str,
        parts: GivenParts = (),
        id: str | None = None,  # noqa: A002 - the word of the index
        mapping: str | None = None,
        fields: FieldTypes | None = None,
        settings: str | None = None,
        deletes: Deletes = "kept",
        skip_equal: bool = False,
        replaces: str | None = None,
        lookup: Lookups | None = None,
        inline: int = ITEMS_INLINE,
        **common: Unpack[CommonOptions],
    ) -> Callable[[DocumentsHandler], DocumentsHandler]:
        """Declares documents of a search index, which are never older than their items.

        The function gets an item and returns its ``Document``, a list of documents, or None; or it yields them. ``to``
        is the logical name of the index, or a template of fields of the source's key. ``parts`` names keys of the same
        partition, also rows of views: the function gets them as its second parameter, ``Parts``. ``id`` is a template
        that holds every field of the source's key, and for several documents of an item a field of the documents;
        without it the id is the item's key. ``mapping`` is a JSON file beside this one, or ``fields`` gives types by
        name; other fields are indexed only if the mapping allows it. ``settings`` is a JSON file of the index's
        settings. ``deletes="removed"`` deletes documents instead of hiding them. ``skip_equal=True`` sends nothing for
        a change that leaves the document as it was. ``replaces`` names the search whose index this one is to take over.
        ``lookup`` names items that the item refers to, which the function gets after it and its parts; ``inline`` is
        the number of items that changes of these visit before their records are acknowledged. See
        ``streamfold docs search`` and ``streamfold docs lookups``.
        """
        check_call(self, "search", sources)

        def made(keys: Keys, at: str) -> tuple[Keys, SearchOptions]:
            given = IndexOptions(mapping, fields, settings, deletes, skip_equal, replaces)
            return (), checked_search(keys, at, to, id, given)

        reads = GivenReads((lookup, inline), (parts, False))
        return self._decorator("search", SEARCH, sources, common, made, reads=reads)

    def feed(
        self,
        post: Key,
        /,
        *,
        audience: Key,
        into: Key,
        keep_days: int,
        most: int = MOST,
        pull_above: int | None = None,
        unfollow: Unfollow = "remove",
        inline: int = INLINE,
        **common: Unpack[CommonOptions],
    ) -> Callable[[FeedHandler], FeedHandler]:
        """Declares a feed: every post of an author in the feed of each follower, newest first.

        The function gets a post and an edge, the item with follower and author, and returns one ``Row``, or None if the
        reader must not see the post. ``audience`` is the key of the edges; the fields that both keys share join them.
        ``into`` holds every field of both keys. The sort key of ``post`` begins with a typed time, which orders the
        feed. A feed shows posts of the last ``keep_days``; a follow copies the ``most`` newest of them. Posts of
        authors with more than ``pull_above`` followers are not written into feeds, but read with them (``read.feed``).
        ``unfollow="keep"`` keeps the rows that a feed has. ``inline`` is the number of rows that a change writes before
        its record is acknowledged; ``app.jobs_handler`` writes the rest. See ``streamfold docs feeds``.
        """
        check_call(self, "feed", (post,))
        if not isinstance(post, Key):
            raise DeclarationError(f"feed({post!r}, ...): expected the Key of the posts, feed(POST, audience=FOLLOW).")
        if not isinstance(audience, Key):
            raise DeclarationError(f"feed(..., audience={audience!r}): expected the Key of the edges, audience=FOLLOW.")

        limits: dict[str, Any] = {"keep_days": keep_days, "most": most, "pull_above": pull_above, "inline": inline}

        def made(_: Keys, at: str) -> tuple[Keys, FeedOptions]:
            (target,) = target_keys(into, at)
            return (target,), checked_feed(post, audience, target, at, unfollow=unfollow, **limits)

        declare = self._decorator("feed", FEED, (post, audience), common, made)

        def declared(handler: FeedHandler) -> FeedHandler:
            declare(handler)
            setattr(handler, FEED_ATTRIBUTE, self.routes[-1])
            return handler

        return declared
