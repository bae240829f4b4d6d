"""What to do after a replay: the commands that go on with it, and those that show what it made."""

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import NamedTuple

from streamfold.app import App
from streamfold.cli.application import DEFAULT_APPLICATION, program
from streamfold.cli.documents import local_samples
from streamfold.cli.engines import DEFAULT_STATE, Store
from streamfold.cli.grids import counted
from streamfold.cli.output import echo
from streamfold.cli.rows import samples
from streamfold.derivations.search.indexes import searches_of
from streamfold.derivations.search.options import options_of, shown_index
from streamfold.engines import Engine
from streamfold.replay.replay import Summary
from streamfold.routes.route import Route
from streamfold.settings import Settings

THE_SAME = "the same command"
NextStep = tuple[str, str]
"""A command, and what it does."""


class Advice(NamedTuple):
    """The options of further commands; None where nothing was kept."""

    application: str
    store: str | None
    anew: str | None  # how to begin anew
    documents: str | None = None  # of the first search that has some
    parked: str | None = None  # the parking place and its store, for redrive
    has_rows: bool = True
    fresh: bool = False  # the command began anew, and would do so again


class Written(NamedTuple):
    """Where a replay wrote to."""

    application: str  # the option
    store: Store
    real_names: Mapping[str, str]  # of tables on DynamoDB
    search_url: str | None
    engine: Engine
    settings: Settings
    parking: str | None = None  # the place of parked records
    fresh: bool = False


def advice(app: App, written: Written, summary: Summary) -> Advice:
    """The options with which other commands find this application and what a replay made."""
    store, place = written.store, written.application
    named = f" --app {place}" if place != DEFAULT_APPLICATION else ""
    documents = _documents(app, written, summary)
    if store.engine == "embedded":
        anew = "--fresh starts" if store.state is not None else None
        kept = _kept(store)
        has_rows = any(each.rows or each.ended_after for each in samples(app, written.engine, 1))
        return Advice(named, kept, anew, documents, _parked(written, kept), has_rows, written.fresh)
    at = f" --endpoint-url {store.endpoint_url}" if store.endpoint_url else ""
    tables = "".join(f" --table {name}={real_name}" for name, real_name in written.real_names.items())
    real = f" --engine dynamodb{at}{tables}"
    return Advice(named, real, "a replay onto empty tables starts", documents, _parked(written, real))


def print_next(summary: Summary, advice: Advice) -> None:
    """Prints what to do next, and how many of the records were known."""
    steps = [*(_mending(summary, advice) if summary.stopped else _showing(advice)), *_remaining(summary, advice)]
    for number, (command, what) in enumerate(steps):
        echo(f"{'      ' if number else f'{chr(10)}Next: '}{command}    {what}")
    if summary.report.known and advice.anew:
        known = counted(summary.report.known, "record")
        echo(f"Known to the state before: {known}. Nothing counts twice; {advice.anew} anew.")


def _mending(summary: Summary, advice: Advice) -> Iterator[NextStep]:
    """What leads past the bad line at which a replay stopped."""
    again = f"{THE_SAME} without --fresh" if advice.fresh else THE_SAME
    goes = "begins anew" if advice.store is None else "applies the rest"
    yield again, f"{goes}, once {summary.bad_lines[-1].line} is mended; nothing counts twice"
    yield f"{again}, with --keep-going", "skips bad lines, and reports them all"


def _showing(advice: Advice) -> Iterator[NextStep]:
    show = f"{program()} show{advice.application}"
    if advice.store is None:
        yield "the same with --state FILE", f"keeps the result, for {program()} show --state FILE"
    elif advice.has_rows:
        yield f"{show}{advice.store}", "prints all derived rows; add a partition key to see those of one"
    if advice.documents is not None:
        yield f"{show}{advice.documents}", "prints documents"
    yield f"{program()} routes{advice.application}", "prints the key chart"


def _remaining(summary: Summary, advice: Advice) -> Iterator[NextStep]:
    """What leads to the records that were not applied."""
    if summary.report.parked and advice.parked is not None:
        redrive = f"{program()} redrive{advice.application}{advice.parked} --apply"
        yield redrive, "processes the parked records, once their cause is mended"
    if advice.store is None:
        return
    if summary.failures:
        yield THE_SAME, "processes the failed records, once their cause is mended"
    if summary.bad_lines and not summary.stopped:
        yield THE_SAME, "applies the bad lines too, once they are mended"


def _kept(store: Store) -> str | None:
    """The option that names the state file, if there is one."""
    if store.state is None:
        return None
    return "" if store.state == DEFAULT_STATE else f" --state {store.state}"


def _parked(written: Written, kept: str | None) -> str | None:
    """The place and the options with which parked records are redriven."""
    return None if written.parking is None or kept is None else f" {quote(written.parking)}{kept}"


def _documents(app: App, written: Written, summary: Summary) -> str | None:
    """The options with which the documents of the first search that has some are shown; None if there are none."""
    kept = f" --search-url {written.search_url}" if written.search_url else _kept(written.store)
    route = None if kept is None else next(_with_documents(app, written, summary), None)
    if route is None:
        return None
    name = "NAME" if options_of(route).index.fields else shown_index(route)
    return f" --index {name}{kept}"


def _with_documents(app: App, written: Written, summary: Summary) -> Iterator[Route]:
    """The searches that have documents; of a server, those that had records: it alone knows what it holds."""
    if written.search_url:
        return (route for route in searches_of(app.routes) if summary.report.records[route.name])
    return (each.route for each in local_samples(app, written.engine, written.settings, 1) if each.found)
