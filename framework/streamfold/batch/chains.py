"""Chains without AWS: an engine's own stream of derived rows, and of children that a cascade removed, processed to its
end.
"""

from dataclasses import replace

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
    """Processes what the engine's own stream holds until it holds no more.

    Ends because declared chains have no cycle. A kill in between is safe: the place in the stream is stored after the
    batch, and what comes twice changes nothing. Records that failed are kept, and come again after ``engine.retry``.
    """
    report = Report()
    # The engine names tables as the application does, whatever their real names are elsewhere.
    origins = Origins(app.tables, replace(run.settings, tables={name: name for name in app.tables}), run.warn)
    while pending := engine.pending(BATCH_RECORDS_MAX):
        changes = [with_own_version(origins.change(record.record)) for record in pending]
        batch = process_changes(app, changes, engine, run)
        failed = {failure.sequence for failure in batch.failures}
        merge(report, batch)
        done = [record.sequence for record in pending if str(record.sequence) not in failed]
        engine.advance(pending[-1].sequence, done)
    return report


def with_own_version(change: Change) -> Change:
    """A change of the own stream; that of a source item, which a cascade removed, bears its version.

    The item has a history of its own, in which the numbers of this stream are no place.
    """
    change.version_text = change.record.get(OWN_VERSION, change.version_text)
    return change
