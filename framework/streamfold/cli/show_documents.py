"""``streamfold show --index``: documents, as searches see them, or with those that are hidden."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from streamfold.app import App
from streamfold.cli.documents import json_line, print_documents
from streamfold.cli.engines import Store, check_names, make_settings, open_store
from streamfold.cli.output import echo
from streamfold.cli.rows import print_some
from streamfold.cli.search_servers import opened_server, with_search
from streamfold.derivations.search.indexes import find_index
from streamfold.derivations.search.local import LocalIndex
from streamfold.settings import Settings

if TYPE_CHECKING:
    from streamfold.derivations.search.sink import Found, Sink


class Place(NamedTuple):
    """Where documents are: on a server, or in a local state."""

    store: Store
    search_url: str | None
    tables: tuple[str, ...]


class ShownAs(NamedTuple):
    """Which documents are shown, and how."""

    limit: int | None
    hidden: bool
    raw: bool
    json_output: bool


def show_documents(app: App, name: str, place: Place, shown: ShownAs) -> None:
    """Prints the documents of an index. Raises ``SettingsError`` for a name that is none."""
    settings = with_search(make_settings(place.tables), place.search_url)
    check_names(app, settings)
    index = find_index(app.routes, name, settings)
    alias = index.alias
    with opened_sink(app, settings, place) as sink:
        sink.check(alias)
        found = sink.documents(alias, hidden=shown.hidden)
        first = next(found, None)
        _print(found if first is None else chain([first], found), shown)
    if first is not None and not shown.json_output:
        echo(
            f"Documents of search {index.route.name!r}, each made of the item of its id: streamfold explain ID --index "
            f"{name} shows items and versions.",
            err=True,
        )


@contextmanager
def opened_sink(app: App, settings: Settings, place: Place) -> Iterator["Sink"]:
    """The server that documents are read from, or the local state."""
    if place.search_url is not None or place.store.engine == "dynamodb":
        with opened_server(settings) as server:
            yield server
        return
    with closing(open_store(app, settings, place.store)) as engine:
        yield LocalIndex(engine)


def _print(found: Iterator["Found"], shown: ShownAs) -> None:
    if shown.json_output:
        for each in islice(found, shown.limit):
            echo(json_line(each, raw=shown.raw))
        return
    print_some(found, shown.limit, partial(print_documents, raw=shown.raw), "No documents.")
