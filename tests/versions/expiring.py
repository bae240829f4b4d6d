"""Histories in which rows expire at any moment, with a model that watches what is committed.

A row holds what came to it since it was made; an item that moves into the row comes to it; an amendment or removal of
an item that came before changes nothing. The model knows this rule, and nothing of how the framework keeps it: of a
ledger item it reads which rows an item contributes to, and how much.
"""

import json
from collections import defaultdict

from streamfold import App, Collect, Count, Key, Max, Min, Router, Row, Sum, Table, Top
from streamfold.batch.process import check_application
from streamfold.lifecycle.page import Pages
from streamfold.records.values import decode, digest, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import ENTRIES, LedgerWrite, PutState
from tests.versions.api import REFUSED, UNAVAILABLE, Broken, Store, contributors, plain
from tests.versions.declared import Handler, Items, Shape
from tests.versions.delivery import Delivery
from tests.versions.engine import Died, Faulty
from tests.versions.history import LETTERS_TOLD, LINES_TOLD, History

TABLE = Table("main", ttl="expires")
EXPIRES = 1900000000
GRACE = 7 * 24 * 60 * 60
"""By how much a row that several items share outlives them."""
NEWER = 1000
"""What the new code adds to each amount."""
PLAY = Key("PLAY#{i}", "X", table=TABLE)
DAY, SPREAD = Key("DAY#{g}", "STATS", table=TABLE), Key("SPREAD#{g}", "{shard:d}", table=TABLE)
OWN, INDEX = Key("OWN#{i}#{g}", "ROW", table=TABLE), Key("INDEX#{g}#{i}", "ROW", table=TABLE)
UNIQUE, WINS = Key("UNIQUE#{h}", "ROW", table=TABLE), Key("WINS#{h}", "ROW", table=TABLE)
TARGETS = (DAY, SPREAD, OWN, INDEX, UNIQUE, WINS)
SCORES = range(100)
BY_DIGEST = {digest(encode({"v": v + n, "expires": EXPIRES})["M"]): v + n for v in SCORES for n in (0, NEWER)}
"""What the ledger holds of the rows of an index, and the value that they show."""
ODDS = 0.04
"""How often a row expires before a call of the store."""


class Lived:
    """What rows hold that expire: of each row the contributions that came to it since it was made."""

    def __init__(self):
        self.held, self.rows = {}, defaultdict(dict)

    def commit(self, who, now):
        """An item contributes these amounts now through a handler, by row."""
        before = self.held.get(who, {})
        for row in before.keys() - now.keys():
            self.rows[row].pop(who, None)
        for row, amount in now.items():
            if row not in before or who in self.rows[row]:
                self.rows[row][who] = amount
        self.held[who] = now

    def expire(self, row):
        self.rows.pop(row, None)

    def shown(self, row):
        """What a row shows; nothing where nothing came to it."""
        by_handler = defaultdict(list)
        for (_, handler), amount in self.rows.get(row, {}).items():
            by_handler[handler].append(amount)
        return dict(pair for handler, amounts in by_handler.items() for pair in SHOWS[handler](sorted(amounts)).items())


def _stats(values):
    extremes = {"best": values[-1], "least": values[0], "top": values[:-3:-1], "all": values}
    return {"n": len(values), "s": sum(values), **extremes, "expires": EXPIRES + GRACE}


def _claimed(values):
    *others, first = values
    conflict = {"conflict": [{"v": each, "expires": EXPIRES} for each in reversed(others)]} if others else {}
    return {"v": first, "expires": EXPIRES, **conflict}


SHOWS = {
    "stats": _stats,
    "more": lambda values: {"t": sum(values)},
    "spread": lambda values: {"n": len(values), "s": sum(values), "best": values[-1], "expires": EXPIRES + GRACE},
    "own": lambda values: {"v": values[0], "s": values[0], "expires": EXPIRES},
    "indexed": lambda values: {"v": values[0], "expires": EXPIRES},
    "unique": _claimed,
    "winner": lambda values: {"v": values[-1], "expires": EXPIRES + GRACE, "s": sum(values)},
}
"""What the contributions of each handler make of a row, the smallest first."""


def application(version, *, late=False):
    """One version of the code. ``late``: the old one lets no shared row of ``stats`` expire."""
    router, newer = Router(), NEWER if version == "new" else 0
    expires = {} if late and version == "old" else {"expires": Max(EXPIRES)}

    @router.view(PLAY, into=DAY)
    def stats(item):
        v = item["score"] + newer
        some = {"best": Max(v), "least": Min(v), "top": Top(2, v, by=v), "all": Collect(v, into=list)}
        return Row(g=item["g"], n=Count(), s=Sum(v), **some, **expires)

    @router.view(PLAY, into=DAY)
    def more(item):
        return Row(g=item["g"], t=Sum(item["score"] + newer))

    @router.view(PLAY, into=SPREAD, shards=2)
    def spread(item):
        v = item["score"] + newer
        return Row(g=item["g"], n=Count(), s=Sum(v), best=Max(v), expires=Max(EXPIRES))

    @router.view(PLAY, into=OWN)
    def own(item):
        v = item["score"] + newer
        return Row(g=item["g"], v=v, s=Sum(v), expires=EXPIRES)

    @router.index(PLAY, into=INDEX)
    def indexed(item):
        return Row(g=item["g"], v=item["score"] + newer, expires=EXPIRES)

    @router.index(PLAY, into=UNIQUE, unique=True, by="score")
    def unique(item):
        return Row(h=item["h"], v=item["score"] + newer, expires=EXPIRES)

    @router.view(PLAY, into=WINS)
    def winner(item):
        v = item["score"] + newer
        return Row(h=item["h"], v=v, s=Sum(v), expires=Max(EXPIRES), wins=v)

    return App("shop", routers=[router])


class Watching(Faulty):
    """Lets rows expire between calls, and tells the model what was committed."""

    def __init__(self, history, *arguments):
        super().__init__(*arguments)
        self.history, self.lived, self.odds = history, Lived(), ODDS

    def _call(self, name, *arguments, **options):
        if self.random.random() < self.odds:
            self.expire()
        return super()._call(name, *arguments, **options)

    def expire(self):
        """Removes a row, as its time to live does."""
        rows = [row for row, item in self.store.items().items() if "expires" in item and row not in self.history.known]
        for row in self.random.sample(sorted(rows), min(1, len(rows))):
            self.tell(f"    row {row[1:]} expires")
            self.store.lose(row)
            self.lived.expire(row)

    def _carried_out(self, name, *arguments, **options):
        answer = super()._carried_out(name, *arguments, **options)
        if name == "transact" and answer is None:
            for write in arguments[0]:
                for part in write.contributions if isinstance(write, LedgerWrite) else ():
                    who = write.key, part.handler
                    self.lived.commit(who, self._amounts(who, json.loads(part.contribution or "[]"), arguments[0]))
        return answer

    def _amounts(self, who, parts, writes):
        before, handler = self.lived.held.get(who, {}), who[1]
        item = who[0].pk.rpartition("#")[2]
        return {
            (row := tuple(part[:3])): _amount(handler, part, _puts(writes, item, row), before.get(row))
            for part in parts
        }


def _puts(writes, item, row):
    """What claims of an item to a unique row are written."""
    puts = [each for each in writes if isinstance(each, PutState) and each.key.pk.startswith(ENTRIES + "shop#unique#")]
    return [each for each in puts if f"#{row[1]}|" in each.key.pk and f"PLAY#{item} " in each.key.sk]


def _amount(handler, part, puts, before):
    """What an item contributes to a row: as its ledger item holds it, or the claim that is written with it."""
    if handler == "indexed":
        return BY_DIGEST[part[4]]
    if handler != "unique":
        return int(part[3].get("s") or part[3]["t"])
    return decode(json.loads(puts[0].text))["v"] if puts else before


class Versions(Delivery):
    late = False

    def build(self, name, version):
        return application(version, late=self.late)


class Expiring(History):
    """A history of rows that expire. It is judged by what the model saw."""

    delivering = Versions

    def __init__(self, seed, *, store=Store, late=False):
        handlers = [Handler(name, PLAY, None) for name in SHOWS]
        fields = [{"i": str(number)} for number in range(6)]
        items = Items(PLAY, fields, _drawn)
        shape = Shape("rows that expire", [items], {"shop": (handlers, handlers)})
        Versions.late = late
        super().__init__(shape, seed, store=store)
        self.engine = Watching(self, self.store, self.random, self.engine.rate, self.story.append)
        self.delivery.engine = self.engine

    def run(self):
        while self.writes < self.shape.writes or self.step < self.delivery.last_step:
            self._act()
            self.step += 1
        self._settle()
        self.engine.odds = 0
        self._judge()

    step = writes = 0

    def _act(self):
        action = self.random.random()
        if action < 0.4 and self.writes < self.shape.writes:
            self.writes += 1
            self._write()
        elif action < 0.45:
            self.engine.expire()
        elif action < 0.52:
            self._something_odd(self.step)
        elif action < 0.57:
            self._fill()
        else:
            self.delivery.deliver(self.step)

    def _fill(self):
        """A page of a backfill leads items to their sources."""
        version = self.random.choice(["old", "new"]) if self.step < self.delivery.last_step else "new"
        if version == "old":
            self.delivery.old_up_to = len(self.store.stream)
        self.story.append(f"  a page of a backfill, {version}")
        try:
            app = self.delivery.build("shop", version)
            run = Runtime(app, self.engine, Settings.from_environment(self.delivery.tables), pause=lambda _: None)
            check_application(run)  # as every command and worker does first
            pages = Pages(run, list(SHOWS))
            pages.reconcile(self.random.sample(sorted(self.known), 3))
        except (Died, UNAVAILABLE, *REFUSED):
            return

    def _settle(self):
        self.engine.odds = 0
        super()._settle()

    def _judge(self):
        lived, rows = self.engine.lived, self.store.items()
        for row in sorted({*lived.rows, *rows} - self.known.keys()):
            want, image = {name: value for name, value in lived.shown(row).items() if value != 0}, rows.get(row, {})
            shown = {} if contributors(image) == 0 else plain(image)
            found = {name: value for name, value in shown.items() if value != 0}  # a sum of 0 and none are alike
            if found != want:
                raise Broken(f"row {row[1:]} shows {found}, expected {want}")
            if contributors(image) == 0 and row not in self.lost:
                raise Broken(f"row {row[1:]} is empty and still there")
        held = {row for (_, handler), now in lived.held.items() if handler == "stats" for row in now}
        want = {("main", f"DAY#{own['g']}", "STATS") for own in self.items.values()}
        if held != want:
            raise Broken(f"the ledger names {held}, expected {want}")


def _drawn(random, fields):
    score = random.randrange(10) * 10 + int(fields["i"])
    return {"score": score, "g": random.choice("ab"), "h": random.choice("xy"), "expires": EXPIRES}


def broken(seeds, **options):
    """What histories of these seeds break, each with its story's last lines."""
    for seed in seeds:
        history = Expiring(seed, **options)
        try:
            history.run()
        except Broken as error:
            lines = (f"{seed}: {error}", *history.story[-LINES_TOLD:])
            yield "\n".join(line[:LETTERS_TOLD] for line in lines)
