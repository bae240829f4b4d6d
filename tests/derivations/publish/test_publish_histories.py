"""Histories by seed: no change unsent once acknowledged, first appearances in order, one id a change and handler."""

import pytest

from streamfold.derivations import outside_calls
from streamfold.derivations.publish import envelope, sending
from tests.helpers.publish_histories import PublishHistory, check_histories


@pytest.mark.slow
def test_some_histories():
    check_histories(range(60))


@pytest.mark.ci
def test_five_hundred_histories():
    check_histories(range(60, 560))


@pytest.mark.nightly
def test_five_thousand_histories():
    check_histories(range(1000, 6000))


def found_out(seeds=range(200)):
    """Whether some history notices a mistake."""
    for seed in seeds:
        try:
            if PublishHistory(seed).run().wrong() is not None:
                return True
        except (AssertionError, KeyError):
            return True
    return False


def test_only_records_that_older_code_passed_over_come_late_to_a_newer_handler(monkeypatch):
    monkeypatch.setattr(PublishHistory, "_passed_over", lambda *_: set())
    wrong = [PublishHistory(seed).run().wrong() for seed in range(60)]
    assert {each and each.partition(" are ")[0] for each in wrong} == {None, "first appearances of newer"}


def test_histories_notice_that_messages_of_one_item_are_in_flight_together(monkeypatch):
    monkeypatch.setattr(outside_calls.ItemQueues, "hold", lambda self, subject: (self.release(subject), [])[1])
    assert found_out()


def test_histories_notice_a_failure_that_is_swallowed(monkeypatch):
    monkeypatch.setattr(sending.Sending, "_fails", lambda *_: False)
    assert found_out()


def test_histories_notice_ids_that_differ_from_delivery_to_delivery(monkeypatch):
    numbers = iter(range(10**6))
    made = envelope.digest
    monkeypatch.setattr(
        envelope, "digest", lambda *texts: made(*texts, str(next(numbers))) if len(texts) > 2 else made(*texts)
    )
    assert found_out()


def test_histories_notice_ids_that_two_handlers_share(monkeypatch):
    made = envelope.digest
    monkeypatch.setattr(
        envelope, "digest", lambda *texts: made(texts[0], *texts[2:]) if len(texts) > 2 else made(*texts)
    )
    assert found_out()


def test_histories_notice_a_claim_before_the_message(monkeypatch):
    sent = sending.MessageRequests._request

    def claims_first(self, messages):
        for each in messages if self.options.once else ():
            self.runtime.store.swap_state(sending.claim_of(self.runtime, each), {"ttl": 1}, 0)
        return sent(self, messages)

    monkeypatch.setattr(sending.MessageRequests, "_request", claims_first)
    assert found_out()
