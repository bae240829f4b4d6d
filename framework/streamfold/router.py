"""The decorators: each checks what it can where it stands and adds a route. The function stays a plain function."""

import inspect
import linecache
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_args, overload

from streamfold.derivations.attributes.kind import ATTRIBUTES
from streamfold.derivations.attributes.stored import AttributesOptions
from streamfold.derivations.audit.kind import AUDIT_ROWS
from streamfold.derivations.audit.options import checked_recorded, default_target
from streamfold.derivations.declarations import Lifecycle, default_name, source_keys
from streamfold.derivations.external.kind import EXTERNAL
from streamfold.derivations.index.claims import SUFFIX, OnConflict, Unique, checked_unique, conflict_rows
from streamfold.derivations.index.kind import INDEX
from streamfold.derivations.on.kind import ON, Filter
from streamfold.derivations.view.kind import VIEW, ViewOptions
from streamfold.derivations.view.shards import checked_shards
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.table import is_name
from streamfold.records.change import EVENTS, Event
from streamfold.routes.effects import Add, Delete, Put, Row
from streamfold.routes.ordered import SMALLEST_KEY, Ties
from streamfold.routes.policy import RETRY, OnError, Policy, checked_policy
from streamfold.routes.route import GROUP, Kind, Route
from streamfold.routes.signature import check_handler, check_plain, place, wanted_fields

P = ParamSpec("P")
T = TypeVar("T")
Into = Key | Sequence[Key]
RowsHandler = TypeVar("RowsHandler", bound=Callable[..., Row | Iterable[Row] | None])
"""A handler of a view, an index or attributes: it returns a row, several or none, or yields them."""
Effect = Put | Add | Delete
EffectsHandler = TypeVar("EffectsHandler", bound=Callable[..., Effect | Iterable[Effect] | None])
"""A handler of ``on``: it returns an effect, several or none, or yields them."""


class OnOptions(TypedDict, total=False):
    """What ``Router.on`` takes in both its forms, by name."""

    events: Collection[Event]
    changed: Collection[str]
    expired: bool | None
    name: str | None
    group: str
    on_error: OnError
    attempts_max: int | None
    age_seconds_max: int | None


def _with_targets(method: Callable[Concatenate["Router", P], T]) -> Callable[Concatenate["Router", P], T]:
    """A decorator's method that says with the corrected line what is missing, as Python's own words do not."""

    @wraps(method)
    def checked(router: "Router", /, *sources: P.args, **options: P.kwargs) -> T:
        _check_instance(router, method.__name__)
        _check_parentheses(method.__name__, sources)
        if "into" not in options:
            frame = sys._getframe(1)  # noqa: SLF001 - the one way to know where it was declared
            at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if not (line.startswith("@") and line.endswith(")")):
                line = f"@router.{method.__name__}({', '.join(map(repr, sources))})"
            raise TypeError(
                f"{method.__name__} at {at} has no into=, the Key or Keys that the handler may write: write\n"
                f"    {line[:-1]}, into=TARGET)"
            )
        return method(router, *sources, **options)

    return checked


def _check_instance(router: object, kind: str) -> None:
    """Refuses a decorator of the class, ``router = Router``, which would take its first source for the router."""
    if not isinstance(router, Router):
        raise TypeError(f"{kind} is called on the class Router, not on a router: write router = Router().")


def _check_parentheses(kind: str, sources: tuple[object, ...]) -> None:
    """Refuses ``@router.view`` for ``@router.view(...)``, which would take the handler for a source."""
    if len(sources) == 1 and inspect.isroutine(handler := sources[0]):
        raise TypeError(
            f"Handler {handler.__name__} at {place(handler)} is decorated without source and target: write\n"
            f"    @router.{kind}(SOURCE, into=TARGET)"
        )


class Router(Lifecycle):
    """Collects derivations; ``App`` joins routers to an application.

    On every decorator: ``sources`` are one or several keys, ``into`` the key or keys that the handler may write,
    ``name`` its identity in ledger, claims and metrics (by default the function's name, and for ``audit``, ``copy``,
    ``cascade`` and ``archive`` the kind with the literals of the first source; it must stay when code moves), ``group``
    the group that says which deployed function runs it. ``on_error`` says what becomes of a record that the handler
    cannot process: ``"retry"``, it comes again; ``"park"``, it is put aside at its first failure, or after
    ``attempts_max`` of them, or when it is older than ``age_seconds_max``. See docs/failures.md.
    """

    def __init__(self) -> None:
        self.routes: list[Route] = []

    @_with_targets
    def view(
        self,
        *sources: Key,
        into: Into,
        name: str | None = None,
        group: str = GROUP,
        shards: int | None = None,
        on_error: OnError = "retry",
        attempts_max: int | None = None,
        age_seconds_max: int | None = None,
    ) -> Callable[[RowsHandler], RowsHandler]:
        """Declares a materialized view: rows with ``Sum`` and ``Count`` over their sources, exact under every change.

        The function gets an item and returns the ``Row`` that the item contributes to, a list of rows, or None; or it
        yields them. Plain attributes need an owned target: one whose template holds every field of the source's key.
        ``shards``, 2 to 100, spreads a hot row over as many, by the field ``{shard:02d}`` of the target;
        ``streamfold.read.sharded`` reads them as one.
        """
        policy = Policy(on_error, attempts_max, age_seconds_max)
        return self._contributing(
            VIEW, sources, into, name, group, policy, lambda *at: ViewOptions(checked_shards(shards, *at))
        )

    @_with_targets
    def index(  # noqa: PLR0913 - as for ``on``
        self,
        *sources: Key,
        into: Into,
        unique: bool = False,
        by: str | None = None,
        smallest: bool = False,
        ties: Ties = SMALLEST_KEY,
        on_conflict: OnConflict | Key = "report",
        name: str | None = None,
        group: str = GROUP,
        on_error: OnError = "retry",
        attempts_max: int | None = None,
        age_seconds_max: int | None = None,
    ) -> Callable[[RowsHandler], RowsHandler]:
        """Declares index items in the base table: each row has one source item and plain attributes.

        The target must be owned: its template holds every field of the source's key. With ``unique=True`` it need not
        be. If several items claim one row, the item with the largest attribute ``by`` wins; with ``smallest=True``,
        that with the smallest one. Among equal items, and without ``by``, the smallest source key wins; with
        ``ties="largest key"``, the largest one. The row's attribute ``conflict`` lists what the other items would show.
        ``on_conflict`` says what else a record that leads to a conflict does: ``"report"``, it is logged and counted;
        ``"park"``, it is parked; a key: a row of it is there as long as the conflict. See docs/unique.md.
        """
        policy = Policy(on_error, attempts_max, age_seconds_max)

        def options(_: tuple[Key, ...], targets: tuple[Key, ...], at: str) -> Unique | None:
            return checked_unique(unique, by, on_conflict, smallest, ties, targets, at)

        declare = self._contributing(INDEX, sources, into, name, group, policy, options)

        def declare_both(handler: RowsHandler) -> RowsHandler:
            declare(handler)
            if unique and isinstance(on_conflict, Key):
                self._add(_conflict_route(self.routes[-1], on_conflict))
            return handler

        return declare_both

    def audit(  # noqa: PLR0913 - as for ``on``
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
        name: str | None = None,
        group: str = GROUP,
        on_error: OnError = "retry",
        attempts_max: int | None = None,
        age_seconds_max: int | None = None,
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
        frame = sys._getframe(1)  # noqa: SLF001 - the one way to know where it was declared
        at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        recorded = checked_recorded(at, redact, fields, actor, unchanged, keep_days)
        keys = source_keys(sources, "audit", at)
        targets = _audit_targets(keys, at) if into is None else _targets(into, at)
        if len(targets) > 1 and into is not None:
            raise DeclarationError(f"audit at {at} has into={into!r}: expected one Key.")
        policy = checked_policy(Policy(on_error, attempts_max, age_seconds_max), "router.audit", at)
        name = default_name("audit", keys[0]) if name is None else name
        route = Route(name, AUDIT_ROWS, keys, targets, None, at, group, options=recorded, policy=policy)
        routes = [route]
        if versions is not None or latest is not None:
            from streamfold.derivations.audit.numbered import (
                numbered_route,  # brings along what writes rows, which few cold starts need
            )

            routes.append(numbered_route(route, versions, latest))
        for each in routes:
            self._add(each)

    @overload
    def on(
        self,
        *sources: Key,
        external: Literal[True],
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

    def on(  # noqa: PLR0913 - each option is a sentence of its own where a handler is declared
        self,
        *sources: Key,
        into: Into = (),
        external: bool = False,
        events: Collection[Event] = EVENTS,
        changed: Collection[str] = (),
        expired: bool | None = None,
        name: str | None = None,
        group: str = GROUP,
        on_error: OnError = "retry",
        attempts_max: int | None = None,
        age_seconds_max: int | None = None,
    ) -> Callable[[Any], Any]:
        """Declares what happens on every change.

        The function gets the ``Change`` and returns a ``Put``, ``Add`` or ``Delete``, a list of these, or None; or it
        yields them. ``events`` (INSERT, MODIFY, REMOVE), ``changed`` (any of these attributes differs) and ``expired``
        (deleted by time to live, or not) choose the changes. Each change takes effect once, whatever is delivered
        twice. With ``external=True`` the function is a plain one with a side effect: at least once by nature, and
        guarded by Powertools' idempotency utility; a replay does not call it unless asked to.
        """
        _check_instance(self, "on")
        _check_parentheses("on", sources)
        policy = Policy(on_error, attempts_max, age_seconds_max)

        def declare(handler: Callable[..., Any]) -> Callable[..., Any]:
            at = place(handler)
            check_plain(handler) if external else check_handler(handler, "on")
            keys = source_keys(sources, "on", at, "@")
            route = Route(
                name or _name(handler),
                EXTERNAL if external else ON,
                keys,
                _no_targets(into, at) if external else _targets(into, at),
                handler,
                at,
                group,
                wanted_fields(handler, keys),
                Filter(_events(events, at, expired=expired), _names(changed, "changed", at), expired),
                checked_policy(policy, "@router.on", at),
            )
            self._add(route)
            return handler

        return declare

    def attributes(
        self,
        *sources: Key,
        of: Key | None = None,
        name: str | None = None,
        group: str = GROUP,
        on_error: OnError = "retry",
        attempts_max: int | None = None,
        age_seconds_max: int | None = None,
    ) -> Callable[[RowsHandler], RowsHandler]:
        """Declares attributes that are derived onto items of the application itself.

        ``of`` says onto which: the total of an order's items on the order. Without it, onto the source item: sparse and
        overloaded attributes, those of secondary indexes among them. The function gives ``Row``s as that of a view
        does; names of the template of ``of`` fill its key. An item that is not there is never made; one that appears
        later, or is put without the attributes or with old ones, gets the right ones. No other attribute is touched.
        ``audit`` and ``changed=`` pass the derived attributes over, and no handler of attributes sees any.
        """
        policy = Policy(on_error, attempts_max, age_seconds_max)
        if of is not None and not isinstance(of, Key):
            raise DeclarationError(f"attributes(..., of={of!r}): expected the Key of the items that bear them.")
        return self._contributing(ATTRIBUTES, sources, (), name, group, policy, lambda *_: AttributesOptions(of))

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
        """Declares a derivation of any kind, one of your own among them: see docs/adding-a-kind.md.

        ``options`` is the frozen value that the kind reads; ``handler`` is called with what the kind gives it.
        """
        if not isinstance(kind, Kind):
            raise DeclarationError(
                f"router.declare got {kind!r}: expected a kind, an object such as MYKIND = MyKind()."
            )
        frame = sys._getframe(1)  # noqa: SLF001 - the one way to know where it was declared
        at = place(handler) if handler else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        keys = source_keys(sources, kind.name, at)
        wants = wanted_fields(handler, keys, kind.items_given) if handler else ()
        targets = _targets(into, at) if into else ()
        self._add(Route(name, kind, keys, targets, handler, at, group, wants, options, policy))

    def _contributing(
        self,
        kind: Kind,
        sources: tuple[Key, ...],
        into: Into,
        name: str | None,
        group: str,
        policy: Policy,
        options: Callable[[tuple[Key, ...], tuple[Key, ...], str], Any],
    ) -> Callable[[RowsHandler], RowsHandler]:
        """Declares a handler that contributes; ``options`` makes those of its kind of sources, targets and place."""

        def declare(handler: RowsHandler) -> RowsHandler:
            at = place(handler)
            check_handler(handler, kind.name)
            keys = source_keys(sources, kind.name, at, "@")
            targets = _targets(into, at) if into else ()
            route = Route(
                name or _name(handler),
                kind,
                keys,
                targets,
                handler,
                at,
                group,
                wanted_fields(handler, keys),
                options(keys, targets, at),
                checked_policy(policy, f"@router.{kind}", at),
            )
            self._add(route)
            return handler

        return declare

    def _add(self, route: Route) -> None:
        for what, value in (("name", route.name), ("group", route.group)):
            if not is_name(value):
                raise DeclarationError(
                    f"Handler {route.name!r} at {route.declared_at} has {what}={value!r}: expected a letter, then "
                    "letters, digits, '_', '-' or '.', 64 characters at most."
                )
        self.routes.append(route)


def _conflict_route(route: Route, into: Key) -> Route:
    """The index of the conflicts of a unique index: it reads the rows of that."""
    (source,) = route.into
    function, at = conflict_rows(source, into), route.declared_at
    return Route(route.name + SUFFIX, INDEX, (source,), (into,), function, at, group=route.group, policy=route.policy)


def _targets(into: Into, at: str) -> tuple[Key, ...]:
    targets = tuple(into) if isinstance(into, list | tuple) else (into,)
    if not targets or not all(isinstance(target, Key) for target in targets):
        raise DeclarationError(
            f"The handler at {at} has into={into!r}: expected the Key, or the list of Keys, that it may write."
        )
    return tuple(dict.fromkeys(targets))


def _no_targets(into: Into, at: str) -> tuple[Key, ...]:
    if into != ():
        raise DeclarationError(
            f"The handler at {at} has into={into!r} and external=True: an external handler writes no rows."
        )
    return ()


def _events(events: Collection[Event], at: str, *, expired: bool | None) -> frozenset[Event]:
    names = _names(events, "events", at)
    if not names or not names <= set(get_args(Event)):
        raise DeclarationError(
            f"The handler at {at} has events={list(events)!r}: expected some of {', '.join(EVENTS)}."
        )
    if expired and "REMOVE" not in names:
        raise DeclarationError(
            f"The handler at {at} has expired=True and events without REMOVE: no change would ever reach it."
        )
    return frozenset(events)


def _names(names: Any, option: str, at: str) -> frozenset[str]:
    if isinstance(names, str):
        raise DeclarationError(f'The handler at {at} has {option}={names!r}: expected a list, {option}=["{names}"].')
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise DeclarationError(f"The handler at {at} has {option}={names!r}: expected a list of names, as text.")
    return frozenset(names)


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__name__", "")


def _audit_targets(sources: tuple[Key, ...], at: str) -> tuple[Key, ...]:
    return tuple(dict.fromkeys(_audit_target(source, at) for source in sources))


def _audit_target(source: Key, at: str) -> Key:
    if source.table.sort is None or any(part.attribute_type != "S" for part in source.parts):
        raise DeclarationError(
            f"audit at {at}: rows for {source!r} cannot go to the default target, because table {source.table.name!r} "
            "does not have a text partition and sort key. Give one: "
            'into=Key("AUDIT#{item:rest}", "{version:rest}", table=...).'
        )
    return default_target(source.table)
