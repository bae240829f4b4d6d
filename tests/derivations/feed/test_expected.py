"""What proofs compare feeds with: rows as readers see them, pulled posts and rows that are kept included."""

from datetime import UTC, datetime

import pytest

from streamfold import App, Key, Router, Row, Table
from streamfold.derivations.derivation import derivation
from streamfold.derivations.feed.spreading import pull_partition
from streamfold.proofs.oracle import history_of
from streamfold.testing import check
from tests.helpers.records import change, item

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)
AT = datetime(2026, 3, 1, tzinfo=UTC)
ITEMS = {
    POST: [{"text": "a", "author_id": who, "post_id": post, "at": AT} for who in "ab" for post in "12"],
    FOLLOW: [{"name": "n", "reader_id": reader, "author_id": who} for reader in "xyz" for who in "ab"],
}
SHAPES = {
    "pushed": {},
    "kept after an unfollow": {"unfollow": "keep"},
    "pulled above one": {"inline": 1, "pull_above": 1},
}


def application(**options):
    router = Router()

    @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=30_000, **options)
    def timeline(post, follow):
        return Row(text=f"{post['text']}/{follow['name']}")

    return App("social", routers=[router])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_check_compares_what_readers_see(shape):
    assert check(application(**SHAPES[shape]), ITEMS, histories=10, processes=0).histories == 10


def read(stored, changes, **options):
    """The texts that are read of stored rows after some changes."""
    app = application(**options)
    (route,) = app.routes
    shown = {key: row for key, row in stored.items() if key[1].startswith("FEED")}
    found = derivation(route).as_read(route, shown, stored, history_of(changes))
    return sorted(row["text"]["S"] for row in found.values())


def written(place, number, **images):
    before, after = (image and item(*place, **image) for image in (images.get("before"), images.get("after")))
    return change(before, after, number)


def place(key, **fields):
    return key.compose({"author_id": "a", "reader_id": "x", "post_id": "1", "at": AT, **fields})


FOLLOWED = written(place(FOLLOW), 1, after={"name": "n"})
POSTED = written(place(POST), 2, after={"text": "one"})
UNFOLLOWED = written(place(FOLLOW), 3, before={"name": "n"})
ROW = {("main", *place(FEED)): {"text": {"S": "one/n"}, "expires": {"N": "4364323200"}}}
PULL = ("main", pull_partition("timeline", "FEED#x"), "USER#a")
EDGE = {"S": '{"PK":{"S":"USER#x"},"SK":{"S":"FOLLOWS#a"},"name":{"S":"n"}}'}


def test_a_pulled_post_is_read_without_a_row():
    assert read({PULL: {"edge": EDGE}}, [FOLLOWED, POSTED]) == ["one/n"]


def test_a_pushed_row_of_a_pulled_author_is_passed_over():
    stale = {key: {**row, "text": {"S": "old/n"}} for key, row in ROW.items()}
    assert read({**stale, PULL: {"edge": EDGE}}, [FOLLOWED, POSTED]) == ["one/n"]


def test_a_post_behind_the_last_one_to_pull_is_not_read_without_a_row():
    pull = {"edge": EDGE, "until": {"S": "POST#2026-02"}}
    assert read({PULL: pull}, [FOLLOWED, POSTED]) == []
    assert read({**ROW, PULL: pull}, [FOLLOWED, POSTED]) == ["one/n"]


def test_a_pull_that_ended_reads_nothing():
    assert read({PULL: {"edge": EDGE, "_sf_n": {"N": "0"}}}, [FOLLOWED, POSTED]) == []


def test_a_row_that_is_kept_may_be_there_as_its_edge_brought_it():
    assert read(ROW, [FOLLOWED, POSTED, UNFOLLOWED], unfollow="keep") == []


def test_a_row_that_no_edge_brought_is_told_in_a_feed_that_keeps_rows():
    other = {key: {**row, "text": {"S": "one/other"}} for key, row in ROW.items()}
    assert read(other, [FOLLOWED, POSTED, UNFOLLOWED], unfollow="keep") == ["one/other"]


def test_a_row_of_an_edge_that_is_gone_is_told_where_rows_are_removed():
    assert read(ROW, [FOLLOWED, POSTED, UNFOLLOWED]) == ["one/n"]
