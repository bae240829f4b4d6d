"""Calls side by side: in order for each item, at most so many at once, within the deadline and the rate."""

import time
from collections import Counter, defaultdict
from contextvars import ContextVar
from decimal import Decimal, getcontext
from itertools import pairwise
from threading import Barrier, Lock, get_ident

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import App, Key, Router
from streamfold.derivations.outside_calls import (
    AT_ONCE_MAX,
    CallLimits,
    CallRate,
    ItemQueues,
    OutsideCalls,
    checked_limits,
    process_rate,
)
from streamfold.engines import EmbeddedEngine
from streamfold.errors import DeclarationError, NotStarted
from streamfold.records.values import EXACT
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.settings.limits import LANES_MAX

ITEM = Key("ITEM#{item_id}", "METADATA")
TENANT = ContextVar("tenant", default="nobody")


def runtime(**changes):
    router = Router()
    router.on(ITEM, external=True, name="call")(lambda change: None)
    app = App("shop", routers=[router])
    return Runtime(app, EmbeddedEngine(app.tables.values()), Settings(), **changes)


class Called:
    """Subjects ``(item, number)`` that were called, and those that failed, were held or were not begun."""

    def __init__(self, *, holds=True, **options):
        self.holds = holds
        self.calls, self.failed, self.held = [], [], []
        self.running, self.most_running, self.overlapping = Counter(), 0, []
        self.lock = Lock()
        given = options.pop("runtime", None) or runtime()
        self.outside = OutsideCalls(given, lambda subject: subject[0], self.fails, **options)

    def fails(self, subject, error):
        (self.held if error is None else self.failed).append(subject)
        return self.holds

    def run(self, subjects, refused=(), seconds=0.0):
        def call(together):
            with self.lock:
                self.calls += together
                self.running.update(item for item, _ in together)
                self.most_running = max(self.most_running, self.running.total())
                self.overlapping += [item for item, running in self.running.items() if running > 1]
            time.sleep(seconds)
            with self.lock:
                self.running.subtract(item for item, _ in together)
            return [ValueError("no") if subject in refused else None for subject in together]

        self.outside.run(subjects, call)


def numbered(items):
    """The subjects of these items, numbered in order."""
    return [(item, number) for number, item in enumerate(items)]


@given(
    items=st.lists(st.sampled_from("abcd"), max_size=20),
    refused=st.sets(st.integers(0, 19), max_size=5),
    at_once=st.integers(1, 4),
    most=st.integers(1, 3),
)
def test_each_subject_is_called_in_order_of_its_item_until_one_fails(items, refused, at_once, most):
    subjects = numbered(items)
    wrong = [subject for subject in subjects if subject[1] in refused]
    called = Called(limits=CallLimits(at_once), most=most)
    called.run(subjects, wrong)

    by_item = defaultdict(list)
    for subject in subjects:
        by_item[subject[0]].append(subject)
    for item, own in by_item.items():
        end = next((place + 1 for place, each in enumerate(own) if each in wrong), len(own))
        assert [each for each in called.calls if each[0] == item] == own[:end]
        assert [each for each in called.held if each[0] == item] == own[end:]
    assert sorted(called.failed) == sorted({each for each in called.calls if each in wrong})
    assert called.overlapping == []
    assert called.most_running <= at_once * most


@given(items=st.lists(st.sampled_from("abc"), max_size=12), refused=st.sets(st.integers(0, 11)))
def test_a_failure_that_holds_nothing_lets_the_later_subjects_of_its_item_be_called(items, refused):
    subjects = numbered(items)
    called = Called(holds=False, limits=CallLimits(2))
    called.run(subjects, [each for each in subjects if each[1] in refused])
    assert sorted(called.calls) == sorted(subjects)
    assert called.held == []


def test_calls_are_made_at_the_same_time_up_to_the_limit():
    meet = Barrier(3, timeout=10)
    called = Called(limits=CallLimits(3))
    threads = set()

    def call(together):
        threads.add(get_ident())
        meet.wait()  # breaks unless three calls run at the same time
        return [None] * len(together)

    called.outside.run(numbered("abcdef"), call)
    assert called.failed == []
    assert get_ident() not in threads


def test_one_call_at_a_time_is_made_by_the_thread_of_the_batch():
    threads = set()

    def call(together):
        threads.add(get_ident())
        return [None]

    Called().outside.run(numbered("ab"), call)
    assert threads == {get_ident()}


def test_subjects_of_one_call_are_of_different_items_and_as_many_as_fit():
    calls = []

    def call(together):
        calls.append(together)
        return [None] * len(together)

    accepts = lambda together, subject: sum(number for _, number in together) + subject[1] <= 3  # noqa: E731
    Called(most=10, accepts=accepts).outside.run(numbered("aabcd"), call)
    assert calls == [[("a", 0), ("b", 2)], [("a", 1)], [("c", 3)], [("d", 4)]]


def test_an_error_that_a_call_raises_fails_all_its_subjects():
    called = Called(most=2)

    def call(together):
        raise ConnectionError

    called.outside.run(numbered("aab"), call)
    assert called.failed == [("a", 0), ("b", 2)]
    assert called.held == [("a", 1)]


def test_an_interrupt_is_raised_once_the_begun_calls_have_ended():
    called = Called(limits=CallLimits(2))
    ended = []

    def call(together):
        if together[0][0] == "a":
            raise KeyboardInterrupt
        time.sleep(0.05)
        ended.append(together[0])
        return [None]

    with pytest.raises(KeyboardInterrupt):
        called.outside.run(numbered("abc"), call)
    assert ended == [("b", 1)]


def test_what_was_not_begun_before_the_deadline_is_reported_as_not_done():
    left = iter([30.0, 30.0])
    given = runtime(seconds_left=lambda: next(left, 5.0))
    errors = []
    outside = OutsideCalls(
        given, lambda subject: subject[0], lambda subject, error: errors.append((subject, error)) or 1
    )
    called = []
    outside.run(numbered("aab"), lambda together: called.extend(together) or [None])
    assert called == [("a", 0), ("a", 1)]
    ((subject, error),) = errors
    assert subject == ("b", 2)
    assert isinstance(error, NotStarted)


def test_later_subjects_of_an_item_that_was_not_begun_wait_for_it():
    called = Called(runtime=runtime(seconds_left=lambda: 5.0))
    called.run(numbered("aab"))
    assert (called.calls, called.failed, called.held) == ([], [("a", 0), ("b", 2)], [("a", 1)])


def test_calls_begin_at_the_rate_and_waits_ask_the_deadline():
    now, paused = [0.0], []

    def pause(seconds):
        paused.append(seconds)
        now[0] += seconds

    given = runtime(pause=pause, seconds_left=lambda: 12.35 - now[0])
    called = Called(runtime=given, rate=CallRate(10, lambda: now[0]))
    called.run(numbered("abcdef"))
    assert called.calls == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
    assert paused == pytest.approx([0.1, 0.1, 0.1])
    assert called.failed == [("e", 4), ("f", 5)]


@given(waits=st.lists(st.floats(0, 3), max_size=40), per_second=st.sampled_from([0.5, 1, 7]))
def test_no_second_has_more_calls_than_the_rate_and_one(waits, per_second):
    now, begun = [100.0], []
    rate = CallRate(per_second, lambda: now[0])
    for wait in waits:
        now[0] += wait + rate.seconds_short()
        while rate.seconds_short():  # the sum of floats may be short of it by the last digit
            now[0] += 1e-9
        rate.take()
        begun.append(now[0])
    assert all(later - earlier >= (1 / per_second) * 0.999 for earlier, later in pairwise(begun))


def test_batches_of_a_process_share_the_rate_of_a_handler():
    given = runtime()
    first = process_rate(given, "call", CallLimits(per_second=5))
    assert process_rate(given, "call", CallLimits(per_second=5)) is first
    assert process_rate(given, "another", CallLimits(per_second=5)) is not first
    assert process_rate(given, "call", CallLimits()) is None


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_call_sees_the_context_of_the_batch_and_none_of_another_call(at_once):
    seen = []

    def call(together):
        seen.append((TENANT.get(), getcontext().prec))
        TENANT.set(together[0][0])
        getcontext().prec = 5
        return [None]

    token = TENANT.set("batch")
    Called(limits=CallLimits(at_once)).outside.run(numbered("abcabc"), call)
    assert seen == [("batch", EXACT.prec)] * 6
    assert TENANT.get() == "batch"
    assert Decimal(1) / 3 != round(Decimal(1) / 3, 5)
    TENANT.reset(token)


def test_a_store_of_this_machine_is_used_by_one_thread_at_a_time():
    called = Called(limits=CallLimits(4))
    inside, most = [0], [0]
    store = called.outside.calling.store.engine
    read = store.read_state

    def counted(keys, **options):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.001)
        inside[0] -= 1
        return read(keys, **options)

    store.read_state = counted

    def call(_):
        called.outside.calling.store.read_state([])
        return [None]

    called.outside.run(numbered("abcdefgh"), call)
    assert most == [1]
    assert called.failed == []


@pytest.mark.parametrize("at_once", [0, AT_ONCE_MAX + 1, 2.0, True, "8", None])
def test_an_impossible_number_of_calls_is_refused(at_once):
    with pytest.raises(DeclarationError, match=r"at_once=.*expected a whole number of calls from 1 to 32"):
        checked_limits(at_once, None, "shop.py:3")


@pytest.mark.parametrize("per_second", [0, -1, "5", True, 20_000, float("nan"), float("inf")])
def test_an_impossible_rate_is_refused(per_second):
    with pytest.raises(DeclarationError, match=r"per_second=.*expected a number of calls from 0.01 to 10,000"):
        checked_limits(1, per_second, "shop.py:3")


def test_each_call_in_flight_has_a_connection_for_its_note():
    assert AT_ONCE_MAX <= LANES_MAX


def test_the_oldest_subject_whose_item_is_free_comes_first():
    queues = ItemQueues(numbered("aab"), lambda subject: subject[0])
    (first,) = queues.take(1)
    queues.release(first)
    assert queues.take(2) == [("a", 1), ("b", 2)]
