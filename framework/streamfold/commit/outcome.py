"""What became of a plan: which changes failed, which were done already, and how many rows each handler changed."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

from streamfold.errors import StreamfoldError
from streamfold.records.change import Change
from streamfold.routes.route import Route


class Held(StreamfoldError):  # noqa: N818 - an outcome, not a mistake
    """Not attempted, because an earlier change of the same item failed for this handler."""


Counts = dict[str, Counter[str]]
HELD = "An earlier change of the same item failed for this handler; the record comes again after it."


class Failed(NamedTuple):
    """A change that one handler could not process, and why."""

    change: Change
    route: Route
    error: Exception


Triages = Callable[[Failed], Failed | None]
"""Decides about a failure: returns it if it is to be reported, None if its record is parked."""


def reported(failed: Iterable[Failed], triage: Triages) -> list[Failed]:
    """The failures that are to be reported: those whose records are not parked."""
    return [left for left in map(triage, failed) if left is not None]


class Tallies:
    """The rows of one handler."""

    __slots__ = ("handed_on", "removed", "unchanged", "written")

    def __init__(self) -> None:
        self.written = self.removed = 0
        self.unchanged = 0  # items whose rows stayed as they were
        self.handed_on = 0  # items with whose rows a fan-out goes on


class Outcome:
    """What became of a plan, or of what a kind did after it; ``+=`` joins two."""

    def __init__(self, failed: Iterable[Failed] = ()) -> None:
        self.failed = list(failed)
        self.tallies: dict[str, Tallies] = {}  # by handler
        self.done: list[Change] = []  # changes that the state already had
        self.fresh: list[Change] = []  # changes that the batch itself committed
        self.counts: Counts = {}  # by a kind's word (``Derivation.says``) and handler

    def tally(self, handler: str) -> Tallies:
        """The rows of a handler, to be counted up."""
        return self.tallies.setdefault(handler, Tallies())

    def count(self, word: str, handler: str, number: int = 1) -> None:
        """Counts under a word of a kind (``Derivation.says``)."""
        self.counts.setdefault(word, Counter())[handler] += number

    def __iadd__(self, other: "Outcome") -> Self:
        self.failed += other.failed
        self.done += other.done
        self.fresh += other.fresh
        add_counts(self.counts, other.counts)
        add_tallies(self.tallies, other.tallies)
        return self


def add_counts(counts: Counts, others: Counts) -> None:
    """Adds counts to counts."""
    for word, by_handler in others.items():
        counts.setdefault(word, Counter()).update(by_handler)


def add_tallies(tallies: dict[str, Tallies], others: dict[str, Tallies]) -> None:
    """Adds tallies to tallies."""
    for handler, other in others.items():
        mine = tallies.setdefault(handler, Tallies())
        mine.written += other.written
        mine.removed += other.removed
        mine.unchanged += other.unchanged
        mine.handed_on += other.handed_on
