"""The indexes of an application by the names that a person gives them, and what each is created with."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from streamfold.derivations.search.accepts import Accepts
from streamfold.derivations.search.make import index_of, index_template
from streamfold.derivations.search.names import MADE, NEXT, NUMBERED, alias_of, setting_variable
from streamfold.derivations.search.options import SearchOptions, independent, options_of, shown_index
from streamfold.derivations.search.sink import VISIBLE
from streamfold.errors import SettingsError
from streamfold.keys.key_part import KeyPart
from streamfold.keys.template_language import overlaps
from streamfold.routes.route import Fields, Route
from streamfold.settings import Settings

GC_DELETES = "index.gc_deletes"
REMEMBERED = {GC_DELETES: "1h"}
"""How long an index knows the versions of deleted documents, where documents are deleted. OpenSearch's own is 60s."""


class SearchIndex(NamedTuple):
    """An index that a search writes, by its real name."""

    route: Route
    alias: str  # which documents are written and read through

    @property
    def first(self) -> str:
        """The name of the index that the alias stands for at first."""
        return NUMBERED.format(self.alias, 1)

    @property
    def mapping(self) -> Mapping[str, Any]:
        return options_of(self.route).mapping

    @property
    def settings(self) -> dict[str, Any]:
        """The declared settings under their whole names."""
        options = options_of(self.route)
        remembered = REMEMBERED if options.deletes == "removed" else {}
        return {**remembered, **whole_names(options.settings)}

    @property
    def body(self) -> dict[str, Any]:
        """The body of the request that creates the index, with its alias."""
        alias = {"filter": VISIBLE, "is_write_index": True}
        return {"settings": self.settings, "mappings": self.mapping, "aliases": {self.alias: alias}}


def searches_of(routes: Iterable[Route]) -> list[Route]:
    """The routes that write documents."""
    return [route for route in routes if isinstance(route.options, SearchOptions)]


def check_real_indexes(own: Sequence[Route], settings: Settings) -> None:
    """Raises ``SettingsError`` for a setting that does not fit its index, and where settings make one index of two."""
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
    """The index that a person names: as it is declared, with a value for each field, or by its real name.

    Raises ``SettingsError`` for a name that is none.
    """
    own = searches_of(routes)
    if not own:
        raise SettingsError(f"Index {name!r} is not known: the application has no search.")
    for route, template in _templates(own, settings):
        fields = index_fields(route, template, name)
        if fields is not None:
            return SearchIndex(route, index_of(route, fields, settings))
    known = ", ".join(map(shown_index, own))
    fill = " Give a value for each field." if "{" in known else ""
    raise SettingsError(f"Index {name!r} is not known: expected {known}.{fill}")


def _templates(routes: list[Route], settings: Settings) -> Iterator[tuple[Route, KeyPart]]:
    """The templates that a name may fit: declared ones before real ones, and the longer names first."""
    longer_first = sorted(routes, key=lambda route: options_of(route).replaces is None)
    yield from ((route, options_of(route).index) for route in longer_first)
    yield from ((route, index_template(route, settings)) for route in longer_first)


def index_fields(route: Route, template: KeyPart, name: str) -> Fields | None:
    """The fields of an index's name, which may be escaped in it; None for the name of another index."""
    if options_of(route).replaces is not None:
        if not name.endswith(NEXT):
            return None
        name = name.removesuffix(NEXT)
    return None if MADE in name else template.match(unquote(name))


def accepts_of(routes: Iterable[Route], settings: Settings) -> Callable[[str], Accepts | None]:
    """What the index of a name takes, as it is declared; None for an index that no search declares."""
    own = [(route, index_template(route, settings)) for route in searches_of(routes)]

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
    """Settings by their whole names, ``index.number_of_shards``, however they are nested."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        whole = prefix + name
        if isinstance(value, Mapping):
            found |= whole_names(value, f"{whole}.")
        else:
            found[whole if whole.startswith("index.") else f"index.{whole}"] = value
    return found
