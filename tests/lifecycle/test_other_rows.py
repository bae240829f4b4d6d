"""Rows of feeds compared with what their posts and edges make: what is planted is found, and nothing else."""

from datetime import UTC, datetime

import pytest

from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.derivations.feed.verified import FeedRows
from streamfold.engines import MemoryEngine
from streamfold.errors import AttributeMissing
from streamfold.lifecycle.other_rows import comparing
from streamfold.records.values import encode
from streamfold.replay.replay import newest_sources
from tests.helpers.doorbells import follow, new_run
from tests.helpers.feed_histories import BEGIN, FEED, FOLLOW, POST, History, applications
from tests.helpers.records import change, item

READERS, POSTS = 3, 4
HISTORIES, HISTORIES_CI, HISTORIES_NIGHTLY = 8, 100, 3_000
SHAPES = [{}, {"pull_above": 1}, {"most": 1}]


class Social:
    """A store in which readers follow an author of some posts; records of later changes may be lost."""

    def __init__(self, **options):
        self.app, self.sequence = applications(**options)[0], 0
        self.engine = MemoryEngine(self.app.tables.values(), self.app.chains)
        self.run = new_run(self.app, self.engine)
        self.items = {}
        for number in range(POSTS):
            self.put(post(number), text=f"post {number}")
        for reader in range(READERS):
            self.put(follow(f"r{reader}"), name="n")

    def put(self, place, *, recorded=True, **values):
        self.sequence += 1
        before, after = self.items.get(place), item(*place, **values) if values else None
        self.items[place] = after
        told = change(before, after, self.sequence)
        self.engine.put_sources(newest_sources([told]))
        if recorded:
            assert process_changes(self.run, [told]).failures == []
            assert run_fan_outs(self.run).failures == []

    def compared(self, moment=BEGIN + 100, *, keeps_copies=True):
        (route,) = self.app.routes
        return FeedRows(route).compared(comparing(self.run, moment, has_state=keeps_copies))

    def different(self, **given):
        found = self.compared(**given)
        assert found.failed == []
        return {(each.row[1][-2:], each.row[2].rpartition("#")[2], each.what) for each in found.different}


def post(number):
    """A post of the minute before all edges."""
    at = datetime.fromtimestamp(BEGIN - 60 + number, UTC)
    return POST.compose({"author_id": "b", "at": at, "post_id": f"p{number}"})


def row_of(reader, number):
    fields = {**FOLLOW.match_values(*follow(reader)), **POST.match_values(*post(number))}
    return ("main", *FEED.compose(fields))


@pytest.fixture
def social():
    return Social()


@pytest.mark.parametrize("keeps_copies", [True, False])
def test_rows_of_pairs_that_agree_are_equal(social, keeps_copies):
    found = social.compared(keeps_copies=keeps_copies)
    assert (found.rows, found.different, found.failed) == (READERS * POSTS, [], [])


def test_rows_that_were_changed_removed_or_put_by_hand_are_found(social):
    rows = social.engine.rows
    rows[row_of("r0", 1)] = rows[row_of("r0", 1)] | {"text": {"S": "odd"}}
    del rows[row_of("r1", 2)]
    rows[row_of("r2", 9)] = rows[row_of("r2", 2)] | encode(item(*row_of("r2", 9)[1:], text="none"))["M"]
    assert social.different() == {("r0", "p1", "different"), ("r1", "p2", "missing"), ("r2", "p9", "extra")}


def test_records_that_were_lost_are_found(social):
    social.put(post(1), recorded=False)
    social.put(post(2), recorded=False, text="edited")
    social.put(follow("r2"), recorded=False)
    expected = {("r2", f"p{number}", "extra") for number in (0, 1, 2, 3)}
    expected |= {(reader, "p1", "extra") for reader in ("r0", "r1")}
    assert social.different() == expected | {(reader, "p2", "different") for reader in ("r0", "r1")}


def test_a_pair_that_is_not_to_be_shown_is_extra_while_it_is(social):
    social.put(follow("r1"), recorded=False, name="n", muted=True)
    assert social.different() == {("r1", f"p{number}", "extra") for number in range(POSTS)}


def test_what_is_too_old_at_the_moment_is_passed_over(social):
    social.put(post(1), recorded=False)
    assert social.compared(BEGIN + 301 * 24 * 3600).rows == 0


def test_a_row_past_the_expiry_that_was_written_into_it_is_passed_over(social):
    social.put(post(1), recorded=False)
    for reader in ("r0", "r1"):
        social.engine.rows[row_of(reader, 1)] |= {"expires": {"N": str(int(BEGIN) + 50)}}
    assert social.different() == {("r2", "p1", "extra")}


def test_an_item_on_which_the_handler_raises_fails(social):
    social.put(post(1), recorded=False, other="no text")
    found = social.compared()
    assert {(each.item[2].rpartition("#")[2], type(each.error)) for each in found.failed} == {("p1", AttributeMissing)}


def test_what_a_follow_leaves_out_is_not_missing_as_far_as_the_state_tells():
    social = Social(most=2)
    assert social.different() == set()
    social.put(post(3))
    assert social.different() == set()
    assert social.different(keeps_copies=False) == {(f"r{number}", "p1", "missing") for number in range(READERS)}


def test_a_row_that_no_follow_leaves_out_is_missing():
    social = Social(most=2)
    del social.engine.rows[row_of("r0", 2)]
    assert social.different() == {("r0", "p2", "missing")}


def test_what_is_pulled_is_not_compared():
    social = Social(pull_above=1)
    social.put(post(4), text="pushed, and found to have too many readers")
    social.put(post(5), text="pulled")
    assert [row_of("r0", number) in social.engine.rows for number in (4, 5)] == [True, False]
    assert social.different() == set()


def test_rows_that_an_unfollow_keeps_are_not_extra_until_their_post_is_gone():
    social = Social(unfollow="keep")
    social.put(follow("r0"))
    assert social.different() == set()
    social.put(post(1), recorded=False)
    assert social.different() == {(f"r{number}", "p1", "extra") for number in range(READERS)}


def check(histories, options):
    """The ends of histories agree, whatever happened on the way."""
    apps = applications(**options)
    for seed in range(histories):
        history = History(apps, seed).run()
        run = history._run(history.apps[0])
        found = FeedRows(history.route).compared(comparing(run, history.now))
        wrong = [each for each in found.different if (each.shown or {}).get("text", "").rstrip("!") != _text(each)]
        assert wrong == [], f"seed {seed}"


def _text(each):
    return (each.expected or {}).get("text", "")


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_the_ends_of_histories_agree(options):
    check(HISTORIES, options)


@pytest.mark.ci
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_the_ends_of_many_histories_agree(options):
    check(HISTORIES_CI, options)


@pytest.mark.nightly
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_the_ends_of_thousands_of_histories_agree(options):
    check(HISTORIES_NIGHTLY, options)
