"""A feed that is deployed over posts and edges: old code takes records meanwhile, then pages lead it to all items."""

from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import BackfillRun, new_job
from streamfold.lifecycle.page import Pages
from streamfold.testing.mapping import Died
from tests.helpers import feed_histories
from tests.helpers.feed_histories import TABLE, applications, small

OLD_CODE = 0.6
"""The share of records that code without the feed takes, until the deployment is done."""
PAGE = 2
TRIES_MAX = 200


class BackfillHistory(feed_histories.History):
    """A history of which the first records may be lost to the feed, with a run over all items beside the rest.

    sweep: the run goes over the state, too. gate: it begins when no older code is left.
    """

    def __init__(self, apps, seed, *, sweep=True, gate=True):
        super().__init__(apps, seed, MemoryEngine(apps[0].tables.values(), apps[0].chains))
        self.engine.source_tables.add("main")
        self.acknowledged = []
        self.deployed, self.steps, self.sweep, self.gate = self.random.randint(5, 25), 0, sweep, gate
        self.begins = self.deployed if gate else self.random.randint(1, self.deployed)
        self.engine.scan = self._hooked("scan", self.engine.scan)
        self.engine.read_sources = self._hooked("read_sources", self.engine.read_sources)

    def run(self):
        with small():
            while self.steps < self.begins:
                self.step()
            while self.gate and self.late:  # no call of an earlier invocation is on its way for as long as the gate
                self.late.pop()()
            self._fill()
            while self.left or self.waiting or self.queued or self.steps < self.deployed:
                self.step()
            self._end()
        return self

    def step(self):
        self.steps += 1
        super().step()

    def _deliver(self):
        """The first record of an item; who fails it gets it again with what came after it, acknowledged or not."""
        first = {}
        for place, record in self.waiting:
            first.setdefault(place, (place, record))
        chosen, begun = self.random.choice(list(first.values())), len(self.acknowledged)
        self.waiting.remove(chosen)
        if self._invoke(lambda run: process_changes(run, [chosen[1]])):
            self.acknowledged.append(chosen)
        else:
            self.waiting[:0] = [chosen, *(each for each in self.acknowledged[begun:] if each[0] == chosen[0])]

    def _invoke(self, work):
        """Older code acknowledges a record, and does nothing for the feed; a doorbell is answered by new code alone."""
        if self.steps < self.deployed and work.__name__ != "answer" and self.random.random() < OLD_CODE:
            return True
        return super()._invoke(work)

    def _fill(self):
        """A run that dies at any call, and is begun again where it was."""
        jobs = Jobs("social", self.engine)
        job = new_job(jobs, "backfill", ["timeline"], [TABLE], 1, by="test")
        for _ in range(TRIES_MAX):
            self.depth += 1
            try:
                self._filling(jobs, job).run()
                return
            except (Died, EngineUnavailable):
                pass
            finally:
                self.depth -= 1
            self.step()
        raise AssertionError("the run has no end")

    def _filling(self, jobs, job):
        run = self._run(self.apps[0])
        pages = Pages(run, ["timeline"], delivered=True)
        filling = BackfillRun(jobs, jobs.read(job.id), pages, [TABLE], page_items=PAGE)
        if not self.sweep:
            filling._orphans = lambda _: []
        reconciled = filling._reconciled

        def beside(keys):
            if self.random.random() < 0.3:
                self.step()
            report = reconciled(keys)
            if report.failed:
                raise Died  # somebody repeats the page
            return report

        filling._reconciled = beside
        return filling


def check(histories, first=0, **options):
    """Runs so many histories, each with its own seed."""
    apps = applications(**options)
    for seed in range(first, first + histories):
        found = BackfillHistory(apps, seed).run().wrong()
        assert found is None, f"seed {seed}: {found}"
