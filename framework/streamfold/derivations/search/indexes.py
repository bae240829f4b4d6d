"""Indexes: declared, created, compared with their declaration, and named by aliases."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from streamfold.derivations.derivation import Finishing, searches, searching
from streamfold.derivations.search.accepts import Accepts
from streamfold.derivations.search.documents import hidden, index_of, index_template
from streamfold.derivations.search.local import ALIASES, PARTITION, LocalIndex, resolved
from streamfold.derivations.search.opensearch import OpenSearchIndex, hides
from streamfold.derivations.search.options import (
    MADE,
    NEXT,
    NUMBERED,
    alias_of,
    in_path,
    independent,
    options_of,
    own_alias,
    setting_variable,
    shown_index,
)
from streamfold.derivations.search.sink import CONFLICT, VISIBLE, Action, Sink
from streamfold.engines.protocol import Entries
from streamfold.errors import Contended, EngineError, EngineUnavailable, SettingsError, plain
from streamfold.keys.field import overlaps
from streamfold.keys.key_part import KeyComponent
from streamfold.routes.route import Fields, Route
from streamfold.settings import Settings
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import DeleteState, StateKey

GRANTED: Mapping[str, tuple[Any, ...]] = {
    "boost": (1,),
    "coerce": (True,),
    "doc_values": (True,),
    "dynamic": (True,),
    "eager_global_ordinals": (False,),
    "enabled": (True,),
    "fielddata": (False,),
    "format": (
        "strict_date_optional_time||epoch_millis",
        "strict_date_time_no_millis||strict_date_optional_time||epoch_millis",
    ),
    "ignore_above": (2147483647,),
    "ignore_malformed": (False,),
    "include_in_parent": (False,),
    "include_in_root": (False,),
    "index": (True,),
    "index_options": ("positions", "docs"),
    "norms": (True, False),
    "null_value": (None,),
    "position_increment_gap": (100,),
    "similarity": ("BM25",),
    "store": (False,),
    "type": ("object",),
}
"""Defaults of a mapping (measured on 2.19.6 and 3.6.0). If types differ in a default, any of their values."""
NOTHING = "nothing"
INNER = ("properties", "fields")
"""The attributes of a field that hold fields."""

GC_DELETES = "index.gc_deletes"
REMEMBERED = {GC_DELETES: "1h"}
"""How long an index keeps the versions of deleted documents, if documents are deleted. OpenSearch's own is 60s."""

PROBE = "_sf_probe"
"""The id of the document that tests an index."""
PROBE_VERSION = 5
FILTERED = "an alias of one index that hides documents that are gone"

OPENED = "search"
"""The name under which a run keeps its index (``Runtime.opened``)."""


class IndexDifference(NamedTuple):
    """One difference. ``expected`` and ``found`` are texts for a person; None if there is nothing."""

    what: str  # "field", "mapping", "setting" or "alias"
    name: str
    expected: str | None = None
    found: str | None = None
    behind: str | None = None  # the index behind the alias, if there are several

    def __str__(self) -> str:
        where = f" of {self.behind}" if self.behind else ""
        expected, found = self.expected or NOTHING, self.found or NOTHING
        return f"{self.what} {self.name}{where}: expected {expected}, found {found}"


def mapping_differences(declared: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[IndexDifference]:
    """The differences between two mappings, field by field."""
    yield from _differences("mapping", _own(declared), _own(found))
    expected, there = dict(_fields(declared)), dict(_fields(found))
    for name, own in expected.items():
        if name not in there:
            yield IndexDifference("field", name, _type(own))
        elif _type(own) != _type(there[name]):
            yield IndexDifference("field", name, _type(own), _type(there[name]))
        else:
            yield from _differences("field", own, there[name], f"{name} ")
    # Documents add fields to a dynamic mapping: only without them an undeclared field is a difference.
    if _text(declared.get("dynamic")) in ("false", "strict"):
        for name, own in there.items():
            if name not in expected and not any(each.startswith(f"{name}.") for each in expected):
                yield IndexDifference("field", name, None, _type(own))


def setting_differences(declared: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[IndexDifference]:
    """The differences in the declared settings; an index has many more. Both are by their full names."""
    for name, value in declared.items():
        expected, there = _text(value), _text(found.get(name))
        if expected != there:
            yield IndexDifference("setting", name, expected, there)


def _differences(
    what: str, declared: Mapping[str, Any], found: Mapping[str, Any], before: str = ""
) -> Iterator[IndexDifference]:
    """The differences in the options of a field, or of the whole mapping."""
    for name in sorted({*declared, *found}):
        if name == "search_analyzer" and declared.get(name) == declared.get("analyzer") and name not in found:
            continue
        expected, there = declared.get(name), found.get(name)
        if name not in found and _is_granted(name, expected):
            continue
        if name not in declared and _is_granted(name, there):
            continue
        if _text(expected) != _text(there):
            yield IndexDifference(what, f"{before}{name}", _text(expected), _text(there))


def _is_granted(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_granted(inner, each) for inner, each in value.items())
    return _text(value) in map(_text, GRANTED.get(name, ()))


def _fields(mapping: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All fields by their paths, inner ones too, each with its own options."""
    for inner in INNER:
        for name, field in mapping.get(inner, {}).items():
            yield before + name, _own(field)
            yield from _fields(field, f"{before}{name}.")


def _own(field: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in field.items() if name not in INNER}


def _type(own: Mapping[str, Any]) -> str:
    return str(own.get("type", "object"))


def _text(value: Any) -> str | None:
    """A value as the server returns it: numbers in one spelling, a single value as a list of it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(str(_text(each)) for each in value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_text(each)}" for name, each in sorted(value.items())) + "}"
    return f"{Decimal(str(value)).normalize():f}"


class SearchIndex(NamedTuple):
    """An index that a search writes, by its real name."""

    route: Route
    alias: str  # which documents are written and read through

    @property
    def first(self) -> str:
        """The name of the first index behind the alias."""
        return NUMBERED.format(self.alias, 1)

    @property
    def mapping(self) -> Mapping[str, Any]:
        return options_of(self.route).mapping

    @property
    def settings(self) -> dict[str, Any]:
        """The declared settings by their full names."""
        options = options_of(self.route)
        remembered = REMEMBERED if options.deletes == "removed" else {}
        return {**remembered, **whole_names(options.settings)}

    @property
    def body(self) -> dict[str, Any]:
        """The body of the request that creates the index, with its alias."""
        alias = {"filter": VISIBLE, "is_write_index": True}
        return {"settings": self.settings, "mappings": self.mapping, "aliases": {self.alias: alias}}


def check_real_indexes(own: Sequence[Route], settings: Settings) -> None:
    """Raises ``SettingsError`` for a setting that contradicts its index, and if settings give two indexes one name."""
    if not settings.indexes:  # declared names are compared when the application is built
        return
    real = {route: index_template(route, settings) for route in own}
    for one, other in independent(own):
        mine, theirs = real[one], real[other]
        if overlaps(mine.atoms, theirs.atoms):
            variables = dict.fromkeys(setting_variable(options_of(route).index) for route in (one, other))
            raise SettingsError(
                f"Searches {one.name!r} ({one.declared_at}) and {other.name!r} ({other.declared_at}) would write one "
                f"index: their real names are {mine.text!r} and {theirs.text!r}. Documents of one would replace those "
                f"of the other. Change {' or '.join(variables)}."
            )


def find_index(routes: Iterable[Route], name: str, settings: Settings) -> SearchIndex:
    """The index of a name that a person gives: the declared name, with a value for each field, or the real name.

    Raises ``SettingsError`` for an unknown name.
    """
    searching(routes, name)
    own = searches(routes)
    for route, template in _templates(own, settings):
        fields = index_fields(route, template, name)
        if fields is not None:
            return SearchIndex(route, index_of(route, fields, settings))
    known = ", ".join(map(shown_index, own))
    fill = " Give a value for each field." if "{" in known else ""
    raise SettingsError(f"Index {name!r} is not known: expected {known}.{fill}")


def _templates(routes: list[Route], settings: Settings) -> Iterator[tuple[Route, KeyComponent]]:
    """The templates that a name may match: declared ones before real ones, and longer names first."""
    longer_first = sorted(routes, key=lambda route: options_of(route).replaces is None)
    yield from ((route, options_of(route).index) for route in longer_first)
    yield from ((route, index_template(route, settings)) for route in longer_first)


def index_fields(route: Route, template: KeyComponent, name: str) -> Fields | None:
    """The fields in an index's name, which may be escaped; None for the name of another index."""
    if options_of(route).replaces is not None:
        if not name.endswith(NEXT):
            return None
        name = name.removesuffix(NEXT)
    return None if MADE in name else template.match(unquote(name))


def accepts_of(routes: Iterable[Route], settings: Settings) -> Callable[[str], Accepts | None]:
    """The documents that the index of a name takes, by its declaration; None for an undeclared index."""
    own = [(route, index_template(route, settings)) for route in searches(routes)]

    def accepts(name: str) -> Accepts | None:
        alias = alias_of(name)
        found = (route for route, template in own if index_fields(route, template, alias) is not None)
        route = next(found, None)
        return None if route is None else _accepts(route)

    return lru_cache(maxsize=1000)(accepts)


@lru_cache(maxsize=1000)
def _accepts(route: Route) -> Accepts:
    return Accepts(options_of(route).mapping, SearchIndex(route, "").settings)


def whole_names(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their full names, ``index.number_of_shards``, from any nesting."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        full_name = prefix + name
        if isinstance(value, Mapping):
            found |= whole_names(value, f"{full_name}.")
        else:
            found[full_name if full_name.startswith("index.") else f"index.{full_name}"] = value
    return found


class Tried(NamedTuple):
    """Whether an index refuses older versions; if not, the reason."""

    holds: bool
    why: str = ""


def create_index(index: SearchIndex, sink: OpenSearchIndex) -> None:
    """Creates an index with its alias, in one request. Raises ``SettingsError`` if one of the names is taken."""
    if found := about(sink, index.alias):
        raise SettingsError(_taken(index, found))
    if about(sink, index.first):
        raise SettingsError(
            f"Index {index.first!r} exists, and alias {index.alias!r} does not. Expected neither of them: delete the "
            "index if nobody needs it, or give it the alias that --dry-run prints."
        )
    sink.calls.ask("PUT", f"/{in_path(index.first)}", index.body)


def try_versions(index: SearchIndex, sink: OpenSearchIndex, now: float) -> Tried:
    """Tests whether an index refuses a version that is older than the stored one. No document remains.

    The document is hidden from the beginning: no search finds it.
    """
    body = hidden(now)
    try:
        newer = _bulk(sink, index, PROBE_VERSION, body)
        older = _bulk(sink, index, PROBE_VERSION - 1, body)
        gone = _bulk(sink, index, PROBE_VERSION + 1, None)
    except EngineUnavailable:
        raise
    except EngineError as error:
        return Tried(False, plain(error.marked))
    if not newer.is_done:
        return Tried(False, f"It did not take version {PROBE_VERSION} of a document ({newer.status}: {newer.reason}).")
    if older.status != CONFLICT:
        return Tried(
            False, f"It took version {PROBE_VERSION - 1} of a document after version {PROBE_VERSION} ({older.status})."
        )
    if not gone.is_done:
        return Tried(False, f"It did not delete a document in version {PROBE_VERSION + 1} ({gone.status}).")
    return Tried(True)


def _bulk(sink: OpenSearchIndex, index: SearchIndex, version: int, body: bytes | None) -> Any:
    return sink.bulk([Action(index.alias, PROBE, version, body)])[0]


def differences(index: SearchIndex, sink: OpenSearchIndex) -> list[IndexDifference]:
    """The differences between the declaration of an index and the server."""
    found = about(sink, index.alias)
    if not found:
        return [IndexDifference("alias", index.alias, FILTERED)]
    several = len(found) > 1
    return [
        *_alias_differences(index, found),
        *(
            difference._replace(behind=name if several else None)
            for name, there in sorted(found.items())
            for difference in (
                *mapping_differences(index.mapping, there.get("mappings", {})),
                *setting_differences(index.settings, there.get("settings", {})),
            )
        ),
    ]


def _alias_differences(index: SearchIndex, found: Mapping[str, Any]) -> Iterator[IndexDifference]:
    """The problem of the alias that prevents the sending of documents."""
    if index.alias in found:
        yield IndexDifference("alias", index.alias, FILTERED, "an index")
        return
    own = {name: there["aliases"].get(index.alias, {}) for name, there in found.items()}
    if len(own) > 1 and not any(each.get("is_write_index") for each in own.values()):
        yield IndexDifference("alias", index.alias, FILTERED, "several indices and none to write to")
    for name in sorted(name for name, each in own.items() if not hides(each.get("filter"))):
        yield IndexDifference("alias", index.alias, FILTERED, f"no filter on {name}")


def about(sink: OpenSearchIndex, name: str) -> dict[str, Any]:
    """The mappings, settings and aliases of an index, or of those behind an alias. Empty for an unknown name."""
    found: dict[str, Any] | None = sink.calls.ask("GET", f"/{in_path(name)}", flat_settings="true")
    return found or {}


def _taken(index: SearchIndex, found: Mapping[str, Any]) -> str:
    if index.alias in found:
        return (
            f"{index.alias!r} is an index, and has to be an alias: searches would show documents of items that are "
            "gone. Delete the index, or give the search another name, and run the command again."
        )
    return (
        f"Alias {index.alias!r} exists, for {', '.join(sorted(found))}: nothing was created. "
        f"streamfold search diff {index.alias} shows whether they are as declared."
    )


class Aliases(Protocol):
    """The operations of a rebuild on the indexes of an alias. Each method may be repeated after a failure."""

    @property
    def sink(self) -> Sink: ...

    def behind(self, alias: str) -> list[str]: ...

    def last(self, alias: str) -> int:
        """The highest number of an alias's existing indexes."""
        ...

    def create(self, index: SearchIndex, name: str) -> None:
        """Creates an index as declared, with an alias of its own."""
        ...

    def name_own(self, name: str) -> None:
        """Gives an index an alias of its own."""
        ...

    def point(self, alias: str, name: str) -> None:
        """Points an alias to one index only, in one step: no reader sees both, or none."""
        ...

    def delete(self, name: str) -> None:
        """Removes an index with its documents."""
        ...

    def refresh(self, name: str) -> None:
        """Makes earlier writes visible to searches."""
        ...


def only_behind(aliases: Aliases, alias: str) -> str:
    """The index behind an alias. Raises ``SettingsError`` if there are several."""
    found = aliases.behind(alias)
    if len(found) != 1:
        raise SettingsError(
            f"Alias {alias!r} points to {', '.join(found) or 'no index'}: expected one index. Remove the others from "
            "the alias."
        )
    return found[0]


class ServerAliases:
    """The indexes of a server."""

    def __init__(self, sink: OpenSearchIndex) -> None:
        self.sink: Sink = sink
        self.calls = sink.calls

    def behind(self, alias: str) -> list[str]:
        return sorted(self.calls.ask("GET", f"/_alias/{in_path(alias)}") or {})

    def last(self, alias: str) -> int:
        found = (
            self.calls.ask("GET", f"/{in_path(alias)}{MADE}*", filter_path="*.settings.index.number_of_shards") or {}
        )
        return _last(alias, found)

    def create(self, index: SearchIndex, name: str) -> None:
        own = {own_alias(name): {"filter": VISIBLE, "is_write_index": True}}
        self.calls.ask("PUT", f"/{in_path(name)}", {**index.body, "aliases": own})

    def name_own(self, name: str) -> None:
        self._aliases(_added(name, own_alias(name)))

    def point(self, alias: str, name: str) -> None:
        now = self.behind(alias)
        if now != [name]:
            gone = ({"remove": {"index": each, "alias": alias, "must_exist": True}} for each in now if each != name)
            self._aliases(*gone, _added(name, alias))

    def delete(self, name: str) -> None:
        self.calls.ask("DELETE", f"/{in_path(name)}")  # None if it is gone already

    def refresh(self, name: str) -> None:
        self.calls.ask("POST", f"/{in_path(name)}/_refresh")

    def _aliases(self, *actions: Any) -> None:
        if self.calls.ask("POST", "/_aliases", {"actions": actions}) is None:
            raise EngineError("An index or an alias of the rebuild is gone: streamfold search diff INDEX shows more.")


def _added(name: str, alias: str) -> dict[str, Any]:
    return {"add": {"index": name, "alias": alias, "filter": VISIBLE, "is_write_index": True}}


class LocalAliases:
    """The indexes of a local state: an index exists as soon as it has a document."""

    def __init__(self, sink: LocalIndex) -> None:
        self.sink: Sink = sink
        self.engine = sink.engine

    def behind(self, alias: str) -> list[str]:
        return [resolved(self.engine, [alias])[alias]]

    def last(self, alias: str) -> int:
        return _last(alias, self.behind(alias))

    def create(self, index: SearchIndex, name: str) -> None:
        """Does nothing: a local index begins with its first document."""

    def name_own(self, name: str) -> None:
        """Does nothing: the alias follows from the name of the index."""

    def point(self, alias: str, name: str) -> None:
        key = StateKey(ALIASES, alias)
        found = self.engine.read_state([key], consistent=True).get(key, {})
        if not self.engine.swap_state(key, {"s": name}, found.get("r", 0)):
            raise Contended(f"Alias {alias!r} was moved by somebody else: run the same command again.")

    def delete(self, name: str) -> None:
        wanted = Entries(PARTITION + name, ACTIONS_MAX)
        while page := self.engine.read_entries(wanted):
            self.engine.transact([DeleteState(StateKey(wanted.partition, position)) for position, _ in page], 0)

    def refresh(self, name: str) -> None:
        """Does nothing: readers see every write at once."""


def _last(alias: str, names: Iterable[str]) -> int:
    numbers = (re.fullmatch(rf"{re.escape(alias + MADE)}(\d{{6,}})", name) for name in names)
    return max((int(number[1]) for number in numbers if number), default=1)


def sink_of(finishing: Finishing, *, asked_for: bool = False) -> Sink | None:
    """The index of a run; None if it makes no documents: on a real table without external effects.

    ``asked_for``: a redrive or a repair makes documents, so that the index of the settings is needed.
    """
    runtime = finishing.runtime
    opened: Sink | None = runtime.opened.get(OPENED)
    if opened is not None:
        return opened
    if runtime.store.is_local:
        return LocalIndex(runtime.engine, accepts_of(runtime.application.routes, runtime.settings))
    if not (runtime.outside or asked_for) or runtime.settings.search is None:
        return None
    from streamfold.derivations.search.opensearch import open_search

    runtime.opened[OPENED] = sink = open_search(runtime.settings)
    return sink
