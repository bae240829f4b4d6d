"""What ``replay --cost`` counts, beside what DynamoDB Local bills for the same calls."""

from contextlib import closing
from functools import partial
from typing import NamedTuple

import pytest

from handlers import shop
from streamfold import App
from streamfold.engines import DynamoEngine, MemoryEngine
from streamfold.engines.dynamodb_client import Meter
from streamfold.records.envelope import Origins
from streamfold.replay.costs import LAMBDA_BATCH_RECORDS, beginning, count_run
from streamfold.replay.files import RecordedFiles
from streamfold.replay.replay import Replay
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import AbsentSource, ClearNotes, Refused
from tests.helpers.commands import ROOT
from tests.helpers.tables import make_table
from tests.on_local.conftest import client_of

RECORDED = [str(ROOT / "events" / "shop.jsonl")]
RECORDS = 300
TABLE = "shop"  # as the records name it
APP = App("shop", routers=[shop])
SETTINGS = Settings(tables={"main": TABLE})
WRITES = ("transact", "insert_rows", "remove_empty", "clear_pending", "swap_state")


def recorded():
    return beginning(RecordedFiles(RECORDED), RECORDS)


class Reads(DynamoEngine):
    """Counts the units of reads of nothing: DynamoDB bills them, and DynamoDB Local only those of GetItem."""

    nothing = 0.0

    def read_state(self, keys, *, consistent=False):
        keys = set(keys)
        found = super().read_state(keys, consistent=consistent)
        self.nothing += (len(keys) - len(found)) / (1 if consistent else 2)
        return found

    def read_rows(self, keys, *, consistent=True):
        keys = set(keys)
        found = super().read_rows(keys, consistent=consistent)
        self.nothing += (len(keys) - len(found)) / (1 if consistent else 2)
        return found

    def read_entries(self, wanted):
        found = super().read_entries(wanted)
        self.nothing += not found
        return found

    def page(self, *given):
        page = super().page(*given)
        self.nothing += not page.items
        return page


class SendsSingly(DynamoEngine):
    """Sends each write of a transaction as a transaction of its own, and statements as calls.

    DynamoDB Local bills one write a table of a transaction, and no statement at all. Nobody else writes, so all guards
    of a transaction hold: a refused one is not sent, because DynamoDB Local reports nothing of it.
    """

    nothing = 0.0

    def __init__(self, *given):
        super().__init__(*given)
        self.requests.takes_statements = lambda _: False

    def transact(self, writes, expires_at):
        if len(writes) == 1 and not isinstance(writes[0], AbsentSource):
            return super().transact(writes, expires_at)
        for write in writes:
            assert self.send([self.requests.action(write, expires_at)]) is None
        return None

    def clear_pending(self, finished):
        for key, texts in finished.items():
            self.client.update_item(**self.requests.request(ClearNotes.of(key, texts)))


class Billing(NamedTuple):
    """A database, and a client that puts source items into it, which nobody bills."""

    client: object
    unbilled: object

    def replayed(self, engine_type):
        """Replays the recording, and gives what DynamoDB Local bills."""
        engine = engine_type(self.client, {"main": (APP.tables["main"], TABLE)}, "state")
        memory = MemoryEngine(APP.tables.values(), APP.chains)
        engine.own_stream = memory
        for name in WRITES:  # chains read what a store of this machine writes beside
            setattr(engine, name, partial(self._both, getattr(engine, name), getattr(memory, name)))
        meter = Meter(self.client)
        runtime = Runtime(APP, engine, SETTINGS, outside=False)
        origins = Origins(APP.source_tables, SETTINGS, others=APP.tables)
        replay = Replay(
            runtime,
            origins,
            batch_records=LAMBDA_BATCH_RECORDS,
            put_sources=partial(self._put, engine.requests, memory),
        )
        assert replay.process(recorded()).clean
        return meter.take(), engine.nothing

    def _both(self, sent, also, *arguments):
        refused = also(*arguments)
        return refused if isinstance(refused, Refused) else sent(*arguments)

    def _put(self, requests, memory, images):
        images = list(images)
        memory.put_sources(images)
        for each in images:
            if each.raw is None:
                self.unbilled.delete_item(TableName=TABLE, Key=requests.key(each.item))
            else:
                self.unbilled.put_item(TableName=TABLE, Item=each.raw)


@pytest.fixture
def billing(dynamodb, dynamodb_endpoint, access_key):
    make_table(dynamodb, TABLE, {"PK": "S", "SK": "S"})
    make_table(dynamodb, "state", {"pk": "S", "sk": "S"})
    with closing(client_of(dynamodb_endpoint, access_key)) as unbilled:
        yield Billing(dynamodb, unbilled)


@pytest.fixture
def counted():
    """What is counted without a database."""
    return count_run(APP, SETTINGS, recorded(), LAMBDA_BATCH_RECORDS)


def test_write_units_are_within_a_twentieth_of_what_dynamodb_local_bills(billing, counted):
    billed, _ = billing.replayed(SendsSingly)
    found = (counted.usage - counted.refused).write_units + counted.once.write_units
    print(f"\ncounted {found} write units, billed {billed.write}")
    assert found == pytest.approx(billed.write, rel=0.05)


def test_requests_and_read_units_are_within_a_twentieth_of_what_dynamodb_local_bills(billing, counted):
    billed, nothing = billing.replayed(Reads)
    requests = (counted.usage - counted.refused).requests + counted.once.requests
    print(f"\ncounted {requests} requests and {counted.usage.read_units} read units, sent {billed} and {nothing}")
    assert requests == pytest.approx(billed.requests, rel=0.05)
    assert counted.usage.read_units == pytest.approx(billed.read + nothing, rel=0.05)
