"""Documents by *raise, read, write*: a document's version is a counter, raised before its items are read consistently.

1. The counter of each root is raised, once for all of its records in a batch.
2. Its items are read consistently; so the read follows every change of the batch. What they look up is read behind
   them, after backlinks of new references are put: a later change of a referent finds the root.
3. Ids that were never sent, and references that came or went, are noted in the counter's item, on the condition that
   the counter is still this run's. Backlinks of references that went are deleted with it, and nowhere else.
4. Documents are sent with the counter as external version; documents of other known ids are hidden.

The highest number that arrives at the index is of a run that read after every acknowledged change: either it is the
number of the run that acknowledged, or it was raised after that. All lower ones are refused or overwritten. Order,
duplicates, and runs that died change nothing. The one assumption is that the index keeps the highest version of an id,
so that a document that is gone is hidden and not deleted (``deletes="kept"``).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from streamfold.commit.outcome import Outcome
from streamfold.derivations.search.documents import (
    Root,
    RootRun,
    StoredItems,
    aliases_of,
    gone_body,
    known_sources,
    look_up_referents,
    moments_noted,
    noted,
    reconcile,
)
from streamfold.derivations.search.options import keeps_ids, own_alias
from streamfold.derivations.search.sink import BYTES_MAX, CONFLICT, TRIES, VERSION_MAX, Sent, Sink, send
from streamfold.engines.protocol import Counter, Engine, Entries
from streamfold.errors import Contended, EngineError, EngineUnavailable, ItemFault, Unprocessable, damaged
from streamfold.ledger.state_keys import dirty_key, dirty_partition, document_key, index_key
from streamfold.records.change import ItemKey
from streamfold.records.values import COMPACT, decode, encode
from streamfold.runtime import Runtime
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import CounterWrite, DeleteState, PutState, StateKey

BUILDING, BOTH, SWAPPED, TAKEN = "building", "both", "swapped", "taken"

BUILDING_TRIES = 1
"""Times that a document is sent to an index that is being built: then it is noted, and does not hold its record."""

MILLISECONDS = 1000
Fails = Callable[[Root, Exception], None]


class IndexMark(NamedTuple):
    """The mark of an alias."""

    live: str = ""  # the index behind the alias; "": the original one
    building: str = ""  # the index that is built
    old: str = ""  # the index that the alias stood for before, which is written on
    phase: str = ""
    handler: str = ""  # phase ``taken``: the search whose alias was taken over
    since: int = 0  # epoch seconds at which the phase began
    last: int = 0  # the highest number of an index so far: none is given twice
    revision: int = 0

    @property
    def beside(self) -> str:
        """The second index; "" for none."""
        return self.building or (self.old if self.phase == SWAPPED else "")


class Targets(NamedTuple):
    """The aliases through which documents are written."""

    first: str
    beside: str | None = None
    holds: bool = True  # a failure of the second one holds the record


def targets(mark: IndexMark | None, alias: str, handler: str) -> Targets:
    """The targets of a search for the documents of an alias."""
    if mark is None or not mark.phase:
        return Targets(alias)
    if mark.phase == TAKEN:
        return Targets(own_alias(mark.old) if handler == mark.handler else alias)
    if mark.phase == BUILDING:
        return Targets(alias, own_alias(mark.building), holds=False)
    return Targets(own_alias(mark.live), own_alias(mark.beside))


def read_marks(application: str, engine: Engine, aliases: Iterable[str]) -> dict[str, IndexMark]:
    """The marks of aliases, read consistently in one call, without aliases that have none."""
    keys = {index_key(application, alias): alias for alias in aliases}
    found = engine.read_state(keys, consistent=True) if keys else {}
    return {keys[key]: _mark(keys[key], item) for key, item in found.items()}


def read_mark(application: str, engine: Engine, alias: str) -> IndexMark:
    """The mark of one alias; an empty one if there is none."""
    return read_marks(application, engine, [alias]).get(alias, IndexMark())


def write_mark(application: str, engine: Engine, alias: str, mark: IndexMark) -> IndexMark:
    """Writes a mark over the revision that was read. Raises ``Contended`` if another process has written it."""
    fields = {name: value for name, value in mark._asdict().items() if name != "revision"}
    text = json.dumps(fields, sort_keys=True)
    if not engine.swap_state(index_key(application, alias), {"s": text}, mark.revision):
        raise Contended(f"The rebuild of index {alias!r} was continued by somebody else: run the same command again.")
    return mark._replace(revision=mark.revision + 1)


def _mark(alias: str, item: Mapping[str, object]) -> IndexMark:
    try:
        known = {name: value for name, value in json.loads(str(item["s"])).items() if name in IndexMark._fields}
        return IndexMark(**{**known, "revision": int(str(item["r"]))})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damaged(f"The mark of index {alias!r}") from None


class DirtyRoot(NamedTuple):
    """A root that an index may lack."""

    handler: str
    item: ItemKey
    number: int  # of the run that could not send it


class DirtyNote(NamedTuple):
    """A note as it is stored."""

    location: str  # its sort key
    root: DirtyRoot


class Dirty:
    """The notes of one index."""

    def __init__(self, application: str, engine: Engine, index: str) -> None:
        self.application = application
        self.engine = engine
        self.index = index

    def note(self, roots: Iterable[DirtyRoot]) -> None:
        """Notes roots. Raises ``EngineUnavailable`` if it is unknown whether all of them are noted."""
        self._write([PutState(self._key(root), _text(root)) for root in roots])

    def notes(self, most: int, after: str = "") -> list[DirtyNote]:
        """Some notes behind a sort key; the notes of one root follow each other."""
        found = self.engine.read_entries(Entries(dirty_partition(self.application, self.index), most, after))
        return [DirtyNote(sort, _root(self.index, text)) for sort, text in found]

    def behind(self, root: DirtyRoot) -> str:
        """The sort key behind all notes of a root."""
        return self._key(root._replace(number=VERSION_MAX)).sk

    def remove(self, notes: Iterable[DirtyNote]) -> None:
        """Removes these notes, but no later note of the same roots."""
        partition = dirty_partition(self.application, self.index)
        self._write([DeleteState(StateKey(partition, note.location)) for note in notes])

    def clear(self) -> None:
        """Removes all notes, because the index is not needed any more."""
        while notes := self.notes(ACTIONS_MAX):
            self.remove(notes)

    def _key(self, root: DirtyRoot) -> StateKey:
        counter = document_key(self.application, root.handler, root.item)
        return dirty_key(self.application, self.index, counter, root.number)

    def _write(self, writes: Sequence[PutState | DeleteState]) -> None:
        for start in range(0, len(writes), ACTIONS_MAX):
            if self.engine.transact(writes[start : start + ACTIONS_MAX], 0) is not None:
                raise Contended("Others write the notes of a rebuild; the records are redelivered.")


def _text(root: DirtyRoot) -> str:
    return COMPACT.encode([root.handler, root.number, *map(encode, root.item)])


def _root(index: str, text: str) -> DirtyRoot:
    try:
        handler, number, *item = json.loads(text)
        table, partition, sort = map(decode, item)
        return DirtyRoot(handler, (table, partition, sort), number)
    except (AttributeError, TypeError, ValueError):
        raise damaged(f"A note of the rebuild of {index!r}") from None


class RootSent(NamedTuple):
    """The result for a root's documents."""

    first: Sequence[Sent]  # in the index of the alias
    second: Sequence[Sent] = ()
    is_behind: bool = False  # the second index may lack them, which is noted
    refused: Exception | None = None  # of the second index, if that holds the record

    @property
    def error(self) -> Exception | None:
        return next((one.error for one in self.first if one.error is not None), self.refused)

    @property
    def held(self) -> int:
        """The highest version that an index holds above the sent ones; 0 if all documents were taken."""
        answers = (one.answer for one in (*self.first, *self.second))
        return max((each.held or 0 for each in answers if each is not None and each.status == CONFLICT), default=0)


class Sender:
    """Sends roots by the marks that their batch has read."""

    def __init__(self, runtime: Runtime, sink: Sink, marks: Mapping[str, IndexMark]) -> None:
        self.runtime = runtime
        self.sink = sink
        self.marks = marks

    def send(self, ready: Sequence[RootRun]) -> list[RootSent]:
        """Sends the documents of roots; returns the result for each root. Raises as ``bulk.send``."""
        places = [targets(self.marks.get(each.alias), each.alias, each.root.route.name) for each in ready]
        first = self._through(ready, [place.first for place in places])
        found = [RootSent(sent) for sent in first]
        for holds in (True, False):
            numbers = [
                number
                for number, place in enumerate(places)
                if place.beside is not None and place.holds == holds and found[number].error is None
            ]
            if numbers:
                self._second(ready, places, numbers, found)
        return found

    def _second(
        self, ready: Sequence[RootRun], places: Sequence[Targets], numbers: Sequence[int], found: list[RootSent]
    ) -> None:
        """Sends some roots to their second index, and enters the results."""
        runs, holds = [ready[number] for number in numbers], places[numbers[0]].holds
        fatal: EngineError | None = None
        try:
            names = [places[number].beside or "" for number in numbers]
            answers = self._through(runs, names, TRIES if holds else BUILDING_TRIES)
        except EngineError as error:
            fatal = error
            answers = [[Sent(error=error)] for _ in runs]
        for number, sent in zip(numbers, answers, strict=True):
            found[number] = found[number]._replace(second=sent)
        failed = [number for number in numbers if _error(found[number].second) is not None]
        if failed:
            self._failed(ready, failed, found, fatal)

    def _failed(
        self, ready: Sequence[RootRun], failed: Sequence[int], found: list[RootSent], fatal: EngineError | None
    ) -> None:
        """Notes roots that the second index lacks, or has their records held; does nothing if the rebuild has ended."""
        now = read_marks(
            self.runtime.application.name, self.runtime.engine, dict.fromkeys(ready[number].alias for number in failed)
        )
        notes: dict[str, list[DirtyRoot]] = {}
        for number in failed:
            each, before = ready[number], self.marks[ready[number].alias]
            mark = now.get(each.alias, IndexMark())
            if mark.phase == BUILDING and mark.building == before.building:
                notes.setdefault(mark.building, []).append(DirtyRoot(each.root.route.name, each.root.item, each.number))
                found[number] = found[number]._replace(second=(), is_behind=True)
            elif before.beside in (mark.live, mark.beside):
                if fatal is not None and not isinstance(fatal, EngineUnavailable):
                    raise fatal
                found[number] = found[number]._replace(refused=_error(found[number].second))
            else:
                found[number] = found[number]._replace(second=())
        for index, roots in notes.items():
            Dirty(self.runtime.application.name, self.runtime.engine, index).note(roots)

    def _through(self, runs: Sequence[RootRun], names: Sequence[str], tries: int = TRIES) -> list[list[Sent]]:
        """Sends the documents of roots through an alias each; returns the result for each root."""
        for name in dict.fromkeys(names):
            self.sink.check(name)
        actions = [
            action if action.index == name else replace(action, index=name)
            for each, name in zip(runs, names, strict=True)
            for action in each.actions
        ]
        answers = iter(send(self.sink, actions, self.runtime, tries=tries))
        return [[next(answers) for _ in each.actions] for each in runs]


def _error(sent: Sequence[Sent]) -> Exception | None:
    return next((one.error for one in sent if one.error is not None), None)


class Indexing:
    """Reconciles the documents of roots with their items as they are now, until the deadline of the run.

    ``fails`` is called with each root that failed, and the error. Raises the error of a store or an index that is
    missing or forbidden.
    """

    def __init__(
        self,
        runtime: Runtime,
        sink: Sink,
        fails: Fails,
        marks: Mapping[str, IndexMark] | None = None,
        *,
        renews: bool = False,
    ) -> None:
        """``marks``: of all aliases of the batch, if they were read already. ``renews``: lost backlinks are put, for a
        run that reconciles items, and follows no change of them.
        """
        self.renews = renews
        self.runtime = runtime
        self.sink = sink
        self.fails = fails
        self.marks = marks
        self.outcome = Outcome()

    def index(self, roots: Iterable[Root]) -> Outcome:
        """Indexes roots, each once; a root that another run overtook begins again."""
        waiting = list(roots)
        try:
            if self.marks is None:
                self.marks = read_marks(
                    self.runtime.application.name, self.runtime.engine, aliases_of(waiting, self.runtime.settings)
                )
            # Another run may raise a counter in between: its documents are newer, so this one reads and sends again.
            for number in self.runtime.tries():
                waiting = self._round(waiting, again=number > 0)
                if not waiting:
                    return self.outcome
            error: Exception = Contended(
                "Others changed the documents' counters at every try; records are redelivered."
            )
        except EngineUnavailable as unavailable:
            error = unavailable
        for root in waiting:
            self.fails(root, error)
        return self.outcome

    def _round(self, roots: Sequence[Root], *, again: bool) -> list[Root]:
        """Raises the counters, reads and sends; returns the roots that have to begin again."""
        overtaken: list[Root] = []
        runs = self._raised(roots, again=again)
        try:
            stored = self._stored(runs)
            look_up_referents(self.runtime, runs, stored, renews=self.renews)
        except EngineUnavailable as error:
            self._fail_all(runs, error)
            return overtaken
        ready: list[RootRun] = []
        size = 0
        for each in runs:
            if not self._made(each, stored):
                continue
            if not self._noted(each):
                overtaken.append(each.root)
                continue
            ready.append(each)
            size += sum(len(action.body or b"") for action in each.actions)
            if size >= BYTES_MAX:  # so that one batch's documents are never held at once
                overtaken += self._sent(ready)
                ready, size = [], 0
        return overtaken + self._sent(ready)

    def _raised(self, roots: Sequence[Root], *, again: bool) -> list[RootRun]:
        """The roots with their raised counters; the others are reported."""
        keys = {document_key(self.runtime.application.name, root.route.name, root.item): root for root in roots}
        counters = [
            Counter(
                key,
                new=root.is_new and not again,
                expires=not (keeps_ids(root.route) or root.route.is_revisited),
            )
            for key, root in keys.items()
        ]
        start = int(self.runtime.clock() * MILLISECONDS)
        try:
            found = self.runtime.engine.count_up(counters, start, self.runtime.expires_at)
        except EngineUnavailable as error:
            for root in roots:
                self.fails(root, error)
            return []
        runs = []
        for key, root in keys.items():
            if key in found:
                runs.append(RootRun.of(root, key, found[key]))
            else:
                self.fails(root, EngineUnavailable("The counter of a document is busy; the record is redelivered."))
        return runs

    def _stored(self, runs: Sequence[RootRun]) -> StoredItems:
        return known_sources(self.runtime.engine, runs)

    def _made(self, each: RootRun, stored: StoredItems) -> bool:
        """Whether the documents of a root could be made; they are its actions then."""
        with ItemFault() as fault:
            reconcile(
                each, self.runtime.engine, stored, self.runtime.settings, gone_body(each.root, self.runtime.clock())
            )
        if fault.error is not None:
            self.fails(each.root, fault.error)
        return fault.error is None

    def _noted(self, each: RootRun) -> bool:
        try:
            return noted(each, self.runtime.engine, self.runtime.expires_at)
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
        sender = Sender(self.runtime, self.sink, self.marks or {})
        own = list(zip(ready, sender.send(ready), strict=True))
        counters = self._counters([each for each, sent in own if sent.held >= each.number])
        overtaken = []
        for each, sent in own:
            if sent.error is not None:
                self.fails(each.root, sent.error)
                continue
            try:
                if self._is_applied(each, sent.held, counters) and moments_noted(self.runtime, each):
                    self._finish(each, sent)
                else:
                    overtaken.append(each.root)
            except Unprocessable as refused:
                self.fails(each.root, refused)
        return overtaken

    def _counters(self, runs: Sequence[RootRun]) -> dict[StateKey, int]:
        """The counters of runs whose index holds their number or a higher one, read again."""
        if not runs:
            return {}
        found = self.runtime.engine.read_state([each.key for each in runs], consistent=True)
        return {each.key: int(found.get(each.key, {}).get("n", 0)) for each in runs}

    def _is_applied(self, each: RootRun, held: int, counters: Mapping[StateKey, int]) -> bool:
        """Whether the index holds this run's documents, or those of a later run; else the root begins again.

        A version in the index above the counter is of a lost or restored state, or of another writer: the counter is
        raised to it. Raises ``Unprocessable`` if there is no greater version.
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
            self.runtime.warn_once(
                ("behind", each.root.route.name),
                f"The index of search {each.root.route.name!r} holds documents that are newer than the state: it was "
                "lost or restored, or somebody else writes the index. Their counters are raised.",
            )
            with suppress(EngineUnavailable):  # begun again all the same, by the next number
                self.runtime.engine.transact([CounterWrite(each.key, counter, raised=held)], self.runtime.expires_at)
        return False

    def _finish(self, each: RootRun, sent: RootSent) -> None:
        """Counts the results, and removes the ids of documents that are hidden now."""
        tally = self.outcome.tally(each.root.route.name)
        live = len(each.actions) - len(each.gone)
        tally.written += sum(one.is_done for one in sent.first[:live])
        tally.removed += sum(one.is_done for one in sent.first[live:])
        tally.unchanged += not any(one.is_done for one in sent.first)
        if each.gone and keeps_ids(each.root.route) and not sent.is_behind:
            with suppress(EngineUnavailable):  # they are hidden again then, which changes nothing
                self._forget(each, expires=None if live or each.references else True)

    def _forget(self, each: RootRun, *, expires: bool | None) -> None:
        """Removes the ids of hidden documents, unless a rebuild began meanwhile: the new index may show them.

        A rebuild that begins after this check raises the counter before it sends, so that no id is removed then.
        """
        if read_marks(self.runtime.application.name, self.runtime.engine, [each.alias]).get(each.alias) == (
            self.marks or {}
        ).get(each.alias):
            write = CounterWrite(each.key, each.number, removed=each.gone, expires=expires)
            self.runtime.engine.transact([write], self.runtime.expires_at)

    def _fail_all(self, runs: Sequence[RootRun], error: Exception) -> None:
        for each in runs:
            self.fails(each.root, error)
