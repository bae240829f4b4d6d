"""A declared search: its options, its mapping, the names of its indexes, and its documents."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import quote

from streamfold.errors import DeclarationError, HandlerError, SettingsError, redacted
from streamfold.keys.field import Field, overlaps
from streamfold.keys.key import Key
from streamfold.keys.key_part import KeyComponent, KeyValue, is_ambiguous
from streamfold.keys.table import RESERVED_PREFIX
from streamfold.records.change import ItemKey
from streamfold.records.values import number_text
from streamfold.routes.effects import GivenEffect
from streamfold.routes.route import Route
from streamfold.settings import INDEX_PREFIX, environment_name

GONE = "_sf_gone"
"""The field that hides a document whose item is gone: the alias filters the document out."""
GONE_AT = "_sf_at"
"""The field of a hidden document with the time of the hiding, in epoch milliseconds."""
CODE = "_sf_h"
"""The field that holds a digest of the handler's code."""
MADE = "~"
"""The begin of the framework's suffix of an index's name. No search, setting or tenant can have it in a name: templates
must not hold it (``check_index``), and in the value of a field it is escaped."""
NEXT = MADE + "next"
"""The end of the alias of a search that takes over the index of another (``replaces=``)."""
NUMBERED = "{}" + MADE + "{:06}"
"""The name of an index behind an alias. A rebuild counts on."""
OWN = MADE + "write"
"""The end of the alias that only one index has: documents are sent to that index through the alias. If the index is
gone, a server then makes no other one by itself."""
NAME_BYTES_MAX = 255
"""Length of an index's name (OpenSearch, CreateIndexRequest; ``MetadataCreateIndexService``)."""
INDEX_BYTES_MAX = NAME_BYTES_MAX - len(OWN) - len(NUMBERED.format("", 1)) - len(NEXT)
"""Length of the name that a search gives: the framework's suffix has to fit too."""
LITERAL = re.compile(r"[a-z0-9._-]*")
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
FIRST = re.compile(r"[a-z0-9{]")
ID_BYTES_WHOLE = 480
"""Longer ids are cut and get a digest: the limit is ``ID_BYTES_MAX``."""
ID_BYTES_KEPT = 400

FieldTypes = Mapping[str, str | Mapping[str, Any]]
"""The fields of a mapping by name: a type, "text", or all of a field's options in OpenSearch."""
OWN_FIELDS: Mapping[str, Any] = {
    GONE: {"type": "boolean"},
    GONE_AT: {"type": "date", "format": "epoch_millis"},
    CODE: {"type": "keyword"},
}
"""The framework's own fields. Unmapped, the alias's filter would find nothing and every hidden document would show."""
DETAILS: Mapping[str, Mapping[str, Any]] = {"scaled_float": {"scaling_factor": 100}}
"""The options of a type beside its name, for ``fields=`` with the name alone."""

TYPE_NAMES = (
    "alias annotated_text binary boolean byte completion constant_keyword date date_nanos date_range derived double "
    "double_range flat_object float float_range geo_point geo_shape half_float icu_collation_keyword integer "
    "integer_range ip ip_range join keyword knn_vector long long_range match_only_text murmur3 nested object "
    "percolator rank_feature rank_features scaled_float search_as_you_type semantic short sparse_vector star_tree text "
    "token_count unsigned_long version wildcard xy_point xy_shape"
)
"""The types of a mapping (OpenSearch, Mappings and field types), with those of its plugins."""
TYPES = frozenset(TYPE_NAMES.split())

Deletes = Literal["kept", "removed"]
"""What happens to a document whose item is gone. ``kept``: it is hidden, and its version wins for ever; ``removed``: it
is deleted, and a request that lands after the index has dropped the version brings it back."""
TEMPLATE_BYTES_MAX = 10_000


def check_index(index: KeyComponent, at: str) -> None:
    """Raises ``DeclarationError`` for a template with names that an index cannot have."""
    literals = [piece for piece in index.pieces if isinstance(piece, str)]
    if not FIRST.match(index.text) or not all(map(LITERAL.fullmatch, literals)):
        raise DeclarationError(
            f"search at {at} has to={index.text!r}: the name of an index has small letters, digits, '-', '_' and '.', "
            "and begins with a letter or a digit."
        )


def setting_name(index: KeyComponent) -> str:
    """The name of an index in settings, STREAMFOLD_INDEX_<NAME>: its template without fields and their delimiters."""
    literals = (piece for piece in index.pieces if isinstance(piece, str))
    return "".join(literals).strip("-_.") or index.fields[0].name


def setting_variable(index: KeyComponent) -> str:
    return INDEX_PREFIX + environment_name(setting_name(index))


def real_template(index: KeyComponent, real: str | None) -> KeyComponent:
    """The template of an index's real names. Raises ``SettingsError`` for a setting that has other fields."""
    if real is None:
        return index
    try:
        template = KeyComponent(real, "#", INDEX_BYTES_MAX)
        check_index(template, "a setting")
    except DeclarationError as error:
        raise SettingsError(f"{setting_variable(index)}={real!r} names no index: {error}") from None
    mine, theirs = ({field.name for field in name.fields} for name in (index, template))
    if mine != theirs:
        wanted = ", ".join(f"{{{name}}}" for name in sorted(mine)) or "none"
        raise SettingsError(
            f"{setting_variable(index)}={real!r}: expected the fields {wanted}, as to={index.text!r} has them."
        )
    return template


def index_name(index: KeyComponent, fields: Mapping[str, Any]) -> str:
    """The name of the index for an item with these fields.

    Values are escaped, so that two values never give one name: capital letters, and letters that a name cannot hold.
    Raises ``HandlerError`` for a name that is too long.
    """
    safe = "" if len(index.fields) > 1 else "-"
    name = "".join(_piece(piece, fields, safe) for piece in index.pieces)
    if len(name) > INDEX_BYTES_MAX:
        raise HandlerError(f"Index {redacted(name)} has {len(name)} letters: a name has {INDEX_BYTES_MAX} at most.")
    return name


def own_alias(index: str) -> str:
    return index + OWN


def alias_of(name: str) -> str:
    """The alias of a name: of an index behind it, of an index's own alias, or the alias itself."""
    index = name.removesuffix(OWN)
    alias, mark, number = index.rpartition(MADE)
    return alias if mark and number.isdecimal() else index


def _piece(piece: str | Field, fields: Mapping[str, Any], safe: str) -> str:
    if isinstance(piece, str):
        return piece
    text = str(piece.write(fields[piece.name]))
    return "".join(letter if letter in PLAIN or letter in safe else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02x}" for byte in letter.encode())


def key_id(item: ItemKey, *, names_table: bool) -> str:
    """The id of an item's document: its key, with ``|`` between the components and ``%`` and ``|`` escaped in them."""
    table, *values = item
    components = [_key_text(value) for value in values if value is not None]
    return shortened_id("|".join([table, *components] if names_table else components))


def _key_text(value: KeyValue) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.replace("%", "%25").replace("|", "%7C") if isinstance(value, str) else number_text(value)


def shortened_id(text: str) -> str:
    """An id that an index takes: a long one is cut, and ends with a digest."""
    content = text.encode()
    if len(content) <= ID_BYTES_WHOLE:
        return text
    return f"{content[:ID_BYTES_KEPT].decode(errors='ignore')}~{sha256(content).hexdigest()}"


def in_path(text: str) -> str:
    """A name or an id as a component of an URL."""
    return quote(text, safe="")


def index_mapping(path: str | None, fields: FieldTypes | None, at: str) -> Mapping[str, Any]:
    """The mapping of an index. Nothing is inferred from documents unless the mapping asks for it: ``dynamic`` is false.

    Raises ``DeclarationError`` for a file that is no mapping, and if neither or both are given.
    """
    if (path is None) == (fields is None):
        raise DeclarationError(
            f'search at {at} needs mapping= or fields=, and not both: mapping="mappings/products.json", or '
            'fields={"title": "text", "price": "scaled_float"}.'
        )
    given = _of_fields(fields, at) if fields is not None else _read(path, "mapping", at)
    given = given.get("mappings", given)
    properties = given.get("properties") if isinstance(given, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        raise DeclarationError(f'search at {at} has mapping={path!r}: expected an object with "properties".')
    for name in properties:
        if name.startswith(RESERVED_PREFIX):
            raise DeclarationError(
                f"search at {at} maps {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved."
            )
    _check_types(properties, at)
    return {"dynamic": False, **given, "properties": {**properties, **OWN_FIELDS}}


def _check_types(properties: Mapping[str, Any], at: str) -> None:
    """Refuses a type that no index has, at any depth: it would be refused when the index is created, days later."""
    for name, field in properties.items():
        if not isinstance(field, Mapping):
            continue
        given = str(field.get("type", "object"))
        if given not in TYPES:
            from difflib import get_close_matches  # only for a message

            near = get_close_matches(given, TYPES, 1)
            expected = near[0] if near else "a type of OpenSearch, such as text or keyword"
            raise DeclarationError(
                f"search at {at} has the field {name!r} of type {given!r}, which no index has: expected {expected}."
            )
        for inside in ("properties", "fields"):
            if isinstance(below := field.get(inside), Mapping):
                _check_types(below, at)


def index_settings(path: str | None, at: str) -> Mapping[str, Any]:
    """The settings of an index: analyzers, synonyms, shards. Raises ``DeclarationError`` for a file that has none."""
    if path is None:
        return {}
    given = _read(path, "settings", at)
    settings = given.get("settings", given)
    if not isinstance(settings, Mapping):
        raise DeclarationError(f"search at {at} has settings={path!r}: expected an object of settings.")
    return settings


def _of_fields(fields: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) and name for name in fields):
        raise DeclarationError(f'search at {at} has fields={fields!r}: expected types by name, {{"title": "text"}}.')
    return {"properties": {name: _field(name, given, at) for name, given in fields.items()}}


def _field(name: str, given: object, at: str) -> Mapping[str, Any]:
    if isinstance(given, str) and given:
        return {"type": given, **DETAILS.get(given, {})}
    if isinstance(given, Mapping) and given:
        return given
    raise DeclarationError(f'search at {at} has the field {name!r}: {given!r} is no type; expected "text" or a dict.')


def _read(path: object, what: str, at: str) -> dict[str, Any]:
    """The object in a JSON file, which is beside the file of the declaration or below it."""
    if not isinstance(path, str) or not path:
        raise DeclarationError(f'search at {at} has {what}={path!r}: expected a file, {what}="{what}s/products.json".')
    file = Path(at.rpartition(":")[0]).parent / path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclarationError(
            f"search at {at} has {what}={path!r}: {file} cannot be read ({error.strerror})."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DeclarationError(f"search at {at} has {what}={path!r}, which is no JSON ({error}).") from None
    if not isinstance(found, dict):
        raise DeclarationError(f"search at {at} has {what}={path!r}: expected an object, found {type(found).__name__}.")
    return found


class Document(GivenEffect):
    """A document of an index, as long as the function gives it for its item.

    ``Document(title=item["title"], price=item["price"])``: the names are the document's fields. ``attributes`` is for
    fields whose names are no names of Python. Numbers keep their digits, sets become sorted lists, bytes base64 text,
    times UTC text.
    """

    __slots__ = ()

    def __init__(self, /, *, attributes: Mapping[str, Any] | None = None, **values: Any) -> None:
        super().__init__(None, attributes=attributes, **values)

    @property
    def fields(self) -> dict[str, Any]:
        """The document's fields."""
        return {**self.values, **(self.attributes or {})}


@dataclass(eq=False, repr=False)
class SearchOptions:
    """The options of a search beside its sources."""

    index: KeyComponent  # the template of the alias that readers use, by its logical name
    id: KeyComponent | None  # the template of a document's id; None: the item's key
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
    assert isinstance(route.options, SearchOptions)
    return route.options


def shown_index(route: Route) -> str:
    """The declared name of a search's index, with its fields."""
    options = options_of(route)
    return options.index.text + (NEXT if options.replaces is not None else "")


def keeps_ids(route: Route) -> bool:
    """Whether the ids of an item's documents follow from more than its key, so that the state has to keep them."""
    return any(name not in source.types for source in route.sources for name in options_of(route).id_fields)


class IndexOptions(NamedTuple):
    """The options of a search about its index, as given."""

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
    id: str | None,  # noqa: A002 - the word of the index
    given: IndexOptions,
) -> SearchOptions:
    """The options of a declaration. Raises ``DeclarationError`` for impossible options."""
    if given.deletes not in get_args(Deletes):
        expected = " or ".join(get_args(Deletes))
        raise DeclarationError(f"search at {at} has deletes={given.deletes!r}: expected {expected}.")
    return SearchOptions(
        _checked_index(sources, to, at),
        _checked_id(sources, id, at),
        index_mapping(given.mapping, given.fields, at),
        index_settings(given.settings, at),
        given.deletes,
        given.skip_equal,
        given.replaces,
        len({source.table.name for source in sources}) > 1,
    )


def _checked_index(sources: Sequence[Key], to: object, at: str) -> KeyComponent:
    if not isinstance(to, str) or not to:
        raise DeclarationError(f'search at {at} has to={to!r}: expected the name of an index, to="products".')
    index = KeyComponent(to, sources[0].table.delimiter, TEMPLATE_BYTES_MAX)
    check_index(index, at)
    for source in sources:
        if missing := [field.name for field in index.fields if field.name not in source.types]:
            raise DeclarationError(
                f"search at {at} has to={to!r}, whose field {missing[0]!r} is none of {source!r}: the index of an item "
                f"that is gone follows from its key alone. Its fields: {', '.join(source.fields) or 'none'}."
            )
    return index


def _checked_id(sources: Sequence[Key], template: object, at: str) -> KeyComponent | None:
    if template is None:
        return None
    if not isinstance(template, str):
        raise DeclarationError(f'search at {at} has id={template!r}: expected a template, id="{{product_id}}".')
    if len(sources) > 1:
        raise DeclarationError(
            f"search at {at} has id={template!r} and several sources: two items could make one document. Leave id= "
            "out, the id is then the item's key, or declare a handler for each source."
        )
    template_of_id, (source,) = KeyComponent(template, sources[0].table.delimiter, TEMPLATE_BYTES_MAX), sources
    names = {field.name for field in template_of_id.fields}
    if missing := [name for name in source.fields if name not in names]:
        raise DeclarationError(
            f"search at {at} has id={template!r}, which several items of {source!r} would share: it must hold every "
            f"field of the source's key. Missing: {', '.join(missing)}."
        )
    if is_ambiguous(template_of_id.pieces, source.table.delimiter):
        raise DeclarationError(
            f"search at {at} has id={template!r}: two fields need a {source.table.delimiter!r} between them, or two "
            "documents could get one id."
        )
    return template_of_id


def check_searches(own: Sequence[Route]) -> None:
    """Raises ``DeclarationError`` if two searches would write one index."""
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
    """The pairs of searches of which neither takes over the index of the other."""
    for one, other in combinations(own, 2):
        if options_of(one).replaces != other.name and options_of(other).replaces != one.name:
            yield one, other
