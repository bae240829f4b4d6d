"""A state that is lost or restored while documents are written: the index still ends with the items that are there."""

from random import Random

import pytest

from streamfold.batch.process import process_changes
from streamfold.derivations.search.local import PARTITION, LocalIndex
from streamfold.derivations.search.places import OPENED
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.records.values import encode
from streamfold.run import Run
from streamfold.settings import Settings
from tests.derivations.search.applications import one_item, several
from tests.helpers.records import change, item

CALLS = ("count_up", "read_sources", "transact", "read_state")
DEPTH_MAX = 2
CHANGES = 8


class Died(Exception):
    """A process that is gone."""


class History:
    """Changes of two items, their records in any order, and a state that others put back."""

    def __init__(self, app, images, seed):
        self.app, self.images, self.random = app, images, Random(seed)
        self.engine = MemoryEngine(app.tables.values(), app.chains)
        self.index = LocalIndex(self.engine)
        self.now, self.sequence, self.depth, self.left = 1_772_355_600.0, 0, 0, CHANGES
        self.items, self.waiting, self.backup, self.late = {}, [], {}, []
        for name in CALLS:
            setattr(self.engine, name, self._hooked(getattr(self.engine, name)))
        self.bulk, self.index.bulk = self.index.bulk, self._sent

    def run(self):
        while self.left or self.waiting:
            self.now += 0.001
            if self.left and self.random.random() < 0.4:
                self._change()
            elif self.waiting:
                self._deliver()
        for actions in self.late:
            self.bulk(actions)
        return self

    def _hooked(self, call):
        def hooked(*arguments, **named):
            if not self.depth:
                return call(*arguments, **named)
            self._meanwhile()
            answer = call(*arguments, **named)
            self._fail()
            return answer

        return hooked

    def _sent(self, actions):
        self._meanwhile()
        if self.random.random() < 0.1:
            self.late.append(actions)
            raise EngineUnavailable("no answer")
        if self.late and self.random.random() < 0.3:
            self.bulk(self.late.pop())
        answers = self.bulk(actions)
        self._fail()
        return answers

    def _fail(self):
        drawn = self.random.random()
        if drawn < 0.03:
            raise Died
        if drawn < 0.06:
            raise EngineUnavailable("no answer")

    def _meanwhile(self):
        drawn = self.random.random()
        if drawn < 0.1 and self.depth < DEPTH_MAX and self.waiting:
            self._deliver()
        elif drawn < 0.2 and self.left:
            self._change()
        elif drawn < 0.25 and self.left:
            self.backup = {key: dict(found) for key, found in self._state().items()}
        elif drawn < 0.3 and self.left:
            for key in self._state():
                del self.engine.state[key]
            self.engine.state.update({key: dict(found) for key, found in self.backup.items()})

    def _state(self):
        """The counters; documents lie beside them, and are restored by nobody."""
        return {key: found for key, found in self.engine.state.items() if key.pk.startswith("document#")}

    def _change(self):
        self.left -= 1
        key = self.random.choice(list(self.images))
        before = self.items.get(key)
        after = None if before and self.random.random() < 0.3 else self.random.choice(self.images[key])
        if before is after:
            return
        self.sequence += 1
        self.items[key] = after
        place = after or before
        name = ("main", place["PK"], place["SK"])
        self.engine.put_sources([(name, encode(after)["M"] if after else None, f"{self.sequence:09}")])
        self.waiting.append(change(before, after, self.sequence))

    def _deliver(self):
        record = self.waiting.pop(self.random.randrange(len(self.waiting)))
        self.depth += 1
        run = Run(Settings(), clock=lambda: self.now, pause=lambda _: None, opened={OPENED: self.index})
        try:
            failed = bool(process_changes(self.app, [record], self.engine, run).failures)
        except (Died, EngineUnavailable):
            failed = True
        self.depth -= 1
        if failed:
            self.waiting.append(record)

    def shown(self):
        names = {key.pk.removeprefix(PARTITION) for key in self.engine.state if key.pk.startswith(PARTITION)}
        found = (each for name in sorted(names) for each in self.index.documents(name))
        return {each.id: {name: each.body[name] for name in each.body if name != "_sf_h"} for each in found}


def orders():
    """One document an item, under the item's key."""
    images = {n: [item(f"ORDER#{n}", "METADATA", title=f"{n}{t}") for t in "abc"] for n in (1, 2)}

    def expected(items):
        return {f"{image['PK']}|METADATA": {"title": image["title"]} for image in items if image}

    return one_item(), images, expected


def songs():
    """Documents by language, under ids that follow from the item."""
    titles = {"en": "one"}, {"de": "eins"}, {"de": "eins", "fr": "un"}
    images = {n: [item(f"SONG#{n}", "METADATA", titles=each) for each in titles] for n in (1, 2)}

    def expected(items):
        return {
            f"{image['PK'].removeprefix('SONG#')}#{language}": {"language": language, "title": title}
            for image in items
            if image
            for language, title in image["titles"].items()
        }

    return several(), images, expected


KINDS = {"orders": orders, "songs": songs}


def check(name, histories, first=0):
    app, images, expected = KINDS[name]()
    for seed in range(first, first + histories):
        history = History(app, images, seed).run()
        assert history.shown() == expected(history.items.values()), f"seed {seed}"


@pytest.mark.parametrize("name", KINDS)
def test_documents_are_those_of_the_items_whatever_state_is_restored(name):
    check(name, 100)
