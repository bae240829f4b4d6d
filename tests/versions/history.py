"""One history: writes, deliveries, faults and deployments; then everything settles, and what is left is judged."""

from random import Random

from tests.versions.api import (
    Broken,
    Store,
    image_of,
    item_of,
    marked,
    matches,
    place_of,
    plain,
    rebuild,
    sequence_of,
    verify_rows,
)
from tests.versions.delivery import ALL, OF_ROWS, SHARDS, Delivery
from tests.versions.engine import Faulty
from tests.versions.judge import differences, judge
from tests.versions.shapes import shape_of

FILLED = 0.5
"""How many histories begin with all items there, taken by the old code."""
AGAIN = 0.3
"""How many histories end with a delivery of everything once more, or with a write of every item."""
LINES_TOLD, LETTERS_TOLD = 30, 400
"""How much is told of a history that broke something."""
VIEWS = ("NEW_AND_OLD_IMAGES", "NEW_IMAGE")


class History:
    """A history of a shape, out of a seed. ``story`` says what happened, line by line."""

    delivering = Delivery

    def __init__(self, shape, seed, *, store=Store):
        self.shape = shape
        self.random = random = Random(f"{shape.name} {seed}")
        self.story = []
        view = VIEWS[0] if shape.images else random.choice(VIEWS)
        self.store = store(view)
        self.engine = Faulty(self.store, random, random.choice(shape.rates), self.story.append)
        self.delivery = self.delivering(shape, random, self.store, self.engine, self.story.append)
        self.store.apps = [self.delivery.build(name, version) for name in shape.code for version in ("old", "new")]
        self.known = {place_of(each.key, fields): (each, fields) for each in shape.items for fields in each.fields}
        self.items = {}

    def run(self):
        """Plays it. Raises ``Broken`` with what is wrong in the end."""
        if self.shape.filled or self.random.random() < FILLED:
            self._begin()
        step = writes = 0
        while writes < self.shape.writes or step < self.delivery.last_step:
            action = self.random.random()
            if action < 0.4 and writes < self.shape.writes:
                writes += 1
                self._write()
            elif action < 0.5:
                self._something_odd(step)
            else:
                self.delivery.deliver(step)
            step += 1
        self._settle()
        judge(self)

    def _begin(self):
        """The old code takes an item of each key before the new one does."""
        rate, self.engine.rate = self.engine.rate, 0
        for place in self.known:
            self._put(place, self._drawn(place))
        self.delivery.drain("old")
        for consumer in self.delivery.consumers:  # for a group of the new code alone these records are older than it
            consumer.places = [len(shard) for shard in self.delivery.shards]
        if self.shape.swapped:
            self.snapshot = self.store.snapshot(), dict(self.items)
        self.engine.rate = rate

    def _write(self):
        bears = self.random.random() < self.shape.bearers
        places = [place for place, (items, _) in self.known.items() if items.touched != bears] or list(self.known)
        place = self.random.choice(places)
        if place in self.items and self.random.random() < 0.2:
            self._remove(place)
            return
        own, name = self._drawn(place), self.shape.own
        if name in own or self.random.random() < 0.5:
            self._put(place, own)
        elif name is not None and self.random.random() < 0.7:
            self._put(place, own, "put back unmarked", {name})
        else:
            self._put(place, own, "put without what is derived", ())

    def _drawn(self, place):
        items, fields = self.known[place]
        own = {**items.draw(self.random, fields), **fields}
        if self.shape.own and own.get("status") == "paid" and self._is_free(place):
            own[self.shape.own] = "MINE"
        return own

    def _is_free(self, place):
        """Whether nothing is derived under the name of the writer's own, and nothing on its way will be."""
        before = self.store.read(place)
        if before is None or marked(before, self.shape.own) or plain(before).get("status") != "paid":
            return False
        records = [each for each in self.store.stream if item_of(each) == place]
        opened = [
            sequence_of(each) in self.delivery.done for each in records if "OPEN" in str(each) or "open'" in str(each)
        ]
        return not self.engine.late and any(opened) and all(opened[:-1])

    def _put(self, place, own, how="update", kept=None):
        """Writes an item: ``kept`` names derived attributes that stay; None: all of them, and their mark."""
        self.story.append(f"{how} {place[1:]} {own}")
        stored, before = self.store.read(place) or {}, self.items.get(place, {})
        derived = {name: value for name, value in stored.items() if name not in before}
        if kept is not None:
            derived = {name: value for name, value in derived.items() if name in kept}
        self.items[place] = own
        self.store.write(place, derived | image_of(place, own))

    def _remove(self, place):
        self.story.append(f"remove {place[1:]}")
        self.items.pop(place, None)
        self.store.write(place, None)

    def _something_odd(self, step):
        """A place in the stream goes back, all is calm, records are redriven, a row is lost, the table is another."""
        self.delivery.go_back()
        if self.random.random() < 0.1:
            self.delivery.calm(step)
        if self.random.random() < 0.3:
            self.delivery.redrive(self.random.choice(list(self.shape.code)), self.random.choice(["old", "new"]))
        if self.shape.lost and self.random.random() < 0.5:
            self._lose()
        if self.shape.swapped and not self.delivery.tables and self.random.random() < 0.3:
            self._swap()

    def _lose(self):
        handlers = [each for versions in self.shape.code.values() for version in versions for each in version]
        targets = [each.target for each in handlers if each.kind in OF_ROWS]
        places = [place for place in self.store.items() if place not in self.known]
        rows = sorted(place for place in places if any(matches(target, place) for target in targets))
        for place in self.random.sample(rows, min(1, len(rows))):
            self.story.append(f"row {place[1:]} is removed behind the framework's back")
            before = self.store.read(place)
            self.store.lose(place)
            self.store.tell(place, before, None)

    def _swap(self):
        """The state stays as it is; the new table has a stream of its own."""
        self.story.append("the table is restored to an earlier moment under another name")
        stored, items = self.snapshot
        self.items = dict(items)
        self.store.restore(stored, "shop-restored", "2026-06-01T10:00:00.000")
        delivery = self.delivery
        delivery.tables = {"STREAMFOLD_TABLE_MAIN": "shop-restored"}
        delivery.shards, delivery.done = [[] for _ in range(SHARDS)], set()
        delivery.told = len(self.store.stream)
        delivery.left.clear()
        for consumer in delivery.consumers:
            consumer.places, consumer.warm = [0] * SHARDS, {"old": [], "new": []}

    def _settle(self):
        """Faults end, and the old code does; what the new code has not seen of an item is written once more."""
        self.story.append("settling")
        version = "old" if self.shape.refused else "new"
        self.engine.rate = 0
        self.engine.land()
        if self.shape.swapped:
            self._settle_swapped(version)
            return
        self.delivery.drain(version)
        self.delivery.redrive_all(version)
        if self.random.random() < AGAIN:
            for consumer in self.delivery.consumers:
                consumer.places = [0] * SHARDS
            self.delivery.drain(version)
        if self.shape.refused:
            self._refused()
        self._touch()
        self.delivery.drain(version)
        if self.shape.lost:
            self._rebuild(version)
            if self.random.random() < AGAIN:
                self._touch()
            self.delivery.drain(version)

    def _rebuild(self, version):
        """All handlers' rows are made anew: what is wrong before is told as different, and nothing is left."""
        wrong, told = set(differences(self)), set()
        processes = [self.delivery.build(name, version) for name in self.shape.code]
        for process in processes:
            told |= verify_rows(process, self.engine, {})
        if unnoticed := wrong - told:
            raise Broken(f"verify does not tell that rows are wrong: {unnoticed}")
        for process in processes:
            self.story.append(f"  {process.name} {version} rebuilds")
            if left := rebuild(process, self.engine, {}):
                raise Broken(f"rebuild leaves rows: {left}")

    def _touch(self):
        """Writes each item once more whose last change the old code took; what went while a handler was off comes and
        goes.
        """
        last = {item_of(record): sequence_of(record) for record in self.store.stream}
        every = self.random.random() < AGAIN or self.shape.off or self.shape.refused or self.shape.swapped
        for place, (items, fields) in self.known.items():
            if place in self.items and items.touched and not every and self.delivery.is_new(last.get(place)):
                continue
            if place in self.items and items.touched:
                self._put(place, {**self.items[place], "touch": 1})
            elif self.shape.off and items.touched:
                self._put(place, {**items.draw(self.random, fields), **fields})
                self._remove(place)

    def _refused(self):
        """The new code has to be refused over what the old one made."""
        self._touch()
        for consumer in self.delivery.consumers:
            for shard in range(SHARDS):
                consumer.warm = {"old": [], "new": []}
                if self.delivery.batch(consumer, "new", shard, ALL) == {}:
                    raise Broken("the new code is not refused")

    def _settle_swapped(self, version):
        """Either nothing is taken of the other table, or the rows are right."""
        self.lost_table = not self.delivery.tables
        if self.lost_table:
            self._swap()
        self._touch()
        for consumer in self.delivery.consumers:
            for shard in range(SHARDS):
                self.delivery.batch(consumer, version, shard, ALL)


def play(shape, seed, **options):
    """Plays a history; returns what is wrong, None if nothing is, and the story."""
    history = History(shape, seed, **options)
    try:
        history.run()
    except Broken as error:
        return f"{shape.name} {seed}: {error}", history.story
    return None, history.story


def broken(name, seeds, **options):
    """What histories of these seeds break, each with its story's last lines."""
    for seed in seeds:
        wrong, story = play(shape_of(name, seed), seed, **options)
        if wrong:
            again = f"python -m tests.versions {name} {seed} story"
            yield "\n".join(line[:LETTERS_TOLD] for line in (wrong, *story[-LINES_TOLD:], again))
