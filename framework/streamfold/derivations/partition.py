"""Items of their parent's partition, as cascades remove them and documents gather them."""

from collections.abc import Mapping
from typing import Any

from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.table import merged


def check_in_partition(who: str, what: str, parent: Key, child: Key) -> None:
    """Raises ``DeclarationError`` unless every item of the child's template has one parent, in its own partition.

    ``who`` names the declaration, ``what`` the child: "the child", "the part".
    """
    if merged(child.table, parent.table) is None or child.partition.text != parent.partition.text:
        raise DeclarationError(
            f"{who} has {what} {child!r}, which is not in the partition of {parent!r}: it is found by a query of "
            f"that partition. Expected a template Key({parent.partition.text!r}, ...) of table {parent.table.name!r}."
        )
    if child.overlaps(parent):
        raise DeclarationError(
            f"{who} would reach its own parent: {child!r} takes keys of {parent!r} too. Give {what} a "
            "sort key with a literal that the parent does not have."
        )
    missing = [
        name
        for name, field in parent.types.items()
        if child.types.get(name) is None or field.spec != child.types[name].spec
    ]
    if missing:
        raise DeclarationError(
            f"{who} has {what} {child!r}, which several items of {parent!r} would share: its template must "
            f"hold every field of the parent's key. Missing: {', '.join(missing)}."
        )


def sort_prefix(child: Key, fields: Mapping[str, Any]) -> str:
    """How the sort keys of a parent's children begin; ``""`` where that cannot be told."""
    assert child.sort is not None
    text = ""
    for piece in child.sort.pieces:
        if not isinstance(piece, str) and (piece.name not in fields or piece.attribute_type != "S"):
            break
        text += piece if isinstance(piece, str) else str(piece.write(fields[piece.name]))
    return text


def child_fields(child: Key, fields: Mapping[str, Any], partition: Any, sort: Any) -> dict[str, Any] | None:
    """The fields of a key if it is one of a child of the parent with these fields, else None."""
    found = child.match_values(partition, sort)
    return found if found is not None and all(found[name] == value for name, value in fields.items()) else None
