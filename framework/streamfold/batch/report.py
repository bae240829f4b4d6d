"""What became of a batch: failures, counts, and rows per handler."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import NamedTuple

from streamfold.commit.outcome import Counts, Failed, Held, Tallies, add_counts, add_tallies
from streamfold.errors import NOT_TOLD, public, reason, shortened
from streamfold.routes.route import Route

ITEM_LENGTH_MAX = 400
"""Letters of an item's key in a message; a key may have 3,072 bytes."""
CAUSES_MAX = 3
"""An error that could not be parked, made of what a handler yielded in vain, made of what Python said of it."""
PREFIXES_MAX = 1000
OTHERS = "other keys"
"""Key prefixes without a route that are counted apart."""


class Failure(NamedTuple):
    """A record that could not be processed: its sequence number, item, the handler if it was one, and the error.

    ``held`` tells a record that was not attempted because an earlier change of the same item failed, ``declared_at``
    where the handler stands, ``file:line``, and ``raised_at``, likewise, the line of its file that raised, if one did.
    """

    sequence: str | None
    item: str
    handler: str | None
    error: Exception
    held: bool = False
    declared_at: str | None = None
    raised_at: str | None = None

    @property
    def what(self) -> str:
        """The error's type and text; a text of any length is cut."""
        return f"{type(self.error).__name__}: {shortened(str(self.error))}"

    @property
    def reason(self) -> str:
        """What the error says without content of the item, for a log: nothing where that is all of it."""
        said = public(reason(self.error))
        return "" if said == NOT_TOLD else shortened(said)

    @property
    def at(self) -> str | None:
        """The place in the user's code, ``file:line``: of the line that raised or else of the handler."""
        return self.raised_at or self.declared_at

    def __str__(self) -> str:
        place = f" ({self.at})" if self.at else ""
        who = f"handler {self.handler!r}{place}, " if self.handler else ""
        return f"{who}item {shortened(self.item, ITEM_LENGTH_MAX)}: {self.what}"


@dataclass(slots=True)
class Report:
    """What became of a batch."""

    failures: list[Failure] = field(default_factory=list)
    records: Counter[str] = field(default_factory=Counter)  # by handler, as all that follows
    failed: Counter[str] = field(default_factory=Counter)
    tallies: dict[str, Tallies] = field(default_factory=dict)
    parked: Counter[str] = field(default_factory=Counter)  # records that were put aside
    first_parked: dict[str, str] = field(default_factory=dict)  # the first of them, and why
    off: Counter[str] = field(default_factory=Counter)  # records that were skipped, because a handler is switched off
    counts: Counts = field(default_factory=dict)  # of what kinds have words for, by word and handler
    unrouted: Counter[str] = field(default_factory=Counter)  # records that no route wants, by key prefix
    known: int = 0  # records that the state already held

    def count(self, word: str, handler: str) -> None:
        """Counts under a word of a kind."""
        add_counts(self.counts, {word: Counter([handler])})


def merge(report: Report, other: Report) -> None:
    """Adds another batch's report to this one."""
    report.failures += other.failures
    report.records += other.records
    report.failed += other.failed
    for prefix, count in other.unrouted.items():
        report.unrouted[prefix if prefix in report.unrouted or len(report.unrouted) < PREFIXES_MAX else OTHERS] += count
    report.parked += other.parked
    report.first_parked = {**other.first_parked, **report.first_parked}
    report.off += other.off
    report.known += other.known
    add_counts(report.counts, other.counts)
    add_tallies(report.tallies, other.tallies)


def add_failures(report: Report, failed: Iterable[Failed]) -> None:
    seen = set()
    for change, route, error in failed:
        if (mark := (id(change), route.name)) not in seen:
            seen.add(mark)
            report.failed[route.name] += 1
            places = isinstance(error, Held), route.declared_at, raised_at(route, error)
            report.failures.append(Failure(change.sequence, change.name, route.name, error, *places))


def raised_at(route: Route, error: BaseException | None) -> str | None:
    """The line of the handler's file at which an error, or what it was made of, was raised deepest while it ran."""
    code = getattr(route.function, "__code__", None)
    for _ in range(CAUSES_MAX):
        if error is None or code is None:
            return None
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == code.co_filename]
        if lines:
            return f"{code.co_filename}:{lines[-1]}"
        error = error.__cause__
    return None
