"""Scripts of a few changes of items and their referents, whose store calls are put into any order by a scheduler.

Those of a search end with documents instead of rows: a request to its index is a call as well.

Workers are threads, of which one runs at a time: each stops before every call of the store, and the scheduler chooses
who goes on. It delivers records of one item in order, and those of two items in any order; it lets a worker die, a
write land late or twice, a read of a ledger item be old, a record be delivered again while the worker that had it runs
on, and gives records up that are redriven at the end.
"""

from collections import Counter
from functools import cache
from random import Random
from threading import Semaphore, Thread, current_thread
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from streamfold import App, Count, Document, Key, Lookup, Router, Row, Sum
from streamfold.batch import referrers
from streamfold.batch.fan_outs import run_fan_outs, watch_open
from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import MemoryEngine
from streamfold.failures.repair import Repair
from streamfold.ledger.contribution import backlinks
from streamfold.proofs.invariants import InvariantBroken, Invariants
from streamfold.proofs.oracle import expected_all, outside_rows, stored_rows
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item

LINE = Key("LINE#{line_id}", "META")
PRODUCT, CATEGORY = Key("PRODUCT#{product_id}", "META"), Key("CATEGORY#{category_id}", "META")
ROW = Key("ROW#{row}", "TOTAL")
READ_PRODUCT = Lookup(PRODUCT, reads=["category", "price"])
UNSEEN = ("manifest#", "kinds#", "index#")
"""State items whose reads are no matter of lookups: a worker does not stop before them."""
CALLS = (
    "transact",
    "insert_state",
    "read_state",
    "read_sources",
    "read_source",
    "page",
    "read_entries",
    "swap_state",
    "clear_pending",
    "count_up",
)
WRITES = ("transact", "insert_state", "swap_state", "count_up", "bulk")
STEPS_MAX = 3_000
WEIGHTS = {"change": 4, "step": 4, "take": 6, "lane": 4, "land": 2, "redrive": 1}
FAULT_WEIGHT, STICKS = 0.25, 4


def inner(inline):
    """A line with its product."""
    router = Router()

    @router.view(LINE, into=ROW, lookup={"product": READ_PRODUCT}, inline=inline)
    def lines(line, product):
        return Row(row=product["category"], amount=Sum(line["quantity"] * product["price"]), lines=Count())

    return App("walks", routers=[router])


def left(inline):
    """A line with two products, each of which may lack."""
    router = Router()
    looked_up = {
        "one": Lookup(PRODUCT, optional=True),
        "two": Lookup(PRODUCT, product_id="other_id", optional=True),
    }

    @router.view(LINE, into=ROW, lookup=looked_up, inline=inline)
    def lines(line, one, two):
        row = f"{one['category'] if one else '-'}{two['price'] if two else '-'}"
        return Row(row=row, lines=Count())

    return App("walks", routers=[router])


def nested(inline):
    """A line with its product's category."""
    router = Router()
    looked_up = {"product": Lookup(PRODUCT, reads=[]), "category": Lookup(CATEGORY, through="product")}

    @router.view(LINE, into=ROW, lookup=looked_up, inline=inline)
    def lines(line, product, category):
        return Row(row=category["name"], amount=Sum(line["quantity"] + 1), lines=Count())

    return App("walks", routers=[router])


def two_handlers(inline):
    """Two handlers of one line, of which one has more rows than fit beside the other's."""
    router = Router()

    @router.view(LINE, into=ROW, lookup={"product": READ_PRODUCT}, inline=inline)
    def lines(line, product):
        for number in range(60):
            yield Row(row=f"{product['category']}{number}", amount=Sum(line["quantity"]), lines=Count())

    @router.view(LINE, into=Key("OTHER#{row}", "TOTAL"), lookup={"product": READ_PRODUCT}, inline=inline)
    def others(line, product):
        for number in range(60):
            yield Row(row=f"{product['category']}{number}", amount=Sum(line["quantity"]), lines=Count())

    return App("walks", routers=[router])


def large(inline):
    """Rows that do not fit one transaction."""
    router = Router()

    @router.view(LINE, into=ROW, lookup={"product": READ_PRODUCT}, inline=inline)
    def lines(line, product):
        for number in range(70):
            yield Row(row=f"{product['category']}{number}", amount=Sum(line["quantity"]), lines=Count())

    return App("walks", routers=[router])


def searched(inline):
    """A document of a line with its product."""
    router = Router()

    @router.search(LINE, to="lines", fields={"row": "keyword"}, lookup={"product": READ_PRODUCT}, inline=inline)
    def lines(line, product):
        return Document(row=product["category"], amount=line["quantity"] * product["price"])

    return App("walks", routers=[router])


def searched_nested(inline):
    """A document of a line with its product's category, under an id that follows from the category too."""
    router = Router()
    looked_up = {"product": Lookup(PRODUCT, reads=[]), "category": Lookup(CATEGORY, through="product")}

    @router.search(LINE, to="lines", id="{line_id}#{row}", fields={"row": "keyword"}, lookup=looked_up, inline=inline)
    def lines(line, product, category):
        return Document(row=category["name"], quantity=line["quantity"])

    return App("walks", routers=[router])


class Script(NamedTuple):
    """What is there, and which changes come, in this order; when each of them does is drawn."""

    made: Any
    items: dict[str, Any]
    changes: list[tuple[str, Any]]
    unknown: tuple[str, ...] = ()  # items that no step was made of yet: older than the handler
    notes: tuple[tuple[str, str], ...] = ()  # backlinks that lie about
    inline: int = 2_000
    page: int = 1_000


def product(category, price=1, note=0):
    return {"category": category, "price": price, "note": note}


def line(product_id, quantity=1, **more):
    return {"product_id": product_id, "quantity": quantity, **more}


A1, A2, B1, C2 = product("a"), product("a", 2), product("b"), product("c", 2)
SCRIPTS = {
    "insert, referent changes": Script(inner, {"P0": A1}, [("L0", line("P0")), ("P0", B1)]),
    "insert, referent changes and back": Script(inner, {"P0": A1}, [("L0", line("P0")), ("P0", B1), ("P0", A1)]),
    "insert, amended, referent changes": Script(
        inner, {"P0": A1}, [("L0", line("P0", 3)), ("L0", line("P0")), ("P0", A2)]
    ),
    "insert, reference moves, new one changes": Script(
        inner, {"P0": A1, "P1": B1}, [("L0", line("P0")), ("L0", line("P1")), ("P1", A2)]
    ),
    "both sides change": Script(inner, {"P0": A1, "L0": line("P0")}, [("P0", B1), ("L0", line("P0", 2))]),
    "reference moves and returns, referent changes": Script(
        inner, {"P0": A1, "P1": B1, "L0": line("P0")}, [("L0", line("P1")), ("L0", line("P0")), ("P0", C2)]
    ),
    "removed, inserted again, referent changes": Script(
        inner, {"P0": A1, "L0": line("P0")}, [("L0", None), ("L0", line("P0", 2)), ("P0", B1)]
    ),
    "item before its referent": Script(inner, {}, [("L0", line("P0")), ("P0", A1)]),
    "referent comes, goes": Script(inner, {"L0": line("P0")}, [("P0", A1), ("P0", None)]),
    "item older than the handler": Script(
        inner, {"P0": A1, "L0": line("P0")}, [("L0", line("P0", 2)), ("P0", B1)], unknown=("L0",)
    ),
    "a backlink that lies about": Script(
        inner,
        {"P0": A1, "P1": B1, "L0": line("P1")},
        [("P0", C2), ("L0", line("P0")), ("P0", A2)],
        notes=(("P0", "L0"),),
    ),
    "two referents and the line change": Script(
        left,
        {"P0": A1, "P1": B1, "L0": line("P0", other_id="P1")},
        [("P0", C2), ("P1", product("b", 2)), ("L0", line("", other_id="P1"))],
    ),
    "product and its category change": Script(
        nested,
        {"P0": {"category_id": "C0"}, "C0": {"name": "x"}, "C1": {"name": "y"}, "L0": line("P0")},
        [("P0", {"category_id": "C1"}), ("C1", {"name": "x"})],
    ),
    "a fan-out, a newer change in the middle": Script(
        inner, {"P0": A1, "L0": line("P0"), "L1": line("P0")}, [("P0", B1), ("P0", C2)], inline=1, page=1
    ),
    "a fan-out, a line comes": Script(
        inner,
        {"P0": A1, "L1": line("P0"), "L2": line("P0")},
        [("P0", B1), ("L0", line("P0"))],
        inline=1,
        page=1,
    ),
    "two that do not fit one transaction": Script(
        two_handlers, {"P0": A1, "L0": line("P0")}, [("L0", line("P0", 2)), ("P0", B1)]
    ),
    "rows that do not fit one transaction": Script(
        large, {"P0": A1, "P1": B1, "L0": line("P0")}, [("L0", line("P1")), ("P0", C2), ("P1", A2)]
    ),
}
SCRIPTS |= {
    f"search: {name}": script._replace(made=searched if script.made is inner else searched_nested)
    for name, script in SCRIPTS.items()
    if script.made in (inner, nested)
}
KEYS = {"L": "LINE", "P": "PRODUCT", "C": "CATEGORY"}


class Died(BaseException):
    """A worker ends here."""


class Worker(Thread):
    """Runs one invocation, and stops before each call of the store."""

    def __init__(self, what, name, changes, body):
        super().__init__(daemon=True)
        self.what, self.key, self.changes, self.body = what, name, changes, body
        self.primary = what == "take"
        self.go, self.stopped = Semaphore(0), Semaphore(0)
        self.pending: Any = None
        self.order: Any = None
        self.failed = self.dead = False

    def begin(self):
        self.start()
        self.stopped.acquire()
        return self

    def run(self):
        try:
            self.failed = bool(self.body())
        except Died:
            self.failed = True
        except Exception as error:  # noqa: BLE001 - what a function raises ends its invocation
            self.failed = True
            self.error = error
        self.failed |= self.dead
        self.pending = None
        self.stopped.release()

    def stop(self, call):
        if not self.dead:  # parts are read within a handler's call, and what that raises is its failure
            self.pending = call
            self.stopped.release()
            self.go.acquire()
        if self.order is None:
            self.dead = True
            raise Died
        return self.order

    def resume(self, order):
        """Goes on to its next call: ``order`` carries this one out; None ends the worker here."""
        self.order = order
        self.go.release()
        self.stopped.acquire()


class ScheduledStore:
    """Dictionaries, whose calls by workers are carried out when the scheduler chooses to."""

    def __init__(self, engine):
        self.engine = engine
        self.is_local, self.own_stream, self.by_prefix, self.durable = True, engine, engine, None
        self.separate = None

    def __getattr__(self, name):
        method = getattr(self.engine, name)
        return method if name not in CALLS else lambda *given, **named: self._call(name, method, given, named)

    def _call(self, name, method, given, named):
        worker = current_thread()
        if name in ("read_state", "read_sources"):
            given = (list(given[0]),)
        keys = given[0] if name == "read_state" else [given[0]] if name == "swap_state" else ()
        unseen = keys and all(key.pk.startswith(UNSEEN) for key in keys)
        return (
            method(*given, **named) if unseen or not isinstance(worker, Worker) else worker.stop((name, given, named))()
        )


class ScheduledIndex(LocalIndex):
    """An index whose requests are carried out when the scheduler chooses to."""

    def __init__(self, store):
        super().__init__(store.engine)
        self.store, self.carry_out = store, super().bulk

    def bulk(self, actions):
        return self.store._call("bulk", self.carry_out, (list(actions),), {})


@cache
def application_of(made, inline):
    """The application of a script; a walk changes nothing of it."""
    return made(inline)


class Walk:
    """One random walk over a script."""

    def __init__(self, script, seed, faults=2):
        self.script, self.random, self.faults = script, Random(seed), faults
        self.app = application_of(script.made, script.inline)
        self.open()
        self.items, self.log, self.acked = {}, {}, Counter()
        self.sequence = 1_000
        self.before = {}
        self.workers, self.late, self.parked = [], [], []
        self.todo = list(script.changes)
        self.moves_made = []
        self.broken = self.last = None
        for name, content in script.items.items():
            self.write(name, content)
        known = [name for name in script.items if name not in script.unknown]
        for name in sorted(known):
            process_changes(self.runtime(self.engine), self.log[name])
        self.acked.update(dict.fromkeys(script.items, 1))
        for referent, referrer in script.notes:
            self.engine.insert_state(backlinks("walks", "lines", self.place(referrer), [self.place(referent)]))
        self.check()

    def open(self):
        """Opens the store: dictionaries, whose invariants are checked after each call."""
        self.engine = MemoryEngine(self.app)
        self.engine.source_tables.update(self.app.source_tables)
        self.store = ScheduledStore(self.engine)
        self.index = ScheduledIndex(self.store)
        self.invariants = Invariants(self.app, self.engine)

    def put(self, place, raw, version_text):
        """Writes an item, None: removes it."""
        self.engine.put_sources([(place, raw, version_text)])

    def check(self):
        try:
            self.invariants.check()
        except InvariantBroken as broken:
            self.broken = self.broken or f"InvariantBroken: {broken}"

    @staticmethod
    def place(name):
        return "main", f"{KEYS[name[0]]}#{name}", "META"

    def runtime(self, store=None):
        opened = {OPENED: self.index}
        return Runtime(self.app, store or self.store, Settings(), pause=lambda _: None, opened=opened)

    def write(self, name, content):
        _, pk, sk = place = self.place(name)
        new = None if content is None else item(pk, sk, **content)
        old, self.items[name] = self.items.get(name), new
        self.sequence += 1
        made = change(old, new, self.sequence)
        self.put(place, None if new is None else encode(new)["M"], made.version_text)
        self.log.setdefault(name, []).append(made)

    def process(self, changes):
        def body():
            runtime = self.runtime()
            failures = process_changes(runtime, changes).failures
            self.queued |= {*runtime.queued}
            return failures

        return body

    queued: set = frozenset()  # type: ignore[assignment]

    def lanes(self):
        runtime = self.runtime(self.engine)
        watch_open(runtime)
        return sorted(set(runtime.queued))

    def work(self, queued):
        def body():
            runtime = self.runtime()
            runtime.queued = [queued]
            return run_fan_outs(runtime).failures

        return body

    def redrive(self, name, changes):
        def body():
            last = changes[-1]
            repaired = Repair(self.runtime()).item(self.place(name), version=last.version_text, changes=changes)
            return [each for each in repaired if each.error is not None]

        return body

    def moves(self):
        moves = [("change",)] if self.todo else []
        moves += [("step", worker) for worker in self.workers]
        if len(self.workers) < 3:
            for name in sorted(self.log):
                rest = len(self.log[name]) - self.acked[name]
                if rest and not any(each.primary and each.key == name for each in self.workers):
                    moves += [("take", name, count) for count in range(1, min(rest, 2) + 1)]
            busy = [each.key for each in self.workers if each.what == "lane"]
            moves += [("lane", queued) for queued in self.lanes() if queued not in busy]
        if self.faults:
            for worker in self.workers:
                name, _, named = worker.pending
                moves.append(("die after", worker))
                if name in WRITES:
                    moves += [("late", worker), ("twice", worker)]
                if name == "read_state" and not named.get("consistent"):
                    moves.append(("stale", worker))
                if worker.primary:
                    moves += [("runs on, again", worker), ("runs on, given up", worker)]
        moves += [("land", number) for number in range(len(self.late))]
        if not moves and self.parked:
            moves = [("redrive",)]
        return moves

    def run(self):
        """What is wrong at the end, or on the way; None if nothing is."""
        try:
            with patch.multiple(referrers, PAGE=self.script.page, SEGMENTS=2):
                for _ in range(STEPS_MAX):
                    if self.broken or not (moves := self.moves()):
                        break
                    self.make(self.random.choices(moves, [self.weight(*each) for each in moves])[0])
                else:
                    return "it comes to no end"
        finally:
            for worker in self.workers:
                worker.resume(None)
        return self.broken or self.difference()

    def weight(self, what, worker=None, *_):
        """How likely a move is: the worker that made the last step often makes the next, while others wait."""
        return WEIGHTS.get(what, FAULT_WEIGHT) * (STICKS if what == "step" and worker is self.last else 1)

    def make(self, move):
        what = move[0]
        who = move[1] if len(move) > 1 else None
        self.moves_made.append(
            f"{what}: {who.what} {who.key}, {who.pending[0]}" if isinstance(who, Worker) else str(move)
        )
        if what == "change":
            self.write(*self.todo.pop(0))
        elif what == "take":
            _, name, count = move
            changes = self.log[name][self.acked[name] : self.acked[name] + count]
            self.begin(Worker("take", name, changes, self.process(changes)))
        elif what == "lane":
            self.begin(Worker("lane", move[1], (), self.work(move[1])))
        elif what == "redrive":
            name, changes = self.parked.pop(0)
            self.begin(Worker("redrive", name, changes, self.redrive(name, changes)))
        elif what == "land":
            self.carry_out(*self.late.pop(move[1]))
        else:
            self.go_on(what, move[1])

    def begin(self, worker):
        self.last = worker
        self.workers.append(worker.begin())
        self.ended(worker)

    def go_on(self, what, worker):
        self.faults -= what != "step"
        self.last = worker
        call = worker.pending
        if what == "late":
            self.late.append(call)
            worker.resume(None)
        elif what == "die after":
            self.carry_out(*call)
            worker.resume(None)
        elif what == "runs on, again":
            worker.primary = False
        elif what == "runs on, given up":
            worker.primary = False
            self.parked.append((worker.key, worker.changes))
            self.acked[worker.key] += len(worker.changes)
        else:
            if what == "twice":
                self.late.append(call)
            worker.resume(lambda: self.carry_out(*call, stale=what == "stale"))
        self.ended(worker)

    def ended(self, worker):
        if worker.pending is not None:
            return
        self.workers.remove(worker)
        if worker.primary and not worker.failed:
            self.acked[worker.key] += len(worker.changes)
        if worker.what == "redrive" and worker.failed:
            self.parked.append((worker.key, worker.changes))

    def carry_out(self, name, given, named, *, stale=False):
        if name == "transact":
            for write in given[0]:
                if getattr(write.key, "pk", "").startswith("ledger#"):
                    self.before[write.key] = self.engine.state.get(write.key)
        method = self.index.carry_out if name == "bulk" else getattr(self.engine, name)
        found = method(*given, **named)
        if stale:
            found = {key: old for key in given[0] if (old := self.before.get(key, found.get(key))) is not None}
        self.check()
        return found

    def difference(self):
        expected = expected_all(self.app, [each for own in self.log.values() for each in own])
        found = stored_rows(self.app, self.engine.rows.items())
        found |= outside_rows(self.app, SimpleNamespace(store=self.engine))
        return None if found == expected else f"Rows differ from the declarations: {found}, expected {expected}"


def walked(name, walks, seed=0, faults=2):
    """The first of so many walks over a script that is wrong, with why and its moves; None if all are right."""
    for number in range(1, walks + 1):
        walk = Walk(SCRIPTS[name], seed * 1_000_003 + number, faults)
        problem = walk.run()
        if problem:
            return number, problem, walk.moves_made
    return None


class Explored(NamedTuple):
    """All orders of the store calls of a script, or as many as were allowed."""

    states: int
    ends: int
    complete: bool
    wrong: tuple[str, list[str]] | None  # the problem and its moves


class ReplayedWalk(Walk):
    """A walk of given moves, by their numbers among the possible ones."""

    workers_max = 2

    def __init__(self, script, faults):
        super().__init__(script, 0, faults)
        self.histories = {}

    def moves(self):
        found = super().moves()
        if len(self.workers) >= self.workers_max:
            found = [move for move in found if move[0] not in ("take", "lane")]
        return found

    def carry_out(self, name, given, named, *, stale=False):
        found = super().carry_out(name, given, named, stale=stale)
        if self.last is not None:
            history = self.histories.get(id(self.last), 0)
            self.histories[id(self.last)] = hash((history, name, repr(given), repr(found)))
        return found

    def replay(self, numbers):
        """Makes these moves; returns the moves that are possible then."""
        for number in numbers:
            self.make(self.moves()[number])
        return [] if self.broken else self.moves()

    def state(self):
        """What the rest of the walk depends on: the store, and what each worker has read and asks for."""
        workers = sorted(
            (each.what, str(each.key), each.primary, self.histories.get(id(each), 0), repr(each.pending))
            for each in self.workers
        )
        late = sorted(repr(call) for call in self.late)
        rows = repr(sorted(self.engine.rows.items(), key=repr)), repr(sorted(self.engine.state.items(), key=repr))
        waiting = len(self.todo), sorted(self.acked.items()), len(self.parked), self.faults
        return hash(repr((rows, workers, late, waiting)))

    def end(self):
        for worker in self.workers:
            worker.resume(None)


def explored(name, faults, states_max):
    """Every order of the calls of two workers over a script, with so many faults, each state once."""
    seen, pending, ends = set(), [()], 0
    with patch.multiple(referrers, PAGE=SCRIPTS[name].page, SEGMENTS=2):
        while pending and len(seen) < states_max:
            numbers = pending.pop()
            walk = ReplayedWalk(SCRIPTS[name], faults)
            try:
                moves, state = walk.replay(numbers), walk.state()
                if walk.broken:
                    return Explored(len(seen), ends, False, (walk.broken, walk.moves_made))
                if state in seen:
                    continue
                seen.add(state)
                pending += [(*numbers, number) for number in range(len(moves))]
                if not moves:
                    ends += 1
                    if problem := walk.difference():
                        return Explored(len(seen), ends, False, (problem, walk.moves_made))
            finally:
                walk.end()
    return Explored(len(seen), ends, not pending, None)
