"""Profiles and home timelines: who follows whom, counts that every profile and post shows, and what friends write.

A home timeline shows the posts of the last 30 days, newest first: a reader asks for it with ``streamfold.read.feed``.
A post shows the name that its author has now, and so does each timeline.
"""

from collections.abc import Iterator

from streamfold import Count, Item, Key, Lookup, Router, Row, Table

TABLE = Table("main", ttl="expires")  # the table of all keys: rows of timelines expire
USER = Key("USER#{author_id}", "PROFILE")
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}")
LIKE = Key("POST#{post_id}", "LIKE#{user_id}")
FOLLOWER = Key("FOLLOWERS#{author_id}", "USER#{reader_id}")
PROFILE_COUNTS = Key("PROFILE#{profile_id}", "COUNTS")
POST_COUNTS = Key("POST#{post_id}", "COUNTS")
HOME = Key("HOME#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)

KEEP_DAYS = 30
CELEBRITY = 10_000
"""Followers above which posts are not written into each timeline, but read with it."""
LETTERS_SHOWN = 140

router = Router()


@router.attributes(POST, lookup={"author": Lookup(USER, reads=["name"])})  # a feed takes no lookup, but sees attributes
def author_of_post(post: Item, author: Item) -> Row:
    return Row(author=author["name"])


@router.feed(POST, audience=FOLLOW, into=HOME, keep_days=KEEP_DAYS, pull_above=CELEBRITY)
def timeline(post: Item, follow: Item) -> Row | None:
    if post.get("is_draft") or follow.get("muted"):
        return None
    author = {"author": post["author"]} if "author" in post else {}
    return Row(text=post["text"][:LETTERS_SHOWN], edited=post.get("edited", False), **author)


@router.index(FOLLOW, into=FOLLOWER)  # the inverse side of a many-to-many relation
def followers(follow: Item) -> Row:
    return Row(since=follow["since"])


@router.view(FOLLOW, into=PROFILE_COUNTS)
def follow_counts(follow: Item, reader_id: str, author_id: str) -> Iterator[Row]:
    yield Row(profile_id=reader_id, following=Count())
    yield Row(profile_id=author_id, followers=Count())


@router.view(POST, into=PROFILE_COUNTS)  # two views share a row, on attributes of their own
def post_counts(post: Item, author_id: str) -> Row | None:
    if not post.get("is_draft"):
        return Row(profile_id=author_id, posts=Count())
    return None


@router.view(LIKE, into=POST_COUNTS)
def like_counts(like: Item) -> Row:
    return Row(likes=Count())
