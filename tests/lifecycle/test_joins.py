"""Items brought to the items that are derived with them: what a task gives, and how much it holds."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import App, Every, Key, Lookup, Newest, Router, Row
from streamfold.commit import collections
from streamfold.commit.collections import RootItem, ranges_of, read_ranges
from streamfold.lifecycle import joins
from streamfold.lifecycle.exports import ExportLine
from streamfold.lifecycle.joins import Brought, Joins, answered, name_of, together
from streamfold.lifecycle.row_sums import items_engine
from streamfold.records.values import encode
from tests.helpers.records import item

ROOT = Key("P#{p}", "ROOT#{root}")
PART = Key("P#{p}", "PART#{root}#{n}")
INNER = Key("P#{p}", "PART#{root}#{n}#INNER")
LINE = Key("LINE#{n}", "META")
PRODUCT = Key("PRODUCT#{product}", "META")
router = Router()


@router.index(ROOT, into=Key("EVERY#{p}#{root}", "ROW"), parts=[Every(PART), INNER])
def every(root, parts):
    return Row(n=1)


@router.index(ROOT, into=Key("NEWEST#{p}#{root}", "ROW"), parts=[Newest(PART, 3)], optional=True)
def newest(root, parts):
    return Row(n=1)


@router.index(LINE, into=Key("PRICED#{n}", "ROW"), lookup={"item": Lookup(PRODUCT, reads=["price"])})
def priced(line, item):
    return Row(n=1)


APP = App("shop", routers=[router])
JOINS = Joins(APP, APP.routes)
ROOTS = st.sampled_from(["a", "a#b", "b", ""])
SORTS = st.one_of(
    st.builds("ROOT#{}".format, ROOTS),
    st.builds("PART#{}#{}{}".format, ROOTS, st.integers(0, 15), st.sampled_from(["", "#INNER", "#OTHER"])),
)


def line(partition, sort, **attributes):
    return ExportLine(("main", partition, sort), encode(item(partition, sort, **attributes))["M"])


def brought(lines):
    """What each root gets of its ranges."""
    pairs = sorted((pair for each in lines for pair in JOINS.ranges(each)), key=lambda pair: pair[0])
    found = {}
    for _, each in JOINS.gathered(pairs):
        found.setdefault(each.to, {})[each.item] = each.image
    return found


@pytest.fixture(scope="module", autouse=True)
def _small():
    """A root with more than six parts has too many."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(collections, "PARTS_MAX", 6)
        patched.setattr(collections, "PAGE_ITEMS", 3)
        patched.setattr(joins, "READ_MAX", 9)
        yield


@given(st.sets(st.tuples(st.sampled_from(["P#1", "P#2"]), SORTS), max_size=60))
def test_a_root_reads_the_same_of_what_is_brought_as_of_its_table(keys):
    lines = [line(*key) for key in keys]
    table = items_engine(APP, {each.key: each.image for each in lines}, 0.0)
    found = brought(lines)
    for root in {each.key for each in lines if each.key[2].startswith("ROOT")} | found.keys():
        own = items_engine(APP, found.get(root, {}), 0.0)
        for route, fields in APP.sources(root):
            if found.get(root) or not route.optional:
                ranges = ranges_of([RootItem(route, root, fields)])
                assert read_ranges(own, ranges) == read_ranges(table, ranges)


def test_no_root_gets_more_parts_than_tell_that_they_are_too_many():
    lines = [line("P#1", "ROOT#a"), *(line("P#1", f"PART#a#{n:03}#OTHER") for n in range(100))]
    assert len(brought(lines)["main", "P#1", "ROOT#a"]) <= 2 * 9


def test_no_root_gets_many_bytes_more_than_its_parts_may_have(monkeypatch):
    monkeypatch.setattr(joins, "PARTS_BYTES_MAX", 1_000)
    lines = [line("P#1", "ROOT#a"), *(line("P#1", f"PART#a#{n}", text="x" * 400) for n in range(9))]
    assert len(brought(lines)["main", "P#1", "ROOT#a"]) == 3 + 3  # the first of all parts, the last of the newest


def test_a_referent_is_held_alone_while_the_items_that_refer_to_it_come():
    referent = ("main", "PRODUCT#p", "META")
    taken = []

    def pairs():
        yield (name_of(referent), "", 0, ""), Brought(referent, referent, {})
        for n in range(1_000_000):
            taken.append(n)
            yield (name_of(referent), "", 1, str(n)), ("main", f"LINE#{n}", "META")

    found = [*islice(answered(pairs()), 3)]
    assert [each.to[1] for _, each in found] == ["LINE#0", "LINE#1", "LINE#2"]
    assert taken == [0, 1, 2]


def test_a_reference_to_no_item_is_answered_by_none_of_another():
    one, other = ("main", "PRODUCT#p", "META"), ("main", "PRODUCT#q", "META")
    pairs = [
        ((name_of(one), "", 0, ""), Brought(one, one, {})),
        ((name_of(other), "", 1, "x"), ("main", "LINE#1", "META")),
    ]
    assert [*answered(pairs)] == []


def test_only_what_is_read_of_a_referent_goes_to_its_items():
    (pair,) = JOINS.asked(line("PRODUCT#p", "META", price=3, text="x" * 10_000, _sf_n=1))
    assert pair[1].image.keys() == {"PK", "SK", "price", "_sf_n"}


def test_an_item_and_what_was_brought_to_it_are_one_group():
    one, other = line("LINE#1", "META", product="p"), line("PRODUCT#p", "META", price=3)
    own = [*JOINS.own(one), *JOINS.own(other)]
    pairs = sorted([((name_of(one.key), "", 1, "r"), Brought(one.key, other.key, other.image)), *own])
    (joined,) = together(pairs)
    assert (joined.item, joined.image, joined.beside) == (one.key, one.image, ((other.key, other.image),))
