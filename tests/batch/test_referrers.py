"""Items on which a handler raises while a change of what they refer to visits them: parked, kept, or retried."""

import json
from dataclasses import replace

import pytest

from streamfold import App, Count, Lookup, Router, Row, Sum
from streamfold.batch import referrers
from streamfold.batch.fan_outs import run_fan_outs, watch_open
from streamfold.engines.capacity import CountingEngine
from streamfold.errors import EngineUnavailable, Unprocessable
from streamfold.failures.failed_records import Waiting
from streamfold.failures.redrive import Redrive
from streamfold.jobs.fan_outs import FanOuts
from streamfold.lambda_entry.queue import RING, STILL_SECONDS, QueueFunction
from streamfold.ledger.state_keys import ledger_key
from streamfold.parking import FileParking, Parked
from streamfold.records.envelope import Origins
from streamfold.settings import Settings
from tests.batch.test_lookups import LINE, PRODUCT, SALES, Shop
from tests.helpers.doorbells import Clock, Messages, body, queue_function


def shop_of(*, inline=2_000, raises=ValueError, **policy):
    """Lines that add to their category, but for lines of 13 in category y."""
    router = Router()

    @router.view(LINE, into=SALES, lookup={"product": Lookup(PRODUCT, reads=["category"])}, inline=inline, **policy)
    def sales(line, product):
        if line["quantity"] == 13 and product["category"] == "y":
            raise raises("no 13 of y")
        return Row(category=product["category"], units=Sum(line["quantity"]), lines=Count())

    return Shop(App("shop", routers=[router]))


class Parked13:
    """Five lines of one product, one of them of 13, and a parking place."""

    def __init__(self, tmp_path, **options):
        self.path = tmp_path / "parked.jsonl"
        self.parking = FileParking(str(self.path))
        self.shop = shop_of(**options)
        lines = [self.shop.line(number, "p", 13 if number == 2 else 1) for number in range(5)]
        assert self.process(self.shop.product("p", "x"), *lines) == []

    def process(self, *changes):
        return self.shop.process(*changes, parking=self.parking)

    def fan_out(self):
        """Works on the segments that are queued; returns the failures."""
        runtime = self.shop.runtime(parking=self.parking)
        runtime.queued = self.shop.queued
        failures = run_fan_outs(runtime).failures
        self.shop.queued = []
        return failures

    def ring(self):
        """The schedule queues open segments again, which are worked on."""
        runtime = self.shop.runtime(parking=self.parking)
        watch_open(runtime)
        return run_fan_outs(runtime).failures

    def open(self):
        fan_outs = FanOuts(self.shop.runtime())
        return [segment for job in fan_outs.all() for segment in fan_outs.segments(job)]

    def parked(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def redriven(self, *, dry_run=False):
        runtime = self.shop.runtime()
        redrive = Redrive(runtime, Origins(self.shop.app.source_tables, Settings()), None, dry_run)
        return [
            (each.what, each.item)
            for number, document in enumerate(self.parked())
            for each in redrive.process(Waiting(str(number), document))
        ]

    def corrects(self, number=2, quantity=3):
        """The item as a person corrects it, without its record."""
        self.shop.line(number, "p", quantity)


BAD = ("main", "ORDER#2", "ITEM#a")


def test_an_item_is_parked_by_itself_and_the_record_of_its_referent_succeeds(tmp_path):
    found = Parked13(tmp_path, on_error="park")
    assert found.process(found.shop.product("p", "y")) == []
    assert found.shop.sales() == {"x": 13, "y": 4}
    (document,) = found.parked()
    assert (document["handler"], document["item"], document["error"]) == ("sales", "ORDER#2 / ITEM#a", "no 13 of y")
    assert document["record"] == {"visited": {"table": "main", "Keys": {"PK": {"S": BAD[1]}, "SK": {"S": BAD[2]}}}}
    assert Parked.of(document).name.startswith("shop/sales/")


def test_a_parked_item_is_redriven_as_it_is_then(tmp_path):
    found = Parked13(tmp_path, on_error="park")
    found.process(found.shop.product("p", "y"))
    assert found.redriven() == [("failed", "ORDER#2 / ITEM#a")]
    found.corrects()
    assert found.redriven(dry_run=True) == [("applied", "ORDER#2 / ITEM#a")]
    assert found.shop.sales() == {"x": 13, "y": 4}
    assert found.redriven() == [("applied", "ORDER#2 / ITEM#a")]
    assert found.shop.sales() == {"y": 7}
    assert found.redriven() == [("unchanged", "ORDER#2 / ITEM#a")]


def test_a_redriven_item_keeps_its_version_so_that_its_next_record_counts(tmp_path):
    """The version of the referent's change does not compare with those of the item: it may be of another stream."""
    found = Parked13(tmp_path, on_error="park")
    found.process(found.shop.product("p", "y"))
    found.corrects()
    found.redriven()
    assert found.shop.sales() == {"y": 7}
    assert found.process(found.shop.line(2, "p", 5)) == []
    assert found.shop.sales() == {"y": 9}


def test_a_document_that_names_no_item_is_bad(tmp_path):
    found = Parked13(tmp_path, on_error="park")
    found.process(found.shop.product("p", "y"))
    (document,) = found.parked()
    redrive = Redrive(found.shop.runtime(), Origins(found.shop.app.source_tables, Settings()), None)
    for record in ({"visited": {}}, {"visited": {"table": "other", "Keys": {}}}, {"visited": 3}):
        (each,) = redrive.process(Waiting("x", document | {"record": record}))
        assert (each.what, "expected 'visited' to be" in each.why) == ("bad", True)
    lost = document | {"record": {"visited": {"table": "main", "Keys": {"PK": {"S": "A"}, "SK": {"S": "B"}}}}}
    (each,) = redrive.process(Waiting("x", lost))
    assert (each.what, each.why) == ("unwanted", "The handler reads no such item.")


def test_a_record_is_retried_where_the_handler_does_not_park(tmp_path):
    found = Parked13(tmp_path, on_error="retry")
    changed = found.shop.product("p", "y")
    (failure,) = found.process(changed)
    assert (failure.sequence, str(failure.error)) == (changed.sequence, "no 13 of y")
    assert (found.shop.sales(), found.parked()) == ({"x": 13, "y": 4}, [])
    found.corrects()
    assert found.process(changed) == []
    assert found.shop.sales() == {"y": 7}


def test_attempts_are_counted_for_each_change_of_the_referent(tmp_path):
    found = Parked13(tmp_path, on_error="park", attempts_max=2)
    changed = found.shop.product("p", "y")
    assert [len(found.process(changed)) for _ in range(2)] == [1, 0]
    assert [document["attempts"] for document in found.parked()] == [2]
    assert len(found.process(found.shop.product("p", "x"), found.shop.product("p", "y"))) == 2
    assert len(found.parked()) == 1


def test_an_item_is_parked_once_the_change_of_its_referent_is_old(tmp_path):
    found = Parked13(tmp_path, on_error="park", age_seconds_max=60)
    changed = found.shop.product("p", "y")
    at = changed.at.timestamp()
    assert len(found.shop.process(changed, parking=found.parking, clock=lambda: at + 30)) == 1
    assert found.shop.process(changed, parking=found.parking, clock=lambda: at + 90) == []
    assert len(found.parked()) == 1


def test_what_no_retry_can_help_is_parked_with_every_policy(tmp_path):
    found = Parked13(tmp_path, raises=Unprocessable)
    assert found.process(found.shop.product("p", "y")) == []
    assert len(found.parked()) == 1


def test_without_a_parking_place_the_record_of_the_referent_is_reported(tmp_path):
    found = Parked13(tmp_path, on_error="park")
    (failure,) = found.shop.process(found.shop.product("p", "y"))
    assert "The record cannot be parked. No parking place is set" in str(failure.error)


# Fan-outs: one bad item stops no segment.


def test_a_segment_goes_on_behind_a_bad_item_and_is_done_once_the_item_is(tmp_path):
    found = Parked13(tmp_path, inline=1)
    assert found.process(found.shop.product("p", "y")) == []
    (failure,) = found.fan_out()
    assert (failure.sequence, failure.item, str(failure.error)) == (None, "ORDER#2 / ITEM#a", "no 13 of y")
    assert found.shop.sales() == {"x": 13, "y": 4}
    (segment,) = found.open()
    assert (segment.passed, segment.done, len(segment.failing)) == (True, False, 1)
    assert len(found.ring()) == 1
    found.corrects()
    assert found.ring() == []
    assert (found.shop.sales(), found.open()) == ({"y": 7}, [])


@pytest.mark.parametrize("bad", range(6))
def test_every_item_of_a_segment_but_the_bad_one_is_visited_page_by_page(tmp_path, monkeypatch, bad):
    """As attacked: one bad item of six stopped its lane, and all items behind it stayed as they were."""
    monkeypatch.setattr(referrers, "PAGE", 2)
    shop = shop_of(inline=1)
    shop.process(shop.product("p", "x"), *(shop.line(number, "p", 13 if number == bad else 1) for number in range(6)))
    shop.process(shop.product("p", "y"))
    assert len(shop.fan_out()) == 1
    assert shop.sales() == {"x": 13, "y": 5}


def test_an_item_is_parked_by_a_fan_out_whose_handler_parks(tmp_path):
    found = Parked13(tmp_path, inline=1, on_error="park")
    found.process(found.shop.product("p", "y"))
    assert found.fan_out() == []
    assert (found.shop.sales(), found.open(), len(found.parked())) == ({"x": 13, "y": 4}, [], 1)
    found.corrects()
    found.redriven()
    assert found.shop.sales() == {"y": 7}


def test_a_kept_item_whose_own_record_comes_meanwhile_ends_the_segment(tmp_path):
    found = Parked13(tmp_path, inline=1)
    found.process(found.shop.product("p", "y"))
    found.fan_out()
    found.process(found.shop.line(2, "q", 3))  # it refers to another, and its backlink is gone
    assert (found.ring(), found.open()) == ([], [])
    assert found.shop.sales() == {"y": 4}


def test_a_newer_change_visits_all_items_again_and_with_them_the_kept_ones(tmp_path):
    found = Parked13(tmp_path, inline=1)
    found.process(found.shop.product("p", "y"))
    found.fan_out()
    found.process(found.shop.product("p", "z"))
    assert found.fan_out() == []
    assert (found.shop.sales(), found.open()) == ({"z": 17}, [])


def test_a_newer_change_within_a_segment_forgets_no_kept_item(tmp_path, monkeypatch):
    monkeypatch.setattr(referrers, "PAGE", 1)
    found = Parked13(tmp_path, inline=1)
    shop = found.shop
    shop.process(shop.product("p", "y"))
    work, pages = referrers.ReferrerSegments.page, []

    def page(self, segment):
        done = work(self, segment)
        pages.append(done)
        if done.failed and len(pages) < 6:  # the cursor is behind the bad item, which fails
            FanOuts(shop.runtime()).start(replace(self.job, version=self.job.version + "+1"), self.job.version + "+1")
        return done

    monkeypatch.setattr(referrers.ReferrerSegments, "page", page)
    found.fan_out()
    found.ring()
    (segment,) = found.open()
    assert (segment.passed, len(segment.failing)) == (True, 1)
    found.corrects()
    assert (found.ring(), found.open(), shop.sales()) == ([], [], {"y": 7})


def test_one_item_too_many_stops_the_segment_and_names_the_error(tmp_path, monkeypatch):
    monkeypatch.setattr(referrers, "FAILING_MAX", 2)
    shop = shop_of(inline=1)
    shop.process(shop.product("p", "x"), *(shop.line(number, "p", 13) for number in range(3)))
    shop.process(shop.product("p", "y"))
    (failure,) = shop.fan_out()
    assert "raises on more than 2 items that a change of their referent visits: ValueError: no 13 of y" in str(failure)
    fan_outs = FanOuts(shop.runtime())
    (job,) = fan_outs.all()
    assert [(segment.after, segment.failing) for segment in fan_outs.segments(job)] == [(None, ())]


def test_a_store_that_does_not_answer_keeps_no_item_and_leaves_the_segment_where_it_is(tmp_path):
    found = Parked13(tmp_path, inline=1)
    found.process(found.shop.product("p", "y"))

    class Down(CountingEngine):
        def transact(self, writes, expires_at):
            if any(write.key == ledger_key("shop", "main", BAD) for write in writes):
                raise EngineUnavailable("no answer")
            return super().transact(writes, expires_at)

    found.corrects()
    found.shop.store = Down(found.shop.engine)
    (failure,) = found.fan_out()
    assert (failure.sequence, type(failure.error)) == ("", EngineUnavailable)
    assert [(segment.after, segment.failing) for segment in found.open()] == [(None, ())]
    found.shop.store = CountingEngine(found.shop.engine)
    assert (found.ring(), found.shop.sales()) == ([], {"y": 7})


def test_a_message_is_acknowledged_though_an_item_fails_and_the_schedule_comes_back_to_it(tmp_path, monkeypatch):
    found = Parked13(tmp_path, inline=1)
    found.process(found.shop.product("p", "y"))
    queue, now = Messages(), [1_000.0]
    function = queue_function(found.shop.app, found.shop.engine, queue)
    monkeypatch.setattr(
        QueueFunction, "runtime_of", lambda self, *_: found.shop.runtime(clock=lambda: now[0], warn=self.warn)
    )
    message = {"eventSource": "aws:sqs", "messageId": "m", "body": body(found.shop.queued[0], "shop")}
    assert function({"Records": [message]}, Clock()) == {"batchItemFailures": []}
    assert [segment.failing for segment in found.open()] != [()]
    assert (function(RING, Clock()), queue.waiting) == ({"batchItemFailures": []}, [])
    now[0] += STILL_SECONDS
    function(RING, Clock())
    assert len(queue.waiting) == 1
    found.corrects()
    assert function({"Records": queue.waiting}, Clock()) == {"batchItemFailures": []}
    assert (found.shop.sales(), found.open()) == ({"y": 7}, [])


def test_a_redriven_record_of_a_referent_that_is_older_than_its_fan_out_finds_all_items_right(tmp_path):
    shop = shop_of(inline=1)
    shop.process(shop.product("p", "x"), *(shop.line(number, "p") for number in range(3)))
    older, newer = shop.product("p", "z"), shop.product("p", "y")
    shop.process(newer)
    shop.fan_out()
    assert shop.sales() == {"y": 3}
    runtime = shop.runtime()
    redrive = Redrive(runtime, Origins(shop.app.source_tables, Settings()), None)
    document = {"parked": 1, **parked_of(older)._asdict()}
    assert [each.what for each in redrive.process(Waiting("x", document))] == ["applied"]
    assert run_fan_outs(runtime).failures == []
    assert shop.sales() == {"y": 3}


def parked_of(change):
    return Parked("shop", "sales", "main", change.name, change.identity_text, "E", "e", None, "now", change.record)
