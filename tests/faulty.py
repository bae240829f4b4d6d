"""An engine whose calls fail in every way that a store's can, a look at the invariants after each, and a driver."""

import json
from collections import defaultdict
from decimal import Decimal

from streamfold.chains import run_chains
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import EngineUnavailable
from streamfold.limits import ACTIONS_MAX
from streamfold.process import process_event
from streamfold.settings import Settings
from streamfold.table import CONTRIBUTORS, VERSION
from streamfold.values import decode
from streamfold.world import World
from streamfold.writes import Reason, Refused

FAULTS = {
    "transact": (
        "refused",
        "conflict",
        "unavailable",
        "answer lost",
        "dies before",
        "dies after",
        "zombie",
        "late death",
    ),
    "put_rows": ("not taken", "unavailable", "answer lost", "dies before", "dies after", "zombie", "late death"),
    "remove_empty": ("unavailable", "answer lost", "dies before", "dies after", "zombie", "late death"),
    "swap_state": ("unavailable", "answer lost", "dies before", "dies after", "zombie"),
    "read_state": ("unavailable", "dies before", "dies after"),
    "pending": ("dies before", "dies after"),
    "advance": ("dies before", "dies after"),
}
ZOMBIE_CALLS_MAX = 25
"""Calls after which a call that was believed dead lands at the latest."""


TRIES_MAX = 40
"""Deliveries after which nothing fails any more."""


def driven(app, engine, records, random):
    """Delivers as Lambda does, from the lowest failed record on, while calls of the engine fail; returns it wrapped.

    Some failed records are given up, and come again behind all others, shuffled.
    """
    engine = FaultyEngine(app, engine, random, random.choice((0.05, 0.2, 0.4)))
    world = World(Settings(chunk_actions=random.choice((2, 10, 25, 100))), pause=lambda seconds: None)
    position, given_up = 0, []
    for _ in range(TRIES_MAX):
        position += _attempt(app, records[position : position + random.choice((1, 3, 10, 1000))], engine, world)
        if position == len(records):
            break
        if random.random() < 0.1:
            given_up.append(records[position])
            position += 1
    engine.bury()
    random.shuffle(given_up)
    for batch in (records[position:], given_up):
        assert _attempt(app, batch, engine, world) == len(batch)
    return engine


def _attempt(app, batch, engine, world):
    """How many records of a batch are through: those before the lowest that failed, none where the process died."""
    try:
        failures = process_event(app, batch, engine, world).failures
        if isinstance(engine.engine, EmbeddedEngine):
            chains = run_chains(app, engine, world).failures
            engine.retry()
            assert engine.rate or not chains
    except (Died, EngineUnavailable):
        app.checked_engines.pop(engine, None)
        return 0
    sequences = [record["dynamodb"]["SequenceNumber"] for record in batch]
    return min((sequences.index(failure.sequence) for failure in failures), default=len(batch))


class Died(BaseException):
    """The process ended here."""


class FaultyEngine:
    """Passes calls on to an engine, or lets them fail; ``rate`` is how many of them do. Looks at the invariants."""

    def __init__(self, app, engine, random, rate):
        self.app = app
        self.engine = engine
        self.random = random
        self.rate = rate
        self.zombies = []
        self.faults = defaultdict(int)
        self.invariants = Invariants(app, engine)

    def transact(self, writes, expires_at):
        assert len(writes) <= ACTIONS_MAX
        assert len({write.key for write in writes}) == len(writes)
        return self._call("transact", writes, expires_at)

    def put_rows(self, rows):
        return self._call("put_rows", rows)

    def remove_empty(self, rows):
        return self._call("remove_empty", rows)

    def read_state(self, keys, *, consistent=False):
        return self._call("read_state", list(keys))

    def swap_state(self, key, attributes, revision):
        return self._call("swap_state", key, attributes, revision)

    def pending(self, *arguments):
        return self._call("pending", *arguments)

    def advance(self, *arguments):
        return self._call("advance", *arguments)

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def bury(self):
        """Lets what is still on its way land, and fails no more."""
        self.rate = 0
        while self.zombies:
            self._land(self.zombies.pop())

    def _call(self, name, *arguments):
        self._land_some()
        if self.random.random() >= self.rate:
            return self._carry_out(name, *arguments)
        fault = self.random.choice(FAULTS[name])
        self.faults[name, fault] += 1
        return getattr(self, "_" + fault.replace(" ", "_"))(name, *arguments)

    def _carry_out(self, name, *arguments):
        answer = getattr(self.engine, name)(*arguments)
        self.invariants.check()
        return answer

    def _land_some(self):
        for zombie in [zombie for zombie in self.zombies if self.random.random() < 0.2]:
            self.zombies.remove(zombie)
            self._land(zombie)

    def _land(self, zombie):
        self._carry_out(*zombie)

    def _refused(self, name, writes, expires_at):
        return Refused((None,) * (len(writes) - 1) + (Reason("ValidationError", None, "a fault"),))

    def _conflict(self, name, writes, expires_at):
        return Refused((Reason("TransactionConflict"),) + (None,) * (len(writes) - 1))

    def _not_taken(self, name, rows):
        taken = [row for row in rows if self.random.random() < 0.5]
        self._carry_out(name, taken)
        return [row.key for row in rows if row not in taken]

    def _unavailable(self, name, *arguments):
        raise EngineUnavailable("a fault")

    def _answer_lost(self, name, *arguments):
        self._carry_out(name, *arguments)
        raise EngineUnavailable("a fault")

    def _dies_before(self, name, *arguments):
        raise Died

    def _dies_after(self, name, *arguments):
        self._carry_out(name, *arguments)
        raise Died

    def _zombie(self, name, *arguments):
        self.zombies.append((name, *arguments))
        raise EngineUnavailable("a fault")

    def _late_death(self, name, *arguments):
        self.zombies.append((name, *arguments))
        raise Died


class Invariants:
    """What holds after every call (numbers of the reference, section 5): looked at, not computed with the planner."""

    def __init__(self, app, engine):
        self.app = app
        self.engine = engine
        self.state = {}
        self.versions = {}

    def check(self):
        state = {(item["pk"]["S"], item["sk"]["S"]): decode({"M": item}) for item in self.engine.state_items()}
        rows = {}
        for table in self.app.tables.values():
            for item in self.engine.items(table):
                rows[(table.name, *(decode(item[name]) for name in table.attributes))] = decode({"M": item})
        self._rows_are_the_sums_of_what_the_ledger_holds(state, rows)
        self._revisions_and_versions_only_rise(state)
        self._guarded_rows_never_go_back(rows)

    def _rows_are_the_sums_of_what_the_ledger_holds(self, state, rows):
        expected = defaultdict(lambda: defaultdict(Decimal))
        for (pk, sk), item in state.items():
            for name, text in item.items() if pk.startswith("ledger#") else ():
                if name.endswith(".s") and text:
                    part = state.get((pk.replace("ledger#", "part#", 1), f"{sk}#{name[:-2]}"))
                    for table, partition, sort, amounts, *_ in json.loads(part["s"] if text.startswith("@") else text):
                        row = expected[table, partition, sort]
                        row[CONTRIBUTORS] += 1
                        for attribute, amount in amounts.items():
                            row[attribute] += Decimal(amount)
        targets = [target for route in self.app.routes if route.ledger for target in route.targets]
        for key, row in rows.items():
            target = next((target for target in targets if target.key.match_values(*key[1:]) is not None), None)
            if target is not None:
                found = {
                    name: value for name, value in row.items() if name in expected.get(key, {}) or name == CONTRIBUTORS
                }
                assert found == {CONTRIBUTORS: 0, **expected.pop(key, {})}, key
                assert not target.whole or row[CONTRIBUTORS] == 1, key
        assert not expected

    def _revisions_and_versions_only_rise(self, state):
        for key, before in self.state.items():
            now = state.get(key)
            if key[0].startswith(("ledger#", "manifest#")) and now != before:
                assert now is not None, key
                assert now["r"] == before["r"] + 1, key
                assert all(now[name] >= value for name, value in before.items() if name.endswith(".v")), key
        self.state = state

    def _guarded_rows_never_go_back(self, rows):
        versions = {key: row[VERSION] for key, row in rows.items() if VERSION in row}
        for key, version in self.versions.items():
            assert versions[key] >= version, key  # and it is still there: a removed row stays as a tombstone
        self.versions = versions
