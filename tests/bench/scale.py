"""Shards and lanes on a table, simulated: records a second, iterator age, conflicts, write units, cost of a million.

The transactions are those of the real planner for batches of made-up orders, each drawn anew; what DynamoDB and Lambda
do with them is ``scale_model``. ``--large`` draws docs/pictures/*.svg too, and goes up to 1,000 shards.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from streamfold import App, Count, Item, Key, Router, Row, Sum
from streamfold.batch.process import plan_changes
from streamfold.commit.plan import Transaction as PlannedTransaction
from streamfold.commit.plan import Unit, pack
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import dollars as billed
from streamfold.records.envelope import Origins
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import StateKey
from tests.bench.scale_model import Arrivals, Seen, Transaction, World
from tests.bench.shop import ARN

RECORDS_A_SECOND = 100.0
"""Of one shard: a tenth of what a shard takes."""
SECONDS = 12.0
WINDOW_SECONDS = 2.0
LANES_MAX = 1_000
"""That are simulated by default: 1,000 shards at factor 10 behave as 10,000 lanes of any shards, and take an hour."""
LATER_SHARE = 2 / 3
"""Of the time, at its end: what comes then says whether the backlog grows."""
CUSTOMERS, EXPONENT = 100_000, 1.1
SHARES = list(accumulate(1 / rank**EXPONENT for rank in range(1, CUSTOMERS + 1)))
"""How often the first customers come up, in all."""
GB_SECOND_DOLLARS, CALL_DOLLARS, MEMORY_GB = 13.3334e-6, 0.2e-6, 0.5
"""Lambda on Arm, us-east-1 (aws.amazon.com/lambda/pricing, 2025), and the memory of the function."""
KEEPS_UP_SHARE = 0.85
"""Of the records whose window ends within the time: with less, the units of batches that are not done would count for
no record, and a cost would say nothing."""
UNITS_A_RECORD = 5
"""That a warm table is ready for: two items in transactions, and room."""
ORDER = Key("ORDER#{order_id}", "ORDER")
PICTURES = Path("docs/pictures")


class Workload(NamedTuple):
    """What is derived of the orders."""

    name: str
    into: Key
    shards: int | None
    own_rows: bool  # whether no two orders share a row


WORKLOADS = (
    Workload("spread: a row of its own for each item", Key("ORDER#{order_id}", "TOTAL"), None, True),
    Workload("Zipf: customers, exponent 1.1", Key("CUSTOMER#{customer}", "TOTAL"), None, False),
    Workload("one hot row", Key("ALL", "TOTAL"), None, False),
    Workload("one hot row, shards=8", Key("ALL#{shard:02d}", "TOTAL"), 8, False),
    Workload("one hot row, shards=64", Key("ALL#{shard:02d}", "TOTAL"), 64, False),
)


class Setting(NamedTuple):
    """How the event source mapping is set."""

    shards: int
    factor: int = 1  # parallelization factor: lanes of a shard
    batch_records: int = 1000
    window_seconds: float = 0.0
    warm: bool = True  # whether the table has the partitions that spread writes need


def app_of(workload: Workload) -> App:
    router = Router()

    def total(order: Item) -> Iterator[Row]:
        plain = {"customer": order["customer"]} if "customer" in workload.into.fields else {}
        yield Row(total=Sum(order["price"]), orders=Count(), **plain)

    router.view(ORDER, into=workload.into, shards=workload.shards)(total)
    return App("scale", routers=[router])


class Batches:
    """Batches of new orders, each drawn anew: no customer comes up more often than its share says.

    The real planner plans each order of a customer once, and packs the transactions of each batch.
    """

    def __init__(self, workload: Workload, batch_records: int, seed: int = 1) -> None:
        app = app_of(workload)
        self.workload, self.batch_records, self.random = workload, batch_records, Random(seed)
        self.origins = Origins(app.source_tables, Settings())
        self.runtime = Runtime(app, MemoryEngine(app), Settings())
        self.units: dict[tuple[int, int], Unit] = {}  # by customer, and how many of its orders come before in a batch
        self.transactions = 0

    def __call__(self, there: int, lane: int) -> tuple[int, list[Transaction]]:
        """The transactions of a batch."""
        size = min(there, self.batch_records)
        orders: Counter[int] = Counter()
        units = []
        for _ in range(size):
            customer = bisect(SHARES, self.random.random() * SHARES[-1])
            units.append(self.units.get((customer, orders[customer])) or self._unit(customer, orders[customer]))
            orders[customer] += 1
        return size, [self._transaction(each) for each in pack(units, self.runtime.chunk_actions)]

    def _unit(self, customer: int, number: int) -> Unit:
        order = self.origins.change(_order(self.random, customer, len(self.units)))
        plan, report = plan_changes(self.runtime, [order])
        assert not report.failures
        ((unit,),) = (transaction.units for transaction in plan.transactions)
        self.units[customer, number] = unit
        return unit

    def _transaction(self, planned: PlannedTransaction) -> Transaction:
        """Two units for each item. Orders are new, so their ledger items, and own rows, are no others."""
        self.transactions += 1
        names = []
        for number, write in enumerate(planned.writes):
            is_own = isinstance(write.key, StateKey) or self.workload.own_rows
            names.append(f"{self.transactions}.{number}" if is_own else f"{write.key[1]}/{write.key[2]}")
        return Transaction(tuple(names), 2 * len(names), len(planned.units))


def _order(random: Random, customer: int, number: int) -> dict[str, Any]:
    name = f"{random.getrandbits(64):016x}"
    image = {
        "PK": {"S": f"ORDER#{name}"},
        "SK": {"S": "ORDER"},
        "customer": {"S": f"c{customer}"},
        "price": {"N": str(random.randrange(1, 500))},
    }
    keys = {part: image[part] for part in ("PK", "SK")}
    body = {"Keys": keys, "NewImage": image, "SequenceNumber": str(10**20 + number)}
    body |= {"StreamViewType": "NEW_AND_OLD_IMAGES", "ApproximateCreationDateTime": 1772359200.0}
    return {"eventName": "INSERT", "eventSource": "aws:dynamodb", "dynamodb": body, "eventSourceARN": ARN}


def simulated(workload: Workload, setting: Setting, seconds: float = SECONDS) -> Seen:
    lanes = setting.shards * setting.factor
    partitions = int(setting.shards * RECORDS_A_SECOND * UNITS_A_RECORD / 1000) + 4 if setting.warm else 4
    arrivals = Arrivals(RECORDS_A_SECOND / setting.factor, setting.batch_records, setting.window_seconds)
    return World(lanes, arrivals, Batches(workload, setting.batch_records), partitions).run(seconds)


def dollars(seen: Seen) -> float:
    """What a million records cost: write and read units, and the function's time and calls."""
    lambda_dollars = seen.busy_seconds * MEMORY_GB * GB_SECOND_DOLLARS + seen.batches * CALL_DOLLARS
    units_dollars = billed(seen.units, seen.read_units)
    return (units_dollars + lambda_dollars) / seen.records * 1e6 if seen.records else 0.0


def keeps_up(setting: Setting, seen: Seen, seconds: float) -> bool:
    """Whether the function takes about as many records as come."""
    due = setting.shards * RECORDS_A_SECOND * (seconds - setting.window_seconds)
    return seen.records >= KEEPS_UP_SHARE * due


def told(setting: Setting, seen: Seen, seconds: float) -> str:
    offered = setting.shards * RECORDS_A_SECOND
    rate = seen.records / seconds
    start = seconds * (1 - LATER_SHARE)
    of_later = offered * seconds * LATER_SHARE
    cost = f"${dollars(seen):.2f} a million" if keeps_up(setting, seen, seconds) else "does not keep up"
    return (
        f"{setting.shards:,} shards x {setting.factor}{'' if setting.warm else ', cold table'}, up to "
        f"{setting.batch_records} records or {setting.window_seconds:.0f} s: "
        f"{rate:,.0f} of {offered:,.0f} records/s, age {seen.age(0.5):.1f} s "
        f"(99%: {seen.age(0.99):.1f} s), shown after {seen.shown_after(0.5):.2f} s "
        f"(99%: {seen.shown_after(0.99):.2f} s), in the last two thirds {seen.records_since(start) / of_later:.0%} "
        f"acknowledged, {seen.shown_since(start) / of_later:.0%} shown after {seen.shown_after(0.5, start):.2f} s, "
        f"{seen.conflicts / max(1, seen.sent):.0%} conflicts, "
        f"{seen.throttled / max(1, seen.sent):.0%} throttled, "
        f"{seen.units / max(1, seen.records):.1f} units a record, {cost}"
    )


def settings(*, large: bool) -> Iterator[Setting]:
    for shards in (1, 10, 100, 1000) if large else (1, 10):
        for factor in (1, 10):
            if shards * factor <= LANES_MAX:
                yield Setting(shards, factor)
                yield Setting(shards, factor, window_seconds=WINDOW_SECONDS)


def run(*, large: bool) -> Iterator[str]:
    found: dict[str, dict[Setting, Seen]] = {}
    for workload in WORKLOADS:
        yield workload.name
        found[workload.name] = {}
        some = list(settings(large=large))
        if workload.own_rows:
            some += [Setting(10, 1, records) for records in (10, 100)] + [Setting(100 if large else 50, warm=False)]
        for setting in some:
            seconds = _seconds(setting)
            seen = found[workload.name][setting] = simulated(workload, setting, seconds)
            yield "  " + told(setting, seen, seconds)
    if large:
        yield from drawn(found)


def drawn(found: dict[str, dict[Setting, Seen]]) -> Iterator[str]:
    """Two pictures: the share of the records that is kept up with, and the age, over shards."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "streamfold"  # the same picture has the same text
    shares = (
        "records/s of those that come",
        lambda s, seen: seen.records / _seconds(s) / (s.shards * RECORDS_A_SECOND),
    )
    ages = ("median iterator age, seconds", lambda _, seen: seen.age(0.5))
    PICTURES.mkdir(exist_ok=True)
    for name, (title, value) in {"scale-throughput": shares, "scale-age": ages}.items():
        figure, axes = plt.subplots(figsize=(7, 4))
        for workload, seen in found.items():
            for window, style in ((0.0, "o--"), (WINDOW_SECONDS, "o-")):
                wanted = [(s, each) for s, each in seen.items() if s == Setting(s.shards, window_seconds=window)]
                line = [(s.shards, value(s, each)) for s, each in wanted]
                axes.plot(*zip(*line, strict=True), style, label=f"{workload.partition(':')[0]}, window {window:.0f} s")
        axes.set_xscale("log")
        axes.set_xlabel(f"shards, {RECORDS_A_SECOND:.0f} records/s each")
        axes.set_title(title)
        axes.legend(fontsize=6)
        figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
        yield f"drew {PICTURES / name}.svg"


def _seconds(setting: Setting) -> float:
    return SECONDS if setting.shards < 1000 else SECONDS / 4
