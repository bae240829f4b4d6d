"""Histories of the protocol under an adversary: every row is the fold, whatever is interleaved, killed or lost.

Every call of the store is a point where another actor may go on; the process may die before or after the call took
effect; its answer may be lost, so that it is sent again; or the process is taken for dead and goes on while its records
are delivered again. Records also come again long after, to older and newer code. People remove rows, and put rows of
their own.

Checked after each call: every effect of a committed step has reached its row once, or is pending once; and a row that
nobody removed, with what is pending, is the sum of the ledger. Checked at each acknowledgement and move of a cursor:
nothing of these records is pending. Checked at the end: rows are the fold, and nothing is left.
"""

from random import Random

from tests.models.shared_rows.emptying import (
    INVOCATION_MAX,
    Actor,
    Calls,
    Emptier,
    Mender,
    Mutant,
    WayBack,
)
from tests.models.shared_rows.steps import Batch, Committer, OlderBatch, Page
from tests.models.shared_rows.store import (
    ANOTHER,
    BUCKETS,
    CURSOR,
    MANIFEST,
    ON_ROW,
    ROWS,
    VIEW_ROWS,
    Contribution,
    Key,
    Manifest,
    Pending,
    Refused,
    Store,
)

TURNS_MAX = 12_000
REPORTS_MAX = 6
"""Times that a batch is reported, until it is given up."""


class Running:
    """An actor at a call."""

    def __init__(self, actor: Actor, began: int, lane: int | None = None, end: int = 0) -> None:
        self.actor, self.began, self.lane, self.end = actor, began, lane, end
        self.calls: Calls = actor.run()  # type: ignore[attr-defined]
        self.call = next(self.calls)
        self.resumes_at = 0
        self.answer: object = None
        self.is_answered = False
        self.is_zombie = lane is None
        self.result: object = None


class History:
    """A world by a seed: items and their versions, lanes, actors, faults."""

    def __init__(self, seed: int, mutant: Mutant | None = None) -> None:
        self.random = random = Random(seed)
        self.mutant = mutant
        self.store = Store(random)
        self.numbers = 0
        self.settled = dict[Key, Pending]()
        self.wrong = ""
        much = random.random() < 0.2  # of all troubles at once
        self.share_of_deltas = random.choice((1.0, 0.6, 0.6, 0.0))
        self.removes_rows = random.random() < (0.7 if much else 0.2)
        self.takes_rows = random.random() < (0.7 if much else 0.2)
        self.changes_code = random.random() < (0.7 if much else 0.2)
        self.backfills = random.random() < (0.7 if much else 0.3)
        self.mends = random.random() < (0.7 if much else 0.3)
        self.has_on = random.random() < (0.7 if much else 0.3)
        self.gives_up = random.random() < 0.2
        self.takes_back = Random(seed).random() < 0.5
        self.store.slow = random.random() < 0.6
        self.faults = random.randrange(4, 25) if much else random.randrange(0, 12)
        begun = not self.changes_code or random.random() < 0.5
        self.store.items[MANIFEST] = Manifest(deltas=begun, since=-INVOCATION_MAX)
        self.store.items[CURSOR] = 0
        self.versions = {item: self._versions() for item in range(random.randrange(1, 5))}
        self.sources = {("ledger", item): versions[-1] for item, versions in self.versions.items()}
        self.lanes = self._lanes()
        self.acknowledged = [0] * len(self.lanes)
        self.reports = [0] * len(self.lanes)
        self.given_up = False
        self.running: list[Running] = []

    def new_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _versions(self) -> list[Contribution]:
        random, there, versions = self.random, dict[str, int](), list[Contribution]()
        for _ in range(random.randrange(1, 5)):
            if there and random.random() < 0.35:
                there = {}
            elif not there or random.random() < 0.8:
                rows = random.sample(VIEW_ROWS, random.choice((1, 1, 2)))
                there = {row: random.randrange(1, 9) for row in rows}
            versions.append(there)
        return versions

    def _lanes(self) -> list[list[tuple[int, int, Contribution, Contribution]]]:
        """The records of an item come through one lane, in order."""
        lanes: list[list[tuple[int, int, Contribution, Contribution]]] = [
            [] for _ in range(self.random.randrange(1, 4))
        ]
        remaining = {item: list(enumerate(versions, 1)) for item, versions in self.versions.items()}
        before: dict[int, Contribution] = {}
        while remaining:
            item = self.random.choice(list(remaining))
            version, after = remaining[item].pop(0)
            lanes[item % len(lanes)].append((item, version, before.get(item, {}), after))
            before[item] = after
            if not remaining[item]:
                del remaining[item]
        return lanes

    # the adversary

    def run(self) -> str:
        """What is wrong, or nothing."""
        for _ in range(TURNS_MAX):
            self._begin_batches()
            self._begin_others()
            if not any(running.lane is not None for running in self.running) and self._all_acknowledged():
                break
            if self.running:
                self._advance(self.random.choice(self.running))
            self._fail_somebody()
            self._pass_time()
            if self.wrong:
                return self.wrong
        else:
            return "never ended"
        self.running.clear()
        return self._wrong_at_end()

    def _all_acknowledged(self) -> bool:
        return all(at >= len(lane) for at, lane in zip(self.acknowledged, self.lanes, strict=True))

    def _begin_batches(self) -> None:
        random = self.random
        busy = {running.lane for running in self.running if not running.is_zombie}
        for lane, records in enumerate(self.lanes):
            at = self.acknowledged[lane]
            if at >= len(records) or lane in busy:
                continue
            start = at
            if self.faults and random.random() < 0.2:  # a rewind
                start, self.faults = random.randrange(0, at + 1), self.faults - 1
            end = random.randrange(at + 1, len(records) + 1)
            older = self.changes_code and random.random() < 0.5
            batch = (OlderBatch if older else Batch)(self, records[start:end], on=self.has_on)
            self.running.append(Running(batch, self.store.now, lane, end))

    def _begin_others(self) -> None:
        random, store = self.random, self.store
        if self.mends and random.random() < 0.02:
            self._begin(Mender(self, random.choice(VIEW_ROWS)))
        if self.backfills and random.random() < 0.02 and sum(isinstance(each.actor, Page) for each in self.running) < 2:
            self._begin(Page(self))
        if self.removes_rows and random.random() < 0.01:
            store.remove_by_hand(random.choice(VIEW_ROWS))
        if self.takes_rows and random.random() < 0.01:
            store.take_by_hand(random.choice(ROWS))
        if self.takes_rows and random.random() < 0.01:
            store.give_back_by_hand(random.choice(ROWS))
        if self.changes_code and random.random() < 0.004:
            self._begin(WayBack(self))
        manifest = store.items[MANIFEST]
        if manifest.closed and not manifest.deltas and random.random() < 0.004:  # ``--open``
            store.items[MANIFEST] = Manifest()

    def _begin(self, actor: Actor) -> None:
        self.running.append(Running(actor, self.store.now))

    def _advance(self, running: Running) -> None:
        """Carries out a call if it can be, and lets the actor go on to its next one."""
        store, call = self.store, running.call
        if running.is_answered:
            if store.now >= running.resumes_at:
                self._go_on(running)
            return
        if call.not_before > store.now or any(store.is_under_way(key) for key in call.meets):
            return  # it waits, or is sent again
        try:
            running.answer = call.run()
            if call.meets and isinstance(running.answer, int):
                running.resumes_at = running.answer
        except Refused as refused:
            running.answer = refused
        running.is_answered = True
        if store.changed:
            store.changed = False
            self.wrong = self.wrong or self._wrong_now()
        if self.faults and self.random.random() < 0.03:  # the answer is lost, and the call is sent again
            self.faults -= 1
            running.is_answered = False
        elif store.now >= running.resumes_at:
            self._go_on(running)

    def _go_on(self, running: Running) -> None:
        answer, running.answer, running.is_answered = running.answer, None, False
        try:
            if isinstance(answer, Refused):
                running.call = running.calls.throw(answer)
            else:
                running.call = running.calls.send(answer)
        except StopIteration as stop:
            self.running.remove(running)
            self._ended(running, done=bool(stop.value))

    def _ended(self, running: Running, *, done: bool) -> None:
        actor, lane = running.actor, running.lane
        if done and isinstance(actor, WayBack):
            manifest = self.store.items[MANIFEST]
            if not manifest.deltas and self.store.deltas():
                self.wrong = self.wrong or "older code may run while deltas are pending"
        if done and isinstance(actor, Committer):
            self.wrong = self.wrong or self._broken_promise(actor)
        if lane is None or running.is_zombie:
            return
        if done:
            self.acknowledged[lane] = max(self.acknowledged[lane], running.end)
            self.reports[lane] = 0
            return
        failed = isinstance(actor, Committer) and actor.failed
        self.reports[lane] += bool(failed)
        if self.reports[lane] > REPORTS_MAX:
            self.acknowledged[lane], self.given_up = max(self.acknowledged[lane], running.end), True
            self.reports[lane] = 0

    def _broken_promise(self, actor: Committer) -> str:
        """What is said to be in the rows, and is not."""
        for name, delta in self.store.deltas().items():
            for part in delta.parts.values():
                for effect in part.effects:
                    steps = actor.promises.get(effect.source, 0)
                    if self.store.steps[effect.step] < steps:
                        return f"{effect} is pending in {name}, and was acknowledged"
        return ""

    def _fail_somebody(self) -> None:
        """Takes a batch for dead: its records come again. It is dead, or goes on as a zombie."""
        random = self.random
        if not (self.faults and self.running and random.random() < 0.06):
            return
        self.faults -= 1
        victim = random.choice(self.running)
        if not victim.is_zombie and victim.lane is not None:
            victim.is_zombie = True
            if self.gives_up and random.random() < 0.3:  # the records come never again
                self.acknowledged[victim.lane] = max(self.acknowledged[victim.lane], victim.end)
                self.given_up = True
        if random.random() < 0.6:
            self.running.remove(victim)

    def _pass_time(self) -> None:
        """Invocations end with their time, dead or alive."""
        self.store.now += 1
        if self.changes_code and self.random.random() < 0.01:
            self.store.now += self.random.randrange(INVOCATION_MAX)
        too_long = [r for r in self.running if r.began + INVOCATION_MAX <= self.store.now]
        for running in too_long:
            if not isinstance(running.actor, WayBack | Mender):
                self.running.remove(running)

    # what has to hold

    def _wrong_now(self) -> str:
        store = self.store
        if store.wrong:
            return store.wrong
        pending = [
            effect for delta in store.deltas().values() for part in delta.parts.values() for effect in part.effects
        ]
        if len(pending) != len(store.open) or {*pending} != store.open:
            return f"pending are {sorted(pending)}, and not in their rows {sorted(store.open)}"
        held, sums = store.held(self.claimed()), store.sums(pending=True)
        for row in ROWS:
            if row not in store.removed_by_hand and held[row] != sums[row]:
                return f"row {row} with what is pending is {sums[row]}, and the ledger holds {held[row]}"
        low = [key for key, item in store.items.items() if key[0] == "row" and item.contributors < 0]
        return f"fewer than no contributors: {low}" if low else ""

    def claimed(self) -> dict[Key, int]:
        return {
            ("claim", item, number): sum(after.values())
            for item, versions in self.versions.items()
            for number, after in enumerate(versions, 1)
        }

    def _wrong_at_end(self) -> str:
        store = self.store
        store.now += 10 * INVOCATION_MAX
        taken = {key[1] for key, item in store.items.items() if key[0] == "row" and item.owner == ANOTHER}
        if self.random.random() < 0.5:
            for row in taken:
                store.give_back_by_hand(row)
            taken = set()
        if self.given_up or self.takes_rows or self.changes_code or self.backfills:
            self._empty_all()
        for row in sorted(store.removed_by_hand - taken):
            self._carry_out(Mender(self, row).run())
        items = store.items
        for item, versions in self.versions.items():
            ledger = items.get(("ledger", item))
            if not self.given_up and (ledger is None or ledger.version != len(versions)):
                return f"item {item} is not as new as its records"
        remaining = {row for delta in store.deltas().values() for row in delta.parts}
        if remaining - taken or any(not delta.refused for delta in store.deltas().values()):
            return f"something is pending at the end: {store.deltas()}"
        held, sums = store.held(self.claimed()), store.sums(pending=False)
        for row in ROWS:
            if row not in taken and held[row] != sums[row]:
                return f"row {row} is {sums[row]} at the end, and the ledger holds {held[row]}"
        return self._empty_rows()

    def _empty_rows(self) -> str:
        """Rows that nobody removes any more. A mender that died leaves a marked one, as today; a note names others."""
        noted = {
            row for key, item in self.store.items.items() if key[0] == "ledger" and item.note for row in item.note.rows
        }
        for key, item in self.store.items.items():
            if key[0] == "row" and not item.contributors and not item.owner and key[1] not in noted | {ON_ROW}:
                return f"{key} is left without contributors"
        return ""

    def _empty_all(self) -> None:
        """What the first batch of a new process does: it looks into all buckets."""
        for _ in range(200):
            for bucket in range(BUCKETS):
                self._carry_out(Emptier(self).empty(bucket, {}))
            if not self.store.deltas():
                return

    def _carry_out(self, calls: Calls) -> None:
        answer: object = None
        try:
            while True:
                call = calls.throw(answer) if isinstance(answer, Refused) else calls.send(answer)
                self.store.now = max(self.store.now + 1, call.not_before)
                try:
                    answer = call.run()
                except Refused as refused:
                    answer = refused
                self.store.now += 20
        except StopIteration:
            pass


def wrong_history(seeds: range, mutant: Mutant | None = None) -> tuple[int, str] | None:
    """The first seed whose history goes wrong, and how."""
    for seed in seeds:
        try:
            wrong = History(seed, mutant).run()
        except AssertionError as error:
            wrong = str(error) or "an assertion"
        if wrong:
            return seed, wrong
    return None
