"""A local replay that meets a store where nobody answers."""

import gc
from weakref import ref

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable, EngineUnreachable
from streamfold.records.envelope import Origins
from streamfold.replay.files import Line
from streamfold.replay.replay import Replay
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source

ORDER = Key("ORDER#{order}", "METADATA")


class Failing(MemoryEngine):
    """A store whose transactions all fail."""

    error: Exception
    calls = 0

    def transact(self, writes, expires_at):
        self.calls += 1
        raise self.error


def count(item):
    yield Row(n=Count())


def application():
    router = Router()
    router.view(ORDER, into=Key("ORDERS", "TOTAL"))(count)
    return App("shop", routers=[router])


def entries(number, record_bytes=0):
    source = Source()
    return [(Line("records.jsonl", each, record_bytes), source.put(f"ORDER#{each}")) for each in range(number)]


def of_single_records(app, engine, **options):
    return Replay(Runtime(app, engine, Settings()), Origins(app.source_tables, Settings()), batch_records=1, **options)


def replay(error):
    app = application()
    engine = Failing(app.tables.values())
    engine.error = error
    return engine, lambda: of_single_records(app, engine).process(entries(4))


def test_replay_stops_at_the_first_batch_that_nobody_answers():
    engine, run = replay(EngineUnreachable("No server answers at the DynamoDB endpoint."))
    with pytest.raises(EngineUnreachable, match="No server answers"):
        run()
    assert engine.calls == 1


def test_replay_goes_on_behind_a_call_that_failed():
    _, run = replay(EngineUnavailable("timed out"))
    assert run().failure_count == 4


def test_a_batch_ends_where_its_lines_have_too_many_bytes(monkeypatch):
    app, sizes = application(), []
    replay = of_single_records(app, MemoryEngine(app), put_sources=lambda images: sizes.append(len([*images])))
    replay.batch_records = 10
    monkeypatch.setattr("streamfold.replay.replay.BATCH_BYTES_MAX", 100)

    replay.process(entries(9, record_bytes=30))

    assert sizes == [4, 4, 1]


class Cycle:
    def __init__(self):
        self.itself = self


def test_cycles_are_searched_for_between_batches_and_not_within(monkeypatch):
    app, left, before = application(), [], []

    def leaves_a_cycle(_):
        before.append((gc.isenabled(), sum(cycle() is not None for cycle in left)))
        left.append(ref(Cycle()))

    monkeypatch.setattr("streamfold.replay.replay.NEW_RECORDS", 2)
    of_single_records(app, MemoryEngine(app), put_sources=leaves_a_cycle).process(entries(5))

    assert before == [(False, 0), (False, 1), (False, 0), (False, 1), (False, 0)]
    assert gc.isenabled()


def test_all_values_are_searched_through_now_and_then(monkeypatch):
    collected = []
    monkeypatch.setattr(gc, "collect", collected.append)
    monkeypatch.setattr("streamfold.replay.replay.NEW_RECORDS", 1)
    monkeypatch.setattr("streamfold.replay.replay.ALL_RECORDS", 3)
    app = application()

    of_single_records(app, MemoryEngine(app)).process(entries(7))

    assert collected == [0, 0, 2, 0, 0, 2, 0]
