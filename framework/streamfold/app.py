"""The application as it is declared, and the ways in."""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import update_wrapper
from importlib import import_module
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streamfold.errors import DeclarationError
from streamfold.router import Router
from streamfold.routes.application import Application

if TYPE_CHECKING:
    from streamfold.commit.outcome import Failure
    from streamfold.engines.protocol import Engine
    from streamfold.settings import Settings

FUNCTION_NAME, HANDLER = "AWS_LAMBDA_FUNCTION_NAME", "_HANDLER"
"""Set in every execution environment: the function's name, and MODULE.NAME of what Lambda calls (Lambda Developer
Guide, configuration-envvars).
"""
Returned = TypeVar("Returned")


class LambdaEntry(Generic[Returned]):
    """A method that Lambda calls.

    ``lambda_handler = app.lambda_handler`` in the function's module imports boto3 and what the first batch needs, and
    makes the client: at init, when Lambda gives the most CPU, once for all environments that SnapStart restores, and
    before a request arrives where concurrency is provisioned. Elsewhere, and in a function of another entry, nothing is
    imported before a call.
    """

    def __init__(self, function: Callable[..., Returned], modules: Sequence[str]) -> None:
        self.function = function
        self.modules = modules  # what the first call imports besides the stream's function
        update_wrapper(self, function)  # type: ignore[arg-type]  # for documentation

    def __get__(self, app: "App | None", owner: type | None = None) -> Callable[..., Returned]:
        if app is None:
            return self.function
        if FUNCTION_NAME in os.environ and "STREAMFOLD_ENGINE" not in os.environ and self._is_called():
            from streamfold.lambda_entry.function import prepare

            prepare()
            for name in self.modules:
                import_module(name)
        return MethodType(self.function, app)

    def _is_called(self) -> bool:
        name = self.function.__name__
        return os.environ.get(HANDLER, name).rpartition(".")[2] == name


def entry(*modules: str) -> Callable[[Callable[..., Returned]], LambdaEntry[Returned]]:
    return lambda function: LambdaEntry(function, modules)


class App(Application):
    """An application: ``App("shop", routers=[shop, music])``.

    ``routers`` are ``Router``s, or modules that hold one named ``router``. ``name`` is part of every ledger key: never
    change it. ``retired`` names handlers that were removed: the state may have them, and the application need not.
    ``tenant`` names the field that separates tenants: every source and target must have it, and a row whose tenant
    differs from its source's is refused. Raises ``DeclarationError`` when the declarations do not fit together.
    """

    def __init__(
        self,
        name: str,
        routers: Sequence[Router | ModuleType],
        retired: Collection[str] = (),
        *,
        tenant: str | None = None,
    ) -> None:
        super().__init__(name, [route for router in _routers(routers) for route in router.routes], retired, tenant)

    def process(
        self, event: Any, *, engine: "Engine", settings: "Settings | None" = None, external: bool = False
    ) -> "list[Failure]":
        """Processes an event in this process and returns the failures; the list is empty if there are none.

        ``event`` is a Lambda event, a list of records, or one record. External handlers are called, and buckets of
        archives are written, only with ``external=True``. If the engine keeps its own stream, as the embedded engine
        does, chains run to their end. A state in a file, ``EmbeddedEngine(app.tables.values(), path="shop.db",
        wanted=app.chains)``, keeps the source items too, as a replay does. Warnings go to the logger ``streamfold``;
        only ``lambda_handler`` logs counts. Raises ``RecordError`` for an unknown envelope, ``EngineError`` when the
        store is missing, ``ManifestError`` when the application does not fit the state.
        """
        from streamfold.replay import local
        from streamfold.settings import Settings

        return local.process(self, event, engine, settings or Settings.from_environment(os.environ), external=external)

    @entry()
    def lambda_handler(self, event: Any, context: Any) -> dict[str, list[dict[str, str]]]:
        """The AWS Lambda entry: processes a batch and returns the partial batch response.

        Every record that failed is listed by its sequence number. Raises for an event that is no batch of records, so
        that no record is acknowledged unseen. With ``STREAMFOLD_ENGINE=embedded:FILE`` it works on a local state,
        without AWS. A module that takes ``app.lambda_handler`` while a function imports it makes the client at init.
        """
        if "STREAMFOLD_ENGINE" in os.environ:
            from streamfold.replay import local

            return local.handle(self, event)
        from streamfold.lambda_entry.function import handle

        return handle(self, event, context)

    @entry("streamfold.lifecycle.backfill")
    def work_handler(self, event: Any, context: Any) -> dict[str, Any]:
        """The AWS Lambda entry of a function that does segments of a run, of ``streamfold backfill --runner
        elsewhere``.

        ``event`` is ``{"job": ID, "part": N}``; the response has ``done``. Call the function again until ``done`` is
        true; the state machine of ``streamfold work --asl`` does so for every segment. Raises the errors of the run.
        """
        from streamfold.lambda_entry.function import handle_work

        return handle_work(self, event, context)

    @entry("streamfold.lambda_entry.queue")
    def jobs_handler(self, event: Any, context: Any) -> dict[str, list[dict[str, str]]]:
        """The AWS Lambda entry of the queue that ``STREAMFOLD_JOBS`` names: works on segments of fan-outs.

        Returns the partial batch response: each message that failed, by its id. If the time does not suffice for a
        segment, the next message continues it. The event ``{"ring": true}``, of a schedule, enqueues open fan-outs that
        make no progress. Raises for any other event. A local process works on the fan-outs that it opens.
        """
        from streamfold.lambda_entry.queue import handle_queue

        return handle_queue(self, event, context)

    @entry("streamfold.lifecycle.verify")
    def verify_handler(self, event: Any, context: Any) -> dict[str, int]:
        """The entry of a scheduled function that compares a sample of the items with the state, and writes nothing.

        ``event`` may give ``sample``, items (2,000), and ``tolerance``, seconds (60). Returns the counts ``verified``,
        ``different``, ``moving``, ``verify_failed``, ``undecided`` and ``partial_handlers`` (handlers that may have
        missed items), and logs and measures them. Raises ``ManifestError`` when the application does not fit the state,
        ``EngineError`` when a table cannot be read.
        """
        from streamfold.lambda_entry.function import handle_verify

        return handle_verify(self, event, context)

    def __repr__(self) -> str:
        return f"App({self.name!r}, {len(self.routes)} handlers)"


def _routers(routers: Any) -> list[Router]:
    if not isinstance(routers, Iterable) or isinstance(routers, str):
        raise DeclarationError(
            f"The application has routers={routers!r}: expected a list of Routers, or of modules that have one named "
            "'router', routers=[...]."
        )
    return [_router(router) for router in routers]


def _router(router: object) -> Router:
    found = router if isinstance(router, Router) else getattr(router, "router", None)
    if not isinstance(found, Router):
        raise DeclarationError(
            f"routers= holds {router!r}: expected a Router, or a module that has one named 'router'."
        )
    return found
