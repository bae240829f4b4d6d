"""What a post costs by its audience, counted; and that memory does not grow with it."""

import tracemalloc
from datetime import UTC, datetime
from itertools import count

import pytest

from streamfold import App, Router, Row
from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.keys.table import CONTRIBUTORS
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.feed_histories import BEGIN, FEED, FOLLOW, POST, edge_key, post_key
from tests.helpers.records import change, item
from tests.helpers.vast_audience import VastAudience

MEGABYTE = 1_000_000
OF_A_FAN_OUT = 100
"""Requests of a fan-out whatever its size: it is opened, and each of its lanes looks at it."""


def application(**options):
    router = Router()

    @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=30, **options)
    def timeline(post, follow):
        return Row(text=post["text"])

    return App("social", routers=[router])


def post(text, number="1"):
    return item(*post_key(number), text=text)


def run(app, engine):
    return Runtime(app, engine, Settings(), clock=lambda: BEGIN + 10, pause=lambda _: None)


def spread(app, engine, *changes):
    """Processes changes and their fan-outs to the end."""
    one = run(app, engine)
    assert not process_changes(one, changes).failures
    assert not run_fan_outs(one).failures


def costs(engine, app, record):
    engine.rows_written = engine.units = engine.requests = 0
    spread(app, engine, record)
    return engine.units / engine.followers, engine.requests / engine.followers, engine.rows_written / engine.followers


FIRST = change(None, post("one"), 1)
EDIT = change(post("one"), post("two"), 2)
REMOVAL = change(post("two"), None, 3)


@pytest.mark.parametrize("followers", [20_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_a_post_its_edit_and_its_removal_cost_a_unit_a_follower(followers):
    app = application()
    engine = VastAudience(app, followers)
    for record, requests_max in ((FIRST, 0.045), (EDIT, 0.05), (REMOVAL, 0.05)):
        units, requests, rows = costs(engine, app, record)
        print(f"{record.event}: {units:.4f} units, {requests:.4f} requests a follower")
        assert rows == 1
        assert units <= 1.03
        assert requests <= requests_max + OF_A_FAN_OUT / followers


@pytest.mark.parametrize("followers", [8_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_memory_does_not_grow_with_the_audience(followers):
    app = application()
    peaks = []
    for size in (2_000, followers):
        engine = VastAudience(app, size)
        tracemalloc.start()
        spread(app, engine, FIRST)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    print(f"peaks: {peaks[0] / MEGABYTE:.1f} and {peaks[1] / MEGABYTE:.1f} MB")
    assert peaks[1] < 80 * MEGABYTE
    assert peaks[1] < peaks[0] * 1.3 + MEGABYTE


def test_a_post_to_five_followers_costs_five_requests_and_six_units():
    app = application()
    engine = MemoryEngine(app.tables.values(), app.chains)
    edges = [change(None, item(*edge_key(reader), name="one"), number) for number, reader in enumerate("vwxyz", 1)]
    spread(app, engine, *edges)
    spread(app, engine, change(None, post("one"), 9))
    counting = CountingEngine(engine)
    spread(app, counting, change(None, post("two", "2"), 10))
    assert counting.requests <= 5
    assert counting.write_units <= 6
    assert not counting.refused


def test_a_change_of_replication_attributes_alone_costs_nothing():
    app = application()
    engine = MemoryEngine(app.tables.values(), app.chains)
    edge, replicated = item(*edge_key("v"), name="one"), {"aws:rep:updatetime": 5}
    spread(app, engine, change(None, edge, 1), change(None, post("one"), 2))
    counting = CountingEngine(engine)
    spread(app, counting, change(post("one"), {**post("one"), **replicated}, 3), change(edge, edge | replicated, 4))
    assert counting.write_units == 0


def test_what_a_follow_and_an_unfollow_of_many_posts_cost():
    app = application(most=10)
    engine = MemoryEngine(app.tables.values(), app.chains)
    numbers = count(1)
    places = [POST.compose({"author_id": "b", "at": moment(number), "post_id": str(number)}) for number in range(100)]
    spread(app, engine, *(change(None, item(*place, text="one"), next(numbers)) for place in places))
    edge, counting = item(*edge_key("v"), name="one"), CountingEngine(engine)
    spread(app, counting, change(None, edge, next(numbers)))
    assert (counting.write_units, len(shown(engine))) == (11, 10)  # the mirror, and the newest posts
    counting.calls.clear()
    spread(app, counting, change(edge, None, next(numbers)))
    assert (counting.write_units, len(shown(engine))) == (1 + 10 + 2 * 90, 0)  # a refused update is paid too


def moment(number):
    return datetime.fromtimestamp(BEGIN - 1_000 + number, UTC)


def shown(engine):
    return [key for key, row in engine.rows.items() if key[1].startswith("FEED#") and row[CONTRIBUTORS] == {"N": "1"}]
