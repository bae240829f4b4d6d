"""Bulks: what is sent in one request, what is sent again, and what is known of each document in the end."""

from unittest.mock import patch

import pytest

from streamfold.derivations.search.sink import ACTIONS_MAX, TRIES, Action, Answer, IndexBusy, Sent, TooLarge, send
from streamfold.engines.deadline import Deadline
from streamfold.errors import (
    EngineError,
    EngineUnavailable,
    EngineUnreachable,
    NotStarted,
    Unprocessable,
    public,
)
from streamfold.settings import Settings

WRITTEN = Answer(201)
BUSY = Answer(429, "rejected execution")
BROKEN = Answer(503, "primary shard is not active")
LOST = EngineUnavailable("no answer")


class Sink:
    """Answers as it is told: ``script`` has for each request an error, or the answers by id."""

    def __init__(self, *script, takes=10**9):
        self.script = list(script)
        self.takes = takes  # documents of one request
        self.requests = []

    def bulk(self, actions):
        self.requests.append([action.id for action in actions])
        if len(actions) > self.takes:
            raise TooLarge("too large.")
        now = self.script.pop(0) if self.script else {}
        if isinstance(now, Exception):
            raise now
        return [now.get(action.id, WRITTEN) for action in actions]


def actions(count, size=2):
    return [Action("products", f"{number}", 7, b"x" * size) for number in range(count)]


class Pauses(list):
    """A deadline whose pauses are noted instead of waited for."""

    def __init__(self, seconds_left=float("inf")):
        self.left = seconds_left
        self.run = Deadline(seconds_left=lambda: self.left, stop_seconds=Settings().stop_seconds, pause=self.pause)

    def pause(self, seconds):
        self.append(seconds)
        self.left -= seconds


@pytest.fixture(autouse=True)
def longest():
    with patch("random.random", return_value=1.0):
        yield


@pytest.fixture
def pauses():
    return Pauses()


def test_documents_go_together_and_are_answered_in_order(pauses):
    sink = Sink({"1": Answer(409, "conflict", 9)})
    sent = send(sink, actions(3), pauses.run)
    assert sent == [Sent(WRITTEN), Sent(Answer(409, "conflict", 9)), Sent(WRITTEN)]
    assert [each.is_done for each in sent] == [True, False, True]
    assert (sink.requests, pauses) == ([["0", "1", "2"]], [])


def test_nothing_is_no_request(pauses):
    sink = Sink()
    assert send(sink, [], pauses.run) == []
    assert sink.requests == []


def test_a_request_has_a_thousand_documents_at_most(pauses):
    sink = Sink()
    assert send(sink, actions(2500), pauses.run) == [Sent(WRITTEN)] * 2500
    assert [len(request) for request in sink.requests] == [ACTIONS_MAX, ACTIONS_MAX, 500]


def test_a_request_has_so_many_bytes_at_most_and_one_document_at_least(pauses):
    sink = Sink()
    several = [*actions(4, size=300), Action("products", "large", 7, b"x" * 5000), *actions(1)]
    assert send(sink, several, pauses.run, 1000) == [Sent(WRITTEN)] * 6
    assert sink.requests == [["0", "1"], ["2", "3"], ["large"], ["0"]]


def test_a_request_has_five_megabytes_at_most_by_default(pauses):
    sink = Sink()
    send(sink, actions(20, size=600_000), pauses.run)
    assert [len(request) for request in sink.requests] == [8, 8, 4]


@pytest.mark.parametrize("answer", [BUSY, BROKEN])
def test_what_the_server_is_too_busy_for_is_sent_again_with_the_same_version(pauses, answer):
    sink = Sink({"1": answer, "3": answer}, {"3": answer})
    sent = send(sink, actions(5), pauses.run)
    assert sink.requests == [["0", "1", "2", "3", "4"], ["1", "3"], ["3"]]
    assert [each.answer for each in sent] == [WRITTEN] * 5
    assert [each.uncertain for each in sent] == [False, answer is BROKEN, False, answer is BROKEN, False]
    assert pauses == [0.2, 0.4]


def test_pauses_are_doubled_up_to_the_longest(pauses):
    sink = Sink(*[{"0": BUSY}] * TRIES)
    sent = send(sink, actions(2), pauses.run)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10]
    assert len(sink.requests) == TRIES
    assert sent[1] == Sent(WRITTEN)
    assert isinstance(sent[0].error, EngineUnavailable)
    assert public(sent[0].error.marked) == "OpenSearch was too busy for the document (429: ...); it is redelivered."
    assert not sent[0].uncertain


def test_when_the_time_is_over_nothing_more_is_begun():
    pauses = Pauses(seconds_left=12.5)
    sink = Sink({"0": BUSY}, {"0": BUSY})
    sent = send(sink, actions(2), pauses.run)
    assert len(sink.requests) == 2
    assert pauses == [0.2]
    assert isinstance(sent[0].error, EngineUnavailable)
    assert sent[1] == Sent(WRITTEN)


def test_without_time_nothing_is_sent():
    sink = Sink()
    (sent,) = send(sink, actions(1), Pauses(seconds_left=11).run)
    assert isinstance(sent.error, NotStarted)
    assert (sent.uncertain, sink.requests) == (False, [])


def test_a_request_that_is_too_large_is_halved(pauses):
    sink = Sink(takes=3)
    assert send(sink, actions(10), pauses.run) == [Sent(WRITTEN)] * 10
    assert [len(request) for request in sink.requests] == [10, 5, 2, 2, 2, 2, 2]
    assert pauses == []


def test_a_document_that_is_too_large_alone_is_given_up(pauses):
    class Small(Sink):
        def bulk(self, actions):
            if any(action.id == "1" for action in actions):
                raise TooLarge("OpenSearch takes no request of this size (413).")
            return super().bulk(actions)

    sent = send(Small(), actions(4, size=600), pauses.run)
    assert [each.answer for each in sent] == [WRITTEN, None, WRITTEN, WRITTEN]
    assert isinstance(sent[1].error, Unprocessable)
    assert str(sent[1].error) == (
        "The document has 600 bytes and is over the server's limit for a request: OpenSearch takes no request of this "
        "size (413). Keep less in the document, or raise http.max_content_length."
    )


def test_a_busy_server_gets_smaller_requests(pauses):
    sink = Sink(IndexBusy("busy"), IndexBusy("busy"))
    assert send(sink, actions(8), pauses.run) == [Sent(WRITTEN)] * 8
    assert [len(request) for request in sink.requests] == [8, 4, 2, 2, 2, 2]
    assert pauses == [0.2, 0.4]


def test_a_lost_answer_is_told_of_each_document_of_the_request(pauses):
    sink = Sink({}, LOST, {"2": Answer(409, "conflict", 7)})
    sent = send(sink, actions(6, size=300), pauses.run, 1000)
    assert sink.requests == [["0", "1"], ["2", "3"], ["2", "3"], ["4", "5"]]
    assert [each.uncertain for each in sent] == [False, False, True, True, False, False]
    assert sent[2] == Sent(Answer(409, "conflict", 7), uncertain=True)
    assert pauses == [0.2]


def test_what_never_left_is_not_uncertain(pauses):
    sink = Sink(EngineUnreachable("nobody there"))
    assert send(sink, actions(1), pauses.run) == [Sent(WRITTEN)]
    assert pauses == [0.2]


def test_a_server_without_answers_is_given_up_for_all_documents(pauses):
    sink = Sink({}, *[LOST] * TRIES)
    sent = send(sink, actions(6, size=300), pauses.run, 1000)
    assert sent[:2] == [Sent(WRITTEN)] * 2
    assert sent[2:4] == [Sent(error=LOST, uncertain=True)] * 2
    assert sent[4:] == [Sent(error=LOST)] * 2
    assert len(sink.requests) == 1 + TRIES


def test_an_answer_in_between_begins_the_count_anew(pauses):
    sink = Sink(*[LOST] * (TRIES - 1), {}, *[LOST] * (TRIES - 1))
    sent = send(sink, actions(4, size=300), pauses.run, 1000)
    assert [each.answer for each in sent] == [WRITTEN] * 4


def test_a_refused_document_is_given_up_alone_with_the_reason(pauses):
    sink = Sink({"1": Answer(400, "failed to parse field [stock] of type [long]: secret")})
    sent = send(sink, actions(3), pauses.run)
    assert [each.answer for each in sent] == [WRITTEN, None, WRITTEN]
    assert isinstance(sent[1].error, Unprocessable)
    assert "400: failed to parse field [stock] of type [long]: secret" in str(sent[1].error)
    assert "secret" not in public(sent[1].error.marked)
    assert "keyword" in str(sent[1].error)


def test_what_no_other_try_helps_is_raised_at_once(pauses):
    sink = Sink(EngineError("refused"))
    with pytest.raises(EngineError, match="refused"):
        send(sink, actions(3), pauses.run)
    assert (len(sink.requests), pauses) == (1, [])


def test_a_deletion_of_what_never_was_is_done(pauses):
    (sent,) = send(Sink({"0": Answer(404)}), [Action("products", "0", 7, None)], pauses.run)
    assert sent.is_done
