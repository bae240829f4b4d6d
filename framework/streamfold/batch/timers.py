"""Timers: handlers that visits at wakes call once for each moment of an item (``derivations.timers``).

1. The ledger item is read, then its source; the function gives the moment. 2. The handler is called if the moment has
come and the ledger item does not have it as used: its effects are committed behind a claim of the moment, its
call or message is noted by the moment. 3. The transaction of the visit deletes the wake, and notes the moment.

| a process dies       | what follows                                  | otherwise                              |
| -------------------- | --------------------------------------------- | -------------------------------------- |
| before 2             | the wake is there: the next round visits      | lost, if 3 came before 2               |
| between 2 and 3      | the wake is there; the claim refuses effects  | twice, without a claim                 |
| behind 3             | the ledger item has the moment                | again for each record, once the claim  |
|                      |                                               | has expired                            |

An item whose moment changes between 1 and 3 has had the moment that was used when it was read. The transaction of 3 is
refused then, and the visit reads the item again: it puts the wake of the other moment.
"""

from collections.abc import Sequence
from typing import NamedTuple

from streamfold.batch.report import Failing, finish
from streamfold.batch.steps import Steps
from streamfold.batch.visits import HandlerOfItem, Visit, Visits
from streamfold.commit.committer import Committer
from streamfold.commit.outcome import Failed, Outcome
from streamfold.commit.plan import Plan
from streamfold.derivations.derivation import Finishing, Planned, Planning, Work, derivation
from streamfold.ledger.step import Step
from streamfold.ledger.wakes import Times, Waits
from streamfold.records.change import Change
from streamfold.routes.moments import TimerChange
from streamfold.routes.route import SOURCE, Route
from streamfold.runtime import Runtime


class ItemTimer(NamedTuple):
    """A moment of an item that has come, and at which its handler is to be called."""

    visit: Visit
    step: Step  # of the moment
    change: TimerChange  # which the handler gets
    handler: Route

    @property
    def of(self) -> HandlerOfItem:
        return self.visit.item, self.handler.name

    @property
    def work(self) -> Work:
        fields = next(fields for route, fields in self.visit.wanted.handlers if route is self.step.route)
        return Work(self.handler, self.visit.item, SOURCE, fields, (self.change,))


def call_once(visits: Visits, read: Sequence[Visit], called: dict[HandlerOfItem, int]) -> Outcome:
    """Calls the handlers of visited items whose moment has come, and notes the moments in ``called``.

    The failures of the outcome are of the moments' routes. Steps of these are left out of the visits: their wakes stay.
    """
    runtime, outcome = visits.runtime, Outcome()
    found = {each.of: each for visit in read for step in visit.steps if (each := timer_of(runtime, visit, step))}
    if not found:
        return outcome

    def fails(change: Change, route: Route, error: Exception) -> bool:
        outcome.failed.append(Failed(change, route, error))
        return True

    planning = Planning(runtime, fails, lambda *_: None, lambda word, route: outcome.count(word, route.name))
    works: dict[Route, list[Work]] = {}
    for each in found.values():
        works.setdefault(each.handler, []).append(each.work)
    planned = Planned.joined(derivation(route).plan(own, planning) for route, own in works.items())
    steps = Steps(runtime, {}, Failing(None), [])  # a claim is refused once, unlike a visit
    if planned.units:
        committer = Committer(steps)
        transactions = committer.attempts.transactions(planned.units, apart=False)
        outcome += committer.carry_out(Plan(tuple(transactions), ()))
    outcome += finish(planned.deferred, (), Finishing(runtime, lambda failed: failed, steps.pending_work))
    failed, outcome.failed = outcome.failed, []
    for wrong in failed:
        each = found.pop((wrong.change.item, wrong.route.name), None)
        if each is not None:
            outcome.failed.append(Failed(each.visit.changes[0], each.step.route, wrong.error))
            each.visit.keep([step for step in each.visit.steps if step is not each.step])
    for each in found.values():
        _note(each, called)
    return outcome


class PastIsUsed:
    """What pages of backfills and rebuilds do with moments: the past ones of items that the ledger does not know count
    as used. A handler that is new would else be called for each old item.
    """

    def visits(self, read: Visit) -> bool:  # noqa: ARG002 - each is visited
        return True

    def since(self, read: Visit, route: Route, since: int | None) -> int | None:  # noqa: ARG002 - of the protocol
        return since

    def held(self, times: Times, read: Visit, route: Route) -> Times:
        contribution = read.found.contributions.get(route.name)
        is_known = contribution is not None and contribution.text != ""
        return times if is_known or not times.once else times._replace(called_at=times.came)

    def kept(self, read: Visit, route: Route, version: str) -> Step | None:  # noqa: ARG002 - each is called
        return None


def timer_of(runtime: Runtime, visit: Visit, step: Step) -> ItemTimer | None:
    """The timer of a step whose moment has come, unless its handler was called; None for other steps."""
    times = step.times
    if times is None or not times.once or times.came is None or visit.source is None:
        return None
    waits = Waits.of(visit.stored(step))
    if waits.once and waits.since == times.came:
        return None
    application, item = runtime.application, visit.item
    name = step.route.kind.calls_once(step.route)
    handler = next(route for route in application.routes if route.name == name)
    change = TimerChange(item, application.tables[item[0]], visit.source, times.came)
    return ItemTimer(visit, step, change, handler)


def _note(timer: ItemTimer, called: dict[HandlerOfItem, int]) -> None:
    """Has the step of a visit note that its handler was called."""
    step, moment = timer.step, timer.change.moment
    assert step.times is not None
    called[timer.visit.item, step.route.name] = moment
    done = step._replace(times=step.times._replace(called_at=moment))
    timer.visit.keep([done if each is step else each for each in timer.visit.steps])
