"""``streamfold backfill --load``: exports and recordings of other times into one local state."""

import pytest

from handlers import app as recorded
from streamfold.engines import EmbeddedEngine
from streamfold.records.values import encode
from tests.helpers.commands import EVENTS, shown, streamfold
from tests.helpers.exports import exported, write_export, write_incremental
from tests.helpers.records import item, record

STATE = ("--state", "state.db")
APP = """
from streamfold import Add, App, Count, Key, Router, Row, Sum

ORDER, TOTAL = Key("ORDER#{order_id}", "METADATA"), Key("ALL", "ORDERS")
router = Router()


@router.view(ORDER, into=TOTAL)
def orders(order):
    return Row(orders=Count(), total=Sum(order["total"]))


@router.on(ORDER, into=Key("ALL", "CHANGES"))
def changes(change):
    return Add(changes=1)


app = App("shop", routers=[router])
"""
MARCH, APRIL, MAY = "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z", "2026-05-01T00:00:00Z"
SECONDS = {MARCH: 1_772_323_200, APRIL: 1_775_001_600, MAY: 1_777_593_600}
DAY = 86_400


def order(number, total):
    return item(f"ORDER#{number}", total=total)


@pytest.fixture
def shop(folder):
    folder.app(APP)

    def load(name, time, *orders, files=1):
        items = [encode(each)["M"] for each in orders]
        place = write_export(folder.path / name, items, time=time, files=files)
        return folder.run("backfill", *STATE, "--export", place, "--load")

    def replay(*records, code=0):
        ran = folder.run("replay", folder.records(*records), *STATE)
        assert ran.code == code, ran.err
        return ran

    def totals():
        rows = folder.run("show", *STATE, "--json").objects()
        found = {row["SK"]["S"]: row for row in rows}
        total = found.get("ORDERS", {"orders": {"N": "0"}, "total": {"N": "0"}})
        return (
            int(total["orders"]["N"]),
            int(total["total"]["N"]),
            int(found.get("CHANGES", {}).get("changes", {"N": 0})["N"]),
        )

    folder.load_export, folder.replay, folder.totals = load, replay, totals
    return folder


def test_second_export_of_a_table_replaces_what_is_older_and_removes_what_it_lacks(shop):
    assert shop.load_export("march", MARCH, *(order(number, number) for number in (1, 2, 3))).code == 0
    ran = shop.load_export("april", APRIL, order(1, 1), order(2, 20), order(4, 40))

    assert (ran.code, shop.totals()) == (0, (3, 61, 0))
    assert "loaded 3 items, 1 item removed" in ran.err


def test_older_export_changes_nothing_and_says_how_many_items_are_newer(shop):
    shop.load_export("april", APRIL, order(1, 10), order(2, 20))
    ran = shop.load_export("march", MARCH, order(1, 1), order(3, 3))

    assert (ran.code, shop.totals()) == (0, (2, 30, 0))
    assert "2 items of the state are newer and stay" in ran.err


def test_record_that_is_older_than_the_export_changes_no_row_but_is_a_change(shop):
    shop.load_export("april", APRIL, order(1, 10))
    lost = order(2, 5)

    ran = shop.replay(
        record(order(1, 1), order(1, 2), 1, at=float(SECONDS[MARCH])),
        record(None, lost, 2, at=float(SECONDS[MARCH] + DAY)),
    )

    assert shop.totals() == (1, 10, 2)
    assert "2 records of items that a loaded export has as they were later" in ran.out


def test_record_that_is_newer_than_the_export_follows_it(shop):
    shop.load_export("april", APRIL, order(1, 10), order(2, 20))

    shop.replay(
        record(order(1, 10), order(1, 11), 1, at=float(SECONDS[MAY])),
        record(order(2, 20), None, 2, at=float(SECONDS[MAY])),
    )

    assert shop.totals() == (1, 11, 2)


def test_export_that_is_newer_than_the_records_replaces_their_items(shop):
    shop.replay(
        record(None, order(1, 1), 1, at=float(SECONDS[MARCH])),
        record(None, order(2, 2), 2, at=float(SECONDS[MAY])),
        record(None, order(3, 3), 3, at=float(SECONDS[MARCH])),
    )

    assert shop.load_export("april", APRIL, order(1, 10)).code == 0
    assert shop.totals() == (2, 12, 3)


def test_record_of_the_second_of_an_export_that_fits_on_neither_side_is_refused(shop):
    shop.load_export("april", APRIL, order(1, 10))

    ran = shop.replay(record(order(1, 3), order(1, 4), 1, at=float(SECONDS[APRIL])), code=1)

    assert shop.totals() == (1, 10, 0)
    assert "neither of its images is that item" in ran.out + ran.err


def test_incremental_export_is_applied_with_its_removals(shop):
    shop.load_export("march", MARCH, *(order(number, number) for number in (1, 2, 3)))
    written = SECONDS[MARCH] * 1_000_000 + 5

    def line(number, old, new):
        keys = encode({"PK": f"ORDER#{number}", "SK": "METADATA"})["M"]
        return keys, *(each and encode(order(number, each))["M"] for each in (old, new)), written

    for both in (True, False):
        changes = (line(2, 2, 20), line(3, 3, None), line(4, None, 40))
        place = write_incremental(shop.path / f"both{both}", changes, MARCH, APRIL, both=both)
        ran = shop.run("backfill", *STATE, "--export", place, "--load")
        assert (ran.code, shop.totals()) == (0, (3, 61, 0))
        assert "Warning" not in ran.err


def test_incremental_export_behind_a_gap_is_applied_with_a_warning(shop):
    shop.load_export("march", MARCH, order(1, 1))
    keys = encode({"PK": "ORDER#1", "SK": "METADATA"})["M"]
    changes = [(keys, None, encode(order(1, 5))["M"], SECONDS[APRIL] * 1_000_000 + 5)]

    ran = shop.run("backfill", *STATE, "--export", write_incremental(shop.path / "may", changes, APRIL, MAY), "--load")

    assert (ran.code, shop.totals()) == (0, (1, 5, 0))
    assert f"no export of this state shows what changed after {MARCH}, up to {APRIL}" in ran.err


@pytest.mark.parametrize("time", [None, "yesterday", "2026-03-01T00:00:00", 1_772_323_200_000, True])
def test_export_without_a_time_is_refused_and_leaves_no_state(shop, time):
    ran = shop.load_export("march", time, order(1, 1))

    assert ran.code == 2
    assert "expected the time of the export, such as 2026-03-01T00:00:00Z" in ran.err
    assert not (shop.path / "state.db").exists()


@pytest.mark.parametrize(
    "time", [SECONDS[MARCH], str(SECONDS[MARCH]), f"{SECONDS[MARCH]}.25", "2026-03-01T01:00:00+01:00"]
)
def test_time_of_an_export_may_be_a_number_or_a_text(shop, time):
    assert shop.load_export("march", time, order(1, 1)).code == 0
    assert shop.totals() == (1, 1, 0)


def test_derived_rows_of_an_export_are_not_taken_for_items(shop):
    total = {"PK": "ALL", "SK": "ORDERS", "orders": 7, "total": 700, "_sf_n": 7}

    assert shop.load_export("march", MARCH, order(1, 1), total).code == 0
    assert shop.totals() == (1, 1, 0)


def test_all_items_of_an_export_of_several_files_are_derived_from(shop):
    numbers = range(1, 40)

    ran = shop.load_export("march", MARCH, *(order(number, number) for number in numbers), files=3)

    assert (ran.code, shop.totals()) == (0, (len(numbers), sum(numbers), 0))
    assert shop.run("verify", "--full", *STATE).code == 0


@pytest.mark.ci
def test_export_of_a_table_leads_to_the_rows_of_its_recordings_and_they_add_their_changes_behind_it(tmp_path):
    names = ("social", "tickets", "music", "catalogue")
    files = [path for path in EVENTS if path.stem in names]
    replayed, loaded = tmp_path / "replayed.db", tmp_path / "loaded.db"
    assert streamfold("replay", *files, "--state", replayed).code == 0
    engine = EmbeddedEngine(recorded, replayed)
    items = [each for table in recorded.tables.values() for each in exported(engine, table)]
    engine.close()
    place = write_export(tmp_path / "export", items, time="2026-03-20T00:00:00Z", files=3)

    def rows(state, *, audits):
        found = shown(streamfold("show", "--state", state, "--json"))
        return {row for row in found if audits or not dict(row)["PK"][1].startswith("AUDIT#")}

    assert streamfold("backfill", "--state", loaded, "--export", place, "--load").code == 0
    assert rows(loaded, audits=False) == rows(replayed, audits=False)
    assert streamfold("replay", *files, "--state", loaded).code == 0
    assert rows(loaded, audits=True) == rows(replayed, audits=True)
