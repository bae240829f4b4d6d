"""Lanes of fan-outs: one that stands still stays until somebody goes on, one that is done expires."""

import pytest

from streamfold import App, Key, Router
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.jobs.fan_outs import FanOuts, Paged, is_over
from streamfold.jobs.job import Job
from streamfold.ledger.state_keys import segment_key
from streamfold.runtime import Runtime
from streamfold.settings import Settings

ROUTER = Router()
ROUTER.archive(Key("SESSION#{id}", "META"), to="s3://kept/sessions")
APP = App("shop", routers=[ROUTER])
JOB = Job(id="one", what="push", handlers=("timeline",), table="main", segments=2, started=0, by="", version="1")


def opened():
    engine = MemoryEngine(APP.tables.values(), APP.chains)
    fan_outs = FanOuts(Runtime(APP, engine, Settings(), clock=lambda: 100.0))
    assert fan_outs.open(JOB, "1")
    return engine, fan_outs


def stored(engine, number):
    key = segment_key(APP.name, JOB.id, number)
    return engine.read_state([key], consistent=True).get(key)


def once(lane):
    """A page that is done, and one that is not."""
    if lane.after:
        raise EngineUnavailable("no answer")
    return Paged("b", {})


def test_a_lane_that_stands_still_never_expires():
    engine, fan_outs = opened()
    fan_outs.work(JOB, 0, lambda lane: Paged(None if lane.after else "b", {}))
    with pytest.raises(EngineUnavailable):
        fan_outs.work(JOB, 1, once)
    assert "ttl" in stored(engine, 0)
    assert "ttl" not in stored(engine, 1)


def test_a_lane_that_is_done_and_expired_is_not_waited_for():
    engine, fan_outs = opened()
    fan_outs.work(JOB, 0, lambda _: Paged(None, {}))
    del engine.state[segment_key(APP.name, JOB.id, 0)]
    expired, other = fan_outs.segments(JOB)
    assert (is_over(expired), is_over(other)) == (True, False)


def places(fan_outs, number, between=None):
    """The places of four that a lane passes until it is done."""
    passed = []

    def page(lane):
        passed.append(lane.after or "")
        if between and len(passed) == 2:
            between()
        following = "abcd".find(lane.after) + 1 if lane.after else 0
        return Paged("abcd"[following] if following < 4 else None, {})

    fan_outs.work(JOB, number, page)
    return passed


def test_a_fan_out_that_is_done_is_only_opened_again_for_its_version_when_asked():
    _, fan_outs = opened()
    first = [places(fan_outs, number) for number in range(JOB.segments)]
    assert fan_outs.end(fan_outs.read(JOB.id))
    assert not fan_outs.open(JOB, "1")
    assert fan_outs.open(JOB, "1", again=True)
    assert [places(fan_outs, number) for number in range(JOB.segments)] == first == [["", "a", "b", "c", "d"]] * 2


def test_a_lane_that_is_asked_for_again_on_its_way_passes_every_place_once_more():
    _, fan_outs = opened()
    assert places(fan_outs, 0, lambda: fan_outs.open(JOB, "1", again=True)) == ["", "a"]
    assert places(fan_outs, 0) == ["a", "b", "c", "d", ""]


def test_a_fan_out_is_not_asked_for_again_for_an_older_version():
    _, fan_outs = opened()
    assert fan_outs.open(JOB, "0", again=True)  # as its lanes are to be worked on
    assert [lane.version for lane in fan_outs.segments(JOB)] == ["1", "1"]


def test_an_older_change_leads_no_lane_back_where_one_has_expired():
    engine, fan_outs = opened()
    fan_outs.work(JOB, 0, lambda _: Paged(None, {}))
    del engine.state[segment_key(APP.name, JOB.id, 0)]
    assert fan_outs.open(JOB, "0")  # the other lane is to be worked on
    assert [lane.version for lane in fan_outs.segments(JOB)] == ["", "1"]
