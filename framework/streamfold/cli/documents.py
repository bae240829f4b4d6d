"""Documents of searches: how commands read, show and explain them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.app import App
from streamfold.cli.items import item_text, made_of_object, name_text, values_text
from streamfold.cli.output import Grid, Note, Printed, Report, some_lines
from streamfold.cli.session import Session
from streamfold.derivations.derivation import searches
from streamfold.derivations.search.documents import document_text, index_of, index_template, own_fields
from streamfold.derivations.search.indexes import OPENED, find_index, index_fields
from streamfold.derivations.search.local import LocalIndex, local_indexes
from streamfold.derivations.search.maintenance import ExplainedDocument, explain_document
from streamfold.derivations.search.options import GONE, GONE_AT, options_of, shown_index
from streamfold.derivations.search.sink import Found, Sink
from streamfold.engines.protocol import Engine
from streamfold.errors import SettingsError, printable
from streamfold.keys.field import datetime_text
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.settings import Settings

if TYPE_CHECKING:
    from streamfold.derivations.search.opensearch import OpenSearchIndex


def open_server(opened: Session) -> "OpenSearchIndex":
    from streamfold.derivations.search.opensearch import open_search  # its client, where a server is asked

    if opened.settings.search is None:
        raise SettingsError("No search server is named: expected --search-url https://HOST, or STREAMFOLD_SEARCH.")
    found: OpenSearchIndex = opened.close_later(open_search(opened.settings))
    return found


def sink_of(opened: Session) -> Sink:
    if opened.given.search_url is not None or not opened.store.is_local:
        return open_server(opened)
    return LocalIndex(opened.engine)


def documents_to_server(opened: Session) -> None:
    if not searches(opened.app.routes):
        raise SettingsError("--search-url is the server of documents: the application has no search.")
    opened.locations[OPENED] = open_server(opened)


def document_report(opened: Session) -> Report:
    index, sink = find_index(opened.app.routes, opened.given.index, opened.settings), sink_of(opened)
    sink.check(index.alias)
    found = explain_document(opened.runtime, sink, index.route, index.alias, opened.given.partition)
    return Report(_explained_lines(found), _explained_object(opened.app, found), not found.agrees)


def _explained_lines(found: ExplainedDocument) -> Iterator[Printed]:
    what = "is a document" if found.version is not None else "would be a document"
    yield f"{name_text(found.id)} {what} of index {found.alias}, made by search {found.route.name!r}"
    if found.version is not None:
        yield f"  version  {found.version}, the number of the run that wrote it"
    if not found.made_of:
        yield "Its id does not name its item: the id was cut, or is not of this search."
        return
    yield f"  run      {found.run if found.run is not None else 'none'}, the last of its item in the state"
    cells = [[each.role, item_text(each.item), "" if each.exists else "does not exist now"] for each in found.made_of]
    yield Grid(("", "made of", ""), cells)
    if found.error is not None:
        yield printable(f"The handler raises {type(found.error).__name__}: {found.error}")
    elif found.wrong:
        yield f"It is {found.wrong[0]}: streamfold search verify --repair corrects it."
    elif found.version is None:
        yield "There is no such document, and its handler makes none."
    else:
        yield "The document is what its handler makes of the item now."


def _explained_object(app: Application, found: ExplainedDocument) -> dict[str, Any]:
    return {
        "document": found.id,
        "kind": "search",
        "index": found.alias,
        "handler": found.route.name,
        "version": found.version,
        "run": found.run,
        "made_of": [made_of_object(app, each) for each in found.made_of],
        "differences": [*found.wrong],
        "error": None if found.error is None else f"{type(found.error).__name__}: {found.error}",
    }


def documents_report(opened: Session) -> Report:
    given = opened.given
    index = find_index(opened.app.routes, given.index, opened.settings)
    sink = sink_of(opened)
    sink.check(index.alias)
    found = sink.documents(index.alias, hidden=given.hidden)
    made = (
        f"Documents of search {index.route.name!r}, each made of the item of its id: streamfold explain ID --index "
        f"{given.index} shows items and versions."
    )

    def lines() -> Iterator[Printed]:
        any_document = False
        for line in some_lines(found, given.limit, partial(_documents_grid, raw=given.raw), "documents"):
            any_document = any_document or isinstance(line, Grid)
            yield line
        if any_document:
            yield Note(made)

    return Report(lines(), (document_json(each, raw=given.raw) for each in islice(found, given.limit)))


def _documents_grid(documents: Iterable[Found], *, raw: bool = False) -> Grid:
    cells = ([name_text(each.id), _document_text(each, raw=raw)] for each in documents)
    return Grid(("id", "document"), cells, long=True)


def _document_text(found: Found, *, raw: bool = False) -> str:
    if GONE in found.body and not raw:
        return f"hidden since {_hidden_at(found.body)}"
    return values_text(dict(sorted((found.body if raw else own_fields(found.body)).items())))


def document_json(found: Found, *, raw: bool = False) -> str:
    """A document as one JSON object, numbers with all their digits."""
    line: dict[str, Any] = {"id": found.id, "version": found.version}
    if GONE in found.body:
        line["hidden_at"] = _hidden_at(found.body)
    return document_text({**line, "document": found.body if raw else own_fields(found.body)}).decode()


def _hidden_at(body: Mapping[str, Any]) -> str:
    return datetime_text(datetime.fromtimestamp(int(body[GONE_AT]) / 1000, UTC))


def typed_index(route: Route) -> str:
    return "NAME" if options_of(route).index.fields else shown_index(route)


class DocumentSamples(NamedTuple):
    """Some documents of a search, with the names of their indexes."""

    route: Route
    found: list[tuple[str, Found]]

    def fields(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The name of the index, the id and the fields of each document."""
        return ((name, each.id, own_fields(each.body)) for name, each in self.found)

    def lines(self) -> Iterator[Printed]:
        yield f"\nindex {shown_index(self.route)}  ({self.route.name})"
        if not self.found:
            yield "no documents"
        elif options_of(self.route).index.fields:
            cells = ([name, name_text(each.id), _document_text(each)] for name, each in self.found)
            yield Grid(("index", "id", "document"), cells, long=True)
        else:
            yield _documents_grid(each for _, each in self.found)

    def json(self) -> Iterator[str]:
        return (f'{{"index":{json.dumps(name)},{document_json(each)[1:]}' for name, each in self.found)


def local_samples(app: App, engine: Engine, settings: Settings, most: int) -> Iterator[DocumentSamples]:
    routes = searches(app.routes)
    known = local_indexes(engine) if any(options_of(route).index.fields for route in routes) else []
    index = LocalIndex(engine)
    for route in routes:
        if options_of(route).index.fields:
            template = index_template(route, settings)
            names = [name for name in known if index_fields(route, template, name) is not None]
        else:
            names = [index_of(route, {}, settings)]
        found = ((name, each) for name in names for each in index.documents(name))
        yield DocumentSamples(route, list(islice(found, most)))
