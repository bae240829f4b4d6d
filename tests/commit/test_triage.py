"""What becomes of a failing record: parked or reported, by its error and its handler's policy."""

import json

import pytest

from streamfold import Add, App, Key, Router, Row, Sum, Unprocessable
from streamfold.batch.process import plan_changes, process_event, read_changes
from streamfold.engines import EmbeddedEngine
from streamfold.errors import EngineError, EngineUnavailable, ParkingError, SettingsError
from streamfold.parking import Parked
from streamfold.records.envelope import Origins
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import PutRow
from tests.helpers.model import stored
from tests.helpers.source import Source

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
CHANGES = Key("CHANGES", "TOTAL")
RECORDED_AT = 1_772_355_600.0
"""The time of every record of ``tests.helpers.records``."""


class Place:
    """A parking place in memory; raises ``trouble`` if that is set."""

    def __init__(self):
        self.parked = []
        self.trouble = None

    def park(self, parked):
        if self.trouble:
            raise self.trouble
        self.parked.append(Parked.of(json.loads(parked.text())))


class Shop:
    """A view and an ``on`` handler with one policy; ``errors`` are what they raise, by price."""

    def __init__(self, **policy):
        self.errors = {}
        router = Router()

        @router.view(ITEM, into=TOTAL, **policy)
        def order_total(item):
            yield Row(total=Sum(self.checked(item["price"])))

        @router.on(ITEM, into=CHANGES, **policy)
        def changes(change):
            self.checked(change.new["price"])
            yield Add(changes=1)

        self.app = App("shop", routers=[router])
        self.engine = EmbeddedEngine(self.app.tables.values())
        self.place = Place()
        self.source = Source()
        self.clock = RECORDED_AT
        self.warnings = []

    def checked(self, price):
        if price in self.errors:
            raise self.errors[price]
        return price

    def put(self, price, order="ORDER#1"):
        return self.source.put(order, "ITEM#a", price=price)

    def deliver(self, *records, parking=True, **settings):
        run = Runtime(self.app, self.engine, Settings(**settings), clock=lambda: self.clock, warn=self.warnings.append)
        run.parking = self.place if parking else None
        self.report = process_event(run, list(records))
        return {failure.handler: failure.error for failure in self.report.failures}

    def parked(self):
        return sorted(parked.handler for parked in self.place.parked)

    def rows(self):
        return stored(self.app, self.engine)


BOTH = ["changes", "order_total"]


def test_record_is_reported_and_comes_again_unless_said_otherwise():
    shop = Shop()
    shop.errors[13] = LookupError("no price")
    for _ in range(5):
        assert set(shop.deliver(shop.put(13))) == set(BOTH)
    assert shop.parked() == []


def test_record_of_a_parking_handler_is_parked_at_its_first_failure_and_acknowledged():
    shop = Shop(on_error="park")
    shop.errors[13] = LookupError("no price")
    record = shop.put(13)
    assert shop.deliver(record) == {}
    assert shop.report.parked == {"changes": 1, "order_total": 1}
    parked = next(parked for parked in shop.place.parked if parked.handler == "changes")
    assert (parked.application, parked.item, parked.error_type) == ("shop", "ORDER#1 / ITEM#a", "LookupError")
    assert (parked.error, parked.attempts, parked.at) == ("no price", None, "2026-03-01T09:00:00Z")
    assert parked.record == record


def test_unprocessable_record_is_parked_at_once_whatever_the_policy():
    shop = Shop()
    shop.errors[13] = Unprocessable("price of another currency")
    assert shop.deliver(shop.put(13)) == {}
    assert shop.parked() == BOTH


def test_image_that_cannot_be_decoded_makes_a_record_unprocessable():
    shop = Shop()
    record = shop.put(1)
    record["dynamodb"]["NewImage"]["price"] = {"N": "many"}
    assert shop.deliver(record) == {}
    assert {parked.error_type for parked in shop.place.parked} == {"Unprocessable"}
    assert shop.place.parked[0].error.startswith("The record is malformed: Attribute 'price' is {'N': 'many'}")


def test_parked_change_holds_no_later_change_of_its_item():
    shop = Shop(on_error="park")
    shop.errors[13] = LookupError("no price")
    assert shop.deliver(shop.put(1), shop.put(13), shop.put(3)) == {}
    assert shop.rows() == {
        ("main", "ORDER#1", "TOTAL"): {"total": 3},
        ("main", "CHANGES", "TOTAL"): {"changes": 2},
    }


def test_change_that_the_store_refuses_for_good_is_parked_and_holds_no_later_one():
    shop = Shop(on_error="park")
    raw = {"PK": {"S": "CHANGES"}, "SK": {"S": "TOTAL"}, "changes": {"S": "many"}}
    shop.engine.put_sources([(("main", "CHANGES", "TOTAL"), raw, "v")])
    assert shop.deliver(shop.put(1), shop.put(2)) == {}
    assert shop.parked() == ["changes", "changes"]


def test_attempts_are_counted_per_record_and_handler_until_it_is_parked():
    shop = Shop(on_error="park", attempts_max=3)
    shop.errors[13] = LookupError("no price")
    record, other = shop.put(13), shop.put(13, "ORDER#2")
    assert set(shop.deliver(record)) == set(BOTH)
    assert set(shop.deliver(record, other)) == set(BOTH)
    assert set(shop.deliver(record, other)) == set(BOTH)
    assert [(parked.item, parked.attempts) for parked in shop.place.parked] == [("ORDER#1 / ITEM#a", 3)] * 2
    assert shop.deliver(other) == {}


def test_count_of_attempts_expires_as_claims_do():
    shop = Shop(on_error="park", attempts_max=3)
    shop.errors[13] = LookupError("no price")
    shop.deliver(shop.put(13), retention_days=2)
    counts = [item for item in shop.engine.state_items() if item["pk"]["S"].startswith("attempt#")]
    assert {item["ttl"]["N"] for item in counts} == {str(int(RECORDED_AT) + 2 * 86_400)}


def test_record_is_parked_when_it_is_older_than_the_policy_allows():
    shop = Shop(on_error="park", age_seconds_max=60)
    shop.errors[13] = LookupError("no price")
    record = shop.put(13)
    shop.clock = RECORDED_AT + 60
    assert set(shop.deliver(record)) == set(BOTH)
    shop.clock += 1
    assert shop.deliver(record) == {}


def test_record_without_a_time_has_no_age():
    shop = Shop(on_error="park", age_seconds_max=60)
    shop.errors[13] = LookupError("no price")
    record = shop.put(13)
    del record["dynamodb"]["ApproximateCreationDateTime"]
    shop.clock = RECORDED_AT * 2
    assert set(shop.deliver(record)) == set(BOTH)


def test_store_that_is_unwell_is_never_a_reason_to_park(monkeypatch):
    shop = Shop(on_error="park")
    shop.deliver(shop.put(1))

    def unavailable(*_):
        raise EngineUnavailable("no answer")

    monkeypatch.setattr(shop.engine, "transact", unavailable)
    assert {str(error) for error in shop.deliver(shop.put(2)).values()} == {"no answer"}
    assert shop.parked() == []


def test_what_is_forbidden_is_never_a_reason_to_park(monkeypatch):
    shop = Shop(on_error="park")
    transact = shop.engine.transact

    def forbidden(writes, expires_at):
        if any(write.key == ("main", "CHANGES", "TOTAL") for write in writes):
            raise EngineError("AccessDeniedException")
        return transact(writes, expires_at)

    monkeypatch.setattr(shop.engine, "transact", forbidden)
    ((handler, error),) = shop.deliver(shop.put(2), chunk_actions=2).items()
    assert (handler, str(error), shop.parked()) == ("changes", "AccessDeniedException", [])


def test_store_that_is_unwell_while_attempts_are_counted_leaves_the_record_reported(monkeypatch):
    shop = Shop(on_error="park", attempts_max=1)
    shop.errors[13] = LookupError("no price")
    shop.deliver(shop.put(1))

    def unavailable(*_):
        raise EngineUnavailable("no answer")

    monkeypatch.setattr(shop.engine, "swap_state", unavailable)
    assert {type(error) for error in shop.deliver(shop.put(13)).values()} == {LookupError}
    assert shop.parked() == []


def shared_index(**policy):
    """An index over two tables' items, of which each row is one item's."""
    router = Router()

    @router.index(Key("A#{n}", "X"), Key("B#{n}", "X"), into=Key("ROW#{n}", "X"), **policy)
    def rows(item):
        if item["shown"]:
            yield Row(of=item["PK"])

    return App("shop", routers=[router])


class Handover:
    """A row that A gives up and B takes, told of by two shards."""

    def __init__(self, **policy):
        self.app = shared_index(on_error="park", **policy)
        self.engine = EmbeddedEngine(self.app.tables.values())
        self.place = Place()
        source = Source()
        self.deliver(source.put("A#1", "X", shown=True), source.put("B#1", "X", shown=False))
        self.given_up, self.taken = source.put("A#1", "X", shown=False), source.put("B#1", "X", shown=True)

    def deliver(self, *records):
        run = Runtime(self.app, self.engine, Settings(), parking=self.place)
        return [failure.item for failure in process_event(run, list(records)).failures]

    def row(self):
        return stored(self.app, self.engine)["main", "ROW#1", "X"]["of"]


def test_row_that_another_item_still_has_says_nothing_of_the_record_that_takes_it():
    handover = Handover()
    assert handover.deliver(handover.taken) == ["B#1 / X"]
    assert handover.deliver(handover.given_up) == []
    assert handover.deliver(handover.taken) == []
    assert (handover.row(), handover.place.parked) == ("B#1", [])


@pytest.mark.parametrize("turned", [False, True])
def test_row_that_changes_hands_in_one_batch_fails_no_record(turned):
    handover = Handover(attempts_max=1)
    batch = [handover.given_up, handover.taken]
    assert handover.deliver(*(reversed(batch) if turned else batch)) == []
    assert (handover.row(), handover.place.parked) == ("B#1", [])


def test_row_that_another_item_keeps_is_a_reason_to_park_at_the_third_attempt():
    handover = Handover()
    assert [handover.deliver(handover.taken) for _ in range(3)] == [["B#1 / X"], ["B#1 / X"], []]
    (parked,) = handover.place.parked
    assert (parked.error_type, parked.attempts) == ("RowTaken", 3)
    assert handover.row() == "A#1"


def test_row_of_the_application_itself_is_never_given_up_and_parks_at_once():
    handover = Handover()
    source = Source()
    handover.engine.transact([PutRow(("main", "ROW#2", "X"), {"by": "hand"})], 0)
    assert handover.deliver(source.put("A#2", "X", shown=True)) == []
    assert len(handover.place.parked) == 1


@pytest.mark.parametrize("mistake", [SettingsError("wrong"), EngineError("no table")])
def test_mistake_of_ours_stops_the_invocation_and_parks_nothing(mistake):
    shop = Shop(on_error="park")
    shop.errors[13] = mistake
    with pytest.raises(type(mistake)):
        shop.deliver(shop.put(13))
    assert shop.parked() == []


def test_record_that_cannot_be_parked_is_reported_with_both_reasons():
    shop = Shop(on_error="park")
    shop.errors[13] = LookupError("no price")
    shop.place.trouble = ParkingError("s3://failures/ could not be reached (timed out).")
    errors = shop.deliver(shop.put(13))
    assert str(errors["changes"]) == (
        "LookupError: no price. The record cannot be parked. s3://failures/ could not be reached (timed out). It is "
        "reported instead."
    )
    assert shop.report.parked == {}
    assert all(isinstance(error, ParkingError) for error in errors.values())


def test_record_without_a_parking_place_is_reported_with_what_to_set():
    shop = Shop(on_error="park")
    shop.errors[13] = LookupError("no price")
    errors = shop.deliver(shop.put(13), parking=False)
    assert str(errors["changes"]) == (
        "LookupError: no price. The record cannot be parked. No parking place is set: expected STREAMFOLD_PARK "
        "(s3://BUCKET/PREFIX or the URL of an SQS queue; locally a file, or replay --park FILE). It is reported "
        "instead."
    )


def test_report_of_a_malformed_record_without_a_parking_place_begins_with_the_fault():
    shop = Shop()
    record = shop.put(1)
    record["dynamodb"]["NewImage"]["price"] = {"N": "many"}
    shop.deliver(record, parking=False)
    for failure in shop.report.failures:
        assert failure.what.startswith("Unprocessable: The record is malformed: Attribute 'price' is {'N': 'many'}")


def test_record_that_is_parked_without_a_policy_of_parking_is_told_why():
    shop = Shop()
    shop.errors[13] = Unprocessable("the currency is unknown")
    errors = shop.deliver(shop.put(13), parking=False)
    assert str(errors["changes"]).startswith(
        "Unprocessable: the currency is unknown. The record cannot be parked, which is done for such an error with "
        "every on_error=. No parking place is set: "
    )


def test_record_that_cannot_be_parked_holds_the_later_changes_of_its_item():
    shop = Shop(on_error="park")
    shop.errors[13] = LookupError("no price")
    shop.deliver(shop.put(13), shop.put(1), parking=False)
    assert [failure.held for failure in shop.report.failures if failure.handler == "changes"] == [False, True]


def test_dry_run_parks_nothing():
    shop = Shop(on_error="park")
    shop.errors[13] = LookupError("no price")
    run = Runtime(shop.app, shop.engine, Settings())
    run.parking = shop.place
    changes, _ = read_changes([shop.put(13)], Origins(shop.app.source_tables, run.settings))
    _, report = plan_changes(run, changes)
    assert {failure.handler for failure in report.failures} == set(BOTH)
    assert shop.parked() == []


# The switch


def test_records_of_a_handler_that_is_switched_off_are_parked():
    shop = Shop()
    assert shop.deliver(shop.put(1), shop.put(2), handlers_off=("changes",)) == {}
    assert shop.parked() == ["changes", "changes"]
    assert {parked.error_type for parked in shop.place.parked} == {"SwitchedOff"}
    assert shop.rows() == {("main", "ORDER#1", "TOTAL"): {"total": 2}}


def test_records_of_a_handler_that_is_switched_off_are_skipped_and_counted_without_a_parking_place():
    shop = Shop()
    for price in (1, 2):
        assert shop.deliver(shop.put(price), handlers_off=("order_total",), parking=False) == {}
        assert shop.report.off == {"order_total": 1}
    assert shop.warnings[0] == (
        "Handler 'order_total' is switched off, and without a parking place (STREAMFOLD_PARK) its records are skipped."
    )
    assert shop.rows() == {("main", "CHANGES", "TOTAL"): {"changes": 2}}


def test_records_of_handlers_that_are_all_switched_off_are_not_told_as_wanted_by_no_route():
    shop = Shop()
    shop.deliver(shop.put(1), parking=False, handlers_off=("order_total", "changes"))
    assert (shop.report.off, shop.report.unrouted) == ({"order_total": 1, "changes": 1}, {})


def test_record_of_a_handler_that_is_switched_off_comes_again_when_it_cannot_be_parked():
    shop = Shop()
    shop.place.trouble = ParkingError("full")
    assert set(shop.deliver(shop.put(1), handlers_off=("changes",))) == {"changes"}


def test_view_that_was_switched_off_is_whole_again_with_the_item_s_next_change():
    shop = Shop()
    shop.deliver(shop.put(1))
    shop.deliver(shop.put(2), handlers_off=("order_total",))
    shop.deliver(shop.put(3))
    assert shop.rows()["main", "ORDER#1", "TOTAL"] == {"total": 3}


@pytest.mark.parametrize(("name", "expected"), [("order_totals", "order_total"), ("x", "one of changes, order_total")])
def test_switch_that_names_no_handler_is_refused_with_those_that_are_near(name, expected):
    shop = Shop()
    with pytest.raises(SettingsError) as raised:
        shop.deliver(shop.put(1), handlers_off=(name,))
    assert str(raised.value) == (
        f"STREAMFOLD_HANDLERS_OFF names {name!r}, which is no handler of the application: expected {expected}."
    )
