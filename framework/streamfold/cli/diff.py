"""``streamfold diff``: which rows changed code would make different, before it is deployed."""

import sys
from collections.abc import Sequence
from random import Random

import click

from streamfold.cli.application import DEFAULT_APPLICATION
from streamfold.cli.diffed import diff_report, print_diff
from streamfold.cli.engines import REPORTED, Store, state_option, store_options
from streamfold.cli.old_code import OldCode, OldPlace, old_place, opened_code
from streamfold.cli.opened import OpenedState, opened_state
from streamfold.cli.output import echo
from streamfold.cli.progress import item_progress
from streamfold.errors import SettingsError
from streamfold.lifecycle.diff import CodeDiff
from streamfold.lifecycle.sources import pages, wanted_routes
from streamfold.records.encoded import to_json
from streamfold.routes.route import Route

SAMPLE_ITEMS = 1_000
PAGE_ITEMS = 100
"""Items that the other process is told of at once."""


@click.command("diff", short_help="Show which rows changed code would make different.")
@click.argument("handlers", nargs=-1, metavar="[HANDLER...]")
@click.option(
    "--old",
    required=True,
    metavar="MODULE:NAME@PLACE",
    help="The application as it was: in a revision of the git repository you stand in, or in a folder, ./FOLDER.",
)
@click.option(
    "--new",
    default=DEFAULT_APPLICATION,
    envvar="STREAMFOLD_APP",
    show_default=True,
    show_envvar=True,
    metavar="MODULE:NAME",
    help="The application as it is, found from the folder you stand in.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=SAMPLE_ITEMS,
    show_default=True,
    metavar="N",
    help="About so many items, in random parts of the tables.",
)
@state_option
@store_options
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object, values in DynamoDB JSON.")
def command(
    handlers: tuple[str, ...],
    old: str,
    new: str,
    sample: int,
    store: Store,
    tables: tuple[str, ...],
    json_output: bool,
) -> None:
    """Show which rows, and which of their attributes, the new code would make otherwise than the old code, side by
    side, on a sample of the items. Default: all views, indexes and derived attributes of the new code.

    Items are read, and nothing is written: no row, and no state. A row that several items add to is shown with what one
    item adds to it. Handlers that raise are counted by type of error, with the key of one item.

    The old code runs in a process and a folder of its own, with the packages and the streamfold that are installed
    here. A revision is laid out by git archive.

    \b
    Exit codes:
      0  the new code makes the same rows of the sample
      1  it makes other rows, or a handler of it raises
      2  the command did not run: an option, one of the applications, git or the store is wrong

    \b
    Examples:
      streamfold diff --old handlers:app@main
      streamfold diff daily_sales --old handlers:app@v1.4 --sample 10000 --engine dynamodb --table main=shop
      streamfold diff --old handlers:app@../shop-before --json
    """
    place = _places(old, new)
    with opened_state(new, tables, store) as opened, opened_code(place) as code:
        routes = _routes(opened, handlers)
        _tell_sides(opened, code, routes)
        found = _compared(opened, code, routes, sample, shown=not json_output)
        if json_output:
            echo(to_json(diff_report(opened.app, code, found)))
        else:
            print_diff(found)
    sys.exit(REPORTED if found.differs else 0)


def _places(old: str, new: str) -> OldPlace:
    if "@" in new:
        raise SettingsError(f"--new {new!r}: expected MODULE:NAME of the code you stand in; --old takes a place too.")
    return old_place(old)


def _routes(opened: OpenedState, names: Sequence[str]) -> list[Route]:
    """The handlers to compare. Raises ``SettingsError`` for a named one that makes no rows of items alone."""
    routes = wanted_routes(opened.app, dict.fromkeys(names))
    for route in routes:
        if names and not route.kind.contributes:
            raise SettingsError(
                f"Handler {route.name!r} is of kind {route.kind}: it makes no rows that could be compared here. "
                "Expected a view, an index or derived attributes."
            )
    return [route for route in routes if route.kind.contributes]


def _tell_sides(opened: OpenedState, code: OldCode, routes: Sequence[Route]) -> None:
    """Warns of handlers that only one side has, and of code that both sides share."""
    if code.application != opened.app.name:
        raise SettingsError(
            f"The old code is of application {code.application!r}, and the new one of {opened.app.name!r}: expected "
            "one application."
        )
    declared = {route.name for route in opened.app.routes}
    for name in code.handlers:
        if name not in declared:
            echo(f"Handler {name!r} is in the old code alone: it is left out.", err=True)
    for route in routes:
        if route.name not in code.handlers:
            echo(f"Handler {route.name!r} is in the new code alone: all of its rows are new.", err=True)
    for name in code.elsewhere:
        echo(
            f"Handler {name!r} of the old code lies outside of its folder: both sides run the same code of it.",
            err=True,
        )


def _compared(opened: OpenedState, code: OldCode, routes: Sequence[Route], sample: int, *, shown: bool) -> CodeDiff:
    by = opened.explaining
    found = CodeDiff(by.app, by.engine, by.forms, [route.name for route in routes], code.rows)
    wanted = opened.keys(routes).sources(sample, Random()) if routes else iter(())  # noqa: S311 - a sample
    with item_progress("comparing", sample, shown=shown) as advance:
        for page in pages(wanted, PAGE_ITEMS):
            advance(found.page(page))
    return found
