"""Rows of a feed that are gone: an older change of a post or of an edge does not bring them back."""

import pytest

from streamfold import App, Key, Router, Row, Table
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.lifecycle.other_rows import OtherRows
from streamfold.read.feeds import EngineQueries, page
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import DeleteRow
from tests.helpers.source import Source

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)
AT = "2026-03-01T08:00:00Z"
NOW = 1_772_355_600.0
SHOWN = ("main", "FEED#bo", f"{AT}#ana#1")


class Social:
    """A feed on a store, and the records of its posts and edges."""

    def __init__(self):
        router = Router()

        @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=30)
        def timeline(post, follow):
            return Row(text=post["text"])

        self.app = App("social", routers=[router])
        self.engine, self.source = MemoryEngine(self.app), Source()

    def post(self, text):
        return self.source.put("USER#ana", f"POST#{AT}#1", text=text)

    def no_post(self):
        return self.source.remove("USER#ana", f"POST#{AT}#1")

    def follow(self):
        return self.source.put("USER#bo", "FOLLOWS#ana")

    def unfollow(self):
        return self.source.remove("USER#bo", "FOLLOWS#ana")

    def deliver(self, *records):
        run = Runtime(self.app, self.engine, Settings(), clock=lambda: NOW, pause=lambda _: None)
        assert not process_event(run, {"Records": list(records)}).failures

    def lose(self):
        assert self.engine.transact([DeleteRow(SHOWN)], 0) is None

    def text(self):
        return self.engine.read_rows([SHOWN]).get(SHOWN, {}).get("text")


@pytest.fixture
def social():
    return Social()


def test_an_older_change_of_a_post_writes_no_row(social):
    older = social.post("old")
    social.deliver(social.follow(), social.post("new"))
    assert social.text() == "new"
    social.lose()
    social.deliver(older)
    assert social.text() is None


def test_an_older_change_of_a_post_that_is_removed_writes_no_row(social):
    older = social.post("old")
    social.deliver(social.follow(), social.no_post())
    social.lose()
    social.deliver(older)
    assert social.text() is None


def test_an_older_change_of_an_edge_that_is_removed_writes_no_row(social):
    older = social.follow()
    social.deliver(social.post("new"), social.unfollow())
    social.lose()
    social.deliver(older)
    assert social.text() is None


def own_item(social):
    """A writer puts an item at the key of the row, over whatever is there."""
    stored = social.engine.rows[SHOWN] = {"PK": {"S": SHOWN[1]}, "SK": {"S": SHOWN[2]}, "text": {"S": "mine"}}
    return dict(stored)


@pytest.mark.parametrize("before", [False, True])
def test_an_item_of_the_application_is_refused_and_stays_as_it_is(social, before):
    post, follow = social.post("a post"), social.follow()
    if not before:
        social.deliver(post, follow)
    own = own_item(social)
    refused = []
    for record in (post, follow, social.post("another"), social.unfollow(), social.follow(), social.no_post()):
        run = Runtime(social.app, social.engine, Settings(), clock=lambda: NOW, pause=lambda _: None)
        refused += process_event(run, {"Records": [record]}).failures
    assert social.engine.rows[SHOWN] == own
    assert "belongs to the application itself" in str(refused[0].error)


def test_a_comparison_and_a_repair_leave_an_item_of_the_application(social):
    own = own_item(social)
    run = Runtime(social.app, social.engine, Settings(), clock=lambda: NOW, pause=lambda _: None)
    found = OtherRows(run, live=False).verify(social.app.routes)
    assert found.different == []
    for record in (social.post("a post"), social.follow()):
        image = record["dynamodb"]["NewImage"]
        social.engine.put_sources([(("main", image["PK"]["S"], image["SK"]["S"]), image, "1")])
        process_event(run, {"Records": [record]})
    found = OtherRows(run, live=False).verify(social.app.routes)
    assert [(each.row, each.what) for each in found.different] == [(SHOWN, "missing")]
    (left,) = OtherRows(run, live=False).correct(social.app.routes[0], found).remaining
    assert (left.row, social.engine.rows[SHOWN]) == (SHOWN, own)
    assert "belongs to the application itself" in left.why


def test_a_reader_is_not_shown_an_item_of_the_application(social):
    own_item(social)
    (route,), queries = social.app.routes, EngineQueries(social.engine)
    assert page(route, queries, {"reader_id": "bo"}, 10, None, 0, NOW, NOW).rows == []
