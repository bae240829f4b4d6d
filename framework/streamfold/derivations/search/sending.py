"""Sends the documents of roots to the index of their alias, and to the second one while a rebuild goes on.

A failure of an index that is being built holds no record: the root is noted in the state (``dirty.py``), and sent there
again by the rebuild. Whether the second index is still wanted is read again after a failure only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from streamfold.derivations.search.bulk import TRIES, Sent, send
from streamfold.derivations.search.dirty import Dirty, DirtyRoot
from streamfold.derivations.search.marks import BUILDING, IndexMark, Targets, read_marks, targets
from streamfold.derivations.search.root_runs import RootRun
from streamfold.derivations.search.sink import CONFLICT, Sink
from streamfold.engines import Engine
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.run import Run

BUILDING_TRIES = 1
"""Times that a document is sent to an index that is being built: it is noted otherwise, and holds nobody up."""


class RootSent(NamedTuple):
    """What became of a root's documents."""

    first: Sequence[Sent]  # in the index of the alias
    second: Sequence[Sent] = ()
    is_behind: bool = False  # the second index may lack them, which is noted
    refused: Exception | None = None  # of the second index, where that holds the record

    @property
    def error(self) -> Exception | None:
        return next((one.error for one in self.first if one.error is not None), self.refused)

    @property
    def held(self) -> int:
        """The highest version that an index holds instead of what was sent; 0 if all was taken."""
        answers = (one.answer for one in (*self.first, *self.second))
        return max((each.held or 0 for each in answers if each is not None and each.status == CONFLICT), default=0)


class Sender:
    """Sends roots by the marks that their batch has read."""

    def __init__(self, application: str, engine: Engine, sink: Sink, run: Run, marks: Mapping[str, IndexMark]) -> None:
        self.application = application
        self.engine = engine
        self.sink = sink
        self.run = run
        self.marks = marks

    def send(self, ready: Sequence[RootRun]) -> list[RootSent]:
        """Sends the documents of roots; returns what became of each root's. Raises as ``bulk.send``."""
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
        """Sends some roots to their second index, and enters what became of them."""
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
        """Notes roots that the second index lacks, or has their records held; nothing if nobody wants it any more."""
        now = read_marks(self.application, self.engine, dict.fromkeys(ready[number].alias for number in failed))
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
            Dirty(self.application, self.engine, index).note(roots)

    def _through(self, runs: Sequence[RootRun], names: Sequence[str], tries: int = TRIES) -> list[list[Sent]]:
        """Sends the documents of roots through an alias each; returns what became of each root's."""
        for name in dict.fromkeys(names):
            self.sink.check(name)
        actions = [
            action if action.index == name else replace(action, index=name)
            for each, name in zip(runs, names, strict=True)
            for action in each.actions
        ]
        answers = iter(send(self.sink, actions, self.run, tries=tries))
        return [[next(answers) for _ in each.actions] for each in runs]


def _error(sent: Sequence[Sent]) -> Exception | None:
    return next((one.error for one in sent if one.error is not None), None)
