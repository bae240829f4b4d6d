"""Shards and lanes on a table, simulated: records a second, iterator age, conflicts, write units, cost of a million.

The transactions are those of the real planner for batches of made-up orders, each drawn anew; what DynamoDB and Lambda
do with them is ``scale_model``. ``--large`` draws docs/pictures/*.svg too, and goes up to 1,000 shards.
"""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from streamfold import App, Count, Item, Key, Router, Row, Sum
from streamfold.batch.process import plan_changes
from streamfold.commit.plan import Transaction as PlannedTransaction
from streamfold.commit.plan import Unit, pack
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import dollars as billed
from streamfold.ledger.deltas import STRIPES, bucket_of
from streamfold.records.envelope import Origins
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.bench.scale_lanes import Arrivals, Function, LedgerItem, Shared, Step
from tests.bench.scale_model import Addition, Bill, Delta, Seen, Transaction, add_to
from tests.bench.shop import ARN

RECORDS_A_SECOND = 100.0
"""Of one shard: a tenth of what a shard takes."""
SECONDS, SECONDS_OF_LARGE = 12.0, 20.0
WINDOW_SECONDS = 2.0
SEEDS = 1, 2, 3
"""Chance decides how often few transactions meet, so figures are means."""
SHARDS_ONCE = 1000
"""Simulated with one seed, for their time."""
LANES_MAX = 10
"""That are simulated without ``--large``."""
LATER_SHARE = 2 / 3
"""Of the time, at its end: what is done then says whether the backlog grows."""
BACKLOG_SECONDS_MAX = 1.5
CUSTOMERS, EXPONENT = 100_000, 1.1
SHARES = list(accumulate(1 / rank**EXPONENT for rank in range(1, CUSTOMERS + 1)))
"""How often the first customers come up, in all."""
GB_SECOND_DOLLARS, CALL_DOLLARS, MEMORY_GB = 13.3334e-6, 0.2e-6, 0.5
"""Lambda on Arm, us-east-1 (aws.amazon.com/lambda/pricing, 2025), and the memory of the function."""
COST_SHARE = 0.85
UNITS_A_RECORD = 5
"""That a warm table is ready for: two items in transactions, and room."""
DELTA_BYTES, ADDITION_BYTES = 150, 70
"""Of a delta, and of what it adds to each row."""
ORDER = Key("ORDER#{order_id}", "ORDER")
PICTURES = Path("docs/pictures")


class Workload(NamedTuple):
    """What is derived of the orders."""

    name: str
    into: Key
    shards: int | None = None
    own_rows: bool = False  # whether no two orders share a row
    amended: float = 0.0  # share of the records that amend or remove an earlier order, in equal parts


OWN = Workload("spread: a row of its own for each item", Key("ORDER#{order_id}", "TOTAL"), own_rows=True)
ZIPF = Workload("Zipf: customers, exponent 1.1", Key("CUSTOMER#{customer}", "TOTAL"))
ONE = Workload("one hot row", Key("ALL", "TOTAL"))
AMENDED = Workload("Zipf, half of the records amend or remove", Key("CUSTOMER#{customer}", "TOTAL"), amended=0.5)


class Setting(NamedTuple):
    """How the event source mapping is set, and the application."""

    shards: int
    factor: int = 1  # parallelization factor: lanes of a shard
    batch_records: int = 1000
    window_seconds: float = 0.0
    warm: bool = True  # whether the table has the partitions that spread writes need
    puts_deltas: bool = True  # as from decision 80 on
    any_process: bool = False  # whether an invocation takes any process of the function


def app_of(workload: Workload) -> App:
    router = Router()

    def total(order: Item) -> Iterator[Row]:
        plain = {"customer": order["customer"]} if "customer" in workload.into.fields else {}
        yield Row(total=Sum(order["price"]), orders=Count(), **plain)

    router.view(ORDER, into=workload.into, shards=workload.shards)(total)
    return App("scale", routers=[router])


INSERTS, AMENDS, REMOVES = "INSERT", "MODIFY", "REMOVE"


class PlannedBatches:
    """Batches of orders, each drawn anew: no customer comes up more often than its share says.

    The real planner plans each order of a customer once, and packs the transactions of each batch.
    """

    def __init__(self, workload: Workload, batch_records: int, seed: int = 1) -> None:
        app = app_of(workload)
        self.workload, self.batch_records, self.random = workload, batch_records, Random(seed)
        self.origins = Origins(app.source_tables, Settings())
        self.runtime = Runtime(app, MemoryEngine(app), Settings())
        self.units: dict[tuple[str, int, int], Unit] = {}  # by what happens, customer, and how often before in a batch
        self.in_buckets: dict[int, Unit] = {}  # these units, so that they add to a bucket instead of a row; by identity
        self.orders: defaultdict[int, list[LedgerItem]] = defaultdict(list)  # that a lane may amend

    def __call__(self, there: int, lane: int) -> "PlannedBatch":
        """The records of a batch."""
        size = min(there, self.batch_records)
        steps: dict[int, Step] = {}
        units: list[Unit] = []
        times: Counter[tuple[str, int]] = Counter()
        orders = self.orders[lane]
        later: list[LedgerItem] = []  # an item is in a batch once
        for _ in range(size):
            draw, what = self.random.random(), INSERTS
            if draw < self.workload.amended and orders:
                what = AMENDS if draw < self.workload.amended / 2 else REMOVES
                place = self.random.randrange(len(orders))
                orders[place], orders[-1] = orders[-1], orders[place]
                item = orders.pop()
            else:
                item = LedgerItem(bisect(SHARES, self.random.random() * SHARES[-1]))
            if what != REMOVES and self.workload.amended:
                later.append(item)
            known = what, item.customer, times[what, item.customer]
            times[what, item.customer] += 1
            unit = self.units.get(known) or self._planned(known)
            units.append(unit)
            if self.workload.amended:
                steps[id(unit)] = Step(item, row_of(unit), what != INSERTS, what == REMOVES)
        orders += later
        return PlannedBatch(self, size, units, steps)

    def _planned(self, known: tuple[str, int, int]) -> Unit:
        what, customer, _ = known
        order = self.origins.change(_order(self.random, what, customer, len(self.units)))
        plan, report = plan_changes(self.runtime, [order])
        assert not report.failures
        ((unit,),) = (transaction.units for transaction in plan.transactions)
        self.units[known] = unit
        return unit

    def in_bucket(self, unit: Unit) -> Unit:
        """A unit whose addition goes into its bucket: the planner then puts the units of a bucket together."""
        found = self.in_buckets.get(id(unit))
        if found is None:
            (effect,) = unit.effects
            bucket = ("delta", f"{bucket_of(effect.key):02d}", "")
            found = unit._replace(effects=(effect._replace(key=bucket),), routes=())
            self.in_buckets[id(unit)] = found
            self.in_buckets[id(found)] = unit
        return found


class PlannedBatch(NamedTuple):
    """The records of a batch, planned."""

    batches: PlannedBatches
    size: int
    units: Sequence[Unit]
    of_items: Mapping[int, Step]  # by the identity of their units

    def packed(self, shared: Shared, again: Transaction | None = None) -> list[Transaction]:
        batches = self.batches
        if batches.workload.own_rows:
            return [
                Transaction(own=len(each.writes), own_records=len(each.units), units=each.units)
                for each in pack(self.units if again is None else again.units, batches.runtime.chunk_actions)
            ]
        units = self.units if again is None else again.units
        some = [batches.in_bucket(unit) if shared.takes(row_of(unit)) else unit for unit in units]
        return [self._transaction(each, shared) for each in pack(some, batches.runtime.chunk_actions)]

    def steps(self, transaction: Transaction) -> Sequence[Step]:
        return [self.of_items[id(unit)] for unit in transaction.units] if self.of_items else ()

    def _transaction(self, planned: PlannedTransaction, shared: Shared) -> Transaction:
        rows: dict[str, Addition] = {}
        waiting: defaultdict[int, dict[str, Addition]] = defaultdict(dict)
        units: list[Unit] = []
        for each in planned.units:
            (effect,) = each.effects
            unit = each
            if effect.key[0] == "delta":
                unit = self.batches.in_buckets[id(each)]
            units.append(unit)
            row = row_of(unit)
            add_to(rows if unit is each else waiting[int(effect.key[1])], row, Addition(1, effect.contributors))
        stripe = self.batches.random.randrange
        deltas = [
            Delta(bucket, stripe(STRIPES), found, DELTA_BYTES + ADDITION_BYTES * len(found), shared.met(found))
            for bucket, found in waiting.items()
        ]
        return Transaction(rows, len(units), 0, tuple(deltas), tuple(units))


def row_of(unit: Unit) -> str:
    (effect,) = unit.effects
    return f"{effect.key[1]}/{effect.key[2]}"


def _order(random: Random, what: str, customer: int, number: int) -> dict[str, Any]:
    name = f"{random.getrandbits(64):016x}"
    keys = {"PK": {"S": f"ORDER#{name}"}, "SK": {"S": "ORDER"}}
    before, after = (
        {**keys, "customer": {"S": f"c{customer}"}, "price": {"N": str(random.randrange(low, low + 500))}}
        for low in (1, 501)
    )
    images = {INSERTS: {"NewImage": after}, REMOVES: {"OldImage": before}}.get(
        what, {"OldImage": before, "NewImage": after}
    )
    body = {"Keys": keys, **images, "SequenceNumber": str(10**20 + number)}
    body |= {"StreamViewType": "NEW_AND_OLD_IMAGES", "ApproximateCreationDateTime": 1772359200.0}
    return {"eventName": what, "eventSource": "aws:dynamodb", "dynamodb": body, "eventSourceARN": ARN}


def simulated(
    workload: Workload,
    setting: Setting,
    seconds: float = SECONDS,
    later: float = LATER_SHARE,
    seeds: Sequence[int] = (1,),
) -> "Result":
    partitions = int(setting.shards * RECORDS_A_SECOND * UNITS_A_RECORD / 1000) + 4 if setting.warm else 4
    arrivals = Arrivals(RECORDS_A_SECOND / setting.factor, setting.batch_records, setting.window_seconds)
    start = seconds * (1 - later)
    some = []
    for seed in seeds:
        function = Function(
            setting.shards * setting.factor,
            arrivals,
            PlannedBatches(workload, setting.batch_records, seed),
            partitions,
            seed,
            puts_deltas=setting.puts_deltas,
            any_process=setting.any_process,
        )
        some.append(function.run(seconds, start))
    return Result(workload, setting, seconds, start, tuple(some))


class Result(NamedTuple):
    """What simulations of a setting showed, on average."""

    workload: Workload
    setting: Setting
    seconds: float
    start: float  # of the later part
    some: tuple[Seen, ...]  # of each seed

    @property
    def offered(self) -> float:
        """Records a second."""
        return self.setting.shards * RECORDS_A_SECOND

    @property
    def kept_up(self) -> float:
        """The share of the records of the later part that was acknowledged in it."""
        return self._mean(lambda seen: seen.records_since(self.start)) / (self.offered * (self.seconds - self.start))

    @property
    def backlog_seconds(self) -> float:
        """How many seconds' records are not acknowledged at the end."""
        return self.seconds - self._mean(lambda seen: seen.records) / self.offered

    @property
    def bill(self) -> Bill:
        """Of the later part."""
        bills = [seen.bill().since(seen.before[self.start]) for seen in self.some]
        return Bill(*map(fmean, zip(*bills, strict=True)))

    @property
    def dollars(self) -> float | None:
        """What a million records cost in the later part: units, and the function's time and calls.

        None if most is not kept up with: units of batches that are not done would count for no record.
        """
        bill = self.bill
        if self.kept_up < COST_SHARE:
            return None
        function = bill.busy_seconds * MEMORY_GB * GB_SECOND_DOLLARS + bill.batches * CALL_DOLLARS
        return (billed(bill.units, bill.read_units) + function) / bill.records * 1e6

    def shown_after(self, share: float) -> float:
        return self._mean(lambda seen: seen.shown_after(share, self.start))

    def _mean(self, value: Callable[[Seen], float]) -> float:
        return fmean(map(value, self.some))

    def columns(self) -> list[str]:
        """For a line of a table."""
        setting, bill = self.setting, self.bill
        sent = max(1.0, self._mean(lambda seen: seen.sent))
        deltas = "" if setting.puts_deltas else ", no deltas"
        cold = "" if setting.warm else ", cold table"
        return [
            f"{self.workload.name}{cold}{deltas}",
            f"{setting.shards:,} x {setting.factor}",
            f"{setting.batch_records:,}, {setting.window_seconds:.0f} s",
            f"{self.kept_up:.1%}" if self.kept_up < 0.1 else f"{self.kept_up:.0%}",
            f"{self.backlog_seconds:.1f} s",
            f"{self.shown_after(0.5):.2f} s, {self.shown_after(0.99):.2f} s",
            f"{self._mean(lambda seen: seen.age(0.5)):.1f} s, {self._mean(lambda seen: seen.age(0.99)):.1f} s",
            f"{self._mean(lambda seen: seen.conflicts) / sent:.0%}",
            f"{self._mean(lambda seen: seen.throttled) / sent:.0%}",
            f"{bill.units / max(1, bill.records):.2f}",
            f"{bill.read_units / max(1, bill.records):.2f}",
            priced(self.dollars),
        ]


def priced(dollars: float | None) -> str:
    return "-" if dollars is None else f"${dollars:.2f}"


TITLES = (
    "rows",
    "shards x factor",
    "batch, window",
    "kept up",
    "backlog",
    "shown after: median, 99 %",
    "iterator age: median, 99 %",
    "conflicts",
    "throttled",
    "write units a record",
    "read units",
    "a million",
)


class Goal(NamedTuple):
    """What a setting has to reach."""

    workload: Workload
    setting: Setting
    kept_up: float
    shown_seconds: float
    dollars: float
    seconds: float = SECONDS
    later: float = LATER_SHARE

    def missed_by(self, result: Result) -> list[str]:
        missed = []
        if result.kept_up < self.kept_up:
            missed.append(f"keeps up with {result.kept_up:.1%} of {self.kept_up:.0%}")
        if result.backlog_seconds > BACKLOG_SECONDS_MAX:
            missed.append(f"a backlog of {result.backlog_seconds:.1f} s")
        if result.shown_after(0.5) > self.shown_seconds:
            missed.append(f"shown after {result.shown_after(0.5):.2f} s instead of {self.shown_seconds} s")
        if result.dollars is None or result.dollars > self.dollars:
            missed.append(f"{priced(result.dollars)} instead of ${self.dollars:.2f}")
        return missed


def goals() -> Iterator[Goal]:
    for shards in (1, 10, 100, 1000):
        yield Goal(OWN, Setting(shards), 0.98, 0.06, 2.75, _seconds(shards))
    yield Goal(ZIPF, Setting(1), 0.98, 0.06, 2.72)
    yield Goal(ONE, Setting(1), 0.98, 0.06, 1.98)
    yield Goal(ZIPF, Setting(10), 0.99, 1.0, 3.45)
    yield Goal(ZIPF, Setting(100), 0.99, 1.0, 3.45)
    yield Goal(ZIPF, Setting(1000), 0.95, 3.0, 3.45, _seconds(1000), 1 / 3)
    yield Goal(ONE, Setting(10), 0.99, 1.0, 2.00)
    yield Goal(ONE, Setting(100), 0.99, 1.0, 2.00)
    yield Goal(ONE, Setting(1000), 0.95, 2.0, 2.00, _seconds(1000))
    yield Goal(ZIPF, Setting(10, 10), 0.95, 2.0, 3.90)
    yield Goal(ONE, Setting(10, 10), 0.95, 2.0, 2.50)
    yield Goal(AMENDED, Setting(100, any_process=True), 0.95, 1.5, 3.90)


def advice() -> Iterator[tuple[Workload, Setting]]:
    """What docs/scale.md compares beside the goals."""
    for workload in (ZIPF, ONE):
        yield workload, Setting(10, window_seconds=WINDOW_SECONDS)
    for records in (10, 100):
        yield OWN, Setting(10, batch_records=records)
    yield OWN, Setting(50, warm=False)
    yield AMENDED, Setting(10)
    for shards in (8, 64):
        yield Workload(f"one row, shards={shards}", Key("ALL#{shard:02d}", "TOTAL"), shards), Setting(10)


def run(*, large: bool) -> Iterator[str]:
    yield _line(TITLES)
    yield _line(["---"] * len(TITLES))
    found: list[tuple[Goal, Result, Result]] = []
    for goal in goals():
        if large or goal.setting.shards * goal.setting.factor <= LANES_MAX:
            without = goal.setting._replace(puts_deltas=False)
            seeds = SEEDS if goal.setting.shards < SHARDS_ONCE else SEEDS[:1]
            before, after = (
                simulated(goal.workload, setting, goal.seconds, goal.later, seeds)
                for setting in (without, goal.setting)
            )
            for result in (before, after):
                yield _line(result.columns())
            for missed in goal.missed_by(after):
                yield f"  {missed}"
            found.append((goal, before, after))
    for workload, setting in advice():
        yield _line(simulated(workload, setting).columns())
    if large:
        yield from drawn(found)


def _line(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |"


def drawn(found: Sequence[tuple[Goal, Result, Result]]) -> Iterator[str]:
    """Two pictures over shards: the share of the records that is kept up with, and when rows show them."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "streamfold"  # the same picture has the same text
    pictures: dict[str, tuple[str, Callable[[Result], float]]] = {
        "scale-throughput": ("share of the records that is kept up with", lambda result: result.kept_up),
        "scale-age": ("seconds until a row shows a record, median", lambda result: result.shown_after(0.5)),
    }
    PICTURES.mkdir(exist_ok=True)
    for name, (title, value) in pictures.items():
        figure, axes = plt.subplots(figsize=(7, 4))
        for number, workload in enumerate((OWN, ZIPF, ONE)):
            of_it = [each for each in found if each[0].workload == workload and each[0].setting.factor == 1]
            for style, label, which in (("o--", "without deltas", 1), ("o-", "", 2)):
                line = [(each[0].setting.shards, value(each[which])) for each in of_it]
                text = f"{workload.name.partition(':')[0]} {label}"
                axes.plot(*zip(*line, strict=True), style, color=f"C{number}", label=text)
        axes.set_xscale("log")
        axes.set_xlabel(f"shards, {RECORDS_A_SECOND:.0f} records/s each")
        axes.set_title(title)
        axes.legend(fontsize=6)
        figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
        yield f"drew {PICTURES / name}.svg"


def _seconds(shards: int) -> float:
    return SECONDS if shards < 1000 else SECONDS_OF_LARGE
