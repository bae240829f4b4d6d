"""The documents that an index has to show: what the function gives for the items that are there."""

from dataclasses import replace
from typing import Any

from streamfold.derivations.expected import Expected, History, Values
from streamfold.derivations.partition import child_fields
from streamfold.derivations.search.declared import index_fields
from streamfold.derivations.search.document import Part, Parts
from streamfold.derivations.search.encoded import document_text, own_fields, parsed
from streamfold.derivations.search.local import LocalIndex, local_indexes
from streamfold.derivations.search.make import document_id, index_of
from streamfold.derivations.search.options import options_of
from streamfold.keys.key import Key
from streamfold.records.sortable import sortable
from streamfold.routes.route import Fields, Route
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey


def expected(route: Route, history: History) -> Expected:
    """The documents of all items."""
    found = Expected()
    for item, image, fields in history.items_of(route):
        asked = _with_parts(route, history, fields)
        for document in history.called(asked, image, fields, item):
            key = (_place(route, index_of(route, fields, Settings())), document_id(route, item, fields, document), None)
            found.outside[key] = parsed(document_text(document.fields))
    return found


def _with_parts(route: Route, history: History, fields: Fields) -> Route:
    """The route whose function gets its parts, if it has any."""
    keys = options_of(route).parts
    if not keys:
        return route
    parts = Parts({key: _parts(key, history, fields) for key in keys})
    function = route.function
    assert function is not None

    def called(item: Any, **asked: Any) -> Any:
        return function(item, parts, **asked)

    return replace(route, function=called)


def _parts(key: Key, history: History, fields: Fields) -> list[Part]:
    own = {item: image for item, image in history.items.items() if image and item[0] == key.table.name}
    found = ((item, child_fields(key, fields, *item[1:])) for item in sorted(own, key=_sort))
    return [Part(own[item], own_fields) for item, own_fields in found if own_fields is not None]


def _sort(item: tuple[Any, ...]) -> str:
    return sortable(item[2])


def found_outside(route: Route, place: Any) -> dict[RowKey, Values]:
    """The documents that the local indexes of a store show to a search, hidden ones left out."""
    local = LocalIndex(place.store)
    return {
        (_place(route, index), found.id, None): own_fields(found.body)
        for index in local_indexes(place.store)
        if index_fields(route, options_of(route).index, index) is not None
        for found in local.documents(index)
    }


def _place(route: Route, index: str) -> str:
    """Where a document stands among rows."""
    return f"index {index} of {route.name}"
