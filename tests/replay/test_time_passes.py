"""A local replay has one clock: items are derived again at their moments, whatever the size of batches is."""

import json
import random
from contextlib import closing
from itertools import count, pairwise

import pytest

from streamfold.batch.wakes import BEFORE_ALL_WAKES, listed
from streamfold.engines import EmbeddedEngine
from streamfold.engines.memory import MemoryEngine
from streamfold.keys.table import STAMP
from streamfold.ledger.wakes import partitions
from streamfold.proofs.oracle import at_moment, expected_all, stored_rows
from streamfold.records.envelope import Origins
from streamfold.replay.files import Line, RecordedFiles
from streamfold.replay.replay import Replay, ReplayCursor
from streamfold.routes.moments import moment_microseconds
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import item, record
from tests.helpers.timer_walks import timers
from tests.helpers.woken import EACH, START, active, at, best, chain, counted, leaders, made, overdue, tiers

HISTORIES, HISTORIES_CI = 3, 40
KILLED, KILLED_CI = 1, 12
CALLS_BEFORE_DEATH, DEATHS_MAX = 90, 30
BEHIND_SECONDS = 300
FOLDED = [overdue, counted, active, best, leaders, chain]


def records_of(seed, count=12):
    """Records of three tickets; their times never fall, and several may have one time."""
    choose, items, now, found = random.Random(seed), {}, START, []
    for number in range(1, count + 1):
        now += choose.choice((0, 5, 10, 30))
        name = f"TICKET#{choose.randrange(3)}"
        due = now - START + choose.randrange(-20, 80, 10)
        status, team = choose.choice(("open", "open", "closed")), choose.choice("ab")
        new = item(name, "META", status=status, team=team, due_at=at(due), until=at(due + choose.choice((10, 40))))
        new = None if name in items and choose.random() < 0.15 else new
        old = items.get(name)
        if old is None and new is None:
            continue
        items[name] = new
        found.append(record(old, new, number, at=float(now)))
    return found


def replayed(app, records, size, until=None, **more):
    """The store after a replay in batches of so many records."""
    engine = MemoryEngine(app)
    engine.source_tables.update(app.source_tables)
    runtime = Runtime(app, engine, Settings(), pause=lambda _: None, **more)
    replay = Replay(runtime, Origins(app.source_tables, Settings()), batch_records=size, put_sources=engine.put_sources)
    replay.until = until
    summary = replay.process([(Line("file", number), each) for number, each in enumerate(records, 1)])
    assert summary.clean, summary.failures
    return engine


def content(engine):
    """Rows, and which items wait for which moment."""
    waits = {
        key: sorted(text for name, text in each.items() if name.endswith(".s"))
        for key, each in engine.state.items()
        if key.pk.startswith("ledger#")
    }
    wakes = sorted(key for key in engine.state if key.pk.startswith("wake#"))
    rows = {
        key: {name: value for name, value in row.items() if not name.startswith("_sf")}
        for key, row in engine.rows.items()
    }
    return rows, waits, wakes


def same_ends(handler, seeds):
    app = made(handler)
    for seed in seeds:
        records = records_of(seed)
        ends = [content(replayed(app, records, size)) for size in (1, 3, 12)]
        for one, other in pairwise(ends):
            assert one[0] == other[0], f"seed {seed}"


@pytest.mark.parametrize("handler", EACH)
def test_rows_at_the_end_are_the_same_for_every_size_of_batches(handler):
    same_ends(handler, range(HISTORIES))


@pytest.mark.ci
@pytest.mark.parametrize("handler", EACH)
def test_rows_at_the_end_of_more_files_are_the_same_for_every_size_of_batches(handler):
    same_ends(handler, range(100, 100 + HISTORIES_CI))


class Killed(BaseException):
    """The process ends here."""


class Mortal(EmbeddedEngine):
    """A state file whose process ends at a call, within a transaction or between two."""

    calls = None

    def _lives(self):
        if self.calls is not None and next(self.calls, None) is None:
            raise Killed

    def transact(self, writes, expires_at):
        self._lives()
        return super().transact(writes, expires_at)

    def read_state(self, keys, *, consistent=False):
        self._lives()
        return super().read_state(keys, consistent=consistent)

    def read_entries(self, wanted):
        self._lives()
        return super().read_entries(wanted)


def state_after(app, folder, name, records, size, dies=None):
    """Rows and wakes of a state file after a replay in batches of so many records; with ``dies``, a generator of
    chances, its process is killed and the replay run again until it ends.
    """
    (folder / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    newest = int(records[-1]["dynamodb"]["ApproximateCreationDateTime"])
    for deaths in count():
        with closing(Mortal(app, folder / name)) as engine:
            settings, files = Settings(), RecordedFiles([str(folder / "records.jsonl")], digested=True)
            runtime = Runtime(app, engine, settings, pause=lambda _: None)
            replay = Replay(
                runtime, Origins(app.source_tables, settings), batch_records=size, put_sources=engine.put_sources
            )
            replay.until = moment_microseconds(at(newest - START + BEHIND_SECONDS))
            if dies and deaths < DEATHS_MAX:
                engine.calls = iter(range(dies.randrange(CALLS_BEFORE_DEATH)))
            try:
                assert replay.process(files, ReplayCursor(app, settings, engine, files)).clean
            except Killed:
                continue
            engine.calls = None
            rows = [
                {key: value for key, value in row.items() if key != STAMP and not key.startswith("_sf")}
                for table in app.tables.values()
                for row in engine.items(table)
            ]
            wakes = [
                each.wake.position
                for route in app.routes
                if route.asks_time
                for partition in partitions(app.name, route.name)
                for each in listed(runtime, route, partition, BEFORE_ALL_WAKES, moment_microseconds(at(10**8)))
            ]
            return rows, wakes, deaths
    raise AssertionError


def same_end_after_kills(handler, folder, seeds):
    app, deaths = made(handler), 0
    for seed in seeds:
        records, choose = records_of(seed), random.Random(seed)
        clean = state_after(app, folder, f"clean-{seed}.db", records, 12)
        *killed, died = state_after(app, folder, f"killed-{seed}.db", records, choose.choice((1, 3, 5)), choose)
        assert killed == [*clean[:2]], f"seed {seed}"
        deaths += died
    return deaths


@pytest.mark.parametrize("handler", [*EACH, timers])
def test_a_replay_that_is_killed_anywhere_goes_on_and_ends_as_one_that_was_not(handler, tmp_path):
    assert same_end_after_kills(handler, tmp_path, range(KILLED)) > 0


@pytest.mark.ci
@pytest.mark.parametrize("handler", [*EACH, timers])
def test_more_replays_that_are_killed_end_as_those_that_were_not(handler, tmp_path):
    same_end_after_kills(handler, tmp_path, range(200, 200 + KILLED_CI))


@pytest.mark.parametrize("handler", FOLDED)
@pytest.mark.parametrize("until", [None, 60, 500])
def test_rows_at_the_end_are_those_of_the_declarations_then(handler, until):
    app, records = made(handler), records_of(7)
    newest = int(records[-1]["dynamodb"]["ApproximateCreationDateTime"]) - START
    end = newest if until is None else newest + until
    engine = replayed(app, records, 4, None if until is None else moment_microseconds(at(end)))
    origins = Origins(app.source_tables, Settings())
    with at_moment(moment_microseconds(at(end))):
        expected = expected_all(app, [origins.change(each) for each in records])
    assert stored_rows(app, engine.rows.items()) == expected


def calls_of(engine):
    """The moments at which handlers were called, by item."""
    found = {key[1:]: int(row["times"]["N"]) for key, row in engine.rows.items() if key[1].startswith("CALLED")}
    assert set(found.values()) <= {1}
    return {(pk.removeprefix("CALLED#"), sk.removeprefix("AT#")) for pk, sk in found}


def expected_calls(records, end):
    """A moment is called if its item has it at the time of its next record, or at the end; the moment comes first."""
    calls, has = set(), {}
    for each in [*records, None]:
        now = end if each is None else int(each["dynamodb"]["ApproximateCreationDateTime"])
        calls |= {(name, due[11:19]) for name, due in has.items() if due and due <= at(now - START)}
        if each is not None:
            new = each["dynamodb"].get("NewImage", {})
            name = each["dynamodb"]["Keys"]["PK"]["S"].removeprefix("TICKET#")
            has[name] = new["due_at"]["S"] if new.get("status") == {"S": "open"} else None
            if has[name] and has[name] <= at(now - START):
                calls.add((name, has[name][11:19]))
    return calls


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [1, 12])
def test_handlers_are_called_at_their_own_moments_whatever_the_size_of_batches(seed, size):
    records = records_of(seed, 16)
    end = int(records[-1]["dynamodb"]["ApproximateCreationDateTime"]) + 40
    engine = replayed(made(timers), records, size, moment_microseconds(at(end - START)))
    assert calls_of(engine) == expected_calls(records, end)


@pytest.mark.parametrize("names", [{"counted"}, {"called", "called.timer"}])
def test_some_handlers_follow_time_too_as_an_edit_folds_them(names):
    app = made(counted, timers)
    records = [record(None, item("TICKET#0", "META", status="open", team="a", due_at=at(20)), at=float(START))]
    engine = replayed(app, records, 1, moment_microseconds(at(30)), handlers=frozenset(names))
    assert {key[1] for key in engine.rows} == ({"TEAM#a"} if names == {"counted"} else {"CALLED#0"})


def test_attributes_follow_time_until_a_moment():
    app = made(tiers)
    records = [
        record(None, item("TICKET#0", "META", status="open", team="a", due_at=at(20), until=at(50)), at=float(START))
    ]
    engine = replayed(app, records, 1, moment_microseconds(at(50)))
    source = engine.read_source(("main", "TICKET#0", "META"))
    assert (source["tier"], source["silent"]) == ({"S": at(50)}, {"BOOL": True})


def test_a_moment_comes_before_a_record_of_the_same_time():
    app = made(chain)
    first = item("TICKET#0", "META", status="open", team="a", due_at=at(20))
    records = [
        record(None, first, 1, at=float(START)),
        record(first, first | {"team": "b"}, 2, at=START + 20.0),
    ]
    engine = replayed(app, records, 1)
    assert engine.rows["main", "SHOWN#0", "TICKET"]["team"] == {"S": "b"}


def test_a_file_without_records_gives_a_new_state_no_time():
    assert replayed(made(overdue), [], 3).clock_seconds == 0
