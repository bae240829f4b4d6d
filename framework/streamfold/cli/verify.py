"""``streamfold verify`` compares the state, the rows or exports with the rows that handlers make of the items now."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.cli import repair, shell
from streamfold.cli.explain_item import contribution_text
from streamfold.cli.items import item_object, item_text
from streamfold.cli.jobs import followed_chains
from streamfold.cli.output import BOTH, Printed, Report, counted, difference_lines, item_progress, warn
from streamfold.cli.session import Session, chosen_routes, left_out
from streamfold.derivations.derivation import audits, derivation
from streamfold.derivations.expected import ItemFailed, RowsCorrected, VerifiedRows
from streamfold.errors import SettingsError
from streamfold.keys.table import MAIN, STATE
from streamfold.ledger.contribution import stored_rows
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.other_rows import (
    OtherRows,
    VerifiedExports,
    check_exports,
    exported_routes,
    is_compared,
    verify_exports,
)
from streamfold.lifecycle.page import Difference, Pages
from streamfold.lifecycle.row_repair import RowCorrection
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.sources import pages, unfilled, wanted_routes
from streamfold.lifecycle.verify import Verified, Verifier, idle_backlinks
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.settings import Settings

SAMPLE_ITEMS = 10_000
TOLERANCE_SECONDS = 60.0
HERE, SPARK = "here", "spark"
STATE_NAME = "state"
"""The name of the state table in ``--export``."""
NEXT_ROWS = (
    "Next: streamfold explain shows the sources of one; verify --full --repair, then --rows --repair, corrects them."
)
NEXT_ITEMS = "Next: streamfold explain --item shows one of them; the same command with --repair corrects them."


class NotCompared(NamedTuple):
    """A handler or some rows that were not compared."""

    handler: str | None  # None: rows of all handlers
    why: str
    command: str | None = None  # the command that compares it, if there is one

    @property
    def text(self) -> str:
        what = self.why if self.handler is None else f"handler {self.handler!r} ({self.why})"
        return f"{what}: {self.command}" if self.command else what


class ComparedRows(NamedTuple):
    """Rows that were compared, and with ``--repair`` corrected."""

    handlers: Sequence[str]
    found: VerifiedRows
    corrected: RowsCorrected | None
    not_compared: Sequence[NotCompared]
    unfilled: Mapping[Route, str]  # handlers that no backfill has filled, with the reason

    @property
    def differs(self) -> bool:
        return bool(self.found.different or self.found.failed)


@shell.command(
    "verify",
    "Compare the state with the rows that handlers make of the items now.",
    shell.HANDLERS,
    shell.STATE_OPTIONS,
    shell.number("--sample", f"About N items, from random positions of the tables. Default: {SAMPLE_ITEMS}.", 1),
    shell.flag("--full", "Compare all items, then all rows."),
    shell.decimal(
        "--tolerance",
        "SECONDS",
        "The longest lag of the stream: differences are read again after this time. Default: "
        f"{TOLERANCE_SECONDS:.0f}, and 0 for a local state.",
        0,
    ),
    shell.flag("--rows", "Compare the rows themselves with the sums of all their sources."),
    shell.value(
        "--export",
        "[NAME=]MANIFEST",
        "Compare exports of the tables, of one moment: the manifest-files.json of each, a file or s3://. The state "
        "table's is state=MANIFEST. May be repeated.",
        "exports",
        multiple=True,
    ),
    shell.choice(
        "--runner",
        (HERE, SPARK),
        "Where exports are compared: in this process (here), or on Spark, which compares rows only. Default: here.",
    ),
    shell.SPARK_MASTER,
    shell.flag("--repair", "Derive the items that differ again; with --rows, correct the rows."),
    shell.exclusive("--full", "--sample", why="--full compares all items, and --sample some: give one of them."),
    shell.belongs("--yes", "--repair", why="--yes belongs to --repair: nothing is written without it."),
    shell.refuses(
        "--export",
        *("--state", "--engine", "--endpoint-url"),
        why="--export compares exports with each other, and {other} names a store, which is not read: leave it out. "
        "For the state at the moment of the exports, give --export state=MANIFEST. verify without --export compares a "
        "store.",
    ),
    shell.refuses(
        "--export",
        *("--rows", "--repair", "--full", "--sample", "--tolerance"),
        why="--export compares all of the exports and repairs none: leave the other options out.",
    ),
    shell.belongs("--runner", "--export", why="--runner compares exports: expected --export too."),
    shell.belongs("--spark-master", "--export", why="--runner compares exports: expected --export too."),
    shell.belongs("--spark-master", "--runner spark"),
    shell.refuses("--rows", "--full", "--sample", why="--rows compares all rows: leave --full and --sample out."),
    shell.yes_flag(),
    shell.json_flag("Print one JSON object with every difference, for repair --from-verify."),
    checks=True,
)
def verify(opened: Session) -> Report:
    """Compare the contributions that the state holds of items with those that the handlers make of the items now.
    Default: all handlers.

    The command finds lost records, partial handlers, and rows of older code. Items are read from the source tables.
    Items that are gone are found in the state. A difference is read again after the tolerance. It counts as different
    if neither the item nor the state has changed by then, and as moving otherwise. Nothing is written without --repair.

    With --full, the rows are compared too, as with --rows, once the state agrees with all items: somebody may have
    removed a row whose contributions the state holds. --repair then corrects both.

    With --rows, all items are read and folded in a temporary file. Each row is compared with the result, so rows that
    somebody changed, removed or put are found. What readers do not see is compared too: the count of contributors, the
    owner, cut-offs, and the entries below a row. A row that differs in these alone is *unfounded*: a later change would
    make it wrong. A row is *taken* if the application's own code put an item in its place, which no command changes.
    Rows of feeds are compared with their posts and edges, attributes on items with the stored ones, and the newest row
    of each history with its item. On DynamoDB, differing rows are read
    again before they count. To correct rows, run --full --repair first: with --rows, --repair reads the whole state
    and corrects rows by it. Rows to which additions are pending in deltas are neither compared nor corrected: they are
    counted.

    The last line names the handlers and rows that were not compared, with the command that compares them.

    With --export, exports to S3 are compared, which costs no read units. The rows are compared with the sums of the
    items, and with an export of the state, the state is compared with the items, too. Rows of feeds are compared with
    their posts and edges, and items are joined with those that they look up. Handlers that cannot be compared are
    named, with the reason. All exports must be of one moment. Records that the stream had not delivered by then show as
    differences.

    A reference in the state without its backlink is a difference: changes of the referent do not reach the item.
    --full and --export count idle backlinks too, which do no harm.

    \b
    Outcomes:
      equal      the state agrees with the item
      different  the state does not agree with the item, and neither changes
      moving     the item or the state changed at every reading
      pending    they agree, but rows have pending work: --repair finishes it
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
    given, names = opened.given, opened.given.handlers
    if given.exports:
        return _exports_report(opened)
    if given.repair:
        opened.confirm_writes()
    if given.tolerance is None:
        given.put(tolerance=0 if opened.local else TOLERANCE_SECONDS)
    if given.rows:
        rows = compared_rows(opened, _routes_with_rows(opened, names), every=not names)
        lines = (*_compared_lines(rows), *_not_compared_lines(rows.not_compared))
        return Report(lines, lambda: _compared_object(opened.app, rows), rows.differs)
    return _items_report(opened, [each for each in chosen_routes(opened, names) if _contributes(each, bool(names))])


def _contributes(route: Route, is_named: bool) -> bool:
    """Whether the ledger holds contributions of a handler. Raises ``SettingsError`` for a named handler without any."""
    if is_named and not route.kind.contributes:
        raise SettingsError(
            f"Handler {route.name!r} is of kind {route.kind}: the state holds no contributions of it, so it cannot be "
            "compared with its items. streamfold repair derives its rows again from the items."
        )
    return route.kind.contributes


def _items_report(opened: Session, routes: Sequence[Route]) -> Report:
    """Compares items, with ``--repair`` derives those that differ again, and then compares the rows."""
    app, given, every = opened.app, opened.given, not opened.given.handlers
    found = _verified(opened, routes)
    items = repair.GivenItems.each_once(each.item for each in (*found.different, *found.pending))
    wanted = given.repair and items.number > 0
    repaired = repair.repaired_items(opened, routes, items, dry_run=False) if wanted else None
    rows, missed = None, _not_compared(opened, routes, every=every, rows=False)
    # Rows may be wrong though the state agrees with all items. While it does not agree, every row of a differing item
    # would be reported twice.
    if routes and given.full and (given.repair or not found.different):
        rows = compared_rows(opened, routes, every=False)
    elif routes:
        missed.append(NotCompared(None, "the rows themselves", "streamfold verify --rows"))

    def lines() -> Iterator[Printed]:
        why = unfilled(opened.manifest, app.routes)
        yield from _verified_lines(found, why)
        if (found.pending or any(each.handler not in why for each in found.different)) and repaired is None:
            yield NEXT_ITEMS
        if repaired is not None:
            yield from repair.repaired_lines(repaired)
        if rows is not None:
            yield from _compared_lines(rows)
        yield from _not_compared_lines(missed)

    def json() -> dict[str, Any]:
        report = _verified_object(app, [route.name for route in routes], found)
        report["repaired"] = None if repaired is None else repair.repaired_object(app, repaired)
        return report | ({} if rows is None else {"rows": _compared_object(app, rows)}) | _missed_object(missed)

    return Report(lines(), json, bool(found.different or found.failed or (rows and rows.differs)))


def _verified(opened: Session, routes: Sequence[Route]) -> Verified:
    given = opened.given
    sample = None if given.full else given.sample or SAMPLE_ITEMS
    reconciling = Pages(opened.runtime, {route.name for route in routes}, dry_run=True)
    verifier, keys = Verifier(reconciling, given.tolerance), opened.keys(routes)
    items = keys.all() if sample is None else keys.sample(sample, Random())  # noqa: S311 - a sample
    with item_progress("comparing", sample, shown=not given.json_output) as advance:
        for page in pages(items) if routes else ():
            verifier.look(page)
            advance(len(page))
        verifier.recheck()
        if given.full:
            verifier.found.idle_backlinks = idle_backlinks(opened.runtime, routes)
    return verifier.found


def _verified_lines(found: Verified, why: Mapping[str, str]) -> Iterator[Printed]:
    """The first differences, and counts. For handlers that no backfill has filled, only the number of differences.

    why: these handlers, with the reason.
    """

    def sides(each: Difference) -> dict[str, str]:
        """The contributions on both sides. The state keeps digests of plain and of ordered values, not the values."""
        stored, expected = (stored_rows(text) if text else {} for text in (each.stored, each.expected))
        if each.lacking and each.stored == each.expected:
            number = counted(each.lacking, "reference")
            return {BOTH: f"{contribution_text(stored, expected)}  (without a backlink or a wake: {number})"}
        return {"stored": contribution_text(stored, expected), "expected": contribution_text(expected, stored)}

    different = [each for each in found.different if each.handler not in why]
    yield from difference_lines(
        different, lambda each: f"Different: {item_text(each.item)}, handler {each.handler!r}", sides
    )
    for name, count in Counter(each.handler for each in found.different if each.handler in why).items():
        yield (
            f"Handler {name!r} {why[name]}, and was not backfilled: {counted(count, 'older item')} "
            f"{'is' if count == 1 else 'are'} not in its rows. Next: streamfold backfill {name}"
        )
    yield from repair.failed_lines(found.failed)
    yield (
        f"{counted(found.items, 'item')}: {found.equal:,} equal, {len(found.different):,} different, "
        f"{found.moving:,} moving, {len(found.failed):,} failed."
    )
    if found.idle_backlinks:
        yield f"{counted(found.idle_backlinks, 'idle backlink')}: the next change of the referent drops each."
    if found.ahead:
        yield (
            f"{counted(found.ahead, 'contribution')} of a time that is still to come, because a clock was ahead: "
            "streamfold repair derives the items at the present time."
        )
    if found.pending:
        yield f"{counted(len(found.pending), 'contribution')} with pending work: a step has not finished their rows."


def _verified_object(app: Application, handlers: Sequence[str], found: Verified) -> dict[str, Any]:
    """The same as JSON, which ``repair --from-verify`` takes."""
    pending = [item_object(app, each.item) | {"handler": each.handler} for each in found.pending]
    return {
        "application": app.name,
        "handlers": list(handlers),
        "items": found.items,
        "equal": found.equal,
        "moving": found.moving,
        "different": [
            item_object(app, each.item)
            | {"handler": each.handler, "stored": each.stored, "expected": each.expected}
            | ({"without_backlink": each.lacking} if each.lacking else {})
            for each in found.different
        ],
        "failed": [repair.failed_object(app, failed) for failed in found.failed],
        **({"pending": pending} if pending else {}),
        **({} if found.idle_backlinks is None else {"idle_backlinks": found.idle_backlinks}),
        **({"ahead": found.ahead} if found.ahead else {}),
    }


def _routes_with_rows(opened: Session, names: Sequence[str]) -> list[Route]:
    """The routes whose rows are compared. Raises as ``chosen_routes``, and for a named handler without such rows.

    Rows of histories follow from changes: ``chosen_routes`` has none of their handlers.
    """
    app = opened.app
    histories = {route.name: route for route in audits(app) if is_compared(route)}
    for name in names:
        if name in histories and (why := left_out(opened, histories[name])):
            raise SettingsError(f"Handler {name!r} {why}: its rows are not kept up to date.")
    others = [name for name in names if name not in histories]
    found = chosen_routes(opened, others) if others or not names else []
    found = [route for route in found if is_compared(route) or _contributes(route, bool(names))]
    return found + [
        route for name, route in histories.items() if name in names or not (names or left_out(opened, route))
    ]


def compared_rows(opened: Session, routes: Sequence[Route], *, every: bool) -> ComparedRows:
    """Compares the rows of these routes, and with ``--repair`` corrects those that differ.

    every: no handler was named, so the other handlers are reported as not compared.
    """
    app, runtime = opened.app, opened.runtime
    how: dict[str, Any] = {"live": opened.local is None, "tolerance_seconds": opened.given.tolerance}
    verifier = RowsVerifier(runtime, routes, **how)
    found = verifier.verify() if any(route.kind.contributes for route in routes) else VerifiedRows()
    corrected = None
    if opened.given.repair:
        corrected = RowCorrection(runtime, verifier.expiring).correct([each.row for each in found.different])
        followed_chains(opened)
    other_rows = OtherRows(runtime, **how)
    for route in routes:
        found.add(others := other_rows.verify([route]))
        if corrected is not None:
            others_corrected = other_rows.correct(route, others)
            corrected.corrected.extend(others_corrected.corrected)
            corrected.remaining.extend(others_corrected.remaining)
    names = dict.fromkeys(route.name for route in (*verifier.routes, *routes))
    compared = [route for route in app.routes if route.name in names]
    why = unfilled(opened.manifest, compared)
    new = {route: why[route.name] for route in compared if route.name in why}
    return ComparedRows([*names], found, corrected, _not_compared(opened, compared, every=every), new)


def _compared_lines(rows: ComparedRows) -> Iterator[Printed]:
    """The first differences, counts, and the next step or the corrections. For handlers that no backfill has filled,
    only the number of rows: a correction by the state would not change these rows.
    """
    new = {
        each.row: route
        for each in rows.found.different
        for route in rows.unfilled
        if any(key.takes(each.row) for key in route.writes)
    }
    yield from repair.rows_lines(rows.found, new)
    for route, why in rows.unfilled.items():
        if count := sum(1 for each in new.values() if each is route):
            yield (
                f"Handler {route.name!r} {why}, and was not backfilled: {counted(count, 'row')} may lack older items. "
                f"Next: streamfold backfill {route.name}"
            )
    if rows.corrected is not None:
        yield from repair.corrected_lines(rows.corrected)
    elif len(new) < len(rows.found.different):
        yield NEXT_ROWS


def _compared_object(app: Application, rows: ComparedRows) -> dict[str, Any]:
    report = repair.rows_object(app, rows.handlers, rows.found) | repair.corrected_object(app, rows.corrected)
    return report | _missed_object(rows.not_compared)


def _not_compared(opened: Session, routes: Collection[Route], *, every: bool, rows: bool = True) -> list[NotCompared]:
    """The handlers and rows that a comparison of these routes leaves out. ``rows``: it compares rows, not the ledger.

    every: no handler was named, so that all other handlers are left out.
    """
    others = [route for route in opened.app.routes if every and route not in routes]
    found = [_why_not(opened, route, rows=rows) for route in others]
    own = [route for route in routes if rows and route in audits(opened.app)]
    if own:
        found.append(
            NotCompared(None, "rows of histories but the newest of each item", "streamfold audit verify --all")
        )
    for route in own:
        if (since := opened.manifest.partial_since(route.name)) is not None:
            why = f"items without a history of {route.name!r}, which is partial since {since}"
            found.append(NotCompared(None, why, f"streamfold backfill {route.name} --opening"))
    return found


def _why_not(opened: Session, route: Route, *, rows: bool) -> NotCompared:
    kind = f"it is of kind {route.kind}"
    if why := left_out(opened, route):
        return NotCompared(route.name, f"it {why}")
    if not rows and is_compared(route):
        why = f"{kind}, and the state holds no contributions of it"
        return NotCompared(route.name, why, f"streamfold verify --rows {route.name}")
    if verified_by := derivation(route).verified_by:
        why, command = verified_by
        return NotCompared(route.name, why, f"{command} {route.name}")
    if derivation(route).reconciles:
        return NotCompared(route.name, f"{kind}, and its output is not read back")
    return NotCompared(route.name, f"{kind}, and follows from changes, which items do not contain")


def _not_compared_lines(missed: Sequence[NotCompared]) -> list[str]:
    return [f"Not compared: {'; '.join(each.text for each in missed)}."] if missed else []


def _missed_object(missed: Sequence[NotCompared]) -> dict[str, Any]:
    return {"not_compared": [each._asdict() for each in missed]} if missed else {}


def _exports_report(opened: Session) -> Report:
    """Compares exports. No store is opened."""
    app, settings, given = opened.app, opened.settings, opened.given
    spark, wanted = given.runner == SPARK, wanted_routes(app, dict.fromkeys(given.handlers))
    routes = [route for route in exported_routes(wanted) if route.kind.contributes or not spark]
    missed = {
        route.name: _why_not_exported(route)
        for route in (wanted if given.handlers else app.routes)
        if route not in routes
    }
    for name, why in missed.items() if given.handlers else ():
        raise SettingsError(f"Handler {name!r} cannot be compared by exports: {why}.")
    exports = _opened_exports(app, settings, given.exports)
    found = _on_spark(opened, routes, exports) if spark else verify_exports(app, settings, routes, exports, warn)

    def lines() -> Iterator[Printed]:
        yield from repair.rows_lines(found.rows)
        if found.items is not None:
            yield from _verified_lines(found.items, {})
        yield from (f"Not compared: handler {name!r}: {why}." for name, why in missed.items())
        yield f"The exports are of {found.time or 'an unknown time'}: records that were not delivered by then differ."

    handlers = [route.name for route in routes]
    report = {
        **_verified_object(app, handlers, found.items or Verified()),
        "time": found.time,
        "rows": repair.rows_object(app, handlers, found.rows),
        "not_compared": [{"handler": name, "why": why} for name, why in missed.items()],
    }
    items = found.items and (found.items.different or found.items.failed)
    return Report(lines(), report, bool(found.rows.different or found.rows.failed or items))


def _why_not_exported(route: Route) -> str:
    """The reason why a handler cannot be compared by exports."""
    if not derivation(route).reconciles:
        return f"it is of kind {route.kind}, and follows from changes, which exports do not contain"
    if derivation(route).joins_items:
        return "--runner spark adds up rows, and those of a feed are no sums: leave --runner out"
    return f"it is of kind {route.kind}, and the state holds no contributions of it"


def _opened_exports(app: App, settings: Settings, given_exports: Sequence[str]) -> Mapping[str, Export]:
    """The exports by the names of their tables. The name of the only table may be left out."""
    exports: dict[str, Export] = {}
    for given in given_exports:
        name, equals, manifest = given.partition("=")
        if not equals or "/" in name:
            name, manifest = next(iter(app.tables)) if len(app.tables) == 1 else MAIN.name, given
        if name == STATE_NAME and name not in app.tables:
            exports[STATE.name] = open_export(manifest, STATE, settings.state_table)
        elif name in app.tables:
            exports[name] = open_export(manifest, app.tables[name], settings.real_name(name))
        else:
            raise SettingsError(
                f"--export {given!r}: the application has no table {name!r}; expected MANIFEST or NAME=MANIFEST, NAME "
                f"one of {', '.join(app.tables)} or {STATE_NAME}."
            )
    return exports


def _on_spark(opened: Session, routes: Sequence[Route], exports: Mapping[str, Export]) -> VerifiedExports:
    """The rows, compared on a cluster. Raises ``SettingsError`` for an export of the state."""
    from streamfold.cli.spark import AppLocation, verified_on_spark

    app = opened.app
    if STATE.name in exports:
        raise SettingsError("--runner spark compares rows: leave the export of the state out, or --runner.")
    time = check_exports(app, routes, exports)
    manifests = {name: export.location for name, export in exports.items()}
    location = AppLocation.here(opened.given.application, opened.given.tables)
    rows, failed = verified_on_spark(location, app, routes, manifests, time, opened.given.spark_master)
    rows.failed += [ItemFailed(each.item, each.handler, repair.FailedElsewhere(each.error)) for each in failed]
    return VerifiedExports(time, rows, None)
