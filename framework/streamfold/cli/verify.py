"""``streamfold verify``: whether the state agrees with what handlers make of the items now."""

import sys
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import click
from click.core import ParameterSource

from streamfold.cli.engines import REPORTED, Store, as_json, confirm_writes, state_options
from streamfold.cli.opened import OpenedState, chosen_routes, left_out, opened_state
from streamfold.cli.output import echo
from streamfold.cli.progress import item_progress
from streamfold.cli.repaired import GivenItems, RepairedItems, counts_of, print_repaired, repaired_items
from streamfold.cli.verified_exports import RUNNERS, SPARK, GivenExports, compare_exports
from streamfold.cli.verified_items import print_verified, verified_report
from streamfold.cli.verified_rows import (
    ComparedRows,
    NotCompared,
    RowsOptions,
    compared_report,
    compared_rows,
    not_compared,
    not_compared_report,
    print_compared,
    print_not_compared,
)
from streamfold.derivations.audit.kind import audit_routes
from streamfold.errors import SettingsError
from streamfold.lifecycle.other_rows import is_compared
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.sources import pages, unfilled
from streamfold.lifecycle.verify import Verified, Verifier
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route

SAMPLE_ITEMS = 10_000
TOLERANCE_SECONDS = 60.0


class VerifyOptions(NamedTuple):
    """What the command line said of the run itself."""

    sample: int | None  # items; None for all
    tolerance_seconds: float
    shown: bool  # progress, on a terminal
    every: bool  # no handler was named


@click.command("verify", short_help="Compare what the state holds of items with what handlers make of them now.")
@click.argument("handlers", nargs=-1, metavar="[HANDLER...]")
@state_options
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"About so many items, in random parts of the tables. Default: {SAMPLE_ITEMS}.",
)
@click.option("--full", is_flag=True, help="Compare all items, then all rows.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help=f"How long the stream may lag: what differs is read again after this time. Default: {TOLERANCE_SECONDS:.0f}, "
    "and 0 for a local state.",
)
@click.option("--rows", is_flag=True, help="Compare the rows themselves with what all sources add up to.")
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="[NAME=]MANIFEST",
    help="Compare exports of the tables, of one moment: the manifest-files.json of each, a file or s3://. The state "
    "table's is state=MANIFEST. May be repeated.",
)
@click.option(
    "--runner",
    type=click.Choice(RUNNERS),
    help="Who compares exports: this process (here), or Spark, which compares the rows. Default: here.",
)
@click.option(
    "--spark-master",
    metavar="URL",
    help="The master of --runner spark. Default: that of spark-submit, or this machine's cores.",
)
@click.option("--repair", is_flag=True, help="Derive the items that differ again; with --rows, correct the rows.")
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS.")
@click.option(
    "--json", "json_output", is_flag=True, help="Print one JSON object with every difference, for repair --from-verify."
)
def command(
    handlers: tuple[str, ...],
    application: str,
    store: Store,
    tables: tuple[str, ...],
    sample: int | None,
    full: bool,
    tolerance: float | None,
    rows: bool,
    exports: tuple[str, ...],
    runner: str | None,
    spark_master: str | None,
    repair: bool,
    yes: bool,
    json_output: bool,
) -> None:
    """Compare what the state holds of items with what the handlers make of them now. Default: all handlers.

    It finds lost records, partial handlers, and rows of older code. Items are read from the source tables. Items that
    are gone are found in the state. A difference is read again after the tolerance. It counts as different if neither
    the item nor the state has changed by then, and as moving otherwise. Nothing is written without --repair.

    With --full, the rows are compared too, as with --rows, once the state agrees with all items: somebody may have
    removed a row that the state holds the parts of. --repair then corrects both.

    With --rows, all items are read and folded in a temporary file. Each row is compared with the result, so rows that
    somebody changed, removed or put are found. Rows of feeds are compared with their posts and edges, attributes on
    items with the stored ones, and the newest row of each history with its item. On DynamoDB, rows that differ are
    looked at again before they count. To correct rows, run --full --repair first: with --rows, --repair reads all of
    the state and corrects rows by it.

    The last line names what was not compared, with the command that compares it.

    With --export, exports to S3 are compared, which costs no read units: the rows with what the items make, and with an
    export of the state also the state with the items. Rows of feeds are compared with their posts and edges. Handlers
    that cannot be compared are named, with the reason. All exports must be of one moment. Records that the stream had
    not brought by then show as differences.

    \b
    Outcomes:
      equal      the state agrees with the item
      different  it does not, and neither changes
      moving     it changed whenever it was looked at
      pending    they agree, and a step left rows to be finished: --repair finishes them
      failed     the handler raises on the item

    \b
    Exit codes:
      0  nothing is different, and nothing failed
      1  something is different or failed, even if it was repaired
      2  the command stopped early: an option, the application, the store or a source table is wrong

    \b
    Examples:
      streamfold verify
      streamfold verify daily_sales --full --engine dynamodb --table main=shop --json > report.json
      streamfold verify daily_sales --rows --engine dynamodb --table main=shop
      streamfold verify --export export/manifest-files.json --export state=state/manifest-files.json
      streamfold verify --sample 100000 --repair --yes --engine dynamodb --table main=shop
    """
    if full and sample is not None:
        raise SettingsError("--full compares all items, and --sample some: give one of them.")
    if yes and not repair:
        raise SettingsError("--yes belongs to --repair: nothing is written without it.")
    if exports:
        named = [name for name in ("state", "engine", "endpoint_url") if _is_given(name)]
        if named:
            option = "--" + named[0].replace("_", "-")
            raise SettingsError(
                f"--export compares exports with each other, and {option} names a store, which is not looked at: leave "
                "it out. The state at the moment of the exports is --export state=MANIFEST, and a store is compared by "
                "verify without --export."
            )
        if rows or repair or full or sample is not None or tolerance is not None:
            raise SettingsError("--export compares all of the exports and repairs none: leave the other options out.")
        given = GivenExports(application, tables, exports, runner == SPARK, spark_master)
        sys.exit(compare_exports(given, handlers, json_output=json_output))
    if runner or spark_master:
        raise SettingsError("--runner compares exports: expected --export too.")
    if rows and (full or sample is not None):
        raise SettingsError("--rows compares all rows: leave --full and --sample out.")
    with opened_state(application, tables, store) as opened:
        if repair:
            confirm_writes(opened.engine, opened.store, yes=yes)
        tolerance_seconds = tolerance if tolerance is not None else 0 if opened.local else TOLERANCE_SECONDS
        if rows:
            wanted = RowsOptions(tolerance_seconds, repair, every=not handlers)
            sys.exit(_run_rows(opened, _routes_with_rows(opened, handlers), wanted, json_output=json_output))
        routes = [route for route in chosen_routes(opened, handlers) if _comparable(route, named=bool(handlers))]
        items = None if full else sample or SAMPLE_ITEMS
        options = VerifyOptions(items, tolerance_seconds, not json_output, every=not handlers)
        sys.exit(_run(opened, routes, options, repair=repair))


def _is_given(option: str) -> bool:
    """Whether an option stands on the command line."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def _run_rows(opened: OpenedState, routes: Sequence[Route], wanted: RowsOptions, *, json_output: bool) -> int:
    found = compared_rows(opened, routes, wanted)
    if json_output:
        echo(as_json(compared_report(opened.app, found)))
    else:
        print_compared(found)
        print_not_compared(found.left)
    return found.exit_code


def _run(opened: OpenedState, routes: Sequence[Route], options: VerifyOptions, *, repair: bool) -> int:
    found = _verified(opened, routes, options)
    items = GivenItems.each_once(each.item for each in (*found.different, *found.pending))
    wanted = repair and items.number > 0
    repaired = repaired_items(opened, routes, items, dry_run=False, shown=options.shown) if wanted else None
    rows, left = None, not_compared(opened, routes, every=options.every, rows=False)
    # Rows may be wrong though the state agrees with all items. Where it does not, rows follow once it does.
    if routes and options.sample is None and (repair or not found.different):
        rows = compared_rows(opened, routes, RowsOptions(options.tolerance_seconds, repair, every=False))
    elif routes:
        left.append(NotCompared(None, "the rows themselves", "streamfold verify --rows"))
    if options.shown:
        _print(opened, found, repaired)
        if rows is not None:
            print_compared(rows)
        print_not_compared(left)
    else:
        _print_json(opened, routes, found, (repaired, rows, left))
    return REPORTED if found.different or found.failed or (rows and rows.exit_code) else 0


def _comparable(route: Route, *, named: bool) -> bool:
    """Whether the ledger holds what a handler made of items. Raises ``SettingsError`` for a named one of others."""
    if named and not route.kind.contributes:
        raise SettingsError(
            f"Handler {route.name!r} is of kind {route.kind}: what it made of an item is not in the state, and cannot "
            "be compared with the item. streamfold repair derives it again from the item."
        )
    return route.kind.contributes


def _routes_with_rows(opened: OpenedState, names: Sequence[str]) -> list[Route]:
    """The routes whose rows are compared. Raises ``SettingsError`` as ``chosen_routes``, and for a named one of others.

    Rows of histories follow from changes: their handlers are no others' that lead items.
    """
    app = opened.app
    alone = {route.name: route for route in audit_routes(app) if is_compared(app, route)}
    for name in names:
        if name in alone and (why := left_out(opened, alone[name])):
            raise SettingsError(f"Handler {name!r} {why}: its rows are not kept up to date.")
    others = [name for name in names if name not in alone]
    found = chosen_routes(opened, others) if others or not names else []
    for route in found if names else ():
        _ = is_compared(app, route) or _comparable(route, named=True)
    found = [route for route in found if route.kind.contributes or is_compared(app, route)]
    return found + [route for name, route in alone.items() if name in names or not (names or left_out(opened, route))]


def _verified(opened: OpenedState, routes: Sequence[Route], options: VerifyOptions) -> Verified:
    led = Pages(opened.runtime, {route.name for route in routes}, dry_run=True)
    verifier = Verifier(led, options.tolerance_seconds)
    with item_progress("comparing", options.sample, shown=options.shown) as advance:
        for page in pages(_items(opened, routes, options)):
            verifier.look(page)
            advance(len(page))
        verifier.settle()
    return verifier.found


def _items(opened: OpenedState, routes: Sequence[Route], options: VerifyOptions) -> Iterator[ItemKey]:
    if not routes:
        return iter(())
    keys = opened.keys(routes)
    return keys.all() if options.sample is None else keys.sample(options.sample, Random())  # noqa: S311 - a sample


def _print(opened: OpenedState, found: Verified, repaired: RepairedItems | None) -> None:
    why = unfilled(opened.manifest, opened.app.routes)
    print_verified(found, why)
    if (found.pending or any(each.handler not in why for each in found.different)) and repaired is None:
        echo("Next: streamfold explain --item shows one of them; the same command with --repair mends them.")
    if repaired is not None:
        print_repaired(opened.app, repaired, json_output=False)


def _print_json(
    opened: OpenedState,
    routes: Sequence[Route],
    found: Verified,
    done: tuple[RepairedItems | None, ComparedRows | None, Sequence[NotCompared]],
) -> None:
    repaired, rows, left = done
    report = verified_report(opened.app, [route.name for route in routes], found)
    counts = None if repaired is None else counts_of(opened.app, repaired)
    compared = {} if rows is None else {"rows": compared_report(opened.app, rows)}
    echo(as_json({**report, "repaired": counts, **compared, **not_compared_report(left)}))
