"""Visits at wakes: items whose handler asked for a moment that has come are derived again.

1. The wakes of a stripe up to now are listed, in order. 2. The ledger items are read. One that names another wake, or
none, is passed over, and nothing is deleted: a step under way may have put this wake again. 3. The item is visited
(``batch.visits``) at the greatest of the own time, the ledger item's and the wake's: whoever visits need not be who
listed. The transaction of the visit deletes the wake, or puts the next one.

| a process dies      | what follows                                       | otherwise                       |
| ------------------- | -------------------------------------------------- | ------------------------------- |
| before the          | the wake is there: the next round visits           |                                 |
| transaction         |                                                    |                                 |
| between it and the  | the transaction leaves the wake where rows are to  | nobody comes back for the rows: |
| end of rows         | be finished; a second visit deletes it behind that | no record is retried            |
| after an item was   | its wake is there: the item is parked once more    | neither parked nor visited      |
| parked              |                                                    |                                 |

A handler that raises keeps nobody waiting. If it parks, its item is parked *first*, and then one transaction deletes
the wake and leaves the rows. Otherwise one transaction puts the wake off: by five minutes, and doubling up to an hour.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import localcontext
from typing import Any, NamedTuple

from streamfold.batch.fan_outs import run_chains
from streamfold.batch.process import check_application
from streamfold.batch.referrers import VisitFailed
from streamfold.batch.report import Report, add_outcome, finish, merge
from streamfold.batch.visits import HandlerOfItem, Visit, VisitedItem, Visits, synthetic_change
from streamfold.commit.buckets import empty_unvisited, note_unvisited
from streamfold.commit.outcome import Outcome, Triage, lacks_the_record
from streamfold.commit.pending import PendingWork
from streamfold.commit.plan import Unit
from streamfold.derivations.derivation import Finishing, Work, derivation
from streamfold.engines.protocol import Entries
from streamfold.errors import EngineError, HandlerError, ItemFault, NotStarted
from streamfold.ledger.contribution import REFERENCE, stored_references, stored_rows, stored_text
from streamfold.ledger.state_keys import document_key, wakes_head
from streamfold.ledger.step import Step, awaited_wake
from streamfold.ledger.wakes import (
    BEFORE_ALL_WAKES,
    DELAY_SECONDS_MAX,
    STRIPES,
    VISITED_WITHIN_SECONDS,
    Times,
    Waits,
    Wake,
    partitions,
    until,
    wake_writes,
)
from streamfold.records.change import ItemKey
from streamfold.records.values import EXACT
from streamfold.routes.moments import moment_text
from streamfold.routes.route import SOURCE, Fields, Route
from streamfold.runtime import MICROSECONDS, VISITS, QueuedSegment, Runtime
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import CounterWrite, LedgerWrite, RowKey, StateKey

PAGE = 500
"""Wakes that are listed, and items that are visited, at a time: some seconds of work."""
LEASE_SECONDS = 120
"""A round whose head was not renewed for so long is dead: a page takes seconds."""


class HandlerWake(NamedTuple):
    """A wake of a handler."""

    route: Route
    wake: Wake

    @property
    def of(self) -> HandlerOfItem:
        return self.wake.item, self.route.name


class PutOff(NamedTuple):
    """A wake at which the handler raised."""

    wake: Wake
    is_parked: bool


@dataclass(slots=True)
class AtWakes:
    """What visits at wakes do with moments (``batch.visits.VisitTimes``)."""

    runtime: Runtime
    wakes: Mapping[HandlerOfItem, Wake]
    releases: bool = False  # the second visit, behind rows that were finished
    put_off: Mapping[HandlerOfItem, PutOff] = field(default_factory=dict)
    called: dict[HandlerOfItem, int] = field(default_factory=dict)  # moments at which handlers were called once

    def visits(self, read: Visit) -> bool:
        if read.unit is not None:  # it was refused: it is visited as it is now, whatever its wake is
            return True
        named = [each for each in read.wanted.handlers if self._names(read, each[0])]
        if len(named) < len(read.wanted.handlers):
            read.wanted = read.wanted._replace(handlers=named)
            read.routes = tuple([route for route, _ in named])
        return bool(named)

    def since(self, read: Visit, route: Route, since: int | None) -> int | None:
        return max(since or 0, self.wakes[read.item, route.name].moment)

    def held(self, times: Times, read: Visit, route: Route) -> Times:
        called_at = self.called.get((read.item, route.name))
        return times._replace(holds=not times.once, holds_rows=not self.releases, called_at=called_at)

    def kept(self, read: Visit, route: Route, version: str) -> Step | None:
        each = self.put_off.get((read.item, route.name))
        if each is None:
            return None
        contribution = read.found.contributions.get(route.name)
        text, times = contribution.text if contribution else "", None
        if self._names(read, route):
            # A step that comes meanwhile knows by its moment that a timer was put off.
            wake, once = each.wake, route.kind.calls_once(route)
            since = each.wake.first_moment if once else Waits.of(text).since
            at = max(self.runtime.moment, wake.moment)
            later = None if each.is_parked else at + wake.next_delay_seconds * MICROSECONDS
            times = Times(at, since, later, put_off_seconds=wake.next_delay_seconds, first=wake.first_moment)
        references = stored_references(text)
        return Step(route, version, None, stored_rows(text), references=references, times=times, keeps_rows=True)

    def _names(self, read: Visit, route: Route) -> bool:
        contribution = read.found.contributions.get(route.name)
        text = contribution.text if contribution else ""
        return Waits.of(text).wake == self.wakes[read.item, route.name].moment


class PresentTime:
    """What a repair does with moments: the present time counts, also where a clock that was ahead has gone beyond it,
    and the wake is put again, in case it was lost.
    """

    def visits(self, read: Visit) -> bool:  # noqa: ARG002 - each is visited
        return True

    def since(self, read: Visit, route: Route, since: int | None) -> int | None:  # noqa: ARG002 - of the protocol
        return None

    def held(self, times: Times, read: Visit, route: Route) -> Times:  # noqa: ARG002 - alike for each
        return times._replace(renews=True)

    def kept(self, read: Visit, route: Route, version: str) -> Step | None:  # noqa: ARG002 - its rows are derived
        return None


def lacking_wakes(runtime: Runtime, visits: Iterable[Visit]) -> dict[tuple[str, ItemKey], int]:
    """How many wakes that ledger items name are not there, by handler and item."""
    application, wanted = runtime.application.name, dict[StateKey, tuple[str, ItemKey]]()
    for visit in visits:
        for step in visit.steps:
            if not step.route.asks_time:
                continue
            handler = step.route.name
            if (key := awaited_wake(application, handler, visit.item, visit.stored(step))) is not None:
                wanted[key] = handler, visit.item
    found = runtime.engine.read_state(wanted, consistent=True) if wanted else {}
    return {of: 1 for key, of in wanted.items() if key not in found}


def awaited_rows(runtime: Runtime, routes: Sequence[Route]) -> set[RowKey]:
    """The rows that visits at wakes may change whose moment came less than ``VISITED_WITHIN_SECONDS`` ago."""
    rows, now = set[RowKey](), runtime.moment
    visits = Visits(runtime=runtime, dry_run=True, gets=False)
    for route, partition in _stripes(runtime, routes):
        after = until(now - VISITED_WITHIN_SECONDS * MICROSECONDS - 1)
        while found := listed(runtime, route, partition, after, now):
            read = visits.read(WakeVisits(runtime).items(found))
            for visit, step in ((each, own) for each in read for own in each.steps):
                rows.update(stored_rows(visit.stored(step)), step.after)
            after = found[-1].wake.position
    return rows


class WakeVisits:
    """Visits items of one application at their wakes."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = replace(runtime, actions=ACTIONS_MAX) if runtime.actions is None else runtime
        self.triage = Triage(runtime)

    def visit(self, wakes: Sequence[HandlerWake]) -> Report:
        """Visits the items of wakes once. Failures are of items on which a handler raises, or that were not reached.

        Raises ``EngineError`` if nothing can be read.
        """
        report = Report()
        outcome = self._with_ledger([each for each in wakes if each.route.kind.contributes])
        outcome += self._without_ledger([each for each in wakes if not each.route.kind.contributes])
        outcome.done.clear()
        outcome.fresh.clear()
        add_outcome(report, outcome, self.triage)
        self.triage = Triage(self.runtime)
        return report

    def _with_ledger(self, wakes: Sequence[HandlerWake]) -> Outcome:
        by_item = {each.of: each.wake for each in wakes}
        if not wakes:
            return Outcome()
        outcome, held = self._visited(wakes, AtWakes(self.runtime, by_item))
        failing = {(failed.change.item, failed.route.name) for failed in outcome.failed}
        put_off = self._put_off(outcome, by_item)
        done = [each for each in wakes if each.of in held and each.of not in failing]
        if done:  # their rows are finished
            outcome += self._visited(done, AtWakes(self.runtime, by_item, releases=True))[0]
        if put_off:
            kept = AtWakes(self.runtime, by_item, put_off=put_off)
            outcome += self._visited([each for each in wakes if each.of in put_off], kept)[0]
        return outcome

    def _put_off(self, outcome: Outcome, wakes: Mapping[HandlerOfItem, Wake]) -> dict[HandlerOfItem, PutOff]:
        """Parks the items on which handlers raised, and returns whose wakes are to be put off or deleted."""
        put_off: dict[HandlerOfItem, PutOff] = {}
        wrong, outcome.failed = outcome.failed, []
        for failed in wrong:
            if lacks_the_record(failed.error):  # of the store: the wake is there, and the next round comes back
                outcome.failed.append(failed)
                continue
            wake = wakes[failed.change.item, failed.route.name]
            first = wake.first_moment
            asked = VisitFailed.of(failed, self.runtime, moment_text(first), first / MICROSECONDS)
            reported = self.triage(asked)
            put_off[failed.change.item, failed.route.name] = PutOff(wake, reported is None)
            outcome.failed += [] if reported is None else [reported]
        return put_off

    def _visited(self, wakes: Sequence[HandlerWake], moments: AtWakes) -> tuple[Outcome, set[HandlerOfItem]]:
        """The outcome of visits, and the handlers of items whose wakes may still be in place because of their rows."""
        self.runtime.begin()
        visits, units, outcome = Visits(runtime=self.runtime, gets=False, moments=moments), list[Unit](), Outcome()
        read = visits.read(self.items(wakes))
        if any(each.route.kind.calls_once(each.route) for each in wakes):
            from streamfold.batch.timers import call_once  # few applications have timers

            outcome += call_once(visits, read, moments.called)
        for visit in read:
            outcome.failed += visit.failed
            if visit.steps:
                units.append(visits.unit(visit, visit.steps))
                visits.desk.note(visit)
        outcome += visits.commit(units)
        outcome += finish((), (), Finishing(self.runtime, lambda failed: failed, visits.pending_work))
        held = {of for unit in units for of in _held(unit, moments)}
        again = [visit for visit in visits.visited.values() if visit.unit is not None]
        held |= {(visit.item, step.route.name) for visit in again for step in visit.steps}
        return outcome, held

    def items(self, wakes: Sequence[HandlerWake]) -> list[VisitedItem]:
        """The items of wakes, with the handlers that visit each."""
        handlers: dict[tuple[object, str], VisitedItem] = {}
        for each, fields in self._declared(wakes):
            item, group = each.wake.item, each.route.group
            known = handlers.get((item, group), VisitedItem(item, group, ()))
            handlers[item, group] = known._replace(handlers=[*known.handlers, (each.route, fields)])
        return [*handlers.values()]

    def _declared(self, wakes: Iterable[HandlerWake]) -> Iterator[tuple[HandlerWake, Fields]]:
        """The wakes of items for which their handlers are still declared."""
        for each in wakes:
            for route, fields in self.runtime.application.sources(each.wake.item):
                if route is each.route:
                    yield each, fields

    def _without_ledger(self, wakes: Sequence[HandlerWake]) -> Outcome:
        """Has kinds without a ledger reconcile the items when they finish, as for changes of referents."""
        counters = Counters(self.runtime, {each.of: each.wake for each in wakes})
        wakes = [each for each in wakes if each.of in counters.named]
        deferred = [
            derivation(each.route).deferred_of(
                Work(each.route, each.wake.item, SOURCE, fields, (synthetic_change(each.wake.item),))
            )
            for each, fields in self._declared(wakes)
        ]
        if not deferred:
            return Outcome()
        outcome = finish(deferred, (), Finishing(self.runtime, lambda failed: failed, PendingWork()))
        counters.put_off(self._put_off(outcome, counters.wakes))
        return outcome


class Counters:
    """The counters' items of searches, which name wakes as ledger items do."""

    def __init__(self, runtime: Runtime, wakes: Mapping[HandlerOfItem, Wake]) -> None:
        self.runtime, self.wakes = runtime, wakes
        self.keys = {of: document_key(runtime.application.name, of[1], of[0]) for of in wakes}
        found = runtime.engine.read_state(self.keys.values(), consistent=True) if wakes else {}
        self.named = {of for of, key in self.keys.items() if self._waits(found.get(key)).wake == wakes[of].moment}

    def put_off(self, put_off: Mapping[HandlerOfItem, PutOff]) -> None:
        """Puts wakes off, or deletes those of parked items, on the numbers of their counters: a newer run has asked
        anew.
        """
        keys = [self.keys[of] for of in put_off]
        found = self.runtime.engine.read_state(keys, consistent=True) if keys else {}
        for of, (wake, is_parked) in put_off.items():
            stored = found.get(self.keys[of])
            before = self._waits(stored)
            if stored is None or before.wake != wake.moment:
                continue
            at, delay = max(self.runtime.moment, wake.moment), wake.next_delay_seconds
            later = None if is_parked else at + delay * MICROSECONDS
            after, references = Waits(before.since, later), stored_references(str(stored.get("refs", "")))
            text = stored_text({}, references, after.text)
            expires = True if is_parked and not (references or stored.get("ids")) else None
            write = CounterWrite(self.keys[of], int(stored["n"]), references=text, expires=expires)
            times = Times(at, before.since, later, put_off_seconds=delay, first=wake.first_moment)
            writes = wake_writes(self.runtime.application.name, of[1], of[0], before, after, times)
            self.runtime.engine.transact([write, *writes], self.runtime.expires_at)

    @staticmethod
    def _waits(stored: Mapping[str, Any] | None) -> Waits:
        return Waits.of(str((stored or {}).get("refs", "")))


def _held(unit: Unit, moments: AtWakes) -> Iterator[HandlerOfItem]:
    """The handlers of a unit that leave their wakes in place."""
    assert isinstance(unit.guard, LedgerWrite)
    for each in unit.guard.contributions:
        of = unit.item, each.handler
        wake = None if of in moments.put_off else moments.wakes.get(of)
        # Of a large contribution the text is elsewhere: another visit finds out.
        is_kept_here = not each.contribution.startswith(REFERENCE)
        if wake is not None and not (is_kept_here and Waits.of(each.contribution).wake != wake.moment):
            yield of


def asking(runtime: Runtime) -> list[Route]:
    """The handlers of this process that ask for the time."""
    routes = [route for route in runtime.application.routes if route.asks_time]
    off = runtime.settings.handlers_off  # also of the handler that a visit calls
    return [
        route
        for route in routes
        if runtime.settings.runs(route.name, route.group) and route.kind.calls_once(route) not in off
    ]


def listed(
    runtime: Runtime,
    route: Route,
    partition: str,
    after: str,
    to: int,
    most: int = PAGE,
    *,
    consistent: bool = True,
) -> list[HandlerWake]:
    """The wakes of a stripe behind a position and up to a moment. Raises ``EngineError`` for one that is damaged."""
    found = runtime.engine.read_entries(Entries(partition, most, after, before=until(to), consistent=consistent))
    return [HandlerWake(route, Wake.of(position, text)) for position, text in found]


# On a local state


def work_off(runtime: Runtime, to: int | None = None) -> Report:
    """Visits the items of all wakes up to a moment of a state with records of its own; up to its clock without one.

    With handlers that read derived rows, each moment is worked off by itself, and chains are run to their end before
    the next: these handlers see the states of rows between. Without any, only the last state counts.
    """
    report, stream, routes = Report(), runtime.store.own_stream, asking(runtime)
    if runtime.handlers is not None:
        routes = [route for route in routes if route.name in runtime.handlers]
    if stream is None or not routes or runtime.late:
        return report
    if to is None:
        to = runtime.moment
    application = runtime.application
    with localcontext(EXACT):
        if not (application.chained or any(derivation(route).touches(route) for route in application.routes)):
            stream.advance_clock(to / MICROSECONDS)
            for page in _pages(runtime, routes, to):
                merge(report, WakeVisits(runtime).visit(page))
            return report
        for wakes in _moments(runtime, routes, to):
            stream.advance_clock(wakes[0].wake.moment / MICROSECONDS)
            merge(report, WakeVisits(runtime).visit(wakes))
            merge(report, run_chains(runtime, stream))
        stream.advance_clock(to / MICROSECONDS)
    return report


def _pages(runtime: Runtime, routes: Sequence[Route], to: int) -> Iterator[list[HandlerWake]]:
    page: list[HandlerWake] = []
    for route, partition in _stripes(runtime, routes):
        after, found = BEFORE_ALL_WAKES, list[HandlerWake]()
        while after == BEFORE_ALL_WAKES or len(found) == PAGE:
            found = listed(runtime, route, partition, after, to)
            page += found
            after = found[-1].wake.position if found else ""
            if len(page) >= PAGE:
                yield page
                page = []
    if page:
        yield page


def _stripes(runtime: Runtime, routes: Iterable[Route]) -> list[tuple[Route, str]]:
    return [(route, each) for route in routes for each in partitions(runtime.application.name, route.name)]


def _moments(runtime: Runtime, routes: Sequence[Route], to: int) -> Iterator[list[HandlerWake]]:
    """The wakes of each moment, also of those that are put meanwhile; in the order of handlers and items."""
    after = BEFORE_ALL_WAKES
    stripes = _stripes(runtime, routes)
    while firsts := [
        (found[0].wake.moment, *stripe) for stripe in stripes if (found := listed(runtime, *stripe, after, to, 1))
    ]:
        moment = min(first for first, *_ in firsts)
        wakes: list[HandlerWake] = []
        for first, route, partition in firsts:
            begin = after
            while first == moment and (found := listed(runtime, route, partition, begin, moment)):
                wakes += found
                begin = found[-1].wake.position
        yield sorted(wakes, key=lambda each: (each.route.name, each.wake.position))
        after = until(moment)


# On DynamoDB


class StripeHead(NamedTuple):
    """Who visits the items of a stripe's wakes."""

    revision: int = 0
    until_seconds: float = 0.0  # by the store's time

    def is_free(self, now: float) -> bool:
        # A time further ahead is of a clock that was fast: nobody waits for it.
        return not now < self.until_seconds <= now + LEASE_SECONDS


class StripeVisits:
    """The visits at the wakes of one stripe of a handler."""

    def __init__(self, runtime: Runtime, route: Route, stripe: str) -> None:
        self.runtime, self.route = runtime, route
        self.partition = [*partitions(runtime.application.name, route.name)][STRIPES.index(stripe)]
        self.head = wakes_head(runtime.application.name, route.name, stripe)

    def run(self) -> Report:
        """Visits until no wake is late, or until time is over; then the stripe is queued again.

        Returns at once if another process is at it. Two at a time do no harm: the second finds wakes that no ledger
        item names.
        """
        report, after = Report(), BEFORE_ALL_WAKES
        if not self._takes():
            return report
        try:
            while found := listed(self.runtime, self.route, self.partition, after, self.runtime.moment):
                merge(report, WakeVisits(self.runtime).visit(found))
                after = found[-1].wake.position
                if len(found) < PAGE:
                    break
                self.runtime.begin()
                self._takes(again=True)
        except NotStarted:
            self.runtime.enqueue(VISITS + self.route.name, [STRIPES.index(self.head.sk[-1])])
        finally:
            self._leaves()
        return report

    def _read(self) -> StripeHead:
        stored = self.runtime.engine.read_state([self.head], consistent=True).get(self.head, {})
        return StripeHead(int(stored.get("r", 0)), float(str(stored.get("until", 0))))

    @property
    def _now(self) -> float:
        return self.runtime.moment / MICROSECONDS

    def _takes(self, *, again: bool = False) -> bool:
        head = self._read()
        if not again and not head.is_free(self._now):
            return False
        lease = {"until": f"{self._now + LEASE_SECONDS:.3f}", "ttl": self.runtime.expires_at}
        return self.runtime.engine.swap_state(self.head, lease, head.revision)

    def _leaves(self) -> None:
        with ItemFault():  # its lease ends by itself
            head = self._read()
            self.runtime.store.swap_state(self.head, {"until": "0", "ttl": self.runtime.expires_at}, head.revision)


def visit_stripe(runtime: Runtime, queued: QueuedSegment) -> Report:
    """Works on a queued stripe. Raises errors that all would meet, and ``EngineUnavailable``."""
    check_application(runtime, write=False)
    name, number = queued
    route = next((each for each in asking(runtime) if VISITS + each.name == name), None)
    if route is None or not 0 <= number < len(STRIPES):
        return Report()
    with localcontext(EXACT):
        return StripeVisits(runtime, route, STRIPES[number]).run()


class LateWakes(NamedTuple):
    """The wakes of a handler whose moment has come."""

    route: Route
    oldest_seconds: float  # since the first moment; 0: there is none
    stripes: Sequence[int]  # that have one


def late_wakes(runtime: Runtime, routes: Iterable[Route] | None = None) -> Iterator[LateWakes]:
    """The wakes whose moment has come, by handler: one query a stripe, not strongly consistent."""
    now = runtime.moment
    for route in asking(runtime) if routes is None else routes:
        stripes, oldest = list[int](), now
        for number, partition in enumerate(partitions(runtime.application.name, route.name)):
            wanted = Entries(partition, 1, BEFORE_ALL_WAKES, before=until(now), consistent=False)
            if found := runtime.engine.read_entries(wanted):
                stripes.append(number)
                oldest = min(oldest, Wake.of(*found[0]).moment)
        yield LateWakes(route, (now - oldest) / MICROSECONDS, stripes)


def put_off_wakes(runtime: Runtime, route: Route) -> list[Wake]:
    """The wakes that were put off because the handler raised, in the order of their first moments.

    A wake is put off by an hour at the most. Of a stripe with more than ``PAGE`` wakes up to then the others are left
    out: one query a stripe, not strongly consistent.
    """
    until_moment = runtime.moment + DELAY_SECONDS_MAX * MICROSECONDS
    found = [
        each.wake
        for partition in partitions(runtime.application.name, route.name)
        for each in listed(runtime, route, partition, BEFORE_ALL_WAKES, until_moment, consistent=False)
    ]
    return sorted((each for each in found if each.put_off_seconds), key=lambda each: each.first_moment)


def enqueue_stripes(runtime: Runtime) -> dict[str, float]:
    """Queues the stripes with a wake whose moment has come; returns the seconds since the oldest, by handler.

    Moves the deltas of processes that died, too: there is no record behind a visit that would wait for them.
    """
    if runtime.known.deltas is not None:
        with suppress(EngineError, HandlerError):  # a favour to others
            note_unvisited(runtime)
            while runtime.pace.sharing.unvisited and runtime.enough_time():
                empty_unvisited(runtime)
    ages: dict[str, float] = {}
    for each in late_wakes(runtime):
        ages[each.route.name] = each.oldest_seconds
        if each.stripes:
            runtime.enqueue(VISITS + each.route.name, each.stripes)
    return ages
