"""External handlers: called once as far as can be told, again after they raised or were abandoned.

All tests run with calls one after the other, in threads, and in the event loop.
"""

import asyncio
import time
from asyncio import CancelledError

import pytest

from streamfold import App, Key, Router
from streamfold.batch.process import process_event
from streamfold.engines import EmbeddedEngine
from streamfold.errors import EngineUnavailable
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import StateKey
from tests.helpers.source import Source

SESSION = Key("SESSION#{session_id}", "METADATA")
DAY_SECONDS = 24 * 60 * 60
WAYS = ("one by one", "threads", "coroutines")


class Mails:
    """An application whose only handler sends a mail, and what it sent."""

    def __init__(self, way):
        self.sent = []
        self.trouble = None
        self.way = way
        router = Router()
        declare = router.on(
            SESSION, external=True, events=["INSERT", "REMOVE"], at_once=1 if way == "one by one" else 4
        )

        def send_mail(change, session_id):
            if self.trouble:
                raise self.trouble
            self.sent.append((session_id, change.event))

        async def send(change, session_id):
            await asyncio.sleep(0)
            send_mail(change, session_id)

        send.__name__ = "send_mail"
        declare(send if way == "coroutines" else send_mail)
        self.app = App("shop", routers=[router])
        self.engine = EmbeddedEngine(self.app.tables.values())

    def deliver(self, *records, external=True, **settings):
        run = Runtime(self.app, self.engine, Settings(**settings), outside=external)
        return process_event(run, list(records))

    def notes(self):
        """The state items that say which calls were made."""
        return [item for item in self.engine.state_items() if item["pk"]["S"].startswith("external#")]

    def rewrite(self, **attributes):
        """Makes the only note say something else."""
        (item,) = self.notes()
        written = {name: next(iter(value.values())) for name, value in item.items()}
        key = StateKey(written.pop("pk"), written.pop("sk"))
        changed = {
            **{name: int(value) if name in ("ttl", "until", "r") else value for name, value in written.items()},
            **attributes,
        }
        with self.engine._work():
            self.engine._apply({key: changed})


@pytest.fixture(params=WAYS)
def mails(request):
    return Mails(request.param)


@pytest.fixture
def record():
    return Source().put("SESSION#1", user="ana")


def test_a_call_that_would_end_the_program_fails_its_record_and_is_made_again(mails, record):
    mails.trouble = CancelledError()
    (failure,) = mails.deliver(record).failures
    assert failure.what == "HandlerError: Handler 'send_mail' raised CancelledError: a handler only computes."
    mails.trouble = None
    assert mails.deliver(record).failures == []
    assert mails.sent == [("1", "INSERT")]


def test_handler_is_called_for_the_changes_that_it_takes_with_the_fields_it_asks_for(mails):
    source = Source()
    records = [source.put("SESSION#1", user="ana"), source.put("SESSION#1", user="bo"), source.remove("SESSION#1")]

    assert mails.deliver(*records).failures == []
    assert mails.sent == [("1", "INSERT"), ("1", "REMOVE")]


def test_handler_is_not_called_again_for_a_change_that_comes_again(mails, record):
    for _ in range(3):
        assert mails.deliver(record, record).failures == []

    assert mails.sent == [("1", "INSERT")]


def test_handler_is_not_called_unless_that_is_asked_for(mails, record):
    report = mails.deliver(record, external=False)

    assert mails.sent == []
    assert report.counts["external_skipped"] == {"send_mail": 1}


def test_handler_that_raised_is_called_again(mails, record):
    mails.trouble = ConnectionError("no mail today")
    (failure,) = mails.deliver(record).failures
    assert (failure.handler, failure.error) == ("send_mail", mails.trouble)
    mails.trouble = None

    assert mails.deliver(record).failures == []
    assert mails.sent == [("1", "INSERT")]


def test_failure_holds_the_later_changes_of_the_item_only(mails):
    source = Source()
    records = [source.put("SESSION#1"), source.put("SESSION#2"), source.remove("SESSION#1")]
    mails.trouble = ConnectionError("no mail today")

    failures = mails.deliver(*records).failures

    assert sorted((failure.item.partition(" ")[0], failure.held) for failure in failures) == [
        ("SESSION#1", False),
        ("SESSION#1", True),
        ("SESSION#2", False),
    ]


def test_call_that_is_still_running_elsewhere_fails_the_record(mails, record):
    mails.deliver(record)
    mails.rewrite(status="INPROGRESS", until=int((time.time() + 30) * 1000))

    (failure,) = mails.deliver(record).failures

    assert "already in progress" in str(failure.error)
    assert mails.sent == [("1", "INSERT")]


def test_call_that_was_begun_and_abandoned_is_made_again(mails, record):
    mails.deliver(record)
    mails.rewrite(status="INPROGRESS", until=int((time.time() - 1) * 1000))

    assert mails.deliver(record).failures == []
    assert len(mails.sent) == 2


def test_note_that_expired_is_no_longer_looked_at(mails, record):
    mails.deliver(record)
    mails.rewrite(ttl=int(time.time()) - 1)

    mails.deliver(record)

    assert len(mails.sent) == 2


def test_note_is_kept_as_long_as_claims_are(mails, record):
    mails.deliver(record, retention_days=10)

    (note,) = mails.notes()
    assert int(note["ttl"]["N"]) == pytest.approx(time.time() + 10 * DAY_SECONDS, abs=60)


def test_note_of_a_call_that_failed_expires_like_any_other(mails, record):
    mails.trouble = ConnectionError("no mail today")
    mails.deliver(record, retention_days=10)

    (note,) = mails.notes()
    assert note["status"] == {"S": "EXPIRED"}
    assert int(note["ttl"]["N"]) == pytest.approx(time.time() + 10 * DAY_SECONDS, abs=60)


def test_two_calls_that_race_lead_to_one(mails, record, monkeypatch):
    """The other delivery writes its note between our look and our note."""
    original = mails.engine.swap_state
    other = Mails(mails.way)
    other.engine = mails.engine

    def swap(*arguments):
        monkeypatch.setattr(mails.engine, "swap_state", original)
        other.deliver(record)
        return original(*arguments)

    mails.deliver(Source().put("PROFILE#1"))  # the manifest is written
    monkeypatch.setattr(mails.engine, "swap_state", swap)
    mails.deliver(record)

    assert len(mails.sent) + len(other.sent) == 1


def test_store_that_does_not_answer_fails_the_record_without_a_call(mails, record, monkeypatch):
    mails.deliver(Source().put("PROFILE#1"))
    monkeypatch.setattr(mails.engine, "swap_state", _unavailable)

    (failure,) = mails.deliver(record).failures

    assert failure.handler == "send_mail"
    assert isinstance(failure.error, EngineUnavailable)
    assert mails.sent == []


def _unavailable(*arguments):
    raise EngineUnavailable("no answer")


def test_process_that_dies_behind_the_call_calls_again_when_the_note_is_abandoned(mails, record, monkeypatch):
    """At least once: nobody can tell whether the mail went out."""
    swaps = []
    original = mails.engine.swap_state
    mails.deliver(Source().put("PROFILE#1"))

    def die_at_the_second(*arguments):
        swaps.append(arguments)
        if len(swaps) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(mails.engine, "swap_state", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        mails.deliver(record)
    monkeypatch.undo()
    assert mails.deliver(record).failures != []
    mails.rewrite(until=0)

    assert mails.deliver(record).failures == []
    assert len(mails.sent) == 2
