"""Small applications that write to one table, each the same for the same seed; events/ holds what they do.

Here is what they share: a clock of their own, steps at random and the forms of a write.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random


class Clock:
    """A clock that moves only by its own method. ``latest`` is the newest one: subjects are recorded one by one."""

    latest = None

    def __init__(self, random):
        self.now = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)
        self._random = random
        Clock.latest = self

    def advance(self, minutes_max):
        """Moves on by a minute at least, and returns the new time."""
        self.now += timedelta(minutes=self._random.randint(1, minutes_max))
        return self.text()

    def text(self, days=0):
        """The time so many days from now, as ``2026-03-01T08:00:00Z``."""
        return f"{self.now + timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"


class Workload:
    """A subject's own view of its table, so that every next step follows from the seed alone."""

    def __init__(self, table, seed):
        self.table = table
        self.random = Random(seed)
        self.clock = Clock(self.random)

    def take_steps(self, weights, count=1):
        """Takes steps at random, each kind as often as its weight says."""
        for _ in range(count):
            (step,) = self.random.choices(list(weights), weights=weights.values())
            step(self)


def plain(number):
    """The number as DynamoDB keeps it, without trailing zeros: DynamoDB Local lets them through to the stream."""
    return number.quantize(Decimal(1)) if number == number.to_integral_value() else number.normalize()


def key(partition, sort):
    return {"PK": partition, "SK": sort}


def change(item_key, remove=(), **values):
    """The arguments of an update that sets and removes attributes, for ``update_item`` and for transactions."""
    sets = ", ".join(f"#{name} = :{name}" for name in values)
    removes = ", ".join(f"#{name}" for name in remove)
    parts = [f"SET {sets}"] * bool(values) + [f"REMOVE {removes}"] * bool(remove)
    bound = {"ExpressionAttributeValues": {f":{name}": value for name, value in values.items()}} if values else {}
    names = {f"#{name}": name for name in (*values, *remove)}
    return {"Key": item_key, "UpdateExpression": " ".join(parts), "ExpressionAttributeNames": names, **bound}


def transact(table, *actions):
    """Commits writes together. An action is ``("Put", {"Item": ...})``, ``("Update", change(...))`` and so on."""
    named = [{kind: {"TableName": table.name, **arguments}} for kind, arguments in actions]
    table.meta.client.transact_write_items(TransactItems=named)
