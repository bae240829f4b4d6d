"""Histories of feeds: readers are shown what the items say, whatever happens, and each rule is there for a reason."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest

from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.derivations.feed import fan_outs as lanes
from streamfold.derivations.feed import posts, spreading
from streamfold.derivations.feed.fan_outs import FeedSegments
from streamfold.derivations.feed.posts import StoredCopies
from streamfold.derivations.feed.spreading import Audiences, Spreading
from streamfold.engines.protocol import Entries
from streamfold.jobs import fan_outs
from streamfold.jobs.fan_outs import FanOuts
from streamfold.read.feeds import Merging
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import PutPostRow
from tests.helpers.changed_writes import on_writes
from tests.helpers.feed_histories import AHEAD_SECONDS, NONE_AHEAD, History, applications, edge_key, post_key, small
from tests.helpers.records import change, item

SHAPES = {"pushed": {}, "pulled above 2": {"pull_above": 2}, "pulled above 3": {"pull_above": 3}}
HISTORIES = 15
HISTORIES_CI = {"pushed": 1_000, "pulled above 2": 150, "pulled above 3": 150}
"""Less of what takes three times as long; every night has as many of each."""
HISTORIES_NIGHTLY = 17_000
MUTANT_HISTORIES = 2_000


def first_wrong(histories, first=0, **options):
    """The seed of the first history that is wrong, and how; None if none is."""
    apps = applications(**options)
    for seed in range(first, first + histories):
        try:
            if (wrong := History(apps, seed).run().wrong()) is not None:
                return seed, wrong
        except AssertionError as error:
            return seed, error
    return None


@contextmanager
def removed_pass_over_removed():
    def takes(copy, other, *, keeps=False):
        return not other.gone or keeps

    with patch.object(spreading, "takes", takes), patch.object(lanes, "takes", takes):
        yield


@contextmanager
def other_side_before_mirror():
    """Only what the other side had before the own mirror was written is visited."""
    sends, reads = spreading.send, StoredCopies.page
    known = {}

    def read_first(runtime, writes):
        own, _, rest = writes[0].key.pk.partition("#")
        other = {"posts": "edges", "edges": "posts"}[own]
        known[other] = {place for place, _ in runtime.engine.read_entries(Entries(f"{other}#{rest}", 100))}
        return sends(runtime, writes)

    def page(self, side, partition, wanted):
        found = reads(self, side, partition, wanted)
        places = known.pop(side, None)
        return found if places is None else [each for each in found if each[0] in places]

    with patch.object(spreading, "send", read_first), patch.object(StoredCopies, "page", page):
        yield


@contextmanager
def own_image_on_later_pages():
    """A worker whose lane is led to a newer change goes on, with the image that it read first."""
    reads = FeedSegments._edges

    def goes_on(self, job, number, page):
        lane = self.segment(job, number)
        while lane.version and not lane.done:
            self.runtime.begin()
            moved = fan_outs._advanced(lane, page(lane), int(self.runtime.clock()))
            found = self._store(job, lane, moved)
            if found != moved and found.version == lane.version:
                return
            lane = found

    def edges(self, lane):
        copies = self.copies
        known = self.__dict__.setdefault("known", {})

        def read(asked, real=copies.read):
            return known.setdefault(asked[0].item, real(asked))

        with patch.object(copies, "read", read):
            return reads(self, lane)

    with patch.object(FeedSegments, "_edges", edges), patch.object(fan_outs.FanOuts, "work", goes_on):
        yield


@contextmanager
def invisible_pairs_are_not_written():
    made = posts.made

    def only_shown(*arguments, **named):
        write = made(*arguments, **named)
        return write._replace(replaces=write.replaces or write.attributes is None)

    with patch.object(posts, "made", only_shown):
        yield


def guarded_by(newer):
    return on_writes(PutPostRow, guard=lambda _: newer)


def by_the_post_alone():
    return guarded_by(lambda write, row: not row or row["_sf_v"]["S"] <= write.versions[0])


def by_nothing():
    return guarded_by(lambda *_: True)


@contextmanager
def mode_before_mirror():
    spreads, reads = Spreading.spread, Audiences.read

    def spread(self, subscribed, fails):
        self.audiences.early = reads(self.audiences, subscribed.sided.fields)
        return spreads(self, subscribed, fails)

    def read(self, fields):
        return self.__dict__.pop("early", None) or reads(self, fields)

    with patch.object(Spreading, "spread", spread), patch.object(Audiences, "read", read):
        yield


@contextmanager
def back_without_until():
    changes = Audiences.change

    def change(self, fields, before, after):
        return changes(self, fields, before, after._replace(until="") if after.mode == "push" else after)

    with patch.object(Audiences, "change", change):
        yield


@contextmanager
def back_in_one_step():
    """The newest post is read before posts are pushed again."""
    changes = Audiences.change

    def back(self, fields, known):
        if known.mode != "pull":
            return known
        newest = self.copies.page("posts", self.copies.partition("posts", fields), Entries("", 1, descending=True))
        until = newest[0][0] if newest else ""
        return changes(self, fields, known, known._replace(mode="push", until=until, tells=True))

    with patch.object(Audiences, "back", back):
        yield


@contextmanager
def pushed_beside_pulled():
    with patch.object(Merging, "is_pulled", lambda *_: False):
        yield


@contextmanager
def flip_without_middle():
    """Posts are no longer pushed before readers are told."""

    def flip(self, fields, known):
        if known.mode != "push" or known.tells:
            return known
        return self.change(fields, known, known._replace(mode="pull", until="", tells=True))

    with patch.object(Audiences, "flip", flip):
        yield


@contextmanager
def lane_before_rows():
    works = FanOuts.work

    def work(self, job, number, page):
        def unwritten(lane):
            with patch.object(posts.PostRows, "visit", lambda *_, **__: 0):
                done = page(lane)
            left.append(lane)
            return done

        def written(lane):
            if left:
                page(left.pop())
            return unwritten(lane)

        left = []
        works(self, job, number, written)
        for lane in left:
            page(lane)

    with patch.object(FanOuts, "work", work):
        yield


@contextmanager
def stop_stays():
    renewed = fan_outs._renewed

    def stays(lane, version, now):
        found = renewed(lane, version, now)
        return replace(found, stop=lane.stop, wrapped=lane.wrapped) if not lane.done and lane.version else found

    with patch.object(fan_outs, "_renewed", stays):
        yield


MUTANTS = {
    "a removal passes over removed ones": (removed_pass_over_removed, {}),
    "the other side is read before the own mirror is written": (other_side_before_mirror, {}),
    "later pages are made of the image that was read first": (own_image_on_later_pages, {}),
    "a pair that is not shown makes no row": (invisible_pairs_are_not_written, {}),
    "a row is guarded by the version of the post": (by_the_post_alone, {}),
    "a row is guarded by nothing": (by_nothing, {}),
    "a newer change leaves the circle as it was": (stop_stays, {}),
    "a lane moves on before its rows are written": (lane_before_rows, {}),
    "posts are pushed again without a last one to pull": (back_without_until, {"pull_above": 3}),
    "pushed rows are shown beside pulled posts": (pushed_beside_pulled, {"pull_above": 2}),
    "posts are pulled before readers are told": (flip_without_middle, {"pull_above": 3}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_readers_are_shown_what_the_items_say(shape):
    assert first_wrong(HISTORIES, **SHAPES[shape]) is None


@pytest.mark.ci
@pytest.mark.parametrize("shape", SHAPES)
def test_readers_are_shown_what_the_items_say_in_many_histories(shape):
    assert first_wrong(HISTORIES_CI[shape], HISTORIES, **SHAPES[shape]) is None


@pytest.mark.nightly
@pytest.mark.parametrize("shape", SHAPES)
def test_readers_are_shown_what_the_items_say_every_night(shape):
    assert first_wrong(HISTORIES_NIGHTLY, 100_000, **SHAPES[shape]) is None


@pytest.mark.ci
@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_made_wrong_shows_a_reader_something_else(name):
    made, options = MUTANTS[name]
    with made():
        assert first_wrong(MUTANT_HISTORIES, **options) is not None


def shown_after_a_return(made=None):
    """What a reader is shown after posts are pushed again, where one came while the last one was looked for."""
    history = History(applications(pull_above=2), 0)
    audiences = "streamfold.derivations.feed.spreading.Audiences"
    with small():
        pulled_by_one(history)
        looked = StoredCopies.page

        def looks(self, side, partition, wanted):
            found = looked(self, side, partition, wanted)
            if wanted.descending and side == "posts" and not history.items.get(post_key("3")):
                deliver(history, 8, post_key("3"), {"text": "three"})  # behind what was found
            return found

        with (
            made() if made else nullcontext(),
            patch.object(StoredCopies, "page", looks),
            patch(f"{audiences}.flip", stays),
        ):
            deliver(history, 7, post_key("2"), {"text": "two"})
            history._end()
    return [number for number, _ in history.shown("v")]


def shown_where_pulling_ends_meanwhile(made=None):
    """What a reader is shown where posts are pushed again just before a post is mirrored."""
    history = History(applications(pull_above=2), 0)
    with small():
        pulled_by_one(history)
        writes = StoredCopies.write

        def meanwhile(self, sided, copy, now):
            if sided.item[1:] == post_key("3") and not history.items.get(post_key("2")):
                deliver(history, 7, post_key("2"), {"text": "two"})
                history._end()
            return writes(self, sided, copy, now)

        with made() if made else nullcontext(), patch.object(StoredCopies, "write", meanwhile):
            deliver(history, 8, post_key("3"), {"text": "three"})
        history._end()
    return [number for number, _ in history.shown("v")]


def test_a_post_is_shown_where_pulling_ends_before_it_is_mirrored():
    assert shown_where_pulling_ends_meanwhile() == ["3", "2", "1"]


def test_the_mode_is_read_after_the_mirror_is_written():
    assert shown_where_pulling_ends_meanwhile(mode_before_mirror) == ["2", "1"]


def shown_before_its_record(ahead_seconds):
    """What a reader is shown after posts are pushed again, where a post is there whose record has not come."""
    history = History(applications(pull_above=2), 0)
    with small(ahead_seconds):
        pulled_by_one(history)
        history.put(post_key("3"), item(*post_key("3"), text="three"))
        before = history.shown("v")
        deliver(history, 7, post_key("2"), {"text": "two"})
        history._end()
    return [number for number, _ in before], [number for number, _ in history.shown("v")]


def test_a_post_that_was_pulled_before_its_record_stays_shown():
    assert shown_before_its_record(AHEAD_SECONDS) == (["3", "1"], ["3", "2", "1"])


def test_without_pulling_ahead_such_a_post_goes_until_it_is_pushed():
    assert shown_before_its_record(NONE_AHEAD) == (["3", "1"], ["2", "1"])


def shown_after_an_overtaken_follow(made=None):
    """What a reader is shown who followed and left before a post came, where the follow was still being worked on."""
    history = History(applications(), 0)
    looked, both = StoredCopies.page, {"name": "n", "text": "one"}

    def looks(self, side, partition, wanted):
        if side == "posts" and not history.items.get(post_key("1")):
            history.items[post_key("1")] = both
            deliver(history, 2, edge_key("v"), None, both)
            deliver(history, 3, post_key("1"), both)
        return looked(self, side, partition, wanted)

    with made() if made else nullcontext(), small(), patch.object(StoredCopies, "page", looks):
        deliver(history, 1, edge_key("v"), both)
    return history.shown("v")


def own_mirror_is_not_read_again():
    return patch.object(Spreading, "_is_overtaken", lambda *_: False)


def test_a_follow_that_is_overtaken_writes_no_row():
    assert shown_after_an_overtaken_follow() == []


def test_a_follow_that_does_not_look_again_writes_a_row_that_stays():
    assert shown_after_an_overtaken_follow(own_mirror_is_not_read_again) == [("1", "one/n")]


def pulled_by_one(history):
    """Has an author pulled, whose followers then leave but for one: his next post is pushed again."""
    both = {"name": "n", "text": "one"}
    for number, place in enumerate((*map(edge_key, "vwx"), post_key("1")), 1):
        deliver(history, number, place, both)
    history.now += 100
    for number, reader in enumerate("wx", 5):
        deliver(history, number, edge_key(reader), None, both)


def stays(self, fields, audience):
    """The audience is left as it is, so that it does not flip again."""
    return audience


def deliver(history, number, place, after, before=None):
    """A change of an item, its record, and all that follows."""
    history.sequence, history.items[place] = number, after
    images = [image and item(*place, **image) for image in (before, after)]
    history.put(place, images[1])
    run = Runtime(history.apps[0], history.engine, Settings(), clock=lambda: history.now, pause=lambda _: None)
    assert not process_changes(run, [change(*images, number)]).failures
    assert not run_fan_outs(run).failures


def test_a_post_that_comes_while_posts_are_pushed_again_is_shown():
    assert shown_after_a_return() == ["3", "2", "1"]


def test_the_last_post_to_pull_is_looked_for_after_posts_are_pushed_again():
    assert shown_after_a_return(back_in_one_step) != ["3", "2", "1"]
