"""Plans the ledger's steps: from the oldest old image to the newest new image of each item."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

from streamfold.batch.already_applied import AlreadyApplied, AppliedItem
from streamfold.batch.lookups import BatchItem, StepsWithReferents, look_for_expiry
from streamfold.batch.order import ItemWork, RoutedFields
from streamfold.batch.report import Failing
from streamfold.commit.ledger_units import HandlerFailure, ImageSource, LedgerUnits, ReadItem, read_lives
from streamfold.commit.outcome import Failed
from streamfold.commit.pending import NamedByHandler, NamedRows, PendingWork
from streamfold.commit.plan import Unit, ledger_unit
from streamfold.derivations.derivation import contributed
from streamfold.engines.protocol import StateItems
from streamfold.errors import EngineError, EngineUnavailable, RecordError
from streamfold.ledger.contribution import Contribution, LedgerItem, pending_rows, stored_rows, stored_text
from streamfold.ledger.lives import Lives, as_stored
from streamfold.ledger.schema import Schema
from streamfold.ledger.step import Step, contribution_after
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image, WatchedImage
from streamfold.routes.checks import BOTH, check_view
from streamfold.routes.route import Fields, Route, times_to_live
from streamfold.runtime import Runtime


@dataclass(slots=True, eq=False, repr=False)
class Steps(ImageSource):
    """Plans the steps of a batch, and names the rows for which an interrupted attempt may have pending work."""

    visits = False
    runtime: Runtime
    work: Mapping[ItemKey, ItemWork]
    failing: Failing
    done: list[Change]  # takes the changes that the state holds already
    unchanged: Counter[str] = field(default_factory=Counter)  # items of these, by handler
    pending_work: PendingWork = field(default_factory=PendingWork)
    schema: Schema = field(init=False)
    known_lives: Lives | None = field(init=False)
    notes_steps: bool = field(init=False)
    emptying: Container[str] = field(init=False)  # handlers whose steps note the rows that they may leave empty
    _named: dict[tuple[str, ItemKey], NamedRows] = field(default_factory=dict)
    _with_referents: StepsWithReferents | None = None
    _reads_once: bool = True  # ledger items were not read before, for records that the state may have

    def __post_init__(self) -> None:
        self.schema, runtime = self.runtime.known.schema, self.runtime
        self.known_lives = Lives(runtime.known.lives) if runtime.rows_expire else None
        self.emptying = self.runtime.emptying_handlers
        self.notes_steps = runtime.application.gathers

    def units(self, applied: AlreadyApplied) -> list[Unit]:
        """The units of all items that are not applied already; reads state only where an old image is not known."""
        items, stored = applied
        self._note_applied(items.values())
        unread: list[BatchItem] = []
        known: list[BatchItem] = []
        deriving: list[BatchItem] = []
        from_ledger = self.runtime.application.plans_from_ledger
        for work in self.work.values():
            for key, every in work.ledger.items():
                routed = _without_unseen(every, work) if from_ledger else every
                if key in items or not routed:
                    continue
                routes = tuple([route for route, _ in routed])
                read = BatchItem(key, work.item, routes, work.changes, work=work, routed=routed)
                if from_ledger and self.derives(read):
                    deriving.append(read)
                    continue
                steps, is_known = self._steps(work, routed)
                if steps:
                    read.steps, read.routes = steps, tuple([step.route for step in steps])
                    (known if is_known and stored is None else unread).append(read)
        if self.schema.expiring:
            self.runtime.known.learn_expiring()  # also of the rows that the handlers have just yielded
        if self.known_lives is not None and self.lives.matter:
            known, more = _by_lives(self.lives, known)
            unread += more
            self._read_lives(step for each in (*known, *unread) for step in each.steps)
        units = [unit for read in known if (unit := self._assumed(read)) is not None]
        return units + (self._read([*unread, *deriving], stored) if unread or deriving else [])

    def _read_lives(self, steps: Iterable[Step]) -> None:
        with suppress(EngineUnavailable):  # then rows are taken for absent, and a refusal shows them
            coming = ((step.route, step.before or {}, step.after) for step in steps)
            read_lives(self.runtime.engine, self.lives, coming)

    @property
    def retired(self) -> Collection[str]:
        return self.runtime.application.retired

    @property
    def lives(self) -> Lives:
        if self.known_lives is None:
            self.known_lives = Lives(self.runtime.known.lives)
        return self.known_lives

    @property
    def with_referents(self) -> StepsWithReferents:
        """Makes the steps of handlers that look others up; it keeps their images."""
        if self._with_referents is None:
            self._with_referents = StepsWithReferents(self.runtime, self.failing, self.emptying)
        return self._with_referents

    def derives(self, read: ReadItem) -> bool:
        return self.runtime.application.plans_from_ledger and any(route.planned_from_ledger for route in read.routes)

    def derive(self, read: Sequence[ReadItem]) -> list[HandlerFailure]:
        """Makes steps of which some are made of what is read after the ledger item, now or again."""
        first = [each for each in read if isinstance(each, BatchItem)]
        if not first:
            return self.with_referents.again(read)
        for each, made in zip(first, self.with_referents.of(first), strict=True):
            each.keep(self._in_order(each, made))
            self._note_next(each)
        if self.schema.expiring:
            self.runtime.known.learn_expiring()
        if self.lives.matter:
            self._read_lives(step for each in first for step in each.steps)
        return []

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
        if after and times_to_live(route):
            look_for_expiry(self.runtime, route, change, after)
        before: Contribution | None = None if old is None else {}
        if old is not None and watched:
            alike = type(image) is WatchedImage and image.reads_alike(old)
            before = after if alike else self._try(route, old, fields)
        return Step(route, change.version_text, before, after, route.name not in self.emptying)

    def _contribution(self, route: Route, image: Image, fields: Fields) -> Contribution:
        return contributed(route, image, fields, self.schema)

    def _try(self, route: Route, image: Image, fields: Fields) -> Contribution | None:
        """The contribution of an image, or None if the handler raises on it."""
        try:
            return self._contribution(route, image, fields) if image else {}
        except Exception:  # noqa: BLE001 - the ledger knows what this image contributed, if anything
            return None

    def _assumed(self, read: BatchItem) -> Unit | None:
        """A unit that assumes what its old images contributed."""
        steps, retired = tuple(read.steps), self.retired
        return ledger_unit(
            read.key, read.item, steps, tuple(read.changes), None, retired=retired, lives=self.known_lives
        )

    def _read(self, unread: Sequence[BatchItem], stored: StateItems | None) -> list[Unit]:
        """Units of items whose ledger items are needed: the ones not in ``stored`` are read together, once a batch."""
        desk = LedgerUnits[BatchItem](self, self)
        read = desk.read(unread, stored)
        self._reads_once = stored is None
        for each in read:
            self._note_next(each)
        return desk.plan(read)

    def _note_next(self, read: BatchItem) -> None:
        read.is_next = self._reads_once and bool(read.steps) and _are_next(read.steps, read.found)

    def failed(self, read: Sequence[ReadItem], error: Exception, *, of_item: bool = False) -> None:
        # A store that is wrong for good stops the batch; a damaged item does not.
        if isinstance(error, EngineUnavailable) or (of_item and isinstance(error, EngineError)):
            self.failing.failed += [
                Failed(change, route, error) for each in read for route in each.routes for change in each.changes
            ]
            return
        for each in read:
            for route, change in product(each.routes, each.changes):
                self.failing.fails(change, route, error)

    def applied(self, read: BatchItem, *, partly: bool) -> None:
        if not partly:
            self._note_applied([(read.work, tuple(read.routes))])

    def _note_applied(self, works: Collection[AppliedItem]) -> None:
        """Notes that the state holds all changes of items, as far as these handlers go."""
        for work, _ in works:
            self.done += work.changes
        for routes, items in Counter(routes for _, routes in works).items():
            self.unchanged.update(dict.fromkeys([route.name for route in routes], items))

    def _in_order(self, read: BatchItem, made: Mapping[str, Step]) -> tuple[Step, ...]:
        """The steps of all handlers of an item; ``made`` are those that are made after the ledger item was read."""
        first, found = read.changes[0], list[Step]()
        for route, fields in read.routed:
            step = made.get(route.name)
            if not route.planned_from_ledger:
                step = self._step(route, fields, read.work, first.old if first.has_old else None)
            found += () if step is None else (step,)
        return tuple(found)

    def pending_rows(self, read: ReadItem) -> Iterator[NamedByHandler]:
        """The rows that an item's images and its ledger item name, by handler: a crash may have left pending work."""
        if isinstance(read, BatchItem) and read.is_next:
            return
        item, steps, found = read.item, read.steps, read.found
        for step in steps:
            named = NamedRows()
            named.add_stored(self.runtime.application.name, step.route, item, found)
            named.join(self._named_by_images(step, item))
            held = contribution_after(step, found)
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
            if route.planned_from_ledger:  # its images contributed with referents: only the ledger item has the rows
                return known
            if len(work.changes) == 1 and step.before is not None:  # the contributions of both images are known already
                contributions = [step.before, step.after]
            else:
                fields = next(fields for routed in work.ledger.values() for each, fields in routed if each is route)
                contributions = [self._try(route, image, fields) or {} for image in images(work.changes)]
            for parts in contributions:
                known.add(self.runtime.application.name, route, item, parts)
        return known


def _without_unseen(routed: Sequence[RoutedFields], work: ItemWork) -> Sequence[RoutedFields]:
    """The handlers of an item without those that read others and see nothing of its changes.

    Of derived attributes a handler of attributes sees none. Without this, the record of its own write-back would read
    all that it reads once more, for each change of its attributes.
    """
    if all(route.kind.sees_derived_attributes or not route.planned_from_ledger for route, _ in routed):
        return routed
    try:
        if any(change.as_written() is not None for change in work.changes):
            return routed
    except RecordError:  # an image that cannot be read: the handler reports it
        return routed
    return [each for each in routed if each[0].kind.sees_derived_attributes or not each[0].planned_from_ledger]


def _by_lives(lives: Lives, known: Sequence[BatchItem]) -> tuple[list[BatchItem], list[BatchItem]]:
    """Steps whose ledger item need not be read, and steps of items that may be in a row which expires.

    Only the ledger knows in which life of the row such an item contributed: no assumption is made about it.
    """
    found: tuple[list[BatchItem], list[BatchItem]] = [], []
    for each in known:
        is_in_one = any(lives.counts(step.route, step.before) for step in each.steps if step.before)
        found[is_in_one].append(each)
    return found


def _are_next(steps: Sequence[Step], found: LedgerItem) -> bool:
    """Whether the ledger agrees with the old images and has no pending work: no attempt before has died.

    Steps of other rows are sent under this condition, without reading the ledger.
    """
    for step in steps:
        stored = found.contributions.get(step.route.name)
        if stored is None:
            # The images of a step that is planned from the ledger name no rows, and neither does an item without any.
            if step.before or (step.before is None and (found.contributions or not step.route.planned_from_ledger)):
                return False
            continue
        if step.before is None or stored.pending:
            return False
        if stored_text(as_stored(stored_rows(stored.text), step.before)) != stored.text:
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
