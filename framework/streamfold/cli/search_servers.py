"""The search server that a command works on: its option, its settings, and whether it may be written to."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamfold.app import App
from streamfold.cli.application import application_option
from streamfold.cli.engines import application_and_settings
from streamfold.cli.output import can_ask, echo
from streamfold.derivations.search.indexes import SearchIndex, find_index, searches_of
from streamfold.errors import SettingsError
from streamfold.settings import Settings
from streamfold.settings.loopback import is_loopback
from streamfold.settings.readers import READERS

if TYPE_CHECKING:
    from streamfold.derivations.search.opensearch import OpenSearchIndex

OPTION = "--search-url"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NamedIndex:
    """An index that the command line names, and the settings of its server."""

    index: SearchIndex
    settings: Settings


def search_url_option(text: str) -> Callable[[F], F]:
    """The option ``--search-url``."""
    return click.option(OPTION, "search_url", metavar="URL", help=text)


def index_options(command: F) -> F:
    """What the commands about one index have: its name, the application, the server."""
    for option in (
        search_url_option("The OpenSearch server. Default: STREAMFOLD_SEARCH."),
        application_option,
        click.argument("name", metavar="INDEX"),
    ):
        command = option(command)
    return command


def named_index(application: str, name: str, search_url: str | None) -> NamedIndex:
    """The index that the command line names. Raises ``SettingsError`` for one that the application does not have."""
    app, settings = application_and_settings(application, ())
    settings = with_search(settings, search_url)
    return NamedIndex(find_index(app.routes, name, settings), settings)


def with_search(settings: Settings, url: str | None) -> Settings:
    """The settings with the server of ``--search-url``. Raises ``SettingsError`` for what is no URL of a server."""
    if url is None:
        return settings
    return settings._replace(search=READERS["search"](OPTION, url), origins={**settings.origins, "search": OPTION})


@contextmanager
def opened_server(settings: Settings) -> Iterator["OpenSearchIndex"]:
    """The search server of the settings. Raises ``SettingsError`` where none is set."""
    from streamfold.derivations.search.opensearch import open_search

    if settings.search is None:
        raise SettingsError(f"No search server is named: expected {OPTION} https://HOST, or STREAMFOLD_SEARCH.")
    with closing(open_search(settings)) as server:
        yield server


@contextmanager
def documents_to_server(app: App, settings: Settings) -> Iterator[dict[str, "OpenSearchIndex"]]:
    """What a runtime has opened that writes its documents to the server of the settings.

    Raises ``SettingsError`` for an application without a search.
    """
    from streamfold.derivations.search.indexes import OPENED

    if not searches_of(app.routes):
        raise SettingsError(f"{OPTION} is where documents go: the application has no search.")
    with opened_server(settings) as server:
        yield {OPENED: server}


def confirm_documents(app: App, settings: Settings, *, yes: bool) -> None:
    """Says that documents are written to a server, if any are and it is no loopback, and asks unless ``yes``.

    Raises ``SettingsError`` where nobody can be asked.
    """
    if settings.search and searches_of(app.routes) and not is_loopback(settings.search):
        confirm(f"This writes documents to {settings.search}.", yes=yes)


def confirm(text: str, *, yes: bool) -> None:
    """Says what happens, and asks unless ``yes``. Raises ``SettingsError`` where nobody can be asked."""
    echo(text, err=True)
    if yes:
        return
    if not can_ask():
        raise SettingsError("Nobody can be asked for confirmation here: give --yes to go on.")
    click.confirm("Go on?", abort=True, err=True)
