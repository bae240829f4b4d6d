"""Histories of roots and parts, drawn by a seed, whose store calls are put into any order (``lookup_walks``).

Records of roots and parts come in any order and together, and again when they are old; items are older than their
handler, so that a page of a backfill visits their roots; items are repaired; workers die, run on, and write late or
twice. In some histories additions go through deltas. In some the code changes: until the last worker of the older
version is gone both take records, and then a page leads every root to the newer one. ``model`` knows the functions, and
nothing of how rows are kept.
"""

from functools import cache
from random import Random
from typing import NamedTuple

from streamfold import App, Count, Every, Key, Lookup, Newest, Now, Router, Row, Sum
from streamfold.failures.repair import Repair
from streamfold.lifecycle.page import Pages
from streamfold.records.values import decode
from streamfold.settings import Settings
from tests.helpers.lookup_walks import Script, Worker
from tests.helpers.wake_walks import LEASE_STEPS, SKEW_SECONDS, TimedWalk
from tests.helpers.woken import START, at

ROOT, PART, OTHER = (Key("R#{root}", sort) for sort in ("META", "A#{part}", "B#{part}"))
ROW, OWN, PRODUCT = Key("ROW#{row}", "TOTAL"), Key("OWN#{root}", "ROW"), Key("PRODUCT#{product}", "META")
ROOTS, PARTS, PRODUCTS = ("R0", "R1"), ("A1", "A2", "B1", "B2"), ("P0", "P1", "P2")
NO_ITEM = {"row": "none", "times": 0}
SECONDS = (20, 60)
"""Moments of parts, after the begin."""
CALM_STEPS, CALM_STEP_SECONDS = LEASE_STEPS + 2, 20
LOOKS = 0.15
"""How often somebody looks for wakes: that is 32 queries between two calls."""
WEIGHTS = {"page": 4, "deploy": 4, "repair": 2, "wake": 20}
"""Of moves that would hide what is stale if they came last, or that are seldom to be made."""


class Design(NamedTuple):
    """How an application of a history gathers."""

    newest: int = 0  # of the parts A
    optional: bool = False
    lookup: bool = False  # the root refers to an item of another partition
    lists: bool = False  # it refers to a list of such items, and to one by its whole key
    timed: bool = False  # parts count more from a moment on


DESIGNS = {
    "all parts": Design(),
    "the newest two": Design(newest=2),
    "roots that may be absent": Design(optional=True),
    "absent roots, the newest two": Design(newest=2, optional=True),
    "a lookup beside": Design(lookup=True),
    "lists of references beside": Design(lists=True),
    "the time beside": Design(timed=True),
    "lists, the time, absent roots": Design(newest=1, optional=True, lists=True, timed=True),
}


def folded(values):
    """No sum over parts: the position of each counts."""
    return sum((number + 1) * value for number, value in enumerate(values))


def amounts(root, given, prices):
    root = root or NO_ITEM
    return root["row"], 1_000 * root["times"] + folded(given) + 100 * folded(prices)


OLDER, LACKING = "older", "lacking"
"""Versions of the code before: their functions add one; and one of them gathers no parts B."""


class Given(NamedTuple):
    """What the functions of an application make of what they get."""

    design: Design
    version: str

    def row(self, root, parts, now, product=None, tags=(), ref=None):
        keys = (PART,) if self.version == LACKING else (PART, OTHER)
        values = [self.valued(each, now) for key in keys for each in parts(key)]
        prices = [int(each["price"]) for each in (*([product] if product else []), *tags, *([ref] if ref else []))]
        row, amount = amounts(root, values, prices)
        return row, amount + bool(self.version)

    def valued(self, part, now):
        return int(part["value"]) * (10 if self.design.timed and now.passed(part["until"]) else 1)


def options_of(design, version):
    first = Newest(PART, design.newest) if design.newest else PART
    reads = ["value", "until"] if design.timed else ["value"]
    options = {"parts": [first, Every(OTHER, reads=reads)], "optional": design.optional}
    if version == LACKING:
        options["parts"].pop()
    if design.lookup:
        options["lookup"] = {"product": Lookup(PRODUCT, reads=["price"])}
    if design.lists:
        options["lookup"] = {
            "tags": Lookup(PRODUCT, product="tags", many=True, reads=["price"]),
            "ref": Lookup(PRODUCT, key="ref", optional=True, reads=["price"]),
        }
    return options


@cache
def application(design, version=""):
    """A view of rows that roots share, and an index of one row each: two handlers of one ledger item."""
    router, given, options = Router(), Given(design, version), options_of(design, version)

    def shared(row, amount):
        return [Row(row=row, amount=Sum(amount), roots=Count())] if amount else []

    def own(row, amount):
        return [Row(row=row, amount=amount)]

    for rows, declare in (
        (shared, router.view(ROOT, into=ROW, **options)),
        (own, router.index(ROOT, into=OWN, **options)),
    ):
        function = function_of(design, given, rows)
        function.__name__ = rows.__name__
        declare(function)
    return App("walks", routers=[router])


def function_of(design, given, rows):
    """A handler's function, with the parameters that its design has."""
    if design.lists and design.timed:

        def made(root, parts, tags, ref, now: Now):
            yield from rows(*given.row(root, parts, now, tags=tags, ref=ref))

    elif design.lists:

        def made(root, parts, tags, ref):
            yield from rows(*given.row(root, parts, None, tags=tags, ref=ref))

    elif design.timed:

        def made(root, parts, now: Now):
            yield from rows(*given.row(root, parts, now))

    elif design.lookup:

        def made(root, parts, product):
            yield from rows(*given.row(root, parts, None, product))

    else:

        def made(root, parts):
            yield from rows(*given.row(root, parts, None))

    return made


@cache
def maker(design):
    """What makes the application of a script, one for all walks."""
    return lambda _: application(design)


def model(design, items, now):
    """The rows of the items as they are, at a time."""
    rows = {}
    for name in ROOTS:
        root, parts = items.get(name), [items.get(f"{name}/{each}") for each in PARTS]
        refers = root or {}
        named = [refers.get("product")] if design.lookup else []
        if design.lists:
            tags, ref = refers.get("tags", ()), refers.get("ref", "")
            named = [*(sorted(tags) if isinstance(tags, set) else tags), ref.removeprefix("PRODUCT#")]
        prices = [int(items[each]["price"]) for each in named if items.get(each)]
        if (root is None and not (design.optional and any(parts))) or (design.lookup and not prices):
            continue
        values = [each and int(each["value"]) * (10 if design.timed and each["until"] <= now else 1) for each in parts]
        first = [each for each in values[:2] if each][-design.newest or None :]
        row, amount = amounts(root, [*first, *(each for each in values[2:] if each)], prices)
        rows["OWN", name] = (row, amount)
        if amount:
            known = rows.get(("ROW", row), (0, 0))
            rows["ROW", row] = known[0] + amount, known[1] + 1
    return rows


class CollectionWalk(TimedWalk):
    """One history."""

    def __init__(self, design, seed, faults=2):
        self.design, drawn = design, Random(seed)
        self.pages, self.repairs = drawn.choice((0, 0, 0, 1, 2)), drawn.choice((0, 0, 0, 1))
        self.deployed, self.earlier = False, drawn.choice(("", "", "", "", OLDER, LACKING))
        items, changes = {}, []
        narrow = drawn.random() < 0.4  # one part that goes to and fro, so that equal contents come again
        roots = ROOTS[: 1 if narrow else drawn.choice((1, 1, 2))]
        parts = drawn.sample(PARTS, 1 if narrow else drawn.randint(1, len(PARTS)))
        names = [*roots, *(f"{root}/{part}" for root in roots for part in parts * (3 if narrow else 1))]
        names += PRODUCTS if design.lists else PRODUCTS[: design.lookup]
        for name in names:
            if drawn.random() < (0.8 if name in ROOTS else 0.5):
                items[name] = self.content(name, drawn)
        for _ in range(drawn.randint(3, 7)):
            name = drawn.choice(names)
            changes.append((name, None if drawn.random() < 0.25 else self.content(name, drawn)))
            if design.timed and drawn.random() < 0.4:
                changes.append(drawn.choice((10, 40)))
        older = 0.5 if drawn.random() < 0.4 else 0
        unknown = tuple(name for name in items if drawn.random() < older)
        if self.earlier or {*unknown} & {*roots} or (design.optional and unknown):
            self.pages = max(self.pages, 1)  # of items older than the handler no record comes
        super().__init__(Script(maker(design), items, changes, unknown), seed, faults, deltas=drawn.random() < 0.3)

    @staticmethod
    def content(name, drawn):
        if name[0] == "P":
            return {"price": drawn.randint(1, 3), "note": drawn.randint(1, 2)}
        if "/" in name:
            until = at(drawn.choice(SECONDS))
            return {"value": drawn.randint(1, 2), "note": drawn.randint(1, 2), "until": until}
        tags = drawn.choices(PRODUCTS, k=drawn.randint(0, 3))
        return {
            "row": drawn.choice("xy"),
            "times": drawn.randint(1, 2),
            "product": "P0",
            "tags": {*tags} if tags and drawn.random() < 0.3 else tags,
            "ref": f"PRODUCT#{drawn.choice(PRODUCTS)}",
        }

    @staticmethod
    def place(name):
        root, _, part = name.partition("/")
        if root[0] == "P":
            return "main", f"PRODUCT#{root}", "META"
        return "main", f"R#{root}", f"{part[0]}#{part}" if part else "META"

    def write(self, name, content):
        if content is not None or self.items.get(name) is not None:
            super().write(name, content)

    def code(self, store):
        """The code of a worker: until the deployment is over either version, before the walk the older one."""
        if self.earlier and not self.deployed and (store is not None or self.time.random() < 0.6):
            return application(self.design, self.earlier), Settings(older_code=True)
        return super().code(store)

    def lanes(self):
        return []  # no item has so many referrers

    def moves(self):
        found = [move for move in super().moves() if move[0] != "take"]
        if self.earlier and not self.deployed:
            found.append(("deploy",))
        if self.faults:
            found += [("again",)] * any(self.acked[name] for name in self.log if name not in self.taken())
        if len(self.workers) >= 3:
            return found
        waiting = [name for name in sorted(self.log) if len(self.log[name]) > self.acked[name]]
        if waiting := [name for name in waiting if name not in self.taken()]:
            found += [("take", tuple(waiting)), ("take", (self.random.choice(waiting),))]
        if self.pages and not self.older_works():
            found.append(("page",))
        if self.repairs and self.log:
            found.append(("repair",))
        return found

    def looks(self):
        return self.design.timed and self.time.random() < LOOKS

    def weight(self, what, worker=None, *rest):
        return WEIGHTS.get(what) or super().weight(what, worker, *rest)

    def taken(self):
        """The items whose records somebody has."""
        return {name for each in self.workers if each.what == "take" and each.primary for name in each.key}

    def older_works(self):
        """Whether code of the older version, or a call of it, is on its way: a page behind it is the end of it."""
        return bool(self.earlier) and (not self.deployed or any(map(self.is_older, self.workers)) or bool(self.late))

    @staticmethod
    def is_older(worker):
        return getattr(worker, "older", False)

    def make(self, move):
        what = move[0]
        if what == "take":
            self.take(move[1])
        elif what in ("page", "repair"):
            setattr(self, f"{what}s", getattr(self, f"{what}s") - 1)
            name = self.random.choice(sorted(self.log)) if what == "repair" else "all"
            self.moves_made.append(f"{what} {name}")
            self.begin(Worker(what, name, (), self.page if what == "page" else lambda: self.repair(name)))
        elif what == "deploy":
            self.moves_made.append("deploy")
            self.deployed = True
        elif what == "again":
            names = [name for name in sorted(self.log) if self.acked[name] and name not in self.taken()]
            self.again(self.random.choice(names))
        else:
            super().make(move)

    def begin(self, worker):
        worker.older = not self.deployed
        super().begin(worker)

    def take(self, names):
        """Some records of each item, in any order of the items."""
        changes = []
        for name in names:
            first = self.acked[name]
            changes += self.log[name][first : first + self.random.randint(1, 3)]
        self.random.shuffle(changes)
        changes.sort(key=lambda each: each.version_text)
        self.moves_made.append(f"take {names}")
        self.begin(Worker("take", names, changes, self.process(changes)))

    def again(self, name):
        """Old records come again: from one of them on with what follows, or one of them alone."""
        self.faults -= 1
        number = self.random.randrange(self.acked[name])
        self.moves_made.append(f"again: {name} from {number}")
        if self.random.random() < 0.5:
            self.acked[name] = number
        elif len(self.workers) < 3:
            changes = self.log[name][number : number + 1]
            worker = Worker("take", (name,), changes, self.process(changes))
            worker.primary = False
            self.begin(worker)

    def page(self):
        pages = Pages(self.runtime(), ["shared", "own"])
        return pages.reconcile([self.place(name) for name in sorted({*self.log, *ROOTS}) if name[0] == "R"]).failed

    def repair(self, name):
        return [each for each in Repair(self.runtime()).item(self.place(name)) if each.error is not None]

    def ended(self, worker):
        if worker.pending is not None:
            return
        if worker.what == "take":
            self.workers.remove(worker)
            if worker.primary and not worker.failed:
                self.acknowledge(worker.changes)
        elif worker.what in ("page", "repair"):
            self.workers.remove(worker)
            if worker.failed:  # it is begun again
                setattr(self, f"{worker.what}s", getattr(self, f"{worker.what}s") + 1)
        else:
            super().ended(worker)

    def acknowledge(self, changes):
        for each in changes:
            name = self.name_of(each)
            self.acked[name] = max(self.acked[name], self.log[name].index(each) + 1)

    def go_on(self, what, worker):
        if what != "runs on, given up":
            super().go_on(what, worker)
            return
        self.faults, self.last, worker.primary = self.faults - 1, worker, False
        for name in worker.key:
            self.parked.append((name, [each for each in worker.changes if self.name_of(each) == name]))
        self.acknowledge(worker.changes)

    def name_of(self, change):
        return next(name for name, own in self.log.items() if any(each is change for each in own))

    def difference(self):
        for call in self.late:
            self.carry_out(*call)
        self.late = []
        if not (self.deltas or self.design.timed):
            return self.rows_differ() if self.settle() else "wakes stay"
        self.now += SKEW_SECONDS  # no item was derived later, by a clock that is ahead
        for _ in range(CALM_STEPS):
            if self.settle() and not self.deltas and (problem := self.rows_differ()):
                return problem
            self.now += CALM_STEP_SECONDS  # a bucket may be leased until then
        return self.rows_differ() if self.settle() else "wakes stay"

    def stored(self):
        """The rows, with items that are none."""
        return self.engine.rows.items()

    def rows_differ(self):
        items = {
            name: None if image is None else {each: image[each] for each in image} for name, image in self.items.items()
        }
        expected, found = model(self.design, items, at(self.now - START)), {}
        for (_, pk, _), row in self.stored():
            values = {name: decode(value) if isinstance(value, dict) else value for name, value in row.items()}
            if pk.startswith("OWN#"):
                found["OWN", pk[4:]] = values["row"], int(values["amount"])
            elif pk.startswith("ROW#") and values.get("_sf_n", 1):
                found["ROW", pk[4:]] = int(values["amount"]), int(values["roots"])
        return None if found == expected else f"Rows differ from the model: found {found}, expected {expected}"


def walked(design, walks, seed=0, faults=2):
    """The first of so many histories that is wrong, with why and its moves; None if all are right."""
    for number in range(1, walks + 1):
        walk = CollectionWalk(DESIGNS[design], seed * 1_000_003 + number, faults)
        if problem := walk.run():
            return number, problem, walk.moves_made
    return None
