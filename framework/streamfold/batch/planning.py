"""One batch on its way from changes to a plan: routed, ordered per item, derived and planned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import DecimalException
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from streamfold.app import App
from streamfold.batch.report import Report
from streamfold.commit.outcome import Failed, Held, NotStarted
from streamfold.commit.plan import KeyedPut, Plan, Unit, claim_unit, ledger_unit, pack
from streamfold.commit.recompute import NamedRows, Unsettled
from streamfold.commit.triage import Triage
from streamfold.derivations.audit.rows import audit_row, own_change
from streamfold.derivations.view.expiry import outlived
from streamfold.derivations.view.fold import contribution, effects
from streamfold.derivations.whole import WHOLE_KINDS, whole_items
from streamfold.engines import Engine
from streamfold.errors import (
    EngineUnavailable,
    HandlerError,
    ImageError,
    RecordError,
    StreamfoldError,
    SwitchedOff,
    Unprocessable,
    is_fatal,
    reason,
    shown,
    told,
)
from streamfold.ledger.contribution import Contribution, left_rows
from streamfold.ledger.item import LedgerItem, Step, claim_key, held_after, ledger_key
from streamfold.ledger.reads import filled
from streamfold.records.change import Change, ItemKey
from streamfold.records.values import Image
from streamfold.routes.checks import check_view
from streamfold.routes.route import LEDGER_KINDS, Fields, Route
from streamfold.run import TIME_OVER, Run

if TYPE_CHECKING:
    from streamfold.commit.plan import Whole

RoutedFields = tuple[Route, Fields]


@dataclass(slots=True)
class ItemWork:
    """The changes of one item in a batch, oldest first, and what its key routes to."""

    item: ItemKey
    ledger: dict[str, list[RoutedFields]]
    others: list[RoutedFields]
    off: list[Route] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    bears: list[Route] = field(default_factory=list)


class Batch:
    """One batch on its way from changes to a plan. Without a ``triage`` (a dry run) every failure is reported."""

    def __init__(
        self,
        app: App,
        changes: Sequence[Change],
        engine: Engine,
        world: Run,
        triage: Triage | None = None,
    ) -> None:
        self.app = app
        self.engine = engine
        self.world = world
        self.actions = world.actions or world.settings.chunk_actions
        self.triage = triage
        self.report = Report()
        self.failed: list[Failed] = []
        self.done: list[Change] = []
        self.external: list[tuple[Route, Change, Fields]] = []
        self.unsettled = Unsettled()
        self._named: dict[tuple[str, ItemKey], NamedRows] = {}
        self.work: dict[ItemKey, ItemWork] = {}
        for change in changes:
            work = self.work.get(change.item) or self._route(change)
            work.changes.append(change)
        for work in self.work.values():
            self._settle(work)

    def plan(self) -> Plan:
        """Derives every handler's effects and plans them; reads state only where an old image is not known."""
        units = self._ledger_units()
        puts: list[KeyedPut] = []
        whole: list[Whole] = []
        for work in self.work.values():
            for route in dict.fromkeys(work.off):
                self._put_aside(route, work)
            for route, fields in work.others:
                if route.kind == "audit":
                    puts += self._audit(route, fields, work)
                elif route.kind in WHOLE_KINDS:
                    whole += whole_items(route, fields, work.changes, self._fails)
                else:
                    units += self._on(route, fields, work)
        return Plan(tuple(pack(units, self.actions)), tuple(puts), tuple(whole))

    def _ledger_units(self) -> list[Unit]:
        units: list[Unit] = []
        unread: list[tuple[ItemWork, str, tuple[Step, ...]]] = []
        for work in self.work.values():
            for group, routes in work.ledger.items():
                steps = self._steps(work, routes)
                if any(step.before is None for step in steps):
                    unread.append((work, group, steps))
                elif steps:
                    units += self._ledger_unit(work, group, steps, None)
        return units + self._read_units(unread)

    def named(self, unit: Unit, found: LedgerItem) -> NamedRows:
        """The rows that an item's images and its ledger item name, and that a crash may have left unfinished."""
        return self._unfinished(unit.item, unit.steps, found)

    def _unfinished(self, item: ItemKey, steps: Sequence[Step], found: LedgerItem) -> NamedRows:
        named = NamedRows()
        for step in steps:
            named.add_stored(self.app.name, step.route, item, found)
            named.join(self._named_by_images(step.route, item))
            held = held_after(step, found)
            named.rows.difference_update(held)
            named.hold(self.app.name, step.route, item, held)
        for name in self.app.retired & found.parts.keys():  # what its last step left empty is nobody's to keep
            named.rows.update(left_rows(found.parts[name].left))
        return named

    def _named_by_images(self, route: Route, item: ItemKey) -> NamedRows:
        """What the images of an item's changes name, found once however often the item is planned again."""
        known = self._named.get((route.name, item))
        if known is None:
            known = self._named[route.name, item] = NamedRows()
            work = self.work[item]
            fields = next(fields for routes in work.ledger.values() for each, fields in routes if each is route)
            for image in _images(work.changes):
                known.add(self.app.name, route, item, self._try(route, image, fields) or {})
        return known

    def call_external(self) -> None:
        """Calls external handlers, each change once as far as Powertools' idempotency utility can tell."""
        if not self.external:
            return
        from streamfold.derivations.on.external import ExternalCalls

        calls = ExternalCalls(self.app.name, self.engine, self.world)
        held: set[tuple[str, ItemKey]] = set()
        for route, change, fields in self.external:
            if (route.name, change.item) in held:
                self.failed.append(
                    Failed(change, route, Held("An earlier change of the same item failed for this handler."))
                )
            elif not self.world.enough_time():
                self.failed.append(Failed(change, route, NotStarted(TIME_OVER)))
            elif (error := calls.call(route, change, fields)) is not None and self._reported(change, route, error):
                held.add((route.name, change.item))

    def _route(self, change: Change) -> ItemWork:
        """Finds the routes of an item's key, once for all of its changes in the batch."""
        item = change.item
        dispatch = self.app.dispatch.get(item[0])
        found = dispatch.find(*item[1:]) if dispatch else []
        work = self.work[item] = ItemWork(item, {}, [])
        group, off, only = self.world.settings.group, self.world.settings.handlers_off, self.world.handlers
        for entry, fields in found:
            if entry.bears:
                # A handler that is switched off is not called; what it derived before is still kept on its items.
                work.bears += [route for route in entry.bears if group in (None, route.group)]
            for route in entry.routes:
                if (group is not None and route.group != group) or (only is not None and route.name not in only):
                    continue
                if route.name in off:
                    work.off.append(route)
                elif route.ledger:
                    works = work.ledger.setdefault(route.group, [])
                    if all(known is not route for known, _ in works):
                        works.append((route, fields))
                elif all(known is not route for known, _ in work.others):
                    work.others.append((route, fields))
        if work.others and self.app.derived(item):
            work.others = []  # derived rows come back through the stream; only ledgers may read them
        self._warn_of_near_misses(item, found)
        return work

    def _warn_of_near_misses(self, item: ItemKey, found: Sequence[Any]) -> None:
        known = self.app.known(item[0])
        if len(known.candidates(*item[1:])) == len(found):
            return
        for miss in known.near_misses(*item[1:]):
            self.world.warn_once(
                (miss.template, miss.value),
                f"Item {told(' / '.join(map(str, item[1:])))} fits {miss.template!r} ({miss.template.declared_at}) but "
                f"for {miss.field!r}: {shown(miss.value)} is no {miss.template.types[miss.field]}. "
                "It is not processed by that key's handlers.",
            )

    def _settle(self, work: ItemWork) -> None:
        """Orders an item's changes by version, each once, in whatever order they came, and counts them."""
        changes = work.changes
        if len(changes) > 1:
            identities = [change.identity_text for change in changes]  # each begins with the version
            if any(one >= other for one, other in pairwise(identities)):
                work.changes = [change for _, change in sorted(dict(zip(identities, changes, strict=True)).items())]
        for works in (*work.ledger.values(), work.others):
            for route, _ in works:
                self.report.records[route.name] += len(changes)
        if not (work.ledger or work.others or work.bears or work.off):
            self.report.unrouted[_prefix(work.item, changes[0].table.delimiter)] += len(changes)

    def _steps(self, work: ItemWork, routes: Sequence[RoutedFields]) -> tuple[Step, ...]:
        steps = (self._step(route, fields, work) for route, fields in routes)
        return tuple(step for step in steps if step is not None)

    def _step(self, route: Route, fields: Fields, work: ItemWork) -> Step | None:
        """From the oldest old to the newest new image on which the handler works; the records of others are
        reported.
        """
        after: Contribution | None = None
        version = ""
        for change in reversed(work.changes):
            try:
                check_view(route, change)
                after, version = contribution(route, change.new, fields), change.version_text
                break
            except Exception as error:  # noqa: BLE001 - whatever user code raises fails its record only
                self._fails(change, route, error)
        if after is None:
            return None
        if outlived(route, change, after):
            self._warn_of_expiry(route)
        oldest = work.changes[0]
        before = self._try(route, oldest.old, fields) if oldest.has_old else None
        return Step(route, version, before, after)

    def _warn_of_expiry(self, route: Route) -> None:
        self.world.warn_once(
            ("expiry", route.name),
            f"Handler {route.name!r} ({route.declared_at}) lets rows expire, but items that contribute to them do not: "
            "once such a row is gone, it lacks what they added. Give the items a time to live, or the row none.",
        )

    def _try(self, route: Route, image: Any, fields: Fields) -> Contribution | None:
        """What an image contributes, or None where the handler does not work on it."""
        try:
            return contribution(route, image, fields)
        except Exception:  # noqa: BLE001 - the ledger knows what this image contributed, if anything
            return None

    def _ledger_unit(self, work: ItemWork, group: str, steps: tuple[Step, ...], found: LedgerItem | None) -> list[Unit]:
        key = ledger_key(self.app.name, group, work.item)
        unit = ledger_unit(key, work.item, steps, tuple(work.changes), found, retired=self.app.retired)
        return [unit] if unit else []

    def _read_units(self, unread: Sequence[tuple[ItemWork, str, tuple[Step, ...]]]) -> list[Unit]:
        """Units of items whose old image is not known: one read of their ledger items for the batch."""
        if not unread:
            return []
        keys = [ledger_key(self.app.name, group, work.item) for work, group, _ in unread]
        try:
            items = self.engine.read_state(keys)
        except EngineUnavailable as error:
            for work, _, steps in unread:
                self._unread(work, steps, error)
            return []
        units: list[Unit] = []
        for key, (work, group, steps) in zip(keys, unread, strict=True):
            try:
                found = filled(self.engine, key, LedgerItem.of(items.get(key)), {step.route.name for step in steps})
            except EngineUnavailable as error:
                self._unread(work, steps, error)
                continue
            planned = self._ledger_unit(work, group, steps, found)
            units += planned
            routes = tuple(step.route for step in steps)
            self.unsettled.take(self._unfinished(work.item, steps, found), routes, tuple(work.changes))
            self.unsettled.note_found(key, work.item, routes, found)
            if not planned:
                self.done += work.changes
        return units

    def _unread(self, work: ItemWork, steps: Sequence[Step], error: EngineUnavailable) -> None:
        self.failed += [Failed(change, step.route, error) for step in steps for change in work.changes]

    def _audit(self, route: Route, fields: Fields, work: ItemWork) -> list[KeyedPut]:
        puts = []
        for change in work.changes:
            try:
                check_view(route, change)
                if (own := own_change(change)) is not None:
                    row = audit_row(route, own, fields, self.world.settings.audit_key)
                    puts.append(KeyedPut(route, change, row))
            except Exception as error:  # noqa: BLE001 - fails this record only
                self._fails(change, route, error)
        return puts

    def _on(self, route: Route, fields: Fields, work: ItemWork) -> list[Unit]:
        """One unit per change, in order; a change that fails holds the later ones of the same item."""
        units: list[Unit] = []
        for index, change in enumerate(work.changes):
            try:
                check_view(route, change)
                own = change.as_written()
                if own is None or not route.takes(own):
                    continue
                if route.external:
                    self._note_external(route, own, fields)
                    continue
                rows = effects(route, own, fields)
                if rows:
                    units.append(
                        claim_unit(
                            claim_key(self.app.name, route.name, work.item, change.identity_text), route, change, rows
                        )
                    )
            except Exception as error:  # noqa: BLE001 - fails this record, and holds the later ones
                if not self._fails(change, route, error):
                    continue
                held = Held(
                    "An earlier change of the same item failed for this handler; the record comes again after it."
                )
                self.failed += [Failed(later, route, held) for later in work.changes[index + 1 :]]
                break
        return units

    def _put_aside(self, route: Route, work: ItemWork) -> None:
        """The records of a handler that is switched off: parked where there is a place, else skipped and counted."""
        if route.kind not in LEDGER_KINDS and self.app.derived(work.item):
            return
        changes = [change for change in work.changes if _may_take(route, change)]
        if self.triage is not None and self.world.parking is not None:
            for change in changes:
                self._fails(change, route, SwitchedOff("The handler was switched off, STREAMFOLD_HANDLERS_OFF."))
            return
        self.report.off[route.name] += len(changes)
        self.world.warn_once(
            ("off", route.name),
            f"Handler {route.name!r} is switched off, and without a parking place (STREAMFOLD_PARK) its records are "
            "skipped.",
        )

    def _fails(self, change: Change, route: Route, error: Exception) -> bool:
        """Whether a failure is reported. Raises what is no record's fault: nothing of the batch is written yet."""
        if is_fatal(error):
            raise error
        return self._reported(change, route, error)

    def _reported(self, change: Change, route: Route, error: Exception) -> bool:
        """Whether a failure is reported; a record that is parked is not, and holds no other."""
        failed: Failed | None = Failed(change, route, explained(route, error))
        if failed is not None and self.triage is not None:
            failed = self.triage(failed)
        if failed is not None:
            self.failed.append(failed)
        return failed is not None

    def _note_external(self, route: Route, change: Change, fields: Fields) -> None:
        if self.world.external:
            self.external.append((route, change, fields))
        else:
            self.report.external_skipped[route.name] += 1


def _images(changes: Sequence[Change]) -> Iterator[Image]:
    """The images of an item's changes; what a change found as the one before left it is given once."""
    last = None
    for change in changes:
        if change.has_old and change.old.raw != last:
            yield change.old
        if change.has_new:
            yield change.new
            last = change.new.raw


def _may_take(route: Route, change: Change) -> bool:
    """Whether a handler may want a change; a ledger's sees derived attributes too, where it is not of these itself."""
    if route.ledger:
        return True
    try:
        own = change.as_written()
        return own is not None and route.takes(own)
    except RecordError:  # an image that cannot be read: the handler would have failed on it
        return True


def explained(route: Route, error: Exception) -> Exception:
    """What a handler raised, as it is reported."""
    if isinstance(error, RecordError) and not isinstance(error, ImageError):
        unprocessable = Unprocessable(f"The record is malformed: {reason(error)}")
        unprocessable.__cause__ = error
        return unprocessable
    if isinstance(error, DecimalException) and not isinstance(error, StreamfoldError):
        return HandlerError(
            f"Handler {route.name!r} led to a number that 38 digits cannot hold exactly ({type(error).__name__})."
        )
    return error


def _prefix(item: ItemKey, delimiter: str) -> str:
    """The first segments of a key, for counting what no route wants: ``CUSTOMER#``, ``ORDER# / ITEM#``."""
    parts = [str(part).partition(delimiter) for part in item[1:] if part is not None]
    return " / ".join(head + mark for head, mark, _ in parts if mark) or f"keys without {delimiter}"
