"""Histories in which time passes, on DynamoDB Local: clocks that differ, kills, visits that are late or come twice."""

from random import Random

import pytest

from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine
from streamfold.proofs.moments import visit_late
from streamfold.proofs.oracle import at_moment, expected_all, stored_rows
from streamfold.records.values import encode
from streamfold.runtime import MICROSECONDS, Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item
from tests.helpers.tables import make_table
from tests.helpers.woken import START, active, at, best, counted, leaders, made, overdue

HANDLERS = [counted, overdue, active, best, leaders]
WRITES, TICKETS, STEPS = 14, 3, 30
STEP_SECONDS, SKEW_SECONDS = 200, 300
CALLS_BEFORE_DEATH = 9
END_SECONDS = 24 * 3600
ROUNDS_MAX = 9


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """A store whose process may end after a number of calls."""

    def __init__(self, engine, calls):
        self.engine, self.calls = engine, calls

    def __getattr__(self, name):
        found = getattr(self.engine, name)
        if not callable(found):
            return found

        def call(*given, **more):
            if self.calls is not None:
                self.calls -= 1
                if self.calls < 0:
                    raise Killed
            return found(*given, **more)

        return call


class History:
    """One history by its seed, of one handler, in tables of its own."""

    def __init__(self, dynamodb, seed):
        self.random, self.now = Random(seed), START
        self.app = made(self.random.choice(HANDLERS))
        self.client, self.table, self.state = dynamodb, f"moments-{seed}", f"moments-{seed}-state"
        make_table(dynamodb, self.table, dict.fromkeys(("PK", "SK"), "S"))
        make_table(dynamodb, self.state, dict.fromkeys(("pk", "sk"), "S"))
        tables = {name: (table, self.table) for name, table in self.app.tables.items()}
        self.engine = DynamoEngine(dynamodb, tables, self.state, pause=lambda _: None)
        self.items, self.log, self.position = {}, [], 0

    def runtime(self, *, calls=None, skew=0):
        now = self.now + skew
        store = Mortal(self.engine, calls)
        return Runtime(self.app, store, Settings(), clock=lambda: now, pause=lambda _: None)

    def write(self):
        pk, seconds = f"TICKET#{self.random.randrange(TICKETS)}", self.now - START
        new = item(
            pk,
            "META",
            status=self.random.choice(("open", "open", "closed")),
            team=self.random.choice("ab"),
            due_at=at(seconds + self.random.randint(-STEP_SECONDS, 3 * STEP_SECONDS)),
            until=at(seconds + self.random.randint(STEP_SECONDS, 5 * STEP_SECONDS)),
        )
        if self.items.get(pk) and self.random.random() < 0.2:
            new = None
        self.log.append(change(self.items.get(pk), new, len(self.log) + 1))
        self.items[pk] = new
        if new is None:
            self.client.delete_item(TableName=self.table, Key={"PK": {"S": pk}, "SK": {"S": "META"}})
        else:
            self.client.put_item(TableName=self.table, Item=encode(new)["M"])

    def step(self):
        """A write, a batch that may be delivered again, a look for wakes, or time."""
        what = self.random.choice(("write", "deliver", "look", "pass"))
        calls = self.random.randrange(CALLS_BEFORE_DEATH) if self.random.random() < 0.4 else None
        runtime = self.runtime(calls=calls, skew=self.random.choice((0, 0, -SKEW_SECONDS, SKEW_SECONDS)))
        try:
            if what == "write" and len(self.log) < WRITES:
                self.write()
            elif what == "deliver":
                end = min(len(self.log), self.position + self.random.randint(1, 5))
                begin = self.random.randint(max(0, self.position - 2), self.position)
                process_changes(runtime, self.log[begin:end])
                self.position = end
            elif what == "look":
                visit_late(runtime, twice=self.random.random() < 0.3)
            else:
                self.now += self.random.randrange(STEP_SECONDS)
        except Killed:
            pass

    def rows(self):
        """What the history leaves, and what it should, long behind its last moment."""
        for _ in range(STEPS):
            self.step()
        assert process_changes(self.runtime(), self.log).failures == []
        self.now += END_SECONDS
        for _ in range(ROUNDS_MAX):
            found, failures = visit_late(self.runtime())
            assert failures == []
            if not found:
                break
        stored = self.client.scan(TableName=self.table, ConsistentRead=True)["Items"]
        rows = stored_rows(self.app, ((("main", each["PK"]["S"], each["SK"]["S"]), each) for each in stored))
        with at_moment(self.now * MICROSECONDS):
            return rows, expected_all(self.app, self.log)

    def wakes(self):
        items = self.client.scan(TableName=self.state, ConsistentRead=True)["Items"]
        return [
            each["sk"]["S"] for each in items if each["pk"]["S"].startswith("wake#") and "head" not in each["sk"]["S"]
        ]


def check(dynamodb, seed):
    history = History(dynamodb, seed)
    found, expected = history.rows()
    assert found == expected
    assert history.wakes() == []


@pytest.mark.parametrize("seed", range(50))
def test_histories_in_which_time_passes_leave_the_rows_of_their_end(dynamodb, seed):
    check(dynamodb, seed)
