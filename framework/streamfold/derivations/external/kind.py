"""The kind ``external``: calls of functions with side effects outside of the store."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from streamfold.derivations.derivation import CountedWord, Planned
from streamfold.derivations.on.kind import OnChanges
from streamfold.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Finishing, Planning, Work
    from streamfold.derivations.expected import Expected, History
    from streamfold.records.change import Change, ItemKey
    from streamfold.routes.route import Fields, Route
    from streamfold.settings import Settings

SKIPPED = "external_skipped"
POWERTOOLS = "aws_lambda_powertools"
"""Guards each call by its idempotency utility; a function's archive has it only where a handler needs it."""


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
    write_units = "2"
    outside = True
    says: ClassVar[Mapping[str, CountedWord]] = {
        SKIPPED: CountedWord("External handler {name} was not called for {count} records; --external calls it.")
    }

    def guard(self, route: Route) -> str:
        return "idempotency"

    def check_settings(self, route: Route, settings: Settings) -> None:
        super().check_settings(route, settings)
        if settings.serves(route.group) and find_spec(POWERTOOLS) is None:
            raise SettingsError(
                f"External handler {route.name!r} ({route.declared_at}) needs Powertools, and the function lacks it: "
                "build it with external=True in a file of handlers/, which takes it along (make build), add the layer "
                "of Powertools, or set another STREAMFOLD_GROUP for this function."
            )

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

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import STATE, dynamodb

        return dynamodb(STATE, "PutItem")

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected

        return Expected()  # proofs do not call it


EXTERNAL = External()
