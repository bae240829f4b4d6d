"""``streamfold search``: the indexes that searches write to, on their server."""

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from streamfold.cli import search_purge, search_rebuild, search_verify
from streamfold.cli.engines import REPORTED, as_json
from streamfold.cli.output import echo
from streamfold.cli.search_servers import NamedIndex, index_options, named_index, opened_server
from streamfold.errors import printable

if TYPE_CHECKING:
    from streamfold.derivations.search.indexes import IndexDifference, SearchIndex, Tried


@click.group("search", short_help="Create, compare, rebuild and tidy the indexes of searches.")
def command() -> None:
    """Create the indexes that searches write to, compare them with their declaration and with the items, build
    them anew beside the live ones, and remove what was hidden long ago.

    INDEX is the name that the search declares; in a template like songs-{tenant} a value stands for each field. The
    server is the one that STREAMFOLD_SEARCH or --search-url names.

    \b
    Examples:
      streamfold search create products
      streamfold search diff songs-acme --json
      streamfold search verify products --state shop.db
      streamfold search rebuild products --state shop.db
      streamfold search purge products --dry-run
    """


@command.command("create", short_help="Create an index with its mapping, its settings and its alias.")
@index_options
@click.option("--dry-run", is_flag=True, help="Print the request that would create the index, and send nothing.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def create(name: str, application: str, search_url: str | None, dry_run: bool, json_output: bool) -> None:
    """Create the index INDEX~000001 as the search declares it, and the alias INDEX, which hides documents of items
    that are gone. Documents are written and read through the alias.

    Then a document is written and removed to try whether the server refuses older versions. Exit code 1 where it does
    not: documents could then be older than their items.

    \b
    Examples:
      streamfold search create products
      streamfold search create products --dry-run
    """
    from streamfold.derivations.search.indexes import create_index, try_versions

    named = named_index(application, name, search_url)
    if dry_run:
        _print_request(named.index, json_output=json_output)
        return
    with opened_server(named.settings) as server:
        create_index(named.index, server)
        tried = try_versions(named.index, server, time.time())
    _print_created(named, tried, json_output=json_output)
    sys.exit(0 if tried.holds else REPORTED)


@command.command("diff", short_help="Show what differs between the declaration and the server.")
@index_options
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def diff(name: str, application: str, search_url: str | None, json_output: bool) -> None:
    """Show what differs between the index that a search declares and the server: fields of the mapping, the settings
    that are declared, and the alias with its filter. Exit code 1 when something differs.

    \b
    Examples:
      streamfold search diff products
      streamfold search diff products --search-url https://search.example.com --json
    """
    from streamfold.derivations.search.indexes import differences

    named = named_index(application, name, search_url)
    with opened_server(named.settings) as server:
        found = differences(named.index, server)
    _print_differences(named, found, json_output=json_output)
    sys.exit(REPORTED if found else 0)


command.add_command(search_purge.command)
command.add_command(search_rebuild.command)
command.add_command(search_verify.command)


REMEDY = (
    "Fields and settings that are missing can be added to the index as it is, and hold for documents that are written "
    "from then on; other types need a new index."
)
UNSAFE = (
    "An older run could write over a newer one, and a document be older than its item. Expected a server that refuses "
    "version 4 of a document that it holds in version 5, as domains of OpenSearch Service do. The index was created, "
    "and is empty: delete it, and use another server."
)


def _print_request(index: "SearchIndex", *, json_output: bool) -> None:
    request = {"method": "PUT", "path": f"/{index.first}", "body": index.body}
    if json_output:
        echo(as_json(request))
    else:
        echo(f"PUT /{index.first}\n{json.dumps(index.body, indent=2, ensure_ascii=False)}")


def _print_created(named: NamedIndex, tried: "Tried", *, json_output: bool) -> None:
    index = named.index
    if json_output:
        found = {"index": index.first, "alias": index.alias, "versions_hold": tried.holds, "why": tried.why}
        echo(as_json(found))
        return
    echo(f"Created index {index.first} with alias {index.alias} on {named.settings.search}.")
    if tried.holds:
        echo("The server refuses older versions of a document: none will be older than its item.")
    else:
        echo(f"The server does not keep versions of documents as it has to. {tried.why}\n{UNSAFE}", err=True)


def _print_differences(named: NamedIndex, found: list["IndexDifference"], *, json_output: bool) -> None:
    alias, where = named.index.alias, named.settings.search
    if json_output:
        echo(as_json({"alias": alias, "differences": [difference._asdict() for difference in found]}))
        return
    for difference in found:
        echo(printable(str(difference)))
    if found:
        echo(f"\nIndex {alias} on {where} differs from its declaration. {REMEDY}", err=True)
    else:
        echo(f"Index {alias} on {where} is as declared.")
