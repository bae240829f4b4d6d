"""Histories of an ``on`` handler's rows, which go at any moment, while older changes come after newer ones."""

import json
from random import Random

from streamfold import App, Delete, Key, Put, Router
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.failures.failed_records import Waiting
from streamfold.failures.redrive import Redrive
from streamfold.keys.table import MAIN, VERSION
from streamfold.ledger.state_keys import claim_key
from streamfold.records.envelope import Origins
from streamfold.records.values import decode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin
from streamfold.writes.guarded import Claim, DeleteRow
from tests.helpers.failures import parked_document
from tests.helpers.source import Source

ITEM, ROW = Key("ITEM#{i}", "{sort}"), Key("ROWS#{i}", "{sort}#{name}")
ITEMS = [("1", "A"), ("1", "A#00"), ("2", "A")]
"""Items of which two share a partition, and the sort key of one begins as that of the other does."""
WRITES = 8
MORE = "more"


def application(*, newer):
    """An older or a newer version of the code: the newer one puts a further row for each change that leaves an item."""
    router = Router()

    @router.on(ITEM, into=ROW, name="rows")
    def rows(change):
        for name, value in (change.new or change.old)["rows"].items():
            yield Delete(name=name) if value is None or not change.new else Put(name=name, value=value)
        if newer and change.new:
            yield Put(name=MORE, value=change.new["number"])

    return App("shop", routers=[router])


class Model:
    """What each row has to be: a change does nothing to rows that a newer one of its item wrote or deleted before."""

    def __init__(self):
        self.rows, self.taken = {}, []

    def take(self, change, effects):
        """A change takes effect for the first time: it puts rows, or deletes them (None)."""
        newer = [rows for other, rows in self.taken if other.item == change.item and other.number > change.number]
        for row, value in effects.items():
            if any(row in rows for rows in newer):
                continue
            self.rows.pop(row, None)
            if value is not None:
                self.rows[row] = value
        self.taken.append((change, effects))

    def lose(self, row):
        self.rows.pop(row, None)


class Written:
    """A change of an item: its record, and the values of the rows that it writes, by name (None: deletes)."""

    def __init__(self, record, item, values, number):
        self.record, self.item, self.values, self.number = record, item, values, number
        self.removes = record["eventName"] == "REMOVE"

    def effects(self, *, newer):
        i, sort = self.item
        values = self.values | ({MORE: self.number} if newer and not self.removes else {})
        return {("main", f"ROWS#{i}", f"{sort}#{name}"): value for name, value in values.items()}


class Watched:
    """An engine whose transactions may be disturbed, and which tells of the claims that it took."""

    def __init__(self, engine, took):
        self.engine, self.took = engine, took
        self.newer = False  # which version of the code runs
        self.disturb = None
        self.late = []

    def transact(self, writes, expires_at):
        newer = self.newer

        def go():
            refused = self.engine.transact(writes, expires_at)
            if refused is None:
                for write in writes:
                    if isinstance(write, Claim):
                        self.took(write.key, newer=newer)
            return refused

        return self.disturb(go) if self.disturb else go()

    def land(self):
        while self.late:
            self.late.pop()()

    def __getattr__(self, name):
        return getattr(self.engine, name)


class OlderChanges:
    """One history out of a seed. ``kinesis``: the records come through Kinesis, in any order."""

    def __init__(self, seed, engine=None, *, kinesis=False):
        self.random = Random(f"older {kinesis} {seed}")
        self.kinesis = KinesisTwin() if kinesis else None
        self.apps, self.model = [application(newer=newer) for newer in (False, True)], Model()
        self.engine = Watched(engine or MemoryEngine([MAIN]), self._took)
        self.run = Runtime(self._code(), self.engine, Settings(), pause=lambda _: None)
        self.origins = Origins(self.apps[0].source_tables, Settings())
        self.source, self.stream, self.waiting, self.place = Source(), [], [], 0
        self.by_claim, self.story = {}, []
        self.unsettled = set()  # changes whose redrive failed: what it did is only settled by the next one

    def play(self):
        """Plays it; returns what is wrong in the end, None if nothing is."""
        for _ in range(WRITES):
            self._write()
        steps = [self._deliver, self._redrive, self._lose, self._lose, self._go_back]
        while self.place < len(self.stream) or self.waiting:
            self.random.choice(steps)()
            if not (self.unsettled or self.engine.late) and (wrong := self._wrong()):
                return wrong
        self.engine.land()
        for written in self.stream:
            self._redriven(written)
        return self._wrong()

    def _wrong(self):
        found = {key: row.get("value") for key, row in self._stored().items() if row.get("_sf_n") != 0}
        return None if found == self.model.rows else f"{found}, expected {self.model.rows}"

    def _write(self):
        i, sort = item = self.random.choice(ITEMS)
        names = [name for name in "ab" if self.random.random() < 0.7]
        number = len(self.stream)
        values = {name: None if self.random.random() < 0.2 else number for name in names}
        if (f"ITEM#{i}", sort) in self.source.items and self.random.random() < 0.2:
            old = self.source.items[f"ITEM#{i}", sort]["rows"]
            record, values = self.source.remove(f"ITEM#{i}", sort), dict.fromkeys(old)
        else:
            record = self.source.put(f"ITEM#{i}", sort, rows=values, number=number)
        written = Written(record, item, values, number)
        if self.kinesis:
            record["dynamodb"]["ApproximateCreationDateTime"] += number
            written.record = self.kinesis.append(record)
        self.stream.append(written)
        change = self.origins.change(written.record)
        self.by_claim[claim_key("shop", "rows", change.item, change.identity_text)] = written

    def _took(self, claim, *, newer):
        written = self.by_claim[claim]
        self._say(f"  took {written.number}, {'newer' if newer else 'older'} code")
        self.model.take(written, written.effects(newer=newer))

    def _code(self):
        """An application of one version of the code, for one call."""
        self.engine.newer = self.random.random() < 0.5
        return self.apps[self.engine.newer]

    def _deliver(self):
        """The next records: some of them are given up before they take effect. Kinesis also brings them later."""
        batch = self.stream[self.place : self.place + self.random.choice([1, 2, 3])]
        self.place += len(batch)
        given_up = [each for each in batch if self.random.random() < 0.4]
        self.waiting += given_up
        self._process([each for each in batch if each not in given_up])

    def _go_back(self):
        """Records come again, with those that were given up; so it ends with the last that took effect."""
        if self.place:
            self._process(self.stream[self.random.randrange(self.place) : self.place])

    def _process(self, batch):
        self._say(f"batch {[each.number for each in batch]}")
        changes = [self.origins.change(each.record) for each in batch]
        failed = process_changes(self.run, changes).failures
        assert not failed, failed

    def _redrive(self):
        if not self.waiting:
            return
        written = self.random.choice(self.waiting)
        if self.kinesis and written not in self.unsettled and self.random.random() < 0.5:
            self._process([written])
            self.waiting.remove(written)
            return
        self.engine.disturb = self._disturb
        if self._redriven(written):
            self.waiting.remove(written)
            self.unsettled.discard(written)
        else:
            self.unsettled.add(written)
        self.engine.disturb = None

    def _redriven(self, written):
        """Redrives a record; returns whether nothing is left of it to do."""
        self._say(f"redrive {written.number}")
        parked = self.kinesis is None and self.random.random() < 0.5
        document = parked_document(written.record, "rows") if parked else _given_up(written.record)
        redrive = Redrive(self.run, self.origins, fetch=None)
        return not any(each.is_leftover for each in redrive.process(Waiting("here", document)))

    def _disturb(self, go):
        """A call of a redrive fails, lands late, or others are first: a newer change comes, and its row goes."""
        what, newer = self.random.random(), self.engine.newer
        self.engine.disturb = None
        try:
            if what < 0.1:
                self._say("  lands late")
                self.engine.late.append(go)
                raise EngineUnavailable("it lands late")
            if what < 0.2:
                raise EngineUnavailable("not done")
            if what < 0.6:
                self._deliver()
                self._lose()
                self.engine.newer = newer  # others were first, with any code
            answer = go()
            if what < 0.3:
                raise EngineUnavailable("the answer was lost")
            if what < 0.35:
                self._lose()
            return answer
        finally:
            self.engine.disturb = self._disturb

    def _lose(self):
        """Rows are gone, and tombstones: their time was over, or somebody removed them."""
        self.engine.land()
        for row in sorted(self._stored()):
            if self.random.random() < 0.7:
                self._say(f"lose {row}")
                assert self.engine.engine.transact([DeleteRow(row)], 0) is None
                self.model.lose(row)

    def _stored(self):
        names = MAIN.attributes
        items = ({name: decode(value) for name, value in item.items()} for item in self.engine.items(MAIN))
        return {("main", *(each[name] for name in names)): each for each in items if VERSION in each}

    def _say(self, line):
        self.story.append(line)


def _given_up(record):
    """What Lambda leaves of a record in a bucket."""
    return {"payload": json.dumps({"Records": [record]})}


def wrong(seeds, **options):
    """What is wrong after histories of these seeds, each with its story."""
    for seed in seeds:
        history = OlderChanges(seed, **options)
        if (found := history.play()) is not None:
            yield "\n".join([f"history {seed}: {found}", *history.story])
