"""What a feed does with what is wrong, late, switched off or another's, and what stays of authors who were left."""

import json
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta

import pytest

from streamfold import App, Key, Router, Row, Table
from streamfold.batch.fan_outs import run_fan_outs
from streamfold.derivations.feed import posts as feed_posts
from streamfold.derivations.feed.spreading import PULL
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.errors import Contended, EngineError, HandlerError
from streamfold.failures.failed_records import Waiting
from streamfold.failures.redrive import Redrive
from streamfold.failures.repair import Repair
from streamfold.keys.key import PARTITION_BYTES_MAX
from streamfold.ledger.state_keys import audience_key
from streamfold.read.feeds import LIMIT_MAX, EngineQueries, page, route_of
from streamfold.records.envelope import Origins
from streamfold.records.values import decode, encode
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import Clock, HandlerFails, KinesisTwin, TableTwin, Twin
from tests.helpers.failures import parked_document
from tests.helpers.records import record

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)
NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
POST_NAME = "USER#bo / POST#2026-03-01T09:00:00Z#p1"
SHAPES = pytest.mark.parametrize("inline", [1, 2000], ids=["in lanes", "at once"])


def timeline_app(show=None, beside=(), **options):
    """An application with one feed, ``timeline``, and the name that readers give."""
    router = Router()

    @router.feed(POST, audience=FOLLOW, into=FEED, **{"keep_days": 30, **options})
    def timeline(post, follow):
        return show(post, follow) if show else Row(text=post["text"], by=follow.get("name", "?"))

    return App("social", routers=[router, *beside]), timeline


class Feeds:
    """A table whose records are processed when they are taken, by any settings."""

    def __init__(self, show=None, settings=None, engine=None, **options):
        self.app, self.timeline = timeline_app(show, **options)
        self.clock = Clock()
        self.table = TableTwin(TABLE, clock=self.clock)
        self.engine = engine or MemoryEngine(self.app.tables.values(), self.app.chains)
        self.settings = settings or Settings()
        self.origins = Origins(self.app.source_tables, self.settings)

    def post(self, name, text="hello", at=NOW, **more):
        place = POST.key(author_id="bo", at=at, post_id=name)
        return self.keep(self.table.put({**place, "text": text, **more}))

    def follow(self, reader, **more):
        return self.keep(self.table.put({**FOLLOW.key(reader_id=reader, author_id="bo"), **more}))

    def unfollow(self, reader):
        return self.keep(self.table.delete(FOLLOW.key(reader_id=reader, author_id="bo")))

    def remove(self, name, at=NOW):
        return self.keep(self.table.delete(POST.key(author_id="bo", at=at, post_id=name)))

    def keep(self, record):
        self.clock.advance(1)
        self.engine.put_sources(newest_sources([self.origins.change(record)]))
        return record

    def take(self, *records, settings=None):
        return self.app.process(list(records), engine=self.engine, settings=settings or self.settings)

    def run(self):
        """A run at the time of the table, from which a repair counts the age of posts."""
        return Runtime(self.app, self.engine, Settings(), clock=lambda: self.clock.now)

    def shown(self, reader):
        route = route_of(self.timeline)
        found = page(route, EngineQueries(self.engine), {"reader_id": reader}, 100, None, 50, self.clock.now)
        return [(FEED.match(row)["post_id"], row["text"]) for row in found.rows]


# --- what is wrong with one post, one edge or one pair ----------------------------------------------------------------


def parked(path):
    """What was parked: the item of each record, and why."""
    documents = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [(document["item"], document["error"]) for document in documents]


def test_a_post_whose_time_lies_ahead_is_parked_and_another_one_of_the_batch_is_shown(tmp_path):
    feeds, path = Feeds(), tmp_path / "parked.jsonl"
    far = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    records = feeds.follow("ana"), feeds.post("p1", at=far), feeds.post("p2")
    assert feeds.take(*records, settings=Settings(park=str(path))) == []
    ((_, why),) = parked(path)
    assert "The time in the key of a post of feed 'timeline' is more than a day ahead: it would head" in why
    assert feeds.shown("ana") == [("p2", "hello")]


def test_a_post_of_a_day_ahead_is_shown():
    feeds = Feeds()
    feeds.take(feeds.follow("ana"), feeds.post("p1", at=datetime.now(UTC).replace(microsecond=0) + timedelta(hours=23)))
    assert feeds.shown("ana") == [("p1", "hello")]


@SHAPES
def test_a_pair_that_raises_fails_its_record_with_the_reader_named_and_others_are_shown(inline):
    def show(post, follow):
        return Row(text=post["text"] + follow["name"])

    feeds = Feeds(show, inline=inline)
    feeds.take(feeds.follow("ana", name="!"), feeds.follow("cy"), feeds.follow("dee", name="?"))
    (failure, *_) = feeds.take(feeds.post("p1"))
    assert "Feed 'timeline' cannot show the post to the reader of edge USER#cy / FOLLOWS#bo: " in str(failure)
    assert "name" in str(failure)
    assert [feeds.shown(reader) for reader in ("ana", "cy", "dee")] == [[("p1", "hello!")], [], [("p1", "hello?")]]


@SHAPES
def test_a_row_that_is_contended_is_no_reason_to_park_its_record(inline, tmp_path, monkeypatch):
    def busy(*_):
        raise Contended("Refused 8 times in a row.")

    path = tmp_path / "parked.jsonl"
    feeds = Feeds(None, Settings(park=str(path)), inline=inline, on_error="park")
    feeds.take(feeds.follow("ana"), feeds.follow("cy"), feeds.follow("dee"))
    monkeypatch.setattr(feed_posts, "_put", lambda runtime, writes: [write.key for write in writes])
    monkeypatch.setattr(feed_posts, "write_one", busy)
    (failure, *_) = feeds.take(feeds.post("p1"))
    assert "Refused 8 times in a row." in str(failure)
    assert not path.exists()


def test_how_an_audience_is_reached_may_have_been_written_by_newer_code():
    feeds = Feeds(inline=2, pull_above=2)
    key = audience_key("social", "timeline", "USER#bo")
    feeds.engine.swap_state(key, {"s": json.dumps({"mode": "pull", "revision": 1, "of_newer_code": 1})}, 0)
    assert feeds.take(feeds.follow("ana"), feeds.post("p1")) == []


def test_an_audience_that_is_damaged_is_told_to_be():
    feeds = Feeds(inline=2, pull_above=2)
    feeds.engine.swap_state(audience_key("social", "timeline", "USER#bo"), {"s": "[]"}, 0)
    with pytest.raises(EngineError, match="The audience of an author cannot be read: the state is damaged"):
        feeds.take(feeds.follow("ana"), feeds.post("p1"))


@SHAPES
def test_a_pair_that_raises_is_parked_where_the_policy_says_so(inline, tmp_path):
    def show(post, follow):
        return Row(text=post["text"], name=follow["name"])

    path = tmp_path / "parked.jsonl"
    feeds = Feeds(show, Settings(park=str(path)), inline=inline, on_error="park")
    feeds.take(feeds.follow("ana", name="a"), feeds.follow("cy"), feeds.follow("dee", name="d"))
    assert feeds.take(feeds.post("p1")) == []
    assert {item for item, _ in parked(path)} == {POST_NAME}
    assert all("to the reader of edge USER#cy / FOLLOWS#bo: " in why for _, why in parked(path))
    assert [len(feeds.shown(reader)) for reader in ("ana", "cy", "dee")] == [1, 0, 1]


def test_two_rows_of_one_pair_are_refused():
    feeds = Feeds(lambda *_: [Row(text="a"), Row(text="b")])
    feeds.take(feeds.follow("ana"))
    (failure,) = feeds.take(feeds.post("p1"))
    assert isinstance(failure.error, HandlerError)
    assert "because a feed shows a post to a reader once" in str(failure)
    assert feeds.shown("ana") == []


def test_a_row_over_400_kb_is_refused():
    feeds = Feeds(lambda post, _: Row(text=post["text"] * 3))
    feeds.take(feeds.follow("ana"))
    (failure,) = feeds.take(feeds.post("p1", text="x" * 200_000))
    assert "cannot show the post to the reader of edge USER#ana / FOLLOWS#bo" in str(failure)
    assert "400 KB" in str(failure) or "409600" in str(failure)


def test_an_item_that_leaves_no_room_beside_it_is_refused():
    feeds = Feeds()
    feeds.take(feeds.follow("ana"))
    (failure,) = feeds.take(feeds.post("p1", text="x" * 408_000))
    assert "Feed 'timeline' keeps a copy of each item of Key(" in str(failure)
    assert "Keep the large part in an item of its own." in str(failure)


@pytest.mark.parametrize("pull", [{}, {"inline": 1, "pull_above": 1}], ids=["pushed", "pulled"])
def test_a_reader_with_a_key_of_two_kilobytes_is_shown_his_feed(pull):
    feeds, reader = Feeds(**pull), "r" * 2_040
    feeds.take(feeds.follow(reader), feeds.follow("ana"), feeds.post("p1"))
    feeds.take(feeds.post("p2"))
    assert [feeds.shown(each) for each in (reader, "ana")] == [[("p2", "hello"), ("p1", "hello")]] * 2
    assert all(len(row["PK"]["S"].encode()) <= PARTITION_BYTES_MAX for row in feeds.engine.items(TABLE))


def test_rows_that_tell_whom_to_pull_are_items_of_no_handler():
    other = Router()
    other.audit(Key("{partition:rest}", "{sort:rest}", TABLE), name="history")
    feeds = Feeds(inline=1, pull_above=1, beside=[other])
    feeds.take(feeds.follow("ana"), feeds.follow("cy"), feeds.post("p1"))
    rows = [decode({"M": row}) for row in feeds.engine.items(TABLE)]
    (pull, *_) = (row for row in rows if row["PK"].startswith(PULL))
    assert feeds.take(record(None, pull, label="2026-03-02T00:00:00.000")) == []  # as the stream of the table has it
    rows = [decode({"M": row}) for row in feeds.engine.items(TABLE)]
    assert [row["PK"] for row in rows if row["PK"].startswith("AUDIT#USER#bo")]
    assert [row["PK"] for row in rows if row["PK"].startswith(f"AUDIT#{PULL}")] == []


@pytest.mark.parametrize("name", ["by", "expires"])
def test_a_row_takes_plain_values_and_no_time_to_live(name):
    from streamfold import Count

    feeds = Feeds(lambda *_: Row(**{name: 7 if name == "expires" else Count()}))
    feeds.take(feeds.follow("ana"))
    (failure,) = feeds.take(feeds.post("p1"))
    assert f"Handler 'timeline' gave {name}=" in str(failure)
    assert "Give plain values." in str(failure)


def test_a_post_without_the_new_image_is_refused():
    feeds = Feeds()
    record = feeds.post("p1")
    record["dynamodb"]["StreamViewType"] = "KEYS_ONLY"
    del record["dynamodb"]["NewImage"]
    (failure,) = feeds.take(record)
    assert "which view type KEYS_ONLY does not carry" in str(failure)


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def read():
    twin_app, timeline = timeline_app()
    twin = Twin(twin_app)
    for reader in ("ana", "cy"):
        twin.put(FOLLOW, reader_id=reader, author_id="bo")
    for number in range(5):
        twin.put(POST, author_id="bo", at=NOW, post_id=f"p{number}", text="x")
    return lambda **options: twin.feed(timeline, **{"reader_id": "ana", **options})


def test_pages_follow_each_other_and_the_last_one_has_no_cursor(read):
    first = read(limit=2)
    second = read(limit=2, cursor=first.cursor)
    third = read(limit=2, cursor=second.cursor)
    assert [row["SK"][-2:] for row in first.rows + second.rows + third.rows] == ["p4", "p3", "p2", "p1", "p0"]
    assert third.cursor is None


def test_a_cursor_of_another_reader_is_refused(read):
    cursor = read(limit=2).cursor
    with pytest.raises(
        ValueError, match=r"one of feed 'timeline' of reader 'FEED#ana': expected .* of reader 'FEED#cy'"
    ):
        read(reader_id="cy", cursor=cursor)


@pytest.mark.parametrize("text", ["", "x", "?", "e30", "WzEsMiwzXQ", "W10=", "é"])
def test_a_damaged_cursor_is_refused(read, text):
    with pytest.raises(ValueError, match=r"is damaged: expected the cursor of an earlier page."):
        read(cursor=text)


@pytest.mark.parametrize(
    ("before", "now"),
    [(before, 0) for before in ("", "p4", "2026", 7)]
    + [("2026-03-01T09:00:00Z#bo#p3", now) for now in (float("nan"), float("inf"), 1e300, -1, 10**400, "x", None)],
)
def test_a_cursor_that_somebody_made_is_refused(read, before, now):
    text = json.dumps([1, "timeline", "FEED#ana", before, now])
    with pytest.raises(ValueError, match="is damaged"):
        read(cursor=urlsafe_b64encode(text.encode()).decode())


def test_a_cursor_that_is_nested_too_deeply_is_refused(read):
    with pytest.raises(ValueError, match="is damaged"):
        read(cursor=urlsafe_b64encode(b"[" * 100_000).decode())


@pytest.mark.parametrize("cut", range(1, 30, 7))
def test_a_cursor_that_was_cut_is_refused(read, cut):
    with pytest.raises(ValueError, match="is damaged"):
        read(cursor=read(limit=2).cursor[:-cut])


@pytest.mark.parametrize("limit", [0, -1, LIMIT_MAX + 1])
def test_a_limit_that_does_not_fit_is_refused(read, limit):
    with pytest.raises(ValueError, match=f"limit={limit}: expected 1 to {LIMIT_MAX}."):
        read(limit=limit)


def test_a_function_that_is_no_feed_is_refused():
    with pytest.raises(TypeError, match="is no handler of a feed: expected a function that"):
        route_of(print)


# --- rows that stay ---------------------------------------------------------------------------------------------------


@SHAPES
def test_who_no_longer_follows_keeps_what_he_has_and_gets_nothing_new(inline):
    feeds = Feeds(unfollow="keep", inline=inline)
    feeds.take(feeds.follow("ana"), feeds.follow("cy"))
    feeds.take(feeds.post("p1"), feeds.post("p2"))
    feeds.take(feeds.unfollow("ana"))
    feeds.take(feeds.post("p3"))
    assert feeds.shown("ana") == [("p2", "hello"), ("p1", "hello")]
    assert [name for name, _ in feeds.shown("cy")] == ["p3", "p2", "p1"]


@SHAPES
def test_edits_and_removals_reach_what_was_kept(inline):
    feeds = Feeds(unfollow="keep", inline=inline)
    feeds.take(feeds.follow("ana", name="n"), feeds.follow("cy"))
    feeds.take(feeds.post("p1"), feeds.post("p2"))
    feeds.take(feeds.unfollow("ana"))
    feeds.take(feeds.post("p1", text="edited"), feeds.remove("p2"))
    assert feeds.shown("ana") == [("p1", "edited")]


@SHAPES
def test_who_comes_back_gets_what_came_meanwhile(inline):
    feeds = Feeds(unfollow="keep", inline=inline)
    feeds.take(feeds.follow("ana"), feeds.follow("cy"))
    feeds.take(feeds.unfollow("ana"))
    feeds.take(feeds.post("p1"))
    feeds.take(feeds.follow("ana"))
    assert feeds.shown("ana") == [("p1", "hello")]


# --- late records, repairs, and handlers that do not run --------------------------------------------------------------


def repaired(feeds, record):
    change = feeds.origins.change(record)
    found = Repair(feeds.run()).item(change.item)
    assert [each.error for each in found] == [None]


@SHAPES
def test_a_post_whose_record_was_lost_is_repaired(inline):
    feeds = Feeds(inline=inline)
    feeds.take(feeds.follow("ana"), feeds.post("p1"))
    repaired(feeds, feeds.post("p1", text="edited"))
    assert feeds.shown("ana") == [("p1", "edited")]
    repaired(feeds, feeds.remove("p1"))
    assert feeds.shown("ana") == []


@SHAPES
def test_an_edge_whose_record_was_lost_is_repaired(inline):
    feeds = Feeds(lambda post, follow: None if follow.get("muted") else Row(text=post["text"]), inline=inline)
    feeds.take(feeds.post("p1"))
    repaired(feeds, feeds.follow("ana"))
    assert feeds.shown("ana") == [("p1", "hello")]
    repaired(feeds, feeds.follow("ana", muted=True))
    assert feeds.shown("ana") == []
    repaired(feeds, feeds.follow("ana"))
    repaired(feeds, feeds.unfollow("ana"))
    assert feeds.shown("ana") == []


def test_a_record_that_comes_behind_a_repair_wins():
    feeds = Feeds()
    feeds.take(feeds.follow("ana"), feeds.post("p1"))
    repaired(feeds, feeds.post("p1", text="lost"))
    feeds.take(feeds.post("p1", text="later"))
    assert feeds.shown("ana") == [("p1", "later")]


@SHAPES
@pytest.mark.parametrize("side", ["post", "edge"])
def test_a_parked_record_is_redriven_late_and_leads_to_what_the_item_is(side, inline):
    feeds = Feeds(inline=inline)
    late, other = (feeds.post("p1"), feeds.follow("ana")) if side == "post" else (feeds.follow("ana"), feeds.post("p1"))
    feeds.take(other)
    feeds.post("p1", text="edited")
    redrive = Redrive(feeds.run(), feeds.origins, None, put_sources=None)
    (told,) = redrive.process(Waiting("here", parked_document(late, "timeline", application="social")))
    assert told.what == "applied"
    assert feeds.shown("ana") == ([("p1", "edited")] if side == "post" else [("p1", "hello")])


@SHAPES
@pytest.mark.parametrize("side", ["post", "edge"])
def test_a_parked_pair_is_redriven_when_its_bug_is_mended(side, inline, tmp_path):
    bugs, path = {"cy"}, tmp_path / "parked.jsonl"

    def show(post, follow):
        if bugs & {follow["name"], post["text"]}:
            raise ValueError("a bug")
        return Row(text=post["text"])

    feeds = Feeds(show, Settings(park=str(path)), inline=inline, on_error="park")
    follows = [feeds.follow(name, name=name) for name in ("ana", "cy")]
    posts = [feeds.post(name, text=name, at=NOW - timedelta(seconds=n)) for n, name in enumerate(("p1", "p2"))]
    feeds.take(*(follows + posts if side == "post" else posts + follows))
    assert feeds.shown("cy") == []
    bugs.clear()
    documents = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    run = feeds.run()
    redrive = Redrive(run, feeds.origins, None, put_sources=None)
    assert {told.what for each in documents for told in redrive.process(Waiting("here", each))} == {"applied"}
    run_fan_outs(run)
    assert feeds.shown("cy") == feeds.shown("ana") == [("p1", "p1"), ("p2", "p2")]


@SHAPES
def test_new_code_reaches_the_rows_of_a_post_that_is_repaired(inline):
    mark = ["old"]
    feeds = Feeds(lambda post, follow: Row(text=mark[0]), inline=inline)
    post = feeds.post("p1")
    feeds.take(feeds.follow("ana"), feeds.follow("cy"), post)
    mark[0] = "new"
    run = feeds.run()
    (found,) = Repair(run).item(feeds.origins.change(post).item)
    assert found.error is None
    run_fan_outs(run)
    assert [feeds.shown(reader) for reader in ("ana", "cy")] == [[("p1", "new")]] * 2


def test_a_feed_that_is_switched_off_parks_its_records(tmp_path):
    feeds = Feeds()
    off = Settings(handlers_off=("timeline",), park=str(tmp_path / "parked.jsonl"))
    assert feeds.take(feeds.follow("ana"), feeds.post("p1"), settings=off) == []
    assert feeds.shown("ana") == []
    assert len((tmp_path / "parked.jsonl").read_text("utf-8").splitlines()) == 2


def test_a_feed_of_another_group_does_not_run_here():
    other = Router()
    other.audit(POST, name="history")
    feeds = Feeds(group="feeds", beside=[other])
    records = feeds.follow("ana"), feeds.post("p1")
    assert feeds.take(*records, settings=Settings(group="main")) == []
    assert feeds.shown("ana") == []
    assert feeds.take(*records, settings=Settings(group="feeds")) == []
    assert feeds.shown("ana") == [("p1", "hello")]


@SHAPES
def test_notices_of_kinesis_in_any_order_lead_to_the_same_feed(inline):
    feeds, kinesis = Feeds(inline=inline), KinesisTwin()
    records = [
        feeds.follow("ana"),
        feeds.post("p1"),
        feeds.post("p1", text="edited"),
        feeds.post("p2"),
        feeds.remove("p2"),
    ]
    notices = [kinesis.append(record) for record in records]
    for notice in [*reversed(notices), *notices[::2]]:
        assert feeds.take(notice) == []
    assert feeds.shown("ana") == [("p1", "edited")]


def test_a_state_in_a_file_goes_on_with_a_feed_of_another_process(tmp_path):
    app, _ = timeline_app()
    feeds = Feeds(engine=EmbeddedEngine(app.tables.values(), tmp_path / "social.db", app.chains))
    feeds.take(feeds.follow("ana"), feeds.post("p1"))
    feeds.engine.close()
    feeds.engine = EmbeddedEngine(app.tables.values(), tmp_path / "social.db", app.chains)
    feeds.take(feeds.post("p2"))
    assert feeds.shown("ana") == [("p2", "hello"), ("p1", "hello")]


def test_the_twin_says_which_handler_fails():
    app, _ = timeline_app(lambda post, follow: Row(text=post["body"]))
    twin = Twin(app)
    twin.put(FOLLOW, reader_id="ana", author_id="bo")
    with pytest.raises(HandlerFails, match="body"):
        twin.put(POST, author_id="bo", at=NOW, post_id="p1", text="x")


def test_rows_expire_by_the_time_in_the_key_of_their_post():
    feeds = Feeds(keep_days=7)
    feeds.take(feeds.follow("ana"), feeds.post("p1"))
    (row,) = (row for row in feeds.engine.items(TABLE) if row["PK"] == encode("FEED#ana"))
    assert row["expires"] == {"N": str(int(NOW.timestamp()) + 7 * 86_400)}
