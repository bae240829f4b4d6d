"""The mark of deltas in the manifest: it stops older code, and says when deltas may be put."""

from unittest.mock import patch

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.batch.manifest import (
    CLOSED,
    DELTAS,
    DELTAS_TARGET,
    _changed,
    _compare_identity,
    change_deltas,
    open_deltas,
    read_manifest,
)
from streamfold.batch.process import check_application, process_event
from streamfold.commit.buckets import LOOKED_SECONDS, read_heads
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, ManifestError
from streamfold.ledger.deltas import BUCKETS, head_key
from streamfold.ledger.state_keys import row_name
from streamfold.runtime import CLOCKS_APART_SECONDS, DELTAS_AFTER_SECONDS, DeltasMark, Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source

NOON = 1_772_366_400.0
ORDER, TOTAL, OTHER = Key("ORDER#{o}", "META"), Key("TOTAL#{c}", "X"), Key("OTHER#{c}", "X")
ROW = ("main", "TOTAL#ann", "X")


def view(into, name, during=lambda: None):
    router = Router()

    @router.view(ORDER, into=into, name=name)
    def rows(order):
        during()
        yield Row(c=order["c"], orders=Count())

    return router


def app(*routers, **options):
    return App("shop", routers=[*(routers or [view(TOTAL, "totals")])], **options)


class Elsewhere(MemoryEngine):
    """A store that other processes write to as well."""

    is_local = False


class Processes:
    """Processes over one store, and their clock."""

    def __init__(self):
        self.store, self.source, self.now, self.number = Elsewhere(app().tables.values()), Source(), NOON, 0

    def runtime(self, application=None, **settings):
        return Runtime(
            application or app(),
            self.store,
            Settings(**settings),
            clock=lambda: self.now,
            pause=self.pause,
        )

    def pause(self, seconds):
        self.now += seconds

    def deliver(self, runtime):
        self.number += 1
        return process_event(runtime, [self.source.put(f"ORDER#{self.number}", "META", c="ann")]).failures

    def handlers(self):
        return read_manifest("shop", self.store).handlers

    def mark(self):
        return read_manifest("shop", self.store).deltas

    def change(self, mark):
        change_deltas(self.runtime(), lambda _: mark)


@pytest.fixture
def processes():
    made = Processes()
    check_application(made.runtime())
    return made


def compare_entry_of_older_code(name, kind, before, now, *, older):
    """What code from before deltas compares."""
    for what in ("kind", "group"):
        if before[what] != now[what]:
            raise _changed(name, what, before[what], now[what])
    for what in ("targets",) if older else ("sources", "targets"):
        if not set(before[what]) <= set(now[what]):
            raise _changed(name, what, ", ".join(before[what]), ", ".join(now[what]))
    if not set(now["contested"]) <= set(before["contested"]):
        raise _changed(name, "rows", "rows that one source could make", "rows that several could make")
    _compare_identity(name, kind, before, now)


@pytest.mark.parametrize("older_code", [False, True])
@pytest.mark.parametrize("closed", [None, NOON + 10])
def test_code_that_does_not_know_deltas_stops(processes, older_code, closed):
    both = app(view(TOTAL, "totals"), view(OTHER, "others"))
    check_application(processes.runtime(both))
    older = app() if older_code else both
    with patch("streamfold.batch.manifest._compare_entry", compare_entry_of_older_code):
        check_application(processes.runtime(older, older_code=older_code), write=False)  # without the mark it runs
        processes.change(DeltasMark(NOON, closed))
        before = dict(processes.store.state)
        with pytest.raises(ManifestError, match=r"changed its targets from .*deltas"):
            processes.deliver(processes.runtime(older, older_code=older_code))
    assert processes.store.state == before
    assert processes.store.rows == {}


def test_code_that_knows_deltas_runs_with_the_mark_and_writes_no_manifest(processes):
    processes.change(DeltasMark(NOON, NOON + 10))
    before = read_manifest("shop", processes.store)
    check_application(processes.runtime())
    check_application(processes.runtime(older_code=True))
    assert read_manifest("shop", processes.store) == before
    assert before.deltas == DeltasMark(NOON, NOON + 10)


def test_a_new_handler_gets_the_mark(processes):
    """Older code may have no other handler than this one."""
    processes.change(DeltasMark(NOON, NOON + 10))
    check_application(processes.runtime(app(view(TOTAL, "totals"), view(OTHER, "others"))))
    handlers = processes.handlers()
    assert handlers.keys() == {"totals", "others"}
    for entry in handlers.values():
        assert (entry["targets"][-1], entry[DELTAS], entry[CLOSED]) == (DELTAS_TARGET, NOON, NOON + 10)
        assert entry["targets"].count(DELTAS_TARGET) == 1


def test_a_mark_that_is_taken_away_leaves_nothing(processes):
    before = processes.handlers()
    processes.change(DeltasMark(NOON, NOON + 10))
    processes.change(None)
    assert processes.handlers() == before


def test_the_target_of_the_mark_is_in_no_message(processes):
    processes.change(DeltasMark(NOON))
    for other in (app(view(OTHER, "totals")), app(view(OTHER, "others"))):
        with pytest.raises(ManifestError, match=r"TOTAL#\{c\}") as raised:
            check_application(processes.runtime(other))
        assert DELTAS_TARGET not in str(raised.value)


def index(into, name):
    router = Router()

    @router.index(ORDER, into=into, name=name, unique=True)
    def rows(order):
        yield Row(c=order["c"])

    return router


def test_a_retired_handler_is_checked_by_its_own_targets(processes):
    processes.store.state.clear()
    check_application(processes.runtime(app(index(TOTAL, "totals"), index(OTHER, "others"))))
    processes.change(DeltasMark(NOON))
    retired = app(index(OTHER, "others"), retired=["totals"])
    check_application(processes.runtime(retired))
    check_application(processes.runtime(retired))  # by now the manifest says that it is retired
    taken_over = app(index(OTHER, "others"), index(TOTAL, "more"), retired=["totals"])
    with pytest.raises(ManifestError, match=r"rows of main: TOTAL#\{c\} / X would be written by 'more'") as raised:
        check_application(processes.runtime(taken_over))
    assert DELTAS_TARGET not in str(raised.value)


def shared(runtime, now):
    """A process that knows the row to be shared."""
    runtime.pace.sharing.learn({row_name(ROW): now})
    return runtime


def put(runtime):
    return runtime.pace.sharing.take_counts()[0]


def test_deltas_are_put_15_minutes_after_the_mark_also_by_a_process_that_began_before(processes):
    warm = processes.runtime()
    assert processes.deliver(warm) == []
    processes.change(DeltasMark(NOON))
    for seconds, expected in ((0, 0), (DELTAS_AFTER_SECONDS - 1, 0), (DELTAS_AFTER_SECONDS, 1)):
        processes.now = NOON + seconds
        for runtime in (warm, processes.runtime()):
            assert processes.deliver(shared(runtime, processes.now)) == []
            assert put(runtime) == expected
    assert processes.store.rows[ROW]["orders"] == {"N": "7"}


def test_a_batch_that_began_before_puts_no_delta(processes):
    def passes():
        processes.now = NOON + DELTAS_AFTER_SECONDS + 5

    runtime = processes.runtime(app(view(TOTAL, "totals", passes)))
    processes.change(DeltasMark(NOON))
    processes.now = NOON + DELTAS_AFTER_SECONDS - 1
    processes.deliver(shared(runtime, processes.now))
    assert (put(runtime), processes.now) == (0, NOON + DELTAS_AFTER_SECONDS + 5)
    processes.deliver(shared(runtime, processes.now))
    assert put(runtime) == 1


def test_a_closed_mark_ends_deltas_with_the_next_batch_and_nobody_opens_it(processes):
    stale, warm = processes.runtime(), processes.runtime()
    processes.deliver(stale)  # has read that there is no mark
    processes.change(DeltasMark(NOON))
    processes.now = NOON + DELTAS_AFTER_SECONDS
    processes.deliver(shared(warm, processes.now))
    assert put(warm) == 1
    closed = DeltasMark(NOON, processes.now)
    processes.change(closed)
    open_deltas(stale)
    assert stale.known.deltas == closed
    for runtime in (stale, warm, processes.runtime()):
        processes.deliver(shared(runtime, processes.now))
        open_deltas(runtime)
        assert put(runtime) == 0
    assert processes.mark() == closed


def test_a_process_that_met_others_sets_the_mark(processes):
    runtime = processes.runtime()
    processes.deliver(shared(runtime, NOON))
    assert (processes.mark(), put(runtime)) == (DeltasMark(NOON), 0)


@pytest.mark.parametrize("seconds", [0, DELTAS_AFTER_SECONDS - CLOCKS_APART_SECONDS - 1])
def test_nobody_is_waited_for_where_the_mark_was_closed_before_deltas_might_be_put(seconds):
    assert DeltasMark(NOON, NOON + seconds).quiet_at == NOON + seconds


@pytest.mark.parametrize("seconds", [DELTAS_AFTER_SECONDS - CLOCKS_APART_SECONDS, 86_400])
def test_batches_that_read_the_open_mark_are_waited_for(seconds):
    assert DeltasMark(NOON, NOON + seconds).quiet_at == NOON + seconds + DELTAS_AFTER_SECONDS


def test_a_new_process_looks_into_all_forgotten_buckets_within_two_batches(processes):
    processes.change(DeltasMark(NOON))
    runtime = processes.runtime()
    looked = []
    for _ in range(3):
        processes.deliver(runtime)
        looked.append(sum(head.looked == NOON for head in read_heads(runtime).values()))
    assert looked == [BUCKETS // 2, BUCKETS, BUCKETS]
    processes.now = NOON + LOOKED_SECONDS - 1
    processes.deliver(processes.runtime())
    assert all(head.looked == NOON for head in read_heads(runtime).values())


def test_a_forgotten_bucket_that_cannot_be_emptied_fails_no_record_and_keeps_no_other_waiting(processes):
    processes.change(DeltasMark(NOON))
    runtime, swap = processes.runtime(), processes.store.swap_state

    def refused(key, attributes, revision):
        if key in [head_key("shop", bucket) for bucket in range(BUCKETS // 2)]:
            raise EngineError("forbidden")
        return swap(key, attributes, revision)

    with patch.object(processes.store, "swap_state", refused):
        assert [processes.deliver(runtime) for _ in range(2)] == [[], []]
    heads = read_heads(runtime)
    assert [head.looked == NOON for _, head in sorted(heads.items())] == [False] * 8 + [True] * 8
