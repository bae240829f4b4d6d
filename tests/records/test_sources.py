"""Which of two states of an item is newer: two records by version, an export by time, within a second by images."""

import pytest

from streamfold.keys.table import MAIN
from streamfold.records.change import Change, Origin
from streamfold.records.sources import (
    ImageOrder,
    SourceImage,
    StoredSource,
    digest_of,
    kept,
    order_of,
    source_of,
    split,
)
from streamfold.records.values import encode
from tests.helpers.records import VERSION_PREFIX, item, record

ITEM = ("main", "ORDER#1", "METADATA")
SECOND, AT = 1_000_000, 1_772_355_600_000_000
KINESIS = "00/kinesis/"


def image(total):
    return None if total is None else encode(item("ORDER#1", total=total))["M"]


def of_record(old, new, at=AT, version="00/2026-03-01T09:00:00.000/5"):
    return SourceImage(ITEM, image(new), version, at, image(old))


def of_export(new, at=AT, **more):
    return SourceImage(ITEM, image(new), "0", at, exported=True, **more)


def stored(incoming, before=None):
    return kept(incoming, before)


def change(old, new, sequence, at=AT // SECOND):
    made = record(image_of(old), image_of(new), sequence, at=float(at))
    return Change(made, Origin(MAIN, VERSION_PREFIX))


def image_of(total):
    return None if total is None else item("ORDER#1", total=total)


def test_two_records_compare_by_version_whatever_their_times():
    first = stored(of_record(None, 1, AT, "00/a/1"))

    assert order_of(of_record(1, 2, AT - 9 * SECOND, "00/a/2"), first) is ImageOrder.NEWER
    assert order_of(of_record(1, 2, AT + 9 * SECOND, "00/a/1"), first) is ImageOrder.OLDER


@pytest.mark.parametrize(
    ("old", "new", "seconds", "order"),
    [
        (1, 2, 1, ImageOrder.NEWER),
        (1, 2, -1, ImageOrder.OLDER),
        (3, 7, 0, ImageOrder.KNOWN),
        (7, 8, 0, ImageOrder.NEWER),
        (1, 2, 0, ImageOrder.UNCLEAR),
        (7, None, 0, ImageOrder.NEWER),
        (3, None, 0, ImageOrder.UNCLEAR),
    ],
)
def test_record_beside_an_export_compares_by_whole_seconds_and_within_one_by_its_images(old, new, seconds, order):
    export = stored(of_export(7, AT + 400_000))

    assert order_of(of_record(old, new, AT + seconds * SECOND), export) is order


@pytest.mark.parametrize(
    ("total", "microseconds", "order"),
    [
        (9, SECOND, ImageOrder.NEWER),
        (9, -1, ImageOrder.OLDER),
        (7, 400_000, ImageOrder.KNOWN),
        (3, 400_000, ImageOrder.OLDER),
        (9, 400_000, ImageOrder.UNCLEAR),
    ],
)
def test_export_beside_a_record_compares_by_whole_seconds_and_within_one_by_the_records_images(
    total, microseconds, order
):
    assert order_of(of_export(total, AT + microseconds), stored(of_record(3, 7))) is order


def test_item_that_an_export_lacks_is_known_to_a_removal_and_older_than_an_insertion_of_its_second():
    gone = StoredSource("", None, AT, "", exported=True)

    assert order_of(of_record(5, None), gone) is ImageOrder.KNOWN
    assert order_of(of_record(None, 5), gone) is ImageOrder.NEWER


def test_two_exports_compare_by_microseconds():
    first = stored(of_export(7))

    assert order_of(of_export(8, AT + 1), first) is ImageOrder.NEWER
    assert order_of(of_export(8, AT - 1), first) is ImageOrder.OLDER
    assert order_of(of_export(7), first) is ImageOrder.KNOWN
    assert order_of(of_export(8), first) is ImageOrder.UNCLEAR
    assert order_of(of_export(8, old=image(7)), first) is ImageOrder.NEWER


def test_record_of_kinesis_compares_with_an_export_by_microseconds():
    export = stored(of_export(7, AT + 400_000))

    for microseconds, order in ((399_999, ImageOrder.OLDER), (400_001, ImageOrder.NEWER)):
        at = AT + microseconds
        assert order_of(of_record(1, 2, at, f"{KINESIS}{at:021}"), export) is order


def test_known_record_keeps_the_item_and_gives_it_its_version():
    export = stored(of_export(7, AT + 400_000))
    known = stored(of_record(3, 7), export)

    assert known == export._replace(version="00/2026-03-01T09:00:00.000/5")
    assert order_of(of_record(1, 3, AT, "00/2026-03-01T09:00:00.000/4"), known) is ImageOrder.OLDER


def test_record_of_an_older_stream_is_not_lost_behind_an_export_that_is_newer_than_its_label():
    export = stored(of_export(7))

    assert order_of(of_record(7, 8, AT + SECOND, "00/2025-01-01T00:00:00.000/1"), export) is ImageOrder.NEWER


def test_images_are_alike_whatever_is_derived_onto_them_and_in_whatever_order():
    one = {**image(7), "tags": {"SS": ["a", "b"]}}
    other = {
        "tags": {"SS": ["b", "a"]},
        **image(7),
        "count": {"N": "3"},
        "_sf_a": {"M": {"shop/sums": {"SS": ["count"]}}},
    }

    assert digest_of(one) == digest_of(other)
    assert digest_of(None) == digest_of({}) == ""


def test_time_that_is_not_known_leaves_the_order_to_the_images():
    export = stored(of_export(7))

    assert order_of(of_record(7, 8, None), export) is ImageOrder.NEWER
    assert order_of(of_record(1, 7, None), export) is ImageOrder.KNOWN
    assert order_of(of_record(1, 2, None), export) is ImageOrder.UNCLEAR


def test_changes_of_the_second_of_an_export_are_sorted_by_the_one_that_began_from_its_item():
    export = stored(of_export(2, AT + 400_000))
    changes = [change(None, 1, 1), change(1, 2, 2), change(2, 3, 3), change(3, 4, 4)]

    newer, known, unclear = split(list(reversed(changes)), export)

    assert [newer, known, unclear] == [changes[2:], changes[:2], []]


def test_change_of_the_second_of_an_export_that_begins_and_ends_elsewhere_is_unclear():
    export = stored(of_export(9, AT + 400_000))
    changes = [change(None, 1, 1), change(1, 2, 2, AT // SECOND + 1)]

    assert split(changes, export) == (changes[1:], [], changes[:1])


def test_source_of_a_change_has_the_time_of_its_record():
    found = source_of(change(1, 2, 5))

    assert (found.at, found.raw, found.old) == (AT, image(2), image(1))
