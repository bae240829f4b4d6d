"""Items on which a handler raises: one that was given fails the proof, those that were drawn are counted in it."""

import json
from decimal import Decimal

import pytest
from hypothesis import strategies as st

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.testing import HandlerFails, Write, check
from tests.helpers.records import change, item

LINE = Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")


def app_with(function):
    router = Router()
    router.view(LINE, into=TOTAL)(function)
    return App("shop", routers=[router])


def total(line):
    yield Row(total=Sum(line["p"] * line["q"]), lines=Count())


def taxed(line):
    yield Row(tax=Sum(line["p"] * 19 / 100))


def by_number(line, order_id):
    yield Row(total=Sum(int(order_id)))


def per_piece(line):
    yield Row(each=Sum(line["p"] / 3))


def test_an_example_on_which_a_handler_raises_fails_the_proof_with_the_example_and_the_line():
    with pytest.raises(HandlerFails) as raised:
        check(app_with(total), {LINE: [{"p": 3, "q": 2}, {"p": 3}]})
    said = str(raised.value)
    assert said.startswith("An item that was given cannot be processed: handler 'total' (")
    line = total.__code__.co_firstlineno + 1
    assert f"test_examples.py:{line}), item ORDER#1 / LINE#1: AttributeMissing: " in said
    assert "{'p': 3}" in said


def test_an_example_is_tried_with_its_own_key():
    examples = [{"order_id": "1"}, {"order_id": "x"}]
    with pytest.raises(HandlerFails, match=r"given cannot be processed: .*item ORDER#x / LINE#1: ValueError"):
        check(app_with(by_number), {LINE: examples})


def test_what_a_handler_yields_is_looked_at_as_production_does():
    def with_share(line):
        yield Row(attributes={"sku": "a", "share": 0.5})

    router = Router()
    router.view(LINE, into=Key("ORDER#{order_id}", "CARD#{sku}"))(with_share)
    with pytest.raises(HandlerFails, match="given cannot be processed: handler 'with_share'"):
        check(App("shop", routers=[router]), {LINE: {"p": 1}})


def test_items_that_were_drawn_and_are_refused_are_counted_with_one_of_them():
    proof = check(app_with(taxed), {LINE: {"p": Decimal("1.5")}}, histories=2)
    (left,) = [each for each in proof.left_out if "drawn" in each]
    assert left.startswith("2 of 3 items of Key('ORDER#{order_id}', 'LINE#{sku}') that were drawn, on which")
    assert "one of them is {'p': Decimal('3.0')}: handler 'taxed' (" in left
    assert f"\n  left out: {left}" in str(proof)


def test_a_strategy_whose_items_are_all_taken_leaves_none_out():
    proof = check(app_with(total), {LINE: st.fixed_dictionaries({"p": st.just(2), "q": st.just(1)})}, histories=1)
    assert not [each for each in proof.left_out if "drawn" in each]


def test_a_strategy_of_which_no_item_is_taken_fails_the_proof():
    with pytest.raises(HandlerFails, match="None of the items that were drawn can be processed"):
        check(app_with(total), {LINE: st.fixed_dictionaries({"p": st.just(2)})})


def test_images_of_a_recording_are_given(tmp_path):
    file = tmp_path / "lines.jsonl"
    records = [change(None, item("ORDER#1", "LINE#a", **line), n).record for n, line in enumerate([{"p": 1}], 1)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(HandlerFails, match=r"given cannot be processed: handler 'total' .*item ORDER#1 / LINE#a"):
        check(app_with(total), recorded=file)


def test_a_number_that_38_digits_do_not_hold_is_told_with_the_remedy():
    writes = [Write(LINE, {"order_id": "1", "sku": "a"}, {"p": Decimal("0.1")})]
    for given in ({"items": {LINE: {"p": Decimal("0.1")}}}, {"writes": writes}):
        with pytest.raises(HandlerFails, match=r"'per_piece' \(.*computed a number that 38 digits .*rounded\(n"):
            check(app_with(per_piece), **given)


def test_a_sum_over_items_that_38_digits_do_not_hold_is_told_with_its_row():
    def added(line):
        yield Row(total=Sum(line["p"]))

    examples = [{"sku": "a", "p": 10**37}, {"sku": "b", "p": Decimal("0.01")}]
    with pytest.raises(HandlerFails, match=r"row ORDER#\w+ / TOTAL: .* 38 digits") as raised:
        check(app_with(added), {LINE: examples}, histories=200)
    assert "Inexact" not in str(raised.value).partition("38 digits")[0]
