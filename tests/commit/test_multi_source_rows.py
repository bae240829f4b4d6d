"""Rows that are put whole by one version of the code, and added to by another; and rows that somebody removed."""

from unittest.mock import patch

import pytest

from streamfold import App, Average, Collect, Count, Key, Max, Router, Row, Sum, Table, Top
from streamfold.batch.process import process_event
from streamfold.commit.plan import is_dropped
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable, HandlerError
from streamfold.failures.repair import Repair
from streamfold.keys.table import EDGE, STAMP
from streamfold.records.values import decode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RecomputedRow
from tests.helpers.source import Source

ORDER = Key("ORDER#{o}", "META")
LINE = Key("ORDER#{o}", "LINE#{sku}")
SUMMARY = Key("ORDER#{o}", "SUMMARY")
ROW = ("main", "ORDER#1", "SUMMARY")


def alone(name="shop"):
    """The view of orders has its target for itself, and puts rows whole."""
    router = Router()

    @router.view(ORDER, into=SUMMARY)
    def orders(order):
        yield Row(status=order["status"], weight=Sum(order["w"]), seen=Collect(order["w"], into=list))

    return App(name, routers=[router])


def shared(*, seen=False):
    """Another view adds to its rows."""
    router = Router()

    @router.view(ORDER, into=SUMMARY)
    def orders(order):
        yield Row(weight=Sum(order["w"]), **({"seen": Collect(order["w"], into=list)} if seen else {}))

    @router.view(LINE, into=SUMMARY)
    def lines(line):
        yield Row(total=Sum(line["price"]))

    return App("shop", routers=[router])


class Shop:
    """Orders and lines in one table, and versions of an application over one store."""

    def __init__(self, *apps):
        tables = {name: table for app in apps for name, table in app.tables.items()}
        self.store = MemoryEngine(tables.values())
        self.source = Source()

    def order(self, **attributes):
        return self.source.put("ORDER#1", "META", **attributes)

    def line(self, **attributes):
        return self.source.put("ORDER#1", "LINE#a", **attributes)

    def deliver(self, app, *records, warn=lambda _: None):
        run = Runtime(app, self.store, Settings(older_code=True), pause=lambda seconds: None, warn=warn)
        return process_event(run, list(records)).failures

    def row(self, key=ROW):
        row = self.store.rows.get(key)
        names = ("PK", "SK")
        return row and {name: decode(value) for name, value in row.items() if name not in names and "_sf_" not in name}


def test_a_warm_process_of_older_code_adds_to_a_row_that_others_add_to():
    old, new = alone(), shared()
    shop = Shop(old, new)
    shop.deliver(old, shop.order(status="open", w=1))
    shop.deliver(new, shop.line(price=50))
    assert shop.deliver(old, shop.order(status="paid", w=2)) == []
    assert shop.row() == {"status": "paid", "seen": [2], "weight": 2, "total": 50}
    assert shop.deliver(new, shop.order(status="done", w=3), shop.line(price=60)) == []
    assert shop.row() == {"weight": 3, "total": 60}


def test_a_warm_process_of_older_code_removes_only_its_part_of_a_row():
    old, new = alone(), shared()
    shop = Shop(old, new)
    shop.deliver(old, shop.order(status="open", w=1))
    shop.deliver(new, shop.line(price=50))
    assert shop.deliver(old, shop.source.remove("ORDER#1", "META")) == []
    assert shop.row() == {"weight": 0, "total": 50}
    assert shop.deliver(old, shop.order(status="new", w=4)) == []
    assert shop.row() == {"status": "new", "seen": [4], "weight": 4, "total": 50}


@pytest.mark.parametrize("seen", [False, True])
def test_plain_attributes_of_before_go_when_a_row_is_added_to(seen):
    old, new = alone(), shared(seen=seen)
    shop = Shop(old, new)
    shop.deliver(old, shop.order(status="ana@example.com", w=1))
    assert shop.deliver(new, shop.order(status="ana@example.com", w=2)) == []
    assert shop.row() == {"weight": 2, **({"seen": [2]} if seen else {})}


def test_a_row_that_is_put_whole_again_keeps_what_others_added():
    old, new = alone(), shared(seen=True)
    shop = Shop(old, new)
    shop.deliver(old, shop.source.put("ORDER#0", "META", status="open", w=1))
    shop.deliver(new, shop.order(status="open", w=1), shop.line(price=50))
    assert shop.deliver(old, shop.order(status="paid", w=2)) == []
    assert shop.row() == {"status": "paid", "weight": 2, "seen": [2], "total": 50}
    assert shop.deliver(new, shop.order(status="done", w=1)) == []
    assert shop.row() == {"weight": 1, "seen": [1], "total": 50}


def test_a_repair_by_older_code_adds_to_a_row_that_others_add_to():
    old, new = alone(), shared()
    shop = Shop(old, new)
    record = shop.order(status="open", w=1)
    shop.deliver(old, record)
    shop.deliver(new, shop.line(price=50))
    image = {**record["dynamodb"]["NewImage"], "status": {"S": "paid"}}
    shop.store.put_sources([(("main", "ORDER#1", "META"), image, "9")])
    [repaired] = Repair(Runtime(old, shop.store, Settings(older_code=True))).item(("main", "ORDER#1", "META"))
    assert repaired.error is None
    assert shop.row() == {"status": "paid", "seen": [1], "weight": 1, "total": 50}


def test_a_row_of_another_application_is_not_overwritten(monkeypatch):
    monkeypatch.setattr(
        "streamfold.batch.ownership.Ownership._check_local", lambda _: None
    )  # as earlier commits took it
    one, other = alone("shop"), alone("billing")
    shop = Shop(one, other)
    shop.deliver(one, shop.order(status="open", w=1))
    [failure] = shop.deliver(other, shop.order(status="paid", w=1))
    assert isinstance(failure.error, HandlerError)
    assert "belongs to shop/orders" in str(failure.error)
    assert shop.row()["status"] == "open"


def test_an_item_of_the_application_itself_is_not_overwritten():
    app = alone()
    shop = Shop(app)
    shop.store.rows[ROW] = {"PK": {"S": ROW[1]}, "SK": {"S": ROW[2]}, "own": {"S": "kept"}}
    [failure] = shop.deliver(app, shop.order(status="open", w=1))
    assert "belongs to the application itself" in str(failure.error)
    assert shop.row() == {"own": "kept"}


# Rows that somebody removed.

SHOP = Table("main", ttl="expires")
PLAY = Key("GAME#{game}", "PLAY#{play}", table=SHOP)
STATS = Key("GAME#{game}", "STATS", table=SHOP)
GAME = ("main", "GAME#g", "STATS")


def games(plays=2):
    router = Router()

    @router.view(PLAY, into=STATS)
    def stats(play):
        yield Row(
            plays=Count(),
            score=Average(play["score"]),
            best=Max(play["score"]),
            leaders=Top(plays, play["score"], by=play["score"]),
        )

    return App("games", routers=[router])


class Games(Shop):
    def play(self, number, score):
        return self.source.put("GAME#g", f"PLAY#{number}", score=score)

    def leave(self, number):
        return self.source.remove("GAME#g", f"PLAY#{number}")


def test_a_row_that_expired_before_its_contributors_does_not_come_back_negative():
    app = games()
    shop = Games(app)
    shop.deliver(app, shop.play(1, 7), shop.play(2, 8))
    del shop.store.rows[GAME]
    assert shop.deliver(app, shop.leave(1), shop.leave(2)) == []
    assert shop.row(GAME) is None


def test_an_amendment_does_not_make_a_row_of_a_difference():
    app = games()
    shop = Games(app)
    shop.deliver(app, shop.play(1, 7), shop.play(2, 8))
    del shop.store.rows[GAME]
    assert shop.deliver(app, shop.play(1, 9)) == []
    assert shop.row(GAME) is None


def test_a_new_contributor_makes_a_row_again_beside_one_that_leaves():
    app = games()
    shop = Games(app)
    shop.deliver(app, shop.play(1, 7), shop.play(2, 8))
    del shop.store.rows[GAME]
    assert shop.deliver(app, shop.leave(1), shop.leave(2), shop.play(3, 4)) == []
    assert shop.row(GAME) == {"plays": 1, "score_sum": 4, "score_count": 1, "best": 4, "leaders": [4]}


def test_a_row_counts_no_fewer_than_nobody_whoever_comes_and_goes():
    app = games()
    shop = Games(app)
    shop.deliver(app, *(shop.play(number, 7) for number in range(4)))
    del shop.store.rows[GAME]
    shop.deliver(app, shop.play(9, 5))
    for number in range(4):
        assert shop.deliver(app, shop.leave(number)) == []
        assert int(shop.store.rows.get(GAME, {"_sf_n": {"N": "0"}})["_sf_n"]["N"]) >= 0


def test_a_repair_goes_on_without_a_row_that_somebody_removed():
    app = games()
    shop = Games(app)
    shop.deliver(app, shop.play(1, 7), shop.play(2, 8))
    del shop.store.rows[GAME]
    shop.store.put_sources([(("main", "GAME#g", "PLAY#1"), None, "9")])
    [repaired] = Repair(Runtime(app, shop.store, Settings())).item(("main", "GAME#g", "PLAY#1"))
    assert repaired.error is None
    assert shop.row(GAME) is None


def corrected(store, row):
    """Has somebody correct the row before the first try that drops what is withdrawn from it."""
    transact, dropping = store.transact, []

    def meanwhile(writes, expires_at):
        if not dropping and any(is_dropped(write) for write in writes):
            dropping.append(writes)
            store.rows[GAME] = dict(row)
        return transact(writes, expires_at)

    return patch.object(store, "transact", meanwhile)


def test_a_row_that_is_corrected_between_refusal_and_second_try_loses_what_leaves():
    app = games()
    shop = Games(app)
    shop.deliver(app, shop.play(1, 7), shop.play(2, 8))
    before = shop.store.rows.pop(GAME)
    with corrected(shop.store, before):
        assert shop.deliver(app, shop.leave(1)) == []
    assert shop.row(GAME) == {"plays": 1, "score_sum": 8, "score_count": 1, "best": 8, "leaders": [8]}


def test_a_row_that_counted_too_few_and_is_corrected_before_the_second_try_loses_what_leaves():
    app = games()
    shop = Games(app)
    shop.deliver(app, shop.play(1, 7), shop.play(2, 8), shop.play(3, 4))
    before = shop.store.rows.pop(GAME)
    shop.deliver(app, shop.play(4, 1))
    assert shop.row(GAME)["plays"] == 1
    before = {**before, "plays": {"N": "4"}, "_sf_n": {"N": "4"}, "score_sum": {"N": "20"}}
    before["score_count"] = {"N": "4"}
    with corrected(shop.store, before):
        assert shop.deliver(app, shop.leave(1), shop.leave(2)) == []
    assert shop.row(GAME) == {"plays": 2, "score_sum": 5, "score_count": 2, "best": 4, "leaders": [4, 1]}


def expiring(play):
    yield Row(plays=Count(), expires=Max(play.get("expires", 1_900_000_000)))


def test_a_shared_row_expires_days_after_its_last_contributor():
    router = Router()
    router.view(PLAY, into=STATS)(expiring)
    app = App("games", routers=[router])
    shop, warned = Games(app), []
    shop.deliver(app, shop.source.put("GAME#g", "PLAY#1", expires=1_900_000_000), warn=warned.append)
    assert shop.row(GAME)["expires"] == 1_900_000_000 + 7 * 24 * 60 * 60
    assert warned == []


def test_a_row_that_expires_above_items_that_do_not_is_warned_of_once():
    router = Router()
    router.view(PLAY, into=STATS)(expiring)
    app = App("games", routers=[router])
    shop, warned = Games(app), []
    shop.deliver(app, shop.play(1, 7), shop.play(2, 7), warn=warned.append)
    assert len(warned) == 1
    assert "lets rows expire" in warned[0]


@pytest.mark.parametrize(("item_days", "row_days", "is_warned"), [(365, 90, True), (90, 90, False), (90, 365, False)])
def test_a_row_that_expires_before_its_items_is_warned_of(item_days, row_days, is_warned):
    begin, day, router = 1_900_000_000, 24 * 60 * 60, Router()

    @router.view(PLAY, into=STATS)
    def stats(play):
        yield Row(plays=Count(), expires=Max(play["at"] + row_days * day))

    app = App("games", routers=[router])
    shop, warned = Games(app), []
    shop.deliver(
        app, shop.source.put("GAME#g", "PLAY#1", at=begin, expires=begin + item_days * day), warn=warned.append
    )
    assert ["expire before" in text for text in warned] == [True] * is_warned


def test_an_owned_row_expires_when_it_says():
    router, own = Router(), Key("OWN#{game}#{play}", "ROW", table=SHOP)

    @router.view(PLAY, into=own)
    def owned(play):
        yield Row(expires=Max(play["expires"]))

    app = App("games", routers=[router])
    shop = Games(app)
    shop.deliver(app, shop.source.put("GAME#g", "PLAY#1", expires=1_900_000_000))
    assert shop.row(("main", "OWN#g#1", "ROW"))["expires"] == 1_900_000_000


# What left a row does not decide its form.


def test_an_item_that_older_code_counted_leaves_a_row_in_its_present_form():
    old, new = games(2), games(5)
    shop = Games(old, new)
    shop.deliver(old, *(shop.play(number, number) for number in range(6)))
    shop.deliver(new, *(shop.play(number, number + 10) for number in range(1, 6)))
    assert shop.deliver(new, shop.leave(0)) == []
    assert shop.row(GAME)["leaders"] == [15, 14, 13, 12, 11]


def test_an_item_leaves_a_row_in_its_present_form_where_no_code_says_how_it_was():
    old, new = games(2), games(5)
    shop = Games(old, new)
    shop.source.more["view"] = "NEW_IMAGE"
    shop.deliver(old, *(shop.play(number, number) for number in range(6)))
    shop.deliver(new, *(shop.play(number, number + 10) for number in range(1, 6)))
    assert shop.deliver(new, shop.leave(0)) == []
    assert shop.row(GAME)["leaders"] == [15, 14, 13, 12, 11]


def test_older_code_that_sees_old_records_again_leaves_a_row_in_its_present_form():
    old, new = games(2), games(5)
    shop = Games(old, new)
    records = [shop.play(number, number) for number in range(6)]
    shop.deliver(old, *records[:1])
    shop.deliver(new, *records[1:], shop.play(0, 9))
    assert shop.deliver(old, *records) == []
    assert shop.row(GAME)["leaders"] == [9, 5, 4, 3, 2]


def test_an_item_that_older_code_takes_out_of_a_row_leaves_it_in_its_present_form():
    old, new = games(2), games(5)
    shop = Games(old, new)
    shop.deliver(new, *(shop.play(number, number) for number in range(6)))
    assert shop.deliver(old, shop.leave(5)) == []
    assert shop.row(GAME)["leaders"] == [4, 3, 2, 1, 0]


# What was made of entries, and is a plain attribute now.


def best():
    """A view whose rows are plain, or of entries alone, as the order says."""
    router = Router()

    @router.view(ORDER, into=SUMMARY)
    def orders(order):
        if "w" in order:
            yield Row(best=Max(order["w"]), **({"status": order["status"]} if "status" in order else {}))

    return App("shop", routers=[router])


def test_a_plain_attribute_that_was_made_of_entries_stays_when_the_record_comes_again():
    app = best()
    shop = Shop(app)
    shop.deliver(app, shop.order(w=1))
    plain = shop.order(w=2, status="paid")
    shop.deliver(app, plain)
    assert shop.deliver(app, plain) == []
    assert shop.row() == {"best": 2, "status": "paid"}


def test_a_plain_attribute_stays_on_a_row_that_nobody_recomputed_when_its_item_left():
    app = best()
    shop = Shop(app)
    shop.deliver(app, shop.order(w=1))
    left, again = shop.order(), shop.order(w=2, status="paid")
    with patch.object(shop.store, "remove_empty", side_effect=EngineUnavailable("throttled")):
        shop.deliver(app, left)
    shop.store.rows[ROW] |= {EDGE + "best": {"S": "max:1 "}}
    shop.deliver(app, again)
    assert shop.deliver(app, left, again) == []
    assert shop.row() == {"best": 2, "status": "paid"}


def test_what_is_recomputed_late_does_not_land_on_a_plain_attribute():
    app = best()
    shop = Shop(app)
    shop.deliver(app, shop.order(w=1))
    stamp = shop.store.rows[ROW][STAMP]["S"]
    shop.deliver(app, shop.order(w=2, status="paid"))
    assert shop.store.transact([RecomputedRow(ROW, stamp, {"best": 1})], 0) is not None


def test_who_recomputes_late_leaves_a_plain_attribute():
    app = best()
    shop = Shop(app)
    entries, plain = shop.order(w=1), shop.order(w=2, status="paid")
    read = shop.store.read_rows

    def meanwhile(keys):
        shop.store.read_rows = read
        shop.deliver(app, plain)
        return read(keys)

    shop.store.read_rows = meanwhile
    assert shop.deliver(app, entries) == []
    assert shop.row() == {"best": 2, "status": "paid"}
