"""How long posts are shown, where keep_days changes; and what pulling leaves out, because pushing refuses it."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from streamfold import App, Key, Router, Row, Table
from streamfold.batch.fan_outs import enqueue_open, run_fan_outs
from streamfold.batch.process import process_event
from streamfold.derivations.feed.spreading import EDGE, KEEP, PULL, UNTIL
from streamfold.engines import MemoryEngine
from streamfold.errors import Unprocessable
from streamfold.keys.table import CONTRIBUTORS
from streamfold.read.feeds import EngineQueries, page
from streamfold.records.envelope import Origins
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import Clock, TableTwin, Twin

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)
NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
PUSHED, PULLED = {}, {"inline": 1, "pull_above": 1}
MODES = pytest.mark.parametrize("options", [PUSHED, PULLED], ids=["pushed", "pulled"])


def plain(post, _):
    return Row(text=post["text"])


class Feeds:
    """A table and its feed, both at the time of one clock; ``declare`` has the code deployed anew."""

    def __init__(self, show=plain, **options):
        self.clock = Clock()
        self.table = TableTwin(TABLE, clock=self.clock)
        self.declare(show, **options)
        self.engine = MemoryEngine(self.app.tables.values(), self.app.chains)
        self.queries = EngineQueries(self.engine)

    def declare(self, show=plain, keep_days=10, **options):
        router = Router()

        @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=keep_days, **options)
        def timeline(post, follow):
            return show(post, follow)

        self.app = App("social", routers=[router])

    def run(self):
        return Runtime(self.app, self.engine, Settings(), clock=lambda: self.clock.now, pause=lambda _: None)

    def take(self, record):
        self.clock.advance(1)
        self.engine.put_sources(newest_sources([Origins(self.app.source_tables, Settings()).change(record)]))
        failures = process_event(self.run(), {"Records": [record]}).failures
        while enqueue_open(ringing := self.run()):
            run_fan_outs(ringing)
        return [failure.error for failure in failures]

    def post(self, name="p1", at=NOW, text="hello", author="bo", **more):
        return self.take(self.table.put({**POST.key(author_id=author, at=at, post_id=name), "text": text, **more}))

    def remove(self, name="p1", at=NOW):
        return self.take(self.table.delete(POST.key(author_id="bo", at=at, post_id=name)))

    def follow(self, *readers, **more):
        return [
            self.take(self.table.put({**FOLLOW.key(reader_id=reader, author_id="bo"), **more})) for reader in readers
        ]

    def unfollow(self, reader="ana"):
        return self.take(self.table.delete(FOLLOW.key(reader_id=reader, author_id="bo")))

    def days_later(self, days):
        self.clock.advance(days * 86_400)

    def page(self, limit=100, cursor=None, queries=None):
        (route,) = self.app.routes
        return page(route, queries or self.queries, {"reader_id": "ana"}, limit, cursor, 50, self.clock.now)

    def shown(self):
        return [FEED.match(row)["post_id"] for row in self.page().rows]

    def is_pulled(self):
        return any(key[1].startswith(PULL) and row[CONTRIBUTORS] != {"N": "0"} for key, row in self.engine.rows.items())


def pulling(**options):
    """A feed whose author is pulled: a post to two readers has found too many."""
    feeds = Feeds(**{**PULLED, **options})
    feeds.follow("ana", "cy")
    feeds.post("p0", at=NOW - timedelta(minutes=1))
    assert feeds.is_pulled()
    return feeds


# --- what pushing refuses, pulling leaves out ------------------------------------------------------------------------


def test_a_post_that_lies_ahead_is_left_out_of_a_pulled_page_and_counted():
    feeds = pulling()
    feeds.post("p1")
    (error,) = feeds.post("far", at=NOW + timedelta(days=400))
    assert "is more than a day ahead" in str(error)
    found = feeds.page()
    assert (feeds.shown(), found.left_out) == (["p1", "p0"], 1)


def test_a_post_of_a_day_ahead_is_pulled_as_it_is_pushed():
    feeds = pulling()
    assert feeds.post("soon", at=NOW + timedelta(hours=23)) == []
    assert (feeds.shown(), feeds.page().left_out) == (["soon", "p0"], 0)


def raising(post, _):
    return Row(text=post["missing" if post["text"] == "bad" else "text"])


WRONG = {
    "raises": raising,
    "gives two rows": lambda post, _: [Row(text="one"), Row(text="two")] if post["text"] == "bad" else [Row(text="a")],
    "gives a float": lambda post, _: Row(text=0.5 if post["text"] == "bad" else "text"),
    "gives the time to live": lambda post, _: Row(**({"expires": 5} if post["text"] == "bad" else {"text": "a"})),
    "gives 400 KB": lambda post, _: Row(text="x" * (410_000 if post["text"] == "bad" else 1)),
    "ends": lambda post, _: Row(text=next(iter([])) if post["text"] == "bad" else "a"),
}


@pytest.mark.parametrize("show", WRONG.values(), ids=WRONG)
def test_a_post_whose_row_cannot_be_made_is_left_out_and_all_others_are_shown(show, caplog):
    feeds = pulling(show=show)
    for name, text in (("p1", "hello"), ("p2", "bad"), ("p3", "hello")):
        feeds.post(name, text=text)
    with caplog.at_level(logging.WARNING, "streamfold"):
        found = feeds.page()
    assert ([FEED.match(row)["post_id"] for row in found.rows], found.left_out) == (["p3", "p1", "p0"], 1)
    (said,) = {record.getMessage() for record in caplog.records}
    assert "'timeline'" in said
    assert "bad" not in said
    assert "hello" not in said


def test_each_page_counts_what_it_leaves_out_itself():
    feeds = pulling(show=raising)
    texts = ["bad", "a", "bad", "bad", "b", "bad", "c", "bad"]
    for number, text in enumerate(texts):
        feeds.post(f"p{number}", at=NOW + timedelta(seconds=number), text=text)
    counts, found = [], feeds.page(1)
    while True:
        counts.append((found.rows[0]["text"], found.left_out))
        if found.cursor is None:
            break
        found = feeds.page(1, found.cursor)
    assert counts == [("c", 1), ("b", 1), ("a", 2), ("hello", 1)]


@pytest.mark.parametrize(
    "damaged",
    [
        {EDGE: {"S": "{"}},
        {EDGE: {"S": "[" * 100_000}},
        {EDGE: {"N": "5"}},
        {KEEP: {"S": "x"}},
        {UNTIL: {"N": "5"}},
        {UNTIL: {"NULL": True}},
    ],
    ids=["no JSON", "nested too deep", "a number", "no number", "a place that is a number", "a place that is nothing"],
)
def test_an_edge_that_is_damaged_leaves_its_author_out_alone(damaged):
    feeds = pulling()
    (key,) = [key for key in feeds.engine.rows if key[1] == f"{PULL}timeline#FEED#ana"]
    feeds.engine.rows[key] = {**feeds.engine.rows[key], **damaged}
    assert feeds.page().left_out == 1


def test_a_number_of_seconds_that_is_damaged_takes_no_feed_away():
    feeds = pulling()
    (key,) = [key for key in feeds.engine.rows if key[1] == f"{PULL}timeline#FEED#ana"]
    feeds.engine.rows[key] = {**feeds.engine.rows[key], KEEP: {"N": "-1E+125"}}
    assert feeds.page().rows == []


@MODES
def test_a_post_that_leaves_no_room_for_its_copy_is_shown_nowhere(options):
    feeds = Feeds(**options)
    feeds.follow("ana", "cy")
    feeds.post("p0", at=NOW - timedelta(minutes=1))
    (error,) = feeds.post("p1", text="x" * 408_000)
    assert "keeps a copy of each item" in str(error)
    assert (feeds.shown(), feeds.page().left_out) == (["p0"], 1 if options else 0)


@MODES
def test_a_feed_shows_what_is_derived_onto_a_post(options):
    router = Router()

    @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=10, **options)
    def timeline(post, follow):
        return Row(words=post.get("words"))

    @router.attributes(POST)
    def words_of_post(post):
        return Row(words=len(post["text"].split()))

    twin = Twin(App("social", routers=[router]))
    for reader in ("ana", "cy"):
        twin.put(FOLLOW, reader_id=reader, author_id="bo")
    for name, text in (("p0", "one"), ("p1", "one two"), ("p0", "one two three")):
        twin.put(POST, author_id="bo", at=NOW, post_id=name, text=text)
    assert [row["words"] for row in twin.feed(timeline, reader_id="ana").rows] == [2, 3]


def test_a_pulled_row_is_as_it_would_be_stored():
    def show(post, _):
        return Row(made=datetime(2026, 3, 1, tzinfo=UTC), data=post["data"], tags=["a", "b"])

    feeds = pulling(show=lambda post, follow: show(post, follow) if "data" in post else None)
    feeds.post("p1", data=b"\x00\x01")
    (row,) = feeds.page().rows
    assert (row["made"], row["data"], row["tags"]) == ("2026-03-01T00:00:00.000000Z", b"\x00\x01", ["a", "b"])


@MODES
def test_a_post_whose_key_makes_no_key_of_the_feed_is_reported_without_a_follower(options):
    feeds = pulling() if options else Feeds()
    # Together with the author's name the key of the row is longer than 1,024 bytes; that of the post is not.
    (error,) = feeds.take(
        feeds.table.put({**POST.key(author_id="b" * 100, at=NOW, post_id="p" * 950), "text": "too long"})
    )
    assert isinstance(error, Unprocessable) or isinstance(error.__cause__, Unprocessable)
    assert "makes no key of" in str(error)
    assert feeds.take(feeds.table.delete(POST.key(author_id="b" * 100, at=NOW, post_id="p" * 950))) == []


# --- keep_days is raised ---------------------------------------------------------------------------------------------


GOES = {"removed": Feeds.remove, "unfollowed": Feeds.unfollow, "muted": lambda feeds: feeds.follow("ana", muted=True)}


def unless_muted(post, follow):
    return None if follow.get("muted") else Row(text=post["text"])


@pytest.mark.parametrize("goes", GOES.values(), ids=GOES)
@MODES
def test_what_went_while_it_was_too_old_is_not_shown_when_posts_are_kept_longer(options, goes):
    feeds = Feeds(show=unless_muted, **options)
    feeds.follow("ana", "cy")
    feeds.post()
    assert feeds.shown() == ["p1"]
    feeds.days_later(12)
    goes(feeds)
    feeds.declare(show=unless_muted, keep_days=30, **options)
    assert feeds.shown() == []


@MODES
def test_a_post_that_was_removed_while_it_was_too_old_does_not_come_back_to_a_new_follower(options):
    feeds = Feeds(**options)
    feeds.follow("ana", "cy")
    feeds.post()
    feeds.days_later(12)
    feeds.remove()
    feeds.declare(keep_days=30, **options)
    feeds.unfollow()
    feeds.follow("ana")
    assert feeds.shown() == []


def test_a_pushed_post_that_changes_after_posts_are_kept_longer_is_shown_as_long():
    feeds = Feeds()
    feeds.follow("ana")
    feeds.post()
    feeds.days_later(5)
    feeds.declare(keep_days=30)
    feeds.days_later(7)
    assert feeds.shown() == []
    feeds.post(text="edited")
    assert feeds.shown() == ["p1"]
    feeds.days_later(19)
    assert feeds.shown() == []


def test_a_row_does_not_outlive_what_is_known_of_its_post():
    feeds = Feeds()
    feeds.post()
    feeds.days_later(6)
    feeds.declare(keep_days=100)
    feeds.follow("ana")
    assert feeds.shown() == ["p1"]
    feeds.days_later(5)
    assert feeds.shown() == []


def test_posts_of_an_author_who_is_pulled_are_as_old_as_when_he_was_switched():
    feeds = pulling()
    feeds.post("p1")
    feeds.declare(keep_days=30, **PULLED)
    feeds.days_later(9)
    assert feeds.shown() == ["p1", "p0"]
    feeds.follow("ana", again=True)
    feeds.days_later(2)
    feeds.post("p2", at=NOW + timedelta(days=11))
    assert feeds.shown() == ["p2"]


@pytest.mark.parametrize("goes", GOES.values(), ids=GOES)
@pytest.mark.parametrize("options", [PUSHED, {"inline": 1}, PULLED], ids=["pushed", "in lanes", "pulled"])
def test_what_went_while_posts_were_kept_for_less_is_not_shown_when_they_are_kept_longer_again(options, goes):
    feeds = Feeds(show=unless_muted, keep_days=30, **options)
    feeds.follow("ana", "cy")
    for name, minutes in (("p1", 0), ("p2", 1)):
        feeds.post(name, at=NOW + timedelta(minutes=minutes))
    feeds.declare(show=unless_muted, **options)
    feeds.days_later(12)
    goes(feeds)
    feeds.declare(show=unless_muted, keep_days=30, **options)
    assert "p1" not in feeds.shown()


@MODES
def test_posts_are_shown_as_long_as_the_option_says_where_it_is_lowered(options):
    feeds = Feeds(**options)
    feeds.follow("ana", "cy")
    feeds.post()
    feeds.days_later(5)
    feeds.declare(keep_days=3, **options)
    assert feeds.shown() == []
