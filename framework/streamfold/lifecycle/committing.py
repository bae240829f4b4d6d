"""Writes the units of a page. What is refused is handed back, and planned again from newer reads."""

from collections.abc import Iterable
from typing import Any

from streamfold.commit.attempts import Attempt
from streamfold.commit.committer import Committer
from streamfold.commit.plan import Unit
from streamfold.commit.replanning import writes_any
from streamfold.writes.guarded import CONDITION, CONFLICT, Refused


class PageCommitter(Committer):
    """Carries out the plan of a page.

    A unit of a live batch that is refused is planned again from the images at hand. The image of a page may be older
    than the ledger item that refused it: so units that are refused are handed back, and the others go on.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.handed_back: list[Unit] = []

    def _refused(self, attempt: Attempt, refused: Refused) -> None:
        codes = {reason.code for reason in refused.reasons if reason}
        if codes <= set(CONFLICT):
            super()._refused(attempt, refused)
            return
        writes = attempt.chunk.writes
        for write, reason in zip(writes, refused.reasons, strict=True):
            if reason is not None and reason.code == CONDITION:
                self.progress.lives.refused(write, reason.item)  # so that the next page knows better
        places = {write.key for write, reason in zip(writes, refused.reasons, strict=True) if reason}
        self._hand_back([unit for unit in attempt.chunk.units if writes_any(unit, places)])
        rest = [unit for unit in attempt.chunk.units if not writes_any(unit, places)]
        self._resend(rest, attempt.rounds + 1)

    def _split(self, attempt: Attempt, refused: Refused) -> None:
        """After conflicts that do not end: the units of the rows in conflict go one by one."""
        del refused
        self._hand_back(attempt.chunk.units)

    def _hand_back(self, units: Iterable[Unit]) -> None:
        self.handed_back += units
