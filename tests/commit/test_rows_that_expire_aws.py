"""Rows with a time to live: what came to them since they were made, and nothing is taken that they never held."""

import pytest

from streamfold import App, Key, Max, Min, Router, Row, Sum, Top
from streamfold.batch.process import check_application
from streamfold.engines.capacity import CountingEngine
from streamfold.failures.repair import Repair
from streamfold.keys.table import MAIN
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.explain import Explaining
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_repair import RowCorrection
from streamfold.lifecycle.row_sources import explain_row
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import ENTRIES
from tests.versions.api import Store, deliver, image_of, plain
from tests.versions.expiring import EXPIRES, NEWER, SHOWS, TABLE, application

DAY, OWN, INDEX, UNIQUE = (
    ("main", name, sort)
    for name, sort in (("DAY#a", "STATS"), ("OWN#1#a", "ROW"), ("INDEX#a#1", "ROW"), ("UNIQUE#x", "ROW"))
)
PLAY_1 = ("main", "PLAY#1", "X")
SHARED_ROWS = ["DAY", "SPREAD", "UNIQUE", "WINS"]


class Days:
    """Plays of a day in a store, delivered one batch at a time."""

    def __init__(self, app=None, view="NEW_AND_OLD_IMAGES"):
        self.store = Store(view)
        self.app = app or application("new")
        self.store.apps = [self.app]
        self.done = 0

    def put(self, i, score, g="a", h="x"):
        place = ("main", f"PLAY#{i}", "X")
        attributes = {"score": score - NEWER, "g": g, "h": h, "i": str(i), "expires": EXPIRES}
        self.store.write(place, image_of(place, attributes))

    def remove(self, i):
        self.store.write(("main", f"PLAY#{i}", "X"), None)

    def deliver(self, app=None, engine=None):
        failed, _ = deliver(app or self.app, engine or self.store.engine, self.store.stream[self.done :], {})
        self.done = len(self.store.stream)
        assert not failed, failed

    def expire(self, row=DAY):
        self.store.lose(row)

    def shown(self, row=DAY):
        return plain(self.store.items().get(row))


def day(*scores):
    """What the row of a day shows of these plays."""
    return {**SHOWS["stats"](sorted(scores)), **SHOWS["more"](sorted(scores))}


@pytest.fixture
def days():
    """Two old plays of a day whose row has expired, and a new one that made the row again."""
    found = Days()
    found.put(1, 100)
    found.put(2, 200)
    found.deliver()
    found.expire()
    found.put(3, 30)
    found.deliver()
    return found


def test_a_row_that_expired_holds_what_came_since(days):
    assert days.shown() == day(30)


@pytest.mark.parametrize("view", ["NEW_AND_OLD_IMAGES", "NEW_IMAGE"])
def test_the_removal_of_an_item_that_came_before_changes_nothing(view):
    days = Days(view=view)
    days.put(1, 100)
    days.deliver()
    days.expire()
    days.put(3, 30)
    days.deliver()
    days.remove(1)

    days.deliver()

    assert days.shown() == day(30)


def test_an_amendment_of_an_item_that_came_before_changes_nothing(days):
    days.put(1, 500)
    days.deliver()
    days.put(1, 700)
    days.deliver()

    assert days.shown() == day(30)


def test_an_amendment_does_not_make_a_row_that_expired():
    days = Days()
    days.put(1, 100)
    days.deliver()
    days.expire()
    days.put(1, 101)
    days.deliver()

    assert days.shown() == {}


def test_an_item_that_leaves_and_comes_back_is_in_the_row(days):
    days.put(1, 100, g="b")
    days.deliver()
    days.put(1, 100, g="a")
    days.deliver()

    assert days.shown() == day(30, 100)


def test_items_that_came_since_are_amended_and_removed_as_ever(days):
    days.put(4, 40)
    days.deliver()
    days.put(3, 33)
    days.remove(4)
    days.deliver()

    assert days.shown() == day(33)


def test_a_row_of_which_only_old_items_are_left_goes(days):
    days.remove(3)
    days.deliver()

    assert days.shown() == {}


def test_an_item_that_comes_after_all_left_makes_the_row_again(days):
    days.remove(3)
    days.deliver()
    days.put(4, 40)
    days.deliver()
    days.remove(1)
    days.deliver()

    assert days.shown() == day(40)


def test_a_second_delivery_after_the_row_expired_changes_nothing(days):
    days.expire()

    days.done = 0
    days.deliver(application("new"))

    assert days.shown() == {}


def test_another_process_adds_to_the_row_in_its_life(days):
    days.put(4, 40)
    days.deliver(application("new"))
    days.put(3, 33)
    days.deliver(application("new"))

    assert days.shown() == day(33, 40)


def test_a_process_learns_the_newer_life_of_a_row():
    days, other = Days(), application("new")
    days.put(3, 30)
    days.deliver()
    days.expire()
    days.put(4, 40)
    days.deliver(other)
    days.put(5, 50)
    days.put(3, 33)

    days.deliver()

    assert days.shown() == day(40, 50)


def test_a_process_whose_code_lets_no_row_expire_keeps_to_the_lives_of_others():
    without, with_ttl = application("old", late=True), application("new")
    days = Days(with_ttl)
    days.put(1, 100)
    days.deliver(without)
    days.put(2, 200)
    days.deliver()
    days.expire()
    days.put(3, 30)
    days.deliver(without)
    days.put(1, 101)
    days.deliver()
    days.remove(2)
    days.deliver()

    assert days.shown()["n"] == 1
    assert days.shown()["t"] == 30 - NEWER


def test_an_amendment_does_not_put_a_whole_row_again_that_expired():
    days = Days()
    days.put(1, 100)
    days.deliver()
    days.expire(OWN)
    days.expire(INDEX)
    days.put(1, 101)
    days.deliver()
    days.put(1, 102)
    days.deliver()

    assert days.shown(OWN) == days.shown(INDEX) == {}


def test_an_item_that_comes_back_puts_its_whole_row_again():
    days = Days()
    days.put(1, 100)
    days.deliver()
    days.expire(OWN)
    days.put(1, 101)
    days.deliver()
    days.put(1, 101, g="b")
    days.deliver()
    days.put(1, 102)
    days.deliver()

    assert days.shown(OWN) == {"v": 102, "s": 102, "expires": EXPIRES}


def test_claims_of_before_do_not_win_a_unique_row_that_expired():
    days = Days()
    days.put(1, 900)
    days.deliver()
    days.expire(UNIQUE)
    days.put(2, 200)
    days.deliver()
    days.put(1, 901)
    days.deliver()

    assert days.shown(UNIQUE) == {"v": 200, "expires": EXPIRES}


def test_a_row_that_expires_while_it_is_recomputed_shows_nothing_of_before():
    days = Days()
    days.put(1, 100)
    days.put(2, 200)
    days.deliver()
    days.put(2, 50)
    read, store = days.store.engine.read_entries, days.store.engine

    def meanwhile(wanted):
        store.read_entries = read
        found = read(wanted)
        days.expire()
        other = Days.__new__(Days)
        other.__dict__.update(days.__dict__, done=len(days.store.stream))
        other.put(3, 30)
        other.deliver(application("new"))
        return found

    store.read_entries = meanwhile
    days.deliver()

    assert days.shown() == day(30)


def test_what_a_process_left_to_be_recomputed_is_finished_in_the_life_of_the_row():
    days = Days()
    store = days.store.engine
    days.put(1, 100)
    read = store.read_entries

    def dies(wanted):
        raise KeyboardInterrupt

    store.read_entries = dies
    with pytest.raises(KeyboardInterrupt):
        days.deliver()
    store.read_entries = read
    days.put(1, 150)
    days.done = 0
    days.deliver(application("new"))

    assert days.shown() == day(150)


def test_what_a_process_left_of_a_row_that_expired_is_not_shown_by_the_next_one():
    days = Days()
    store = days.store.engine
    days.put(1, 100)
    days.deliver()
    days.put(1, 900)
    read = store.read_entries

    def dies(wanted):
        raise KeyboardInterrupt

    store.read_entries = dies
    with pytest.raises(KeyboardInterrupt):
        days.deliver()
    store.read_entries = read
    days.expire()
    days.put(3, 30)
    left, days.done = days.store.stream[days.done], days.done + 1
    days.deliver(application("new"))
    assert deliver(application("new"), store, [left], {})[0] == {}

    assert days.shown() == day(30)


def tallied(table, **expires):
    """An application with one shared row, and a play that comes, is amended and goes: what each costs."""
    play, row = Key("PLAY#{i}", "X", table=table), Key("DAY#{g}", "STATS", table=table)
    router = Router()
    router.view(play, into=row, name="tally")(lambda item: Row(g=item["g"], s=Sum(item["score"]), **expires))
    days = Days(App("shop", routers=[router]))
    days.put(0, 1)
    days.deliver()
    costs = []
    for act in (lambda: days.put(1, 100), lambda: days.put(1, 101), lambda: days.remove(1)):
        engine = CountingEngine(days.store.engine)
        act()
        days.deliver(engine=engine)
        costs.append((engine.requests, engine.write_units, engine.read_units))
    return costs


def test_a_table_that_only_declares_a_time_to_live_costs_nothing_more():
    assert tallied(TABLE) == tallied(MAIN)


def test_a_row_that_expires_costs_reads_of_half_a_unit_and_no_more_write_units():
    without, with_ttl = tallied(TABLE, best=Max(1)), tallied(TABLE, expires=Max(1))

    assert [units for _, units, _ in with_ttl] == [units for _, units, _ in without]
    assert [more - less for (_, _, more), (_, _, less) in zip(with_ttl, without, strict=True)] == [0.5, 0.5, 0.5]


def test_a_process_that_knows_the_life_of_a_row_does_not_read_the_row(monkeypatch):
    days = Days()
    engine, read, late = days.store.engine, days.store.engine.read_rows, []

    def noted(keys, *, consistent=True):
        keys = list(keys)
        late.extend(key[1].partition("#")[0] for key in keys if not consistent)
        return read(keys)

    monkeypatch.setattr(engine, "read_rows", noted)
    days.put(1, 100)
    days.deliver()
    assert sorted(late) == SHARED_ROWS
    days.put(1, 101)
    days.put(7, 107)
    days.deliver()
    assert [late.count(name) for name in ("DAY", "UNIQUE", "WINS")] == [1, 1, 1]


def verified(days):
    run = Runtime(days.app, days.store.engine, Settings.from_environment({}), pause=lambda _: None)
    return RowsVerifier(run, days.app.routes, live=False).verify().different


def explaining(days):
    return Explaining(days.app, days.store.engine, Schema())


def test_rows_that_expired_and_were_made_again_agree_with_the_ledger(days):
    days.put(1, 101)
    days.deliver()

    assert verified(days) == []
    assert explain_row(explaining(days), DAY, scan=True).agrees


def test_a_row_that_lacks_what_came_since_is_different(days):
    row = days.store.engine.rows[DAY]
    days.store.engine.rows[DAY] = {**row, "s": {"N": "31"}}

    assert [each.row for each in verified(days)] == [DAY]


def test_a_row_that_was_made_again_is_corrected_to_what_came_since(days):
    days.put(4, 40)
    days.deliver()
    row = days.store.engine.rows[DAY]
    days.store.engine.rows[DAY] = {**row, "s": {"N": "31"}, "best": {"N": "7"}}

    run = Runtime(days.app, days.store.engine, Settings.from_environment({}), pause=lambda _: None)
    assert RowCorrection(run).correct([DAY]).remaining == []

    assert days.shown() == day(30, 40)


@pytest.mark.parametrize("always", [False, True])
def test_a_backfill_leaves_rows_that_expired_as_they_are(days, always):
    run = Runtime(days.app, days.store.engine, Settings.from_environment({}), pause=lambda _: None)
    days.put(5, 50)
    pages = Pages(run, list(SHOWS), always=always)

    report = pages.reconcile([("main", f"PLAY#{i}", "X") for i in (1, 2, 3, 5)])

    assert not report.failed
    assert days.shown() == day(30, 50)


def test_a_rebuild_brings_all_items_back_to_a_row_that_expired(days):
    run = Runtime(days.app, days.store.engine, Settings.from_environment({}), pause=lambda _: None)
    items = [("main", f"PLAY#{i}", "X") for i in (1, 2, 3)]
    Pages(run, list(SHOWS), emptied=True).reconcile(items)
    Pages(run, list(SHOWS)).reconcile(items)

    assert days.shown() == day(30, 100, 200)


@pytest.fixture
def multi_source():
    """Two sources of one whole row, which expired after the first had put it, and was put by the second then."""
    one, other = Key("ONE#{i}", "X", table=TABLE), Key("OTHER#{i}", "X", table=TABLE)
    row, router = Key("ROW#{i}", "X", table=TABLE), Router()

    @router.view(one, other, into=row)
    def shown(item):
        return Row(v=item["score"], expires=EXPIRES)

    days = Days(App("shop", routers=[router]))

    def put(name, score):
        place = ("main", f"{name}#1", "X")
        days.store.write(place, None if score is None else image_of(place, {"score": score, "i": "1"}))
        days.deliver()
        return days.shown(("main", "ROW#1", "X")).get("v")

    assert put("ONE", 1) == 1
    days.expire(("main", "ROW#1", "X"))
    assert put("OTHER", 2) == 2
    return put


def test_a_whole_row_that_another_source_put_since_is_left_to_that(multi_source):
    assert multi_source("ONE", 3) == 2
    assert multi_source("ONE", 4) == 2
    assert multi_source("OTHER", 5) == 5


def test_the_removal_of_who_put_a_whole_row_before_changes_nothing(multi_source):
    assert multi_source("ONE", None) == 2
    assert multi_source("OTHER", None) is None


def test_a_source_that_comes_back_puts_the_whole_row_once_the_other_has_left(multi_source):
    assert multi_source("ONE", None) == 2
    assert multi_source("OTHER", None) is None
    assert multi_source("ONE", 6) == 6


def lasting(item):
    """A whole row that expires where its item says when."""
    return Row(i=item["i"], v=item["score"], **({"expires": EXPIRES} if item["h"] == "x" else {}))


def keeping_some():
    """What a new process has, of which no handler has let a row expire yet."""
    router = Router()
    router.view(Key("PLAY#{i}", "X", table=TABLE), into=Key("LAST#{i}", "ROW", table=TABLE))(lasting)
    return App("shop", routers=[router])


@pytest.mark.parametrize("view", ["NEW_AND_OLD_IMAGES", "NEW_IMAGE"])
@pytest.mark.parametrize("way", ["stream", "page", "verify"])
def test_a_process_that_lets_no_row_expire_knows_that_whole_rows_did(view, way):
    days = Days(keeping_some(), view)
    days.put(1, 100)
    days.deliver()
    days.expire(("main", "LAST#1", "ROW"))
    days.put(1, 101, h="y")
    days.app = keeping_some()
    run = Runtime(days.app, days.store.engine, Settings.from_environment({}), pause=lambda _: None)
    check_application(run)

    if way == "stream":
        days.deliver()
    elif way == "page":
        Pages(run, ["lasting"]).reconcile([("main", "PLAY#1", "X")])
    else:
        assert RowsVerifier(run, days.app.routes, live=False).verify().different == []

    assert days.shown(("main", "LAST#1", "ROW")) == {}


def rows_of_a_large_step():
    """A handler of which one item is in 90 rows with four entries each: ten pages of a transaction's size."""
    router = Router()

    @router.view(Key("PLAY#{i}", "X", table=TABLE), into=Key("LARGE#{n}", "ROW", table=TABLE))
    def large(item):
        v = item["score"] + NEWER
        for n in range(90):
            some = {"best": Max(v), "least": Min(v), "top": Top(2, v, by=v)}
            yield Row(n=str(n), s=Sum(v), **some, expires=Max(EXPIRES))

    return App("shop", routers=[router])


@pytest.fixture(params=["stream", "repair", "page"])
def led(request):
    """Brings the changes of plays that are in many rows to these rows, in a new process."""

    def lead(days):
        app, item = rows_of_a_large_step(), PLAY_1
        run = Runtime(app, days.store.engine, Settings.from_environment({}), pause=lambda _: None)
        if request.param == "stream":
            days.deliver(app)
        elif request.param == "repair":
            assert [each.error for each in Repair(run).item(item)] == [None]
        else:
            check_application(run)
            assert not Pages(run, ["large"]).reconcile([item]).failed

    return lead


@pytest.mark.parametrize("expired", [0, 45, 90])
def test_a_large_step_is_led_whatever_many_of_its_rows_expired(led, expired):
    days = Days(rows_of_a_large_step())
    days.put(1, 100)
    days.deliver()
    rows = [("main", f"LARGE#{n}", "ROW") for n in range(90)]
    for row in rows[:expired]:
        days.expire(row)

    days.put(1, 200)
    led(days)

    shown = [days.shown(row).get("s") for row in rows]
    assert shown == [None] * expired + [200] * (90 - expired)
    assert sum(key.pk.startswith(ENTRIES) for key in days.store.engine.state) == 4 * (90 - expired)


@pytest.mark.parametrize("act", [lambda days: days.put(1, 300), lambda days: days.remove(1)])
def test_no_entries_are_left_of_a_row_that_expired(act):
    days = Days()
    days.put(1, 100)
    days.deliver()
    for row in [row for row in days.store.items() if row[1] != "PLAY#1"]:
        days.expire(row)
    act(days)
    days.deliver()

    assert not [key for key in days.store.engine.state if key.pk.startswith(ENTRIES)]
