"""Copies derived attributes onto the items that bear them, after the commit that moved their truth.

The item is read first, then the truth; what differs is written on the condition that the item still has what was read
of it, and then both are read again. A copy that a slower process writes over a newer one is a change of the item, whose
own record brings it here again, as does an item that appears later, or is put without the attributes or with old ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from streamfold.commit.outcome import Failed
from streamfold.commit.sending import may_pass, read_rows
from streamfold.commit.unfinished import Cause
from streamfold.derivations.attributes.bearing import Own, PutBack, due, put_back, shown_by
from streamfold.derivations.attributes.stored import Truth, truth_of
from streamfold.derivations.derivation import Finishing, Work
from streamfold.engines import Engine
from streamfold.errors import Contended, EngineError, HandlerError, RecordError, TableThrottled, shown, told
from streamfold.records.change import Change, ItemKey
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import TRIES_MAX, Deadline, Run
from streamfold.writes.guarded import RowKey, UpdateSource


@dataclass(slots=True)
class Bearer:
    """An item that bears attributes: the truths of all handlers that derive them, and what its changes put back.

    ``retire``: something else than a copy leads to it. A copy tells nothing of retired handlers: a process with older
    code may have made it, would make it again, and the two would never come to an end.
    """

    truths: tuple[Truth, ...]
    unmarked: list[PutBack] = field(default_factory=list)
    retire: bool = False


Bearers = Mapping[ItemKey, Bearer]


class Upkeep:
    """The items of a batch that bear derived attributes: those whose truth moved, and those that changed themselves."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.bearers: dict[ItemKey, Bearer] = {}
        self.causes: dict[ItemKey, list[Cause]] = {}

    def moved(self, rows: Mapping[RowKey, Sequence[Cause]]) -> None:
        """Takes the items whose rows in the state a commit moved, or may have moved in an attempt that died."""
        for row, causes in rows.items():
            for change, route in causes:
                truth = truth_of(route)
                if truth is not None and truth.holds(row):
                    self._note(truth.item(row), change, route).retire = True

    def changed(self, heard: Sequence[Work]) -> None:
        """Takes items that were put or amended: their attributes may be missing, or be old ones."""
        for work in heard:
            changes = work.changes
            if changes[-1].event == "REMOVE":
                continue
            bearer = self._note(work.item, changes[-1], work.route)
            bearer.unmarked = [each for change in changes for each in put_back(change)]
            bearer.retire |= bool(self.application.retired) and not all(map(_is_copy, changes))

    def run(self, engine: Engine, run: Run) -> list[Failed]:
        """Brings the items up to date; returns the records of those for which that failed."""
        errors = keep_up(engine, self.application, self.bearers, run)
        return [failed for item, error in errors.items() for failed in self._failed(item, error)]

    def _failed(self, item: ItemKey, error: Exception) -> list[Failed]:
        return [Failed(change, route, error) for change, route in self.causes[item]]

    def _note(self, item: ItemKey, change: Change, route: Route) -> Bearer:
        self.causes.setdefault(item, []).append((change, route))
        if item not in self.bearers:
            self.bearers[item] = Bearer(truths_of(self.application, item))
        return self.bearers[item]


def truths_of(application: Application, item: ItemKey) -> tuple[Truth, ...]:
    """Where handlers keep the attributes that they derive onto an item."""
    found = (truth_of(each.route) for each, _ in application.listeners(item, called=False))
    return tuple(truth for truth in found if truth is not None)


def write_back_item(item: ItemKey, finishing: Finishing) -> None:
    """Brings one item up to date. Raises what made that fail."""
    bearers = {item: Bearer(truths_of(finishing.application, item), retire=True)}
    for error in keep_up(finishing.engine, finishing.application, bearers, finishing.run).values():
        raise error


def _is_copy(change: Change) -> bool:
    """Whether it is known that a change is of derived attributes alone."""
    try:
        return change.has_old and change.has_new and change.as_written() is None
    except RecordError:  # an attribute that cannot be read
        return False


def keep_up(engine: Engine, application: Application, bearers: Bearers, deadline: Deadline) -> dict[ItemKey, Exception]:
    """Brings items up to date with their truths; returns those for which that failed."""
    names = frozenset(route.name for route in application.routes)
    own = Own(application.name, names, application.retired)
    failed: dict[ItemKey, Exception] = {}
    left, refused = bearers, False
    try:
        for number in range(TRIES_MAX if left else 0):
            if refused:
                deadline.back_off(number - 1)
            left, refused = _round(engine, own, left, failed)
            if not left:
                break
    except EngineError as error:
        return failed | dict.fromkeys(left, error)
    busy = Contended(f"Written {TRIES_MAX} times in a row, because others change the item; it comes again.")
    return failed | dict.fromkeys(left, busy)


def _round(engine: Engine, own: Own, bearers: Bearers, failed: dict[ItemKey, Exception]) -> tuple[Bearers, bool]:
    """The items that were written and are to be looked at again, and whether a write was refused."""
    items = read_rows(engine, bearers, failed)
    bearers = {item: bearer for item, bearer in bearers.items() if item not in failed}
    rows = engine.read_rows(truth.row(item[1:]) for item, bearer in bearers.items() for truth in bearer.truths)
    again: dict[ItemKey, Bearer] = {}
    any_refused = False
    for number, (item, bearer) in enumerate(bearers.items()):
        try:
            shown = {truth.whose: shown_by(rows.get(truth.row(item[1:]))) for truth in bearer.truths}
            found = due(own, item, items.get(item), shown, bearer.unmarked, retire=bearer.retire)
            if found.update is not None:
                any_refused |= _refused(engine, found.update)
                again[item] = bearer
            elif found.refused is not None:
                failed[item] = found.refused
        except TableThrottled:
            return again | dict(islice(bearers.items(), number, None)), True
        except (EngineError, HandlerError) as error:
            failed[item] = error
    return again, any_refused


def _refused(engine: Engine, update: UpdateSource) -> bool:
    """Whether the item is not as it was read.

    Raises ``HandlerError`` for what the store will never take, ``TableThrottled`` where the table is throttled.
    """
    refused = engine.transact([update], 0)
    if refused is None:
        return False
    (reason,) = refused.reasons
    if reason is not None and not may_pass(reason):
        raise HandlerError(
            f"The store refused attributes of item {shown(update.key[1:])}, {reason.code}: {told(reason.message)}"
        )
    return True
