"""The names of faults: all that a proof may inject can be named, and is explained."""

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.proofs.check import FAULTS, MEANINGS, chosen
from streamfold.testing import check

ORDER, ITEM = Key("ORDER#{order_id}", "METADATA"), Key("ORDER#{order_id}", "ITEM#{sku}")


def make_app():
    router = Router()
    router.audit(ITEM)

    @router.attributes(ITEM, of=ORDER)
    def lines(item):
        return Row(lines=Count())

    return App("shop", routers=[router])


@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_every_fault_that_is_offered_has_a_name_to_choose_it_by(source):
    proof = check(make_app(), {ORDER: {"a": 1}, ITEM: {"b": 1}}, histories=60, source=source, processes=0)

    assert {"last-first", "put-back"} <= proof.offered
    assert proof.offered <= chosen(proof.offered)


def test_every_fault_is_explained_once():
    assert list(MEANINGS) == list(FAULTS)
