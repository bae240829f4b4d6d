"""Plans the ledger's steps: from the oldest old image to the newest new image of each item."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

from streamfold.batch.already_applied import AlreadyApplied, AppliedItem
from streamfold.batch.lookups import Looking, StepsWithReferents, look_for_expiry
from streamfold.batch.order import ItemWork, RoutedFields
from streamfold.batch.report import Failing
from streamfold.commit.buckets import ready, wait_for_items
from streamfold.commit.emptying import emptying_handlers
from streamfold.commit.outcome import Failed
from streamfold.commit.pending import NamedByHandler, NamedRows, PendingWork
from streamfold.commit.plan import Unit, ledger_unit
from streamfold.commit.replanning import filled, read_lives
from streamfold.commit.transactions import read_state
from streamfold.derivations.derivation import contributing
from streamfold.engines import StateItems
from streamfold.errors import EngineError, EngineUnavailable, HandlerError
from streamfold.ledger.contribution import Contribution, LedgerItem, pending_rows, stored_rows, stored_text
from streamfold.ledger.lives import Lives, as_stored
from streamfold.ledger.schema import Schema
from streamfold.ledger.step import Step, held_after
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image, WatchedImage
from streamfold.routes.checks import BOTH, check_view
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import StateKey

Unread = tuple[ItemWork, StateKey, tuple[Step, ...]]
ToLookUp = tuple[ItemWork, StateKey, Sequence[RoutedFields]]


@dataclass(slots=True, eq=False, repr=False)
class Steps:
    """Plans the steps of a batch, and names the rows for which an interrupted attempt may have pending work."""

    runtime: Runtime
    work: Mapping[ItemKey, ItemWork]
    failing: Failing
    done: list[Change]  # takes the changes that the state holds already
    unchanged: Counter[str] = field(default_factory=Counter)  # items of these, by handler
    pending_work: PendingWork = field(default_factory=PendingWork)
    schema: Schema = field(init=False)
    lives: Lives = field(init=False)
    looks_up: bool = field(init=False)  # some handler does
    emptying: Container[str] = field(init=False)  # handlers whose steps note the rows that they may leave empty
    _named: dict[tuple[str, ItemKey], NamedRows] = field(default_factory=dict)
    with_referents: StepsWithReferents = field(init=False)

    def __post_init__(self) -> None:
        self.schema, self.lives = self.runtime.known.schema, Lives(self.runtime.known.lives)
        self.emptying = emptying_handlers(self.runtime)
        self.looks_up = any(route.lookups for route in self.runtime.application.routes)
        self.with_referents = StepsWithReferents(self.runtime, self.failing, self.emptying)

    def units(self, applied: AlreadyApplied) -> list[Unit]:
        """The units of all items that are not applied already; reads state only where an old image is not known."""
        items, stored = applied
        self._note_applied(items.values())
        units: list[Unit] = []
        unread: list[Unread] = []
        known: list[Unread] = []
        looking: list[ToLookUp] = []
        for work in self.work.values():
            for key, routed in work.ledger.items():
                if key in items:
                    continue
                if self.looks_up and any(route.lookups for route, _ in routed):
                    looking.append((work, key, routed))
                    continue
                steps, is_known = self._steps(work, routed)
                if steps:
                    (known if is_known and stored is None else unread).append((work, key, steps))
        if self.schema.expiring:
            self.runtime.known.learn_expiring()  # also of the rows that the handlers have just yielded
        if self.lives.matter:
            known, more = _by_lives(self.lives, known)
            unread += more
            self._read_lives(step for _, _, some in (*known, *unread) for step in some)
        for work, key, steps in known:
            if (unit := self._unit(work, key, steps, None)) is not None:
                units.append(unit)
        return units + self._read(unread, stored) + (self._look_up(looking, stored) if looking else [])

    def _read_lives(self, steps: Iterable[Step]) -> None:
        with suppress(EngineUnavailable):  # then rows are taken for absent, and a refusal shows them
            coming = ((step.route, step.before or {}, step.after) for step in steps)
            read_lives(self.runtime.engine, self.lives, coming)

    def named(self, unit: Unit, found: LedgerItem) -> Iterable[NamedByHandler]:
        """The rows that an item's images and its ledger item name, by handler: a crash may have left pending work."""
        return self._unfinished(unit.item, unit.steps, found)

    def _steps(self, work: ItemWork, routed: Sequence[RoutedFields]) -> tuple[tuple[Step, ...], bool]:
        """The steps of an item, and whether the starting contributions of all of them are known."""
        first = work.changes[0]
        old = first.old if first.has_old else None
        steps, is_known = [], True
        for route, fields in routed:
            step = self._step(route, fields, work, old)
            if step is not None:
                steps.append(step)
                if step.before is None:
                    is_known = False
        return tuple(steps), is_known

    def _step(self, route: Route, fields: Fields, work: ItemWork, old: Image | None) -> Step | None:
        """The step from the oldest old image to the newest new image that the handler accepts; None if it accepts none.

        Records whose images it refuses fail. Attributes of the new image that it did not read make no difference.
        """
        watched = old is not None and bool(old.raw)
        after: Contribution = {}
        for change in reversed(work.changes):
            try:
                if change.view != BOTH:
                    check_view(route, change)
                image = change.new
                if image.raw:
                    if watched:
                        image = WatchedImage(image)
                    after = self._contribution(route, image, fields)
                break
            except Exception as error:  # noqa: BLE001 - whatever user code raises fails its record only
                self.failing.fails(change, route, error)
        else:
            return None
        look_for_expiry(self.runtime, route, change, after)
        before: Contribution | None = None if old is None else {}
        if old is not None and watched:
            alike = type(image) is WatchedImage and image.reads_alike(old)
            before = after if alike else self._try(route, old, fields)
        return Step(route, change.version_text, before, after, route.name not in self.emptying)

    def _contribution(self, route: Route, image: Image, fields: Fields) -> Contribution:
        return contributing(route).contribution(route, image, fields, self.schema)

    def _try(self, route: Route, image: Image, fields: Fields) -> Contribution | None:
        """The contribution of an image, or None if the handler raises on it."""
        try:
            return self._contribution(route, image, fields) if image else {}
        except Exception:  # noqa: BLE001 - the ledger knows what this image contributed, if anything
            return None

    def _unit(self, work: ItemWork, key: StateKey, steps: tuple[Step, ...], found: LedgerItem | None) -> Unit | None:
        retired, changes = self.runtime.application.retired, tuple(work.changes)
        return ledger_unit(key, work.item, steps, changes, found, retired=retired, lives=self.lives)

    def _read(self, unread: Sequence[Unread], stored: StateItems | None) -> list[Unit]:
        """Units of items whose ledger items are needed: the ones not in ``stored`` are read together, once a batch."""
        if not unread:
            return []
        keys = [key for _, key, _ in unread]
        try:
            items = read_state(self.runtime, keys) if stored is None else stored
        except EngineUnavailable as error:
            for work, _, steps in unread:
                self._unread(work, [step.route for step in steps], error)
            return []
        read = [
            (work, key, steps, found)
            for work, key, steps in unread
            if (found := self._filled(work, key, [step.route for step in steps], items)) is not None
        ]
        _wait_together(self.runtime, self.pending_work, [found for *_, found in read])
        return [
            unit
            for work, key, steps, found in read
            for unit in self._planned(work, key, steps, found, next_one=stored is None and _are_next(steps, found))
        ]

    def _filled(self, work: ItemWork, key: StateKey, routes: Sequence[Route], items: StateItems) -> LedgerItem | None:
        """The ledger item of a read, with its large contributions; None if they cannot be read, which is reported."""
        try:
            return filled(self.runtime.engine, key, LedgerItem.of(items.get(key)), {route.name for route in routes})
        except EngineUnavailable as error:
            self._unread(work, routes, error)
            return None

    def _planned(
        self, work: ItemWork, key: StateKey, steps: tuple[Step, ...], found: LedgerItem, *, next_one: bool
    ) -> list[Unit]:
        """The unit of steps from what the ledger holds; none if it has them already."""
        planned = self._unit(work, key, steps, found)
        routes = tuple(step.route for step in steps)
        if not next_one:
            for some, named in self._unfinished(work.item, steps, found):
                self.pending_work.take(named, some, tuple(work.changes))
        self.pending_work.note_found(key, work.item, routes, found)
        if planned is None:
            self._note_applied([(work, routes)])
            self.pending_work.deltas.wait_for_item(found, routes, work.changes)
            return []
        if found.waits:
            try:
                held = ready(found, steps, self.pending_work.deltas)
                self.pending_work.deltas.wait_for_item(held, routes, work.changes)  # what a row refuses still
                planned = self._unit(work, key, steps, held)
            except (EngineError, HandlerError) as error:
                for route, change in product(routes, work.changes):
                    self.failing.fails(change, route, error)
                return []
        return [] if planned is None else [planned]

    def _look_up(self, looking: Sequence[ToLookUp], stored: StateItems | None) -> list[Unit]:
        """Units of items some of whose handlers look others up: ledger items are read first, then the referents."""
        keys = [key for _, key, _ in looking]
        try:
            items = read_state(self.runtime, keys) if stored is None else stored
        except EngineUnavailable as error:
            for work, _, routed in looking:
                self._unread(work, [route for route, _ in routed], error)
            return []
        read = [
            Looking(work, key, routed, found)
            for work, key, routed in looking
            if (found := self._filled(work, key, [route for route, _ in routed], items)) is not None
        ]
        try:
            _wait_together(self.runtime, self.pending_work, [each.found for each in read])
            steps = [self._in_order(each, made) for each, made in zip(read, self.with_referents.of(read), strict=True)]
        except EngineUnavailable as error:
            for each in read:
                self._unread(each.work, [route for route, _ in each.routed], error)
            return []
        if self.schema.expiring:
            self.runtime.known.learn_expiring()
        if self.lives.matter:
            self._read_lives(step for some in steps for step in some)
        return [
            unit
            for each, some in zip(read, steps, strict=True)
            if some
            for unit in self._planned(each.work, each.key, some, each.found, next_one=False)
        ]

    def _note_applied(self, works: Collection[AppliedItem]) -> None:
        """Notes that the state holds all changes of items, as far as these handlers go."""
        for work, _ in works:
            self.done += work.changes
        for routes, items in Counter(routes for _, routes in works).items():
            self.unchanged.update(dict.fromkeys([route.name for route in routes], items))

    def _in_order(self, looking: Looking, made: Mapping[str, Step]) -> tuple[Step, ...]:
        """The steps of all handlers of an item; ``made`` are those of handlers that look others up."""
        first, found = looking.work.changes[0], list[Step]()
        for route, fields in looking.routed:
            step = made.get(route.name)
            if not route.lookups:
                step = self._step(route, fields, looking.work, first.old if first.has_old else None)
            found += () if step is None else (step,)
        return tuple(found)

    def _unread(self, work: ItemWork, routes: Iterable[Route], error: EngineUnavailable) -> None:
        self.failing.failed += [Failed(change, route, error) for route in routes for change in work.changes]

    def _unfinished(self, item: ItemKey, steps: Sequence[Step], found: LedgerItem) -> Iterator[NamedByHandler]:
        for step in steps:
            named = NamedRows()
            named.add_stored(self.runtime.application.name, step.route, item, found)
            named.join(self._named_by_images(step, item))
            held = held_after(step, found)
            named.rows.difference_update(held)
            named.hold(self.runtime.application.name, step.route, item, held)
            yield [step.route], named
        for name in self.runtime.application.retired & found.contributions.keys():
            # Rows emptied by its last step: no other handler removes them.
            named = NamedRows()
            named.rows.update(pending_rows(found.contributions[name].pending))
            yield [step.route for step in steps], named

    def _named_by_images(self, step: Step, item: ItemKey) -> NamedRows:
        """The rows that the images of an item's changes name: found once, however often the item is planned again."""
        route, work = step.route, self.work[item]
        known = self._named.get((route.name, item))
        if known is None:
            known = self._named[route.name, item] = NamedRows()
            if route.lookups:  # images contributed with the referents of that time: only the ledger item has the rows
                return known
            if len(work.changes) == 1 and step.before is not None:  # the contributions of both images are known already
                contributions = [step.before, step.after]
            else:
                fields = next(fields for routed in work.ledger.values() for each, fields in routed if each is route)
                contributions = [self._try(route, image, fields) or {} for image in images(work.changes)]
            for parts in contributions:
                known.add(self.runtime.application.name, route, item, parts)
        return known


def _by_lives(lives: Lives, known: Sequence[Unread]) -> tuple[list[Unread], list[Unread]]:
    """Steps whose ledger item need not be read, and steps of items that may be in a row which expires.

    Only the ledger knows in which life of the row such an item contributed: no assumption is made about it.
    """
    found: tuple[list[Unread], list[Unread]] = [], []
    for each in known:
        is_in_one = any(lives.counts(step.route, step.before) for step in each[2] if step.before)
        found[is_in_one].append(each)
    return found


def _wait_together(runtime: Runtime, pending_work: PendingWork, found: Sequence[LedgerItem]) -> None:
    """Moves what ledger items name into rows, all at once. Where that fails, ``ready`` says so item by item."""
    if any(each.waits for each in found):
        with suppress(EngineError, HandlerError):
            wait_for_items(runtime, pending_work.deltas, found)


def _are_next(steps: Sequence[Step], found: LedgerItem) -> bool:
    """Whether the ledger agrees with the old images and has no pending work: no attempt before has died.

    Steps of other rows are sent under this condition, without reading the ledger.
    """
    for step in steps:
        stored = found.contributions.get(step.route.name)
        text, pending = (stored.text, stored.pending) if stored else ("", "")
        if step.before is None or pending or stored_text(as_stored(stored_rows(text), step.before)) != text:
            return False
    return True


def images(changes: Sequence[Change]) -> Iterator[Image]:
    """The images of an item's changes. An old image that equals the new image before it is left out."""
    last = None
    for change in changes:
        if change.has_old and change.old.raw != last:
            yield change.old
        if change.has_new:
            yield change.new
            last = change.new.raw
