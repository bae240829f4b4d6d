"""Feeds through the twin, against a model that shares no code with them: what may be shown, and what may be missing."""

from contextlib import contextmanager
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import App, Key, Router, Row, Table
from streamfold.derivations.feed import fan_outs as lanes
from streamfold.derivations.feed.verified import FeedRows
from streamfold.jobs import fan_outs
from streamfold.lifecycle.other_rows import comparing
from streamfold.read.feeds import route_of
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import Clock, Twin
from tests.helpers.held_feeds import HeldFeeds, read_all

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)
USERS = ("ana", "bo", "cy")
KEEP_DAYS = 3
HOUR = 3_600
SHAPES = {
    "pushed": {},
    "a follow copies two posts": {"most": 2},
    "in lanes, and a follow copies two posts": {"most": 2, "inline": 1},
    "pulled above one follower": {"inline": 1, "pull_above": 1},
}
EXAMPLES, EXAMPLES_NIGHTLY = 15, 500

names = st.sampled_from(USERS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("follow"), names, names, st.booleans()),
        st.tuples(st.just("unfollow"), names, names),
        st.tuples(st.just("post"), names, st.integers(0, 5)),
        st.tuples(st.just("edit"), st.integers(0, 20)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.sampled_from((1, 20, 40))),
    ),
    max_size=30,
)


def show(post, edge):
    return None if edge["muted"] else post["text"]


class Feeds:
    """Writes to a twin and to the model, one after another."""

    def __init__(self, **options):
        router = Router()

        @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=KEEP_DAYS, **options)
        def timeline(post, follow):
            return None if follow["muted"] else Row(text=post["text"])

        self.route = route_of(timeline)
        self.clock = Clock()
        self.twin = Twin(App("social", routers=[router]), clock=self.clock)
        self.model = HeldFeeds(show, KEEP_DAYS, options.get("most", 1000))
        self.keys, self.count = [], 0

    def text(self):
        self.count += 1
        return f"text {self.count}"

    def take(self, step, *what):
        getattr(self, step)(*what)

    def follow(self, reader, author, muted):
        self.twin.put(FOLLOW, reader_id=reader, author_id=author, muted=muted)
        self.model.edge(reader, author, {"muted": muted}, self.clock.now)

    def unfollow(self, reader, author):
        self.twin.delete(FOLLOW, reader_id=reader, author_id=author)
        self.model.edge(reader, author, None, self.clock.now)

    def post(self, author, hours_old):
        at = self.clock.now - hours_old * HOUR
        self.keys.append((author, at, f"p{len(self.keys)}"))
        self._write(self.keys[-1], {"text": self.text()})

    def edit(self, number):
        if number < len(self.keys) and self.is_young(self.keys[number]):
            self._write(self.keys[number], {"text": self.text()})

    def remove(self, number):
        if number < len(self.keys):
            self._write(self.keys[number], None)

    def wait(self, hours):
        self.clock.advance(hours * HOUR)

    def is_young(self, key):
        """An edit of a post that nobody is shown any more would make it new to the model, and to nobody else."""
        return key[1] > self.clock.now - KEEP_DAYS * 24 * HOUR + HOUR

    def _write(self, key, item):
        author, at, name = key
        place = {"author_id": author, "at": datetime.fromtimestamp(at, UTC), "post_id": name}
        self.twin.put(POST, **place, **item) if item else self.twin.delete(POST, **place)
        self.model.post(author, at, name, item)

    def check(self):
        for reader in USERS:
            rows = read_all(self.route, self.twin.engine, {"reader_id": reader}, self.clock.now, limit=2)
            found = [(FEED.match(row), row["text"]) for row in rows]
            shown = [(key["at"].timestamp(), key["author_id"], key["post_id"], text) for key, text in found]
            self.model.check(reader, shown, self.clock.now)

    def check_rows(self):
        """What a comparison of rows with all pairs finds: nothing."""
        app, engine = self.twin.app, self.twin.engine
        (route,) = app.routes
        found = FeedRows(route).compared(comparing(Runtime(app, engine, Settings()), self.clock.now))
        assert (found.different, found.failed) == ([], [])


@contextmanager
def small():
    """Two lanes and pages of two, so that a few edges are a long fan-out."""
    with patch.object(fan_outs, "SEGMENTS", 2), patch.object(lanes, "PAGE", 2):
        yield


def check(steps, options):
    feeds = Feeds(**options)
    with small():
        for step in steps:
            feeds.take(*step)
            feeds.check()
    feeds.check_rows()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(steps=STEPS)
def test_a_feed_is_what_the_model_holds_after_each_write(shape, steps):
    check(steps, SHAPES[shape])


@pytest.mark.nightly
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=EXAMPLES_NIGHTLY, deadline=None)
@given(steps=STEPS)
def test_a_feed_is_what_the_model_holds_after_each_write_every_night(shape, steps):
    check(steps, SHAPES[shape])


BEGUN = [("follow", "ana", "bo", False), ("follow", "cy", "bo", False), *[("post", "bo", hours) for hours in (5, 4, 3)]]


@pytest.mark.parametrize("shape", SHAPES)
def test_an_author_may_follow_himself(shape):
    check([("follow", "bo", "bo", False), *BEGUN, ("edit", 1), ("remove", 0), ("unfollow", "bo", "bo")], SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
def test_who_comes_back_is_shown_all_posts_again_and_none_that_was_removed_meanwhile(shape):
    check([*BEGUN, ("unfollow", "ana", "bo"), ("remove", 1), ("follow", "ana", "bo", False)], SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mute_hides_what_was_pushed_before_and_its_end_shows_it(shape):
    check([*BEGUN, ("follow", "ana", "bo", True), ("edit", 0), ("follow", "ana", "bo", False)], SHAPES[shape])


def test_a_follow_copies_the_newest_posts_alone_and_an_edit_brings_an_older_one():
    feeds = Feeds(most=2)
    for step in (*[("post", "bo", hours) for hours in (5, 4, 3)], ("follow", "ana", "bo", False)):
        feeds.take(*step)
    assert [row["text"] for row in feeds.twin.rows(FEED)] == ["text 2", "text 3"]
    feeds.take("edit", 0)
    assert [row["text"] for row in feeds.twin.rows(FEED)] == ["text 4", "text 2", "text 3"]


@pytest.mark.parametrize("inline", [1, 2000])
def test_a_removed_post_takes_the_place_of_none_that_a_follow_copies(inline):
    feeds = Feeds(most=2, inline=inline)
    for step in (*[("post", "bo", hours) for hours in (5, 4, 3)], ("remove", 2), ("follow", "ana", "bo", False)):
        feeds.take(*step)
    assert [row["text"] for row in feeds.twin.rows(FEED)] == ["text 1", "text 2"]


def test_posts_grow_old_while_their_rows_are_still_there():
    feeds = Feeds()
    for step in (*BEGUN, ("wait", 68)):
        feeds.take(*step)
    rows = read_all(feeds.route, feeds.twin.engine, {"reader_id": "ana"}, feeds.clock.now)
    assert [row["text"] for row in rows] == ["text 3"]
    assert len([row for row in feeds.twin.rows(FEED) if row["PK"] == "FEED#ana"]) == 3
