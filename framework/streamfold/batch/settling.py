"""What a batch that came before has done already: its ledger is read, and what that holds is neither derived nor sent.

What a sample or a ledger item says is never trusted for more than an economy: a batch that seems new is planned and
guarded as ever, and what is planned from a ledger item is sent on the revision that was read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.batch.order import ItemWork
from streamfold.batch.repeated import is_as_new
from streamfold.batch.steps import Settled, Steps
from streamfold.commit.ledger_reads import filled
from streamfold.commit.sending import read_state_in_parts
from streamfold.commit.unfinished import NamedRows
from streamfold.engines import StateItems
from streamfold.errors import EngineUnavailable
from streamfold.ledger.contribution import needs_no_finishing, stored_rows
from streamfold.ledger.item import LedgerItem, PartNames, settled_texts
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.run.pace import SendingPace
from streamfold.writes.guarded import StateKey

Unsettled = tuple[ItemWork, tuple[Route, ...], PartNames, str]
"""What is asked of a ledger item: an item's work, the handlers whose contributions it holds, their names in it, and the
version of the item's newest change.
"""


class Settling:
    """Settles the items of a batch that may have come before. It is made while the sample is read.

    asked: the items of the sample by the keys of their ledger items.
    """

    def __init__(self, work: Mapping[ItemKey, ItemWork], asked: Mapping[StateKey, ItemKey]) -> None:
        self.work = work
        self.asked = asked
        self._unsettled: dict[StateKey, Unsettled] = {}
        named: dict[tuple[Route, ...], PartNames] = {}
        for each in work.values():
            for key, routed in each.ledger.items():
                routes = tuple([route for route, _ in routed])
                names = named.get(routes) or named.setdefault(routes, PartNames([route.name for route in routes]))
                self._unsettled[key] = each, routes, names, each.changes[-1].version_text

    def settle(self, sampled: StateItems, steps: Steps) -> Settled:
        """Settles what the ledger has of a batch that came before; of one that seems new, nothing is read.

        sampled: holds the ledger items of the sample, none of those that are absent.
        """
        if not self._came_before(sampled, steps.run.pace):
            return Settled()
        settled: dict[StateKey, tuple[ItemWork, tuple[Route, ...]]] = {}
        others: dict[StateKey, dict[str, Any]] = {}
        stored: StateItems | None = others
        try:
            for found in read_state_in_parts(steps.engine, steps.run.lanes, self._unsettled):
                for key, attributes in found.items():
                    work, routes, names, version = self._unsettled[key]
                    texts = settled_texts(attributes, names, version)
                    if texts is not None and (
                        needs_no_finishing(*texts) or self._takes_unfinished(key, attributes, texts, steps)
                    ):
                        settled[key] = work, routes
                    else:
                        others[key] = attributes
        except EngineUnavailable:  # what was not read is sent, and refused if it came before
            stored = None
        steps.note_done(settled.values())
        return Settled(settled.keys(), stored)

    def _came_before(self, sampled: StateItems, pace: SendingPace) -> bool:
        """Whether the batch came before. Once it seems new its transactions need not be careful."""
        if pace.careful:
            found = ((sampled.get(key, {}), self.work[item]) for key, item in self.asked.items())
            pace.careful = any(is_as_new(stored, work) for stored, work in found)
        return pace.careful

    def _takes_unfinished(self, key: StateKey, attributes: dict[str, Any], texts: Sequence[str], steps: Steps) -> bool:
        """Has an item's rows recomputed and copied, as its step may have left that. False where they are not known."""
        work, routes, *_ = self._unsettled[key]
        own = zip(routes, texts, strict=True)
        unfinished = [route for route, text in own if not needs_no_finishing(text)]
        try:
            found = filled(steps.engine, key, LedgerItem.of(attributes), {route.name for route in unfinished})
        except EngineUnavailable:
            return False
        if any(route.name not in found.parts for route in unfinished):  # the item was read again, and is gone
            return False
        for route in unfinished:
            steps.unfinished.take(_held(steps, work.item, route, found), [route], work.changes)
        return True


def _held(steps: Steps, item: ItemKey, route: Route, found: LedgerItem) -> NamedRows:
    """The rows that a ledger item holds of a handler, which may have to be recomputed or copied."""
    named, application = NamedRows(), steps.application.name
    named.add_stored(application, route, item, found)
    named.hold(application, route, item, stored_rows(found.parts[route.name].text))
    return named
