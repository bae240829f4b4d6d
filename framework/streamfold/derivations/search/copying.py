"""Sends the documents of roots to an index that is built: counters are read, *then* the items, then it is sent.

No counter is raised where a document's id follows from its item's key. The items are read after the counter, so a
document in the counter's number is at least as new as any that a run sent in a lower one. Where a run sends the same
number with other content, an item changed between the two reads, and the record of that change brings a greater number.

Where ids are kept, each number is of one run alone: a run that forgets ids would forget those that were sent here in
its own number, by code that makes others. There the counters are raised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streamfold.derivations.search.bulk import send
from streamfold.derivations.search.dirty import Dirty, DirtyRoot
from streamfold.derivations.search.gather import Root
from streamfold.derivations.search.names import own_alias
from streamfold.derivations.search.options import keeps_ids
from streamfold.derivations.search.root_runs import RootRun, gone_body, known_sources, lead, noted
from streamfold.derivations.search.sink import Sink
from streamfold.engines import Counter, Engine
from streamfold.errors import Contended, EngineUnavailable, is_fatal
from streamfold.ledger.state_keys import document_key
from streamfold.run import Run
from streamfold.writes.guarded import StateKey

MILLISECONDS = 1000


@dataclass(slots=True)
class Copying:
    """Sends roots to one index.

    start: the number of a root without a counter, below all that a counter will begin with.
    hides: documents that are not made any more are hidden. A scan need not hide them: whoever sent them to this index
    knew of the rebuild, and so does everybody who is told of a later change. Those under ids that are kept are hidden
    always: other code may have sent them.
    """

    application: str
    engine: Engine
    sink: Sink
    run: Run
    index: str
    start: int
    fails: Callable[[Root, Exception], None]
    hides: bool = False

    def copy(self, roots: Sequence[Root]) -> int:
        """Sends these roots; returns how many documents were taken.

        A root that cannot be sent is noted and told to ``fails``. Raises ``EngineUnavailable`` where the store or the
        index does not answer: then all are to be sent again.
        """
        taken, waiting = 0, list(roots)
        for _ in self.run.tries():
            runs = self._numbered(waiting)
            ready, waiting = self._made(runs)
            taken += self._sent(ready)
            if not waiting:
                return taken
        raise Contended("Others changed the documents' counters at every try: the page comes again.")

    def _numbered(self, roots: Sequence[Root]) -> list[RootRun]:
        """The roots with the numbers of their counters, which are raised where ids are kept."""
        keys = {document_key(self.application, root.route.name, root.item): root for root in roots}
        kept = [key for key, root in keys.items() if keeps_ids(root.route)]
        found = self.engine.read_state(keys.keys() - kept, consistent=True) if len(kept) < len(keys) else {}
        if kept:
            counters = [Counter(key, expires=False) for key in kept]
            found |= self.engine.count_up(counters, int(self.run.clock() * MILLISECONDS), self.run.expires_at)
        if any(key not in found for key in kept):
            raise EngineUnavailable("The counter of a document is busy: the page comes again.")
        return [self._run(root, key, found.get(key, {})) for key, root in keys.items()]

    def _run(self, root: Root, key: StateKey, item: dict[str, object]) -> RootRun:
        ids = item.get("ids", ())
        assert isinstance(ids, tuple | list | set | frozenset)
        return RootRun(root, key, int(str(item.get("n", self.start))), frozenset(ids))

    def _made(self, runs: Sequence[RootRun]) -> tuple[list[RootRun], list[Root]]:
        """The roots whose documents may be sent, and those that others overtook."""
        stored = known_sources(self.engine, runs)  # after the counters
        ready: list[RootRun] = []
        left: list[Root] = []
        for each in runs:
            gone = gone_body(each.root, self.run.clock())
            try:
                hides = self.hides or keeps_ids(each.root.route)
                lead(each, self.engine, stored, self.run.settings, gone, hides=hides)
            except Exception as error:
                if is_fatal(error) or isinstance(error, EngineUnavailable):
                    raise
                self._failed(each, error)
                continue
            if noted(each, self.engine, self.run.expires_at):
                ready.append(each)
            else:
                left.append(each.root)
        return ready, left

    def _sent(self, ready: Sequence[RootRun]) -> int:
        """Sends documents; a newer version that is there is as good."""
        name = own_alias(self.index)
        self.sink.check(name)
        actions = [replace(action, index=name) for each in ready for action in each.actions]
        answers = iter(send(self.sink, actions, self.run))
        taken = 0
        for each in ready:
            own = [next(answers) for _ in each.actions]
            error = next((one.error for one in own if one.error is not None), None)
            if isinstance(error, EngineUnavailable):
                raise error
            if error is not None:
                self._failed(each, error)
            taken += sum(one.is_done for one in own)
        return taken

    def _failed(self, each: RootRun, error: Exception) -> None:
        root = DirtyRoot(each.root.route.name, each.root.item, each.number)
        Dirty(self.application, self.engine, self.index).note([root])
        self.fails(each.root, error)
