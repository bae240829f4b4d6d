"""Rows of a feed that are gone: an older change of a post or of an edge does not bring them back."""

import pytest

from streamfold import App, Key, Router, Row, Table
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
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
