"""Wrong arguments of a test are refused at once, with the expected ones."""

import pytest

from streamfold.testing import Twin, TwinError, change, check
from tests.helpers import everything
from tests.helpers.everything import ORDER_ITEM, app

MODULE = "is no application: expected its app, from tests.helpers.everything import app."
NO_KEY = "was given 'ORDER#1' of type str: expected a key of the application, the Key itself and neither its name nor"
MISTAKES = {
    "a module is no application": (lambda: Twin(everything), MODULE),
    "a module cannot be proved": (lambda: check(everything, {ORDER_ITEM: {}}), MODULE),
    "nothing is no application": (lambda: Twin(None), "is no application: expected App(..., routers=[...])."),
    "a text is no key to put": (lambda: Twin(app).put("ORDER#1", order_id="1"), f"twin.put() {NO_KEY}"),
    "a text is no key of rows": (lambda: Twin(app).rows("ORDER#1"), f"twin.rows() {NO_KEY}"),
    "a text is no key of a row": (lambda: Twin(app).row("ORDER#1", order_id="1"), f"twin.row() {NO_KEY}"),
    "a text is no key to delete": (lambda: Twin(app).delete("ORDER#1"), f"twin.delete() {NO_KEY}"),
    "a text is no key to expire": (lambda: Twin(app).expire("ORDER#1"), f"twin.expire() {NO_KEY}"),
    "a text is no key of a change": (lambda: change("ORDER#1", new={}), f"change() {NO_KEY}"),
    "a number is no example": (lambda: check(app, {ORDER_ITEM: 5}), "items= has 5 of type int for "),
    "a text is no example": (lambda: check(app, {ORDER_ITEM: "{}"}), "items= has '{}' of type str for "),
    "a list of numbers has no example": (lambda: check(app, {ORDER_ITEM: [5]}), "items= has 5 of type int for "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_what_was_expected(mistake):
    make, said = MISTAKES[mistake]
    with pytest.raises(TwinError) as told:
        make()
    assert said in str(told.value)


def test_examples_may_come_one_after_another():
    order = {"price": 2, "quantity": 3, "day": "2026-03-01", "tags": [], "customer": "ana"}
    assert check(app, {ORDER_ITEM: (dict(order) for _ in range(2))}, histories=1, processes=0).histories == 1


def test_a_recorded_file_that_is_not_there_is_told():
    with pytest.raises(TwinError, match=r"File nope\.jsonl does not exist: expected a recorded file"):
        check(app, recorded="nope.jsonl")
