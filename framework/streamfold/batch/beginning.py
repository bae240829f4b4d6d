"""What is read of the state while a batch is parsed and routed: the manifest, and a few ledger items."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from streamfold.batch.knowledge import knowledge
from streamfold.batch.manifest import begin_reading
from streamfold.batch.repeated import looked_at, sample
from streamfold.engines import Engine, StateItems
from streamfold.engines.timed import Timed
from streamfold.errors import EngineUnavailable, RecordError
from streamfold.records.change import Change, ItemKey
from streamfold.records.envelope import Origins, RawRecord
from streamfold.routes.application import Application
from streamfold.run import Run
from streamfold.writes.guarded import StateKey


class Beginning(NamedTuple):
    """A batch whose state is being read."""

    asked: Mapping[StateKey, ItemKey]  # ledger items that tell whether it came before
    read: Callable[[], StateItems]  # waits for the answer; raises the engine's errors

    def answer(self) -> StateItems | None:
        """What was read. None where the store did not answer and a ledger item may be to blame, as a throttled one is:
        then the manifest is read alone. Raises ``EngineUnavailable`` where none was asked for.
        """
        try:
            return self.read()
        except EngineUnavailable:
            if self.asked:
                return None
            raise


def begin(app: Application, changes: Sequence[Change], engine: Engine, run: Run) -> Beginning:
    """Begins to read the state for a batch."""
    return _begin(app, looked_at(changes, run), engine, run)


def begin_with_records(
    app: Application, records: Sequence[RawRecord], origins: Origins, engine: Engine, run: Run
) -> Beginning:
    """Begins to read the state for records that are parsed meanwhile. One that is malformed tells nothing."""
    return _begin(app, _parsed(looked_at(records, run), origins), engine, run)


def _begin(app: Application, some: Iterable[Change], engine: Engine, run: Run) -> Beginning:
    asked = sample(app, some, run)
    return Beginning(asked, begin_reading(app, Timed(engine, run), run, knowledge(run, app, engine), asked))


def _parsed(records: Iterable[RawRecord], origins: Origins) -> Iterator[Change]:
    for record in records:
        with suppress(RecordError):  # it is told when all of them are parsed
            yield origins.change(record)
