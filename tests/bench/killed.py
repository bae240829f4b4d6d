"""A backfill whose process is killed again and again, over a store in dictionaries that lives in another process.

The store is the one that counts, and it kills: before a call or after it, at so many moments. So the memory of the run
is that of its process alone, and a kill is ``kill -9``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

from streamfold import App, Key, Router, Row, Sum
from streamfold import Count as Counted
from streamfold.engines import MemoryEngine
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import BackfillRun, new_job
from streamfold.lifecycle.page import Pages
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.elsewhere import WorkProcess
from tests.helpers.records import item

KILLS = 20
GROUPS = 100
SEGMENTS = 4
ITEM = Key("ITEM#{item_id}", "METADATA")


class Killed(NamedTuple):
    """What became of a run."""

    items: int
    page: int
    kills: int
    equal: bool  # the rows are what the items add up to
    twice: int  # ledger items that were written more than once
    more: int  # sources that were read again
    mib: float  # the most memory of a process of the run, above what it had when it began

    def __str__(self) -> str:
        what = f"rows {'equal' if self.equal else 'DIFFERENT'}, {self.twice} items written twice"
        return (
            f"{self.items:,} items, pages of {self.page}, {self.kills} kills: {what}, {self.more:,} sources read "
            f"again, {self.more / self.items:.2%} of the items and {self.more / self.items / 2:.2%} of the reads; "
            f"{self.mib:.0f} MiB above idle (goal: equal, 0, at most 0.5%, 60 MiB)"
        )


def application() -> App:
    router = Router()

    @router.view(ITEM, into=Key("TOTAL#{group}", "TOTAL"))
    def total(item: Any) -> Row:
        return Row(group=item["group"], total=Sum(item["amount"]), items=Counted())

    return App("shop", routers=[router])


def image(n: int, amount: int = 1) -> dict[str, Any]:
    return item(f"ITEM#{n}", "METADATA", group=f"g{n % GROUPS}", amount=amount)


def backfilled(engine: Any, job: str, page: int) -> None:
    """What a process of the run does."""
    app, jobs = application(), Jobs("shop", engine)
    known = jobs.read(job)
    assert known is not None
    pages = Pages(Runtime(app, engine, Settings()), ["total"], delivered=True)
    BackfillRun(jobs, known, pages, [app.tables["main"]], page_items=page).run()


class Store:
    """Serves one process after another, and kills them at some of their calls."""

    def __init__(self, items: int, page: int) -> None:
        self.app, self.items, self.page = application(), items, page
        self.engine = MemoryEngine(self.app.tables.values())
        self.engine.put_sources((("main", f"ITEM#{n}", "METADATA"), encode(image(n))["M"], "0") for n in range(items))
        tables, jobs = [self.app.tables["main"]], Jobs(self.app.name, self.engine)
        self.job = new_job(jobs, "backfill", ["total"], tables, SEGMENTS, by="bench").id
        self.moments = set(Random(1).sample(range(20, items // 100 + 8 * items // page), KILLS))
        self.read: Counter[Any] = Counter()
        self.written: Counter[Any] = Counter()
        self.calls = self.kills = 0
        self.mib = 0.0

    def run(self) -> Killed:
        while not self._served():
            self.kills += 1
        rows = self.engine.read_rows(("main", f"TOTAL#g{n}", "TOTAL") for n in range(GROUPS))
        equal = all(row["total"] == row["items"] == self.items // GROUPS for row in rows.values())
        twice = sum(each > 1 for each in self.written.values())
        more = self.read.total() - 2 * self.items  # the end of a run looks whether the source of each is there
        return Killed(self.items, self.page, self.kills, equal and len(rows) == GROUPS, twice, more, self.mib)

    def _served(self) -> bool:
        """Begins a process, and answers it; whether it came to its end."""
        process = WorkProcess(backfilled, self.job, self.page)
        for name, given, named in process.calls():
            self.calls += 1
            dies, after = self.calls in self.moments, self.calls % 2 == 0
            answer = self._answered(name, given, named) if after or not dies else None
            if dies:
                process.kill()
            else:
                process.answer(answer)
        self.mib = max(self.mib, process.peak_mib - process.idle_mib)
        return process.process.exitcode == 0

    def _answered(self, name: str, given: Any, named: Any) -> Any:
        answer = getattr(self.engine, name)(*given, **named)
        if name == "read_sources":
            self.read.update(given[0])
        if name == "transact" and answer is None:
            self.written.update(write.key for write in given[0] if str(write.key[0]).startswith("ledger#"))
        return answer


def killed(items: int, pages: Iterable[int]) -> Iterator[Killed]:
    """A run over so many items, for each size of a page."""
    for page in pages:
        yield Store(items, page).run()
