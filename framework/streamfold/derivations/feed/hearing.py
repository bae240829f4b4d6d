"""What a batch heard of posts and edges: the newest change of each, spread; and an item led to what it is now."""

from collections.abc import Sequence

from streamfold.commit.outcome import Outcome
from streamfold.commit.plan import Deferred
from streamfold.commit.triage import explained
from streamfold.derivations.derivation import Finishing, Planning, Work
from streamfold.derivations.feed.lanes import in_feed
from streamfold.derivations.feed.mirrors import EDGES, POSTS, Mirror, Mirrors, Sided, gone, side_key
from streamfold.derivations.feed.options import options_of
from streamfold.derivations.feed.pairs import Pair
from streamfold.derivations.feed.spreading import Heard, Spreading
from streamfold.errors import RecordError, is_fatal
from streamfold.keys.key import Key
from streamfold.ledger.item import BEFORE_ALL
from streamfold.records.change import Change, image_of
from streamfold.records.values import RawImage, same
from streamfold.records.version import BY_OURSELVES
from streamfold.routes.checks import check_view
from streamfold.routes.route import SOURCE


def finished(deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
    """Spreads the changes of a batch, one by one. One that fails does not affect the others."""
    outcome = Outcome()
    fatal: Exception | None = None
    for heard in deferred:
        assert isinstance(heard, Heard)
        try:
            finishing.run.begin()
            _spread(heard, finishing, outcome)
        except Exception as error:  # noqa: BLE001 - whatever it is, it fails these records only
            if is_fatal(error):
                fatal = fatal or error
            else:
                _failed(heard, error, finishing, outcome)
    if fatal is not None:
        raise fatal
    return outcome


def reconciled(work: Work, finishing: Finishing) -> Outcome:
    """Leads the mirror of an item, and all rows that it reaches, to what the item is now.

    The mirror is read first, *then* the item; the version lies behind that of the mirror and before that of any later
    record, so that what a record brings meanwhile wins.
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
    heard = Heard(work.route, sided, mirror, tuple(work.changes), 0.0, all_pairs=True)
    _spread(heard, finishing, outcome)
    return outcome


def _spread(heard: Heard, finishing: Finishing, outcome: Outcome) -> None:
    mirrors = Mirrors(finishing.application.name, heard.route, finishing.engine, finishing.run.settings)
    spreading = Spreading(mirrors, finishing.engine, finishing.run, outcome.tally(heard.route.name))

    def fails(pair: Pair, error: Exception) -> None:
        _failed(heard, in_feed(heard.route, pair, error), finishing, outcome)

    spreading.spread(heard, fails)


def newest(work: Work, planning: Planning) -> list[Heard]:
    """What the newest change says whose image can be read and shows; the records of others are reported."""
    side = POSTS if work.role == SOURCE else EDGES
    for change in reversed(work.changes):
        try:
            check_view(work.route, change)
            if change.is_hidden:  # a row for each reader would be written again, as it is
                continue
            return [_heard(work, side, change)]
        except Exception as error:  # noqa: BLE001 - fails this record only
            planning.fails(change, work.route, error)
    return []


def _heard(work: Work, side: str, change: Change) -> Heard:
    sided = Sided(side, work.item, work.fields)
    image, before = change.new, change.old if change.has_old else None
    if image:
        mirror = Mirror(change.version_text, work.item, image.raw, gone=False)
    else:
        kept = before.raw if before and side == EDGES and options_of(work.route).keeps else None
        mirror = gone(change.version_text, work.item, side_key(work.route, side), kept)
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
        # A mirror is kept as text: its bytes are base64 by now, and those of an item that was read may be bytes.
        alike = known.gone == now.gone and (known.gone or same({"M": known.raw}, {"M": now.raw}))
        return known if alike else now._replace(version=f"{known.version}{BY_OURSELVES}1")
    return now


def _failed(heard: Heard, error: Exception, finishing: Finishing, outcome: Outcome) -> None:
    outcome.failed += finishing.failures(heard.changes, heard.route, explained(heard.route, error))
