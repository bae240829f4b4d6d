"""Profiles: followers from the other side, and counters that are what one would count."""

from collections import Counter

import pytest

from handlers.social import FOLLOW, FOLLOWER, LIKE, POST, POST_COUNTS, PROFILE_COUNTS
from tests.systems import Replayed


@pytest.fixture(scope="module")
def network():
    return Replayed("social")


def test_every_follow_is_read_from_the_other_side(network):
    follows = network.items(FOLLOW)
    assert follows
    expected = {(other, user): {"since": follow["since"]} for (user, other), follow in follows.items()}
    assert network.rows(FOLLOWER) == expected


def test_profiles_count_follows_on_both_sides_and_what_was_published(network):
    counts = {
        "following": Counter(user for user, _ in network.items(FOLLOW)),
        "followers": Counter(other for _, other in network.items(FOLLOW)),
        "posts": Counter(user for (user, _), post in network.items(POST).items() if not post["is_draft"]),
    }
    users = set().union(*counts.values())
    expected = {(user,): {name: by[user] for name, by in counts.items() if by[user]} for user in users}
    assert network.rows(PROFILE_COUNTS) == expected


def test_posts_count_their_likes(network):
    likes = Counter(post for post, _ in network.items(LIKE))
    assert network.rows(POST_COUNTS) == {(post,): {"likes": count} for post, count in likes.items()}
