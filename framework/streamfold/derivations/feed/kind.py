"""The kind ``feed``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.derivations.derivation import Derivation, Planned
from streamfold.derivations.feed.options import options_of
from streamfold.errors import ManifestError, SettingsError
from streamfold.routes.effects import Row
from streamfold.routes.route import SOURCE, Listening, Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.derivation import Finishing, LaneWork, Planning, Said, Work
    from streamfold.derivations.expected import Expected, History, Stored
    from streamfold.jobs.job import Job
    from streamfold.keys.key import Key
    from streamfold.records.change import ItemKey
    from streamfold.routes.application import Application
    from streamfold.routes.route import Needs, Route
    from streamfold.settings import Settings
    from streamfold.writes.guarded import StateKey

EDGE = "edge"
"""The role of an item that says who follows whom."""
NOT_FOUND = "what it keeps of posts and edges would not be found"
IDENTITY = (
    ("joined", "the fields that it joins on", NOT_FOUND),
    ("order", "the time that orders it", NOT_FOUND),
    ("unfollow", "what an unfollow leaves, unfollow=,", "what it keeps of edges that are gone is for the old one"),
)
"""Options that a state keeps to: their names, in words, and why."""


class Feeds(Derivation):
    """Posts in the feeds of those who follow their authors."""

    name = "feed"
    gets_items = True
    reads_derived = True
    reads_items = True  # posts that are pulled are read as they are, and so is an item that is repaired
    sees_derived_attributes = True
    reconciles = True
    leads_all_roles = True
    joins_items = True
    fans_out = True
    keeps = ("posts", "edges", "audience")
    yields = (Row,)
    says: ClassVar[Mapping[str, Said]] = {}

    def items_given(self, options: Any) -> int:
        del options
        return 2

    def asked_of(self, sources: tuple[Key, ...], into: tuple[Key, ...]) -> tuple[Key, ...]:
        del sources
        return into

    def listens(self, route: Route) -> tuple[Listening, ...]:
        post, *_ = route.sources
        return Listening(post, SOURCE), Listening(options_of(route).audience, EDGE)

    def guard(self, route: Route) -> str:
        del route
        return "versions of post and edge"

    def needs(self, route: Route) -> Needs:
        del route
        return "new"

    def target(self, route: Route, key: Key, *, alone: bool) -> Target:
        del route
        return Target(key, owned=True, alone=alone)

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
        from streamfold.derivations.feed.hearing import newest

        return Planned(deferred=[heard for work in works for heard in newest(work, planning)])

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Spreads the changes of a batch, one by one. One that fails does not affect the others."""
        from streamfold.derivations.feed.hearing import finished

        return finished(deferred, finishing)

    def lanes(self, route: Route, job: Job, finishing: Finishing) -> LaneWork:
        from streamfold.derivations.feed.lanes import FeedLanes

        return FeedLanes(route, job, finishing)

    def reconcile(self, work: Work, finishing: Finishing) -> Outcome:
        """Leads the mirror of an item, and all rows that it reaches, to what the item is now.

        The mirror is read first, *then* the item; the version lies behind that of the mirror and before that of any
        later record, so that what a record brings meanwhile wins.
        """
        from streamfold.derivations.feed.hearing import reconciled

        return reconciled(work, finishing)

    def kept_items(self, route: Route, keys: Sequence[StateKey], finishing: Finishing) -> Sequence[ItemKey]:
        from streamfold.derivations.feed.mirrors import Mirrors

        return Mirrors(finishing.application.name, route, finishing.engine, finishing.run.settings).swept(keys)

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.feed.expected import expected

        return expected(route, history)

    def as_read(self, route: Route, rows: Stored, stored: Stored, history: History) -> Stored:
        from streamfold.derivations.feed.expected import as_read

        return as_read(route, rows, stored, history)


FEED = Feeds()


def feed_routes(application: Application) -> list[Route]:
    """The feeds of an application."""
    return [route for route in application.routes if route.kind is FEED]
