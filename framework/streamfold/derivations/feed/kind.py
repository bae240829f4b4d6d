"""The kind ``feed``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.commit.outcome import Failed, Outcome
from streamfold.commit.plan import Deferred
from streamfold.commit.triage import explained
from streamfold.derivations.derivation import Derivation, Finishing, LaneWork, Planned, Planning, Said, Work
from streamfold.derivations.expected import Expected, History
from streamfold.derivations.feed.mirrors import EDGES, POSTS, Mirror, Mirrors, Sided, gone
from streamfold.derivations.feed.options import options_of
from streamfold.derivations.feed.pairs import Pair
from streamfold.derivations.feed.spreading import Heard, Spreading
from streamfold.errors import ManifestError, RecordError, SettingsError, is_fatal
from streamfold.keys.key import Key
from streamfold.ledger.item import BEFORE_ALL
from streamfold.records.change import Change, ItemKey, image_of
from streamfold.records.envelope import Origins
from streamfold.records.values import RawImage
from streamfold.records.version import BY_OURSELVES
from streamfold.routes.checks import check_view
from streamfold.routes.effects import Row
from streamfold.routes.route import SOURCE, Listening, Needs, Route, Target
from streamfold.settings import Settings
from streamfold.writes.guarded import StateKey

if TYPE_CHECKING:
    from streamfold.jobs.job import Job

EDGE = "edge"
"""The role of an item that says who follows whom."""


class Feeds(Derivation):
    """Posts in the feeds of those who follow their authors."""

    name = "feed"
    gets_items = True
    reads_derived = True
    reads_items = True  # posts that are pulled are read as they are, and so is an item that is repaired
    sees_derived_attributes = True
    reconciles = True
    leads_all_roles = True
    fans_out = True
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
        return {"kind": self.name, "joined": list(options.joined), "order": str(options.order)}

    def compare(self, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for option, word in (("joined", "the fields that it joins on"), ("order", "the time that orders it")):
            if before.get(option) != now.get(option):
                raise ManifestError(
                    f"Feed {name!r} changed {word} from {before.get(option)!r} to {now.get(option)!r}: what it keeps "
                    "of posts and edges would not be found. Declare the changed one under another name and target, "
                    f'fill it, and retire the old one, App(..., retired=["{name}"]).'
                )

    def check_settings(self, route: Route, settings: Settings) -> None:
        if settings.group in (None, route.group) and settings.jobs is None and settings.engine is None:
            raise SettingsError(
                f"Feed {route.name!r} ({route.declared_at}) has no queue for large audiences: expected STREAMFOLD_JOBS="
                "https://..., the URL of a standard SQS queue whose function is app.jobs_handler, or another group for "
                "this function."
            )

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        return Planned(deferred=[told for work in works for told in _newest(work, planning)])

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Spreads the changes of a batch, one by one. One that fails does not affect the others."""
        outcome = Outcome()
        fatal: Exception | None = None
        for told in deferred:
            assert isinstance(told, Heard)
            try:
                finishing.run.begin()
                self._spread(told, finishing, outcome)
            except Exception as error:  # noqa: BLE001 - whatever it is, it fails these records only
                if is_fatal(error):
                    fatal = fatal or error
                else:
                    _failed(told, error, finishing, outcome)
        if fatal is not None:
            raise fatal
        return outcome

    def lanes(self, route: Route, job: "Job", finishing: Finishing) -> LaneWork:
        from streamfold.derivations.feed.lanes import FeedLanes

        origins = Origins(finishing.application.source_tables, finishing.run.settings, finishing.run.warn)
        return FeedLanes(route, job, finishing, origins.change)

    def reconcile(self, work: Work, finishing: Finishing) -> Outcome:
        """Leads the mirror of an item, and all rows that it reaches, to what the item is now.

        The mirror is read first, *then* the item; the version lies behind that of the mirror and before that of any
        later record, so that what a record brings meanwhile wins.
        """
        outcome = Outcome()
        side = POSTS if work.role == SOURCE else EDGES
        sided = Sided(side, work.item, work.fields)
        mirrors = Mirrors(finishing.application.name, work.route, finishing.engine, finishing.run.settings)
        (known,) = mirrors.read([sided])
        source = finishing.engine.read_source(work.item)
        asked = max((change.version_text for change in work.changes), default=BEFORE_ALL)
        now = Mirror(asked, work.item, source or {}, not image_of(source))
        kept = known.raw if side == EDGES and options_of(work.route).keeps else None
        mirror = _as_it_is(known, now, mirrors.key_of(side), kept)
        told = Heard(work.route, sided, mirror, tuple(work.changes), 0.0, all_pairs=True)
        self._spread(told, finishing, outcome)
        return outcome

    def kept_items(self, route: Route, keys: Sequence[StateKey], finishing: Finishing) -> Sequence[ItemKey]:
        return Mirrors(finishing.application.name, route, finishing.engine, finishing.run.settings).swept(keys)

    @staticmethod
    def _spread(told: Heard, finishing: Finishing, outcome: Outcome) -> None:
        mirrors = Mirrors(finishing.application.name, told.route, finishing.engine, finishing.run.settings)
        spreading = Spreading(mirrors, finishing.engine, finishing.run, outcome.tally(told.route.name))

        def fails(pair: Pair, error: Exception) -> None:
            from streamfold.derivations.feed.lanes import in_feed

            _failed(told, in_feed(told.route, pair, error), finishing, outcome, cause=error)

        spreading.spread(told, fails)

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.feed.expected import expected

        return expected(route, history)


def _newest(work: Work, planning: Planning) -> list[Heard]:
    """What the newest change says whose image can be read; the records of others are reported."""
    side = POSTS if work.role == SOURCE else EDGES
    for change in reversed(work.changes):
        try:
            check_view(work.route, change)
            return [_told(work, side, change)]
        except Exception as error:  # noqa: BLE001 - fails this record only
            planning.fails(change, work.route, error)
    return []


def _told(work: Work, side: str, change: Change) -> Heard:
    sided = Sided(side, work.item, work.fields)
    image, before = change.new, change.old if change.has_old else None
    if image:
        mirror = Mirror(change.version_text, work.item, image.raw, gone=False)
    else:
        kept = before.raw if before and side == EDGES and options_of(work.route).keeps else None
        key = work.route.sources[0] if side == POSTS else options_of(work.route).audience
        mirror = gone(change.version_text, work.item, key, kept)
    try:
        at = change.at.timestamp()
    except RecordError:
        at = 0.0
    return Heard(work.route, sided, mirror, tuple(work.changes), at, before)


def _as_it_is(known: Mirror, now: Mirror, key: Key, kept: RawImage | None) -> Mirror:
    """The mirror of an item as it is, over the one that was read before it; ``kept``: what stays if it is gone."""
    if now.gone:
        now = gone(now.version, now.item, key, kept)
    if known.version >= now.version and known.version:
        same = known.gone == now.gone and (known.gone or known.raw == now.raw)
        return known if same else now._replace(version=f"{known.version}{BY_OURSELVES}1")
    return now


def _failed(
    told: Heard, error: Exception, finishing: Finishing, outcome: Outcome, *, cause: Exception | None = None
) -> None:
    if cause is not None:
        error.__cause__ = cause
    wrong = explained(told.route, error)
    failures = map(finishing.triage, (Failed(change, told.route, wrong) for change in told.changes))
    outcome.failed += [failed for failed in failures if failed is not None]


FEED = Feeds()
