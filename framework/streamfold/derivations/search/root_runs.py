"""One root on its way to an index: its number, and the documents that are sent in it."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from streamfold.derivations.search.gather import Root, StoredItems, gathered, known_items
from streamfold.derivations.search.make import hidden, index_of, made, only_id
from streamfold.derivations.search.options import keeps_ids, options_of
from streamfold.derivations.search.sink import Action
from streamfold.engines import Engine
from streamfold.errors import HandlerError, Unprocessable
from streamfold.settings import Settings
from streamfold.writes.guarded import CounterWrite, StateKey

IDS_MAX = 500
"""Ids that are kept of one item: those of its documents, and of documents that could not be hidden yet."""


@dataclass(slots=True, eq=False)
class RootRun:
    """One root on its way: bumped, read, sent."""

    root: Root
    key: StateKey  # of its counter
    number: int  # of its counter, before its items were read
    ids: frozenset[str]  # that may be in the index, as the counter's item had them
    alias: str = ""  # that its documents belong to
    actions: list[Action] = field(default_factory=list)
    gone: frozenset[str] = frozenset()  # ids of which no document is left

    @property
    def new_ids(self) -> frozenset[str]:
        """The ids that are sent and not in the counter's item, where ids are kept."""
        if not keeps_ids(self.root.route):
            return frozenset()
        return frozenset(action.id for action in self.actions) - self.ids


def lead(
    each: RootRun, engine: Engine, stored: StoredItems, settings: Settings, gone: bytes | None, *, hides: bool = True
) -> None:
    """Makes the documents of a root; they are its actions then. Raises what the handler raises.

    gone: the body of a document that is not made any more; None: it is deleted.
    hides: such documents are sent. Without it they are left as they are.
    """
    root = each.root
    each.alias, bodies = made(root, gathered(root, engine, stored), settings)
    ids = frozenset(bodies)
    known = each.ids if keeps_ids(root.route) else frozenset([only_id(*root[:3])])
    each.gone = known - ids if hides else frozenset()
    if len(each.ids | ids) > IDS_MAX:
        raise Unprocessable(f"An item would have over {IDS_MAX} documents, with those that are to be hidden.")
    each.actions = [Action(each.alias, name, each.number, body) for name, body in bodies.items()]
    each.actions += [Action(each.alias, name, each.number, gone) for name in sorted(each.gone)]


def known_sources(engine: Engine, runs: Iterable[RootRun]) -> StoredItems:
    """The items of roots whose keys are known, read strongly: after the counters, whose numbers the runs have."""
    items = dict.fromkeys(item for each in runs for item in known_items(each.root))
    return engine.read_sources(items) if items else {}


def noted(each: RootRun, engine: Engine, expires_at: int) -> bool:
    """Whether all ids that are sent are in the counter's item, so that every later run sees them.

    A newer run that was not shown a new id would not hide it: it decides then, and this one begins again.
    """
    write = CounterWrite(each.key, each.number, added=each.new_ids, expires=False)
    return not each.new_ids or engine.transact([write], expires_at) is None


def gone_body(root: Root, at_seconds: float) -> bytes | None:
    """What stands for a document of a root that is gone; None if it is deleted."""
    return hidden(at_seconds) if options_of(root.route).deletes == "kept" else None


def aliases_of(roots: Iterable[Root], settings: Settings) -> list[str]:
    """The aliases that the documents of roots belong to, each once."""
    found: dict[str, None] = {}
    for root in roots:
        with suppress(HandlerError):  # told when its documents are made
            found[index_of(root.route, root.fields, settings)] = None
    return list(found)
