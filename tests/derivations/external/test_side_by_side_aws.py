"""External calls at the same time: in threads and in the event loop, with nothing that is not theirs."""

import asyncio
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import getcontext
from threading import Barrier, get_ident

import pytest

from streamfold import App, Delete, Key, Router, TypedChange
from streamfold.batch.process import process_event
from streamfold.derivations.external import kind
from streamfold.derivations.external.coroutines import PROCESS_LOOP
from streamfold.derivations.external.kind import EXTERNAL
from streamfold.engines import EmbeddedEngine
from streamfold.errors import DeclarationError, SettingsError
from streamfold.pages.graph import described
from streamfold.parking import FileParking
from streamfold.records.values import EXACT
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source

ORDER = Key("ORDER#{order_id}", "METADATA")
TENANT = ContextVar("tenant", default="nobody")
AT_ONCE = 4


def application(handler, **options):
    router = Router()
    router.on(ORDER, external=True, **{"name": "call"} | options)(handler)
    return App("shop", routers=[router])


def deliver(app, records, engine=None, **more):
    runtime = Runtime(app, engine or EmbeddedEngine(app.tables.values()), Settings(), outside=True, **more)
    return process_event(runtime, records)


@pytest.fixture
def records():
    source = Source()
    return [source.put(f"ORDER#{number}", total=number) for number in range(AT_ONCE)]


def test_functions_of_different_items_run_at_the_same_time(records):
    meet = Barrier(AT_ONCE, timeout=10)

    def call(change):
        meet.wait()  # breaks unless all run at once

    assert deliver(application(call, at_once=AT_ONCE), records).failures == []


def test_coroutines_of_different_items_run_at_the_same_time_in_one_loop(records):
    running, most, loops = [], [], set()

    async def call(change):
        running.append(change)
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.05)
        most.append(len(running))
        running.remove(change)

    app = application(call, at_once=AT_ONCE)
    assert deliver(app, records).failures == []
    assert deliver(app, records).failures == []
    assert max(most) == AT_ONCE
    assert len(loops) == 1


def test_coroutines_run_one_after_the_other_without_at_once(records):
    running, most = [], []

    async def call(change):
        running.append(change)
        await asyncio.sleep(0)
        most.append(len(running))
        running.remove(change)

    assert deliver(application(call), records).failures == []
    assert most == [1] * AT_ONCE


def test_coroutines_are_awaited_also_where_the_caller_runs_in_an_event_loop(records):
    called = []

    async def call(change):
        called.append(str(change.new["total"]))

    async def main():
        return deliver(application(call), records).failures

    assert asyncio.run(main()) == []
    assert called == [str(number) for number in range(AT_ONCE)]


def contexts(way):
    """The context variable and the precision that each call of four saw, one after the other."""
    seen = []

    def note(change):
        seen.append((TENANT.get(), getcontext().prec))
        TENANT.set(str(change.new["total"]))
        getcontext().prec = 5

    async def note_later(change):
        note(change)
        await asyncio.sleep(0)
        assert TENANT.get() == str(change.new["total"])

    at_once = 1 if way == "one by one" else AT_ONCE
    return seen, application(note_later if way == "coroutines" else note, at_once=at_once)


@pytest.mark.parametrize("way", ["one by one", "threads", "coroutines"])
def test_a_call_sees_the_variables_of_the_batch_and_none_of_another_call(way, records):
    seen, app = contexts(way)
    token = TENANT.set("batch")
    assert deliver(app, records).failures == []
    assert seen == [("batch", EXACT.prec)] * AT_ONCE
    assert TENANT.get() == "batch"
    TENANT.reset(token)


def test_log_keys_of_one_call_are_in_no_line_of_another(records, capsys):
    """Powertools' Logger keeps keys of a context for each context."""
    from aws_lambda_powertools import Logger

    logger = Logger(service="test-side-by-side", level="INFO")
    meet = Barrier(AT_ONCE, timeout=10)

    def call(change):
        logger.thread_safe_append_keys(order=str(change.new["total"]))
        meet.wait()
        logger.info("called")

    assert deliver(application(call, at_once=AT_ONCE), records).failures == []
    logger.info("over")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split('"order":"')[1][0] for line in lines if '"called"' in line) == ["0", "1", "2", "3"]
    assert '"order"' not in lines[-1]


def counted(way, tmp_path):
    """What a batch reports of one handler that fails and one that parks its failures."""

    def call(change):
        if change.new["total"] in (1, 2):
            raise ConnectionError

    async def call_later(change):
        await asyncio.sleep(0)
        call(change)

    router = Router()
    for name, policy in (("retried", {}), ("parked", {"on_error": "park"})):
        declare = router.on(ORDER, external=True, name=name, at_once=1 if way == "one by one" else AT_ONCE, **policy)
        declare(call_later if way == "coroutines" else call)
    source = Source()
    records = [source.put(f"ORDER#{item}", total=total) for total in range(4) for item in "ab"]
    parking = FileParking(str(tmp_path / f"{way}.jsonl"))
    report = deliver(App("shop", routers=[router]), records, parking=parking)
    return report.records, report.failed, report.parked, sorted((each.item, each.held) for each in report.failures)


@pytest.mark.parametrize("way", ["threads", "coroutines"])
def test_counts_of_handlers_are_those_of_calls_one_by_one(way, tmp_path):
    records, failed, parked, failures = found = counted(way, tmp_path)
    assert found == counted("one by one", tmp_path)
    assert (records, failed, parked) == ({"retried": 8, "parked": 8}, {"retried": 6}, {"parked": 4})
    assert [held for _, held in failures] == [False, True, True] * 2


def test_a_failure_fails_its_own_record_only(records):
    async def call(change):
        if str(change.new["total"]) == "2":
            raise ConnectionError

    (failure,) = deliver(application(call, at_once=AT_ONCE), records).failures
    assert failure.item.startswith("ORDER#2")


def test_what_was_not_begun_in_time_is_reported_and_called_at_the_next_delivery(records):
    called, now = [], [0.0]

    def call(change):
        now[0] += 10
        called.append(str(change.new["total"]))

    app = application(call)
    engine = EmbeddedEngine(app.tables.values())
    failures = deliver(app, records, engine, seconds_left=lambda: 30 - now[0]).failures
    assert called == ["0", "1"]
    assert [failure.item.partition(" ")[0] for failure in failures] == ["ORDER#2", "ORDER#3"]
    assert {type(failure.error).__name__ for failure in failures} == {"NotStarted"}
    assert deliver(app, records, engine).failures == []
    assert called == ["0", "1", "2", "3"]


def test_a_coroutine_that_would_outlast_the_invocation_is_cancelled_and_called_again(records):
    cancelled, called = [], []

    async def call(change):
        if not cancelled:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(change)
                raise
        called.append(change)

    app = application(call)
    engine = EmbeddedEngine(app.tables.values())
    ends = time.monotonic() + 0.2
    settings = Settings(stop_seconds=1)  # half of it is less than END_SECONDS
    runtime = Runtime(app, engine, settings, outside=True, seconds_left=lambda: 1 + ends - time.monotonic())
    (failure,) = process_event(runtime, records[:1]).failures
    assert "did not return in the time of the invocation and was cancelled" in str(failure.error)
    assert cancelled
    assert deliver(app, records[:1], engine).failures == []
    assert len(called) == 1


def test_a_time_out_of_the_handler_s_own_is_reported_as_it_is(records):
    async def call(change):
        raise TimeoutError("mail server")

    (failure, *_) = deliver(application(call), records).failures
    assert failure.what == "TimeoutError: mail server"


def test_a_task_that_would_end_the_program_ends_no_call_of_the_batch(records):
    called = []

    async def ends():
        raise SystemExit

    async def call(change):
        task = asyncio.ensure_future(ends())
        await asyncio.sleep(0.01)
        assert isinstance(task.exception(), SystemExit)
        called.append(change)

    assert deliver(application(call, at_once=AT_ONCE), records).failures == []
    assert len(called) == AT_ONCE


def test_a_plain_function_that_returns_a_coroutine_is_refused(records):
    async def send():
        return None

    (failure, *_) = deliver(application(lambda change: send(), name="mail"), records).failures
    assert "returned coroutine, which nobody awaits: declare an async function, async def mail(change)" in failure.what


@dataclass
class Order:
    total: int


def test_a_coroutine_gets_the_change_as_its_annotation_wants_it(records):
    totals = []

    async def call(change: TypedChange[Order]):
        totals.append(change.new.total)

    assert deliver(application(call), records).failures == []
    assert totals == [0, 1, 2, 3]


def test_a_failure_of_a_coroutine_with_a_typed_change_names_its_own_line(records):
    async def call(change: TypedChange[Order]):
        raise ConnectionError

    (failure, *_) = deliver(application(call), records).failures
    assert failure.raised_at == f"{__file__}:{call.__code__.co_firstlineno + 1}"


def test_a_handler_that_becomes_async_is_not_called_again_for_the_same_changes(records):
    called = []

    def call(change):
        called.append(change)

    async def later(change):
        called.append(change)

    before, after = application(call, name="mail"), application(later, name="mail")
    engine = EmbeddedEngine(before.tables.values())
    assert deliver(before, records, engine).failures == []
    assert deliver(after, records, engine).failures == []
    assert deliver(before, records, engine).failures == []
    assert len(called) == AT_ONCE


def test_the_loop_stands_still_between_batches_and_threads_of_functions_have_ended(records):
    async def call(change):
        pass

    deliver(application(call, at_once=AT_ONCE), records)  # threads for notes stay, and wait
    before = {*threading.enumerate()}
    deliver(application(call, at_once=AT_ONCE), records)
    deliver(application(lambda change: time.sleep(0.001), at_once=AT_ONCE), records)
    assert not PROCESS_LOOP._loop.is_running()
    remaining = {*threading.enumerate()} - before
    assert not [each.name for each in remaining if not each.name.startswith("streamfold-notes")]


def test_the_batch_s_own_thread_makes_the_calls_of_a_handler_without_at_once(records):
    threads = set()
    deliver(application(lambda change: threads.add(get_ident())), records)
    assert threads == {get_ident()}


def test_a_generator_is_refused_as_an_external_handler():
    async def call(change):
        yield

    with pytest.raises(DeclarationError, match="expected a plain or an async function that does its work when it is"):
        application(call)


@pytest.mark.parametrize(("name", "value"), [("at_once", 8), ("per_second", 5)])
def test_limits_of_calls_are_refused_for_a_handler_that_writes_rows(name, value):
    with pytest.raises(DeclarationError, match=rf"has {name}={value} and writes rows: leave {name} out"):
        Router().on(ORDER, into=Key("LOG#{order_id}", "ROW"), name="log", **{name: value})(lambda change: Delete())


def test_only_plain_functions_need_powertools(monkeypatch):
    async def call(change):
        pass

    monkeypatch.setattr(kind, "find_spec", lambda name: None)
    (route,) = application(call).routes
    EXTERNAL.check_settings(route, Settings())
    (route,) = application(lambda change: None).routes
    with pytest.raises(SettingsError, match="needs Powertools"):
        EXTERNAL.check_settings(route, Settings())


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, None),
        ({"at_once": 8}, "8 at once"),
        ({"per_second": 0.5}, "0.5 a second"),
        ({"at_once": 8, "per_second": 50}, "8 at once, 50 a second"),
    ],
)
def test_routes_show_the_limits_of_calls(options, shown):
    app = application(lambda change: None, **options)
    assert described(app, app.routes[0]).get("calls") == shown
