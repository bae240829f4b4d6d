"""Lookups of what is too many, too large, absent or wrong: the message, or that it is right all the same."""

import json

import pytest

from streamfold import App, Count, Key, Lookup, Router, Row, Sum
from streamfold.batch.fan_outs import run_fan_outs
from streamfold.errors import HandlerError, ManifestError
from streamfold.failures.repair import Repair
from streamfold.jobs.fan_outs import FanOuts
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.retire import Retirement
from streamfold.parking import FileParking
from streamfold.records.change import Change, Origin
from streamfold.routes.lookups import INLINE
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.batch.test_lookups import LINE, OWN, PRODUCT, SALES, Shop, application
from tests.helpers.looked_up import FOLDER, made, parent_of_folder

PRODUCT_P = ("main", "PRODUCT#p", "META")


def shop_of(function, *, lookup=None, into=SALES, **options):
    router = Router()
    router.view(LINE, into=into, lookup=lookup or {"product": PRODUCT}, name="sales", **options)(function)
    return Shop(App("shop", routers=[router]))


# Too many.


def test_two_lookups_of_one_key_that_lead_to_one_item_have_one_backlink_and_one_visit():
    lookup = {"one": PRODUCT, "two": Lookup(PRODUCT, product_id="other_id", optional=True)}

    def sales(line, one, two):
        return Row(category=f"{one['category']}{two['category'] if two else '-'}", units=Sum(1))

    shop = shop_of(sales, lookup=lookup)
    both = {"product_id": "p", "other_id": "p"}
    shop.process(shop.product("p", "x"), shop.product("q", "y"), shop.write("ORDER#1", "ITEM#a", both))
    assert (shop.sales(), shop.backlinks()) == ({"xx": 1}, {"main#S#PRODUCT#p|S#META": 1})
    shop.process(shop.product("p", "z"))
    assert shop.sales() == {"zz": 1}
    shop.process(shop.write("ORDER#1", "ITEM#a", both | {"other_id": "q"}))
    shop.process(shop.product("q", "w"))
    assert (shop.sales(), sum(shop.backlinks().values())) == ({"zw": 1}, 2)
    shop.process(shop.write("ORDER#1", "ITEM#a", {"product_id": "q", "other_id": "gone"}))
    assert shop.sales() == {"w-": 1}
    assert shop.backlinks() == {"main#S#PRODUCT#q|S#META": 1, "main#S#PRODUCT#gone|S#META": 1}


def test_a_repair_of_a_referent_with_more_referrers_than_a_batch_visits_is_handed_on():
    shop = Shop()
    shop.process(shop.product("p", "x"), *(shop.line(number, "p") for number in range(INLINE + 1)))
    assert INLINE == 2_000
    shop.product("p", "y")  # its record is lost for good
    runtime = shop.runtime()
    (repaired,) = Repair(runtime).item(PRODUCT_P)
    assert (repaired.error, repaired.handed_on, shop.sales()) == (None, True, {"x": 2_001})
    run_fan_outs(runtime)
    assert shop.sales() == {"y": 2_001}


def test_referents_beyond_what_a_batch_visits_are_handed_on_each_by_itself():
    shop = Shop(application(inline=3))
    products = [shop.product(f"p{number}", "x") for number in range(5)]
    shop.process(*products, *(shop.line(number, f"p{number}") for number in range(5)))
    assert shop.process(*(shop.product(f"p{number}", "y") for number in range(5))) == []
    assert (shop.sales(), len(shop.queued)) == ({"x": 2, "y": 3}, 2)
    assert (shop.fan_out(), shop.sales()) == ([], {"y": 5})


def test_a_batch_whose_items_refer_to_2_001_others_reads_each_once():
    shop = Shop()
    shop.process(*(shop.product(f"p{number}", "x") for number in range(2_001)))
    shop.store.calls.clear()
    shop.process(*(shop.line(number, f"p{number}") for number in range(2_001)))
    assert shop.sales() == {"x": 2_001}
    assert sum(call.requests for call in shop.store.named("read_sources")) == 21  # of 100 keys at most


# Too large.


def test_a_reference_of_two_kilobytes_is_followed_as_far_as_a_key_may_be_long():
    shop = Shop()
    long = "p" * (2_048 - len("PRODUCT#"))
    shop.process(shop.product(long, "x"), shop.line(1, long))
    shop.process(shop.product(long, "y"))
    assert shop.sales() == {"y": 1}
    too_long = shop.line(1, long + "p")
    (failure,) = shop.process(too_long)
    assert isinstance(failure.error, HandlerError)
    assert "Lookup 'product' makes no key of" in str(failure.error)
    assert "2049 bytes" in str(failure.error)
    assert "p" * 100 not in failure.reason  # as a log has it


def test_a_referent_of_400_kilobytes_is_read_and_not_stored():
    shop = Shop()
    shop.process(shop.product("p", "x", text="t" * 399_000), shop.line(1, "p"))
    assert shop.process(shop.product("p", "y", text="u" * 399_000)) == []
    assert shop.sales() == {"y": 1}
    assert max(len(str(held)) for held in shop.engine.state.values()) < 3_000


@pytest.mark.parametrize("on_error", ["retry", "park"])
def test_a_row_that_is_too_large_because_of_a_referent_fails_its_item_alone(on_error, tmp_path):
    def texts(line, product):
        return Row(text=product["text"], own=line.get("own", ""))

    shop = shop_of(texts, into=OWN, on_error=on_error)
    own = {"product_id": "p", "own": "o" * 200_000}
    shop.process(
        shop.product("p", "x", text="small"), shop.line(1, "p"), shop.write("ORDER#2", "ITEM#a", own), shop.line(3, "p")
    )
    large = shop.product("p", "x", text="t" * 300_000)
    place = tmp_path / "parked.jsonl"
    failures = shop.process(large, parking=FileParking(str(place)))
    message = "The row has 500007 bytes; DynamoDB takes items of 409600 at most. Store less of it."
    if on_error == "park":
        (document,) = map(json.loads, place.read_text().splitlines())
        assert (failures, document["item"], document["error"]) == ([], "ORDER#2 / ITEM#a", message)
    else:
        assert [(each.sequence, str(each.error)) for each in failures] == [(large.sequence, message)]
    sizes = [len(shop.engine.rows["main", f"LINE#{number}", "a"]["text"]["S"]) for number in (1, 2, 3)]
    assert sizes == [300_000, len("small"), 300_000]


# Absent or wrong.


@pytest.mark.parametrize("derived_onto_it", [True, False])
def test_an_item_that_refers_to_itself_follows_itself(derived_onto_it):
    if derived_onto_it:
        app, key = made(parent_of_folder), None
    else:
        router, key = Router(), ("main", "NAME#m", "ALL")

        @router.view(FOLDER, into=Key("NAME#{name}", "ALL"), lookup={"parent": Lookup(FOLDER, folder_id="parent_id")})
        def names(folder, parent):
            return Row(name=parent["name"], folders=Count())

        app = App("shop", routers=[router])
    shop = Shop(app)
    shop.process(shop.write("FOLDER#a", "META", {"name": "l", "parent_id": "a"}))
    shop.process(shop.write("FOLDER#a", "META", {"name": "m", "parent_id": "a"}))
    assert sum(shop.backlinks().values()) == 1
    if key is None:
        assert shop.engine.read_source(("main", "FOLDER#a", "META"))["parent_name"] == {"S": "m"}
    else:
        assert shop.engine.rows[key]["folders"] == {"N": "1"}
    shop.process(shop.write("FOLDER#a", "META", None))
    assert shop.backlinks() == {}


def test_a_value_that_the_field_does_not_take_fails_the_record_of_its_item():
    number = Key("PRODUCT#{product_id:d}", "META")
    shop = shop_of(lambda line, product: Row(category="x", units=Sum(1)), lookup={"product": number})
    good, bad = shop.line(1, 7), shop.line(2, "seven")
    (failure,) = shop.process(good, bad)
    assert (failure.sequence, "Lookup 'product' makes no key of" in str(failure.error)) == (bad.sequence, True)


def test_an_attribute_outside_of_reads_fails_with_the_corrected_line():
    lookup = {"product": Lookup(PRODUCT, reads=["name"])}
    shop = shop_of(lambda line, product: Row(category=product["category"], units=Sum(1)), lookup=lookup)
    shop.process(shop.product("p", "x"))
    (failure,) = shop.process(shop.line(1, "p"))
    assert 'which reads= does not list: changes of it would not be noticed. Write reads=["category", "name"].' in str(
        failure.error
    )


@pytest.mark.parametrize("view", ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE"])
def test_a_record_of_a_referent_without_both_images_visits_all_that_refer_to_it(view):
    """Nothing shows that it changed outside of reads=, and the images are not used."""
    shop = Shop()
    shop.process(shop.product("p", "x"), shop.line(1, "p"))
    whole = shop.product("p", "y")
    body = {name: value for name, value in whole.record["dynamodb"].items() if not name.endswith("Image")}
    kept = {"NEW_IMAGE": ["NewImage"], "OLD_IMAGE": ["OldImage"]}.get(view, [])
    body |= {name: whole.record["dynamodb"][name] for name in kept} | {"StreamViewType": view}
    record = {**whole.record, "dynamodb": body}
    assert shop.process(Change(record, Origin(whole.table, whole.version_text.rpartition("/")[0] + "/"))) == []
    assert shop.sales() == {"y": 1}


# Other code.


def without_lookup(**options):
    router = Router()
    router.view(LINE, into=SALES, name="sales")(
        lambda line: Row(category="all", units=Sum(line["quantity"]), lines=Count())
    )
    return App("shop", routers=[router], **options)


def with_open_fan_out():
    shop = Shop(application(inline=1))
    shop.process(shop.product("p", "x"), *(shop.line(number, "p") for number in range(3)))
    shop.process(shop.product("p", "y"))
    return shop


def test_a_fan_out_whose_handler_lost_its_lookup_is_stopped_with_the_remedy():
    shop = with_open_fan_out()
    runtime = Runtime(without_lookup(), shop.engine, Settings(), pause=lambda _: None)
    runtime.queued = shop.queued
    with pytest.raises(ManifestError, match=r"'sales' changed its targets .* new name, name=\"sales_2\""):
        run_fan_outs(runtime)
    assert (shop.fan_out(), shop.sales()) == ([], {"y": 3})  # the code of before goes on


def test_a_fan_out_whose_handler_is_retired_waits_for_nobody_and_goes_with_it():
    shop = with_open_fan_out()
    router = Router()
    router.view(LINE, into=Key("OTHER", "ALL"), name="other")(lambda line: Row(lines=Count()))
    app = App("shop", routers=[router], retired=["sales"])
    runtime = Runtime(app, shop.engine, Settings(), pause=lambda _: None)
    runtime.queued = shop.queued
    assert run_fan_outs(runtime).failures == []
    assert len([*FanOuts(runtime).all()]) == 1
    list(Retirement(runtime, "sales", remove=False).go())
    assert [*FanOuts(runtime).all()] == []


def test_a_state_of_older_code_has_no_backlinks_until_each_item_is_written_or_rebuilt():
    shop = Shop(without_lookup())
    shop.process(*(shop.line(number, "p") for number in range(3)))
    shop.app = application()
    shop.process(shop.product("p", "x"))
    assert (shop.sales(), shop.backlinks()) == ({"all": 3}, {})  # nobody refers yet
    shop.process(shop.line(0, "p", 5))
    assert (shop.sales(), sum(shop.backlinks().values())) == ({"all": 2, "x": 5}, 1)
    Pages(shop.runtime(), {"sales"}).reconcile([("main", f"ORDER#{number}", "ITEM#a") for number in range(3)])
    assert (shop.sales(), sum(shop.backlinks().values())) == ({"x": 7}, 3)
    shop.process(shop.product("p", "y"))
    assert shop.sales() == {"y": 7}
