"""What to do after a replay: the commands that show what it made."""

from collections.abc import Mapping
from shlex import quote
from typing import NamedTuple

from streamfold.app import App
from streamfold.cli.application import DEFAULT_APPLICATION
from streamfold.cli.engines import DEFAULT_STATE, Store
from streamfold.derivations.search.declared import searches_of
from streamfold.derivations.search.options import options_of, shown_index


class Advice(NamedTuple):
    """The options of further commands; None where nothing was kept."""

    application: str
    store: str | None
    anew: str | None  # how to begin anew
    documents: str | None = None
    parked: str | None = None  # the parking place and its store, for redrive


class Written(NamedTuple):
    """Where a replay wrote to."""

    application: str  # the option
    store: Store
    real_names: Mapping[str, str]  # of tables on DynamoDB
    search_url: str | None
    parking: str | None = None  # the place of parked records


def advice(app: App, written: Written) -> Advice:
    """The options with which other commands find this application and what a replay made."""
    store, place = written.store, written.application
    named = f" --app {place}" if place != DEFAULT_APPLICATION else ""
    documents = _documents(app, written)
    if store.engine == "embedded":
        anew = "--fresh starts" if store.state is not None else None
        kept = _kept(store)
        return Advice(named, kept, anew, documents, _parked(written, kept))
    at = f" --endpoint-url {store.endpoint_url}" if store.endpoint_url else ""
    tables = "".join(f" --table {name}={real_name}" for name, real_name in written.real_names.items())
    real = f" --engine dynamodb{at}{tables}"
    return Advice(named, real, "a replay onto empty tables starts", documents, _parked(written, real))


def _kept(store: Store) -> str | None:
    """The option that names the state file, if there is one."""
    if store.state is None:
        return None
    return "" if store.state == DEFAULT_STATE else f" --state {store.state}"


def _parked(written: Written, kept: str | None) -> str | None:
    """The place and the options with which parked records are redriven."""
    return None if written.parking is None or kept is None else f" {quote(written.parking)}{kept}"


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
