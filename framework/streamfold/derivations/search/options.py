"""The options of a search, checked where they are declared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

from streamfold.derivations.search.mapping import FieldTypes, index_mapping, index_settings
from streamfold.derivations.search.names import NEXT, check_index, setting_variable
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.key_part import KeyPart, is_ambiguous
from streamfold.keys.template_language import overlaps
from streamfold.routes.route import Route

Deletes = Literal["kept", "removed"]
"""What becomes of a document whose item is gone. ``kept``: it is hidden, and wins for ever; ``removed``: it is deleted,
and a request that lands later than the index remembers deletions brings it back."""
TEMPLATE_BYTES_MAX = 10_000


@dataclass(eq=False, repr=False)
class SearchOptions:
    """What a search declares beside its sources. It never changes."""

    index: KeyPart  # the template of the alias that readers use, by its logical name
    id: KeyPart | None  # the template of a document's id; None: the item's key
    parts: tuple[Key, ...]
    mapping: Mapping[str, Any]  # with the framework's own fields
    settings: Mapping[str, Any]
    deletes: Deletes
    skip_equal: bool
    replaces: str | None  # the handler whose index this one takes over
    names_table: bool  # ids begin with the table, because the sources are of several

    @cached_property
    def id_fields(self) -> frozenset[str]:
        """The fields of the id's template."""
        return frozenset(field.name for field in self.id.fields) if self.id else frozenset()


def options_of(route: Route) -> SearchOptions:
    """The options of a search."""
    assert isinstance(route.options, SearchOptions)
    return route.options


def shown_index(route: Route) -> str:
    """The name of a search's index as it is declared; fields stand in it."""
    options = options_of(route)
    return options.index.text + (NEXT if options.replaces is not None else "")


def keeps_ids(route: Route) -> bool:
    """Whether the ids of an item's documents follow from more than its key, so that the state has to keep them."""
    return any(name not in source.types for source in route.sources for name in options_of(route).id_fields)


class IndexOptions(NamedTuple):
    """The options of a search about its index, as they are given."""

    mapping: str | None
    fields: FieldTypes | None
    settings: str | None
    deletes: Deletes
    skip_equal: bool
    replaces: str | None


def checked_search(
    sources: Sequence[Key],
    at: str,
    to: str,
    parts: Sequence[Key],
    id: str | None,  # noqa: A002 - the word of the index
    given: IndexOptions,
) -> SearchOptions:
    """The options of a declaration. Raises ``DeclarationError`` for what cannot be."""
    if given.deletes not in get_args(Deletes):
        expected = " or ".join(get_args(Deletes))
        raise DeclarationError(f"search at {at} has deletes={given.deletes!r}: expected {expected}.")
    return SearchOptions(
        _checked_index(sources, to, at),
        _checked_id(sources, id, at),
        _checked_parts(sources, parts, at),
        index_mapping(given.mapping, given.fields, at),
        index_settings(given.settings, at),
        given.deletes,
        given.skip_equal,
        given.replaces,
        len({source.table.name for source in sources}) > 1,
    )


def _checked_index(sources: Sequence[Key], to: object, at: str) -> KeyPart:
    if not isinstance(to, str) or not to:
        raise DeclarationError(f'search at {at} has to={to!r}: expected the name of an index, to="products".')
    index = KeyPart(to, sources[0].table.delimiter, TEMPLATE_BYTES_MAX)
    check_index(index, at)
    for source in sources:
        if missing := [field.name for field in index.fields if field.name not in source.types]:
            raise DeclarationError(
                f"search at {at} has to={to!r}, whose field {missing[0]!r} is none of {source!r}: the index of an item "
                f"that is gone follows from its key alone. Its fields: {', '.join(source.fields) or 'none'}."
            )
    return index


def _checked_id(sources: Sequence[Key], template: object, at: str) -> KeyPart | None:
    if template is None:
        return None
    if not isinstance(template, str):
        raise DeclarationError(f'search at {at} has id={template!r}: expected a template, id="{{product_id}}".')
    if len(sources) > 1:
        raise DeclarationError(
            f"search at {at} has id={template!r} and several sources: two items could make one document. Leave id= "
            "out, the id is then the item's key, or declare a handler for each source."
        )
    part, (source,) = KeyPart(template, sources[0].table.delimiter, TEMPLATE_BYTES_MAX), sources
    names = {field.name for field in part.fields}
    if missing := [name for name in source.fields if name not in names]:
        raise DeclarationError(
            f"search at {at} has id={template!r}, which several items of {source!r} would share: it must hold every "
            f"field of the source's key. Missing: {', '.join(missing)}."
        )
    if is_ambiguous(part.pieces, source.table.delimiter):
        raise DeclarationError(
            f"search at {at} has id={template!r}: two fields need a {source.table.delimiter!r} between them, or two "
            "documents could get one id."
        )
    return part


def _checked_parts(sources: Sequence[Key], parts: Any, at: str) -> tuple[Key, ...]:
    if not isinstance(parts, list | tuple) or not all(isinstance(key, Key) for key in parts):
        raise DeclarationError(f"search at {at} has parts={parts!r}: expected a list of Keys, parts=[ORDER_ITEM].")
    if parts and len(sources) > 1:
        raise DeclarationError(
            f"search at {at} has parts= and several sources: a document of parts has one source. Declare a handler for "
            "each."
        )
    return tuple(dict.fromkeys(parts))


def check_searches(own: Sequence[Route]) -> None:
    """Raises ``DeclarationError`` where two searches would write one index."""
    for one, other in independent(own):
        mine, theirs = options_of(one).index, options_of(other).index
        if overlaps(mine.atoms, theirs.atoms):
            raise DeclarationError(
                f"Index {mine.text!r} is written by {one.name!r} ({one.declared_at}) and by "
                f"{other.name!r} ({other.declared_at}): an index has one handler. Give one of them another to=; or, "
                f'where it takes the index over, replaces="{one.name}".'
            )
        if setting_variable(mine) == setting_variable(theirs):
            raise DeclarationError(
                f"Indexes {mine.text!r} of {one.name!r} ({one.declared_at}) and {theirs.text!r} of {other.name!r} "
                f"({other.declared_at}) would both be named by the setting {setting_variable(mine)}, and be one index: "
                "give one of them a to= that differs in letters or digits outside of its fields."
            )
    names = {route.name: route for route in own}
    for route in own:
        replaced = options_of(route).replaces
        if replaced is None:
            continue
        if replaced not in names or replaced == route.name:
            raise DeclarationError(
                f"search {route.name!r} ({route.declared_at}) has replaces={replaced!r}: expected the name of another "
                "search of the application."
            )
        if options_of(names[replaced]).replaces is not None:
            raise DeclarationError(
                f"search {route.name!r} ({route.declared_at}) has replaces={replaced!r}, which replaces another search "
                f"itself, and both would write {shown_index(route)!r}: expected the name of a search without replaces=."
            )


def independent(own: Sequence[Route]) -> Iterator[tuple[Route, Route]]:
    """The pairs of searches of which neither takes the index of the other over."""
    for one, other in combinations(own, 2):
        if options_of(one).replaces != other.name and options_of(other).replaces != one.name:
            yield one, other
