"""A deployment in the middle, and pages beside the stream: old and new code at once, crashes, two overlapping runs."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar
from zlib import crc32

from streamfold import App, Count, Key, Max, Router, Row, Sum, Top
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.ledger.state_keys import ledger_key
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.sources import LATE_SECONDS
from streamfold.proofs.oracle import folded_rows, stored_rows
from streamfold.records.change import Version
from streamfold.records.envelope import KINESIS, Seen
from streamfold.records.kinesis import LABEL, MICROSECONDS
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping import Died
from streamfold.writes.guarded import StateKey
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
GROUP = Key("GROUP#{group}", "TOTAL")
BEST = Key("BEST#{group}", "TOTAL")
OTHER = Key("OTHER#{group}", "TOTAL")
OWN = Key("OWN#{item_id}", "OWN")
NAME = Key("NAME#{name}", "NAME")
ITEMS = [f"ITEM#{number}" for number in range(4)]
IMAGES = [{"group": group, "amount": amount, "name": group} for group in "xy" for amount in (1, 2)]
CALLS = (
    "transact",
    "read_state",
    "read_sources",
    "read_source",
    "insert_rows",
    "remove_empty",
    "clear_pending",
    "swap_state",
)
LATE_STEPS = 8
LATE = (((0, 0),), ((0, LATE_STEPS),), ((0, 0), (0, LATE_STEPS)))
LATE_OF_STAYING = (LATE[0], ((0, 0), (2 * LATE_STEPS, 4 * LATE_STEPS)))
"""How many steps after a change its record comes, and a copy of it; at least and at most."""
RUNS = 2
"""Runs over all items, where one is not enough."""


def application(*, new: bool) -> App:
    """A view; the new code has four handlers more, of which one is in another group."""
    router = Router()

    @router.view(ITEM, into=GROUP)
    def total(item):
        return Row(group=item["group"], total=Sum(item["amount"]), items=Count())

    if new:

        @router.view(ITEM, into=BEST)
        def best(item, item_id):
            return Row(group=item["group"], most=Max(item["amount"]), top=Top(2, item_id, by=item["amount"]))

        @router.view(ITEM, into=OTHER, group="other")
        def other(item):
            return Row(group=item["group"], total=Sum(item["amount"]))

        @router.index(ITEM, into=OWN)
        def own(item):
            return Row(amount=item["amount"]) if item["amount"] > 1 else None

        @router.index(ITEM, into=NAME, unique=True, by="amount")
        def name(item):
            return Row(name=item["name"], amount=item["amount"])

    return App("shop", routers=[router])


OLD, NEW = application(new=False), application(new=True)
ADDED = frozenset(route.name for route in NEW.routes) - {"total"}


class History:
    """One deployment: records go to old or new code, then to new code alone, beside pages over all items."""

    sources: ClassVar[Mapping[str, Seen]] = {}  # what records tell of the table
    delivered: ClassVar[bool | None] = None

    def __init__(self, seed: int, *, gate: bool = True, sweep: bool = True) -> None:
        self.random, self.sweep = Random(seed), sweep
        self.engine = MemoryEngine(NEW.tables.values(), NEW.chains)
        self.engine.source_tables.add("main")
        self.items: dict[str, dict[str, object] | None] = {}
        self.waiting: list[object] = []
        self.acknowledged: list[object] = []
        self.sequence, self.depth, self.steps = 0, 0, 0
        self.deltas: int | None = None  # additions to shared rows go through deltas, others for each number
        self.tokens, self.seconds = Random(seed), 1_000.0
        self.left = self.random.randint(6, 16)
        self.deployed = self.random.randint(3, 15)
        self.begins = self.deployed if gate else self.random.randint(1, self.deployed)
        for call in CALLS:
            setattr(self.engine, call, self._hooked(getattr(self.engine, call)))

    def run(self) -> "History":
        while self.steps < self.begins:
            self.step()
        for _ in range(RUNS if self.random.random() < 0.3 else 1):
            self._pages()
        while self.left or self.waiting or self.steps < self.deployed:
            self.step()
        return self

    def step(self) -> None:
        self.steps += 1
        if self.left and self.random.random() < 0.5:
            self._change()
        elif self.waiting:
            self._deliver()

    def _hooked(self, call):
        def hooked(*arguments, **named):
            if not self.depth:
                return call(*arguments, **named)
            drawn = self.random.random()
            if drawn < 0.12:
                if self.depth < 3 and self.waiting:
                    self._deliver()
            elif drawn < 0.2:
                if self.left:
                    self._change()
            elif drawn < 0.22:
                raise Died
            elif drawn < 0.24:
                raise EngineUnavailable("a fault")
            answer = call(*arguments, **named)
            if self.random.random() < 0.02:
                raise Died
            return answer

        return hooked

    def _change(self) -> None:
        self.left -= 1
        name = self.random.choice(ITEMS)
        before = self.items.get(name)
        after = None if before and self.random.random() < 0.35 else self.random.choice(IMAGES)
        if before == after:
            return
        self.sequence += 1
        self.items[name] = after
        images = [image and item(name, "METADATA", **image) for image in (before, after)]
        self.engine.put_sources([(_key(name), encode(images[1])["M"] if after else None, f"{self.sequence:09}")])
        self.waiting.append((name, change(*images, self.sequence)))

    def _deliver(self) -> None:
        """The first waiting record of an item, to old code or new, as a rolling deployment has both.

        Who fails a record gets it again with all that came after it, acknowledged or not: a stream goes on from there.
        """
        names = list(dict.fromkeys(name for name, _ in self.waiting))
        name = self.random.choice(names)
        place = next(place for place, (other, _) in enumerate(self.waiting) if other == name)
        record, begun = self.waiting.pop(place), len(self.acknowledged)
        if self._processed(record[1]):
            self.acknowledged.append(record)
        else:
            self.waiting[:0] = [record, *(each for each in self.acknowledged[begun:] if each[0] == name)]

    def _processed(self, record) -> bool:
        """Whether old or new code took a record."""
        is_old = self.steps < self.deployed and self.random.random() < 0.6
        app, settings = (OLD, Settings(older_code=True)) if is_old else (NEW, Settings())
        self.depth += 1
        try:
            return not process_changes(self._run(app, self.engine, settings), [record], self.sources).failures
        except (Died, EngineUnavailable):
            return False
        finally:
            self.depth -= 1

    def _run(self, app, engine, settings: Settings) -> Runtime:
        if self.deltas is None:
            return Runtime(app, engine, settings, pause=lambda _: None)
        run = Runtime(app, engine, settings, pause=self._pause, clock=lambda: self.seconds)
        run.pace.sharing.forced = lambda row: crc32(f"{self.deltas} {row}".encode()) % 2 == 0
        run.pace.sharing.token = lambda: f"{self.tokens.getrandbits(68):017x}"
        return run

    def _pause(self, seconds: float) -> None:
        self.seconds += seconds

    def _pages(self) -> None:
        """A run over all items that are there, a page at a time; then over the items that the state alone knows."""
        for names in (self._scanned, self._swept if self.sweep else list):
            waiting = list(names())
            while waiting:
                page, self.depth = waiting[:2], self.depth + 1
                try:
                    run = self._run(NEW, self.engine, Settings())
                    report = Pages(run, ADDED, delivered=self.delivered).reconcile(map(_key, page))
                    failed = [each.item[1] for each in report.failed]
                except (Died, EngineUnavailable):
                    failed = page
                self.depth -= 1
                waiting = [*dict.fromkeys(failed), *waiting[2:]]
                if self.random.random() < 0.3 and (self.left or self.waiting):
                    self.step()

    def _scanned(self) -> Sequence[str]:
        return [name for name, image in self.items.items() if image]

    def _swept(self) -> Sequence[str]:
        keys = {ledger_key("shop", group, _key(name)): name for name in ITEMS for group in ("main", "other")}
        return list(dict.fromkeys(name for key, name in keys.items() if key in self.engine.state))

    def pending(self) -> Sequence[StateKey]:
        """The deltas that nobody has moved."""
        return [key for key in self.engine.state if key.pk.startswith("delta#")]

    def wrong(self) -> object:
        """What the rows are, unless they are those of the items."""
        images = {_key(name): item(name, "METADATA", **image) for name, image in self.items.items() if image}
        expected = {
            key: found for key, found in stored_rows(NEW, _encoded(folded_rows(NEW, images), NEW)).items() if found
        }
        shown = {key: found for key, found in stored_rows(NEW, self.engine.rows.items()).items() if found}
        return None if shown == expected else (shown, expected)


class KinesisHistory(History):
    """The same through Kinesis: records come in another order, and more than once.

    What comes later than the margin after another record of its item does so only for items that stay, each change of
    which is another one: a removed item, or a part that agrees, tells a page of nothing that it could guard.

    A step takes as many seconds as ``LATE_STEPS`` of them are the margin.
    """

    sources: ClassVar[Mapping[str, Seen]] = {"main": Seen(KINESIS)}
    delivered: ClassVar[bool | None] = True

    def __init__(self, seed: int, *, late_gate: bool = True, gate: bool = True) -> None:
        super().__init__(seed, gate=gate)
        self.stays = self.random.random() < 0.5
        self.late_gate = late_gate
        self.names, self.left = ITEMS[: self.random.randint(1, 2)], self.random.randint(2, 6)
        self.deployed = self.random.randint(8, 15)
        self.begins = self.deployed if gate else self.random.randint(1, self.deployed)
        self.begins += LATE_STEPS if late_gate else 0

    def run(self) -> "History":
        while self.steps < self.begins or (self.late_gate and self._is_tried_again()):
            self.step()
        self.begins = 0
        return super().run()

    def step(self) -> None:
        self.steps += 1
        if self.left and self.random.random() < 0.5:
            self._change()
        elif any(due <= self.steps for due, *_ in self.waiting):
            self._deliver()

    def _is_tried_again(self) -> bool:
        """Whether a record waits that came before the gate: none is held up for as long as an invocation may take."""
        return any(due <= self.deployed + LATE_STEPS for due, *_ in self.waiting)

    def _change(self) -> None:
        self.left -= 1
        name = self.random.choice(self.names)
        before = self.items.get(name)
        removed = before and not self.stays and self.random.random() < 0.35
        self.sequence += 1
        amount = self.sequence if self.stays else self.random.choice((1, 2))
        after = None if removed else {**self.random.choice(IMAGES), "amount": amount}
        if before == after:
            return
        self.items[name] = after
        images = [image and item(name, "METADATA", **image) for image in (before, after)]
        self.engine.put_sources([(_key(name), encode(images[1])["M"] if after else None, f"{self.sequence:09}")])
        dues = self.random.choice(LATE_OF_STAYING if self.stays else LATE)
        for least, most in dues:
            self.waiting.append((self.steps + self.random.randint(least, most), name, self._record(images)))

    def _record(self, images):
        found = change(*images, self.sequence)
        moment = int(self._now() * MICROSECONDS) + self.sequence
        found.version_text = str(Version.of(0, LABEL, moment))
        return found

    def _now(self) -> float:
        return 10**9 + self.steps * LATE_SECONDS / LATE_STEPS

    def _deliver(self) -> None:
        """The first record that is due, of any item."""
        due = [record for record in self.waiting if record[0] <= self.steps] or self.waiting
        first = min(due, key=lambda each: each[0])
        self.waiting.remove(first)
        if not self._processed(first[2]):
            self.waiting.append(first)

    def _run(self, app, engine, settings: Settings) -> Runtime:
        return Runtime(app, engine, settings, clock=self._now, pause=lambda _: None)


def _encoded(rows, app):
    return {key: encode(row)["M"] for key, row in rows.items()}.items()


def _key(name: str):
    return ("main", name, "METADATA")


def check(histories: int, first: int = 0, kind: type[History] = History, *, deltas: bool = False) -> None:
    """Runs so many histories, each with its own seed."""
    for seed in range(first, first + histories):
        history = kind(seed)
        history.deltas = seed if deltas else None
        wrong = history.run().wrong()
        assert wrong is None, f"seed {seed}: {wrong}"
        assert not history.pending(), f"seed {seed}: {history.pending()}"
