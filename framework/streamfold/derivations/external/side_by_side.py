"""The external calls of a batch, handler by handler: which are made at the same time, and what their failures hold."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from streamfold.commit.outcome import HELD, Failed, Held, Outcome, explained
from streamfold.derivations.external.options import is_coroutine, limits_of
from streamfold.derivations.outside_calls import OutsideCalls, process_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamfold.derivations.derivation import Finishing
    from streamfold.derivations.external.options import Call
    from streamfold.records.change import ItemKey
    from streamfold.routes.route import Route


def make_calls(calls: Iterable[Call], finishing: Finishing) -> Outcome:
    """Makes the calls of a batch; the outcome has the records that failed, were held or were not begun."""
    by_handler: dict[Route, list[Call]] = {}
    for call in calls:
        by_handler.setdefault(call.route, []).append(call)
    outcome = Outcome()
    for route, own in by_handler.items():
        limits = limits_of(route)
        outside = OutsideCalls(
            finishing.runtime,
            _item,
            partial(_fails, finishing, outcome),
            limits,
            rate=process_rate(finishing.runtime, route.name, limits),
        )
        run = _run_coroutines if is_coroutine(route) else _run_functions
        run(route, outside, own)
    return outcome


def _item(call: Call) -> ItemKey:
    return call.changes[0].item


def _fails(finishing: Finishing, outcome: Outcome, call: Call, error: Exception | None) -> bool:
    """Reports a call that failed, or was held behind one. A record that is parked instead holds nothing."""
    (change,), route = call.changes, call.route
    if error is None:
        outcome.failed.append(Failed(change, route, Held(HELD)))
        return True
    failures = finishing.failures([change], route, explained(route, error))
    outcome.failed += failures
    return bool(failures)


def _run_functions(route: Route, outside: OutsideCalls[Call], calls: Sequence[Call]) -> None:
    from streamfold.derivations.external.calls import ExternalCalls

    guarded = ExternalCalls(outside.calling)

    def call(together: Sequence[Call]) -> list[Exception | None]:
        return [guarded.call(route, each.changes[0], each.fields) for each in together]

    outside.run(calls, call)


def _run_coroutines(route: Route, outside: OutsideCalls[Call], calls: Sequence[Call]) -> None:
    # few applications have one, and no other start should wait for the event loop's module
    from streamfold.derivations.external.coroutines import PROCESS_LOOP, Coroutines, LoopFlight

    with PROCESS_LOOP.running() as loop:
        outside.flight = LoopFlight(loop)
        outside.run(calls, Coroutines(outside.calling, route).call)
