"""Histories under faults, until one of them kills a mutant.

What is expected of a history is told before anything is changed. Records that were given up are redriven two weeks
late, when everything whose time to live has passed by then is gone.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from random import Random
from typing import NamedTuple

from streamfold import Add, App, Average, Change, Count, Document, Key, Router, Row, Sum, Table
from streamfold.commit.buckets import LOOKED_SECONDS, empty_unvisited, note_unvisited
from streamfold.proofs.check import ACTIONS, RATES, SHARDS, difference_of
from streamfold.proofs.driver import NOW, Driver
from streamfold.proofs.faults import Drawn
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.histories import changes_of, drawn, item_keys, shape
from streamfold.proofs.oracle import expected_all
from streamfold.proofs.store import drawn_pace
from tests.helpers import collection_walks, lookup_walks
from tests.helpers.exhaustive import GROUP, IMAGES, ITEM, TABLE, claim_app, keyed_put_app, row_guard_app
from tests.mutants.registry import Mutant

CHANGES = 8
HISTORIES = 400
"""After so many a mutant is taken to survive a search; its own tests have to notice it then."""
DELTAS = "deltas"
"""Mutants in whose histories additions go through deltas."""
WALKED = "lookups"
GATHERED = "collections"
"""Mutants whose failures are races of two items: a scheduler of store calls finds them, where histories seldom do."""
LATE_SECONDS = 14 * 24 * 60 * 60
KINDS = Key("KINDS#{group}", "TOTAL", table=TABLE)
BEST = Key("BEST#{group}", "TOTAL", table=TABLE)
PART = Key("ITEM#{item_id}", "PART#{part}", table=TABLE)
COPIES = Table("copies", ttl="expires")
SUMS = Table("sums")
TOTALS, ALL = Key("TOTALS#{group}", "TOTAL", table=SUMS), Key("ALL", "TOTAL", table=SUMS)
FIELDS = {"amount": "long"}
PARTS = ({"amount": 5}, {"amount": 7})


def ledger_app() -> App:
    """Two views in one ledger item; the first writes two rows."""
    router = Router()

    @router.view(ITEM, into=[GROUP, BEST])
    def group_total(item):
        yield Row(GROUP, group=item["group"], items=Count(), total=Sum(item["amount"]))
        yield Row(BEST, group=item["group"], total=Sum(item["amount"]))

    @router.view(ITEM, into=KINDS)
    def kinds(item):
        yield Row(group=item["group"], items=Count())

    return App("mutants", routers=[router])


def deltas_app() -> App:
    """Two views that share rows, with several rows of an item, and additions of its changes."""
    router = Router()

    @router.view(ITEM, into=[TOTALS, ALL])
    def totals(item):
        yield Row(TOTALS, group=item["group"], items=Count(), total=Sum(item["amount"]))
        yield Row(ALL, total=Sum(item["amount"]))

    @router.view(ITEM, into=TOTALS)
    def mean(item):
        yield Row(group=item["group"], mean=Average(item["amount"]))

    @router.on(ITEM, into=Key("STARTED#{group}", "TOTAL", table=SUMS))
    def started(change):
        image = change.new or change.old
        yield Add(group=image["group"], changes=1, amount=image["amount"])

    return App("mutants", routers=[router])


def attributes_app() -> App:
    """Items that bear what is derived of their parts, and of themselves."""
    router = Router()

    @router.attributes(PART, of=ITEM)
    def parts(part):
        yield Row(parts=Count(), total=Sum(part["amount"]))

    @router.attributes(ITEM)
    def grouped(item):
        if item["group"] == "x":
            yield Row(GSI1PK="X", GSI1SK=str(item["amount"]))

    return App("mutants", routers=[router])


def cascade_app() -> App:
    """Items that take their parts along."""
    router = Router()
    router.cascade(ITEM, children=[PART], name="cascade")
    return App("mutants", routers=[router])


def archive_app() -> App:
    """Items that are kept when they are removed."""
    router = Router()
    router.archive(ITEM, to="s3://kept/items", name="archive")
    return App("mutants", routers=[router])


def publish_app() -> App:
    """Messages about each change of an item, and about those of one group."""
    router = Router()
    router.publish(ITEM, to="sqs:items.fifo", type="item.{event}", name="published")

    @router.publish(ITEM, to="sns:groups", type="group.changed", once=True)
    def grouped(change):
        return {"amount": change.new["amount"]} if change.new and change.new["group"] == "x" else None

    return App("mutants", routers=[router])


def copy_app() -> App:
    """Items that are in another table too."""
    router = Router()
    router.copy(ITEM, to=COPIES, name="copy")
    return App("mutants", routers=[router])


def search_app() -> App:
    """A document of an item; those of one group have none."""
    router = Router()

    @router.search(ITEM, to="items", fields=FIELDS)
    def document(item):
        return Document(amount=item["amount"]) if item["group"] == "x" else None

    return App("mutants", routers=[router])


def search_parts_app() -> App:
    """A document of an item and its parts."""
    router = Router()

    @router.search(ITEM, to="items", fields=FIELDS, parts=[PART])
    def document(item, parts):
        return Document(group=item["group"], amounts=[part["amount"] for part in parts(PART)])

    return App("mutants", routers=[router])


def search_ids_app() -> App:
    """A document of an item under an id that follows from what the item holds."""
    router = Router()

    @router.search(ITEM, to="items", id="{item_id}#{group}", fields=FIELDS)
    def document(item):
        return Document(group=item["group"], amount=item["amount"])

    return App("mutants", routers=[router])


APPS = {
    "ledger": ledger_app,
    DELTAS: deltas_app,
    "claim": claim_app,
    "row guard": row_guard_app,
    "keyed put": keyed_put_app,
    "attributes": attributes_app,
    "cascade": cascade_app,
    "archive": archive_app,
    "copy": copy_app,
    "publish": publish_app,
    "search": search_app,
    "search parts": search_parts_app,
    "search ids": search_ids_app,
}


class Killed(NamedTuple):
    """What noticed a mutant: the rows, the items or an invariant, and in which history."""

    by: str
    history: int


class LateDriver(Driver):
    """Redrives when the live stream is long done, and the store has removed what has expired."""

    def _redrive(self, changes: Sequence[Change], how: str | None) -> None:
        self.engine.land_all()
        if self._deltas:  # of a claim that is gone nobody asks for its deltas, but processes have started since
            self._pause(LOOKED_SECONDS)
            runtime = self._invocation()
            note_unvisited(runtime)
            while runtime.pace.sharing.unvisited:
                empty_unvisited(runtime)
        self._expire(NOW + LATE_SECONDS)
        super()._redrive(changes, how)

    def _expire(self, now: float) -> None:
        store, expired = self.store, []
        expired += [key for key, item in store.state.items() if item.get("ttl", now) < now]
        for key, row in store.rows.items():
            name = store.tables[key[0]].ttl
            if name in row and int(row[name]["N"]) < now:
                expired.append(key)
        for key in expired:
            store.state.pop(key, None)
            store.rows.pop(key, None)
            self._invariants.state.pop(key, None)
            self._invariants.versions.pop(key, None)
            self._invariants.noted.pop(key, None)  # the rows that it noted stay as they are


def killed(mutant: Mutant, histories: int = HISTORIES, seed: int = 0) -> Killed | None:
    """The first of so many histories that a mutant does not survive; None when it survives all."""
    if mutant.guard is not None and mutant.guard.startswith(GATHERED):
        return _killed_by_a_collection(mutant, histories, seed)
    if mutant.guard is not None and mutant.guard.startswith(WALKED):
        return _killed_by_a_walk(mutant, histories, seed)
    app, random = APPS[mutant.guard](), Random(seed)
    examples = {key: found for key, found in ((ITEM, IMAGES), (PART, PARTS)) if key in item_keys(app)}
    shapes, handlers = [shape(key, found) for key, found in examples.items()], FaultyHandlers(app)
    for number in range(1, histories + 1):
        writes, shards = drawn(random, shapes, CHANGES), random.choice(SHARDS)
        expected = expected_all(app, [change for shard in changes_of(app, writes, shards) for change in shard])
        choices = Drawn(Random(random.random()), random.choice(RATES), mutant.faults)
        with mutant.made():
            actions, pace = random.choice(ACTIONS), drawn_pace(app, random)
            deltas = number if mutant.guard == DELTAS else 0
            changed = changes_of(app, writes, shards)
            driver = LateDriver(handlers, changed, choices, actions, pace=pace, deltas=deltas)
            problem = difference_of(driver, expected)
        if problem:
            return Killed(_noticed_by(mutant, problem), number)
    return None


def _killed_by_a_walk(mutant: Mutant, walks: int, seed: int) -> Killed | None:
    """The first of so many walks that a mutant does not survive: over the script of its guard, or over all of them."""
    scripts, (_, _, script) = [*lookup_walks.SCRIPTS], mutant.guard.partition(": ")
    names = [script] if script else scripts
    for number in range(1, walks + 1):
        with mutant.made():
            walk = lookup_walks.Walk(lookup_walks.SCRIPTS[names[number % len(names)]], seed * 1_000_003 + number)
            problem = walk.run()
        if problem:
            return Killed(f"{_noticed_by(mutant, problem)} of {names[number % len(names)]!r}", number)
    return None


def _killed_by_a_collection(mutant: Mutant, walks: int, seed: int) -> Killed | None:
    """The first of so many drawn histories of roots and parts that a mutant does not survive."""
    _, _, name = mutant.guard.partition(": ")
    names = [name] if name else [*collection_walks.DESIGNS]
    for number in range(1, walks + 1):
        design = names[number % len(names)]
        with mutant.made():
            walk = collection_walks.CollectionWalk(collection_walks.DESIGNS[design], seed * 1_000_003 + number)
            problem = walk.run()
        if problem:
            return Killed(f"{_noticed_by(mutant, problem)} of {design!r}", number)
    return None


def _noticed_by(mutant: Mutant, problem: str) -> str:
    """What noticed it. A mutant that does not even run is a mistake of its own, and kills itself in vain."""
    if problem.startswith("InvariantBroken"):
        return "an invariant"
    if problem.startswith("ItemsWrong"):
        return "the items"
    if problem.startswith("OrderWrong"):
        return "the order"
    if problem.startswith("Rows differ"):
        return "the rows"
    raise RuntimeError(f"mutant {mutant.name!r} does not run: {problem}")


UNCHANGED = [Mutant(f"{guard} as it is", nullcontext, guard, equivalent=True) for guard in (*APPS, WALKED, GATHERED)]
"""No mutants, to see that it is them that histories fail on."""
