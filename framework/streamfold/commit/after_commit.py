"""What follows the transactions of a plan: keyed puts, the removal of empty rows, and rows that are recomputed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from streamfold.commit.outcome import Failed
from streamfold.commit.plan import KeyedPut
from streamfold.commit.progress import Progress
from streamfold.commit.recompute import recompute
from streamfold.commit.sending import by_table
from streamfold.engines import Engine, Inserted
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, told
from streamfold.limits import STATEMENTS_MAX
from streamfold.run import Lanes, Run
from streamfold.run.pace import Emptying
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.writes.guarded import PutRow


def put_rows(engine: Engine, lanes: Lanes, puts: Sequence[KeyedPut], progress: Progress) -> None:
    """Writes rows whose key contains the change, each where none is."""
    rows: dict[RowKey, PutRow] = {}
    for put in puts:
        rows.setdefault(put.row.key, put.row)
    not_taken = EngineUnavailable("The store did not take the row; it is written when the record comes again.")
    failed: dict[RowKey, EngineError | HandlerError] = {}
    known: set[RowKey] = set()

    def insert(keys: Sequence[RowKey]) -> Inserted:
        return engine.insert_rows([rows[key] for key in keys])

    for keys, inserted in by_table([*rows], insert, lanes, STATEMENTS_MAX):
        if isinstance(inserted, EngineError):
            failed |= dict.fromkeys(keys, inserted)
            progress.note_fatal(inserted)
        else:
            failed |= dict.fromkeys(inserted.missing, not_taken)
            failed |= {
                key: HandlerError(f"The store refuses the row: {told(why)}") for key, why in inserted.refused.items()
            }
            known.update(inserted.known)
    for put in puts:
        if put.row.key in failed:
            progress.outcome.failed.append(Failed(put.change, put.route, failed[put.row.key]))
        else:
            progress.put(put, is_known=put.row.key in known)


def remove_empty(engine: Engine, lanes: Lanes, progress: Progress, emptying: Emptying) -> None:
    """Removes rows that nothing contributes to, and learns whose rows become empty."""
    unfinished, emptied = progress.unfinished, set[str]()
    for keys, removed in by_table(unfinished.maybe_empty(), engine.remove_empty, lanes, STATEMENTS_MAX):
        if isinstance(removed, EngineError):
            failures = _failures(keys, removed, progress)
            emptied.update(failed.route.name for failed in failures)  # for all that is known
            progress.report(failures)
            continue
        progress.lives.removed(removed)
        for key in removed:
            for handler in unfinished.handlers(key):
                progress.outcome.tally(handler).removed += 1
                emptied.add(handler)
    emptying.finished(Counter([handler for _, handler in unfinished.left]), emptied)


def recompute_rows(engine: Engine, run: Run, progress: Progress) -> None:
    """Recomputes rows whose entries moved.

    It follows the removal of empty rows: a row that is filled again in between could show what is gone from it.
    """
    changed: set[RowKey] = set()
    wrong = recompute(engine, progress.unfinished.moved, run, changed)
    for key in changed - progress.written:
        for handler in progress.unfinished.handlers(key):
            progress.outcome.tally(handler).written += 1
    progress.unfinished.wrong = wrong.keys()
    progress.report(failed for key, error in wrong.items() for failed in _failures([key], error, progress))


def _failures(keys: Iterable[RowKey], error: Exception, progress: Progress) -> list[Failed]:
    return [Failed(*cause, error) for key in keys for cause in progress.unfinished.causes(key)]
