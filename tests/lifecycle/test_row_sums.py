"""What items add up to in pieces, joined in any order: the rows that the same items make in a state."""

from functools import reduce
from random import Random

import pytest

from streamfold import App, Count, Key, Latest, Min, Router, Row, Sum, Top
from streamfold.batch.process import process_changes
from streamfold.derivations.expected import RowDifference
from streamfold.engines import MemoryEngine
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.exports import ExportLine
from streamfold.lifecycle.row_sums import ItemError, RowSum, compared, contributed, joined
from streamfold.records.values import encode
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
TOTAL = Key("TOTAL#{group}", "TOTAL")


@pytest.fixture
def app():
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def total(item, item_id):
        if item["amount"] == 13:
            raise LookupError("no 13")
        yield Row(group=item["group"], total=Sum(item["amount"]))
        if item["amount"] % 2:
            yield Row(group="odd", best=Top(2, item_id, by=item["amount"]), least=Min(item["amount"]), n=Count())

    @router.view(ITEM, into=TOTAL)
    def count(item):
        yield Row(group=item["group"], items=Count(), last=Latest(item["amount"], by=item["amount"]))

    @router.index(ITEM, into=Key("OWN#{item_id}", "OWN"))
    def own(item):
        return Row(amount=item["amount"])

    @router.view(TOTAL, into=Key("ALL", "ALL"))
    def groups(row):
        return Row(groups=Count())

    return App("shop", routers=[router])


@pytest.fixture
def lines(app):
    """All items and rows of a table, as an export has them."""
    engine = MemoryEngine(app.tables.values(), app.chains)
    amounts = [n for n in range(1, 31) if n != 13]
    changes = [change(None, item(f"ITEM#{n}", "METADATA", group=f"g{n % 3}", amount=n), n) for n in amounts]
    engine.put_sources(newest_sources(changes))
    assert not process_changes(Runtime(app, engine, Settings()), changes).failures
    for each in engine.pending(1_000):
        assert not app.process({"Records": [each.record]}, engine=engine)
    return [ExportLine(("main", each["PK"]["S"], each["SK"]["S"]), each) for each in engine.items(app.tables["main"])]


def found(app, lines, seed=1):
    """What a cluster finds: pieces of rows joined in a random order, and compared in two partitions."""
    pieces = [piece for line in lines for piece in contributed(app, app.routes, Schema(), line)]
    Random(seed).shuffle(pieces)
    rows = {}
    for row, piece in pieces:
        rows.setdefault(row, []).append(piece)
    sums = [(row, reduce(joined, own)) for row, own in rows.items()]
    halves = (sums[::2], sums[1::2])
    return [each for half in halves for each in compared(app, Settings(), app.routes, half)]


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_an_export_that_agree_are_equal(app, lines, seed):
    assert sum(found(app, lines, seed)) == 34


def test_rows_that_differ_are_told(app, lines):
    planted = [line for line in lines if line.key[1] != "OWN#4"]
    for line in planted:
        if line.key[1] == "TOTAL#g1":
            line.image["total"] = {"N": "1"}
        if line.key[1] == "TOTAL#odd":
            line.image["least"] = {"N": "0.5"}
    row = encode(item("OWN#99", "OWN", amount=1, _sf_n=1))["M"]
    planted.append(ExportLine(("main", "OWN#99", "OWN"), row))
    different = [each for each in found(app, planted) if isinstance(each, RowDifference)]
    assert sorted((each.what, each.row[1]) for each in different) == [
        ("different", "TOTAL#g1"),
        ("different", "TOTAL#odd"),
        ("extra", "OWN#99"),
        ("missing", "OWN#4"),
    ]


def test_a_row_of_an_export_that_counts_too_few_contributors_is_told(app, lines):
    for line in lines:
        if line.key[1] == "TOTAL#g1":
            line.image["_sf_n"] = {"N": "1"}
    (different,) = [each for each in found(app, lines) if isinstance(each, RowDifference)]
    assert (different.what, different.unseen) == ("unfounded", {"_sf_n": (1, 18)})


def test_an_item_on_which_a_handler_raises_is_told(app, lines):
    image = encode(item("ITEM#13", "METADATA", group="g1", amount=13))["M"]
    told = found(app, [ExportLine(("main", "ITEM#13", "METADATA"), image)])
    assert [each for each in told if isinstance(each, ItemError)] == [
        ItemError(("main", "ITEM#13", "METADATA"), "total", "LookupError: no 13")
    ]


def test_sums_are_joined_alike_in_any_grouping():
    one, two, three = RowSum({"a": 1}, 1), RowSum({"a": 2, "b": 1}, 1), RowSum({}, 1)
    assert joined(joined(one, two), three) == joined(one, joined(three, two)) == RowSum({"a": 3, "b": 1}, 3)
