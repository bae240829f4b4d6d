"""Deliveries of the stream to old and new processes, as badly as Lambda may; what is given up is redriven late."""

import json
from dataclasses import dataclass, field
from zlib import crc32

from tests.versions.api import (
    REFUSED,
    UNAVAILABLE,
    Broken,
    application,
    deliver,
    is_added_to,
    item_of,
    matches,
    redrive,
    sequence_of,
)
from tests.versions.engine import Died

SHARDS = 2
WARM = 2
"""Processes of each version that are warm at once."""
ATTEMPTS = 4
"""Deliveries of a record before it is given up."""
ROUNDS = 40
"""Rounds of deliveries in which all that the last writes lead to has to be done."""
ALL = 1000
OF_ROWS = ("view", "index")
"""The kinds whose rows are compared with their items, and made anew of them."""


@dataclass
class Consumer:
    """A function that reads the stream: its place in each shard, and its warm processes by version of the code.

    The old code runs up to the step ``ends``, the new one from ``begins`` on.
    """

    name: str
    group: str | None
    versions: tuple
    begins: int
    ends: int
    places: list = field(default_factory=lambda: [0] * SHARDS)
    warm: dict = field(default_factory=lambda: {"old": [], "new": []})
    attempts: dict = field(default_factory=dict)

    def version(self, step, random):
        return "old" if step < self.begins or (step < self.ends and random.random() < 0.5) else "new"


class Parking:
    """A parking place: a list of documents."""

    def __init__(self):
        self.documents = []

    def park(self, parked):
        self.documents.append(json.loads(parked.text()))


class Delivery:
    """The consumers of a shape's applications over a store. ``first`` says how each record first went, and by which
    code; ``done`` holds the records that were acknowledged, ``by`` which code took them.
    """

    def __init__(self, shape, random, store, engine, tell):
        self.shape, self.random, self.store, self.engine, self.tell = shape, random, store, engine, tell
        self.shards = [[] for _ in range(SHARDS)]
        self.told = 0
        self.tables = {}
        self.parking = Parking()
        self.left = []
        self.why = ""
        self.first, self.done, self.by = {}, set(), {}
        self.old_up_to = 0
        self.consumers = [each for name in shape.code for each in self._consumers(name)]
        self.last_step = max(each.ends for each in self.consumers)

    def _consumers(self, name):
        """One for an application, or one for each of its groups, deployed at different times."""
        old, new = ({handler.group for handler in handlers} for handlers in self.shape.code[name])
        for group in sorted(old | new) if len(old | new) > 1 else [None]:
            begins = self.random.randrange(2 * self.shape.writes)
            ends = begins + self.random.randrange(2 * self.shape.writes)
            yield Consumer(name, group, ("old", "new") if group is None or group in old else ("new",), begins, ends)

    def deliver(self, step):
        """Delivers one batch to one process."""
        consumer = self.random.choice(self.consumers)
        version, shard = consumer.version(step, self.random), self.random.randrange(SHARDS)
        size = self.random.choice([1, 2, 5, 20])
        off = {}
        if self.shape.off and self.random.random() < 0.3:
            off = {"STREAMFOLD_HANDLERS_OFF": self.random.choice(self.shape.off)}
        if version in consumer.versions:
            self.batch(consumer, version, shard, size, **off)

    def batch(self, consumer, version, shard, size, **settings):
        """Delivers a batch; returns what failed by sequence number, None where there is nothing to deliver."""
        self._sort()
        begin = consumer.places[shard]
        batch = self.shards[shard][begin : begin + size]
        if not batch:
            return None
        numbers = [sequence_of(record) for record in batch]
        self.tell(f"  {consumer.name}/{consumer.group or '-'} {version}: {_short(numbers)} {settings or ''}")
        failed = self._invoke(consumer, version, batch, settings)
        for number in numbers:
            self.first.setdefault((consumer.name, number), (version, number not in failed))
            if version == "old":  # it may have done its part before it failed
                self.by.setdefault((consumer.name, consumer.group, number), version)
        self._acknowledge(consumer, version, shard, batch, failed)
        return failed

    def _sort(self):
        """Sorts what is new in the stream into shards."""
        for record in self.store.stream[self.told :]:
            self.shards[crc32(str(item_of(record)[1]).encode()) % SHARDS].append(record)
        self.told = len(self.store.stream)

    def _invoke(self, consumer, version, batch, settings):
        """Lets a process take a batch, a warm one or a cold start; one that died or was refused is gone."""
        warm = consumer.warm[version]
        if len(warm) < WARM and (not warm or self.random.random() < 0.3):
            warm.append(self.build(consumer.name, version))
        process = self.random.choice(warm)
        group = {} if consumer.group is None else {"STREAMFOLD_GROUP": consumer.group}
        try:
            parking = self.parking if self.random.random() < 0.7 or self.shape.parks else None
            failed, lost = deliver(process, self.engine, batch, {**group, **settings, **self.tables}, parking)
        except (Died, UNAVAILABLE, *REFUSED) as error:
            warm.remove(process)
            return {sequence_of(record): [f"{type(error).__name__}: {error}"] for record in batch}
        self._check_noticed(consumer, version, batch, failed, lost)
        return failed

    def _check_noticed(self, consumer, version, batch, failed, lost):
        """Every handler notices each removal of a row that it adds to; none notices what nobody did."""
        if not (self.shape.lost or self.shape.swapped) and lost:
            raise Broken(f"rows are noticed to be removed, and nobody removed one: {lost}")
        places = [item_of(record) for record in batch if sequence_of(record) not in failed and is_row_removal(record)]
        for handler in self.shape.code[consumer.name][version == "new"]:
            if handler.kind in OF_ROWS and consumer.group in (None, handler.group):
                removed = sum(matches(handler.target, place) for place in places)
                if lost.get(handler.name, 0) < removed:
                    raise Broken(f"{handler.name} does not notice that {removed} of its rows were removed: {lost}")

    def build(self, name, version):
        """An application as a cold start makes it."""
        old, new = self.shape.code[name]
        gone = {handler.name for handler in old} - {handler.name for handler in new}
        if version == "old":
            return application(name, old)
        return application(name, new, () if self.shape.refused else gone)

    def _acknowledge(self, consumer, version, shard, batch, failed):
        """Goes on behind the batch or to the lowest failed record, which is given up after some attempts."""
        for record in batch:
            number = sequence_of(record)
            if number in failed:
                self.tell(f"    {_short([number])} failed: {failed[number][0][:300]}")
                attempts = consumer.attempts[number] = consumer.attempts.get(number, 0) + 1
                if attempts % ATTEMPTS:
                    return
                self.tell(f"    {_short([number])} is given up")
                self.left.append((consumer.name, given_up(record)))
            else:
                self.done.add(number)
                self.by.setdefault((consumer.name, consumer.group, number), version)
            consumer.places[shard] += 1

    def calm(self, step):
        """While nobody writes, and each function stays with one version, handlers' own writes come to an end."""
        versions = [(each, each.version(step, self.random)) for each in self.consumers]
        for _ in range(ROUNDS):
            told = len(self.store.stream)
            for consumer, version in versions:
                for shard in range(SHARDS) if version in consumer.versions else ():
                    self.batch(consumer, version, shard, ALL)
            if len(self.store.stream) == told:
                return
        raise Broken(f"handlers write on in {ROUNDS} rounds in which nobody else writes")

    def go_back(self):
        """A place goes back: some records come again."""
        consumer, shard = self.random.choice(self.consumers), self.random.randrange(SHARDS)
        consumer.places[shard] = max(0, consumer.places[shard] - self.random.randrange(8))

    def is_new(self, number):
        """Whether every consumer's new code was the first to take a record, and nothing led its item back since."""
        older = {sequence_of(record) for record in self.store.stream[: self.old_up_to]}
        return number not in older and all(
            self.by.get((each.name, each.group, number)) == "new" for each in self.consumers
        )

    def redrive(self, name, version):
        """Redrives what was parked and given up for an application; what fails waits on."""
        if version == "old":
            self.old_up_to = len(self.store.stream)  # it leads items to what the old code makes of them
        waiting = self.left + [(document["application"], document) for document in self.parking.documents]
        self.parking.documents.clear()
        self.left = [each for each in waiting if each[0] != name]
        wanted = [each for each in waiting if each[0] == name]
        process = self.build(name, version) if wanted else None
        for each in wanted:
            self.tell(f"  {name} {version} redrives")
            try:
                failed = redrive(process, self.engine, each[1], self.tables)
            except (Died, UNAVAILABLE, *REFUSED) as error:
                failed = [repr(error)]
            if failed:
                self.why = failed
                self.left.append(each)

    def redrive_all(self, version):
        for name in self.shape.code:
            self.redrive(name, version)
        if self.left and not self.tables:
            raise Broken(f"{len(self.left)} documents cannot be redriven: {self.why}")

    def drain(self, version):
        """Delivers until nothing is left. Raises ``Broken`` where that does not come to an end."""
        failed = None
        for _ in range(ROUNDS):
            places = [(each, shard) for each in self.consumers if version in each.versions for shard in range(SHARDS)]
            answers = [self.batch(consumer, version, shard, ALL) for consumer, shard in places]
            if all(answer is None for answer in answers):
                return
            failed = next((answer for answer in answers if answer), failed)
        raise Broken(f"deliveries do not come to an end; a failure: {next(iter((failed or {}).values()), None)}")


def is_row_removal(record):
    """Whether a record tells that a row was removed which counted somebody."""
    return record["eventName"] == "REMOVE" and is_added_to(record["dynamodb"].get("OldImage", {}))


def given_up(record):
    """What Lambda leaves of a record in a bucket."""
    return {"payload": json.dumps({"Records": [record]})}


def _short(numbers):
    return ", ".join(str(int(number) - 10**20) for number in numbers[:8]) + (", ..." if len(numbers) > 8 else "")
