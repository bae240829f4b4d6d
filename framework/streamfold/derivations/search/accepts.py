"""The documents that a mapping takes, for the local index: OpenSearch refuses the others with status 400.

Measured on OpenSearch 2.19.6 and 3.6.0, with which ``tests/search/test_accepts_on_servers.py`` compares it. Values of
unlisted types, dates in unlisted formats, and fields that ``dynamic: true`` would add are taken. So a server may refuse
more documents, but never takes one that is refused here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from streamfold.derivations.search.field_values import CHECKS, is_false, is_number, is_true

ARRAYS_MAX = 20
"""Arrays directly inside of arrays (``index.mapping.depth.limit``)."""
NESTED_MAX = 10_000
"""Nested objects of one document (``index.mapping.nested_objects.limit``)."""
METADATA = frozenset(
    {
        "_data_stream_timestamp",
        "_field_names",
        "_id",
        "_ignored",
        "_index",
        "_nested_path",
        "_routing",
        "_seq_no",
        "_source",
        "_version",
    }
)
"""Fields that only the server writes."""
COUNT = "_doc_count"


class Refusal(Exception):  # noqa: N818 - an outcome, not a mistake
    """The reason why a document is refused, in words like the server's."""


class Leaf(NamedTuple):
    """A field with values."""

    path: str
    type: str
    options: Mapping[str, Any]
    more: tuple["Leaf", ...] = ()  # its multi-fields, which get the same values


class Inner(NamedTuple):
    """An object: the document itself, or a field of type ``object`` or ``nested``."""

    path: str
    fields: dict[str, "Leaf | Inner"]
    dynamic: str | None  # its own option; None: as the object around it
    is_enabled: bool
    is_nested: bool


class Accepts:
    """The documents that the mapping and the settings of an index take. ``settings`` are by their full names."""

    def __init__(self, mapping: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.root = _inner("", mapping)
        self.takes_malformed = is_true(settings.get("index.mapping.ignore_malformed"))
        self.coerces = not is_false(settings.get("index.mapping.coerce"))
        self.arrays_max = int(settings.get("index.mapping.depth.limit", ARRAYS_MAX))
        self.nested_max = int(settings.get("index.mapping.nested_objects.limit", NESTED_MAX))

    def refusal(self, document: Mapping[str, Any]) -> str | None:
        """The reason why the server would refuse a document, numbers as ``int`` or ``Decimal``; None if it takes it."""
        try:
            if self.root.is_enabled:
                nested = self._object(self.root, document, self.root.dynamic or "true")
                if nested > self.nested_max:
                    raise Refusal(f"the number of nested documents has exceeded the allowed limit of {self.nested_max}")
        except Refusal as why:
            return str(why)
        return None

    def _object(self, inner: Inner, members: Mapping[str, Any], dynamic: str) -> int:
        """Checks the members of an object; returns how many nested objects are in it."""
        dynamic, nested = inner.dynamic or dynamic, 0
        for name, value in members.items():
            parts, above, inherited = _parts(name), inner, dynamic
            if isinstance(value, list) and _arrays(value) > self.arrays_max:
                raise Refusal(
                    f"the depth of the arrays in [{name}] has exceeded the allowed limit of {self.arrays_max}"
                )
            if inner is self.root:
                _check_metadata(parts, value)
            found: Leaf | Inner | None = inner
            for number, part in enumerate(parts):
                if isinstance(found, Leaf):
                    raise Refusal(f"the existing mapping for [{found.path}] must be of type object: [{name}]")
                if found is None or not found.is_enabled:
                    break
                if number and found.is_nested:
                    raise Refusal(f"the mapping for [{found.path}] is nested and is not written by a path: [{name}]")
                above, inherited = found, found.dynamic or inherited
                found = found.fields.get(part)
            if found is None:
                self._unmapped(above, name, value, inherited)
            elif isinstance(found, Leaf):
                self._leaf(found, value)
            else:
                nested += self._members(found, value, inherited)
        return nested

    def _members(self, inner: Inner, value: Any, dynamic: str) -> int:
        if value is None or not inner.is_enabled:
            return 0
        if isinstance(value, Mapping):
            return self._object(inner, value, dynamic) + inner.is_nested
        if isinstance(value, list):
            return sum(self._members(inner, each, dynamic) for each in value)
        raise Refusal(f"object mapping for [{inner.path}] found a concrete value")

    @staticmethod
    def _unmapped(inner: Inner, name: str, value: Any, dynamic: str) -> None:
        """Checks a field that the mapping lacks, but not the type that ``dynamic: true`` would give it."""
        if (inner.dynamic if value is None else dynamic) in ("strict", "strict_allow_templates"):
            raise Refusal(
                f"mapping set to strict, dynamic introduction of [{name}] within [{inner.path}] is not allowed"
            )
        if dynamic == "true":
            _check_names({name: value})

    def _leaf(self, leaf: Leaf, value: Any) -> None:
        if leaf.type == "alias":
            raise Refusal(f"cannot write to a field alias [{leaf.path}]")
        for each in _values(leaf, value):
            if each is None and leaf.type != "constant_keyword":
                continue
            try:
                self._value(leaf, each)
            except Refusal:
                if not self.takes_malformed:
                    raise
        for other in (*leaf.more, *self._copies(leaf)):
            self._leaf(other, value)

    def _copies(self, leaf: Leaf) -> Iterator[Leaf]:
        targets = leaf.options.get("copy_to", ())
        for path in [targets] if isinstance(targets, str) else targets:
            found: Leaf | Inner | None = self.root
            for part in path.split("."):
                found = found.fields.get(part) if isinstance(found, Inner) else None
            if isinstance(found, Leaf):
                yield found._replace(options={**found.options, "copy_to": ()})

    def _value(self, leaf: Leaf, value: Any) -> None:
        check = CHECKS.get(leaf.type)
        if check is None:
            return
        options = {"coerce": self.coerces, **leaf.options}
        if (why := check(value, options)) is None:
            return
        if not is_true(leaf.options.get("ignore_malformed")):  # version 2.19 refuses objects all the same, 3.6 does not
            raise Refusal(f"failed to parse field [{leaf.path}] of type [{leaf.type}]: {why}")


# --- the mapping ------------------------------------------------------------------------------------------------------


def _inner(path: str, given: Mapping[str, Any]) -> Inner:
    dynamic = given.get("dynamic")
    text = None if dynamic is None else str(dynamic).lower()
    enabled = not is_false(given.get("enabled"))
    inner = Inner(path, {}, text, enabled, given.get("type") == "nested")
    properties = given.get("properties") or {}
    for name, field in properties.items():
        if isinstance(field, Mapping):
            _add(inner, str(name), field)
    return inner


def _add(inner: Inner, name: str, field: Mapping[str, Any]) -> None:
    """Adds a field to an object. A dot in its name makes an object of the name before the dot."""
    first, dot, rest = name.partition(".")
    path = f"{inner.path}.{first}" if inner.path else first
    if dot and first and rest:
        between = inner.fields.setdefault(first, Inner(path, {}, None, is_enabled=True, is_nested=False))
        if isinstance(between, Inner):
            _add(between, rest, field)
    elif "properties" in field or field.get("type", "object") in ("object", "nested"):
        inner.fields[name] = _inner(path, field)
    else:
        inner.fields[name] = _leaf(path, field)


def _leaf(path: str, field: Mapping[str, Any]) -> Leaf:
    more = field.get("fields") or {}
    own = tuple(_leaf(f"{path}.{name}", each) for name, each in more.items() if isinstance(each, Mapping))
    return Leaf(path, str(field.get("type")), field, own)


# --- names ------------------------------------------------------------------------------------------------------------


def _parts(name: str) -> list[str]:
    """The objects and the field of a name with dots. Raises ``Refusal`` for an impossible name."""
    if not name:
        raise Refusal("field name cannot be an empty string")
    if "." not in name:
        return [name]
    parts = name.rstrip(".").split(".") if name.strip(".") else []
    if not parts:
        raise Refusal("field name cannot contain only the character [.]")
    for part in parts:
        if not part:
            raise Refusal(f"object field starting or ending with a [.] makes object resolution ambiguous: [{name}]")
        if part.isspace():
            raise Refusal(f"object field cannot contain only whitespace: [{name}]")
    return parts


def _arrays(value: Any) -> int:
    return 1 + max(map(_arrays, value), default=0) if isinstance(value, list) else 0


def _check_metadata(parts: list[str], value: Any) -> None:
    if parts[0] in METADATA:
        raise Refusal(f"field [{parts[0]}] is a metadata field and cannot be added inside a document")
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if parts[0] == COUNT and not (is_count and len(parts) == 1) and value is not None:
        raise Refusal(f"field [{COUNT}] must be a positive integer")


def _check_names(value: Any) -> None:
    """Raises ``Refusal`` for an impossible field name, at any depth."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            if any(part.isspace() for part in _parts(name)):
                raise Refusal(f"field name cannot contain only whitespace: [{name}]")
            _check_names(member)
    elif isinstance(value, list):
        for member in value:
            _check_names(member)


def _values(leaf: Leaf, value: Any) -> Iterator[Any]:
    """The values of a field, one by one: lists are flattened, except points."""
    if not isinstance(value, list) or (leaf.type == "geo_point" and any(map(is_number, value))):
        yield value
        return
    for each in value:
        yield from _values(leaf, each)
