"""What a version of the code makes of an item is what the item alone would show its readers."""

import pytest

from streamfold.ledger.schema import Schema
from streamfold.lifecycle.diff import RaisedError, SideRows, row_at, side_rows
from streamfold.proofs.oracle import folded_rows, stored_rows
from streamfold.records.values import encode
from tests.helpers.backfill_histories import IMAGES, application
from tests.helpers.records import item

APP = application(new=True)


@pytest.mark.parametrize("image", IMAGES)
def test_rows_of_one_item_are_those_of_its_fold(image):
    whole = item("ITEM#1", "METADATA", **image)
    folded = folded_rows(APP, {("main", "ITEM#1", "METADATA"): whole})
    made = side_rows(APP, Schema(), "main", encode(whole)["M"])
    found = {row_at(place): row for rows in made.rows.values() for place, row in rows.items()}
    assert found == stored_rows(APP, ((key, encode(row)["M"]) for key, row in folded.items()))
    assert SideRows.of(made.line()) == made


def test_only_wanted_handlers_are_asked_and_one_that_raises_fails_alone():
    image = encode(item("ITEM#1", "METADATA", group="x", amount=2))["M"]
    made = side_rows(APP, Schema(), "main", image, {"total", "name"})
    assert list(made.rows) == ["total"]
    assert made.raised["name"].type == "AttributeMissing"
    assert isinstance(SideRows.of(made.line()).raised["name"], RaisedError)


def test_items_of_another_table_or_with_other_keys_are_nobodys():
    assert side_rows(APP, Schema(), "other", {}) == side_rows(APP, Schema(), "main", {"id": {"S": "1"}}) == ({}, {})
