"""Feeds that are led to posts and edges that were there before, and to what was removed while older code ran."""

from unittest.mock import patch

import pytest

from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.derivations.feed.posts import StoredCopies
from streamfold.derivations.feed.spreading import Spreading
from streamfold.engines import MemoryEngine
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import BackfillRun, new_job
from streamfold.lifecycle.page import Pages
from streamfold.records.values import decode
from streamfold.replay.replay import newest_sources
from streamfold.testing.mapping import Died
from tests.helpers.doorbells import follow, new_run, post, rows_of
from tests.helpers.feed_backfills import BackfillHistory, check
from tests.helpers.feed_histories import TABLE, applications
from tests.helpers.records import change, item

HISTORIES_OF_MUTANTS = 500


@pytest.fixture
def app():
    return applications()[0]


@pytest.fixture
def engine(app):
    return MemoryEngine(app.tables.values(), app.chains)


def changes(*, gone=False):
    """Three edges and a post; ``gone``: the records that remove them."""
    found = [(follow(f"r{number}"), {"name": "n"}) for number in range(3)] + [(post(1), {"text": "hello"})]
    put = [item(*place, **values) for place, values in found]
    return [change(image, None, 100 + n) if gone else change(None, image, n + 1) for n, image in enumerate(put)]


def filled(app, engine, page_items=2):
    """The counts of a run over all items."""
    run, jobs = new_run(app, engine), Jobs(app.name, engine)
    job = new_job(jobs, "backfill", ["timeline"], [TABLE], 1, by="test")
    progress = BackfillRun(jobs, job, Pages(run, ["timeline"]), [TABLE], page_items=page_items).run()
    assert run_fan_outs(run).failures == []
    assert progress.report.failed == []
    return progress


def spread(app, engine):
    """Takes the records of all edges and of the post, with their fan-outs."""
    run = new_run(app, engine)
    assert process_changes(run, changes()).failures == []
    assert run_fan_outs(run).failures == []
    assert shown_rows(engine) == ["FEED#r0", "FEED#r1", "FEED#r2"]


def shown_rows(engine):
    """The readers who have a row that is shown."""
    rows = [decode({"M": dict(row)}) for row in engine.items(TABLE)]
    return sorted(row["PK"] for row in rows if row["PK"].startswith("FEED#") and row["_sf_n"])


@pytest.mark.parametrize("page_items", [1, 500])
def test_posts_reach_those_who_followed_before_the_feed_was_there(app, engine, page_items):
    engine.put_sources(newest_sources(changes()))
    filled(app, engine, page_items)
    assert rows_of(engine) == ["FEED#r0", "FEED#r1", "FEED#r2"]


def test_a_second_run_leaves_rows_as_they_are(app, engine):
    engine.put_sources(newest_sources(changes()))
    filled(app, engine)
    before = list(engine.items(TABLE))
    filled(app, engine)
    assert list(engine.items(TABLE)) == before


def test_a_second_run_gives_no_newer_version_to_what_has_bytes_or_sets(app, engine):
    values = {"name": "n", "text": "hello", "picture": b"\xff\xfe", "tags": {b"b", b"a"}, "deep": [{"more": b"\0"}]}
    images = [item(*follow("r0"), **values), item(*post(1), **values)]
    spread_changes = [change(None, image, number + 1) for number, image in enumerate(images)]
    engine.put_sources(newest_sources(spread_changes))
    assert process_changes(new_run(app, engine), spread_changes).failures == []
    before = list(engine.items(TABLE))
    filled(app, engine)
    assert list(engine.items(TABLE)) == before


@pytest.mark.parametrize("gone", [0, 3], ids=["an edge", "a post"])
def test_what_older_code_saw_removed_goes_from_feeds_when_the_state_is_swept(app, engine, gone):
    engine.put_sources(newest_sources(changes()))
    spread(app, engine)
    engine.put_sources(newest_sources([changes(gone=True)[gone]]))  # its record is acknowledged by older code
    assert len(filled(app, engine).report.failed) == 0
    assert shown_rows(engine) == ([] if gone == 3 else ["FEED#r1", "FEED#r2"])


def shown_after_removals_that_were_begun(app, engine):
    """The rows that are shown where newer code died in the removals of a pair, and older code acknowledged them."""
    engine.put_sources(newest_sources(changes()))
    spread(app, engine)
    for gone, method in ((0, "_edge"), (3, "_post")):
        removal = changes(gone=True)[gone : gone + 1]
        with patch.object(Spreading, method, side_effect=Died), pytest.raises(Died):
            process_changes(new_run(app, engine), removal)
        engine.put_sources(newest_sources(removal))
    filled(app, engine)
    return shown_rows(engine)


def test_removals_that_newer_code_began_and_older_code_acknowledged_are_brought_to_their_end(app, engine):
    assert shown_after_removals_that_were_begun(app, engine) == []


def test_a_sweep_that_passes_over_what_is_known_to_be_gone_leaves_rows(app, engine, monkeypatch):
    swept = StoredCopies.orphans

    def there_alone(self, keys):
        known = self.runtime.engine.read_state([key for key in keys if key.pk.startswith(("posts#", "edges#"))])
        return swept(self, [key for key, found in known.items() if '"gone":true' not in found["s"].replace(" ", "")])

    monkeypatch.setattr(StoredCopies, "orphans", there_alone)
    assert shown_after_removals_that_were_begun(app, engine) == ["FEED#r0"]


def test_deployments_of_feeds_with_pages_beside_the_stream_end_right():
    check(40)


@pytest.mark.ci
@pytest.mark.parametrize("options", [{}, {"pull_above": 1}], ids=["pushed", "pulled"])
def test_hundreds_of_deployments_of_feeds_end_right(options):
    check(300, 1_000, **options)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, {"pull_above": 1}], ids=["pushed", "pulled"])
def test_twenty_thousand_deployments_of_feeds_end_right(options):
    check(20_000, 10_000, **options)


@pytest.mark.ci
@pytest.mark.parametrize("lacking", ["sweep", "gate"])
def test_a_run_that_lacks_what_it_needs_is_noticed(lacking):
    histories = (BackfillHistory(applications(), seed, **{lacking: False}) for seed in range(HISTORIES_OF_MUTANTS))
    assert any(history.run().wrong() for history in histories)
