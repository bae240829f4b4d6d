"""Where a rebuild or a comparison works: the store, the index, and the server or local state that holds documents."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import click

from streamfold.app import App
from streamfold.batch.process import check_application
from streamfold.cli.engines import Store, application_and_settings, make_runtime, open_store, state_options
from streamfold.cli.search_servers import confirm, opened_server, search_url_option, with_search
from streamfold.derivations.search.indexes import (
    OPENED,
    Aliases,
    LocalAliases,
    SearchIndex,
    ServerAliases,
    accepts_of,
    find_index,
)
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.opensearch import COMMAND_TRIES
from streamfold.engines import Engine
from streamfold.runtime import Runtime
from streamfold.settings.loopback import is_loopback


class Asked(NamedTuple):
    """What the command line says of the index and of its places."""

    name: str
    application: str
    store: Store
    tables: tuple[str, ...]
    search_url: str | None

    @property
    def is_local(self) -> bool:
        """Whether only local files are written."""
        return self.store.engine == "embedded" and self.search_url is None


def asked_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and options that say which index is asked for: the command is given ``asked``."""

    @wraps(command)
    def asking(**given: Any) -> Any:
        asked = Asked(**{name: given.pop(name) for name in Asked._fields})
        return command(asked, **given)

    server = search_url_option(
        "The OpenSearch server. Default with --engine dynamodb: STREAMFOLD_SEARCH; else the local state."
    )
    return click.argument("name", metavar="INDEX")(state_options(server(asking)))


@dataclass(frozen=True, slots=True)
class SearchPlace:
    """An index, with all that a rebuild or a comparison of it needs."""

    app: App
    engine: Engine
    runtime: Runtime
    index: SearchIndex
    aliases: Aliases


@contextmanager
def opened_place(asked: Asked, *, writes: bool) -> Iterator[SearchPlace]:
    """Opens the store and the index that are asked for. What boto3 refuses becomes one message.

    A command that ``writes`` names new handlers in a local state; on DynamoDB only functions do.
    """
    app, settings = application_and_settings(asked.application, asked.tables)
    settings = with_search(settings, asked.search_url)
    index = find_index(app.routes, asked.name, settings)
    with _explained(asked), closing(open_store(app, settings, asked.store)) as engine:
        runtime = make_runtime(app, engine, asked.store, settings, outside=True)
        check_application(runtime, write=writes and asked.is_local)
        if asked.is_local:
            local = LocalIndex(engine, accepts_of(app.routes, settings))
            yield SearchPlace(app, engine, runtime, index, LocalAliases(local))
            return
        with opened_server(settings) as server:
            server.calls.tries = COMMAND_TRIES  # a run over all items must not end at one connection that breaks
            runtime.opened[OPENED] = server
            yield SearchPlace(app, engine, runtime, index, ServerAliases(server))


def confirm_place(asked: Asked, place: SearchPlace, *, yes: bool) -> None:
    """Asks before anything beyond this machine is written, unless ``yes``."""
    is_near = is_loopback(place.runtime.settings.search)
    if asked.is_local or (is_near and (asked.store.engine == "embedded" or asked.store.on_loopback)):
        return
    confirm(f"This writes to {place.aliases.sink}, and to the state of {place.app.name!r}.", yes=yes)


@contextmanager
def _explained(asked: Asked) -> Iterator[None]:
    if asked.store.engine == "embedded":
        yield
        return
    from streamfold.cli.clients import explained

    with explained():
        yield
