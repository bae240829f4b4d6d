"""What to do after a replay: the commands that show what it made."""

from collections.abc import Mapping
from typing import NamedTuple

from streamfold.app import App
from streamfold.cli.application import DEFAULT_APPLICATION
from streamfold.cli.engines import DEFAULT_STATE, Store
from streamfold.derivations.search.declared import searches_of
from streamfold.derivations.search.options import options_of, shown_index


class Advice(NamedTuple):
    """What to do next: the options of further commands that name the application, the store and the documents, and how
    to begin anew; None where nothing was kept.
    """

    application: str
    store: str | None
    anew: str | None
    documents: str | None = None


class Written(NamedTuple):
    """Where a replay wrote to."""

    application: str  # the option
    store: Store
    real_names: Mapping[str, str]  # of tables on DynamoDB
    search_url: str | None


def advice(app: App, written: Written) -> Advice:
    """The options with which other commands find this application and what a replay made."""
    store, place = written.store, written.application
    named = f" --app {place}" if place != DEFAULT_APPLICATION else ""
    documents = _documents(app, written)
    if store.engine == "embedded":
        anew = "--fresh starts" if store.state is not None else None
        return Advice(named, _kept(store), anew, documents)
    at = f" --endpoint-url {store.endpoint_url}" if store.endpoint_url else ""
    tables = "".join(f" --table {name}={real}" for name, real in written.real_names.items())
    return Advice(named, f" --engine dynamodb{at}{tables}", "a replay onto empty tables starts", documents)


def _kept(store: Store) -> str | None:
    """The option that names the state file, if there is one."""
    if store.state is None:
        return None
    return "" if store.state == DEFAULT_STATE else f" --state {store.state}"


def _documents(app: App, written: Written) -> str | None:
    """The options with which the documents of the first search are shown; None if none were kept."""
    route = next(iter(searches_of(app.routes)), None)
    if route is None:
        return None
    place = f" --search-url {written.search_url}" if written.search_url else _kept(written.store)
    if place is None:
        return None
    name = "NAME" if options_of(route).index.fields else shown_index(route)
    return f" --index {name}{place}"
