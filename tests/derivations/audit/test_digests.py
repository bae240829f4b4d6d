"""Keyed digests of images and history rows."""

import hmac
from base64 import b64encode
from decimal import Decimal

import pytest

from streamfold.derivations.audit.rows import image_digest, row_digest, same_digest
from streamfold.records.images import Image
from streamfold.records.values import decode, encode
from tests.helpers.records import image, item

KEY = b"k" * 32
ROW = {"PK": "AUDIT#a", "SK": "v", "event": "INSERT", "n": 1, "digests": {"new": "x", "row": "y"}}


def digest(key=KEY, table="main", **attributes):
    return image_digest(key, table, image(item("ORDER#1", **attributes)))


def test_a_digest_is_an_hmac_with_sha_256_over_canonical_json():
    text = b'["image","main",{"PK":{"S":"A"},"SK":{"S":"B"}}]'
    expected = b64encode(hmac.digest(KEY, text, "sha256")).decode().rstrip("=")
    assert image_digest(KEY, "main", image(item("A", "B"))) == expected


def test_equal_images_have_one_digest_however_they_are_spelled():
    one = Image({"n": {"N": "1.50"}, "s": {"SS": ["b", "a"]}, "b": {"B": "eA=="}})
    other = Image({"b": {"B": b"x"}, "s": {"SS": ["a", "b"]}, "n": {"N": "15E-1"}})
    assert image_digest(KEY, "main", one) == image_digest(KEY, "main", other)


@pytest.mark.parametrize(
    "other",
    [{"key": b"l" * 32}, {"table": "other"}, {"n": 2}, {"n": "1"}, {"n": None}, {"n": 1, "m": 1}],
    ids=["key", "table", "value", "type", "null", "attribute"],
)
def test_another_key_table_or_image_has_another_digest(other):
    assert digest(n=1) != digest(**{"n": 1, **other})


def test_an_absent_image_has_none():
    assert image_digest(KEY, "main", image(None)) is None


def test_what_the_framework_and_replication_add_to_an_item_is_no_part_of_it():
    raw = image(item("A")).raw
    assert image_digest(KEY, "main", Image({**raw, "aws:rep:updatetime": {"N": "1"}})) == image_digest(
        KEY, "main", Image(raw)
    )
    assert row_digest(KEY, {**ROW, "aws:rep:deleting": False}) == row_digest(KEY, ROW)


@pytest.mark.parametrize(
    "edit",
    [{"SK": "w"}, {"event": "REMOVE"}, {"n": Decimal("1.5")}, {"more": 1}, {"digests": {"row": "y"}}],
    ids=["key", "value", "number", "attribute", "digest of an image"],
)
def test_every_part_of_a_row_but_its_own_digest_counts(edit):
    assert row_digest(KEY, {**ROW, **edit}) != row_digest(KEY, ROW)
    assert row_digest(KEY, {**ROW, "digests": {"new": "x"}}) == row_digest(KEY, ROW)


def test_a_row_that_was_stored_has_the_digest_that_it_was_given():
    assert row_digest(KEY, decode(encode(ROW))) == row_digest(KEY, ROW)


@pytest.mark.parametrize("found", [None, 5, "", "y", "\u00fc", b"x"])
def test_what_is_no_digest_is_not_the_one_expected(found):
    assert not same_digest(found, "x")


def test_the_digest_expected_is():
    assert same_digest("x", "x")
