"""Chains without AWS: processes an engine's own stream of derived rows, and of children that a cascade removed."""

from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.batch.report import Report, merge
from streamfold.engines import OWN_VERSION, ChainEngine
from streamfold.records.change import Change
from streamfold.records.envelope import Origins
from streamfold.routes.application import Application
from streamfold.run import Run

BATCH_RECORDS_MAX = 1000
"""Records of the engine's own stream in one batch."""


def run_chains(app: Application, engine: ChainEngine, run: Run) -> Report:
    """Processes the engine's own stream until it is empty. It ends, because declared chains have no cycle.

    A run of one group reads the records of that group only; those of other groups wait until these run.
    A kill in between is safe: the position in the stream is stored after each batch, and a record that comes twice
    changes nothing. Failed records are kept and come again after ``engine.retry``.
    """
    report = Report()
    # Records of the engine bear logical table names, whatever real names the settings give.
    origins = Origins(app.tables, run.settings._replace(tables={name: name for name in app.tables}), run.warn)
    merge(report, run_fan_outs(app, engine, run))
    group = run.settings.group
    while pending := engine.pending(BATCH_RECORDS_MAX, group):
        changes = [with_own_version(origins.change(record.record)) for record in pending]
        batch = process_changes(app, changes, engine, run)
        failed = {failure.sequence for failure in batch.failures}
        merge(report, batch)
        done = [record.sequence for record in pending if str(record.sequence) not in failed]
        engine.advance(pending[-1].sequence, done, group)
        merge(report, run_fan_outs(app, engine, run))
    if group is not None:
        _tell_of_others(app, engine, run)
    return report


def _tell_of_others(app: Application, engine: ChainEngine, run: Run) -> None:
    """Warns once of each group for which records wait: the state grows until that group runs."""
    for other in sorted({route.group for route in app.routes} - {run.settings.group}):
        if engine.pending(1, other):
            run.warn_once(
                ("waiting", other),
                f"Changes of derived rows wait in this state for handlers of group {other!r}, and STREAMFOLD_GROUP is "
                f"{run.settings.group!r}: run group {other!r} too, or leave STREAMFOLD_GROUP out.",
            )


def with_own_version(change: Change) -> Change:
    """Gives a change of the own stream the version of its source item, if the record holds one.

    A source item that a cascade removed has versions of its own; this stream's numbers do not compare with them.
    """
    change.version_text = change.record.get(OWN_VERSION, change.version_text)
    return change
