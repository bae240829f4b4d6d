"""The kind ``external``: calls of functions with side effects outside of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from streamfold.derivations.derivation import CountedWord, Planned
from streamfold.derivations.on.kind import OnChanges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.derivation import Finishing, Planning, Work
    from streamfold.derivations.expected import Expected, History
    from streamfold.records.change import Change, ItemKey
    from streamfold.routes.route import Fields, Route

SKIPPED = "external_skipped"


class Call(NamedTuple):
    """A pending call for a change."""

    route: Route
    changes: tuple[Change, ...]
    fields: Fields

    def __str__(self) -> str:
        return f"call {self.route.name} for {self.changes[0].name}"


class External(OnChanges):
    """A plain function that is called for each change, at least once."""

    name = "external"
    outside = True
    says: ClassVar[Mapping[str, CountedWord]] = {
        SKIPPED: CountedWord("External handler {name} was not called for {count} records; --external calls it.")
    }

    def guard(self, route: Route) -> str:
        del route
        return "idempotency"

    def of_change(self, work: Work, change: Change, planning: Planning) -> Planned:
        if planning.runtime.outside:
            return Planned(deferred=[Call(work.route, (change,), work.fields)])
        planning.count(SKIPPED, work.route)
        return Planned()

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        from streamfold.commit.outcome import HELD, Failed, Held, Outcome, explained
        from streamfold.derivations.external.calls import ExternalCalls

        outcome = Outcome()
        calls = ExternalCalls(finishing.runtime)
        held: set[tuple[str, ItemKey]] = set()
        for call in deferred:
            assert isinstance(call, Call)
            (change,), route = call.changes, call.route
            if (route.name, change.item) in held:
                outcome.failed.append(Failed(change, route, Held(HELD)))
            elif (error := calls.call(route, change, call.fields)) is not None:
                failures = finishing.failures([change], route, explained(route, error))
                if failures:
                    outcome.failed += failures
                    held.add((route.name, change.item))
        return outcome

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected

        del route, history
        return Expected()  # proofs do not call it


EXTERNAL = External()
