"""Documents of search indexes as a command prints them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.cli.grids import print_long_grid
from streamfold.cli.output import echo
from streamfold.cli.rows import name_text, text
from streamfold.derivations.search.documents import document_text, index_of, index_template, own_fields
from streamfold.derivations.search.indexes import index_fields, searches_of
from streamfold.derivations.search.local import LocalIndex, local_indexes
from streamfold.derivations.search.options import GONE, GONE_AT, options_of, shown_index
from streamfold.derivations.search.sink import Found
from streamfold.engines import Engine
from streamfold.keys.field import datetime_text
from streamfold.routes.route import Route
from streamfold.settings import Settings

COLUMNS = ("id", "document")


class DocumentSamples(NamedTuple):
    """Some documents of a search, with the names of their indexes."""

    route: Route
    found: list[tuple[str, Found]]


def local_samples(app: App, engine: Engine, settings: Settings, most: int) -> Iterator[DocumentSamples]:
    """Up to so many documents of each search in a local state."""
    routes = searches_of(app.routes)
    names = local_indexes(engine) if any(options_of(route).index.fields for route in routes) else []
    index = LocalIndex(engine)
    for route in routes:
        found = ((name, each) for name in _names(route, names, settings) for each in index.documents(name))
        yield DocumentSamples(route, list(islice(found, most)))


def _names(route: Route, names: Iterable[str], settings: Settings) -> list[str]:
    """The real names of a search's indexes, among those of a local state."""
    if not options_of(route).index.fields:
        return [index_of(route, {}, settings)]
    template = index_template(route, settings)
    return [name for name in names if index_fields(route, template, name) is not None]


def print_documents(documents: Iterable[Found], *, raw: bool = False) -> None:
    """A table of ids and fields."""
    print_long_grid(COLUMNS, ([name_text(each.id), _shown(each, raw=raw)] for each in documents))


def print_samples(samples: DocumentSamples) -> None:
    """Some documents of a search, under the name of its index."""
    route, found = samples
    echo(f"\nindex {shown_index(route)}  ({route.name})")
    if not found:
        echo("no documents")
    elif options_of(route).index.fields:
        print_long_grid(("index", *COLUMNS), ([name, name_text(each.id), _shown(each)] for name, each in found))
    else:
        print_documents(each for _, each in found)


def samples_json(samples: Iterable[DocumentSamples]) -> str:
    """Documents as a list in JSON, numbers with all their digits."""
    found = (f'{{"index":{json.dumps(name)},{json_line(each)[1:]}' for sample in samples for name, each in sample.found)
    return f"[{','.join(found)}]"


def json_line(found: Found, *, raw: bool = False) -> str:
    """A document as one JSON object, numbers with all their digits."""
    line: dict[str, Any] = {"id": found.id, "version": found.version}
    if GONE in found.body:
        line["hidden_at"] = hidden_at(found.body)
    return document_text({**line, "document": found.body if raw else own_fields(found.body)}).decode()


def hidden_at(body: Mapping[str, Any]) -> str:
    """When a document was hidden."""
    return datetime_text(datetime.fromtimestamp(int(body[GONE_AT]) / 1000, UTC))


def fields_text(fields: Mapping[str, Any]) -> str:
    """The fields of a document for a person."""
    return "  ".join(f"{name_text(name)}={text(value)}" for name, value in sorted(fields.items()))


def _shown(found: Found, *, raw: bool = False) -> str:
    fields = fields_text(found.body if raw else own_fields(found.body))
    return f"hidden since {hidden_at(found.body)}" if GONE in found.body and not raw else fields
