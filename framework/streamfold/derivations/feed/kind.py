"""The kind ``feed``."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

from streamfold.derivations.derivation import Derivation, Planned
from streamfold.errors import (
    DeclarationError,
    KeyValueError,
    ManifestError,
    SettingsError,
    Unprocessable,
    manual,
    reason,
)
from streamfold.keys.field import ANY_TIME, TIME_TEXTS, datetime_text, ulid_milliseconds, ulid_of
from streamfold.routes.effects import Row
from streamfold.routes.route import SOURCE, Subscription, Target, owns
from streamfold.settings.limits import SECONDS_A_DAY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import CountedWord, Finishing, Planning, SegmentWork, Work
    from streamfold.derivations.expected import Expected, ExplainedRow, History, OwnRows, Stored
    from streamfold.engines.protocol import Engine
    from streamfold.jobs.job import Job
    from streamfold.keys.field import Field
    from streamfold.keys.key import Key
    from streamfold.records.change import ItemKey
    from streamfold.routes.route import Fields, Needs, Route
    from streamfold.settings import Settings
    from streamfold.writes.guarded import RowKey, StateKey
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

EDGE = "edge"
"""The role of an item that joins a follower to an author."""
NOT_FOUND = "its stored posts and edges would not be found"
IDENTITY = (
    ("joined", "the fields that it joins on", NOT_FOUND),
    ("order", "the time that orders it", NOT_FOUND),
    ("unfollow", "the rows that an unfollow leaves, unfollow=,", "its stored edges that are gone are for the old one"),
)
"""Options that a state requires to be unchanged: their names, in words, and the reason."""


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


class Feeds(Derivation):
    """Posts in the feeds of their authors' followers."""

    name = "feed"
    write_units = "1 for the stored copy, and 1 for each follower"
    gets_items = True
    reads_derived = True
    reads_items = True  # pulled posts and repaired items are read as they are now
    sees_derived_attributes = True
    reconciles = True
    reconciles_all_roles = True
    joins_items = True
    fans_out = True
    keeps = ("posts", "edges", "audience")
    yields = (Row,)
    says: ClassVar[Mapping[str, CountedWord]] = {}

    def items_given(self, options: Any) -> int:
        return 2

    def asked_of(self, sources: tuple[Key, ...], into: tuple[Key, ...]) -> tuple[Key, ...]:
        return into

    def subscriptions(self, route: Route) -> tuple[Subscription, ...]:
        post, *_ = route.sources
        return Subscription(post, SOURCE), Subscription(options_of(route).audience, EDGE)

    def guard(self, route: Route) -> str:
        return "versions of post and edge"

    def needs(self, route: Route) -> Needs:
        return "new"

    def target(self, route: Route, key: Key, *, sole_writer: bool) -> Target:
        return Target(key, owned=True, sole_writer=sole_writer)

    def identity(self, route: Route) -> dict[str, Any]:
        options = options_of(route)
        pulls = options.pull_above is not None
        joined, order = list(options.joined), str(options.order)
        return {"kind": self.name, "joined": joined, "order": order, "unfollow": options.unfollow, "pulls": pulls}

    def compare(self, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for option, word, why in IDENTITY:
            if before.get(option) != now.get(option):
                raise ManifestError(
                    f"Feed {name!r} changed {word} from {before.get(option)!r} to {now.get(option)!r}: {why}. "
                    "Declare the changed one under another name and target, "
                    f'fill it, and retire the old one, App(..., retired=["{name}"]).'
                )
        if before.get("pulls") and not now["pulls"]:
            raise ManifestError(
                f"Feed {name!r} has no pull_above= any more: posts of authors who are pulled would be in no feed, and "
                "readers who unfollow them meanwhile would pull them again later. Expected a number; a large one, "
                "pull_above=1_000_000_000, has all authors pushed again after their next posts."
            )

    def check_settings(self, route: Route, settings: Settings) -> None:
        if settings.serves(route.group) and settings.jobs is None and settings.engine is None:
            raise SettingsError(
                f"Feed {route.name!r} ({route.declared_at}) has no queue for large audiences: expected STREAMFOLD_JOBS="
                "https://..., the URL of a standard SQS queue whose function is app.jobs_handler, or another group for "
                "this function."
            )

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        from streamfold.derivations.feed.fan_outs import newest

        return Planned(deferred=[subscribed for work in works for subscribed in newest(work, planning)])

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Spreads the changes of a batch, one by one. One that fails does not affect the others."""
        from streamfold.derivations.feed.fan_outs import finished

        return finished(deferred, finishing)

    def segment_work(self, route: Route, job: Job, finishing: Finishing) -> SegmentWork:
        from streamfold.derivations.feed.fan_outs import FeedSegments

        return FeedSegments(route, job, finishing)

    def reconcile(self, work: Work, finishing: Finishing) -> Outcome:
        """Reconciles the stored copy of an item, and all of its rows, with the item as it is now.

        The copy is read first, *then* the item, so that a record that comes meanwhile wins.
        """
        from streamfold.derivations.feed.fan_outs import reconciled

        return reconciled(work, finishing)

    def kept_items(self, route: Route, keys: Sequence[StateKey], finishing: Finishing) -> Sequence[ItemKey]:
        from streamfold.derivations.feed.posts import StoredCopies

        return StoredCopies(finishing.runtime, route).orphans(keys)

    def removed(self, route: Route) -> Callable[[RowKey], bool]:
        from streamfold.derivations.feed.spreading import is_pulling

        return lambda row: route.target_of(row) is not None or is_pulling(route, row)

    def verified(self, route: Route) -> OwnRows:
        from streamfold.derivations.feed.verified import FeedRows

        return FeedRows(route)

    def explained(self, route: Route, row: RowKey, engine: Engine) -> ExplainedRow:
        from streamfold.derivations.feed.verified import FeedRows

        return FeedRows(route).explained(row, engine)

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import STATE, dynamodb, inserted, replaced, table_of

        (into,) = route.into
        copies = dynamodb(STATE, "BatchGetItem", "PutItem", "Query")
        replaces = dynamodb(table_of(into), "PutItem", "BatchGetItem")
        return copies | inserted(into) | replaced(into) | replaces

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.feed.expected import expected

        return expected(route, history)

    def as_read(self, route: Route, rows: Stored, stored: Stored, history: History) -> Stored:
        from streamfold.derivations.feed.expected import as_read

        return as_read(route, rows, stored, history)


FEED = Feeds()
