"""Steps of handlers that look others up, or ask for the time.

1. The ledger item is read. 2. Backlinks of references that it does not hold are put, and then the referents are read
(``commit.referents``). 3. The handler is called, and the step is written on the revision of 1.

Such a step is never optimistic. A ledger item that holds what was assumed may do so again after a write that read newer
referents: the older ones would be written over it. Its revision was there once only.

The time is looked up too: a ledger item holds the moments that its handler asked for, and of two steps of one image the
later one is right. So a handler that asks for the time is planned in the same way, with or without referents.

A step that is refused goes back to 2 with the ledger item that refused it: the referents at hand are older than what
that item was written of.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamfold.batch.order import ItemWork, RoutedFields
from streamfold.batch.report import Failing
from streamfold.commit.ledger_units import HandlerFailure, ReadItem
from streamfold.commit.referents import Asked, LookedUp, look_up
from streamfold.derivations.derivation import contributing, derived
from streamfold.errors import EngineUnavailable
from streamfold.ledger.contribution import Contribution, LedgerItem
from streamfold.ledger.schema import Schema
from streamfold.ledger.step import Step
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image
from streamfold.routes.checks import check_view
from streamfold.routes.route import Fields, Route, may_expire, times_to_live
from streamfold.runtime import VISITS, VISITS_MAX, Runtime


@dataclass(slots=True, eq=False)
class BatchItem(ReadItem):
    """A ledger item of a batch: the changes of its item, and the handlers that they are routed to."""

    work: ItemWork = field(kw_only=True)
    routed: Sequence[RoutedFields] = field(kw_only=True)
    is_next: bool = False  # the ledger agrees with the old images: no attempt before has died


class _Trying(NamedTuple):
    """A step that looks others up, and the changes that it may be made of, the newest last."""

    number: int  # of the item
    route: Route
    fields: Fields
    changes: list[Change]


@dataclass(slots=True, eq=False, repr=False)
class StepsWithReferents:
    """Makes the steps of a batch whose handlers look others up."""

    runtime: Runtime
    failing: Failing
    emptying: Container[str]  # handlers whose steps note the rows that they may leave empty
    _images: dict[tuple[str, ItemKey], tuple[Image, Fields]] = field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        return self.runtime.known.schema

    def of(self, read: Sequence[BatchItem]) -> list[dict[str, Step]]:
        """The steps of items, by handler, of those that look others up. Raises ``EngineError``."""
        found: list[dict[str, Step]] = [{} for _ in read]
        trying: list[_Trying] = []
        for number, item in enumerate(read):
            for route, fields in (each for each in item.routed if each[0].planned_from_ledger):
                if not _is_newer(item.found, route, item.changes[-1].version_text):
                    trying.append(_Trying(number, route, fields, list(item.changes)))
                else:
                    found[number][route.name] = Step(route, item.changes[-1].version_text, None, {})
        while trying:
            asked = [self._asked(each, read[each.number]) for each in trying]
            looked_up = iter(look_up(self.runtime, [each for each in asked if each is not None]))
            remaining: list[_Trying] = []
            for each, one in zip(trying, asked, strict=True):
                step = None if one is None else self._step_of(each, one, next(looked_up))
                if step is not None:
                    found[each.number][each.route.name] = step
                    if step.times is not None and step.times.once:
                        self._queue_visit(step, read[each.number])
                elif each.changes:  # the newest image that the handler accepts counts
                    remaining.append(each)
            trying = remaining
        return found

    def _asked(self, trying: _Trying, read: ReadItem) -> Asked | None:
        """The lookups of the newest change that remains; None if its record fails."""
        change = trying.changes[-1]
        try:
            check_view(trying.route, change)
            name, found = trying.route.name, read.found
            held, since = found.references(name), found.since(name)
            return Asked(trying.route, read.item, change.new, trying.fields, held, since)
        except Exception as error:  # noqa: BLE001 - an image that cannot be read fails its record only
            self.failing.fails(trying.changes.pop(), trying.route, error)
            return None

    def _step_of(self, trying: _Trying, asked: Asked, looked_up: LookedUp) -> Step | None:
        """The step to an image with its referents; None if the handler does not accept them."""
        route, change = trying.route, trying.changes.pop()
        after, error, times = derived(route, looked_up.image, trying.fields, self.schema, looked_up.at)
        if error := looked_up.error or error:
            self.failing.fails(change, route, error)
            while trying.changes and isinstance(error, EngineUnavailable):  # the store, not the image, is at fault
                self.failing.fails(trying.changes.pop(), route, error)
            return None
        look_for_expiry(self.runtime, route, change, after)
        look_for_silence(self.runtime, route, asked.item[0], looked_up.references)
        self._images[route.name, asked.item] = asked.image, trying.fields
        expects = route.name not in self.emptying
        return Step(route, change.version_text, None, after, expects, looked_up.references, times=times)

    def _queue_visit(self, step: Step, read: ReadItem) -> None:
        # Visits alone call the handler of a timer: one whose moment is past would wait for the schedule. A handler that
        # asks ``now`` has been called for each past moment already.
        assert step.times is not None
        stored = read.found.contributions.get(step.route.name)
        stripe = step.times.stripe_to_visit(read.item, stored.text if stored else "")
        if stripe is not None and len(self.runtime.visits) < VISITS_MAX:
            self.runtime.visits[VISITS + step.route.name, stripe] = None

    def again(self, read: Sequence[ReadItem]) -> list[HandlerFailure]:
        """Makes the steps of items whose ledger items were read since, of referents that are read after these.

        What was read before may be older than what another write has made since of newer referents. Returns the
        handlers that raise now. Raises ``EngineError``.
        """
        asked = []
        for item in read:
            for step in item.steps:
                if step.route.planned_from_ledger and not _is_newer(item.found, step.route, step.version):
                    image, fields = self._images[step.route.name, item.item]
                    name, found = step.route.name, item.found
                    held, since = found.references(name), found.since(name)
                    asked.append(Asked(step.route, item.item, image, fields, held, since))
        known = {
            (each.item, each.route.name): (each, found)
            for each, found in zip(asked, look_up(self.runtime, asked), strict=True)
        }
        failures: list[HandlerFailure] = []
        for item in read:
            steps = []
            for step in item.steps:
                one, looked_up = known.get((item.item, step.route.name), (None, None))
                if one is None or looked_up is None:
                    steps.append(step)
                    continue
                rows, error, times = derived(step.route, looked_up.image, one.fields, self.schema, looked_up.at)
                if error := looked_up.error or error:
                    failures.append((item, step.route, error))
                else:
                    steps.append(step._replace(after=rows, references=looked_up.references, times=times))
            item.keep(steps)
        return failures


def look_for_expiry(runtime: Runtime, route: Route, change: Change, after: Contribution) -> None:
    """Warns once of a handler whose rows may expire before the items that contribute to them, or never."""
    if after and times_to_live(route):
        from streamfold.derivations.expiry import look_at_contribution  # few applications have rows that expire

        look_at_contribution(runtime, route, after, (change,))
    if not (after and may_expire(route) and contributing(route).outlived(route, change, after)):
        return
    runtime.warn_once(
        ("expiry", route.name),
        f"Handler {route.name!r} ({route.declared_at}) lets rows expire before items that contribute to them: "
        "once such a row is gone, it lacks what they added. Let the items expire no later than they let the row, "
        "or give the row no time to live.",
    )


def look_for_silence(runtime: Runtime, route: Route, source: str, references: Sequence[ItemKey]) -> None:
    """Warns once of referents in a table of which no record ever came: their changes would reach no item.

    Without the manifest's word about the source table itself, records come without their origin, as in a test.
    """
    known = runtime.known.tables
    for referent in references if source in known else ():
        table = referent[0]
        if table in known or (runtime.store.own_stream is not None and runtime.application.derived(referent)):
            continue
        runtime.warn_once(
            ("silent", route.name, table),
            f"Handler {route.name!r} ({route.declared_at}) looks up items of table {table!r}, of which no record "
            "ever came: its rows are right when they are made, and stale once such an item changes. Make the "
            "stream of that table an event source of the function. The first record of it ends this.",
        )


def _is_newer(found: LedgerItem, route: Route, version: str) -> bool:
    contribution = found.contributions.get(route.name)
    return contribution is not None and contribution.version >= version
