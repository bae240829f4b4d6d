"""The kind ``feed``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.derivations.derivation import Derivation, Planned
from streamfold.derivations.feed.options import options_of
from streamfold.errors import (
    ManifestError,
    SettingsError,
)
from streamfold.routes.effects import Row
from streamfold.routes.route import SOURCE, Subscription, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import CountedWord, Finishing, Planning, SegmentWork, Work
    from streamfold.derivations.expected import Expected, ExplainedRow, History, OwnRows, Stored
    from streamfold.engines.protocol import Engine
    from streamfold.jobs.job import Job
    from streamfold.keys.key import Key
    from streamfold.records.change import ItemKey
    from streamfold.routes.route import Needs, Route
    from streamfold.settings import Settings
    from streamfold.writes.guarded import RowKey, StateKey

EDGE = "edge"
"""The role of an item that joins a follower to an author."""
NOT_FOUND = "its stored posts and edges would not be found"
IDENTITY = (
    ("joined", "the fields that it joins on", NOT_FOUND),
    ("order", "the time that orders it", NOT_FOUND),
    ("unfollow", "the rows that an unfollow leaves, unfollow=,", "its stored edges that are gone are for the old one"),
)
"""Options that a state requires to be unchanged: their names, in words, and the reason."""


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
