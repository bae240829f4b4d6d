"""Runs of a few items, interleaved at every call, with two versions of the code and restored states.

Whatever happens, an index ends with what one of the versions makes of the items that are there: nothing older, and no
document of an item that is gone. The ids of documents that follow from more than their item's key are known to the
state alone. So where it is restored, such documents may stay that it does not know any more: their histories have no
restores. A state is restored only while nothing is under way, as docs/search-operations.md asks: a run that began
before could hold a higher number than one that read later.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from streamfold import App, Document, Newest, Router
from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping import Died
from tests.derivations.search.applications import LINE, ORDER
from tests.helpers.records import change, item

CALLS = ("count_up", "read_sources", "page", "transact", "read_state")
DEPTH_MAX = 2
CHANGES = 8


class Passing:
    """A sink that hands its requests over."""

    def __init__(self, sink, bulk):
        self.sink, self.bulk = sink, bulk
        self.check, self.documents = sink.check, sink.documents


class History:
    """Changes of two items, their records in any order, and a state that others put back."""

    def __init__(self, kind, seed, sink=None, name="documents"):
        self.kind, self.images, self.random, self.name = kind, kind.images, Random(seed), name
        self.engine = MemoryEngine(kind.apps[0].tables.values(), kind.apps[0].chains)
        self.index = Passing(sink or LocalIndex(self.engine), self._sent)
        self.now, self.sequence, self.depth, self.left = 1_772_355_600.0, 0, 0, CHANGES
        self.settings = Settings(indexes={"documents": name})
        self.items, self.waiting, self.backup, self.late = {}, [], {}, []
        for call in CALLS:
            setattr(self.engine, call, self._hooked(getattr(self.engine, call)))

    @property
    def is_over(self):
        return not (self.left or self.waiting)

    def run(self):
        while not self.is_over:
            self.step()
        return self.end()

    def step(self):
        """A change, or an invocation."""
        self.now += 0.001
        if self.kind.restores and self.left and not self.late and self.random.random() < 0.1:
            self._restore()
        if self.left and self.random.random() < 0.4:
            self._change()
        elif self.waiting:
            self._deliver()

    def end(self):
        """Lets everything land that is still on its way."""
        for actions in self.late:
            self.bulk(actions)
        return self

    def bulk(self, actions):
        return self.index.sink.bulk(actions)

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

    def _restore(self):
        """Puts the state back to an earlier one, while nothing is under way."""
        for key in self._state():
            del self.engine.state[key]
        self.engine.state.update({key: dict(found) for key, found in self.backup.items()})

    def _state(self):
        """The counters; documents lie beside them, and are restored by nobody."""
        return {key: found for key, found in self.engine.state.items() if key.pk.startswith("document#")}

    def _change(self):
        self.left -= 1
        place = self.random.choice(list(self.images))
        before = self.items.get(place)
        after = None if before and self.random.random() < 0.3 else self.random.choice(self.images[place])
        if before is after:
            return
        self.sequence += 1
        self.items[place] = after
        images = [image and item(*place, **image) for image in (before, after)]
        self.engine.put_sources([(("main", *place), encode(images[1])["M"] if after else None, f"{self.sequence:09}")])
        self.waiting.append(change(*images, self.sequence))

    def _deliver(self):
        record = self.waiting.pop(self.random.randrange(len(self.waiting)))
        self.depth += 1
        given = {"clock": lambda: self.now, "pause": lambda _: None, "opened": {OPENED: self.index}}
        try:
            run = Runtime(self.random.choice(self.kind.apps), self.engine, self.settings, **given)
            failed = bool(process_changes(run, [record]).failures)
        except (Died, EngineUnavailable):
            failed = True
        self.depth -= 1
        if failed:
            self.waiting.append(record)

    def shown(self):
        """The documents of the index by id."""
        found = self.index.documents(self.name)
        return {each.id: {name: each.body[name] for name in each.body if name != "_sf_h"} for each in found}

    def wrong(self):
        """What the index shows of an item that no version of the code makes of it; None where there is no such item."""
        shown = self.shown()
        for name in {name for name, _ in self.images}:
            items = [self.items.get(place) for place in self.images if place[0] == name]
            begins = name + self.kind.between
            own = {place: found for place, found in shown.items() if place.startswith(begins)}
            if own not in [{begins + each: found[each] for each in found} for found in self.kind.made(name, items)]:
                return name, own
        return None


class Kind(NamedTuple):
    """Applications with two versions of the code, the items of their histories, and what these lead to."""

    apps: tuple[App, App]
    images: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
    made: Callable[[str, Sequence[Any]], Sequence[Mapping[str, Any]]]
    restores: bool
    between: str = "|"  # an item and the rest of its documents' ids


def searching(handler, *sources, **options):
    router = Router()
    router.search(*sources, to="documents", fields={"title": "text"}, name="search", **options)(handler)
    return App("shop", routers=[router])


def one_item():
    """One document an item, under the item's key."""

    def version(mark):
        return searching(lambda item: Document(title=item["title"] + mark) if item["title"] != "c" else None, ORDER)

    def made(_, items):
        titles = [item["title"] for item in items if item and item["title"] != "c"]
        return [{"METADATA": {"title": titles[0] + mark}} if titles else {} for mark in MARKS]

    images = {(f"ORDER#{n}", "METADATA"): [{"title": title} for title in "abc"] for n in "12"}
    return Kind(tuple(map(version, MARKS)), images, made, True)


def three_items():
    """One document of three items."""

    def version(mark):
        def order(item, parts):
            return Document(title=item["title"] + mark, prices=[line["price"] for line in parts(LINE)])

        return searching(order, ORDER, parts=[LINE])

    def made(_, items):
        order, *lines = items
        prices = [line["price"] for line in lines if line]
        return [{"METADATA": {"title": order["title"] + mark, "prices": prices}} if order else {} for mark in MARKS]

    images = {("ORDER#1", "METADATA"): [{"title": title} for title in "ab"]}
    images |= {("ORDER#1", f"LINE#{n}"): [{"price": price} for price in (1, 2)] for n in "12"}
    return Kind(tuple(map(version, MARKS)), images, made, True)


def newest():
    """One document of an item and the last two of its lines: each that comes or goes moves which ones these are."""

    def version(mark):
        def order(item, parts):
            return Document(title=item["title"] + mark, prices=[line["price"] for line in parts(LINE)])

        return searching(order, ORDER, parts=[Newest(LINE, 2, reads=["price"])])

    def made(_, items):
        order, *lines = items
        prices = [line["price"] for line in lines if line][-2:]
        return [{"METADATA": {"title": order["title"] + mark, "prices": prices}} if order else {} for mark in MARKS]

    images = {("ORDER#1", "METADATA"): [{"title": title} for title in "ab"]}
    lines = [{"price": price, "note": note} for price, note in ((1, "x"), (2, "x"), (2, "y"))]
    images |= {("ORDER#1", f"LINE#{n}"): lines for n in "1234"}
    return Kind(tuple(map(version, MARKS)), images, made, True)


def several():
    """A document for each language of an item, under ids that follow from what it holds."""

    def version(mark):
        def order(item):
            for language in item["languages"]:
                yield Document(language=language + mark)

        return searching(order, ORDER, id="ORDER#{order_id}#{language}")

    def made(_, items):
        languages = [language for item in items if item for language in item["languages"]]
        return [{each + mark: {"language": each + mark} for each in languages} for mark in MARKS]

    images = {
        (f"ORDER#{n}", "METADATA"): [{"languages": each} for each in (["en"], ["de"], ["de", "fr"])] for n in "12"
    }
    return Kind(tuple(map(version, MARKS)), images, made, False, "#")


MARKS = ("", "!")
KINDS = {"one item": one_item, "three items": three_items, "newest parts": newest, "several documents": several}


def check(name, histories, first=0):
    """Runs so many histories of one kind, each with its own seed."""
    kind = KINDS[name]()
    for seed in range(first, first + histories):
        assert History(kind, seed).run().wrong() is None, f"seed {seed}"
