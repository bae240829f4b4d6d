"""Processes that add to shared rows of one table, and are killed, stopped and sent back at random.

``python -m tests.helpers.sharing_processes FOLDER ENDPOINT SEED KILLS STOPS REMOVALS RECORDS`` begins a process for
each shard, and begins it again after each kill. Processes inherit what was imported here: a kill costs no second of
imports.

- Each shard has its own items, whose records follow from the seed: it goes on until enough processes were killed, and
  ends behind the last record that was ever tried. A process goes back to earlier records now and then,
  or on behind records that failed; in the end all records come once more.
- Half of the processes put all additions, or those to half of the rows, into deltas; the others those to rows at which
  somebody met others. All wait for the deltas that ledger items name.
- The clocks of the processes differ by minutes, answers of the store are lost, transactions are refused, and
  processes stand still for seconds. Rows are removed by hand.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from streamfold import Add, App, Average, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine
from streamfold.engines.dynamodb_client import make_client
from streamfold.errors import EngineUnavailable
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import CONFLICT, AddRow, DeleteRow, DeleteState, Reason, Refused, SwapText
from tests.helpers.source import Source

SHARDS = 8
CUSTOMERS, ZIPF = 40, 1.1
ITEMS_MAX = 6
"""Live items of a shard: so few that the rows of rare customers become empty, and are made again."""
BATCH_MAX = 25
BACK_MAX = 40
"""Records that a process goes back."""
GIVEN_UP = 0.4
"""The share of failed batches that a process goes on behind, though what they put may be pending."""
WAIT_SECONDS = 0.5
"""How long a process that is through waits before it goes back."""
LOST = 0.01
"""The share of calls whose answer is lost, half of them before they are made."""
MET, THROTTLED = 0.1, 0.01
"""The shares of transactions that DynamoDB would refuse because others are at their rows, or because too much is
written: DynamoDB Local makes one wait for the other."""
CLOCKS = (0, 0, -240, 240)
STOPPED_SECONDS = (2.5, 5.0)
"""Longer than a lease."""
ITEM, ALL, CUSTOMER = Key("ITEM#{item_id}", "METADATA"), Key("TOTAL#{name}", "TOTAL"), Key("CUSTOMER#{name}", "TOTAL")
CHANGES = Key("CHANGES#{name}", "TOTAL")
router = Router()


@router.view(ITEM, into=ALL)
def total(item):
    return Row(name="all", amount=Sum(item["amount"]), items=Count())


@router.view(ITEM, into=CUSTOMER)
def by_customer(item):
    return Row(name=item["customer"], amount=Sum(item["amount"]), items=Count(), size=Average(item["size"]))


@router.on(ITEM, into=CHANGES)
def changes(change):
    return Add(name="all", changes=1)


app = App("sharing", [router])


class Records:
    """The records of a shard's items, which follow from the seed."""

    def __init__(self, seed, shard):
        self.random = random.Random(f"{seed} {shard}")
        self.shard, self.source, self.live, self.number = shard, Source(), {}, 0
        self.made = []

    def until(self, count):
        """The first records, as many."""
        while len(self.made) < count:
            self.made.append(self._next())
        return self.made[:count]

    def _next(self):
        draw = self.random.random()
        if not self.live or (draw < 0.45 and len(self.live) < ITEMS_MAX):
            self.number += 1
            return self._put(f"{self.shard}x{self.number}", self._customer(), self.random.randint(1, 99))
        name = self.random.choice(sorted(self.live))
        if draw > 0.7:
            del self.live[name]
            return self.source.remove(f"ITEM#{name}")
        customer, amount = self.live[name]
        if draw > 0.55:
            customer = self._customer()
        return self._put(name, customer, amount if draw > 0.62 else self.random.randint(-99, 99))

    def _customer(self):
        weights = [1 / (rank + 1) ** ZIPF for rank in range(CUSTOMERS)]
        return f"c{self.random.choices(range(CUSTOMERS), weights)[0]}"

    def _put(self, name, customer, amount):
        self.live[name] = customer, amount
        return self.source.put(f"ITEM#{name}", customer=customer, amount=amount, size=self.number)


class Lossy:
    """A store whose answers are lost now and then. It counts what is written by deltas."""

    def __init__(self, engine, random, counts):
        self.engine, self.random, self.counts = engine, random, counts

    def __getattr__(self, name):
        found = getattr(self.engine, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            if (lost := self.random.random()) < LOST / 2:
                raise EngineUnavailable(f"{name} was not made.")
            if name == "transact" and (refused := self._refused(arguments[0])) is not None:
                answer = refused
            else:
                answer = found(*arguments, **options)
            if name == "transact":
                self._count(arguments[0], answer)
            if lost < LOST:
                raise EngineUnavailable(f"The answer of {name} was lost.")
            return answer

        return call

    def _refused(self, writes):
        """A refusal for a transaction of the kind that DynamoDB Local never gives."""
        draw, rows = self.random.random(), [isinstance(write, AddRow) for write in writes]
        if draw < MET and any(rows):
            return Refused(tuple(Reason(CONFLICT[0]) if is_row else None for is_row in rows))
        if MET <= draw < MET + THROTTLED:
            return Refused((Reason("ThrottlingError"),) * len(writes))
        return None

    def _count(self, writes, refused):
        self.counts["transactions"] += 1
        if refused is not None:
            codes = {reason.code for reason in refused.reasons if reason}
            self.counts["conflicts"] += "TransactionConflict" in codes
            return
        self.counts["put"] += sum(type(write) is SwapText and write.expected is None for write in writes)
        gone = [write for write in writes if type(write) is DeleteState and write.key.pk.startswith("delta#")]
        rows = [write for write in writes if type(write) in (AddRow, DeleteRow)]
        if gone:
            self.counts["merges"] += 1
            self.counts["merged"] += len(gone)
            self.counts["emptied"] += sum(type(write) is DeleteRow for write in rows)
        self.counts["rows"] += len(rows)


def read(folder, shard, what):
    """A number that a shard's process wrote."""
    with suppress(FileNotFoundError):
        return int((folder / f"{shard}.{what}").read_text())
    return 0


class Shard:
    """One process: it tries the records of a shard from its cursor on."""

    def __init__(self, folder, endpoint, seed, records, shard, life):
        self.folder, self.shard, self.random = folder, shard, random.Random(f"{seed} {shard} {life}")
        self.records, self.counts, self.most = Records(seed, shard), Counter(), records
        tables = {name: (table, name) for name, table in app.tables.items()}
        client = make_client(endpoint_url=endpoint)
        engine = Lossy(DynamoEngine(client, tables, "sharing-state"), self.random, self.counts)
        ahead = self.random.choice(CLOCKS)
        self.runtime = Runtime(app, engine, Settings(), clock=lambda: time.time() + ahead)
        self.runtime.pace.sharing.forced = self._forced(shard)
        self.last = read(folder, shard, "last")  # all records come once more, as by a redrive of those given up

    def _forced(self, shard):
        if shard % 2:
            return None
        share = self.random.choice((2, 1))
        return lambda row: not crc32(str(row).encode()) % share

    def run(self):
        while True:
            cursor, tried = (read(self.folder, self.shard, what) for what in ("cursor", "tried"))
            if cursor >= tried >= self.most:
                if self.last:
                    return
                if (self.folder / "enough").exists():
                    self.last = 1
                    self._write("last", 1)
                    self._write("cursor", 0)
                    continue
                cursor = max(0, cursor - self.random.randint(1, BACK_MAX))
                time.sleep(WAIT_SECONDS)
            batch = self.random.randint(1, BATCH_MAX)
            if tried < self.most:
                tried = max(tried, cursor + batch)
                self._write("tried", tried)
            records = self.records.until(tried)[cursor : cursor + batch]
            failed = {failure.sequence for failure in process_event(self.runtime, records).failures}
            numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
            done = next((number for number, sequence in enumerate(numbers) if sequence in failed), len(records))
            self.counts["failed"] += len(failed)
            self.counts["records"] += done
            if failed and not self.last and self.random.random() < GIVEN_UP:
                done = len(records)
            cursor += done
            if not self.last and self.random.random() < 0.1:
                cursor = max(0, cursor - self.random.randint(1, BACK_MAX))
            self._write("cursor", cursor)
            with (self.folder / f"{self.shard}.counts").open("a") as counts:
                counts.write(json.dumps(self.counts) + "\n")
            self.counts.clear()

    def _write(self, what, number):
        """Replaces a file in one step: a kill leaves the number before, or this one."""
        new = self.folder / f"{self.shard}.new"
        new.write_text(str(number))
        new.replace(self.folder / f"{self.shard}.{what}")


def begin(*arguments):
    """Begins a process; returns its id."""
    if process := os.fork():
        return process
    code = 1
    try:
        Shard(*arguments).run()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as the one that began it
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(processes):
    """The processes that have ended, all well."""
    found = []
    for process, shard in processes.items():
        gone, status = os.waitpid(process, os.WNOHANG)
        assert not status, f"shard {shard} failed"
        found += [process] if gone else []
    return found


def supervise(folder, endpoint, seed, kills, stops, removals, records):
    """Kills and stops processes at random, and begins them again, until all shards are done."""
    client = make_client(endpoint_url=endpoint)  # what it loads is there for all processes then
    chance, lives = random.Random(seed), Counter()
    processes = {begin(folder, endpoint, seed, records, shard, 0): shard for shard in range(SHARDS)}
    stopped = {}
    while processes:
        time.sleep(chance.uniform(0.1, 1.0))
        for process in [process for process, until in stopped.items() if time.monotonic() > until]:
            os.kill(process, signal.SIGCONT)
            del stopped[process]
        for process in ended(processes):
            del processes[process]
        going = sorted(processes.keys() - stopped.keys())
        if stops and chance.random() < 0.3:
            stops -= 1
            process = chance.choice(going)
            os.kill(process, signal.SIGSTOP)
            stopped[process] = time.monotonic() + chance.uniform(*STOPPED_SECONDS)
        elif kills and (not removals or chance.random() < 0.5):
            kills -= 1
            process = chance.choice(going)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            shard = processes.pop(process)
            lives[shard] += 1
            processes[begin(folder, endpoint, seed, records, shard, lives[shard])] = shard
        elif removals:
            removals -= 1
            row = f"CUSTOMER#c{chance.randrange(CUSTOMERS // 8)}" if removals else "TOTAL#all"
            client.delete_item(TableName="main", Key={"PK": {"S": row}, "SK": {"S": "TOTAL"}})
        elif not stops and not stopped and all(read(folder, shard, "tried") >= records for shard in range(SHARDS)):
            (folder / "enough").touch()


def folded(folder, seed):
    """The rows that the shards' records lead to, and the items."""
    rows, items, tried = {}, [], 0
    for shard in range(SHARDS):
        records = Records(seed, shard)
        count = read(folder, shard, "tried")
        records.until(count)
        tried += count
        items += records.source.items.values()
        for item in records.source.items.values():
            for key in (("TOTAL#all", "TOTAL"), (f"CUSTOMER#{item['customer']}", "TOTAL")):
                row = rows.setdefault(key, Counter())
                row["amount"] += item["amount"]
                row["items"] += 1
                if key[0] != "TOTAL#all":
                    row["size_sum"] += item["size"]
                    row["size_count"] += 1
    rows["CHANGES#all", "TOTAL"] = Counter(changes=tried)
    return rows, items


if __name__ == "__main__":
    place, address, *numbers = sys.argv[1:]
    supervise(Path(place), address, *map(int, numbers))
