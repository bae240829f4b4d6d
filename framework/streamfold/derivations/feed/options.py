"""The declaration of a feed: what joins posts and edges, and for how long and in which order readers see posts."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from streamfold.errors import (
    DeclarationError,
    KeyValueError,
    Unprocessable,
    manual,
    reason,
)
from streamfold.keys.field import ANY_TIME, TIME_TEXTS, datetime_text, ulid_milliseconds, ulid_of
from streamfold.routes.route import owns
from streamfold.settings.limits import SECONDS_A_DAY

if TYPE_CHECKING:
    from streamfold.keys.field import Field
    from streamfold.keys.key import Key
    from streamfold.routes.route import Fields, Route

INLINE = 2000
"""Rows that an invocation writes for one change itself: about a second. A fan-out writes the rest."""
INLINE_MAX = 100_000
FUTURE_SECONDS_MAX = SECONDS_A_DAY
"""How far a post's time may be ahead: until then the post would head every feed."""
FEED_ATTRIBUTE = "__streamfold_feed__"
"""The attribute of a handler that holds its route, for readers of the feed."""
MOST = 1000
"""The newest posts that a follow copies."""
DAYS_MAX = 36_500
COUNT_MAX = 1_000_000_000
TIMED = ("date", *TIME_TEXTS, "ulid")
TIMES = (
    f"{{at:datetime}}, {{at:datetime.seconds}}, {{day:date}} or {{post_id:ulid}}, or another text of {manual('times')}"
)

Unfollow = Literal["remove", "keep"]


def position_prefix(key: Key, order: Field) -> str:
    """The literal before the time in a sort key."""
    assert key.sort is not None
    text = ""
    for piece in key.sort.pieces:
        if not isinstance(piece, str):
            assert piece.name == order.name, "a sort key begins with the time"
            break
        text += piece
    return text


def sort_position_from(key: Key, order: Field, seconds: float) -> str:
    """A sort position before all keys of this time or of a later one."""
    begin = max(int(seconds), 0)
    own = key.types[order.name]  # the target's field may be of another kind than the post's
    if own.spec == "ulid":
        return position_prefix(key, order) + ulid_of(begin * 1000)
    moment = datetime.fromtimestamp(begin, UTC)
    if own.spec == ANY_TIME:  # all texts of a second begin with this one
        return position_prefix(key, order) + datetime_text(moment, 0)[:-1]
    return position_prefix(key, order) + str(own.write(moment.date() if own.spec == "date" else moment))


class FeedOptions(NamedTuple):
    """The options of a feed."""

    audience: Key  # of the edges: who follows
    joined: tuple[str, ...]  # the fields that both keys have
    order: Field  # the time that the sort key of a post begins with
    keep_days: int
    most: int
    pull_above: int | None  # live edges above which posts are pulled at reading time; None: never
    unfollow: Unfollow
    inline: int

    @property
    def keep_seconds(self) -> int:
        return self.keep_days * SECONDS_A_DAY

    @property
    def keeps(self) -> bool:
        """Whether rows are kept after an unfollow."""
        return self.unfollow == "keep"


def options_of(route: Route) -> FeedOptions:
    options: FeedOptions = route.options
    return options


def seconds_of(field: Field, value: Any) -> float:
    """The time in a post's key, in epoch seconds."""
    if field.spec == "ulid":
        return ulid_milliseconds(value) / 1000
    if isinstance(value, datetime):
        return value.timestamp()
    assert isinstance(value, date)
    return datetime.combine(value, time(), UTC).timestamp()


def post_seconds(route: Route, fields: Fields) -> float:
    """The time of a post."""
    order = options_of(route).order
    return seconds_of(order, fields[order.name])


def shown_seconds(route: Route, noted: int | None) -> int:
    """How long a post is shown: by the present option, and no longer than was noted when it was written.

    A post that was too old at some time got no removals since: a longer option must not bring it back.
    """
    keep = options_of(route).keep_seconds
    return keep if noted is None else min(keep, noted)


def check_post(route: Route, fields: Fields, now: float) -> None:
    """Raises ``Unprocessable`` for a post that no reader may see at a time ``now``, by its key.

    Writers and readers call it: a post that is refused when it is pushed must not appear when its author is pulled.
    """
    if post_seconds(route, fields) > now + FUTURE_SECONDS_MAX:
        raise Unprocessable(
            f"The time in the key of a post of feed {route.name!r} is more than a day ahead: it would head "
            "every feed until then. Expected the time of the post."
        )
    for template in (route.into[0].partition, route.into[0].sort):
        if template is not None and all(field.name in fields for field in template.fields):
            try:
                template.compose(fields)
            except KeyValueError as error:
                raise Unprocessable(
                    f"The key of a post of feed {route.name!r} makes no key of {route.into[0]!r}: {reason(error)}"
                ) from None


def checked_feed(  # noqa: PLR0913 - the options of one declaration
    post: Key,
    audience: Key,
    into: Key,
    at: str,
    *,
    keep_days: Any,
    most: Any,
    pull_above: Any,
    unfollow: Any,
    inline: Any,
) -> FeedOptions:
    """The options of a feed. Raises ``DeclarationError``, with the remedy, for impossible options."""
    who = f"The feed at {at}"
    _check_number(who, "keep_days", keep_days, 1, DAYS_MAX)
    _check_number(who, "most", most, 1, COUNT_MAX)
    _check_number(who, "inline", inline, 1, INLINE_MAX)
    if unfollow not in get_args(Unfollow):
        raise DeclarationError(f'{who} has unfollow={unfollow!r}: expected "remove" or "keep".')
    if pull_above is not None:
        _check_number(who, "pull_above", pull_above, inline, COUNT_MAX)
        if unfollow == "keep":
            raise DeclarationError(
                f'{who} has pull_above={pull_above} and unfollow="keep": only followers at the time of reading see '
                "pulled posts, so none could be kept. Leave one of the two out."
            )
    joined = _joined(who, post, audience)
    _check_into(who, post, audience, into)
    order = _order(who, post)
    _check_ordered(who, post, into, order)
    return FeedOptions(audience, joined, order, keep_days, most, pull_above, unfollow, inline)


def _check_number(who: str, name: str, value: Any, minimum: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= most:
        why = " (inline, the rows that one invocation writes itself)" if name == "pull_above" else ""
        raise DeclarationError(f"{who} has {name}={value!r}: expected a whole number from {minimum}{why} to {most}.")


def _joined(who: str, post: Key, audience: Key) -> tuple[str, ...]:
    """The fields that join posts and edges: the fields of a post's partition."""
    shared = tuple(name for name in post.types if name in audience.types)
    own = tuple(field.name for field in post.partition.fields)
    if not shared:
        raise DeclarationError(
            f"{who} joins {post!r} with {audience!r}, which have no field in common: expected the author's field, "
            f"{{{own[0] if own else 'author_id'}}}, in both templates. Names are labels: relabel one of them."
        )
    for name in shared:
        if post.types[name].spec != audience.types[name].spec:
            raise DeclarationError(
                f"{who} joins on {post.types[name]} of {post!r} and {audience.types[name]} of {audience!r}: expected "
                "one kind of field."
            )
    if missing := [name for name in own if name not in shared]:
        raise DeclarationError(
            f"{who} joins {post!r} with {audience!r} on {', '.join(shared)}, but the partition of a post holds "
            f"{missing[0]} too: the posts that an edge leads to are one query of that partition. Put "
            f"{{{missing[0]}}} into {audience!r}, or relabel a field that is shared by accident."
        )
    if extra := [name for name in shared if name not in own]:
        raise DeclarationError(
            f"{who} joins {post!r} with {audience!r} on {extra[0]} too, which the partition of a post does not hold: "
            f"relabel {{{extra[0]}}} in one of the templates if it is shared by accident."
        )
    return shared


def _check_into(who: str, post: Key, audience: Key, into: Key) -> None:
    for source in (post, audience):
        if not owns(into, source):
            missing = [name for name in source.types if name not in into.types]
            what = f"{{{missing[0]}}}" if missing else "its fields in the same kinds"
            raise DeclarationError(
                f"{who} has the target {into!r}, which lacks {what} of {source!r}: two posts, or two edges of one "
                "reader, would share a row. Put every field of both source keys into the target."
            )
        if into.overlaps(source):
            raise DeclarationError(
                f"{who} has the target {into!r}, which takes keys of {source!r} too: its rows would be read as "
                "sources. Give the target a literal that the sources do not have."
            )
    if into.sort is None or into.sort.attribute_type != "S":
        raise DeclarationError(f"{who} has the target {into!r}: expected a sort key of text, which orders the feed.")
    if into.partition.attribute_type != "S":
        raise DeclarationError(f"{who} has the target {into!r}: expected a partition key of text.")
    if into.table.ttl is None:
        raise DeclarationError(
            f"{who} has the target {into!r}, whose table has no time-to-live attribute: rows expire by it. Expected "
            f'a Key(..., table=Table({into.table.name!r}, ttl="expires")), and that it is switched on for the real '
            "table."
        )


def _order(who: str, post: Key) -> Field:
    """The typed time at the begin of a post's sort key."""
    pieces = post.sort.pieces if post.sort else ()
    first = next((piece for piece in pieces if not isinstance(piece, str)), None)
    if first is None or first.spec not in TIMED:
        raise DeclarationError(
            f"{who} has {post!r}, whose sort key does not begin with a time: expected one behind its literal, {TIMES}. "
            "It orders the feed, and gives the time when a row expires."
        )
    return first


def _check_ordered(who: str, post: Key, into: Key, order: Field) -> None:
    """Requires the own order of one author's posts in a feed: pulled posts are merged with pushed rows in it.

    Behind a text, another field would change that order: ``a`` is before ``a!``, and ``a#x`` is after ``a!#x``. A time
    has one width, so a post's key that ends with the time may be followed by any field.
    """
    assert post.sort is not None
    assert into.sort is not None
    placed, own = ([field.name for field in key.sort.fields] for key in (into, post) if key.sort)
    in_order = [name for name in placed if name in own] == own
    ends_alike = own == [order.name] or placed[-1:] == own[-1:]
    if placed[:1] != [order.name] or not ends_alike or not in_order:
        raise DeclarationError(
            f"{who} has the target {into!r}: expected that its sort key begins with {order}, behind a literal, and "
            f"ends with the other fields of the sort key of {post!r}, in their order. A feed is read in the order of "
            "its posts."
        )
