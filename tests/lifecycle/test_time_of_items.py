"""Repairs and comparisons of items whose handlers ask for the time."""

import json
from datetime import UTC, datetime

import pytest

from streamfold.cli.jobs import wake_lines
from streamfold.failures.repair import Repair
from streamfold.keys.table import STATE
from streamfold.lifecycle.explain import Explaining, explain_item
from streamfold.lifecycle.exports import open_export
from streamfold.lifecycle.other_rows import verify_exports
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.verify import Verifier
from streamfold.records.values import encode
from streamfold.replay.costs import count_run
from streamfold.replay.files import RecordedFiles
from streamfold.settings import Settings
from tests.helpers.exports import write_export
from tests.helpers.records import item, record
from tests.helpers.wake_walks import BROKEN, raising
from tests.helpers.woken import START, Desk, at, counted, made

PLACE = ("main", "TICKET#1", "META")


@pytest.fixture
def desk():
    return Desk(made(counted))


def verified(desk):
    verifier = Verifier(Pages(desk.runtime(), {"counted"}, dry_run=True), 0)
    verifier.page([PLACE])
    return verifier.found


def repaired(desk):
    return [each.error for each in Repair(desk.runtime()).item(PLACE)]


def test_a_repair_alone_takes_back_the_time_of_a_clock_that_was_ahead(desk):
    desk.now = START + 100
    desk.ticket(1, 60)
    desk.now = START
    desk.ticket(1, 60, note=1)
    assert desk.rows("TEAM") == {"TEAM#a": {"tickets": 1}}
    assert repaired(desk) == [None]
    assert (desk.rows("TEAM"), desk.wakes()) == ({}, {"counted": [at(60)]})


def test_what_is_right_at_the_time_of_the_item_is_no_difference(desk):
    desk.now = START + 100
    desk.ticket(1, 60)
    desk.now = START
    assert (verified(desk).equal, verified(desk).different) == (1, [])


def test_a_moment_that_has_just_come_is_no_difference(desk):
    desk.ticket(1, 60)
    desk.now += 90
    assert verified(desk).different == []


def test_a_moment_that_came_long_ago_is_a_difference(desk):
    desk.ticket(1, 60)
    desk.now += 700
    assert [each.handler for each in verified(desk).different] == ["counted"]


def test_a_wake_that_is_lost_is_a_difference_and_a_repair_puts_it_again(desk):
    desk.ticket(1, 60)
    (wake,) = [key for key in desk.engine.state if key.pk.startswith("wake#")]
    del desk.engine.state[wake]
    assert [each.handler for each in verified(desk).different] == ["counted"]
    assert repaired(desk) == [None]
    assert (desk.wakes(), verified(desk).different) == ({"counted": [at(60)]}, [])


def test_a_rebuild_changes_nothing_that_is_right(desk):
    desk.ticket(1, 60)
    before = dict(desk.engine.state)
    Pages(desk.runtime(), {"counted"}).reconcile([PLACE])
    assert {key: item for key, item in desk.engine.state.items() if key.pk.startswith(("ledger#", "wake#"))} == {
        key: item for key, item in before.items() if key.pk.startswith(("ledger#", "wake#"))
    }


def test_an_explanation_names_until_when_an_item_waits(desk):
    desk.ticket(1, 60)
    (found,) = explain_item(Explaining(desk.app, desk.engine, desk.runtime().known.schema), PLACE)
    assert found.again_at == at(60)


def test_late_wakes_are_listed_with_their_age(desk):
    desk.ticket(1, 60)
    desk.now += 100
    ((found, text),) = wake_lines(desk.runtime())
    assert (found["wakes"], found["age_seconds"], "counted" in text) == ("counted", 40, True)


def test_wakes_that_were_put_off_are_listed_with_their_first_moment():
    desk = Desk(made(raising, name="walks"))
    BROKEN.update("a")
    desk.ticket(1, 60)
    desk.now += 90
    assert len(desk.sweep()) == 1
    desk.now = START + 400
    assert len(desk.sweep()) == 1
    BROKEN.clear()
    ((found, text),) = wake_lines(desk.runtime())
    assert (found["items"], found["first_moment"], found["next_try"]) == (1, at(60), at(1000))
    assert "TICKET#1" in text


def verified_rows(desk):
    found = RowsVerifier(desk.runtime(), desk.app.routes, live=True).verify()
    return [each.row[1] for each in found.different], found.moving


def test_a_row_whose_moment_has_just_come_is_moving(desk):
    desk.ticket(1, 60)
    desk.now += 90
    assert verified_rows(desk) == ([], 1)


def test_a_row_whose_moment_came_long_ago_is_a_difference(desk):
    desk.ticket(1, 60)
    desk.now += 700
    assert verified_rows(desk) == (["TEAM#a"], 0)


def test_a_row_that_is_wrong_beside_moments_that_have_just_come_is_a_difference(desk):
    desk.ticket(1, 60)
    desk.ticket(2, -60, team="b")
    del desk.engine.rows["main", "TEAM#b", "COUNTED"]
    desk.now += 90
    assert verified_rows(desk) == (["TEAM#b"], 1)


def test_an_item_of_a_clock_that_was_ahead_is_counted(desk):
    desk.now = START + 100
    desk.ticket(1, 60)
    desk.now = START
    assert (verified(desk).ahead, verified(desk).different) == (1, [])


def exported(desk, folder, seconds):
    app = desk.app
    moment = datetime.fromtimestamp(START + seconds, UTC).isoformat()
    items = [encode(each)["M"] for each in desk.items.values() if each] + list(desk.engine.rows.values())
    state = [encode({"pk": key.pk, "sk": key.sk, **each})["M"] for key, each in desk.engine.state.items()]
    exports = {
        "main": open_export(write_export(folder / "main", items, table="main", time=moment), app.tables["main"]),
        STATE.name: open_export(write_export(folder / "state", state, table="state", time=moment), STATE),
    }
    return verify_exports(app, Settings(), app.routes, exports)


def test_exports_are_compared_at_their_time(tmp_path, desk):
    desk.ticket(1, 60)
    desk.ticket(2, -60)
    found = exported(desk, tmp_path, 30)
    assert (found.rows.different, found.rows.moving, found.items.different, found.items.equal) == ([], 0, [], 2)


def test_rows_of_exports_that_were_derived_at_a_later_time_are_left_out(tmp_path, desk):
    desk.now += 64
    desk.ticket(1, 60)
    found = exported(desk, tmp_path, 59)
    assert (found.rows.different, found.rows.moving, found.items.ahead) == ([], 1, 1)


def counted_run(folder, due_seconds):
    """What 100 tickets cost, one a second, each due so long after it came."""
    path = folder / f"{due_seconds}.jsonl"
    tickets = [item(f"TICKET#{n}", "META", status="open", team="a", due_at=at(n + due_seconds)) for n in range(100)]
    records = [record(None, each, number + 1, at=float(START + number)) for number, each in enumerate(tickets)]
    path.write_text("".join(json.dumps(each) + "\n" for each in records), "utf-8")
    return count_run(made(counted), Settings(), RecordedFiles([str(path)]), 1)


def test_costs_count_the_visits_of_a_recording_and_name_those_behind_it(tmp_path):
    without, within, behind = (counted_run(tmp_path, seconds) for seconds in (-1, 1, 10_000))
    assert (without.outside, within.usage.write_units > without.usage.write_units + 400) == ((), True)
    (text,) = behind.outside
    assert text.startswith("Of a million records 1,000,000 moments come behind the recording: 2,000,000 read units")
