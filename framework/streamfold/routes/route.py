"""Routes: which handler reads which items and writes which rows, and the interface of kinds for declarations."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from streamfold.errors import DeclarationError
from streamfold.keys.field import Field
from streamfold.keys.key import Key
from streamfold.records.change import Change, ItemKey
from streamfold.records.values import Value, value
from streamfold.routes.lookups import INLINE, LOOKUP, DeclaredLookup, head
from streamfold.routes.parts import PART, DeclaredPart

OnError = Literal["retry", "park"]
ATTEMPTS_MAX = 10_000
"""The most retries of a batch that Lambda takes (API Reference, CreateEventSourceMapping, MaximumRetryAttempts)."""
AGE_SECONDS_MAX = 24 * 60 * 60
"""How long a stream keeps a record (Developer Guide, Streams): an older record is never redelivered."""

Fields = Mapping[str, Any]
"""Values of a key's fields, by name."""
Needs = Literal["keys", "new", "old", "both"]
"""Which images of a change a route cannot do without."""
SHARD = "shard"
"""The field of the target's template with the number of the shard."""
GROUP = "main"
"""The group of handlers that name none."""
ROUTES_KEPT_MAX = 1000
"""Routes whose declared options are cached: an application has a few dozen."""
ROWS_LOST = "rows_lost"
"""The count of rows that a handler adds to, and that another writer removed."""
SOURCE = "source"
"""The role of an item that a handler is declared for."""
REFERENT = "referent"
"""The role of an item that a handler looks up."""


DECLARED = "__streamfold_declared__"
"""The attribute of a wrapper of this package with the handler's function as it was declared."""


def declared(function: Any) -> Any:
    """A handler's function as it was declared, behind a wrapper that only watches its calls."""
    return getattr(function, DECLARED, function)


class Policy(NamedTuple):
    """When a failing record of a handler is parked. With ``park`` and no limit, that is at its first failure."""

    on_error: OnError = "retry"  # ``retry``: never parked
    attempts_max: int | None = None  # parked after this number of failures, or by age: the first of both decides
    age_seconds_max: int | None = None  # parked once it is older

    @property
    def parks(self) -> bool:
        return self.on_error == "park"

    @property
    def at_once(self) -> bool:
        """Whether the first failure is enough."""
        return self.parks and self.attempts_max is None and self.age_seconds_max is None

    def __str__(self) -> str:
        limits = []
        if self.attempts_max is not None:
            limits.append(f"after {self.attempts_max} attempt{'s' * (self.attempts_max > 1)}")
        if self.age_seconds_max is not None:
            limits.append(f"older than {self.age_seconds_max} s")
        return " ".join((self.on_error, " or ".join(limits))).strip()


RETRY = Policy()


def checked_policy(policy: Policy, decorator: str, at: str) -> Policy:
    """The policy of a handler. Raises ``DeclarationError`` with the corrected line for one that cannot be."""
    if policy.on_error not in ("retry", "park"):
        raise DeclarationError(
            f'The handler at {at} has on_error={policy.on_error!r}: expected "retry" or "park", '
            f'{decorator}(..., on_error="park").'
        )
    _check_number("attempts_max", policy.attempts_max, ATTEMPTS_MAX, 3, policy, decorator, at)
    _check_number("age_seconds_max", policy.age_seconds_max, AGE_SECONDS_MAX, 3600, policy, decorator, at)
    return policy


def _check_number(name: str, value: Any, most: int, example: int, policy: Policy, decorator: str, at: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise DeclarationError(
            f"The handler at {at} has {name}={value!r}: expected a whole number from 1 to {most}, "
            f'{decorator}(..., on_error="park", {name}={example}).'
        )
    if not policy.parks:
        raise DeclarationError(
            f'The handler at {at} has {name}={value!r} and on_error="retry", which never gives a record up: '
            f'{decorator}(..., on_error="park", {name}={value!r}).'
        )


@value
class Target(Value):
    """A key that a route may write, with the facts about it that follow from all templates of the application."""

    key: Key
    owned: bool = False  # every row has one source item: the template holds every field of the source's key
    sole_writer: bool = True  # no other handler writes it
    multi_source: bool = False  # several sources could make the same row: the row's owner is checked when it is written
    tenant: str | None = None  # the field in which a row never differs from its source

    @property
    def replaces(self) -> bool:
        """Whether a write replaces the row; otherwise handlers add to rows, which count their contributors."""
        return self.owned and self.sole_writer


class Subscription(NamedTuple):
    """A key whose changes reach a route."""

    key: Key
    role: str = SOURCE
    called: bool = True  # the handler is called; if False, changes reach the route also while it is switched off


class NamedAttribute(NamedTuple):
    """An attribute of items that an option of a declaration names."""

    option: str  # as it is written, ``redact=``
    keys: tuple[Key, ...]  # of the items: one of them is to have it
    name: str
    sees_derived: bool = False  # an attribute that is derived onto the item counts


class Kind:
    """A kind of derivation, for declarations, dispatch, manifest and pages. The defaults suit most kinds.

    ``derivations.derivation.Derivation`` adds the methods for batches.
    """

    name: str
    contributes: ClassVar[bool] = False  # its rows are contributions, kept in the ledger and subtracted from there
    shares_rows: ClassVar[bool] = False  # a row may hold what several handlers contribute
    reads_derived: ClassVar[bool] = False  # a derived row may be its source
    marks_rows: ClassVar[bool] = True  # its rows have a mark, by which they differ from items of the application
    sees_derived_attributes: ClassVar[bool] = False  # its handlers see the derived attributes of an item
    gets_items: ClassVar[bool] = False  # its handler gets an item, not a change
    takes_time: ClassVar[bool] = False  # its handler may ask for the time
    elsewhere: ClassVar[bool] = False  # its targets may be in another region
    write_units: ClassVar[str] = ""  # the cost of a record, in the words of docs/guarantees.md

    def subscriptions(self, route: "Route") -> tuple[Subscription, ...]:
        """The keys whose changes reach a route, with their roles."""
        referents = (Subscription(key, REFERENT) for key in route.referents)
        return (*map(Subscription, route.sources), *referents, *(Subscription(each.key, PART) for each in route.parts))

    def writes(self, route: "Route") -> tuple[Key, ...]:
        """The keys of its targets."""
        return route.into

    def watches(self, route: "Route") -> tuple[Key, ...]:
        """The keys of its targets for which the framework must notice when another writer removes a row.

        REMOVE records of such rows are wanted of a stream, though no handler is called with them.
        """
        return ()

    def items_given(self, options: Any) -> int:
        """How many items its handler gets before it may ask for fields."""
        return 1

    def asked_of(self, sources: tuple[Key, ...], into: tuple[Key, ...]) -> tuple[Key, ...]:
        """The keys whose fields its handler may ask for."""
        return sources

    def touches(self, route: "Route") -> tuple[Key, ...]:
        """The application's own items that it updates or removes."""
        return ()

    def call_limits(self, route: "Route") -> str:
        """How many calls outside of the store it makes, in words; "" for one after the other."""
        return ""

    def indexes(self, route: "Route") -> Mapping[str, str]:
        """The search indexes that it writes, as they are declared, by the names that settings have for them."""
        return {}

    def named_attributes(self, route: "Route") -> Iterator[NamedAttribute]:
        """The attributes of items that its declaration names: a name that no item has is reported."""
        for each in route.lookups:
            bases = (each.through.key,) if each.through else route.sources
            for of_key, name in each.taken:
                if keys := tuple(base for base in bases if name not in base.types):
                    yield NamedAttribute(f"{of_key}= of lookup {each.name!r}", keys, head(name), each.derived)
            for name in sorted(each.reads or ()):
                yield NamedAttribute(f"reads= of lookup {each.name!r}", (each.key,), name, each.derived)
        for part in route.parts:
            for name in sorted(part.reads or ()):
                yield NamedAttribute(f"reads= of parts {part.key!r}", (part.key,), name, part.derived)

    def outside_locations(self, route: "Route") -> tuple[str, ...]:
        """The locations outside of tables that it writes to."""
        return ()

    def calls_once(self, route: "Route") -> str:
        """The name of the handler that is called once at a moment of an item, of which this route only has the moments;
        "" for every other route.
        """
        return ""

    def guard(self, route: "Route") -> str:
        """The guard that keeps its writes exact, in the words of the documents."""
        raise NotImplementedError(f"Kind {self} does not define the guard of its writes: give it a method guard.")

    def needs(self, route: "Route") -> Needs:
        """The images that it needs."""
        return "new" if self.contributes else "keys"

    def spread(self, route: "Route") -> bool:
        """Whether its rows are shards: a transaction should write only one of them."""
        return False

    def no_referent(self, route: "Route") -> str:
        """Why its rows cannot be looked up, with the remedy; "" if they can."""
        return (
            "each is spread over several keys (shards=). Look up a view without shards." if self.spread(route) else ""
        )

    def takes(self, route: "Route", change: Change) -> bool:
        """Whether its filters let a change through."""
        return True

    def target(self, route: "Route", key: Key, *, sole_writer: bool) -> Target:
        """The target for a key; ``sole_writer`` if no other handler writes it."""
        owned = all(owns(key, source) for source in route.sources)
        return Target(key, owned, sole_writer, multi_source=owned and sole_writer and len(route.sources) > 1)

    def may_share(self, one: "Route", other: "Route") -> bool:
        """Whether two of its routes may write one target."""
        return False

    def check(self, own: Sequence["Route"], routes: Sequence["Route"]) -> None:
        """Raises ``DeclarationError`` if its ``own`` routes are wrong, alone or among all ``routes``."""

    def check_targets(self, own: Sequence["Route"]) -> None:
        """Raises ``DeclarationError`` if its routes are wrong, after their targets are resolved."""

    def bound(self, route: "Route", application: str) -> "Route":
        return route

    def tenant_remedy(self, route: "Route", tenant: str) -> str:
        """The remedy for a target that lacks the tenant's field."""
        return f"Put {{{tenant}}} into the template."

    def identity(self, route: "Route") -> dict[str, Any]:
        """The manifest's entry for a route beside its keys; it has ``kind``."""
        return {"kind": self.name}

    def is_of(self, entry: Mapping[str, Any]) -> bool:
        """Whether the manifest's entry is of a handler of this kind."""
        return bool(entry["kind"] == self.name)

    def compare(self, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raises ``ManifestError`` if a state does not fit the options in ``identity``."""

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False, repr=False)  # generated methods would delay every start
class Route:
    """One declared derivation. It never changes: ``replace`` makes another."""

    name: str
    kind: Kind
    sources: tuple[Key, ...]
    into: tuple[Key, ...]
    function: Callable[..., Any] | None
    declared_at: str
    group: str = GROUP
    wants: tuple[str, ...] = ()  # the fields that the function asks for after its first parameter
    options: Any = None  # the frozen value of its kind
    policy: Policy = RETRY
    targets: tuple[Target, ...] = field(default=())
    lookups: tuple[DeclaredLookup, ...] = ()  # those through others come behind them
    inline: int = INLINE  # items that a batch visits itself for changes of their referents
    asks_time: str = ""  # the function's parameter that is ``Now``; "" if it has none
    parts: tuple[DeclaredPart, ...] = ()
    optional: bool = False  # its function is called without an item while the item has parts
    reads_rows: bool = False  # all of its sources, but for edges, are keys of rows: an item without a mark is none

    @property
    def planned_from_ledger(self) -> bool:
        """Whether its steps are planned from a read ledger item, and never on the assumption of what that has.

        A document is made of its parts anew at each change, as of its root: a search notes nothing about parts.
        """
        return self.is_revisited or bool(self.parts and self.kind.contributes)

    @property
    def is_revisited(self) -> bool:
        """Whether its items are visited without a record: a referent changes, or a moment comes."""
        return bool(self.lookups or self.asks_time)

    @property
    def reads_others(self) -> bool:
        """Whether its function gets other items beside its own: referents or parts."""
        return bool(self.lookups or self.parts)

    @property
    def stored_lookups(self) -> tuple[str, ...]:
        """The manifest's texts of what it looks up: referents, parts, and the time among these. Earlier code, which
        knows none of them, compares them as targets, and stops. A search has no ledger behind which such code could
        write.
        """
        time = (f"{LOOKUP}{self.asks_time}: the time",) if self.asks_time else ()
        parts = self.parts if self.kind.contributes else ()
        return (*(each.stored_name for each in self.lookups), *(each.stored_name for each in parts), *time)

    @property
    def referents(self) -> tuple[Key, ...]:
        # Each once: several lookups may be of one key.
        return tuple(dict.fromkeys(each.key for each in self.lookups))

    @property
    def part_keys(self) -> tuple[Key, ...]:
        return tuple(each.key for each in self.parts)

    @property
    def gathered(self) -> dict[Key, Key]:  # keys of parts, each with that of its root
        return dict.fromkeys(self.part_keys, self.sources[0])

    @property
    def reads(self) -> tuple[Key, ...]:
        return (*self.sources, *self.referents, *self.part_keys)

    @property
    def writes(self) -> tuple[Key, ...]:
        """The keys that it writes: of rows, or of the items that get its attributes."""
        return self.kind.writes(self)

    @property
    def items_given(self) -> int:
        """How many items its function gets before it may ask for fields."""
        return self.kind.items_given(self.options) + bool(self.parts)

    @property
    def guard(self) -> str:
        """The name of the guard of its writes, as the documents use it."""
        return self.kind.guard(self)

    def asked(self, fields: Fields) -> dict[str, Any]:
        """The function's keyword arguments: the fields that it asks for and that this source's key has."""
        return {name: fields[name] for name in self.wants if name in fields}

    def takes(self, change: Change) -> bool:
        """Whether its filters let a change through."""
        return self.kind.takes(self, change)

    def target(self, key: Key | None) -> Target | None:
        """The declared target of this key; without a key, the only one."""
        if key is None:
            return self.targets[0] if len(self.targets) == 1 else None
        return next((target for target in self.targets if target.key is key or target.key == key), None)

    def target_of(self, row: ItemKey) -> Target | None:
        tables = (target for target in self.targets if target.key.table.name == row[0])
        return next((target for target in tables if target.key.match_values(*row[1:]) is not None), None)

    def check_referents(self, routes: Iterable["Route"]) -> None:
        """Refuses lookups of rows that are spread over several keys, or that never change."""
        for each in self.lookups:
            for writer in routes:
                if (why := writer.kind.no_referent(writer)) and any(each.key.overlaps(key) for key in writer.into):
                    raise DeclarationError(
                        f"{self._described(each)} is of {each.key!r}, whose rows {writer.name!r} "
                        f"({writer.declared_at}) writes: {why}"
                    )

    def check_tenant_of_referents(self, tenant: str) -> None:
        """Refuses a lookup that could lead to an item of another tenant, or whose key has no field but the tenant."""
        for each in self.lookups:
            if each.from_key:
                raise DeclarationError(
                    f"{self._described(each)} takes whole keys, whose {{{tenant}}} may be any: a row is made of items "
                    "of one tenant. Take the other fields from attributes; the tenant comes from the source's key."
                )
            if (taken := dict(each.taken)[tenant]) != tenant:
                raise DeclarationError(
                    f"{self._described(each)} takes {{{tenant}}} from {taken!r}: a row is made of items of one tenant. "
                    f"Leave {tenant}= out; it comes from the source's key."
                )
            if len(each.taken) == 1 and not each.whole:
                raise DeclarationError(
                    f"{self._described(each)} is of {each.key!r}, which has no field beside {{{tenant}}}: every item "
                    "of a tenant would refer to one referent, and each of its changes visit them all. If that is "
                    f"meant, write whole=True: Lookup({each.key!r}, whole=True)."
                )

    def _described(self, lookup: DeclaredLookup) -> str:
        return f"Lookup {lookup.name!r} of {self.kind} {self.name!r} ({self.declared_at})"


@lru_cache(ROUTES_KEPT_MAX)
def may_expire(route: Route) -> bool:
    """Whether a row of a route may have a time to live."""
    return any(target.key.table.ttl is not None for target in route.targets)


@lru_cache(ROUTES_KEPT_MAX)
def times_to_live(route: Route) -> Mapping[str, str]:
    """The attributes of the time to live, by the tables of the rows and items that a route writes."""
    return {key.table.name: key.table.ttl for key in route.writes if key.table.ttl is not None}


@lru_cache(ROUTES_KEPT_MAX)
def is_spread(route: Route) -> bool:
    """Whether a route's rows are shards."""
    return route.kind.spread(route)


def owns(target: Key, source: Key) -> bool:
    """Whether the target's template holds every field of the source's key, so that two keys never share a row."""
    return all(name in target.types and _holds(target.types[name], field) for name, field in source.types.items())


def _holds(target: Field, source: Field) -> bool:
    # Two texts of such a source may be one time: another kind of field would give both the same row.
    return target.python_type is source.python_type and (target.spec == source.spec or not source.keeps_text)


def by_kind(routes: Collection[Route]) -> Iterator[tuple[Kind, list[Route]]]:
    """The kinds of routes, each with its own."""
    for kind in dict.fromkeys(route.kind for route in routes):
        yield kind, [route for route in routes if route.kind is kind]
