"""The deadlines of the help desk: the rows of each moment, from the tickets and agents of then."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from zoneinfo import ZoneInfo

import pytest

from handlers.tickets import DUE_TODAY, ESCALATED, SILENT, TEAM_OVERDUE, app, due_today, silent_customers
from streamfold import Row
from streamfold.engines import EmbeddedEngine
from streamfold.testing import now
from tests.helpers.commands import streamfold
from tests.systems import EVENTS, Folded, delivered_again, recorded

RECORDS, TIMES = recorded("desk/deadlines")
KEYS = TEAM_OVERDUE, DUE_TODAY, SILENT, ESCALATED
HOUR, DAY = 60 * 60, 24 * 60 * 60
SIZES = (1, 7, 100, len(RECORDS))
MOMENTS = 12
"""Moments at which rows are compared, while records come."""


class Desk:
    """What a person would write down at a time who has all tickets and agents of then: no code of the handlers."""

    def __init__(self, seconds=TIMES[-1]):
        items = {}
        for record, time in zip(RECORDS, TIMES, strict=True):
            if time <= seconds:
                keys, new = record["dynamodb"]["Keys"], record["dynamodb"].get("NewImage")
                items[keys["PK"]["S"]] = new and {name: value["S"] for name, value in new.items()}
        self.time = datetime.fromtimestamp(seconds, UTC)
        self.agents = {name[6:]: item for name, item in items.items() if item and name.startswith("AGENT#")}
        self.tickets = {name[7:]: item for name, item in items.items() if item and name.startswith("TICKET#")}

    def overdue(self):
        """Of each team the open tickets of its agents that are past their deadlines, and the oldest deadline."""
        found = defaultdict(list)
        for ticket in self.tickets.values():
            agent = self.agents.get(ticket.get("assigned_to"))
            due_at = ticket.get("due_at")
            if ticket["status"] == "open" and due_at and agent and time_of(due_at) <= self.time:
                found[agent["team"]].append(due_at)
        return {team: {"tickets": len(each), "oldest": min(each)} for team, each in found.items()}

    def due_today(self):
        """The open tickets whose deadline is of the day that the desk's calendar shows."""
        today = self.time.astimezone(ZoneInfo("Europe/Zurich")).date()
        return {
            name: {"topic": ticket["topic"], "due_at": ticket["due_at"]}
            for name, ticket in self.tickets.items()
            if ticket["status"] == "open" and ticket.get("due_at")
            if time_of(ticket["due_at"]).astimezone(ZoneInfo("Europe/Zurich")).date() == today
        }

    def silent(self):
        """The tickets on which the customer has been silent for three days."""
        return {
            name: {"topic": ticket["topic"], "since": ticket["asked_at"]}
            for name, ticket in self.tickets.items()
            if ticket["status"] == "waiting" and self.time - time_of(ticket["asked_at"]) >= timedelta(days=3)
        }

    def rows(self):
        return {
            TEAM_OVERDUE: self.overdue(),
            DUE_TODAY: self.due_today(),
            SILENT: self.silent(),
            ESCALATED: escalations(self.time.timestamp()),
        }


def escalations(seconds):
    """How many deadlines had been missed by four hours up to a time, by the topic that the ticket had when it was.

    Each deadline of a ticket counts once, also one that it gets back, and one that was missed before it was set.
    """
    tickets, missed, topics = {}, set(), Counter()

    def pass_time(until):
        for name, ticket in tickets.items():
            due_at = ticket.get("due_at")
            if ticket["status"] == "open" and due_at and time_of(due_at).timestamp() + 4 * HOUR <= until:
                topics[ticket["topic"]] += (name, due_at) not in missed
                missed.add((name, due_at))

    for record, time in zip(RECORDS, TIMES, strict=True):
        name, new = record["dynamodb"]["Keys"]["PK"]["S"], record["dynamodb"].get("NewImage")
        if time > seconds:
            break
        pass_time(time)  # at one time a moment comes before a record
        if name.startswith("TICKET#"):
            tickets.pop(name, None)
            if new:
                tickets[name] = {each: value["S"] for each, value in new.items()}
        pass_time(time)
    pass_time(seconds)
    return {topic: {"tickets": count} for topic, count in topics.items() if count}


def time_of(text):
    return datetime.fromisoformat(text)


def rows(folded):
    """The rows of a state, by the first field of their keys."""
    return {key: {fields[0]: row for fields, row in folded.rows(key).items()} for key in KEYS}


@pytest.mark.parametrize("size", SIZES)
def test_rows_at_the_end_are_those_of_the_last_record_for_every_size_of_batches(size):
    assert rows(Folded(app, RECORDS, size)) == Desk().rows()


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_rows_are_those_of_any_moment_while_records_come(seed):
    seconds = Random(seed).randrange(TIMES[0], TIMES[-1] - DAY)
    if seed % 2:
        seconds += -seconds % DAY - HOUR // 2  # the next day has begun in Zurich, and not yet in UTC
    records = [record for record, time in zip(RECORDS, TIMES, strict=True) if time <= seconds]
    assert rows(Folded(app, records, 40, until=seconds)) == Desk(seconds).rows()


def test_rows_follow_time_when_nothing_is_written_any_more():
    folded = Folded(app, RECORDS)
    for seconds in range(TIMES[-1], TIMES[-1] + 15 * DAY, 7 * HOUR):
        folded.add([], until=seconds)
        assert rows(folded) == Desk(seconds).rows()
    assert rows(folded)[DUE_TODAY] == {}


@pytest.mark.parametrize("seed", range(2))
def test_records_that_are_delivered_again_change_nothing(seed):
    folded = Folded(app, delivered_again(RECORDS, Random(seed)), size=11)
    assert rows(folded) == Desk().rows()
    folded.add(RECORDS)
    assert rows(folded) == Desk().rows()


def test_the_command_lets_time_pass_until_a_moment(tmp_path):
    until = TIMES[-1] + 30 * HOUR
    text = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = tmp_path / "desk.db"
    file = EVENTS / "desk/deadlines.jsonl"
    done = streamfold("replay", file, "--app", "handlers.tickets:app", "--state", state, "--until", text)
    assert done.code == 0, done.err
    folded = Folded(app, [])
    folded.engine = EmbeddedEngine(app.tables.values(), state, app.chains)
    assert rows(folded) == Desk(until).rows() != Desk().rows()
    folded.engine.close()


def test_the_recording_has_what_makes_time_hard():
    days = {datetime.fromtimestamp(time, UTC).date() for time in TIMES}
    assert min(days) < datetime(2026, 3, 29, tzinfo=UTC).date() < max(days), "the clocks change"
    assert max(later - earlier for earlier, later in pairwise(TIMES)) > DAY, "time passes without a record"
    seen = [Desk(seconds).rows() for seconds in TIMES]
    for key in (TEAM_OVERDUE, DUE_TODAY, SILENT, ESCALATED):
        assert sum(one[key] != other[key] for one, other in pairwise(seen)) > 20
    moved = moves()
    assert min(moved["earlier"], moved["later"], moved["gone"], moved["same time"]) > 0, moved


def moves():
    """How deadlines move from one image to the next."""
    found = Counter()
    for record, time in zip(RECORDS, TIMES, strict=True):
        old, new = (
            (record["dynamodb"].get(name) or {}).get("due_at", {}).get("S") for name in ("OldImage", "NewImage")
        )
        found["gone"] += bool(old) and not new
        found["earlier"] += bool(old) and bool(new) and new < old
        found["later"] += bool(old) and bool(new) and new > old
        found["same time"] += bool(new) and time_of(new).timestamp() == time
    return found


def test_a_ticket_is_due_on_the_day_of_the_desk():
    ticket = {"status": "open", "topic": "login", "due_at": "2026-03-28T23:30:00Z"}  # half past midnight in Zurich
    row = Row(topic="login", due_at=ticket["due_at"])
    assert due_today(ticket, now("2026-03-28T22:59:59Z")) is None
    assert due_today(ticket, now("2026-03-28T23:00:00Z")) == due_today(ticket, now("2026-03-29T21:59:59Z")) == row
    assert due_today(ticket, now("2026-03-29T22:00:00Z")) is None, "a day of 23 hours"
    assert due_today({**ticket, "due_at": ""}, now("2026-03-28T23:30:00Z")) is None


def test_a_customer_is_silent_three_days_after_the_question():
    ticket = {"status": "waiting", "topic": "login", "asked_at": "2026-03-01T09:00:00Z"}
    assert silent_customers(ticket, now("2026-03-04T08:59:59Z")) is None
    assert silent_customers(ticket, now("2026-03-04T09:00:00Z")) == Row(topic="login", since=ticket["asked_at"])
    assert silent_customers({**ticket, "status": "open"}, now("2026-03-04T09:00:00Z")) is None
