"""What the suite asserts of every plan that is carried out (``helpers.accounting``)."""

from unittest.mock import patch

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.batch.process import process_changes
from streamfold.commit.pending import Progress
from streamfold.engines import MemoryEngine
from streamfold.runtime import Runtime
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
