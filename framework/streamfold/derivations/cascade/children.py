"""Children of removed items, removed page by page.

Each page is one transaction on three conditions: the parent is absent, the cursor has not moved, and every child is as
it was read. The cursor moves with the deletions. So a page is refused if it is sent twice, or if it arrives after its
invocation has died. At the end the cursor is done, and a record that is delivered again removes nothing.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from streamfold.commit.outcome import Outcome, Tallies
from streamfold.commit.transactions import send
from streamfold.derivations.cascade.kind import KEPT, children_of
from streamfold.derivations.derivation import Finishing
from streamfold.engines import Page
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, EngineError, HandlerError, NotStarted, RecordError, damaged, is_of_table
from streamfold.jobs.fan_outs import REMOVED, FanOuts, Paged, record_of
from streamfold.jobs.job import Job, JobSegment
from streamfold.keys.key import Key, child_fields, sort_prefix
from streamfold.ledger.state_keys import event_key, fan_out_id
from streamfold.records.change import Change, item_name
from streamfold.records.encoded import to_json
from streamfold.records.values import decode, encode
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import (
    BYTES_PLANNED_MAX,
    CONDITION,
    AbsentSource,
    DeleteSource,
    GuardedWrite,
    Refused,
    StateKey,
    SwapState,
    estimated_bytes,
)

CASCADE = "cascade"
"""What such a job does."""

PAGES_MAX = 10_000
"""Pages that one invocation removes for one parent where no fan-out goes on; then the record comes again."""
INLINE_PAGES = 20
"""Pages that an invocation removes itself for one parent: about a second. What is more goes on as a fan-out."""
GUARDS = 2
"""Writes of a page beside its children: the check of the parent, and the cursor."""
START = ""

PAGES_A_MOVE = 10
"""Pages of children between two moves of the lane, which costs two write units."""
REVISION_DIGITS = 12


class Removed(NamedTuple):
    """An item that is gone, whose children a cascade removes."""

    route: Route
    changes: tuple[Change, ...]  # its removals, oldest first
    fields: Fields

    @property
    def newest(self) -> Change:
        """The removal that covers all others."""
        return self.changes[-1]

    def __str__(self) -> str:
        return f"remove the children of {self.newest.name}"


def job_of(removed: Removed, now: float) -> Job | None:
    """The job that goes on with a cascade, the same for each removal of its parent; None where none can keep it."""
    change = removed.newest
    record = record_of(change)
    if record is None:
        return None
    return Job(
        id=fan_out_id(removed.route.name, CASCADE, item_name(change.item)),
        what=CASCADE,
        handlers=(removed.route.name,),
        table=change.item[0],
        segments=1,
        started=int(now),
        by="",
        options={"record": to_json(record), "version": change.version_text},
    )


def removed_of(route: Route, job: Job, make: Callable[[Mapping[str, object]], Change]) -> Removed:
    """The removal that a job is for; ``make`` makes a change of a record.

    Raises ``EngineError`` for a job that is none of a cascade.
    """
    try:
        change = make(json.loads(job.options["record"]))
        change.version_text = job.options["version"]
        keys = (key for key in route.sources if key.table.name == change.item[0])
        fields = next(found for key in keys if (found := key.match_values(*change.item[1:])) is not None)
    except (KeyError, StopIteration, TypeError, ValueError):
        raise damaged(f"Fan-out {job.id}") from None
    return Removed(route, (change,), fields)


class CascadeCursor(NamedTuple):
    """How far a cascade has come."""

    revision: int = 0  # raised with each page; 0: not begun
    child: str = START  # the template of the children that are being removed
    after: Any = None  # the sort key of the last removed child; None at the beginning of a template
    done: bool = False

    @classmethod
    def of(cls, attributes: dict[str, Any] | None) -> "CascadeCursor":
        if not attributes:
            return cls()
        after = attributes.get("after")
        key = decode(json.loads(after)) if after else None
        return cls(int(attributes["r"]), attributes.get("child", START), key, attributes.get("done", False))

    def write(self, key: StateKey, revision: int) -> SwapState:
        """The write that moves the cursor here from a revision."""
        if self.done:
            return SwapState(key, {"done": True}, revision)
        after = {} if self.after is None else {"after": to_json(encode(self.after))}
        return SwapState(key, {"child": self.child, **after}, revision)


class Children:
    """Removes the children of removed items. A parent that fails does not affect the others.

    If a table does not answer, or refuses for good, its other parents fail at once: every further page would wait and
    fail too. Parents that exist again are counted, and keep their remaining children.
    """

    def __init__(self, finishing: Finishing, outcome: Outcome) -> None:
        self.finishing = finishing
        self.outcome = outcome

    def remove(self, parents: Iterable[Removed]) -> Outcome:
        """Removes the children of these parents."""
        away: dict[str, EngineError] = {}
        for removed in parents:
            table = removed.newest.table.name
            try:
                if table in away:
                    raise away[table]
                if not self.remove_pages(removed, INLINE_PAGES if self.finishing.runtime.fans_out else PAGES_MAX).done:
                    self._hand_over(removed)
                self._end_earlier(removed)
            except (EngineError, HandlerError) as error:
                if is_of_table(error):
                    away[table] = error
                self.outcome.failed += self.finishing.failures(removed.changes, removed.route, error)
        return self.outcome

    def remove_pages(self, removed: Removed, most: int) -> CascadeCursor:
        """Removes so many pages of a parent's children; returns the cursor then.

        Raises ``Contended`` where others change the children all the time, and what the engine raises.
        """
        rounds, place = 0, self._place(removed, removed.newest)
        cursor = self._cursor(place)
        for page in range(most):
            if cursor.done:
                self._tallies(removed).unchanged += not page
                break
            children, following = self._page(removed, cursor)
            changed = following.write(place, cursor.revision)
            refused = self._send([AbsentSource(removed.newest.item), changed, *children])
            if refused is None:
                rounds, cursor = 0, following._replace(revision=cursor.revision + 1)
                self._tallies(removed).removed += len(children)
                continue
            if (parent := refused.reasons[0]) is not None and parent.code == CONDITION:
                self._keep(removed, place, cursor)
                return CascadeCursor(done=True)
            self.finishing.runtime.back_off(rounds)
            rounds += 1
            if rounds > TRIES_MAX:
                raise Contended(f"Refused {TRIES_MAX} times in a row, because others change the children.")
            cursor = self._cursor(place)
        return cursor

    def _hand_over(self, removed: Removed) -> None:
        """Has a fan-out go on, or the record come again where none can."""
        runtime = self.finishing.runtime
        job = job_of(removed, runtime.clock()) if runtime.fans_out else None
        if job is None:
            raise NotStarted("More children are there than one invocation removes; the record has to come again.")
        FanOuts(runtime).start(job, removed.newest.version_text)

    def _end_earlier(self, removed: Removed) -> None:
        """Marks earlier removals of the parent as done: the latest covers them, and they may be delivered alone."""
        for change in removed.changes[:-1]:
            place = self._place(removed, change)
            self._end(place, self._cursor(place))

    def _end(self, place: StateKey, cursor: CascadeCursor) -> None:
        if not cursor.done:  # refused where another invocation moved on: that one decides
            self._send([CascadeCursor(done=True).write(place, cursor.revision)])

    def _place(self, removed: Removed, change: Change) -> StateKey:
        """Where the cursor of a removal is."""
        application = self.finishing.runtime.application.name
        return event_key("cascade", application, removed.route.name, change.item, change.identity_text)

    def _cursor(self, place: StateKey) -> CascadeCursor:
        return CascadeCursor.of(self.finishing.runtime.engine.read_state([place], consistent=True).get(place))

    def _send(self, writes: list[GuardedWrite]) -> Refused | None:
        return send(self.finishing.runtime, writes)

    def _keep(self, removed: Removed, place: StateKey, cursor: CascadeCursor) -> None:
        """The parent exists again: keeps its remaining children, also when the record is delivered again."""
        self.outcome.count(KEPT, removed.route.name)
        self._tallies(removed).unchanged += 1
        self._end(place, cursor)

    def _page(self, removed: Removed, cursor: CascadeCursor) -> tuple[list[DeleteSource], CascadeCursor]:
        """The next children that fit one transaction, and the cursor after them."""
        templates = children_of(removed.route)
        names = [key.template for key in templates]
        index = names.index(cursor.child) if cursor.child in names else 0
        after = cursor.after if cursor.child in names else None
        child = templates[index]
        most = max(self.finishing.runtime.chunk_actions - GUARDS, 1)
        begins = sort_prefix(child, removed.fields)
        page = self.finishing.runtime.engine.page(child.table, removed.newest.item[1], begins, after, most)
        children, cut = self._fitting(removed, child, page)
        if cut is not None:
            return children, CascadeCursor(child=child.template, after=cut)
        if page.after is not None:
            return children, CascadeCursor(child=child.template, after=page.after)
        last = index + 1 == len(templates)
        return children, CascadeCursor(done=True) if last else CascadeCursor(child=names[index + 1])

    def _fitting(self, removed: Removed, child: Key, page: Page) -> tuple[list[DeleteSource], Any]:
        """The deletions that fit, and the sort key of the last one if some do not fit."""
        deletions = list(self._deletions(removed, child, page))
        sizes = 0
        for count, deletion in enumerate(deletions):
            sizes += estimated_bytes(deletion)
            if count and sizes > BYTES_PLANNED_MAX:
                return deletions[:count], deletions[count - 1].key[2]
        return deletions, None

    @staticmethod
    def _deletions(removed: Removed, child: Key, page: Page) -> Iterable[DeleteSource]:
        change, table, at = removed.newest, child.table, _seconds(removed.newest)
        for image in page.items:
            key = (table.name, decode(image[table.partition]), decode(image[str(table.sort)]))
            if child_fields(child, removed.fields, *key[1:]) is not None:
                yield DeleteSource(key, image, change.version_text, at)

    def _tallies(self, removed: Removed) -> Tallies:
        return self.outcome.tally(removed.route.name)


def _seconds(change: Change) -> float:
    """The time of a change, 0 where its record has none."""
    try:
        return change.at.timestamp()
    except RecordError:
        return 0


class CascadeSegments:
    """Works on the fan-out of one cascade."""

    def __init__(self, route: Route, job: Job, finishing: Finishing) -> None:
        self.removed = removed_of(route, job, finishing.change_of)
        self.finishing = finishing

    def page(self, lane: JobSegment) -> Paged:
        """Removes the next pages of children. Raises as ``Children.remove_pages``."""
        del lane  # the cursor moves with the children, and the lane behind it
        outcome = Outcome()
        cursor = Children(self.finishing, outcome).remove_pages(self.removed, PAGES_A_MOVE)
        name = self.removed.route.name
        kept = outcome.counts.get(KEPT, Counter())[name]
        through = None if cursor.done else f"{cursor.revision:0{REVISION_DIGITS}}"
        return Paged(through, {REMOVED: outcome.tally(name).removed, **({KEPT: kept} if kept else {})})

    def ended(self, counts: Mapping[str, int]) -> None:
        """Nothing follows."""
