"""A row that cannot be finished after the commit is the fault of the handlers that write it, and of no others."""

import pytest

from streamfold import App, Collect, Count, Key, Max, Router, Row
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.parking import FileParking
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.model import stored
from tests.helpers.source import Source

VOTE = Key("BALLOT#{ballot}", "VOTE#{vote}")


def chosen(item):
    return Row(votes=Count(), values=Collect(item["value"], most=5))


def counted(item):
    return Row(votes=Count())


def large(item):
    return Row(votes=Count()) if item["value"] == "large" else None


def ballots(on_error="retry"):
    """Votes whose values are collected by one view; the other handlers have rows of their own."""
    router = Router()
    router.view(VOTE, into=Key("CHOSEN#{ballot}", "ALL"), name="chosen")(chosen)
    router.view(VOTE, into=Key("COUNTED", "ALL"), name="counted", on_error=on_error)(counted)
    router.view(VOTE, into=Key("LARGE", "ALL"), name="large")(large)
    router.index(VOTE, into=Key("BY_VOTE#{vote}", "BALLOT#{ballot}"), name="by_vote")(lambda item: Row(v=1))
    return App("ballots", routers=[router])


class Ballots:
    def __init__(self, on_error="retry", parking=None):
        self.app = ballots(on_error)
        self.engine = MemoryEngine(self.app.tables.values())
        self.parking = parking
        self.source = Source()

    def vote(self, vote, value):
        return self.source.put("BALLOT#a", f"VOTE#{vote}", value=value)

    def deliver(self, *records, engine=None):
        run = Runtime(self.app, engine or self.engine, Settings(), pause=lambda seconds: None, parking=self.parking)
        return process_event(run, list(records))

    def rows(self):
        return stored(self.app, self.engine)


class NotReading(MemoryEngine):
    """Entries cannot be read."""

    def read_entries(self, query):
        raise EngineUnavailable("no answer")


def failed(result):
    return sorted({failure.handler for failure in result.failures})


def test_a_row_that_cannot_be_recomputed_fails_its_own_handler_only():
    ballots = Ballots()
    assert failed(ballots.deliver(ballots.vote("x", 1), ballots.vote("y", "text"))) == ["chosen"]


@pytest.mark.parametrize("vote", ["x", "z"])
def test_a_record_that_comes_again_fails_the_handler_of_the_row_only(vote):
    ballots = Ballots()
    records = [ballots.vote("x", 1), ballots.vote("y", "text")]
    ballots.deliver(*records)
    assert failed(ballots.deliver(*records)) == ["chosen"]
    assert failed(ballots.deliver(*records, ballots.vote(vote, 2))) == ["chosen"]


def test_no_record_is_parked_for_a_handler_whose_rows_are_right(tmp_path):
    place = tmp_path / "parked.jsonl"
    ballots = Ballots(on_error="park", parking=FileParking(str(place)))
    ballots.deliver(ballots.vote("x", 1), ballots.vote("y", "text"))
    assert not place.exists()
    assert ballots.rows()["main", "COUNTED", "ALL"] == {"votes": 2}


def test_a_store_that_does_not_answer_fails_the_handler_of_the_row_only():
    ballots = Ballots()
    engine = NotReading(ballots.app.tables.values())
    assert failed(ballots.deliver(ballots.vote("x", 1), ballots.vote("x", 2), engine=engine)) == ["chosen"]


def test_only_the_handler_of_a_row_is_told_that_it_was_removed():
    ballots = Ballots()
    ballots.deliver(ballots.vote("x", 1), ballots.vote("y", 2))
    gone = [ballots.source.remove("BALLOT#a", f"VOTE#{vote}") for vote in "xy"]
    result = ballots.deliver(*gone)
    removed = {name: tally.removed for name, tally in result.tallies.items() if tally.removed}
    assert removed == {"chosen": 1, "counted": 1, "by_vote": 2}
    assert ballots.rows() == {}


def test_handlers_that_share_a_row_share_its_fault():
    router = Router()
    router.view(VOTE, into=Key("SHARED", "ALL"), name="chosen")(chosen)
    router.view(VOTE, into=Key("SHARED", "ALL"), name="largest")(lambda item: Row(largest=Max(item["value"])))
    router.view(VOTE, into=Key("COUNTED", "ALL"), name="counted")(counted)
    ballots = Ballots()
    ballots.app = App("ballots", routers=[router])
    ballots.engine = MemoryEngine(ballots.app.tables.values())
    result = ballots.deliver(ballots.vote("x", 1), ballots.vote("y", "text"))
    assert failed(result) == ["chosen", "largest"]


def test_a_handler_whose_contribution_is_kept_elsewhere_fails_for_its_own_row_only():
    router = Router()

    @router.view(VOTE, into=Key("MANY#{number}", "ALL"))
    def many(item):
        for number in range(80):
            yield Row(number=f"{number:0100d}", votes=Count())

    router.view(VOTE, into=Key("CHOSEN#{ballot}", "ALL"), name="chosen")(chosen)
    ballots = Ballots()
    ballots.app = App("ballots", routers=[router])
    ballots.engine = MemoryEngine(ballots.app.tables.values())
    assert ballots.deliver(ballots.vote("x", 1)).failures == []
    assert failed(ballots.deliver(ballots.vote("x", 2), ballots.vote("y", "text"))) == ["chosen"]
    assert failed(ballots.deliver(ballots.source.remove("BALLOT#a", "VOTE#x"))) == []
