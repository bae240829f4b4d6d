"""Removes what the state keeps of a feed or a search: mirrors of items, and counters. Neither expires by itself.

Nothing is subtracted, because no ledger stands behind the rows: those of a feed expire by themselves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from streamfold.engines import Engine, StoredItem
from streamfold.jobs.fan_outs import FanOuts
from streamfold.lifecycle.keys import pages
from streamfold.lifecycle.retire import PartKept, RetireReport, TakenOut
from streamfold.lifecycle.state_items import found_in_state, state_key
from streamfold.routes.application import Application
from streamfold.run import Run
from streamfold.writes.guarded import DeleteState, StateKey


@dataclass(slots=True)
class KeptRetirement(TakenOut):
    """Drops what the state keeps of one handler whose kind does not contribute."""

    app: Application
    engine: Engine
    run: Run
    handler: str
    words: tuple[str, ...]
    report: RetireReport = field(default_factory=RetireReport)

    @property
    def remove(self) -> bool:
        """Rows are never taken back."""
        return False

    def pages(self) -> Iterator[Sequence[StateKey]]:
        """What is kept, some at a time. It is counted."""
        for page in pages(found_in_state(self.engine, self._kept)):
            self.report.parts += len(page)
            yield page

    def retire(self, page: Sequence[StateKey]) -> None:
        """Takes some of it out of the state. Doing it again changes nothing."""
        for first in range(0, len(page), self.run.chunk_actions):
            some = page[first : first + self.run.chunk_actions]
            refused = self.engine.transact([DeleteState(key) for key in some], self.run.expires_at)
            if refused is None:
                self.report.dropped += len(some)
            else:
                self.report.kept += [
                    PartKept(key, "The store refused to delete it; run the command again.") for key in some
                ]

    def end(self) -> None:
        """Drops the fan-outs of the handler that are open."""
        fan_outs = FanOuts(self.app.name, self.engine, self.run)
        for job in [job for job in fan_outs.all() if self.handler in job.handlers]:
            fan_outs.drop(job)

    def _kept(self, stored: StoredItem) -> StateKey | None:
        key = state_key(stored)
        begins = tuple(f"{word}#{self.app.name}#{self.handler}#" for word in self.words)
        return key if key.pk.startswith(begins) else None
