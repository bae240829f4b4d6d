"""What the suite asserts of every plan that is carried out (``helpers.accounting``)."""

from unittest.mock import patch

import pytest

from streamfold import Add, App, Count, Key, Max, Router, Row
from streamfold.batch.process import process_changes
from streamfold.commit.pending import Progress
from streamfold.engines import MemoryEngine
from streamfold.runtime import Knowledge, Runtime, SendingPace
from streamfold.settings import Settings
from tests.helpers.records import change, item

router = Router()


@router.view(Key("ITEM#{item_id}", "METADATA"), into=Key("TOTAL#{group}", "TOTAL"))
def totals(each):
    return Row(group=each["group"], items=Count())


APP = App("shop", routers=[router])


def process():
    records = [change(None, item("ITEM#1", group="a"), 1)]
    return process_changes(Runtime(APP, MemoryEngine(APP.tables.values()), Settings()), records)


def test_a_change_that_is_committed_is_accounted_for():
    assert not process().failures


def test_a_change_that_is_neither_committed_nor_done_nor_failed_is_lost():
    with patch.object(Progress, "commit", lambda *_: None), pytest.raises(AssertionError, match="1 of 1 changes"):
        process()


class Damaging(MemoryEngine):
    """A store in which a claim or a ledger item was damaged, as by a person."""

    def damage(self, begins, item_name, name, text):
        (key,) = [key for key in self.state if key.pk.startswith(begins) and item_name in f"{key.pk}{key.sk}"]
        self.state[key] = {**self.state[key], name: text}


def clicks(*numbers):
    return [change(None, item(f"ITEM#{number}", group=f"g{number}"), number) for number in numbers]


@pytest.fixture
def counts():
    made = Router()

    @made.on(Key("ITEM#{item_id}", "METADATA"), into=Key("COUNT#{group}", "ALL"))
    def counts(each):
        return Add(group=each.new["group"], times=1)

    return App("shop", routers=[made])


@pytest.fixture
def largest():
    made = Router()

    @made.view(Key("ITEM#{item_id}", "METADATA"), into=Key("COUNT#{group}", "ALL"))
    def largest(each):
        return Row(group=each["group"], most=Max(1), items=Count())

    return App("shop", routers=[made])


def test_a_damaged_claim_loses_no_neighbour_that_waits_to_be_sent(counts):
    engine, known = Damaging(counts.tables.values()), Knowledge()

    def deliver(*changes):
        return process_changes(Runtime(counts, engine, Settings(), known=known, actions=2), list(changes)).failures

    assert deliver(*clicks(1, 3)) == []
    engine.damage("claim#", "ITEM#3", "p", "zz")
    assert [each.item for each in deliver(*clicks(1, 2, 3, 4))] == ["ITEM#3 / METADATA"]
    assert {row[1] for row in engine.rows} == {"COUNT#g1", "COUNT#g2", "COUNT#g3", "COUNT#g4"}


def test_a_damaged_ledger_item_stops_no_batch_that_was_delivered_before(largest):
    engine = Damaging(largest.tables.values())
    numbers = range(1, 9)
    before = {number: item(f"ITEM#{number}", group="a") for number in numbers}
    after = {number: item(f"ITEM#{number}", group="b") for number in numbers}
    second = [change(before[number], after[number], 100 + number) for number in numbers]

    def deliver(changes):
        pace = SendingPace()
        assert pace.unsure
        return process_changes(Runtime(largest, engine, Settings(), pace=pace, actions=2), list(changes)).failures

    assert deliver([change(None, before[number], number) for number in numbers]) == []
    assert deliver(second) == []
    engine.damage("ledger#", "ITEM#3", "largest.s", '[["main","COUNT#b","ALL",{"items":"1"},"x",{]]')
    assert {each.item for each in deliver(second)} <= {"ITEM#3 / METADATA"}
