"""Histories of roots and parts, drawn by a seed, whose store calls are put into any order (``lookup_walks``).

Records of roots and parts come in any order and together; items are older than their handler, so that a page of a
backfill visits their roots beside; workers die, run on, and write late or twice. The model is ``model``: it knows the
functions, and nothing of how rows are kept.
"""

from functools import cache
from random import Random
from typing import NamedTuple

from streamfold import App, Count, Every, Key, Lookup, Newest, Router, Row, Sum
from streamfold.lifecycle.page import Pages
from streamfold.records.values import decode
from tests.helpers.lookup_walks import Script, Walk, Worker

ROOT, PART, OTHER = (Key("R#{root}", sort) for sort in ("META", "A#{part}", "B#{part}"))
ROW, OWN, PRODUCT = Key("ROW#{row}", "TOTAL"), Key("OWN#{root}", "ROW"), Key("PRODUCT#{product}", "META")
ROOTS, PARTS = ("R0", "R1"), ("A1", "A2", "B1", "B2")
NO_ITEM = {"row": "none", "times": 0}


class Design(NamedTuple):
    """How an application of a history gathers."""

    newest: int = 0  # of the parts A
    optional: bool = False
    lookup: bool = False  # the root refers to an item of another partition


DESIGNS = {
    "all parts": Design(),
    "the newest two": Design(newest=2),
    "roots that may be absent": Design(optional=True),
    "absent roots, the newest two": Design(newest=2, optional=True),
    "a lookup beside": Design(lookup=True),
}


def folded(values):
    """No sum over parts: the position of each counts."""
    return sum((number + 1) * value for number, value in enumerate(values))


def amounts(root, given, price):
    root = root or NO_ITEM
    return root["row"], 1_000 * root["times"] + folded(given) + 100 * price


@cache
def application(design):
    """A view of rows that roots share, and an index of one row each: two handlers of one ledger item."""
    router = Router()
    first = Newest(PART, design.newest) if design.newest else PART
    options = {"parts": [first, Every(OTHER, reads=["value"])], "optional": design.optional}
    if design.lookup:
        options["lookup"] = {"product": Lookup(PRODUCT, reads=["price"])}

    def given(parts):
        return [int(each["value"]) for key in (PART, OTHER) for each in parts(key)]

    @router.view(ROOT, into=ROW, **options)
    def shared(root, parts, product=None):
        row, amount = amounts(root, given(parts), product["price"] if product else 0)
        if amount:
            yield Row(row=row, amount=Sum(amount), roots=Count())

    @router.index(ROOT, into=OWN, **options)
    def own(root, parts, product=None):
        row, amount = amounts(root, given(parts), product["price"] if product else 0)
        return Row(row=row, amount=amount)

    return App("walks", routers=[router])


@cache
def maker(design):
    """What makes the application of a script, one for all walks."""
    return lambda _: application(design)


def model(design, items):
    """The rows of the items as they are."""
    rows = {}
    for name in ROOTS:
        root, parts = items.get(name), [items.get(f"{name}/{each}") for each in PARTS]
        product = items.get(root.get("product", "")) if root and design.lookup else None
        if (root is None and not (design.optional and any(parts))) or (design.lookup and product is None):
            continue
        first = [int(each["value"]) for each in parts[:2] if each][-design.newest or None :]
        others = [int(each["value"]) for each in parts[2:] if each]
        row, amount = amounts(root, [*first, *others], product["price"] if product else 0)
        rows["OWN", name] = (row, amount)
        if amount:
            known = rows.get(("ROW", row), (0, 0))
            rows["ROW", row] = known[0] + amount, known[1] + 1
    return rows


class CollectionWalk(Walk):
    """One history."""

    def __init__(self, design, seed, faults=2):
        self.design, drawn = design, Random(seed)
        self.pages = drawn.randint(0, 2)
        items, changes = {}, []
        roots = ROOTS[: drawn.choice((1, 1, 2))]
        parts = drawn.sample(PARTS, drawn.randint(1, len(PARTS)))
        names = [*roots, *(f"{root}/{part}" for root in roots for part in parts)] + ["P0"] * design.lookup
        for name in names:
            if drawn.random() < 0.5:
                items[name] = self.content(name, drawn)
        for _ in range(drawn.randint(2, 6)):
            name = drawn.choice(names)
            changes.append((name, None if drawn.random() < 0.25 else self.content(name, drawn)))
        unknown = tuple(name for name in items if drawn.random() < 0.5)
        if {*unknown} & {*roots} or (design.optional and unknown):
            self.pages = max(self.pages, 1)  # of items older than the handler no record comes
        super().__init__(Script(maker(design), items, changes, unknown), seed, faults)

    @staticmethod
    def content(name, drawn):
        if name[0] == "P":
            return {"price": drawn.randint(1, 3), "note": drawn.randint(1, 2)}
        if "/" in name:
            return {"value": drawn.randint(1, 2), "note": drawn.randint(1, 2)}
        return {"row": drawn.choice("xy"), "times": drawn.randint(1, 2), "product": "P0"}

    @staticmethod
    def place(name):
        root, _, part = name.partition("/")
        if root[0] == "P":
            return "main", f"PRODUCT#{root}", "META"
        return "main", f"R#{root}", f"{part[0]}#{part}" if part else "META"

    def write(self, name, content):
        if content is not None or self.items.get(name) is not None:
            super().write(name, content)

    def moves(self):
        found = [move for move in super().moves() if move[0] != "lane"]
        if any(each.what == "take" and each.primary for each in self.workers) or len(self.workers) >= 3:
            found = [move for move in found if move[0] != "take"]
        elif rest := [name for name in sorted(self.log) if len(self.log[name]) > self.acked[name]]:
            found += [("take", tuple(rest), 1)] * 2
        if self.pages and len(self.workers) < 3 and not self.todo:
            found.append(("page",))
        return found

    def make(self, move):
        if move[0] == "take" and isinstance(move[1], tuple):
            changes = [each for name in move[1] for each in self.log[name][self.acked[name] :]]
            self.random.shuffle(changes)
            changes.sort(key=lambda each: each.version_text)
            self.moves_made.append(f"take {move[1]}")
            self.begin(Worker("take", move[1], changes, self.process(changes)))
        elif move[0] == "page":
            self.pages -= 1
            self.moves_made.append("page")
            self.begin(Worker("page", "page", (), self.page))
        else:
            super().make(move)

    def page(self):
        pages = Pages(self.runtime(), ["shared", "own"])
        return pages.reconcile([self.place(name) for name in sorted({*self.log, *ROOTS}) if name[0] == "R"]).failed

    def ended(self, worker):
        if worker.pending is None and worker.what == "page":
            self.workers.remove(worker)
            self.pages += worker.failed  # a page that died is begun again
        elif worker.pending is None and isinstance(worker.key, tuple):
            self.workers.remove(worker)
            if worker.primary and not worker.failed:
                for each in worker.changes:
                    name = self.name_of(each)
                    self.acked[name] = max(self.acked[name], self.log[name].index(each) + 1)
        else:
            super().ended(worker)

    def go_on(self, what, worker):
        if what == "runs on, given up" and isinstance(worker.key, tuple):
            what = "runs on, again"
        super().go_on(what, worker)

    def name_of(self, change):
        return next(name for name, own in self.log.items() if any(each is change for each in own))

    def difference(self):
        items = {
            name: None if image is None else {each: image[each] for each in image} for name, image in self.items.items()
        }
        expected, found = model(self.design, items), {}
        for (_, pk, _), row in self.engine.rows.items():
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
