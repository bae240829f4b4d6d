"""A local replay that meets a store where nobody answers."""

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable, EngineUnreachable
from streamfold.records.envelope import Origins
from streamfold.replay.replay import Replay
from streamfold.run import Run
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


def replay(error):
    router = Router()
    router.view(ORDER, into=Key("ORDERS", "TOTAL"))(count)
    app, source = App("shop", routers=[router]), Source()
    engine = Failing(app.tables.values())
    engine.error = error
    records = [(number, source.put(f"ORDER#{number}")) for number in range(4)]
    replay = Replay(app, engine, Run(Settings()), Origins(app.source_tables, Settings()), batch_records=1)
    return engine, lambda: replay.process(records)


def test_replay_stops_at_the_first_batch_that_nobody_answers():
    engine, run = replay(EngineUnreachable("Nothing answers at the DynamoDB endpoint."))
    with pytest.raises(EngineUnreachable, match="Nothing answers"):
        run()
    assert engine.calls == 1


def test_replay_goes_on_behind_a_call_that_failed():
    _, run = replay(EngineUnavailable("timed out"))
    assert run().failure_count == 4
