"""The targets of copies, checked where they are declared."""

from typing import Any

from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.table import Table


def copy_keys(sources: tuple[Key, ...], to: Any, at: str) -> tuple[Key, ...]:
    """The keys of the copies: those of the sources, in the other table.

    Raises ``DeclarationError`` for a table that cannot hold them.
    """
    if not isinstance(to, Table):
        raise DeclarationError(f'copy at {at} has to={to!r}: expected a Table, to=Table("copies", region="eu-west-1").')
    for source in sources:
        if source.table.name == to.name:
            raise DeclarationError(f"copy at {at} has to={to.name!r}, which {source!r} is of: expected another table.")
        if (source.table.attributes, source.table.delimiter) != (to.attributes, to.delimiter):
            raise DeclarationError(
                f"copy at {at} has to={to.name!r} with the key attributes {', '.join(to.attributes)} and the delimiter "
                f"{to.delimiter!r}: a copy has its item's key, so expected those of {source!r}, "
                f"{', '.join(source.table.attributes)} and {source.table.delimiter!r}."
            )
    keys = tuple(Key(source.partition.text, source.sort.text if source.sort else None, to) for source in sources)
    for key in keys:
        key.declared_at = at
    return keys
