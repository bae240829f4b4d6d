"""Documents by *bump, read, write*: a document's version is a counter, raised before its items are read strongly.

1. The counter of each root is raised, once for all of its records in a batch.
2. Its items are read, strongly; so the read follows every change whose record is at hand.
3. Ids that were never sent are noted in the counter's item, on the condition that the counter is still this run's.
4. Documents are sent with the counter as external version; ids that are known and not among them are hidden.

The highest number that ever arrives at the index is of a run that read after every acknowledged change: either it is
the number of the run that acknowledged, or it was raised after that. All lower ones are refused or overwritten. Order,
duplicates, and runs that died change nothing. The one assumption is that the index remembers the highest version of an
id, so that what is gone is hidden and not deleted (``deletes="kept"``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from streamfold.commit.outcome import Outcome
from streamfold.derivations.search.gather import Root, StoredItems
from streamfold.derivations.search.marks import IndexMark, read_marks
from streamfold.derivations.search.options import keeps_ids
from streamfold.derivations.search.root_runs import RootRun, aliases_of, gone_body, known_sources, lead, noted
from streamfold.derivations.search.sending import RootSent, Sender
from streamfold.derivations.search.sink import VERSION_MAX, Sink
from streamfold.engines import Counter, Engine
from streamfold.errors import Contended, EngineError, EngineUnavailable, Unprocessable, is_fatal
from streamfold.ledger.state_keys import document_key
from streamfold.run import Run
from streamfold.writes.guarded import CounterWrite, StateKey

MILLISECONDS = 1000
Fails = Callable[[Root, Exception], None]


class Indexing:
    """Leads the documents of roots to what their items are now, until the deadline of the run.

    ``fails`` is told of each root that could not be led there, and why. Raises the error of a store or an index that
    is missing or forbidden.
    """

    def __init__(
        self,
        application: str,
        engine: Engine,
        sink: Sink,
        run: Run,
        fails: Fails,
        marks: Mapping[str, IndexMark] | None = None,
    ) -> None:
        """``marks``: those of all aliases of the batch, if they were read already."""
        self.application = application
        self.engine = engine
        self.sink = sink
        self.run = run
        self.fails = fails
        self.marks = marks
        self.outcome = Outcome()

    def index(self, roots: Iterable[Root]) -> Outcome:
        """Indexes roots, each of them once; those that others overtook begin again."""
        waiting = list(roots)
        try:
            if self.marks is None:
                self.marks = read_marks(self.application, self.engine, aliases_of(waiting, self.run.settings))
            for number in self.run.tries():
                waiting = self._round(waiting, again=number > 0)
                if not waiting:
                    return self.outcome
            error: Exception = Contended("Others changed the documents' counters at every try; the records come again.")
        except EngineUnavailable as unavailable:
            error = unavailable
        for root in waiting:
            self.fails(root, error)
        return self.outcome

    def _round(self, roots: Sequence[Root], *, again: bool) -> list[Root]:
        """Raises the counters, reads and sends; returns the roots that have to begin again."""
        left: list[Root] = []
        runs = self._raised(roots, again=again)
        try:
            stored = self._stored(runs)
        except EngineError as error:
            if is_fatal(error):
                raise
            self._fail_all(runs, error)
            return left
        ready: list[RootRun] = []
        size = 0
        for each in runs:
            if not self._made(each, stored):
                continue
            if not self._noted(each):
                left.append(each.root)
                continue
            ready.append(each)
            size += sum(len(action.body or b"") for action in each.actions)
            if size >= self.run.settings.search_bulk_bytes:  # so that one batch's documents are never held at once
                left += self._sent(ready)
                ready, size = [], 0
        return left + self._sent(ready)

    def _raised(self, roots: Sequence[Root], *, again: bool) -> list[RootRun]:
        """The roots with their counters raised; the others are reported."""
        keys = {document_key(self.application, root.route.name, root.item): root for root in roots}
        counters = [
            Counter(key, new=root.is_new and not again, expires=not keeps_ids(root.route)) for key, root in keys.items()
        ]
        start = int(self.run.clock() * MILLISECONDS)
        try:
            found = self.engine.count_up(counters, start, self.run.expires_at)
        except EngineUnavailable as error:
            for root in roots:
                self.fails(root, error)
            return []
        runs = []
        for key, root in keys.items():
            if key in found:
                runs.append(RootRun(root, key, int(found[key]["n"]), frozenset(found[key].get("ids", ()))))
            else:
                self.fails(root, EngineUnavailable("The counter of a document is busy; the record comes again."))
        return runs

    def _stored(self, runs: Sequence[RootRun]) -> StoredItems:
        return known_sources(self.engine, runs)

    def _made(self, each: RootRun, stored: StoredItems) -> bool:
        """Whether the documents of a root could be made; they are its actions then."""
        try:
            lead(each, self.engine, stored, self.run.settings, gone_body(each.root, self.run.clock()))
            return True
        except Exception as error:
            if is_fatal(error):
                raise
            self.fails(each.root, error)
            return False

    def _noted(self, each: RootRun) -> bool:
        try:
            return noted(each, self.engine, self.run.expires_at)
        except EngineUnavailable:
            return False  # begun again, by the next number

    def _sent(self, ready: Sequence[RootRun]) -> list[Root]:
        """Sends the documents of roots; returns the roots that have to begin again."""
        try:
            return self._settled(ready)
        except EngineUnavailable as error:
            self._fail_all(ready, error)
            return []

    def _settled(self, ready: Sequence[RootRun]) -> list[Root]:
        sender = Sender(self.application, self.engine, self.sink, self.run, self.marks or {})
        own = list(zip(ready, sender.send(ready), strict=True))
        counters = self._counters([each for each, sent in own if sent.held >= each.number])
        left = []
        for each, sent in own:
            if sent.error is not None:
                self.fails(each.root, sent.error)
                continue
            try:
                if self._is_settled(each, sent.held, counters):
                    self._finish(each, sent)
                else:
                    left.append(each.root)
            except Unprocessable as refused:
                self.fails(each.root, refused)
        return left

    def _counters(self, runs: Sequence[RootRun]) -> dict[StateKey, int]:
        """The counters of runs whose index holds their number or a higher one, read again."""
        if not runs:
            return {}
        found = self.engine.read_state([each.key for each in runs], consistent=True)
        return {each.key: int(found.get(each.key, {}).get("n", 0)) for each in runs}

    def _is_settled(self, each: RootRun, held: int, counters: Mapping[StateKey, int]) -> bool:
        """Whether the index holds what this run sent, or what a later run did; else the root begins again.

        A version in the index that no counter explains is of a state that was lost or restored, or somebody else's: the
        counter is raised to it. Raises ``Unprocessable`` where no version is greater.
        """
        if held < each.number:
            return True
        counter = counters[each.key]
        if counter >= held > each.number:
            return True  # a run that raised the counter later, and so read later, sends or has sent it
        if held >= VERSION_MAX:
            raise Unprocessable(
                f"The index of search {each.root.route.name!r} holds a document in version {VERSION_MAX}, which no "
                "version follows: somebody else wrote it. Delete it from the index."
            )
        if counter < held:
            self.run.warn_once(
                ("behind", each.root.route.name),
                f"The index of search {each.root.route.name!r} holds documents that are newer than the state: it was "
                "lost or restored, or somebody else writes the index. Their counters are raised.",
            )
            with suppress(EngineUnavailable):  # begun again all the same, by the next number
                self.engine.transact([CounterWrite(each.key, counter, raised=held)], self.run.expires_at)
        return False

    def _finish(self, each: RootRun, sent: RootSent) -> None:
        """Counts what was done, and forgets ids that are hidden now."""
        tally = self.outcome.tally(each.root.route.name)
        live = len(each.actions) - len(each.gone)
        tally.written += sum(one.is_done for one in sent.first[:live])
        tally.removed += sum(one.is_done for one in sent.first[live:])
        tally.unchanged += not any(one.is_done for one in sent.first)
        if each.gone and keeps_ids(each.root.route) and not sent.is_behind:
            with suppress(EngineUnavailable):  # they are hidden again then, which changes nothing
                self._forget(each, expires=None if live else True)

    def _forget(self, each: RootRun, *, expires: bool | None) -> None:
        """Forgets ids that are hidden, unless a rebuild began meanwhile: the new index may show them.

        A rebuild that begins after the look raises the counter before it sends, so that nothing is forgotten then.
        """
        if read_marks(self.application, self.engine, [each.alias]).get(each.alias) == (self.marks or {}).get(
            each.alias
        ):
            write = CounterWrite(each.key, each.number, removed=each.gone, expires=expires)
            self.engine.transact([write], self.run.expires_at)

    def _fail_all(self, runs: Sequence[RootRun], error: Exception) -> None:
        for each in runs:
            self.fails(each.root, error)
