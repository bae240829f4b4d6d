"""The end of a batch: kinds finish after the commit, and a report has failures, counts, and rows per handler."""

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import localcontext
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from streamfold.batch.manifest import APPLICATIONS_KEPT
from streamfold.commit.outcome import (
    Failed,
    Failure,
    Held,
    Outcome,
    Triage,
    add_counts,
    add_tallies,
    explained,
    raised_at,
    reported,
)
from streamfold.commit.pending import PendingWork, clear_pending
from streamfold.commit.plan import Deferred
from streamfold.derivations import in_order
from streamfold.derivations.derivation import Derivation, Finishing, Work, derivation
from streamfold.errors import is_fatal
from streamfold.records.change import Change
from streamfold.records.values import EXACT
from streamfold.routes.route import Route
from streamfold.runtime import Runtime

if TYPE_CHECKING:
    from streamfold.commit.outcome import Counts, Tallies
    from streamfold.keys.key import NearMiss

ForRoute = TypeVar("ForRoute", Deferred, Work)
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
        self.first_parked: dict[str, Failure] = {}  # the first parked record and its error, by handler
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


def finish(
    deferred: Iterable[Deferred], subscribed: Sequence[Work], finishing: Finishing, *, last: bool = False
) -> Outcome:
    """The kinds' work after the commit, kind by kind: first the kinds that contribute.

    last: work that a replay postpones is done too.
    """
    outcome, runtime, pending_work = Outcome(), finishing.runtime, finishing.pending_work
    waiting, subscription = _by_kind(deferred), _by_kind(subscribed)
    found_kinds = {*waiting, *_finishing_kinds(runtime.application.routes)}
    kinds = in_order(found_kinds) if len(found_kinds) > 1 else [*found_kinds]
    for kind in [kind for kind in kinds if kind.contributes]:
        found = kind.finish(waiting.get(kind, ()), finishing._replace(subscribed=subscription.get(kind, ())))
        if found.failed:
            pending_work.fail(found.failed)
            found.failed = reported(found.failed, finishing.triage)
        outcome += found
    if pending_work.notes:
        clear_pending(runtime, pending_work)
    for kind in [kind for kind in kinds if not kind.contributes]:
        if kind.finishes_last and runtime.postponed is not None and not last:
            runtime.postponed += waiting[kind]
        else:
            outcome += kind.finish(waiting[kind], finishing)
    return outcome


@lru_cache(APPLICATIONS_KEPT)  # of contributing kinds few have work after every commit, and each batch asks
def _finishing_kinds(routes: tuple[Route, ...]) -> frozenset[Derivation]:
    kinds = {derivation(route) for route in routes if route.kind.contributes}
    return frozenset(kind for kind in kinds if type(kind).finish is not Derivation.finish)


def _by_kind(works: Iterable[ForRoute]) -> dict[Derivation, list[ForRoute]]:
    found: dict[Derivation, list[ForRoute]] = {}
    for each in works:
        found.setdefault(derivation(each.route), []).append(each)
    return found


def finish_postponed(runtime: Runtime) -> Report:
    """Does the postponed work at the end of a replay."""
    postponed, runtime.postponed = runtime.postponed or [], []
    triage = Triage(runtime)
    with localcontext(EXACT):
        outcome = finish(postponed, (), Finishing(runtime, triage, PendingWork()), last=True)
    report = Report()
    add_outcome(report, outcome, triage)
    return report


def add_outcome(report: Report, outcome: Outcome, triage: Triage) -> None:
    report.tallies = outcome.tallies
    report.parked, report.first_parked = triage.parked, triage.first
    if outcome.counts:
        add_counts(report.counts, outcome.counts)
    if outcome.failed:
        add_failures(report, outcome.failed)
