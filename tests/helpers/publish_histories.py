"""Histories of publishers: two versions of the code, deliveries as Lambda makes them, and a destination that refuses,
throttles, loses answers, and sees processes die. What was sent is compared with what was acknowledged.
"""

from collections import defaultdict
from itertools import count
from random import Random

from streamfold import App, Router
from streamfold.batch.process import process_event
from streamfold.derivations.publish.local import OPENED, LocalMessages
from streamfold.derivations.publish.targets import DestinationThrottled, RequestRefused
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping import Died
from tests.helpers.publishers import ORDER
from tests.helpers.source import Source

DELIVERIES_MAX = 300
"""Of one history. After the first third no fault happens any more, so that every history ends."""
REWIND_MAX = 6


def app_of(*, is_new):
    """A version of the application; the newer one has one publisher more."""
    router = Router()
    router.publish(ORDER, to="sqs:orders.fifo", type="order.{event}", name="plain")
    router.publish(ORDER, to="sns:orders", type="order.{event}", name="once", once=True, data=["new"])

    @router.publish(ORDER, to="eventbridge:shop", type="order.paid")
    def paid(change):
        return {"status": "paid"} if change.new and change.new["status"] == "paid" else None

    if is_new:
        router.publish(ORDER, to="sqs:orders.fifo", type="order.{event}", name="newer")
    return App("shop", routers=[router])


OLD, NEW = app_of(is_new=False), app_of(is_new=True)
NAMES = {app: [route.name for route in app.routes] for app in (OLD, NEW)}


class FaultyService(LocalMessages):
    """Takes messages, unless a draw says otherwise."""

    def __init__(self, random):
        super().__init__()
        self.random = random
        self.rate = 0.12

    def happens(self):
        return self.random.random() < self.rate

    def send_entries(self, messages):
        if self.happens():
            raise self.random.choice([EngineUnavailable("not sent"), Died(), RequestRefused("all of them")])
        results = [self._taken(message) for message in messages]
        if self.happens():
            raise self.random.choice([EngineUnavailable("answer lost"), Died()])
        return results

    def _taken(self, message):
        if self.happens():
            return self.random.choice([DestinationThrottled("slower"), RequestRefused("no"), EngineUnavailable("no")])
        super().send_entries([message])
        return EngineUnavailable("its answer lost") if self.happens() else None


class PublishHistory:
    """One history by its seed."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.service = FaultyService(self.random)
        self.engine = MemoryEngine(NEW.tables.values())
        self.acknowledged = []  # records, with the application that acknowledged them
        source = Source()
        self.records = [
            source.remove(f"ORDER#{number}")
            if (f"ORDER#{number}", "METADATA") in source.items and self.random.random() < 0.2
            else source.put(f"ORDER#{number}", status=self.random.choice(["new", "paid", "sent"]), turn=turn)
            for turn in range(self.random.randrange(1, 14))
            for number in [self.random.randrange(3)]
        ]

    def run(self):
        begin = 0
        for deliveries in count():
            if begin == len(self.records):
                return self
            if deliveries == DELIVERIES_MAX // 3:
                self.service.rate = 0.0
            assert deliveries < DELIVERIES_MAX, "the history does not end"
            batch = self.records[begin : begin + self.random.randrange(1, 6)]
            begin += self._delivered(batch)
            if self.service.happens():  # the checkpoint is lost
                begin = max(0, begin - self.random.randrange(1, REWIND_MAX))
        return None

    def _delivered(self, batch):
        """Delivers a batch; returns how many of its records are acknowledged, as a mapping counts them."""
        app = self.random.choice([OLD, NEW])
        left = count(self.random.randrange(2, 40), -1) if self.service.happens() else None
        runtime = Runtime(
            app,
            self.engine,
            Settings(older_code=True),
            outside=True,
            opened={OPENED: self.service},
            pause=lambda _: None,
            seconds_left=lambda: 20.0 if left is None or next(left) > 0 else 0.0,
        )
        try:
            failed = {failure.sequence for failure in process_event(runtime, batch).failures}
        except (Died, EngineUnavailable):
            return 0
        numbers = [record["dynamodb"]["SequenceNumber"] for record in batch]
        done = next((place for place, number in enumerate(numbers) if number in failed), len(batch))
        self.acknowledged += [(record, app) for record in batch[:done]]
        return done

    def wrong(self):
        """What is wrong, as a text; None if nothing is."""
        first, ids = defaultdict(list), defaultdict(set)
        for each in self.service.sent:
            ids[each.handler, each.group, each.sequence].add(each.id)
            if each.sequence not in first[each.handler, each.group]:
                first[each.handler, each.group].append(each.sequence)
        if several := [change for change, own in ids.items() if len(own) > 1]:
            return f"one change has several ids: {several[0]}"
        if len({each for own in ids.values() for each in own}) < len(ids):
            return "two changes, or two handlers, have one id"
        for (handler, _), sequences in first.items():
            passed_over = self._passed_over(handler)
            own = [each for each in sequences if number_of(each) not in passed_over]
            if own != sorted(own):
                return f"first appearances of {handler} are out of order: {own}"
        sent = {(handler, number_of(sequence)) for handler, _, sequence in ids}
        for record, app in self.acknowledged:
            image = record["dynamodb"].get("NewImage") or {"status": {"S": ""}}
            for handler in NAMES[app]:
                wanted = handler != "paid" or image["status"] == {"S": "paid"}
                number = record["dynamodb"]["SequenceNumber"]
                if wanted is not ((handler, number) in sent) and (wanted or handler == "paid"):
                    return f"{handler} of {number} was {'not ' * wanted}sent"
        return None

    def _passed_over(self, handler):
        """The records that code without the handler acknowledged: the newer code may see them after later ones."""
        return {record["dynamodb"]["SequenceNumber"] for record, app in self.acknowledged if handler not in NAMES[app]}


def number_of(sequence):
    """The sequence number of the record that a version belongs to."""
    return sequence.rpartition("/")[2].lstrip("0")


def check_histories(seeds):
    for seed in seeds:
        wrong = PublishHistory(seed).run().wrong()
        assert wrong is None, f"seed {seed}: {wrong}"
