"""The report of a batch: failures, counts, and rows per handler."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamfold.commit.outcome import Failed, Failure, Held, Triage, add_counts, add_tallies, explained, raised_at
from streamfold.errors import is_fatal
from streamfold.records.change import Change
from streamfold.routes.route import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamfold.commit.outcome import Counts, Tallies
    from streamfold.keys.key import NearMiss
Response = dict[str, list[dict[str, str]]]
"""The response to Lambda about a batch (Lambda Developer Guide, services-ddb-batchfailurereporting)."""
PREFIXES_MAX = 1000
OTHERS = "other keys"
"""Key prefixes without a route that are counted separately; the rest are counted together."""
MissedField = tuple[str, str]
"""A source key that items nearly match, as a state names it, and the field that does not fit."""


class Report:
    """The outcome of a batch."""

    def __init__(self, failures: Iterable[Failure] = ()) -> None:
        self.failures = list(failures)
        self.records = Counter[str]()  # records delivered, by handler
        self.delivered: dict[str, list[Change]] = {}  # these records, by handler: with metrics of handlers only
        self.failed = Counter[str]()  # records that failed, by handler
        self.tallies: dict[str, Tallies] = {}  # rows written and removed, by handler
        self.parked = Counter[str]()  # records parked, by handler
        self.first_parked: dict[str, str] = {}  # the first parked record and its error, by handler
        self.off = Counter[str]()  # records skipped for a handler that is switched off
        self.counts: Counts = {}  # counts of kinds, by word and handler
        self.unrouted = Counter[str]()  # records that no route reads, by key prefix
        self.near_missed = 0  # records that nearly match a source key; one that nearly matches several keys counts once
        self.near_misses = Counter[MissedField]()
        self.first_near: dict[MissedField, NearMiss] = {}  # the first near miss of each
        self.known = 0  # records that had taken effect before

    def count(self, word: str, handler: str) -> None:
        """Adds one to a count that a kind declares in ``says``."""
        add_counts(self.counts, {word: Counter([handler])})

    def count_near_misses(self, misses: "Sequence[NearMiss]", records: int) -> None:
        """Counts records of one item, which nearly matches these source keys."""
        self.near_missed += records
        for miss in misses:
            missed = miss.template.stored_name, miss.field
            self.near_misses[missed] += records
            self.first_near.setdefault(missed, miss)


def response_of(failures: Iterable[Failure]) -> Response:
    """The partial batch response with the failures, each record or message once."""
    identifiers = dict.fromkeys(failure.sequence for failure in failures if failure.sequence)
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in identifiers]}


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
    report.near_missed += other.near_missed
    report.near_misses += other.near_misses
    report.first_near = {**other.first_near, **report.first_near}
    report.known += other.known
    add_counts(report.counts, other.counts)
    add_tallies(report.tallies, other.tallies)


def add_failures(report: Report, failed: Iterable[Failed]) -> None:
    seen = set()
    for change, route, error in failed:
        if (mark := (id(change), route.name)) not in seen:
            seen.add(mark)
            report.failed[route.name] += 1
            details = isinstance(error, Held), route.declared_at, raised_at(route, error)
            report.failures.append(Failure(change.sequence, change.name, route.name, error, *details))


class Failing:
    """Takes the failures of a batch. Without a ``triage`` (a dry run) every failure is reported."""

    def __init__(self, triage: Triage | None) -> None:
        self.triage = triage
        self.failed: list[Failed] = []

    def fails(self, change: Change, route: Route, error: Exception) -> bool:
        """Whether a failure is reported. A parked record is not reported and holds back no later one.

        Raises an error that is no record's fault; nothing of the batch is written yet.
        """
        if is_fatal(error):
            raise error
        failed: Failed | None = Failed(change, route, explained(route, error))
        if failed is not None and self.triage is not None:
            failed = self.triage(failed)
        if failed is not None:
            self.failed.append(failed)
        return failed is not None
