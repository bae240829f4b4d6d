"""The seam between a run and whoever carries it: a run has parts, each with a cursor in the state.

A part is a segment of a table, a file of an export, or what else a run is cut into. Doing one is idempotent, page by
page: so processes, a cluster, or a function that is called for each part may carry the same run, be killed, and begin
again. Nobody has to hold a lease.
"""

from collections.abc import Callable
from typing import Protocol

from streamfold.jobs.job import JobSegment
from streamfold.run import Deadline

ENDLESS = Deadline()


class RunParts(Protocol):
    """The parts of a run, by number."""

    def left(self) -> list[int]:
        """The parts that are not done."""
        ...

    def run_part(self, number: int, until: Deadline = ENDLESS) -> JobSegment:
        """Does a part from its cursor on, while ``until`` has time, and returns its cursor.

        The cursor moves after each page. A page that is done again changes nothing. Raises what reading and writing
        raise, and ``SettingsError`` where somebody ended the job.
        """
        ...


def run_here(parts: RunParts, done: Callable[[int], None] = lambda _: None) -> None:
    """Carries a run in this process, part after part; ``done`` is told each part that is done."""
    for number in parts.left():
        parts.run_part(number)
        done(number)
