"""Profiles: followers from the other side, counters that are what one would count, names of authors on their posts, and
timelines of friends' posts.
"""

from collections import Counter

import pytest

from handlers import social
from handlers.social import FOLLOW, FOLLOWER, HOME, KEEP_DAYS, LIKE, POST, POST_COUNTS, PROFILE_COUNTS, USER, timeline
from streamfold import App, Lookup, Router
from streamfold.derivations.feed.options import MOST, options_of
from streamfold.read.feeds import route_of
from streamfold.records.values import decode
from streamfold.testing import Twin
from tests.helpers.held_feeds import HeldFeeds, read_all
from tests.systems import BATCHES, Replayed, without_key, without_zeros
from tests.workload.social import CELEBRITY, USERS

SMALL = {"inline": 3, "pull_above": 6, "most": 4}
"""Bounds that the recorded network passes: fan-outs in lanes, and a celebrity whose posts are pulled."""


def variant(**options):
    """The home timeline and the names of authors, with other bounds."""
    router = Router()

    @router.feed(POST, audience=FOLLOW, into=HOME, keep_days=KEEP_DAYS, **options)
    def timeline(post, follow):
        return social.timeline(post, follow)

    @router.attributes(POST, lookup={"author": Lookup(USER, reads=["name"])}, inline=2)
    def author_of_post(post, author):
        return social.author_of_post(post, author)

    return App("social", routers=[router])


def shown(post, follow):
    """What a reader is to see of a post, in the words of the subject, but for the name of its author."""
    hidden = post["is_draft"] or follow.get("muted")
    return None if hidden else (post["text"], post.get("edited", False))


def names(network):
    """The names of the users who have one."""
    return {user: profile["name"] for (user,), profile in network.items(USER).items()}


def held(network, most):
    """The model of what readers are to see, from the records alone; and the time of the last."""
    known = names(network)

    def shown_with_name(post, follow):
        text = shown(post, follow)
        return text and (*text, known.get(post["author_id"]))

    model, now = HeldFeeds(shown_with_name, KEEP_DAYS, most), 0
    for record in network.records:
        item, now = decode({"M": record.get("NewImage", {})}) or None, record["ApproximateCreationDateTime"]
        place = decode({"M": record["Keys"]})
        if post := POST.match(place):
            item = item and item | {"author_id": post["author_id"]}
            model.post(post["author_id"], post["at"].timestamp(), post["post_id"], item)
        elif edge := FOLLOW.match(place):
            model.edge(edge["reader_id"], edge["author_id"], item, now)
    return model, now


def read(network, route, reader, now):
    """What a reader is shown, page by page, in the form of the model."""
    rows = read_all(route, network.engine, {"reader_id": reader}, now)
    found = [(HOME.match(row), (row["text"], row["edited"], row.get("author"))) for row in rows]
    return [(key["at"].timestamp(), key["author_id"], key["post_id"], text) for key, text in found]


@pytest.fixture(scope="module", params=BATCHES)
def network(request):
    return Replayed("social", batch_records=request.param)


@pytest.fixture(scope="module")
def small_network():
    return Replayed("social", variant(**SMALL))


def test_every_follow_is_read_from_the_other_side(network):
    follows = network.items(FOLLOW)
    assert follows
    expected = {(author, reader): {"since": follow["since"]} for (reader, author), follow in follows.items()}
    assert network.rows(FOLLOWER) == expected


def test_profiles_count_follows_on_both_sides_and_what_was_published(network):
    counts = {
        "following": Counter(reader for reader, _ in network.items(FOLLOW)),
        "followers": Counter(author for _, author in network.items(FOLLOW)),
        "posts": Counter(author for (author, *_), post in network.items(POST).items() if not post["is_draft"]),
    }
    users = set().union(*counts.values())
    expected = {(user,): {name: by[user] for name, by in counts.items() if by[user]} for user in users}
    assert network.rows(PROFILE_COUNTS) == expected


def test_posts_count_their_likes(network):
    likes = Counter(post for post, _ in network.items(LIKE))
    assert network.rows(POST_COUNTS) == {(post,): {"likes": count} for post, count in likes.items()}


def test_a_post_shows_the_name_that_its_author_has_now(network):
    known = names(network)
    expected = {
        fields: without_key(POST, post) | ({"author": known[fields[0]]} if fields[0] in known else {})
        for fields, post in network.items(POST).items()
    }
    assert len({"author" in post for post in expected.values()}) == 2
    assert network.rows(POST) == {fields: without_zeros(post) for fields, post in expected.items()}


def test_the_recording_has_what_makes_names_hard(network):
    profiles, begun = network.images(USER), network.first_records(USER)
    assert any(len({image["name"] for image in images if image}) > 1 for images in profiles.values())
    assert any(None in images[:-1] for images in profiles.values()), "no name comes back"
    posts = network.first_records(POST).items()
    assert any(number < begun[fields[:1]] for fields, number in posts if fields[:1] in begun)


def test_the_recording_has_what_makes_timelines_hard(network):
    follows = network.images(FOLLOW).values()
    assert any(None in images[:-1] for images in follows), "nobody comes back"
    assert any(image and image.get("muted") for images in follows for image in images)
    posts = network.images(POST).values()
    assert any(images[-1] is None for images in posts)
    assert any(image and image.get("edited") for images in posts for image in images)
    assert sum(author == CELEBRITY for _, author in network.items(FOLLOW)) > SMALL["pull_above"]


@pytest.mark.parametrize("days", [0, 24, 26])
@pytest.mark.parametrize("reader", USERS)
def test_a_home_timeline_shows_the_posts_of_who_is_followed(network, reader, days):
    model, last = held(network, MOST)
    now = last + days * 86_400
    model.check(reader, read(network, route_of(timeline), reader, now), now)


@pytest.mark.parametrize("reader", USERS)
def test_a_home_timeline_with_a_celebrity_shows_no_less(small_network, reader):
    model, now = held(small_network, SMALL["most"])
    route = variant(**SMALL).routes[0]
    model.check(reader, read(small_network, route, reader, now), now)


def test_the_celebrity_is_pulled_and_others_are_pushed(small_network):
    pulls = [row for row in small_network.engine.items(HOME.table) if row["PK"]["S"].startswith("_sf_pull#")]
    pulled = {row["SK"]["S"].removeprefix("USER#") for row in pulls}
    assert CELEBRITY in pulled < set(USERS)
    assert small_network.rows(HOME)


def test_the_shipped_timeline_pulls_who_has_ten_thousand_followers():
    assert options_of(route_of(timeline)).pull_above == 10_000


def test_a_timeline_shows_the_name_that_an_author_has_by_now():
    twin = Twin(App("social", routers=[social]))
    twin.put(FOLLOW, reader_id="r", author_id="a", since="2026-03-01T08:00:00Z")
    twin.put(POST, author_id="a", at="2026-03-01T08:00:00Z", post_id="1", text="Hello")
    assert [row.get("author") for row in twin.feed(timeline, reader_id="r").rows] == [None]
    for name in ("Ana", "Anna"):
        twin.put(USER, author_id="a", name=name)
        assert [row["author"] for row in twin.feed(timeline, reader_id="r").rows] == [name]
    twin.delete(USER, author_id="a")
    assert [row.get("author") for row in twin.feed(timeline, reader_id="r").rows] == [None]
