"""Records of items and of what they refer to, as they may come: late, redriven, of Kinesis, to groups, in versions."""

from random import Random

import pytest

from streamfold import App, Count, Key, Lookup, Router, Row, Sum
from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.errors import ManifestError
from streamfold.failures.failed_records import Waiting
from streamfold.failures.redrive import Redrive
from streamfold.lifecycle.page import Pages
from streamfold.records.envelope import Origins
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin
from tests.batch.test_lookups import LINE, PRODUCT, SALES, Shop, application
from tests.batch.test_referrers import Parked13, parked_of

SEEDS = range(25)


def redriven(shop, *changes, dry_run=False):
    """The outcomes of these records, as they were parked; fan-outs that they open are worked on."""
    runtime = shop.runtime()
    redrive = Redrive(runtime, Origins(shop.app.source_tables, Settings()), None, dry_run)
    documents = ({"parked": 1, **parked_of(change)._asdict()} for change in changes)
    found = [each.what for document in documents for each in redrive.process(Waiting("x", document))]
    assert run_fan_outs(runtime).failures == []
    return found


def is_right(shop):
    """Whether rows are the sums of the items and products as they are."""
    products = {pk: image and image["category"] for (pk, _), image in shop.items.items() if pk.startswith("PRODUCT#")}
    expected = {}
    for (pk, _), image in shop.items.items():
        category = products.get(f"PRODUCT#{image['product_id']}") if pk.startswith("ORDER#") and image else None
        if category:
            expected[category] = expected.get(category, 0) + image["quantity"]
    return shop.sales() == expected


def drawn(shop, random):
    """A change of a line or of a product."""
    if random.random() < 0.5:
        product_id = random.choice("pq")
        there = shop.items.get((f"PRODUCT#{product_id}", "META"))
        return shop.product(product_id, random.choice(["x", "y", *([None] if there else [])]))
    return shop.line(random.randrange(3), random.choice("pq"), random.randrange(1, 9))


# Redrives.


@pytest.mark.parametrize("inline", [1, 2_000])
def test_records_of_both_sides_that_were_given_up_are_redriven_in_any_order(inline):
    for seed in SEEDS:
        shop, random, given_up = Shop(application(inline=inline)), Random(seed), []
        for _ in range(12):
            change = drawn(shop, random)
            if random.random() < 0.4:
                given_up.append(change)
            else:
                assert shop.process(change) == []
                assert shop.fan_out() == []
        random.shuffle(given_up)
        redriven(shop, *given_up, *given_up[:2])
        assert is_right(shop), seed


def test_a_redriven_record_of_an_item_is_of_both_sides_as_they_are_now():
    shop = Shop()
    shop.process(shop.product("p", "x"))
    lost = [shop.line(1, "p", 3), shop.product("p", "y")]
    assert redriven(shop, lost[0], dry_run=True) == ["applied"]
    assert (shop.sales(), shop.backlinks()) == ({}, {})
    assert redriven(shop, lost[0]) == ["applied"]
    assert shop.sales() == {"y": 3}
    assert redriven(shop, *lost) == ["stale", "unchanged"]
    assert shop.sales() == {"y": 3}


def test_a_redriven_record_of_a_referent_in_a_dry_run_writes_nothing():
    shop = Shop()
    shop.process(shop.product("p", "x"), shop.line(1, "p"))
    assert redriven(shop, shop.product("p", "y"), dry_run=True) == ["applied"]
    assert shop.sales() == {"x": 1}


# Kinesis.


def test_late_doubled_and_disordered_records_of_kinesis_lead_to_what_both_sides_are():
    for seed in SEEDS:
        shop, random, kinesis, waiting = Shop(), Random(seed), KinesisTwin(), []
        origins = Origins(shop.app.source_tables, Settings())
        for _ in range(10):
            record = kinesis.append(drawn(shop, random).record)
            waiting += [record] * random.choice([1, 1, 2])
        random.shuffle(waiting)
        while waiting:
            number = random.randrange(1, 4)
            batch, waiting = waiting[:number], waiting[number:]
            assert shop.process(*map(origins.change, batch)) == []
        assert is_right(shop), seed


# Switched off, groups and tenants.


@pytest.mark.parametrize("side", ["line", "product"])
def test_records_of_both_sides_are_parked_while_the_handler_is_off_and_redriven(tmp_path, side):
    found = Parked13(tmp_path)
    shop = found.shop
    change = shop.line(0, "p", 8) if side == "line" else shop.product("p", "z")
    off = Runtime(shop.app, shop.store, Settings(handlers_off=("sales",)), pause=lambda _: None, parking=found.parking)
    report = process_changes(off, [change])
    assert (report.failures, dict(report.parked), shop.sales()) == ([], {"sales": 1}, {"x": 17})
    assert [each for each, _ in found.redriven()] == ["applied"]
    assert shop.sales() == ({"x": 24} if side == "line" else {"z": 17})


def test_records_of_both_sides_are_skipped_and_counted_without_a_parking_place():
    shop = Shop()
    shop.process(shop.product("p", "x"), shop.line(1, "p"))
    off = Runtime(shop.app, shop.store, Settings(handlers_off=("sales",)), pause=lambda _: None)
    report = process_changes(off, [shop.line(1, "p", 2), shop.product("p", "y")])
    assert (dict(report.off), shop.sales()) == ({"sales": 2}, {"x": 1})
    assert shop.process(shop.line(1, "p", 3)) == []  # it catches up with its next change
    assert shop.sales() == {"y": 3}


def grouped():
    """Handlers of two groups, which look up the same."""
    router = Router()
    for group in ("main", "names"):
        into = Key(f"{group.upper()}#{{category}}", "SALES")
        router.view(LINE, into=into, lookup={"product": PRODUCT}, name=group, group=group)(
            lambda line, product: Row(category=product["category"], units=Sum(line["quantity"]))
        )
    return Shop(App("shop", routers=[router]))


def test_the_function_of_each_group_gets_the_records_of_both_sides():
    shop = grouped()

    def process(group, *changes):
        runtime = Runtime(shop.app, shop.store, Settings(group=group), pause=lambda _: None)
        assert process_changes(runtime, changes).failures == []

    first = [shop.product("p", "x"), shop.line(1, "p", 3)]
    process("main", *first)
    process("names", *first)
    second = [shop.product("p", "y")]
    process("main", *second)
    rows = {key[1]: row["units"]["N"] for key, row in shop.engine.rows.items() if row["_sf_n"] != {"N": "0"}}
    assert rows == {"MAIN#y": "3", "NAMES#x": "3"}
    process("names", *second)
    rows = {key[1]: row["units"]["N"] for key, row in shop.engine.rows.items() if row["_sf_n"] != {"N": "0"}}
    assert rows == {"MAIN#y": "3", "NAMES#y": "3"}


def test_items_of_a_tenant_look_up_items_of_that_tenant_alone():
    line, product = Key("T#{tenant}#ORDER#{order_id}", "{sku}"), Key("T#{tenant}#PRODUCT#{product_id}", "META")
    router = Router()
    router.view(line, into=Key("T#{tenant}#CATEGORY#{category}", "SALES"), lookup={"product": product}, name="sales")(
        lambda line, product: Row(category=product["category"], units=Sum(1))
    )
    shop = Shop(App("shop", routers=[router], tenant="tenant"))
    for tenant, category in (("a", "x"), ("b", "y")):
        shop.process(
            shop.write(f"T#{tenant}#PRODUCT#p", "META", {"category": category}),
            shop.write(f"T#{tenant}#ORDER#1", "s", {"product_id": "p"}),
        )
    shop.process(shop.write("T#a#PRODUCT#p", "META", {"category": "z"}))
    rows = {key[1] for key, row in shop.engine.rows.items() if row["_sf_n"] != {"N": "0"}}
    assert rows == {"T#a#CATEGORY#z", "T#b#CATEGORY#y"}


# Two versions of the code.


def versions():
    """The code with the lookup, and the one before: a handler of the same name without it, and one beside it."""
    new, old, other = Router(), Router(), Router()
    plain = lambda line: Row(category="all", units=Sum(line["quantity"]), lines=Count())  # noqa: E731
    looks = lambda line, product: Row(category=product["category"], units=Sum(line["quantity"]), lines=Count())  # noqa: E731
    new.view(LINE, into=SALES, lookup={"product": Lookup(PRODUCT, reads=["category"])}, name="sales")(looks)
    old.view(LINE, into=SALES, name="sales")(plain)
    other.view(LINE, into=Key("ALL", "LINES"), name="lines")(lambda line: Row(lines=Count()))
    return {name: App("shop", routers=[router, other]) for name, router in (("new", new), ("old", old))} | {
        "without": App("shop", routers=[other])
    }


def process(shop, app, *changes, **settings):
    runtime = Runtime(app, shop.store, Settings(**settings), pause=lambda _: None)
    return process_changes(runtime, changes).failures


def test_code_of_before_takes_records_until_the_lookup_is_in_the_manifest_and_is_stopped_then():
    apps = versions()
    shop = Shop(apps["old"])
    before = [shop.product("p", "x"), shop.line(1, "p"), shop.line(2, "p")]
    assert process(shop, apps["old"], *before) == []
    late = shop.line(1, "p", 3)
    assert process(shop, apps["new"], shop.line(2, "p", 4)) == []
    for older in (False, True):
        with pytest.raises(ManifestError, match="changed its targets"):
            process(shop, apps["old"], late, older_code=older)
    assert process(shop, apps["new"], late) == []
    assert is_right(shop)


def test_code_without_the_handler_visits_nobody_so_that_the_handler_is_partial_until_a_backfill():
    apps = versions()
    shop = Shop(apps["new"])
    assert process(shop, apps["new"], shop.product("p", "x"), shop.line(1, "p")) == []
    with pytest.raises(ManifestError, match="STREAMFOLD_OLDER_CODE"):
        process(shop, apps["without"])
    assert process(shop, apps["without"], shop.product("p", "y"), shop.line(2, "p"), older_code=True) == []
    assert shop.sales() == {"x": 1}  # neither the change of the product nor the new line
    Pages(shop.runtime(), {"sales"}).reconcile([("main", f"ORDER#{number}", "ITEM#a") for number in (1, 2)])
    assert is_right(shop)
    assert process(shop, apps["new"], shop.product("p", "z")) == []
    assert is_right(shop)


def test_a_wider_reads_of_newer_code_makes_rows_right_once_each_item_was_written_or_rebuilt():
    def of(*reads):
        router = Router()
        lookup = {"product": Lookup(PRODUCT, reads=reads)}
        router.view(LINE, into=SALES, lookup=lookup, name="sales")(
            lambda line, product: Row(
                category=product["category"] + str(product.get("size", "") if "size" in reads else ""),
                units=Sum(1),
                lines=Count(),
            )
        )
        return App("shop", routers=[router])

    narrow, wide = of("category"), of("category", "size")
    shop = Shop(narrow)
    process(shop, narrow, shop.product("p", "x", size=1), shop.line(1, "p"), shop.line(2, "p"))
    process(shop, wide, shop.line(1, "p", 2))
    process(shop, narrow, shop.product("p", "x", size=2))  # code of before passes over what it does not read
    assert shop.sales() == {"x": 1, "x1": 1}
    shop.app = wide
    Pages(shop.runtime(), {"sales"}).reconcile([("main", f"ORDER#{number}", "ITEM#a") for number in (1, 2)])
    process(shop, wide, shop.product("p", "x", size=3))
    assert shop.sales() == {"x3": 2}
