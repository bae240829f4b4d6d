"""Carries out the steps of ``streamfold search rebuild``, and tells of them."""

import getpass
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from streamfold.cli.engines import REPORTED, as_json
from streamfold.cli.items import item_text
from streamfold.cli.metered import metered
from streamfold.cli.output import echo
from streamfold.cli.rows import name_text
from streamfold.cli.search_places import Asked, SearchPlace, confirm_place
from streamfold.derivations.search.indexing import BOTH, BUILDING, SWAPPED, IndexMark
from streamfold.derivations.search.options import own_alias
from streamfold.errors import printable
from streamfold.jobs.job import Job, Jobs
from streamfold.lifecycle.backfill import Filling
from streamfold.lifecycle.page import ItemFailed
from streamfold.lifecycle.search import IndexVerifier, Rebuild, TakeOver, VerifiedIndex, told_phase

WHAT = "search rebuild"
SHOWN = 20
WAIT_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """What the command line said of the steps."""

    step: str  # back, drop, abort, take-over; "": build
    offline: bool
    sample: int | None  # None: everything is compared
    accept_failed: bool
    tolerance: float
    segments: int
    page_items: int
    read_units: int
    yes: bool
    json_output: bool


def run_rebuild(asked: Asked, place: SearchPlace, options: RebuildOptions) -> int:
    """Carries out a step, or all up to the move of the alias; returns the exit code."""
    options = replace(options, offline=options.offline or asked.store.engine == "embedded")
    confirm_place(asked, place, yes=options.yes)
    return RebuildSteps(place, options).run()


class RebuildSteps:
    """The steps of one command."""

    def __init__(self, place: SearchPlace, options: RebuildOptions) -> None:
        self.place = place
        self.options = options
        self.rebuild = Rebuild(place.runtime, place.index, place.aliases)
        self.counts: dict[str, int] = {}

    def run(self) -> int:
        match self.options.step:
            case "back":
                return self._end(self.rebuild.back())
            case "drop":
                return self._end(self.rebuild.drop(offline=self.options.offline))
            case "abort":
                return self._aborted()
            case "take-over":
                return self._taken_over()
        return self._built()

    def _built(self) -> int:
        mark = self.rebuild.mark
        if mark.phase not in (BUILDING, BOTH):
            mark = self.rebuild.begin()
            self._say(f"Index {mark.building} is built beside {mark.live}.")
        job = self._job(mark)
        if mark.phase == BUILDING:
            self._filled(job)
            if self._failed(self.rebuild.drain(job.started)) or self._differs(mark):
                return REPORTED
            mark = self.rebuild.hold()
        self._wait(mark)
        if self._failed(self.rebuild.drain(job.started)):
            return REPORTED
        return self._end(self.rebuild.swap())

    def _job(self, mark: IndexMark) -> Job:
        """The job of the scan: the one that was begun for this index, or a new one."""
        jobs, route = self._jobs(), self.place.index.route
        known = self._known(mark.building)
        if known and known[0].done:
            return known[0]
        if known and not known[0].ended:
            return jobs.gone_on(known[0], self.options.read_units)
        tables = dict.fromkeys(source.table.name for source in route.sources)
        return jobs.create(
            WHAT,
            (route.name,),
            ",".join(tables),
            self.options.segments * len(tables),
            by=getpass.getuser(),
            read_units=self.options.read_units,
            options={"index": mark.building},
        )

    def _aborted(self) -> int:
        """Ends the rebuild, and its scan: who still carries it stops."""
        building = self.rebuild.mark.building
        for job in self._known(building) if building else ():
            self._jobs().end(job.id)
        return self._end(self.rebuild.abort())

    def _known(self, building: str) -> list[Job]:
        """The jobs of an index that is built, the newest first."""
        return [job for job in self._jobs().all() if job.what == WHAT and job.options.get("index") == building]

    def _jobs(self) -> Jobs:
        return Jobs(self.place.app.name, self.place.engine, self.place.runtime.clock)

    def _filled(self, job: Job) -> None:
        """Sends what is left of the items to the new index."""
        if job.done:
            return
        tables = list({source.table.name: source.table for source in self.place.index.route.sources}.values())
        pages = self.rebuild.pages(job.started)
        spent = metered(self.place.engine)
        items = self.options.page_items
        filling = Filling(self._jobs(), job, pages, tables, page_items=items, metered=spent)
        progress = filling.run()
        self.counts = dict(filling.job.counts)
        self._say(f"{progress.read:,} items were read, {progress.report.written:,} documents sent.")

    def _failed(self, failed: Sequence[ItemFailed]) -> bool:
        """Prints the items that the new index lacks; returns whether they stop the move of the alias."""
        self.counts["failed"] = len(failed)
        for each in failed[:SHOWN]:
            _tell_trouble(f"failed: {item_text(each.item)}: {printable(str(each.error))}")
        if failed and not self.options.accept_failed:
            _tell_trouble(
                f"{len(failed)} items cannot be sent to the new index: the alias was not moved. Mend them, and run the "
                "same command again; --accept-failed leaves them out, --abort ends the rebuild."
            )
        return bool(failed) and not self.options.accept_failed

    def _differs(self, mark: IndexMark) -> bool:
        """Prints what differs between the new index and the items; returns whether anything does."""
        place, name = self.place, own_alias(mark.building)
        place.aliases.refresh(mark.building)
        sink, tolerance = place.aliases.sink, self.options.tolerance
        verifier = IndexVerifier(place.runtime, place.index, sink, name, tolerance)
        found = verifier.verify(self.options.sample, Random(0))  # noqa: S311 - a sample
        tell_wrong(found)
        if found.wrong:
            _tell_trouble("The new index differs from the items: the alias was not moved. --abort ends the rebuild.")
        return bool(found.wrong)

    def _wait(self, mark: IndexMark) -> None:
        """Waits until every batch that read an older mark has ended."""
        if self.options.offline:
            return
        if left := self.rebuild.seconds_left(mark):
            self._say(f"Waiting {left} seconds for batches that began before (STREAMFOLD_GATE_SECONDS).")
        while left := self.rebuild.seconds_left(mark):
            self.place.runtime.wait(min(left, WAIT_SECONDS))

    def _taken_over(self) -> int:
        place = self.place
        taking = TakeOver(place.runtime, place.index, place.aliases)
        mark = taking.begin()
        self._wait(mark)
        mark = taking.move()
        self._say(
            f"Alias {taking.alias} stands for {mark.live}. Deploy the search without replaces=, and the old one as "
            f'App(..., retired=["{mark.handler}"]).'
        )
        return self._told(taking.alias, mark)

    def _end(self, mark: IndexMark) -> int:
        return self._told(self.place.index.alias, mark)

    def _told(self, alias: str, mark: IndexMark) -> int:
        if self.options.json_output:
            counts = {name: count for name, count in self.counts.items() if name in ("read", "written", "failed")}
            echo(as_json({"alias": alias, "live": mark.live, "old": mark.old, "phase": mark.phase, **counts}))
            return 0
        echo(f"Alias {alias} stands for {mark.live}.")
        if mark.phase == SWAPPED:
            echo(told_phase(alias, mark))
        return 0

    def _say(self, text: str) -> None:
        if not self.options.json_output:
            echo(text, err=True)


def _tell_trouble(text: str) -> None:
    """Prints why the alias was not moved, beside JSON too: standard output has the counts alone."""
    echo(text, err=True)


def tell_wrong(found: VerifiedIndex) -> None:
    """Prints some of the documents that are wrong, on standard error."""
    for each in found.wrong[:SHOWN]:
        echo(f"{each.what}: document {name_text(each.id)} of {item_text(each.item)}", err=True)
    if len(found.wrong) > SHOWN:
        echo(f"... and {len(found.wrong) - SHOWN} more.", err=True)
