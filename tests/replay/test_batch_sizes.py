"""A recording gives the same rows for any size of batch and after any kills: those that have not expired by its end."""

import json
from contextlib import closing
from decimal import Decimal
from random import Random

import pytest

from handlers import app as shop
from handlers.documents import app as labels
from handlers.iot import app as maintenance
from handlers.shop import app as deliveries
from handlers.tenants import app as tenants
from handlers.tickets import app as deadlines
from streamfold.cli.items import derived_items, present
from streamfold.derivations.search.local import LocalIndex, local_indexes
from streamfold.engines import EmbeddedEngine
from streamfold.records.envelope import Origins
from streamfold.replay.files import RecordedFiles
from streamfold.replay.replay import Replay, ReplayCursor
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.commands import EVENTS, ROOT, SPECIAL

OTHERS = (  # files of one application each
    (deadlines, [ROOT / "events/desk/deadlines.jsonl"]),
    (deliveries, [ROOT / "events/shop/deliveries.jsonl"]),
    (labels, [ROOT / "events/documents/labels.jsonl"]),
    (maintenance, [ROOT / "events/iot/maintenance.jsonl"]),
)
TENANTS = sorted((ROOT / "events" / "tenants").glob("*.jsonl"))
RECORDS_FEW = 300
"""A file of more records takes seconds in small batches: the long tests have that."""
RECORDS_ONE_BATCH = 10_000


class Killed(BaseException):
    """The process ends here."""


class Recording:
    """Files, and a state into which an application replays them."""

    def __init__(self, app, files, state):
        self.app, self.files, self.state = app, [str(file) for file in files], state

    def replay(self, records, calls_left=None):
        """Replays with batches of so many records; the process may end after so many transactions of the store."""
        with closing(EmbeddedEngine(self.app, self.state)) as engine:
            transact, calls = engine.transact, iter(range(calls_left or 0))

            def dying(*given):
                if next(calls, None) is None:
                    raise Killed
                return transact(*given)

            if calls_left is not None:
                engine.transact = dying
            settings, files = Settings(), RecordedFiles(self.files, digested=True)
            origins = Origins(self.app.source_tables, settings, lambda _: None, self.app.tables)
            runtime = Runtime(self.app, engine, settings, warn=lambda _: None)
            replay = Replay(runtime, origins, batch_records=records, put_sources=engine.put_sources)
            assert replay.process(files, ReplayCursor(self.app, settings, engine, files)).clean

    def killed(self, random, records):
        """Replays to the end, through five processes that end anywhere."""
        for _ in range(5):
            try:
                self.replay(records, random.randrange(1, 60))
            except Killed:
                continue
            return self
        self.replay(records)
        return self

    def rows(self):
        """The rows that have not expired at the state's time, as readers see them, and the documents."""
        with closing(EmbeddedEngine(self.app, self.state)) as engine:
            rows = [
                (table.name, json.dumps(row, sort_keys=True))
                for table in self.app.tables.values()
                for row in present(derived_items(self.app, table, engine.items(table)))
                if Decimal(row.get(table.ttl, {}).get("N", "inf")) >= engine.clock_seconds
            ]
            index = LocalIndex(engine)
            documents = [(name, each.id, each.body) for name in local_indexes(engine) for each in index.documents(name)]
            return rows, documents


def check_sizes(app, files, folder, *sizes, seed=1):
    """Checks that batches of all sizes, with kills in between, lead to the rows of one batch."""
    whole = Recording(app, files, folder / "whole.db")
    whole.replay(RECORDS_ONE_BATCH)
    random = Random(seed)
    for size in sizes:
        other = Recording(app, files, folder / f"{size}.db").killed(random, size)
        assert other.rows() == whole.rows(), f"batches of {size}"


def each_file():
    for app, paths in ((shop, [*EVENTS, *SPECIAL]), (tenants, TENANTS), *OTHERS):
        for path in paths:
            large = path.suffix == ".jsonl" and len(path.read_text().splitlines()) > RECORDS_FEW
            yield pytest.param(app, path, marks=pytest.mark.ci if large else pytest.mark.slow, id=path.name)


@pytest.mark.parametrize(("app", "path"), [*each_file()])
def test_each_recording_gives_the_same_rows_in_batches_of_any_size_and_after_kills(app, path, tmp_path):
    check_sizes(app, [path], tmp_path, 7, 41)


@pytest.mark.ci
def test_all_recordings_together_give_the_same_rows_in_batches_of_any_size_and_after_kills(tmp_path):
    check_sizes(shop, EVENTS, tmp_path, 37)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_all_recordings_together_give_the_same_rows_record_by_record(tmp_path, seed):
    check_sizes(shop, EVENTS, tmp_path, 1, 13, 999, seed=seed)


def moved(path, folder, days):
    """A file of the same records, so many days later."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record["dynamodb"]["ApproximateCreationDateTime"] += days * 86_400
    late = folder / path.name
    late.write_text("".join(json.dumps(record) + "\n" for record in records))
    return late


def test_records_of_another_year_beside_posts_leave_their_timelines_as_they_are(tmp_path):
    social = next(path for path in EVENTS if path.name == "social.jsonl")
    alone = Recording(shop, [social], tmp_path / "alone.db")
    alone.replay(RECORDS_ONE_BATCH)
    others = [moved(path, tmp_path, 250) for path in EVENTS if path.name in ("iot.jsonl", "sessions.jsonl")]
    beside = Recording(shop, [others[0], social, others[1]], tmp_path / "beside.db")
    beside.replay(RECORDS_ONE_BATCH)

    def timelines(state):
        with closing(EmbeddedEngine(shop, state)) as engine:
            return [*present(engine.items_from(shop.tables["main"], "HOME#"))]

    assert timelines(beside.state) == timelines(alone.state)
    assert all(name == "main" and not json.loads(row)["PK"]["S"].startswith("HOME#") for name, row in beside.rows()[0])


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in (*EVENTS, *TENANTS)])
def test_records_have_the_times_of_their_workload_in_order(path):
    times = [json.loads(line)["dynamodb"]["ApproximateCreationDateTime"] for line in path.read_text().splitlines()]

    assert times == sorted(times)
    assert 1_772_352_000 <= times[0] < times[-1] < 1_772_352_000 + 31 * 86_400  # from 2026-03-01T08:00:00Z on
