"""Rebuilds of a search index in the middle of histories: steps at any moment, crashes, and an index that fails.

Whenever nobody is at work, readers of the alias see what the items are, of all items whose records are acknowledged.
So no reader ever misses a document because of a rebuild. The old index, which is written until it is dropped, has the
same documents.
"""

from streamfold.derivations.search.indexes import OPENED, LocalAliases, SearchIndex
from streamfold.derivations.search.indexing import BOTH, BUILDING, SWAPPED, read_mark
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.options import OWN, own_alias
from streamfold.derivations.search.sink import Answer
from streamfold.engines.protocol import Segment
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.keys.table import MAIN
from streamfold.ledger.state_keys import index_key
from streamfold.lifecycle.search import Rebuild
from streamfold.runtime import Runtime
from streamfold.testing.mapping import Died
from tests.helpers.search_histories import DEPTH_MAX, KINDS, History

MORE_CALLS = ("swap_state", "read_entries", "scan")
STEPS_MAX = 5
"""Steps of a rebuild at one moment."""
EVENTS = (1, 2, 8)
"""Things that may happen at once."""
NAME = "documents"


class Aliases(LocalAliases):
    """Those of a state, over a sink that fails; an index that was removed is missing."""

    def __init__(self, history):
        super().__init__(LocalIndex(history.engine))
        self.sink = history.index
        self.history = history

    def delete(self, name):
        self.history.deleted.add(own_alias(name))
        super().delete(name)


class RebuildHistory(History):
    """A history with rebuilds. ``gate``: the alias is moved only when no older run is alive."""

    def __init__(self, kind, seed, *, gate=True):
        self.gated, self.deleted, self.alive, self.older = gate, set(), [], set()
        self.rebuilding, self.rebuilds, self.cursor, self.scanned, self.started = False, 1, None, False, 0
        self.broken = self.inside = False
        super().__init__(kind, seed)
        self.left, self.rebuilds = self.random.randint(5, 10), self.random.choice([1, 1, 2])
        for call in MORE_CALLS:
            setattr(self.engine, call, self._hooked(getattr(self.engine, call)))
        self.ends_at = self.random.choice([BUILDING, BOTH, SWAPPED, "", ""])

    @property
    def mark(self):
        return read_mark("shop", self.engine, NAME)

    @property
    def is_over(self):
        return super().is_over and not self.rebuilds and self.mark.phase == self.ends_at

    def run(self):
        for _ in range(5_000):
            if self.is_over:
                return self.end()
            self.step()
            self._look()
        raise AssertionError("the history has no end")

    def step(self):
        self.broken = self.random.random() < (0.1 if self.left else 0.0)
        drawn = self.random.random()
        if drawn < 0.4:
            self._steps()
        else:
            super().step()

    def _look(self):
        """Whether readers see the items whose records are all acknowledged."""
        moving = {record.item[1] for record in self.waiting}
        wrong = self.wrong()
        assert wrong is None or wrong[0] in moving or self.late, f"a reader sees {wrong}"

    def _hooked(self, call):
        """Nothing happens inside of a call of the store."""

        def whole(*arguments, **named):
            self.inside = True
            try:
                return call(*arguments, **named)
            finally:
                self.inside = False

        hooked = super()._hooked(whole)

        def chosen(*arguments, **named):
            return call(*arguments, **named) if self.inside else hooked(*arguments, **named)

        return chosen

    def _meanwhile(self):
        """Nothing, mostly; or several things at once, such as a change with its record and a step."""
        if self.random.random() > 0.3:
            return
        for _ in range(self.random.choice(EVENTS)):
            if self.random.random() < 0.15 and self.depth < DEPTH_MAX:
                self._steps()
            super()._meanwhile()

    def _sent(self, actions):
        names = {action.index for action in actions}
        if gone := names & self.deleted:
            raise EngineError(f"{gone} is not there")
        (name,) = names or {""}
        if name.endswith(OWN) and name == own_alias(self.mark.building):
            drawn = self.random.random()
            if self.broken or drawn < 0.2:
                raise EngineUnavailable("the new index is away")
            if drawn < 0.3:
                return [Answer(429, "busy") for _ in actions]
        return super()._sent(actions)

    def _deliver(self):
        number = object()
        self.alive.append(number)
        try:
            super()._deliver()
        finally:
            self.alive.remove(number)

    def _steps(self):
        """Some steps of a rebuild, unless one is on its way."""
        if self.rebuilding:
            return
        self.rebuilding, self.depth = True, self.depth + 1
        try:
            for _ in range(self.random.randint(1, STEPS_MAX)):
                self._rebuild_step()
        except (Died, EngineUnavailable):
            pass
        finally:
            self.rebuilding, self.depth = False, self.depth - 1

    def _rebuild_step(self):
        app = self.random.choice(self.kind.apps)
        run = Runtime(
            app, self.engine, self.settings, clock=lambda: self.now, pause=lambda _: None, opened={OPENED: self.index}
        )
        rebuild = Rebuild(run, SearchIndex(app.routes[0], NAME), Aliases(self))
        before = rebuild.mark
        try:
            self._step_of(rebuild, before.phase)
        finally:
            if self._mark_now() != before.revision:
                self.older = set(self.alive)

    def _mark_now(self):
        return self.engine.state.get(index_key("shop", NAME), {}).get("r", 0)

    def _step_of(self, rebuild, phase):
        if phase == self.ends_at and not self.rebuilds and not self.left:
            return
        aborts = self.random.random() < (0.05 if self.rebuilds else 0.01)
        if phase in {BUILDING, BOTH} and aborts:
            rebuild.abort()
        elif phase == "":
            self._begin(rebuild)
        elif phase == BUILDING:
            self._build(rebuild)
        elif phase == BOTH and (not self.gated or self._has_waited()):
            self._drain(rebuild) and rebuild.swap()
        elif phase == SWAPPED:
            self._swapped(rebuild)

    def _has_waited(self):
        """Whether all is over that began before the phase; what an older run sent has landed then, or never will."""
        if self.older & set(self.alive):
            return False
        while self.late:
            self.bulk(self.late.pop())
        return True

    def _begin(self, rebuild):
        self.rebuilds = max(self.rebuilds - 1, 0)
        self.started, self.cursor, self.scanned = int(self.now), None, False
        rebuild.begin()

    def _build(self, rebuild):
        if not self.scanned:
            page = self.engine.scan(MAIN, Segment(), self.cursor, 1)
            if not rebuild.pages(self.started).reconcile(page.keys).failed:
                self.cursor, self.scanned = page.after, page.after is None
        elif self._drain(rebuild):
            rebuild.hold()

    def _drain(self, rebuild):
        return not rebuild.drain(self.started)

    def _swapped(self, rebuild):
        drawn = self.random.random()
        if drawn < 0.3:
            rebuild.back()
        elif drawn < 0.6 and self._has_waited():
            rebuild.drop(offline=True)

    def shown(self, name=NAME):
        found = self.index.sink.documents(name)
        return {each.id: {field: each.body[field] for field in each.body if field != "_sf_h"} for each in found}

    def all_wrong(self):
        """What the alias shows that is wrong, or the old index, which roll-backs need."""
        wrong, mark = self.wrong(), self.mark
        if wrong is None and mark.phase in {BOTH, SWAPPED}:
            for name in (mark.live, mark.beside):
                own = RebuildHistory.shown(self, own_alias(name))
                self.shown = lambda own=own: own
                wrong = wrong or self.wrong()
            del self.shown
        return wrong


def check(name, histories, first=0, **options):
    """Runs so many histories of one kind, each with its own seed."""
    kind = KINDS[name]()._replace(restores=False)
    for seed in range(first, first + histories):
        history = RebuildHistory(kind, seed, **options)
        try:
            wrong = history.run().all_wrong()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        assert wrong is None, f"seed {seed}: {wrong}"
