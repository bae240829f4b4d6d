"""What differs between an index as it is declared and as the server has it.

The server tells a mapping without what it takes for granted, and every value of a setting as text.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

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
"""What a mapping need not say (measured on 2.19.6 and 3.6.0). Where types differ in it, any of their values."""
NOTHING = "nothing"
INNER = ("properties", "fields")
"""The parts of a field that hold fields."""


class IndexDifference(NamedTuple):
    """One thing that differs. ``expected`` and ``found`` are as a person reads them; None where there is nothing."""

    what: str  # "field", "mapping", "setting" or "alias"
    name: str
    expected: str | None = None
    found: str | None = None
    behind: str | None = None  # the index behind the alias, where there are several

    def __str__(self) -> str:
        where = f" of {self.behind}" if self.behind else ""
        expected, found = self.expected or NOTHING, self.found or NOTHING
        return f"{self.what} {self.name}{where}: expected {expected}, found {found}"


def mapping_differences(declared: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[IndexDifference]:
    """What differs between two mappings, field by field."""
    yield from _differences("mapping", _own(declared), _own(found))
    expected, there = dict(_fields(declared)), dict(_fields(found))
    for name, own in expected.items():
        if name not in there:
            yield IndexDifference("field", name, _type(own))
        elif _type(own) != _type(there[name]):
            yield IndexDifference("field", name, _type(own), _type(there[name]))
        else:
            yield from _differences("field", own, there[name], f"{name} ")
    if not _grows(declared):
        yield from (
            IndexDifference("field", name, None, _type(own)) for name, own in there.items() if _is_more(name, expected)
        )


def setting_differences(declared: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[IndexDifference]:
    """What differs in the settings that are declared; an index has many more. Both are under their whole names."""
    for name, value in declared.items():
        expected, there = _text(value), _text(found.get(name))
        if expected != there:
            yield IndexDifference("setting", name, expected, there)


def _differences(
    what: str, declared: Mapping[str, Any], found: Mapping[str, Any], before: str = ""
) -> Iterator[IndexDifference]:
    """What differs in what is said of a field, or of the whole mapping."""
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
    """All fields by their paths, inner ones too, with what is said of each alone."""
    for part in INNER:
        for name, field in mapping.get(part, {}).items():
            yield before + name, _own(field)
            yield from _fields(field, f"{before}{name}.")


def _own(field: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a field, or of a mapping, without its inner fields."""
    return {name: value for name, value in field.items() if name not in INNER}


def _type(own: Mapping[str, Any]) -> str:
    return str(own.get("type", "object"))


def _is_more(name: str, expected: Mapping[str, Any]) -> bool:
    """Whether a field of the server is not declared, not even as the beginning of a field's name."""
    return name not in expected and not any(each.startswith(f"{name}.") for each in expected)


def _grows(declared: Mapping[str, Any]) -> bool:
    """Whether documents may add fields to the mapping."""
    return _text(declared.get("dynamic")) not in ("false", "strict")


def _text(value: Any) -> str | None:
    """A value as the server would tell it: numbers alike however they are written, one value as a list of it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(str(_text(each)) for each in value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_text(each)}" for name, each in sorted(value.items())) + "}"
    return f"{Decimal(str(value)).normalize():f}"
