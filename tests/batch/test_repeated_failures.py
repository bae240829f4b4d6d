"""What a batch left unfinished is finished when it comes again, though the ledger has all of its changes."""

from unittest.mock import patch

import pytest

from streamfold import App, Key, Max, Router, Row
from streamfold.batch.already_applied import ContributionNames, applied_texts
from streamfold.batch.process import process_event
from streamfold.commit import after_commit
from streamfold.derivations.attributes import write_back
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.keys.table import MAIN
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.testing import check
from tests.helpers.source import Source

ORDER, SHIP = Key("ORDER#{order_id}", "META"), Key("ORDER#{order_id}", "SHIP")
GROUP = Key("GROUP#{group}", "TOTAL")
ACTIONS = 20
COUNTS = [10, 40]  # a batch that fits one transaction, and one that does not
THROTTLED = EngineUnavailable("throttled")


class Place:
    """An application over a store, a stream, and a process that goes on."""

    def __init__(self, router, view="NEW_AND_OLD_IMAGES"):
        self.app = App("shop", routers=[router])
        self.engine, self.source, self.pace = MemoryEngine(self.app.tables.values()), Source(view=view), SendingPace()

    def deliver(self, records):
        run = Runtime(self.app, self.engine, Settings(chunk_actions=ACTIONS), pace=self.pace)
        return process_event(run, records).failures

    def items(self):
        return [decode({"M": item}) for item in self.engine.items(MAIN)]


@pytest.mark.parametrize("count", COUNTS)
def test_rows_of_a_large_contribution_are_recomputed(count):
    router = Router()

    @router.view(ORDER, into=GROUP)
    def groups(order):
        for number in range(80):
            yield Row(group=f"{number:030}", best=Max(order["price"]))

    place = Place(router)
    records = [place.source.put(f"ORDER#{n}", "META", price=n) for n in range(count)]
    with patch.object(after_commit, "recompute", lambda _, moved, *__: dict.fromkeys(moved, THROTTLED)):
        assert len(place.deliver(records)) == count
    assert place.deliver(records) == []
    assert [row.get("best") for row in place.items()] == [count - 1] * 80


@pytest.mark.parametrize("view", ["NEW_AND_OLD_IMAGES", "NEW_IMAGE"])
@pytest.mark.parametrize("count", COUNTS)
def test_an_attribute_of_one_source_is_taken_off_its_item(count, view):
    router = Router()

    @router.attributes(SHIP, of=ORDER)
    def shipped(ship):
        return Row(city=ship["city"]) if "city" in ship else None

    place = Place(router, view)
    orders = [place.source.put(f"ORDER#{n}", "META", at="x") for n in range(count)]
    images = [(("main", *key), encode(item)["M"], "0") for key, item in place.source.items.items()]
    place.engine.put_sources(images)
    assert place.deliver(orders) == []
    assert place.deliver([place.source.put(f"ORDER#{n}", "SHIP", city="Rome") for n in range(count)]) == []
    assert sum("city" in item for item in place.items()) == count
    bare = [place.source.put(f"ORDER#{n}", "SHIP") for n in range(count)]
    with patch.object(write_back, "read_rows", side_effect=THROTTLED):
        assert len(place.deliver(bare)) == count
    assert place.deliver(bare) == []
    assert not any("city" in item for item in place.items())


@pytest.mark.parametrize("left", ["", "what it left"])
def test_what_a_retired_handler_left_is_finished_too(left):
    stored = {"r": 3, "live": 1, "seen.v": "2", "seen.s": "[]", "retired.u": left}
    found = applied_texts(stored, ContributionNames(["seen"]), "2")
    assert found == (None if left else ("[]",))


def test_the_sample_is_of_all_groups():
    router = Router()
    for name in "ab":

        def grouped(order):
            yield Row(group=order["price"], best=Max(order["price"]))

        router.view(ORDER, into=Key(f"{name}#{{group:d}}", "TOTAL"), name=name, group=name)(grouped)
    place = Place(router)
    asked, read = [], place.engine.read_state
    with patch.object(place.engine, "read_state", lambda keys, **how: asked.extend(keys) or read(keys, **how)):
        assert place.deliver([place.source.put(f"ORDER#{n}", "META", price=n) for n in range(40)]) == []
    sampled = {key.pk.split("#")[2] for key in asked if key.pk.startswith("ledger#")}
    assert sampled == {"a", "b"}


@pytest.mark.parametrize("histories", [4, pytest.param(40, marks=pytest.mark.ci)])
def test_large_contributions_are_proved_under_faults(histories):
    router = Router()

    @router.view(ORDER, into=GROUP)
    def groups(order):
        for number in range(90):
            yield Row(group=f"{number:030}", best=Max(order["price"]))

    assert not check(App("shop", routers=[router]), {ORDER: {"price": 3}}, histories=histories, processes=0).unproved
