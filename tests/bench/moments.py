"""Moments: a million wakes of one minute on the model of DynamoDB, and the CPU of a local replay with moments.

The model is that of ``scale_model``: partitions of 1,000 write units a second, transactions of 20 ms. A stripe is
visited by one process, page after page, as ``batch.wakes.StripeVisits`` does it; the CPU of a visit is measured here.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from streamfold import App, Count, Item, Key, Now, Router, Row
from streamfold.batch.process import process_changes
from streamfold.batch.wakes import PAGE, StripeVisits, asking
from streamfold.cli.session import open_embedded
from streamfold.engines.memory import MemoryEngine
from streamfold.ledger.wakes import STRIPES, VISITED_WITHIN_SECONDS
from streamfold.records.envelope import Origins
from streamfold.records.values import encode
from streamfold.replay.files import RecordedFiles
from streamfold.replay.replay import Replay, ReplayCursor
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.settings.limits import ACTIONS_MAX
from tests.bench import scale_model
from tests.bench.scale_lanes import LANES, START_SECONDS
from tests.bench.scale_model import PARTITIONS, READ_BYTES, THROTTLED, UNITS_A_SECOND, Seen, Work, World, place_of
from tests.helpers.records import change, item, record
from tests.helpers.woken import START, at

TICKET = Key("TICKET#{ticket_id}", "META")
WAKES, WAKES_LARGE, VISITED = 100_000, 1_000_000, 3_000
RECORDS, MOMENTS, ROUNDS, BATCH = 10_000, 5_000, 5, 100
WAKE_BYTES = 160
"""Of a wake: its keys and its item's key."""
WRITES_OF_A_VISIT = 3
"""Ledger item, wake and row."""
GOAL_SECONDS, GOAL_CPU = 1800, 2.0
"""For a million wakes at 4,000 units a second; CPU of a replay with moments over one without."""


def batched(given: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (given[begin : begin + size] for begin in range(0, len(given), size))


def application(*, asks: bool) -> App:
    """A row of each ticket that is overdue, and how many there are; or of each open one."""
    router = Router()
    into = Key("OVERDUE#{ticket_id}", "TICKET"), Key("TEAM#{team}", "TICKETS")
    if asks:

        @router.index(TICKET, into=into[0])
        def overdue(ticket: Item, now: Now) -> Row | None:
            return Row(team=ticket["team"]) if now.passed(ticket["due_at"]) else None

        @router.view(TICKET, into=into[1])
        def count(ticket: Item) -> Row:
            return Row(team=ticket["team"], tickets=Count())

    else:

        @router.index(TICKET, into=into[0])
        def opened(ticket: Item) -> Row | None:
            return Row(team=ticket["team"])

        @router.view(TICKET, into=into[1])
        def count_all(ticket: Item) -> Row:
            return Row(team=ticket["team"], tickets=Count())

    return App("desk", routers=[router])


def visit_seconds(count: int = VISITED) -> float:
    """The CPU of a visit, in this process, on a store in memory."""
    app = application(asks=True)
    engine = MemoryEngine(app)
    engine.source_tables.update(app.source_tables)
    made = [item(f"TICKET#{number}", "META", team="a", due_at=at(60)) for number in range(count)]
    engine.put_sources([(("main", each["PK"], "META"), encode(each)["M"], "1") for each in made])
    now = START
    runtime = Runtime(app, engine, Settings(), clock=lambda: now, pause=lambda _: None)
    for some in batched([change(None, each, number + 1) for number, each in enumerate(made)], BATCH):
        assert not process_changes(runtime, some).failures
    engine.clock_seconds = 0.0  # else it is that of the records
    now += 60
    begin = time.process_time()
    for route in asking(runtime):
        for stripe in STRIPES:
            assert not StripeVisits(runtime, route, stripe).run().failures
    assert sum(key[1].startswith("OVERDUE") for key in engine.rows) == count
    return (time.process_time() - begin) / count


def stripe_work(world: World, stripe: str, wakes: int, cpu_seconds: float) -> Work:
    """The visits of a stripe's wakes, a page after the other."""
    partition = f"wake#{stripe}"
    for begin in range(0, wakes, PAGE):
        count = min(PAGE, wakes - begin)
        began = world.now
        yield START_SECONDS
        yield from world.read({partition: -(-count * WAKE_BYTES // READ_BYTES)})
        yield from world.read_anywhere(count, 1.0)  # ledger items
        yield from world.read_anywhere(count, 1.0)  # items
        yield cpu_seconds * count
        packs = [len(each) for each in batched(range(count), ACTIONS_MAX // WRITES_OF_A_VISIT)]
        yield world.side_by_side([_transaction(world, partition, each) for each in packs], LANES)
        world.seen.records += count
        world.seen.busy_seconds += world.now - began


def _transaction(world: World, partition: str, visits: int) -> Work:
    anywhere = [(world.random.getrandbits(32), 2.0) for _ in range((WRITES_OF_A_VISIT - 1) * visits)]
    wants = [*anywhere, (place_of(partition), 2.0 * visits)]
    tries = 0
    while (yield from world.transact(wants, (), {"visits": 2 * WRITES_OF_A_VISIT * visits})) == THROTTLED:
        tries += 1
        yield world.pause(tries, throttled=True)


def one_minute(wakes: int, cpu_seconds: float, *, splits: bool) -> tuple[float, Seen]:
    """How many seconds the visits of so many wakes of one moment take, and what was seen."""
    world = World(PARTITIONS)
    ended: list[float] = []
    for number, stripe in enumerate(STRIPES):
        own = wakes // len(STRIPES) + (number < wakes % len(STRIPES))
        world.spawn(stripe_work(world, stripe, own, cpu_seconds), lambda _: ended.append(world.now))
    with patch.object(scale_model, "SPLIT_REFUSALS", scale_model.SPLIT_REFUSALS if splits else 10**12):
        seen = world.run(24 * 3600)
    assert len(ended) == len(STRIPES)
    return max(ended), seen


def write_recording(path: Path) -> None:
    """Tickets, one a second; of half of them the moment comes on the way, of the others it had come."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(RECORDS):
            due = at(number + BATCH) if number % (RECORDS // MOMENTS) == 0 else at(-1)
            made = item(f"TICKET#{number}", "META", team=f"t{number % 7}", due_at=due)
            file.write(json.dumps(record(None, made, number + 1, at=float(START + number))) + "\n")


def replay_seconds(recording: Path, state: Path, *, asks: bool) -> float:
    """The CPU of a local replay into a new state."""
    app = application(asks=asks)
    begin = time.process_time()
    with closing(open_embedded(app, str(state))) as engine:  # as the command does it, with its place in the file
        runtime, recorded = Runtime(app, engine, Settings()), RecordedFiles([str(recording)])
        origins = Origins(app.source_tables, Settings(), print, app.tables)
        replay = Replay(runtime, origins, batch_records=BATCH, put_sources=engine.put_sources)
        summary = replay.process(recorded, ReplayCursor(app, Settings(), engine, recorded))
        assert (summary.records, summary.failure_count) == (RECORDS, 0)
    return time.process_time() - begin


def replays() -> str:
    """The CPU of replays with moments over that of replays without, in pairs."""
    with TemporaryDirectory() as folder:
        recording, shares = Path(folder) / "records.jsonl", []
        write_recording(recording)
        for number in range(ROUNDS):
            spent = [
                replay_seconds(recording, Path(folder) / f"{number}{asks}.db", asks=asks) for asks in (False, True)
            ]
            shares.append(spent[1] / spent[0])
    return (
        f"replay of {RECORDS:,} records with {MOMENTS:,} moments: {median(shares):.2f} times the CPU of one without "
        f"(goal: at most {GOAL_CPU})"
    )


def run(*, large: bool) -> Iterator[str]:
    yield replays()
    cpu = visit_seconds()
    yield f"CPU of a visit on a store in memory: {cpu * 1000:.2f} ms"
    wakes = WAKES_LARGE if large else WAKES
    for splits in (False, True):
        seconds, seen = one_minute(wakes, cpu, splits=splits)
        how = "partitions split" if splits else f"{PARTITIONS * UNITS_A_SECOND:,} units a second"
        late = "rises" if seconds > VISITED_WITHIN_SECONDS else "stays low"
        yield (
            f"{wakes:,} wakes of one minute, {how}: {seconds / 60:.1f} minutes (goal: at most "
            f"{GOAL_SECONDS / 60:.0f} for {WAKES_LARGE:,}), {seen.units / wakes:.2f} write units and "
            f"{seen.read_units / wakes:.2f} read units each, {seen.throttled:,} of {seen.sent:,} transactions refused; "
            f"the alarm {late}"
        )
