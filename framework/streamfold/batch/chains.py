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

    A kill in between is safe: the position in the stream is stored after each batch, and a record that comes twice
    changes nothing. Failed records are kept and come again after ``engine.retry``.
    """
    report = Report()
    # Records of the engine bear logical table names, whatever real names the settings give.
    origins = Origins(app.tables, run.settings._replace(tables={name: name for name in app.tables}), run.warn)
    merge(report, run_fan_outs(app, engine, run))
    while pending := engine.pending(BATCH_RECORDS_MAX):
        changes = [with_own_version(origins.change(record.record)) for record in pending]
        batch = process_changes(app, changes, engine, run)
        failed = {failure.sequence for failure in batch.failures}
        merge(report, batch)
        done = [record.sequence for record in pending if str(record.sequence) not in failed]
        engine.advance(pending[-1].sequence, done)
        merge(report, run_fan_outs(app, engine, run))
    return report


def with_own_version(change: Change) -> Change:
    """Gives a change of the own stream the version of its source item, if the record holds one.

    A source item that a cascade removed has versions of its own; this stream's numbers do not compare with them.
    """
    change.version_text = change.record.get(OWN_VERSION, change.version_text)
    return change
