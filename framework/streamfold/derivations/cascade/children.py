"""Children of removed items, removed page by page.

Each page is one transaction on three conditions: the parent is absent, the cursor is unchanged, and every child is as
it was read. The cursor is written with the deletions. So a page is refused if it is sent twice, or if it arrives after
its invocation has died. At the end the cursor is done, and a redelivered record removes nothing.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from streamfold.commit.outcome import Outcome, Tallies
from streamfold.commit.transactions import send
from streamfold.derivations.derivation import Finishing
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.protocol import Page
from streamfold.errors import Contended, EngineError, HandlerError, NotStarted, RecordError, damaged, is_of_table
from streamfold.jobs.fan_outs import REMOVED, FanOuts, Paged, record_of
from streamfold.jobs.job import Job, JobSegment
from streamfold.keys.key import Key, child_fields, sort_prefix
from streamfold.ledger.state_keys import event_key, fan_out_id
from streamfold.records.change import Change, item_name
from streamfold.records.values import decode, encode, to_json
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
"""The command of a cascade's job."""

PAGES_MAX = 10_000
"""Pages that one invocation removes for one parent without a fan-out; then the record is redelivered."""
INLINE_PAGES = 20
"""Pages that an invocation removes itself for one parent: about a second. A fan-out removes the rest."""
GUARDS = 2
"""Writes of a page beside its children: the check of the parent, and the cursor."""
START = ""

PAGES_A_MOVE = 10
"""Pages of children for each write of the segment, which costs two write units."""
REVISION_DIGITS = 12


class Removed(NamedTuple):
    """A removed item, whose children a cascade removes."""

    route: Route
    changes: tuple[Change, ...]  # its removals, oldest first
    fields: Fields

    @property
    def newest(self) -> Change:
        """The latest removal, which covers all earlier ones."""
        return self.changes[-1]

    def __str__(self) -> str:
        return f"remove the children of {self.newest.name}"


def job_of(removed: Removed, now: float) -> Job | None:
    """The job that continues a cascade, the same for each removal of its parent; None if no job can keep the record."""
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
    """The removal of a job; ``make`` makes a change of a record.

    Raises ``EngineError`` if the job is not of a cascade.
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
    """The progress of a cascade."""

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
        """The write of this cursor over a revision."""
        if self.done:
            return SwapState(key, {"done": True}, revision)
        after = {} if self.after is None else {"after": to_json(encode(self.after))}
        return SwapState(key, {"child": self.child, **after}, revision)


class Children:
    """Removes the children of removed items. A parent that fails does not affect the others.

    If a table does not answer, or refuses for good, its other parents fail at once: every further page would wait and
    fail too. Parents that exist again are counted under the word ``kept``, and keep their remaining children.
    """

    def __init__(self, finishing: Finishing, outcome: Outcome, kept: str) -> None:
        self.finishing = finishing
        self.outcome = outcome
        self.kept = kept

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
        """Removes at most ``most`` pages of a parent's children; returns the new cursor.

        Raises ``Contended`` if others change the children all the time, and the errors of the engine.
        """
        rounds, key = 0, self._key(removed, removed.newest)
        cursor = self._cursor(key)
        for page in range(most):
            if cursor.done:
                self._tallies(removed).unchanged += not page
                break
            children, following = self._page(removed, cursor)
            changed = following.write(key, cursor.revision)
            refused = self._send([AbsentSource(removed.newest.item), changed, *children])
            if refused is None:
                rounds, cursor = 0, following._replace(revision=cursor.revision + 1)
                self._tallies(removed).removed += len(children)
                continue
            if (parent := refused.reasons[0]) is not None and parent.code == CONDITION:
                self._keep(removed, key, cursor)
                return CascadeCursor(done=True)
            # Others changed the cursor or the children: both are read again, a bounded number of times.
            self.finishing.runtime.back_off(rounds)
            rounds += 1
            if rounds > TRIES_MAX:
                raise Contended(f"Refused {TRIES_MAX} times in a row, because others change the children.")
            cursor = self._cursor(key)
        return cursor

    def _hand_over(self, removed: Removed) -> None:
        """Starts a fan-out for the rest. Without one, the record has to be redelivered."""
        runtime = self.finishing.runtime
        job = job_of(removed, runtime.clock()) if runtime.fans_out else None
        if job is None:
            raise NotStarted("There are more children than one invocation removes; the record has to be redelivered.")
        FanOuts(runtime).start(job, removed.newest.version_text)

    def _end_earlier(self, removed: Removed) -> None:
        """Marks earlier removals of the parent as done: the latest covers them, and they may be redelivered alone."""
        for change in removed.changes[:-1]:
            key = self._key(removed, change)
            self._end(key, self._cursor(key))

    def _end(self, key: StateKey, cursor: CascadeCursor) -> None:
        if not cursor.done:  # refused if another invocation has written the cursor: that one decides
            self._send([CascadeCursor(done=True).write(key, cursor.revision)])

    def _key(self, removed: Removed, change: Change) -> StateKey:
        application = self.finishing.runtime.application.name
        return event_key("cascade", application, removed.route.name, change.item, change.identity_text)

    def _cursor(self, key: StateKey) -> CascadeCursor:
        return CascadeCursor.of(self.finishing.runtime.engine.read_state([key], consistent=True).get(key))

    def _send(self, writes: list[GuardedWrite]) -> Refused | None:
        return send(self.finishing.runtime, writes)

    def _keep(self, removed: Removed, key: StateKey, cursor: CascadeCursor) -> None:
        """Keeps the remaining children of a parent that exists again, also when the record is redelivered."""
        self.outcome.count(self.kept, removed.route.name)
        self._tallies(removed).unchanged += 1
        self._end(key, cursor)

    def _page(self, removed: Removed, cursor: CascadeCursor) -> tuple[list[DeleteSource], CascadeCursor]:
        """The next children that fit one transaction, and the cursor after them."""
        templates: tuple[Key, ...] = removed.route.options
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
        """The deletions that fit, and the sort key of the last one if there are more."""
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
    """The time of a change, 0 if its record has none."""
    try:
        return change.at.timestamp()
    except RecordError:
        return 0


class CascadeSegments:
    """Works on the only segment of a cascade's fan-out."""

    def __init__(self, route: Route, job: Job, finishing: Finishing, kept: str) -> None:
        self.removed = removed_of(route, job, finishing.change_of)
        self.finishing = finishing
        self.kept = kept  # the word under which parents are counted that exist again

    def page(self, segment: JobSegment) -> Paged:
        """Removes the next pages of children. Raises as ``Children.remove_pages``."""
        del segment  # the cursor is written with the children, and the segment after them
        outcome = Outcome()
        cursor = Children(self.finishing, outcome, self.kept).remove_pages(self.removed, PAGES_A_MOVE)
        name = self.removed.route.name
        kept = outcome.counts.get(self.kept, Counter())[name]
        through = None if cursor.done else f"{cursor.revision:0{REVISION_DIGITS}}"
        return Paged(through, {REMOVED: outcome.tally(name).removed, **({self.kept: kept} if kept else {})})

    def ended(self, counts: Mapping[str, int]) -> None:
        """No work follows."""
