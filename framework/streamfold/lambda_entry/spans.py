"""Spans of a batch, of its handlers and of its transactions, by OpenTelemetry's API.

A function has them if something has imported OpenTelemetry's API before its first batch: the layer of AWS's distro, or
a module of the application that sets up an SDK. Without an SDK spans lead nowhere, so nothing is imported for them.

A handler that computes is called for each item, in microseconds: it has one span in a batch, from its first call to its
last, with the number of calls and the time in them. A call outside of the store has a span of its own, and spans of its
clients are below it. A span has counts and names of handlers. It never has keys or contents of items, and no message of
an error, which may hold some.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, cast

from streamfold.derivations.derivation import derivation
from streamfold.engines.protocol import Engine
from streamfold.routes.application import Application
from streamfold.routes.route import DECLARED, Route

if TYPE_CHECKING:  # the package is an extra, and a test of the built function imports every module without it
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from streamfold.batch.report import Response

WRITES = ("transact", "insert_rows", "insert_state", "put_post_rows", "remove_empty")
"""HandlerTime of a store that write several items, each a span."""
NANOSECONDS = 1_000_000_000


class HandlerTime:
    """The calls of one handler in a batch."""

    def __init__(self) -> None:
        self.began = self.ended = 0  # epoch nanoseconds, of the first and of the last
        self.count = self.failed = 0
        self.seconds = 0.0  # in the handler's own code

    def add(self, began: int, *, failed: bool = False, again: bool = False) -> None:
        """Adds a call that began then and ends now. again: it goes on with one that was counted."""
        self.began, self.ended = self.began or began, time.time_ns()
        self.count += not again
        self.failed += failed
        self.seconds += (self.ended - began) / NANOSECONDS


class Spans:
    """Makes the spans of one function. One batch at a time runs in an execution environment."""

    def __init__(self, app: Application, provider: "TracerProvider | None" = None) -> None:
        from opentelemetry import context, trace

        self.tracer = trace.get_tracer("streamfold", tracer_provider=provider)
        self.kinds = trace.SpanKind
        self.current_context = context.get_current
        self.service = app.name
        self.app = app.with_functions(self._function)
        self._calls: dict[str, HandlerTime] = {}
        self._batch: Context | None = None  # of the batch's span, which threads do not inherit

    def processed(
        self, what: str, process: Callable[[Any, Any], "Response"], event: Any, lambda_context: Any
    ) -> "Response":
        """The response of a function to an event, within the span of the batch."""
        records = event.get("Records") if isinstance(event, dict) else None
        count = len(records) if isinstance(records, list) else 0
        attributes: dict[str, Any] = {"streamfold.application": self.service, "streamfold.records": count}
        if isinstance(request_id := getattr(lambda_context, "aws_request_id", None), str):
            attributes["faas.invocation_id"] = request_id
        with self._span(f"streamfold {what}", attributes, kind=self.kinds.CONSUMER) as span:
            self._calls, self._batch = {}, self.current_context()
            try:
                response = process(event, lambda_context)
            finally:
                self._end_handlers()
                self._batch = None
            _note_failed(span, len(response["batchItemFailures"]))
            return response

    def store(self, engine: Engine) -> Engine:
        """The store, whose transactions are spans below the batch's."""
        return cast("Engine", TracedStore(engine, self))

    def write(self, call: str, writes: int) -> "AbstractContextManager[Span]":
        """The span of one transaction or of several writes; it may be in a thread of its own."""
        attributes = {"streamfold.writes": writes}
        return self._span(f"streamfold {call}", attributes, kind=self.kinds.CLIENT, context=self._batch)

    @contextmanager
    def _span(self, name: str, attributes: dict[str, Any], **options: Any) -> "Iterator[Span]":
        """A span with the type of the error that ends it: an event of the error would hold its message and trace."""
        with self.tracer.start_as_current_span(
            name, attributes=attributes, record_exception=False, set_status_on_exception=False, **options
        ) as span:
            try:
                yield span
            except BaseException as error:
                _mark(span, type(error).__name__)
                raise

    def _end_handlers(self) -> None:
        for name, calls in self._calls.items():
            attributes: dict[str, Any] = {
                "streamfold.handler": name,
                "streamfold.calls": calls.count,
                "streamfold.seconds": round(calls.seconds, 6),
            }
            span = self.tracer.start_span(f"handler {name}", attributes=attributes, start_time=calls.began)
            _note_failed(span, calls.failed)
            span.end(calls.ended)

    def _function(self, route: Route) -> Callable[..., Any] | None:
        """The handler's function with spans: it is still a generator or a coroutine function if it was one."""
        function = route.function
        if function is None:
            return None
        if derivation(route).outside:
            wrapper = self._call_outside(route.name, function)
        else:
            wrapper = (self._generator if isgeneratorfunction(function) else self._plain)(route.name, function)
        setattr(wrapper, DECLARED, function)
        return wrapper

    def _plain(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            began = time.time_ns()
            try:
                result = function(*given, **named)
            except BaseException:
                self._of(name).add(began, failed=True)
                raise
            self._of(name).add(began)
            return result

        return called

    def _generator(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*given: Any, **named: Any) -> Iterator[Any]:
            effects, again = function(*given, **named), False
            while True:
                began = time.time_ns()
                try:
                    effect = next(effects)
                except StopIteration:
                    self._of(name).add(began, again=again)
                    return
                except BaseException:
                    self._of(name).add(began, failed=True, again=again)
                    raise
                self._of(name).add(began, again=again)
                again = True
                yield effect

        return called

    def _call_outside(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def spanned() -> "AbstractContextManager[Span]":
            return self._span(f"handler {name}", {"streamfold.handler": name})

        @wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            with spanned():
                return function(*given, **named)

        @wraps(function)
        async def awaited(*given: Any, **named: Any) -> Any:
            with spanned():
                return await function(*given, **named)

        return awaited if iscoroutinefunction(function) else called

    def _of(self, name: str) -> HandlerTime:
        return self._calls.setdefault(name, HandlerTime())


class TracedStore:
    """A store whose transactions have spans."""

    def __init__(self, engine: Engine, spans: Spans) -> None:
        self.engine = engine
        self.spans = spans

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if name not in WRITES:
            return found

        def traced(writes: Any, *given: Any, **named: Any) -> Any:
            with self.spans.write(name, len(writes)):
                return found(writes, *given, **named)

        return traced


def _note_failed(span: "Span", failed: int) -> None:
    span.set_attribute("streamfold.failed", failed)
    if failed:
        _mark(span, f"{failed} failed")


def _mark(span: "Span", why: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why))
