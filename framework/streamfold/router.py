"""The decorators: each checks its declaration at import and adds a route. The function stays a plain function."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, overload

from streamfold.derivations.attributes.kind import ATTRIBUTES, AttributesOptions
from streamfold.derivations.declarations import (
    ItemDeclarations,
    ReaderDeclarations,
    check_call,
    given_moments,
    with_targets,
)
from streamfold.derivations.external.kind import EXTERNAL
from streamfold.derivations.external.options import ExternalOptions, external_options, refuse_limits
from streamfold.derivations.index.kind import INDEX
from streamfold.derivations.index.unique import OnConflict, Unique, checked_unique, conflict_routes
from streamfold.derivations.on.kind import ON, Filter, GivesMoment, OnOptions, checked_filter, no_targets
from streamfold.derivations.publish.declaration import PublishDeclarations
from streamfold.derivations.view.kind import VIEW, ViewOptions
from streamfold.derivations.view.shards import checked_shards
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.records.change import EVENTS, Event
from streamfold.routes.aggregates import SMALLEST_KEY, Ties
from streamfold.routes.declaration import (
    CommonOptions,
    GivenReads,
    Into,
    Keys,
    caller,
    check_kind,
    source_keys,
    source_line,
    target_keys,
    wanted_fields,
    with_typed_items,
)
from streamfold.routes.effects import Add, Delete, Put, Row
from streamfold.routes.lookups import INLINE, Lookups
from streamfold.routes.parts import GivenParts
from streamfold.routes.route import GROUP, RETRY, Kind, Policy, Route

P = ParamSpec("P")
T = TypeVar("T")
RowsHandler = TypeVar("RowsHandler", bound=Callable[..., Row | Iterable[Row] | None])
"""A handler of a view, an index or attributes: it returns a row, several or none, or yields them."""
Effect = Put | Add | Delete
EffectsHandler = TypeVar("EffectsHandler", bound=Callable[..., Effect | Iterable[Effect] | None])
"""A handler of ``on``: it returns an effect, several or none, or yields them."""


class Router(ItemDeclarations, ReaderDeclarations, PublishDeclarations):
    """Collects derivations; ``App`` joins routers to an application.

    On every decorator: ``sources`` are one or several keys, ``into`` the key or keys that the handler may write,
    ``name`` its identity in ledger, claims and metrics (by default the function's name, and for ``audit``, ``copy``,
    ``cascade`` and ``archive`` the kind with the literals of the first source; it must stay when code moves), ``group``
    the group, which selects the deployed function that runs it. ``on_error`` decides about a record that the handler
    cannot process: ``"retry"`` retries the record; ``"park"`` parks it at its first failure, or after ``attempts_max``
    failures, or when it is older than ``age_seconds_max``. See ``streamfold docs failures``.
    """

    @with_targets
    def view(
        self,
        *sources: Key,
        into: Into,
        shards: int | None = None,
        lookup: Lookups | None = None,
        inline: int = INLINE,
        parts: GivenParts = (),
        optional: bool = False,
        **common: Unpack[CommonOptions],
    ) -> Callable[[RowsHandler], RowsHandler]:
        """Declares a materialized view: rows of aggregates over sources, such as ``Sum``, exact under every change.

        The function gets an item and returns or yields the ``Row`` that the item contributes to, several rows, or None.
        Plain attributes need an owned target: its template holds every field of the source's key. ``shards``, 2 to 100,
        spreads a hot row over that number of rows, by the field ``{shard:02d}`` of the target;
        ``streamfold.read.sharded`` reads them as one. ``lookup`` names items that the item refers to, which the
        function gets after it; ``inline`` is the number of items that changes of these visit before their records are
        acknowledged. See ``streamfold docs lookups``. ``parts`` names keys of items of the source's partition, which
        the function gets after the item as ``Parts``, all of them or the ``Newest``; with ``optional=True`` it is
        called without the item too while there are parts. See ``streamfold docs collections``.
        """

        def made(keys: Keys, at: str) -> tuple[Keys, ViewOptions]:
            targets = target_keys(into, at)
            return targets, ViewOptions(checked_shards(shards, keys, targets, at))

        reads = GivenReads((lookup, inline), (parts, optional))
        return self._decorator("view", VIEW, sources, common, made, reads=reads)

    @with_targets
    def index(  # noqa: PLR0913 - one call declares all, by name
        self,
        *sources: Key,
        into: Into,
        unique: bool = False,
        by: str | None = None,
        smallest: bool = False,
        ties: Ties = SMALLEST_KEY,
        on_conflict: OnConflict | Key = "report",
        lookup: Lookups | None = None,
        inline: int = INLINE,
        parts: GivenParts = (),
        optional: bool = False,
        **common: Unpack[CommonOptions],
    ) -> Callable[[RowsHandler], RowsHandler]:
        """Declares index items in the base table: each row has one source item and plain attributes.

        The target must be owned: its template holds every field of the source's key. With ``unique=True`` it need not
        be. If several items claim one row, the item with the largest attribute ``by`` wins; with ``smallest=True``, the
        item with the smallest one. Among equal items, and without ``by``, the smallest source key wins; with
        ``ties="largest key"``, the largest one. The row's attribute ``conflict`` lists what the other items would show.
        ``on_conflict`` chooses what a conflict does besides: ``"report"`` logs and counts the record that causes it,
        ``"park"`` parks that record, and a key keeps a row of this key as long as the conflict lasts. See
        ``streamfold docs unique``. ``lookup``, ``inline``, ``parts`` and ``optional`` are as in a view.
        """

        def made(_: Keys, at: str) -> tuple[Keys, Unique | None]:
            targets = target_keys(into, at)
            if optional and by is not None:
                raise DeclarationError(
                    f"index at {at} has by={by!r} and optional=True: claims are ordered by an attribute of the item, "
                    "which may not be there. Leave by= out, or derive the attribute onto a row that is there."
                )
            return targets, checked_unique(unique, by, on_conflict, smallest, ties, targets, at)

        reads = GivenReads((lookup, inline), (parts, optional))
        return self._decorator(
            "index", INDEX, sources, common, made, added=lambda route: (route, *conflict_routes(route)), reads=reads
        )

    @overload
    def on(
        self,
        *sources: Key,
        external: Literal[True],
        at_once: int = ...,
        per_second: float | None = ...,
        **options: Unpack[OnOptions],
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    @overload
    def on(
        self,
        *sources: Key,
        into: Into,
        external: Literal[False] = ...,
        **options: Unpack[OnOptions],
    ) -> Callable[[EffectsHandler], EffectsHandler]: ...

    def on(
        self,
        *sources: Key,
        into: Into = (),
        external: bool = False,
        events: Collection[Event] = EVENTS,
        changed: Collection[str] = (),
        expired: bool | None = None,
        at: GivesMoment | None = None,
        at_once: int = 1,
        per_second: float | None = None,
        **common: Unpack[CommonOptions],
    ) -> Callable[[Any], Any]:
        """Declares what happens on every change, or with ``at`` once at a moment of each item.

        The function gets the ``Change`` and returns or yields a ``Put``, ``Add`` or ``Delete``, several of them, or
        None. ``events`` (INSERT, MODIFY, REMOVE), ``changed`` (any of these attributes differs) and ``expired``
        (deleted by time to live, or not) choose the changes. Each change takes effect once, also when a record is
        delivered twice. With ``external=True`` the function has a side effect, such as a mail; it may be ``async``.
        It runs at least once for a change, and rarely twice; a replay calls it only on request. Up to ``at_once``
        calls, of different items, run at the same time, and a process begins at most ``per_second`` calls in a second.
        See ``streamfold docs how/call-a-slow-api``.

        ``at`` is a function of the item that gives its moment, or None. The function then gets a ``Timer``, the item as
        it is at that moment and the moment, and takes effect once for each moment of an item, at that moment or soon
        after it. See ``streamfold docs moments``.
        """
        check_call(self, "on", sources)
        timed = given_moments(at, events=events, changed=changed, expired=expired)

        def made(_: Keys, where: str) -> tuple[Keys, Filter | ExternalOptions]:
            targets = no_targets(into, where) if external else target_keys(into, where)
            chosen = checked_filter(events, changed, where, expired=expired) if timed is None else timed.chosen(where)
            if external:
                return targets, external_options(chosen, at_once, per_second, where)
            refuse_limits(at_once, per_second, where)
            return targets, chosen

        kind = EXTERNAL if external else ON
        return self._decorator("on", kind, sources, common, made, added=timed and timed.routes)

    def attributes(
        self,
        *sources: Key,
        of: Key | None = None,
        lookup: Lookups | None = None,
        inline: int = INLINE,
        parts: GivenParts = (),
        **common: Unpack[CommonOptions],
    ) -> Callable[[RowsHandler], RowsHandler]:
        """Declares derived attributes of the application's own items.

        ``of`` is the key of the items that get the attributes, such as the order for the total of its items. Without
        ``of`` the source item itself gets them: sparse and overloaded attributes, for secondary indexes too. The
        function gives ``Row``s like the function of a view; names of the template of ``of`` fill its key. An absent
        item is never created. An item that appears later, or is put without the attributes or with old ones, is
        corrected. No other attribute is touched. ``audit`` and ``changed=`` ignore derived attributes, and no handler
        of attributes sees any. ``lookup``, ``inline`` and ``parts`` are as in a view.
        """
        if of is not None and not isinstance(of, Key):
            raise DeclarationError(f"attributes(..., of={of!r}): expected the Key of the items that get them.")
        options = AttributesOptions(of)
        reads = GivenReads((lookup, inline), (parts, False))
        return self._decorator("attributes", ATTRIBUTES, sources, common, lambda *_: ((), options), reads=reads)

    def declare(
        self,
        kind: Kind,
        *sources: Key,
        name: str,
        into: Into = (),
        handler: Callable[..., Any] | None = None,
        options: Any = None,
        group: str = GROUP,
        policy: Policy = RETRY,
    ) -> None:
        """Declares a derivation of any kind, also of your own: see ``streamfold docs adding-a-kind``.

        ``options`` is the frozen value that the kind reads. The kind calls ``handler`` with arguments of its choice.
        """
        check_kind(kind)
        at = source_line(handler) if handler else caller(1)
        keys = source_keys(sources, kind.name, at)
        wants = wanted_fields(handler, keys, kind.items_given(options)) if handler else ()
        if handler is not None:
            given = kind.items_given(options)
            handler = with_typed_items(handler, name, given, (), gets_items=kind.gets_items, at=at)
        targets = target_keys(into, at) if into else ()
        self._add(Route(name, kind, keys, targets, handler, at, group, wants, options, policy))
