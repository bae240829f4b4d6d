"""``streamfold search`` manages the indexes of searches, on their server or in a local state."""

import getpass
import json
import time
from collections.abc import Iterator, Sequence
from random import Random

import click

from streamfold.batch.process import check_application
from streamfold.cli import shell
from streamfold.cli.documents import open_server
from streamfold.cli.items import item_text, name_text
from streamfold.cli.output import Note, Report, counted, item_progress, note
from streamfold.cli.session import Session, confirm, metered
from streamfold.derivations.derivation import searches
from streamfold.derivations.expected import ItemFailed
from streamfold.derivations.search.indexes import (
    OPENED,
    Aliases,
    LocalAliases,
    SearchIndex,
    ServerAliases,
    accepts_of,
    find_index,
)
from streamfold.derivations.search.indexing import BOTH, BUILDING, SWAPPED, IndexMark
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.opensearch import COMMAND_TRIES
from streamfold.derivations.search.options import options_of, own_alias
from streamfold.errors import SettingsError, printable
from streamfold.jobs.job import Job, Jobs
from streamfold.lifecycle.backfill import BackfillRun
from streamfold.lifecycle.search import SAMPLE, IndexVerifier, Rebuild, TakeOver, VerifiedIndex, phase_text, repair
from streamfold.lifecycle.sources import PAGE_ITEMS
from streamfold.routes.application import Application
from streamfold.settings.limits import SECONDS_A_DAY
from streamfold.settings.readers import is_loopback

WHAT = "search rebuild"
WRONG_SHOWN = 20
WAIT_SECONDS = 5
INDEX = click.argument("name", metavar="INDEX")
ON_SERVER = (INDEX, shell.APPLICATION, shell.search_url("The OpenSearch server. Default: STREAMFOLD_SEARCH."))
"""The options of commands on an index of a server."""
ANYWHERE = (
    INDEX,
    *shell.STATE_OPTIONS,
    shell.search_url("The OpenSearch server. Default with --engine dynamodb: STREAMFOLD_SEARCH; else the local state."),
)
"""The options of commands that compare an index with items, or build it from items."""
TOLERANCE = shell.decimal("--tolerance", "SECONDS", "Read differing documents again after this time.", 0, default=10.0)
"""Several times as long as a batch takes to reach an index. A shorter wait would report documents in transit."""
REMEDY = (
    "Missing fields and settings can be added to the existing index, and apply to documents that are written later; "
    "other types need a new index."
)
UNSAFE = (
    "An older run could overwrite a newer one, and a document could be older than its item. Expected a server that "
    "refuses version 4 of a document that it holds in version 5, as domains of OpenSearch Service do. The index was "
    "created, and is empty: delete it, and use another server."
)


@click.group("search", short_help="Create, compare, rebuild and tidy the indexes of searches.")
def search() -> None:
    """Create the indexes of searches, compare them with their declaration and with the items, rebuild them beside the
    live ones, and remove documents that were hidden long ago.

    INDEX is the name that the search declares; for a template like songs-{tenant}, give a value for each field. The
    server is that of STREAMFOLD_SEARCH or --search-url.

    \b
    Examples:
      streamfold search create products
      streamfold search diff songs-acme --json
      streamfold search verify products --state shop.db
      streamfold search rebuild products --state shop.db
      streamfold search purge products --dry-run
    """


def _index(opened: Session) -> SearchIndex:
    return find_index(opened.app.routes, opened.given.name, opened.settings)


@shell.command(
    "create",
    "Create an index with its mapping, its settings and its alias.",
    ON_SERVER,
    shell.flag("--dry-run", "Print the request that would create the index, and send nothing."),
    shell.json_flag(),
    group=search,
)
def create(opened: Session) -> Report:
    """Create the index INDEX~000001 as the search declares it, and the alias INDEX, which hides documents of items that
    are gone. Documents are written and read through the alias.

    Then a document is written and removed, to test that the server refuses older versions. The exit code is 1 if it
    does not: documents could then be older than their items.

    \b
    Examples:
      streamfold search create products
      streamfold search create products --dry-run
    """
    from streamfold.derivations.search.indexes import create_index, try_versions

    index = _index(opened)
    if opened.given.dry_run:
        text = f"PUT /{index.first}\n{json.dumps(index.body, indent=2, ensure_ascii=False)}"
        return Report([text], {"method": "PUT", "path": f"/{index.first}", "body": index.body})
    server = open_server(opened)
    create_index(index, server)
    tried = try_versions(index, server, time.time())
    found = {"index": index.first, "alias": index.alias, "versions_hold": tried.holds, "why": tried.why}
    made = f"Created index {index.first} with alias {index.alias} on {opened.settings.search}."
    if tried.holds:
        return Report([made, "The server refuses older versions: no document will be older than its item."], found)
    unsafe = Note(f"The server does not refuse older versions of documents. {tried.why}\n{UNSAFE}")
    return Report([made, unsafe], found, reported=True)


@shell.command(
    "diff", "Show differences between the declaration and the server.", ON_SERVER, shell.json_flag(), group=search
)
def diff(opened: Session) -> Report:
    """Show the differences between the declared index and the server: fields of the mapping, declared settings, and the
    alias with its filter. The exit code is 1 if something differs.

    \b
    Examples:
      streamfold search diff products
      streamfold search diff products --search-url https://search.example.com --json
    """
    from streamfold.derivations.search.indexes import differences

    index = _index(opened)
    found, where = differences(index, open_server(opened)), f"Index {index.alias} on {opened.settings.search}"
    differs = Note(f"\n{where} differs from its declaration. {REMEDY}")
    lines = [*(printable(str(difference)) for difference in found), differs if found else f"{where} is as declared."]
    report = {"alias": index.alias, "differences": [difference._asdict() for difference in found]}
    return Report(lines, report, bool(found))


@shell.command(
    "purge",
    "Remove documents that were hidden long ago.",
    ON_SERVER,
    shell.number(
        "--older-than",
        "Only documents that were hidden at least this many days ago. Default and minimum: STREAMFOLD_RETENTION_DAYS.",
        1,
        metavar="DAYS",
    ),
    shell.flag("--dry-run", "Count the documents, and remove none."),
    shell.yes_flag("removing documents"),
    shell.json_flag(),
    group=search,
)
def purge(opened: Session) -> Report:
    """Remove documents of items that are gone. Such documents are hidden first, so that older records do not bring them
    back. After STREAMFOLD_RETENTION_DAYS the stream has no such record any more.

    A document is removed only if it was not written since it was found. The command may be stopped at any time.

    \b
    Examples:
      streamfold search purge products --dry-run
      streamfold search purge products --older-than 90 --yes
    """
    from streamfold.derivations.search.maintenance import count_hidden
    from streamfold.derivations.search.maintenance import purge as purged_pages

    given, alias, days_min = opened.given, _index(opened).alias, opened.settings.retention_days
    if given.older_than is not None and given.older_than < days_min:
        raise SettingsError(
            f"--older-than {given.older_than} is less than STREAMFOLD_RETENTION_DAYS={days_min}: records that are "
            f"older than a removal may still come, and would bring its document back. Expected {days_min} or more."
        )
    days = given.older_than or days_min
    before = int((time.time() - days * SECONDS_A_DAY) * 1000)
    server = open_server(opened)
    count, removed, changed = count_hidden(server, alias, before), 0, 0
    server.calls.tries = COMMAND_TRIES  # not for the first request: a wrong address is reported at once
    removes = count and not given.dry_run
    if removes:
        where = f"index {alias} on {opened.settings.search}"
        confirm(f"This removes {count} documents of {where}, hidden over {days} days ago.", yes=given.yes)
    with item_progress("removing", count, shown=bool(count) and not given.json_output) as advance:
        for page in purged_pages(server, alias, before) if removes else ():
            removed, changed = removed + page.removed, changed + page.changed
            advance(page.removed)
    found = {"alias": alias, "days": days, "dry_run": given.dry_run, "found": count}
    since = f" {changed} were written meanwhile and are kept." if changed else ""
    line = f"{removed} documents of index {alias} were removed, hidden over {days} days ago.{since}"
    if given.dry_run:
        line = f"Dry run: {count} documents of index {alias} were hidden over {days} days ago; none was removed."
    return Report([line], {**found, "removed": removed, "changed": changed})


def _aliases(opened: Session, *, writes: bool) -> Aliases:
    """The aliases of an index, on the server or in the local state. Asks before it writes to another machine.

    A local state also gets the names of new handlers; on DynamoDB only functions write these.
    """
    store, near = opened.store, is_loopback(opened.settings.search)
    is_local = store.is_local and opened.given.search_url is None
    check_application(opened.runtime, write=writes and is_local)
    if is_local:
        return LocalAliases(LocalIndex(opened.engine, accepts_of(opened.app.routes, opened.settings)))
    server = open_server(opened)
    server.calls.tries = COMMAND_TRIES  # a run over all items must not end at one connection that breaks
    opened.locations[OPENED] = server
    aliases = ServerAliases(server)
    if writes and not (near and (store.is_local or store.on_loopback)):
        where = f"{aliases.sink}, and to the state of {opened.app.name!r}"
        confirm(f"This writes to {where}.", yes=opened.given.yes)
    return aliases


@shell.command(
    "rebuild",
    "Rebuild an index beside the live one, and move its alias.",
    ANYWHERE,
    shell.flag("--back", "Move the alias back to the index that was live before."),
    shell.flag("--drop", "Remove the old index, which the alias does not name any more."),
    shell.flag("--abort", "End the rebuild and remove the new index. The live index is kept."),
    shell.flag("--take-over", "Move the alias of the search that this one replaces to its index."),
    shell.flag("--offline", "No function runs now: do not wait for batches of functions."),
    shell.number("--sample", "Items to compare.", 0, default=SAMPLE),
    shell.flag("--full", "Compare all items and all documents before the alias is moved."),
    shell.flag("--accept-failed", "Leave out items on which the function raises."),
    TOLERANCE,
    shell.SEGMENTS,
    shell.number("--page", "Items at once.", 1, 10_000, variable="page_items", default=PAGE_ITEMS),
    shell.READ_UNITS,
    shell.exclusive("--full", "--sample"),
    shell.exclusive(
        *("--back", "--drop", "--abort", "--take-over"), why="Expected one of {} and {}: each is a step of its own."
    ),
    shell.yes_flag("writing to AWS, or to a search server"),
    shell.json_flag(),
    group=search,
    outside=True,
)
def rebuild(opened: Session) -> Report:
    """Rebuild the index INDEX from the items, while the live index is read and written, and then move its alias. Use it
    to repair the whole index, after the function or the mapping changed, or for other settings.

    From the start of the rebuild, functions send every document to both indexes. Then all items are read, documents
    that the new index refused are sent again, and a sample is compared. After a wait for batches that began before, the
    alias is moved in one step. The old index is written until --drop, so that --back may return to it. To continue a
    rebuild that was stopped, give the same command again.

    \b
    Exit codes:
      0  the step was done
      1  a handler raised on some items, or the new index differs: the alias was not moved
      2  the command did not run, or not to its end

    \b
    Examples:
      streamfold search rebuild products --engine dynamodb --table main=shop-prod
      streamfold search rebuild products --drop --engine dynamodb --table main=shop-prod
      streamfold search rebuild products~next --take-over --engine dynamodb --table main=shop-prod
    """
    index = _index(opened)
    return _Steps(opened, index, _aliases(opened, writes=True)).report()


class _Steps:
    """The steps of a rebuild."""

    def __init__(self, opened: Session, index: SearchIndex, aliases: Aliases) -> None:
        self.opened = opened
        self.given = opened.given
        self.index = index
        self.aliases = aliases
        self.rebuild = Rebuild(opened.runtime, index, aliases)
        self.jobs = Jobs.of(opened.runtime)
        self.offline = self.given.offline or opened.store.is_local
        self.counts: dict[str, int] = {}

    def report(self) -> Report:
        """Runs one step, or all steps up to the move of the alias."""
        given, alias = self.given, self.index.alias
        if given.back:
            mark: IndexMark | None = self.rebuild.back()
        elif given.drop:
            mark = self.rebuild.drop(offline=self.offline)
        elif given.abort:
            mark = self._aborted()
        elif given.take_over:
            alias, mark = self._taken_over()
        else:
            mark = self._built()
        if mark is None:  # the reason was printed
            return Report(reported=True)
        lines = [f"Alias {alias} names {mark.live}."]
        if mark.phase == SWAPPED:
            lines.append(phase_text(alias, mark))
        counts = {name: count for name, count in self.counts.items() if name in ("read", "written", "failed")}
        return Report(lines, {"alias": alias, "live": mark.live, "old": mark.old, "phase": mark.phase, **counts})

    def _built(self) -> IndexMark | None:
        """Builds the new index and moves the alias; None if the alias was not moved.

        Each step is noted in the mark of the index, so that a stopped rebuild continues at the step that is next. The
        queue is drained a second time after the wait: batches that began before it may have failed on the new index.
        """
        mark = self.rebuild.mark
        if mark.phase not in (BUILDING, BOTH):
            mark = self.rebuild.begin()
            self._note(f"Index {mark.building} is built beside {mark.live}.")
        job = self._job(mark)
        if mark.phase == BUILDING:
            self._fill(job)
            if self._fails(self.rebuild.drain(job.started)) or self._differs(mark):
                return None
            mark = self.rebuild.hold()
        self._wait(mark)
        return None if self._fails(self.rebuild.drain(job.started)) else self.rebuild.swap()

    def _job(self, mark: IndexMark) -> Job:
        """The job of the scan: the job that was begun for this index, or a new one."""
        route, units = self.index.route, self.given.read_units
        known = self._known(mark.building)
        if known and known[0].done:
            return known[0]
        if known and not known[0].ended:
            return self.jobs.gone_on(known[0], units)
        tables = dict.fromkeys(source.table.name for source in route.sources)
        segments = (self.given.segments or (1 if self.opened.store.is_local else 16)) * len(tables)
        options, by = {"index": mark.building}, getpass.getuser()
        names = ",".join(tables)
        return self.jobs.create(WHAT, (route.name,), names, segments, by=by, read_units=units, options=options)

    def _known(self, building: str) -> list[Job]:
        return [job for job in self.jobs.all() if job.what == WHAT and job.options.get("index") == building]

    def _aborted(self) -> IndexMark:
        """Ends the rebuild and its scan. A process that still runs the scan stops."""
        building = self.rebuild.mark.building
        for job in self._known(building) if building else ():
            self.jobs.end(job.id)
        return self.rebuild.abort()

    def _fill(self, job: Job) -> None:
        """Sends the remaining items to the new index."""
        if job.done:
            return
        tables = list({source.table.name: source.table for source in self.index.route.sources}.values())
        pages, spent = self.rebuild.pages(job.started), metered(self.opened.engine)
        run = BackfillRun(self.jobs, job, pages, tables, page_items=self.given.page_items, metered=spent)
        progress = run.run()
        self.counts = dict(run.job.counts)
        self._note(f"{progress.read:,} items were read, {progress.report.written:,} documents sent.")

    def _fails(self, failed: Sequence[ItemFailed]) -> bool:
        """Prints the items that the new index lacks; returns whether they prevent the move of the alias."""
        self.counts["failed"] = len(failed)
        _note_failed(failed[:WRONG_SHOWN])
        if failed and not self.given.accept_failed:
            note(
                f"{len(failed)} items cannot be sent to the new index: the alias was not moved. Correct them, and run "
                "the same command again; --accept-failed leaves them out, --abort ends the rebuild."
            )
        return bool(failed) and not self.given.accept_failed

    def _differs(self, mark: IndexMark) -> bool:
        """Prints the differences between the new index and the items; returns whether there are any."""
        self.aliases.refresh(mark.building)
        alias, sink, tolerance = own_alias(mark.building), self.aliases.sink, self.given.tolerance
        verifier = IndexVerifier(self.opened.runtime, self.index, sink, alias, tolerance)
        found = verifier.verify(None if self.given.full else self.given.sample, Random(0))  # noqa: S311 - a sample
        for line in _wrong_notes(found):
            note(line.text)
        if found.wrong:
            note("The new index differs from the items: the alias was not moved. --abort ends the rebuild.")
        return bool(found.wrong)

    def _wait(self, mark: IndexMark) -> None:
        """Waits until every batch that read an older mark has ended: such a batch does not write the new index."""
        if self.offline:
            return
        if seconds := self.rebuild.seconds_remaining(mark):
            self._note(f"Waiting {seconds} seconds for batches that began before (STREAMFOLD_GATE_SECONDS).")
        while seconds := self.rebuild.seconds_remaining(mark):
            self.opened.runtime.wait(min(seconds, WAIT_SECONDS))

    def _taken_over(self) -> tuple[str, IndexMark]:
        taking = TakeOver(self.opened.runtime, self.index, self.aliases)
        self._wait(taking.begin())
        mark = taking.move()
        self._note(
            f"Alias {taking.alias} names {mark.live}. Deploy the search without replaces=, and the old one as "
            f'App(..., retired=["{mark.handler}"]).'
        )
        return taking.alias, mark

    def _note(self, text: str) -> None:
        if not self.given.json_output:
            note(text)


def _note_failed(failed: Sequence[ItemFailed]) -> None:
    for each in failed:
        note(f"failed: {item_text(each.item)}: {printable(str(each.error))}")


def _wrong_notes(found: VerifiedIndex) -> Iterator[Note]:
    """The first wrong documents."""
    for each in found.wrong[:WRONG_SHOWN]:
        document = f"document {name_text(each.id)} of " if each.id else ""
        yield Note(f"{each.what}: {document}{item_text(each.item)}")
    if len(found.wrong) > WRONG_SHOWN:
        yield Note(f"... and {len(found.wrong) - WRONG_SHOWN} more.")


@shell.command(
    "verify",
    "Compare an index with the items, and correct differences.",
    ANYWHERE,
    shell.number("--sample", "Items to compare.", 1, default=SAMPLE),
    shell.flag("--full", "Compare all items, and all documents of the index."),
    shell.flag("--repair", "Correct differing documents: send them again, or hide them.", "repairs"),
    TOLERANCE,
    shell.exclusive("--full", "--sample"),
    shell.belongs("--yes", "--repair", why="--yes belongs to --repair: nothing is written without it."),
    shell.yes_flag("writing to AWS, or to a search server"),
    shell.json_flag(),
    group=search,
    outside=True,
)
def verify(opened: Session) -> Report:
    """Compare the documents of the index INDEX with those that the search makes of the items now. A differing document
    is read again after the tolerance. If it has changed by then, it counts as moving, and not as different.

    \b
    different         the function makes another document
    missing           the document does not exist
    ghost             the item of the document is gone, or makes no document
    without backlink  changes of what the item looks up do not reach it

    \b
    Exit codes:
      0  nothing differs, or all differences were corrected
      1  documents differ, or the function raises on some items
      2  the command did not run, or not to its end

    \b
    Examples:
      streamfold search verify products --engine dynamodb --table main=shop-prod
      streamfold search verify products --full --repair --state shop.db
    """
    from streamfold.derivations.search.maintenance import WITHOUT_BACKLINK

    given, index = opened.given, _index(opened)
    aliases = _aliases(opened, writes=given.repairs)
    verifier = IndexVerifier(opened.runtime, index, aliases.sink, index.alias, given.tolerance)
    found = verifier.verify(None if given.full else given.sample, Random())  # noqa: S311 - a sample
    remaining = len(found.wrong)
    if given.repairs:
        failed = repair(opened.runtime, index, found.wrong).failed
        _note_failed(failed)
        remaining = len(failed)
    counts = {what: sum(each.what == what for each in found.wrong) for what in ("different", "missing", "ghost")}
    numbers = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    compared = counted(found.roots, "item")
    lines = [f"Index {index.alias}: {compared} compared; {numbers}; {found.moving:,} moving."]
    lost = sum(each.what == WITHOUT_BACKLINK for each in found.wrong)
    if lost:
        who, whom = ("1 item refers", "it") if lost == 1 else (f"{lost:,} items refer", "them")
        lines.append(f"{who} to others without a backlink: changes of these do not reach {whom}.")
    if found.untold:
        lines.append(f"The ids of {found.untold:,} documents do not name their items; these were not compared.")
    if given.repairs and found.wrong:
        lines.append(f"Corrected, except for {remaining} items." if remaining else "All differences were corrected.")
    report = {
        "alias": index.alias,
        "items": found.roots,
        **counts,
        **({"without_backlink": lost} if index.route.lookups else {}),
        "moving": found.moving,
        "untold": found.untold,
        "failed": len(found.failed),
        "left": remaining if given.repairs else None,
        "wrong": [{"what": each.what, "id": each.id} for each in found.wrong],
    }
    return Report([*_wrong_notes(found), *lines], report, bool(remaining or found.failed))


def hide_documents(opened: Session) -> dict[str, int]:
    """Hides documents without an item, where one search has one index; returns how many of each index were wrong."""
    found: dict[str, int] = {}
    for route in searches(opened.app.routes) if opened.settings.search is not None else ():
        if not options_of(route).index.fields:
            index = find_index(opened.app.routes, options_of(route).index.text, opened.settings)
            verifier = IndexVerifier(opened.runtime, index, open_server(opened), index.alias, 0)
            wrong = verifier.verify(None, Random(0)).wrong  # noqa: S311 - all are compared
            repair(opened.runtime, index, wrong)
            found[index.alias] = len(wrong)
    return found


def other_indexes(app: Application) -> Iterator[str]:
    """What remains to be done for searches with several indexes."""
    for route in searches(app.routes):
        if fields := options_of(route).index.fields:
            yield (
                f"Search {route.name!r} has an index for each {', '.join(field.name for field in fields)}: streamfold "
                "search verify INDEX --full --repair hides documents of items that the table does not have, for each "
                "of them."
            )
