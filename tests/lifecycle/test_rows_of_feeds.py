"""Rows of feeds, which no ledger accounts for: they are neither compared with a fold nor mended."""

from streamfold import App, Count, Key, Router, Row
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.lifecycle.row_repair import RowCorrection
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.replay.replay import newest_sources
from tests.helpers.doorbells import follow, new_run, post, rows_of
from tests.helpers.feed_histories import FEED, FOLLOW, POST, TABLE
from tests.helpers.records import change, item


def application():
    """A feed, and a view of the same posts."""
    router = Router()

    @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=300)
    def timeline(post, follow):
        return Row(text=f"{post['text']}/{follow['name']}")

    @router.view(POST, into=Key("AUTHOR#{author_id}", "POSTS", TABLE))
    def posts(post):
        return Row(posts=Count())

    return App("social", routers=[router])


def processed():
    app = application()
    engine = MemoryEngine(app.tables.values(), app.chains)
    run = new_run(app, engine)
    changes = [change(None, item(*follow(f"r{n}"), name="n"), n + 1) for n in range(3)]
    changes.append(change(None, item(*post(1), text="hello"), 9))
    engine.put_sources(newest_sources(changes))
    assert process_changes(run, changes).failures == []
    assert len(rows_of(engine)) == 3
    return app, engine, run


def compared(app, engine, run):
    return RowsVerifier(run, app.routes, live=False).verify()


def test_rows_of_feeds_are_not_compared():
    app, engine, run = processed()
    found = compared(app, engine, run)
    assert (found.rows, found.different, found.failed) == (1, [], [])


def test_rows_of_feeds_are_not_mended_even_where_they_are_named():
    _, engine, run = processed()
    key = next(row for row in engine.items(TABLE) if row["PK"]["S"].startswith("FEED#"))
    row = ("main", key["PK"]["S"], key["SK"]["S"])
    before = engine.read_rows([row])
    corrected = RowCorrection(run).correct([row])
    assert (corrected.corrected, [each.row for each in corrected.remaining]) == ([], [row])
    assert "No handler here contributes to it" in corrected.remaining[0].why
    assert engine.read_rows([row]) == before
