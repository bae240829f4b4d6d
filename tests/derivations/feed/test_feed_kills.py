"""A fan-out that is killed at any call goes on where it was, and hardly a row is written twice."""

from random import Random
from unittest.mock import patch

import pytest

from streamfold.batch.fan_outs import enqueue_open, run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.derivations.feed import fan_outs
from streamfold.testing.mapping import Died
from tests.derivations.feed.test_feed_costs import FIRST, application, run
from tests.helpers.vast_audience import VastAudience

KILLS = 20
CALLS = ("put_post_rows", "swap_state", "read_entries", "read_state")


class Killed(VastAudience):
    """Keeps the rows of a vast audience, and kills whoever writes them at some of their calls."""

    def __init__(self, app, followers, seed):
        super().__init__(app, followers)
        self.random, self.kept, self.kills = Random(seed), {}, KILLS
        for name in CALLS:
            setattr(self, name, self._deadly(getattr(self, name)))

    def _deadly(self, call):
        def deadly(*arguments, **named):
            if self.kills and self.random.random() < self.chance:
                self.kills -= 1
                if self.random.random() < 0.5:
                    call(*arguments, **named)
                raise Died
            return call(*arguments, **named)

        return deadly

    @property
    def chance(self):
        return 20 / (self.followers / fan_outs.PAGE * 3)

    def put_post_rows(self, pairs):
        for pair in pairs:
            self.kept[pair.key] = (pair.versions, pair.attributes["text"])
        return super().put_post_rows(pairs)


def killed(followers, page, seed):
    app = application()
    engine = Killed(app, followers, seed)
    with patch.object(fan_outs, "PAGE", page):
        while not is_done(app, engine):
            pass
    return engine


def is_done(app, engine):
    """One process: it opens the fan-out, or goes on with it; whether nothing was left."""
    one = run(app, engine)
    try:
        if not engine.kept and not process_changes(one, [FIRST]).failures and not one.queued:
            return False
        enqueue_open(one)
        assert not run_fan_outs(one).failures
        return not enqueue_open(one)
    except Died:
        return False


@pytest.mark.parametrize(("followers", "page"), [(5_000, 50), pytest.param(100_000, 1_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("seed", range(2))
def test_a_fan_out_that_is_killed_twenty_times_reaches_everyone(followers, page, seed):
    engine = killed(followers, page, seed)
    assert engine.kills == 0
    assert len(engine.kept) == followers
    assert {text for _, text in engine.kept.values()} == {"one"}
    print(f"{engine.rows_written / followers:.3f} times the rows")
    assert engine.rows_written <= 1.12 * followers + page
