"""Roots: the items whose handlers gather parts, and what is refused of an application that gathers."""

from collections.abc import Iterable

from streamfold.errors import DeclarationError
from streamfold.keys.key import check_in_partition
from streamfold.records.change import Change, ItemKey
from streamfold.routes.parts import DeclaredPart
from streamfold.routes.route import Fields, Route


def root_of(route: Route, fields: Fields) -> tuple[ItemKey, Fields]:
    """The root of a part with these fields of its key, and the fields of the root's key."""
    (source,) = route.sources
    own = {name: fields[name] for name in source.types}
    return (source.table.name, *source.compose(own)), own


def changed_parts(route: Route, item: ItemKey) -> list[DeclaredPart]:
    """How a handler gathers an item."""
    return [each for each in route.parts if each.key.takes(item)]


def count_for_root(route: Route, item: ItemKey, changes: Iterable[Change]) -> bool:
    """Whether a part changed in what its handler reads. Without both images it may have. Raises ``RecordError``."""
    parts = changed_parts(route, item)
    return any(
        not (change.has_old and change.has_new) or not all(each.agrees(change.old, change.new) for each in parts)
        for change in changes
    )


def check_gathering(route: Route, routes: Iterable[Route]) -> None:
    """Raises ``DeclarationError`` for parts that are not of the root's partition."""
    if not route.parts:
        return
    who, (root,) = f"{route.kind.name.capitalize()} {route.name!r} ({route.declared_at})", route.sources
    for part in route.parts:
        try:
            check_in_partition(who, "the part", root, part.key)
        except DeclarationError as error:
            if part.key.table.name == root.table.name and part.key.partition.text == root.partition.text:
                raise
            raise DeclarationError(
                f"{error} Let an index put rows into this partition, router.index({part.key!r}, into=...), and gather "
                "these."
            ) from None
        for writer in routes if route.kind.contributes else ():
            if (why := writer.kind.no_referent(writer)) and any(part.key.overlaps(key) for key in writer.into):
                raise DeclarationError(
                    f"{who} gathers {part.key!r}, whose rows {writer.name!r} ({writer.declared_at}) writes: "
                    f"{why.replace('Look up', 'Gather')}"
                )
