"""Profiles: who follows whom, read from both sides, and the counters that every profile and post shows."""

from collections.abc import Iterator

from streamfold import Count, Item, Key, Router, Row

FOLLOW = Key("USER#{user_id}", "FOLLOWS#{other_id}")
POST = Key("USER#{user_id}", "POST#{post_id}")
LIKE = Key("POST#{post_id}", "LIKE#{user_id}")
FOLLOWER = Key("FOLLOWERS#{other_id}", "USER#{user_id}")
PROFILE_COUNTS = Key("PROFILE#{profile_id}", "COUNTS")
POST_COUNTS = Key("POST#{post_id}", "COUNTS")

router = Router()


@router.index(FOLLOW, into=FOLLOWER)  # the inverse side of a many-to-many relation
def followers(follow: Item) -> Row:
    return Row(since=follow["since"])


@router.view(FOLLOW, into=PROFILE_COUNTS)
def follow_counts(follow: Item, user_id: str, other_id: str) -> Iterator[Row]:
    yield Row(profile_id=user_id, following=Count())
    yield Row(profile_id=other_id, followers=Count())


@router.view(POST, into=PROFILE_COUNTS)  # two views share a row, on attributes of their own
def post_counts(post: Item, user_id: str) -> Row | None:
    if not post.get("is_draft"):
        return Row(profile_id=user_id, posts=Count())
    return None


@router.view(LIKE, into=POST_COUNTS)
def like_counts(like: Item) -> Row:
    return Row(likes=Count())
