"""Messages of a batch: of one item in order, each failure its own record's, requests, claims and large data."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from streamfold import App, Router
from streamfold.derivations.publish import sending
from streamfold.derivations.publish.options import NOT_PUBLISHED, SENT_BEFORE
from streamfold.derivations.publish.targets import DestinationThrottled, Limits, RequestRefused
from streamfold.errors import EngineError, EngineUnavailable, SettingsError, Unprocessable
from streamfold.replay.costs import beginning, count_run
from streamfold.replay.files import RecordedFiles
from streamfold.settings import Settings
from tests.helpers.publishers import ORDER, Answering, Shop
from tests.helpers.source import Source


def app_of(**options):
    router = Router()
    router.publish(ORDER, **{"to": "sqs:orders.fifo", "type": "order.{event}", "name": "orders", **options})
    return App("shop", routers=[router])


def orders(source, number, *statuses):
    return [source.put(f"ORDER#{number}", status=status) for status in statuses or ("new",)]


def statuses(shop):
    return [json.loads(each.text)["data"]["new"]["status"] for each in shop.place.sent]


def failed(report):
    return [failure.sequence for failure in report.failures]


@pytest.fixture
def source():
    return Source()


def test_a_thousand_changes_of_different_items_are_a_hundred_requests(source):
    shop = Shop(app_of())
    report = shop.deliver(*(each for number in range(1000) for each in orders(source, number)))
    assert not report.failures
    assert len(shop.place.ids) == 1000
    assert len(shop.place.requests) <= 103
    assert report.tallies["orders"].written == 1000
    assert not [key for key in shop.engine.state if key.pk.startswith("claim")]


def test_changes_of_one_item_are_in_order_and_one_in_a_request(source):
    shop = Shop(app_of())
    shop.deliver(*orders(source, 1, *"abcdef"), *orders(source, 2, *"AB"))
    assert [each for each in statuses(shop) if each.islower()] == [*"abcdef"]
    assert all(max(Counter(group_of(shop, request)).values()) == 1 for request in shop.place.requests)


def group_of(shop, request):
    groups = {each.id: each.group for each in shop.place.sent}
    return [groups[each] for each in request]


def test_a_refused_message_fails_its_own_record_and_holds_the_later_ones_of_its_item(source):
    records = [*orders(source, 1, "a", "bad", "c"), *orders(source, 2, "d")]
    shop = Shop(app_of(), refuses=lambda each: RequestRefused("no") if '"status":"bad"' in each.data else None)
    report = shop.deliver(*records)
    assert statuses(shop) == ["a", "d"]
    assert failed(report) == [records[1]["dynamodb"]["SequenceNumber"], records[2]["dynamodb"]["SequenceNumber"]]
    assert report.failures[1].held


def test_a_parked_message_is_overtaken_by_the_later_ones_of_its_item(source):
    parked = []
    shop = Shop(
        app_of(on_error="park", data=["new"]),
        refuses=lambda each: RequestRefused("no") if '"status":"bad"' in each.data else None,
    )
    report = shop.deliver(*orders(source, 1, "a", "bad", "c"), parking=SimpleNamespace(park=parked.append))
    assert not report.failures
    assert statuses(shop) == ["a", "c"]
    assert len(parked) == 1


def test_a_redelivery_repeats_ids_and_no_other(source):
    shop = Shop(app_of())
    records = orders(source, 1, "a", "b")
    shop.deliver(*records)
    shop.deliver(*records)
    first, second, *again = shop.place.ids
    assert again == [first, second]


def test_one_record_twice_in_a_batch_is_one_message(source):
    shop = Shop(app_of())
    (one,) = orders(source, 1)
    shop.deliver(one, one)
    assert len(shop.place.ids) == 1


def test_a_throttled_message_waits_and_the_others_of_its_request_do_not_repeat(source):
    left = [2]

    def refuses(each):
        if '"status":"slow"' in each.data and left[0]:
            left[0] -= 1
            return DestinationThrottled("no")
        return None

    shop = Shop(app_of(), refuses=refuses)
    waited = []
    report = shop.deliver(*orders(source, 1, "a"), *orders(source, 2, "slow"), pause=waited.append)
    assert not report.failures
    assert (len(shop.place.ids), len(waited)) == (2, 2)


def test_a_throttled_message_is_retried_with_its_record_when_the_time_is_over(source):
    shop = Shop(app_of(), refuses=lambda _: DestinationThrottled("no"))
    report = shop.deliver(*orders(source, 1), seconds_left=iter([100.0] * 6 + [0.0] * 100).__next__)
    assert [type(each.error) for each in report.failures] == [DestinationThrottled]


def test_a_lost_answer_repeats_the_same_id(source):
    lost = [EngineUnavailable("lost")]
    shop = Shop(app_of())
    taken = shop.place.send_entries
    shop.place.send_entries = lambda messages: [*taken(messages)] if not lost else (taken(messages), [lost.pop()])[1]
    (record,) = orders(source, 1)
    assert failed(shop.deliver(record))
    assert not failed(shop.deliver(record))
    assert len(shop.place.ids) == 2
    assert len(set(shop.place.ids)) == 1


def test_with_once_a_later_delivery_sends_nothing(source):
    shop = Shop(app_of(once=True))
    records = orders(source, 1, "a", "b")
    shop.deliver(*records)
    report = shop.deliver(*records, late=True)
    assert len(shop.place.ids) == 2
    assert report.counts[SENT_BEFORE] == {"orders": 2}
    assert len([key for key in shop.engine.state if key.pk.startswith("claim#shop#orders")]) == 2


def test_a_claim_is_written_after_the_message_was_sent(source):
    shop = Shop(app_of(once=True), refuses=lambda _: EngineUnavailable("no"))
    assert failed(shop.deliver(*orders(source, 1)))
    assert not [key for key in shop.engine.state if key.pk.startswith("claim")]


def test_a_message_whose_claim_cannot_be_written_is_delivered_again(source, monkeypatch):
    shop = Shop(app_of(once=True))
    swap = shop.engine.swap_state

    def swap_state(key, *rest):
        if key.pk.startswith("claim"):
            raise EngineUnavailable("no")
        return swap(key, *rest)

    monkeypatch.setattr(shop.engine, "swap_state", swap_state)
    assert failed(shop.deliver(*orders(source, 1)))


def test_a_run_that_may_not_reach_the_destination_counts_its_messages(source):
    for outside in (None, False):
        shop = Shop(app_of())
        report = shop.deliver(*orders(source, 1), outside=outside, opened={})
        assert report.counts[NOT_PUBLISHED] == {"orders": 1}


def test_a_folder_takes_the_place_of_every_destination(source, tmp_path):
    shop = Shop(app_of())
    settings = Settings(publish=f"file:{tmp_path / 'out'}")
    report = shop.deliver(*orders(source, 1, "a", "b"), outside=None, opened={}, settings=settings)
    assert not report.failures
    lines = (tmp_path / "out" / "sqs-orders.fifo.jsonl").read_text().splitlines()
    assert [json.loads(line)["data"]["new"]["status"] for line in lines] == ["a", "b"]


def test_a_folder_that_cannot_be_written_fails_the_records(source, tmp_path):
    (tmp_path / "out").write_text("")
    shop = Shop(app_of())
    report = shop.deliver(*orders(source, 1), opened={}, settings=Settings(publish=f"file:{tmp_path / 'out'}"))
    assert [type(each.error) for each in report.failures] == [EngineUnavailable]


def test_a_destination_without_a_setting_fails_the_records(source):
    shop = Shop(app_of())
    report = shop.deliver(*orders(source, 1), opened={})
    assert [type(each.error) for each in report.failures] == [SettingsError]


def test_a_function_does_not_start_without_the_address(source):
    (route,) = app_of().routes
    for settings in (Settings(), Settings(destinations={"orders.fifo": "https://x/1/o.fifo"}, publish="file:out")):
        with pytest.raises(SettingsError, match="STREAMFOLD_PUBLISH"):
            route.kind.check_settings(route, settings)
    route.kind.check_settings(route, Settings(destinations={"orders_fifo": "https://x/1/o.fifo"}))
    route.kind.check_settings(route, Settings(group="other"))


# What a destination does not take.


def opened_target(monkeypatch, send, limits=Limits(10, 2000, 1000)):  # noqa: B008 - a value
    found = Answering(send, limits)
    monkeypatch.setattr(sending, "target_of", lambda runtime, route: found)


def test_a_request_stays_below_the_size_that_its_destination_takes(source, monkeypatch):
    sizes = []
    opened_target(monkeypatch, lambda some: (sizes.append(sum(len(each.text) for each in some)), [None] * len(some))[1])
    assert not Shop(app_of()).deliver(*(each for number in range(9) for each in orders(source, number))).failures
    assert max(sizes) <= 2000
    assert len(sizes) > 1


def test_a_message_that_is_too_long_is_parked_and_the_others_go_on(source, monkeypatch):
    taken = []
    opened_target(monkeypatch, lambda some: (taken.extend(some), [None] * len(some))[1])
    records = [*orders(source, 1, "x" * 1000, "b"), *orders(source, 2)]
    report = Shop(app_of()).deliver(*records)
    assert len(taken) == 1
    assert isinstance(report.failures[0].error.__cause__, Unprocessable)
    assert "large=" in str(report.failures[0].error)


def test_large_data_go_to_their_place_before_the_message(source, monkeypatch):
    steps = []
    opened_target(monkeypatch, lambda some: (steps.append(json.loads(some[0].text)["data"]), [None] * len(some))[1])

    class Place:
        def write(self, name, content):
            steps.append((name, json.loads(content)["new"]["status"]))

    from streamfold.derivations.archive import locations

    monkeypatch.setattr(locations, "open_location", lambda text: Place())
    assert not Shop(app_of(large="s3://big/orders")).deliver(*orders(source, 1, "x" * 1000)).failures
    (name, status), data = steps
    assert status == "x" * 1000
    assert data == {"large": f"s3://big/orders/{name}", "bytes": data["bytes"]}
    assert data["bytes"] > 1000


def test_a_message_is_not_sent_before_its_large_data_are_stored(source, monkeypatch):
    sent = []
    opened_target(monkeypatch, lambda some: (sent.extend(some), [None] * len(some))[1])

    class Place:
        def write(self, name, content):
            raise EngineUnavailable("no")

    from streamfold.derivations.archive import locations

    monkeypatch.setattr(locations, "open_location", lambda text: Place())
    report = Shop(app_of(large="s3://big/orders")).deliver(*orders(source, 1, "x" * 1000))
    assert [type(each.error) for each in report.failures] == [EngineUnavailable]
    assert not sent


def test_a_request_that_is_refused_for_one_message_is_sent_message_by_message(source, monkeypatch):
    taken = []

    def send(some):
        if any('"bad"' in each.text for each in some):
            raise RequestRefused("no")
        taken.extend(some)
        return [None] * len(some)

    opened_target(monkeypatch, send, Limits(10, 100_000, 100_000))
    records = [*orders(source, 1, "a"), *orders(source, 2, "bad"), *orders(source, 3, "c")]
    report = Shop(app_of()).deliver(*records)
    assert len(taken) == 2
    assert failed(report) == [records[1]["dynamodb"]["SequenceNumber"]]


def test_an_error_of_the_destination_fails_all_and_parks_none(source, monkeypatch):
    def send(some):
        raise EngineError("not permitted")

    opened_target(monkeypatch, send)
    report = Shop(app_of(on_error="park")).deliver(*orders(source, 1), *orders(source, 2))
    assert [type(each.error) for each in report.failures] == [EngineError, EngineError]
    assert not report.parked


def test_costs_name_the_messages_of_each_publisher(source, tmp_path):
    file = tmp_path / "orders.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for number in range(4) for each in orders(source, number)))
    found = count_run(app_of(), Settings(), beginning(RecordedFiles([str(file)])), 100)
    (line,) = found.outside
    assert "'orders' sends 1,000,000 messages for a million records to 'sqs:orders.fifo': at most $0.50" in line
    assert found.usage.write_units == 0


def test_two_publishers_of_one_change_have_two_ids(source):
    router = Router()
    router.publish(ORDER, to="sqs:orders.fifo", type="order", name="one")
    router.publish(ORDER, to="sqs:orders.fifo", type="order", name="two")
    shop = Shop(App("shop", routers=[router]))
    shop.deliver(*orders(source, 1))
    assert len(set(shop.place.ids)) == 2


def test_attributes_of_replication_alone_are_no_change_to_publish(source):
    shop = Shop(app_of())
    record = source.put("ORDER#1", status="a")
    again = source.put("ORDER#1", status="a", **{"aws:rep:region": "eu-west-1"})
    shop.deliver(record, again)
    assert len(shop.place.ids) == 1
