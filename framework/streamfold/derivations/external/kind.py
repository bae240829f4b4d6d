"""The kind ``external``: calls of functions with side effects outside of the store."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from streamfold.derivations.derivation import CountedWord, Planned
from streamfold.derivations.external.options import Call, is_coroutine, limits_of
from streamfold.derivations.on.kind import OnChanges
from streamfold.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Finishing, Planning, Work
    from streamfold.derivations.expected import Expected, History, KnownChange
    from streamfold.engines.protocol import Engine
    from streamfold.records.change import Change
    from streamfold.routes.route import Route
    from streamfold.settings import Settings

SKIPPED = "external_skipped"
POWERTOOLS = "aws_lambda_powertools"
"""Guards each call by its idempotency utility; a function's archive has it only where a handler needs it."""


class External(OnChanges):
    """A function that is called for each change, at least once: a plain one, or a coroutine."""

    name = "external"
    write_units = "2"
    outside = True
    takes_coroutines = True
    says: ClassVar[Mapping[str, CountedWord]] = {
        SKIPPED: CountedWord("External handler {name} was not called for {count} records; --external calls it.")
    }

    def guard(self, route: Route) -> str:
        return "idempotency"

    def check_settings(self, route: Route, settings: Settings) -> None:
        super().check_settings(route, settings)
        if settings.serves(route.group) and not is_coroutine(route) and find_spec(POWERTOOLS) is None:
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
        from streamfold.derivations.external.side_by_side import make_calls

        return make_calls((call for call in deferred if isinstance(call, Call)), finishing)

    def call_limits(self, route: Route) -> str:
        return str(limits_of(route))

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import STATE, dynamodb

        return dynamodb(STATE, "PutItem")

    def explained_change(self, route: Route, change: KnownChange, engine: Engine) -> str:
        from streamfold.derivations.external.notes import noted_call

        return noted_call(route, change, engine)

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected

        return Expected()  # proofs do not call it


EXTERNAL = External()
