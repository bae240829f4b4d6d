"""Documents as they are sent: what the function gives for an item, with index, id and body."""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from streamfold.derivations.search.document import Document
from streamfold.derivations.search.encoded import document_text
from streamfold.derivations.search.gather import Gathered, Root
from streamfold.derivations.search.names import (
    CODE,
    GONE,
    GONE_AT,
    NEXT,
    index_name,
    key_id,
    real_template,
    setting_name,
    shortened_id,
)
from streamfold.derivations.search.options import options_of
from streamfold.derivations.yielded import yielded
from streamfold.errors import HandlerError, KeyValueError, shown
from streamfold.keys.key_part import KeyPart
from streamfold.records.change import ItemKey
from streamfold.routes.route import Fields, Route
from streamfold.settings import Settings

DOCUMENTS_MAX = 100
"""Documents of one item: each change of it sends all of them."""
SEVERAL = (DOCUMENTS_MAX, "the most that one item may have")
CODE_DIGITS = 16


class MadeDocuments(NamedTuple):
    """What a handler gives for an item."""

    alias: str  # the real name that its documents are written through
    bodies: Mapping[str, bytes]  # documents as JSON, by id


def made(root: Root, found: Gathered, settings: Settings) -> MadeDocuments:
    """The documents of an item; none if the item is absent. Raises what the handler raises, and ``HandlerError``."""
    index = index_of(root.route, root.fields, settings)
    documents = documents_of(root.route, found, root.fields) if found.image else ()
    bodies: dict[str, bytes] = {}
    for document in documents:
        name = document_id(root.route, root.item, root.fields, document)
        if name in bodies:
            raise HandlerError(
                f"Handler {root.route.name!r} gave two documents with the id {shown(name)}: expected one, or an id= "
                'with a field that tells them apart, id="{product_id}#{language}".'
            )
        bodies[name] = _with_code(document_text(document.fields), code_of(root.route.function))
    return MadeDocuments(index, bodies)


def documents_of(route: Route, found: Gathered, fields: Fields) -> list[Document]:
    """The documents that the function gives for an item that is there."""
    more = (found.parts,) if options_of(route).parts else ()
    return yielded(route, found.image, fields, Document, more=more, most=SEVERAL)


def index_of(route: Route, fields: Fields, settings: Settings) -> str:
    """The real name of the alias that the documents of an item with these fields are written through."""
    name = index_name(index_template(route, settings), fields)
    return name if options_of(route).replaces is None else name + NEXT


def index_template(route: Route, settings: Settings) -> KeyPart:
    """The template of the real names of a search's index, as the settings have it."""
    index = options_of(route).index
    return real_template(index, settings.real_index(setting_name(index)))


def document_id(route: Route, item: ItemKey, fields: Fields, document: Document) -> str:
    """The id of a document. Raises ``HandlerError`` where the document lacks a field of the id."""
    options = options_of(route)
    if options.id is None:
        return key_id(item, names_table=options.names_table)
    try:
        return shortened_id(str(options.id.compose({**document.fields, **fields})))
    except KeyValueError as error:
        raise HandlerError(f"Handler {route.name!r} gave a document without a usable id: {error.marked}") from error


def only_id(route: Route, item: ItemKey, fields: Fields) -> str:
    """The id of an item's one document, where it follows from the item's key."""
    return document_id(route, item, fields, Document())


def hidden(at_seconds: float) -> bytes:
    """The document that stands for one that is gone."""
    return f'{{"{GONE}":true,"{GONE_AT}":{int(at_seconds * 1000)}}}'.encode()


def _with_code(body: bytes, code: str) -> bytes:
    """A document with the digest of the code that made it."""
    return body[:-1] + (b"," if len(body) > len(b"{}") else b"") + f'"{CODE}":"{code}"}}'.encode()


@lru_cache(maxsize=1000)
def code_of(function: Any) -> str:
    """A digest of a handler's source, the same wherever the code lies; empty where there is none."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return sha256(source.encode()).hexdigest()[:CODE_DIGITS]
