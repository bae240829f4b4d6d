"""Has this batch been applied? The changes of a redelivered batch that the ledger has are neither derived nor sent
again.

The guards alone keep every effect single. Without this module a redelivered batch calls every handler, and each of its
transactions is refused, at the price of a commit. So a process checks first, if it has a reason.

A process is sure that its next batch is new, or unsure (``SendingPace.unsure``):

| process | event                               | next   | the failure that this prevents                            |
| ------- | ----------------------------------- | ------ | --------------------------------------------------------- |
| none    | it starts                           | unsure | the process before it died in this very batch             |
| any     | a batch begins                      | unsure | the invocation times out, and nothing notes its end       |
| unsure  | the batch ends, records are retried | unsure | the retry is sent as if it were new, and refused          |
| unsure  | the batch ends, no record is        | sure   | every batch of the process pays for a sample              |

A batch may have been applied (``Redelivery.is_possible``) if its process is unsure:

| batch    | event                              | next     | the failure that this prevents                           |
| -------- | ---------------------------------- | -------- | -------------------------------------------------------- |
| possible | it may fit one transaction         | possible | a sample costs more than the one refusal, and shows less |
| possible | it is larger                       | sampled  | every transaction of it is refused                       |
| sampled  | no item has its newest change      | new      | each batch of an unsure process is read as a whole       |
| sampled  | one has it: the ledger is read     | applied  | handlers and transactions are paid for once more         |
| sampled  | the store does not answer          | possible | a throttled ledger keeps a new batch from being sent     |
| possible | the first transaction goes alone   |          | every call slot sends one that is refused                |
| possible | it is taken                        | new      | the others wait for each other                           |
| possible | it is refused                      | applied  | each other transaction is refused, instead of read       |

An item of an applied batch, by what its ledger item holds:

| ledger item                        | the item is    | the failure that this prevents                           |
| ---------------------------------- | -------------- | -------------------------------------------------------- |
| all changes, plain sums            | applied        | the handlers are called, the step is sent and refused    |
| all changes, and rows made of      | applied, rows  | a process died before it recomputed or copied a row,     |
| entries or copied onto items       | finished again | and no ledger item notes a row that gained an entry      |
| pending work, or a change is       | planned        | an empty row is never removed; a newer change is lost    |
| missing                            |                |                                                          |
| not read                           | planned        | a throttled read keeps the batch back; the guards refuse |
|                                    |                | changes that were applied                                |
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from streamfold.batch.manifest import begin_reading
from streamfold.batch.order import ItemWork
from streamfold.commit.pending import NamedRows, PendingWork
from streamfold.commit.transactions import filled, read_state_in_calls
from streamfold.engines.protocol import StateItems
from streamfold.errors import EngineError, EngineUnavailable, RecordError
from streamfold.ledger.contribution import LedgerItem, needs_no_finishing, stored_rows
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.change import Change, ItemKey
from streamfold.records.envelope import Origins, RawRecord
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import StateKey

SAMPLE = 10
"""Ledger items in the sample that shows whether a batch was applied: ten read units."""
LOOKED_AT = 40
"""Changes from which the sample is taken, because some may be of items without a ledger item."""

T = TypeVar("T")


class ContributionNames:
    """The names of a ledger item's attributes for some handlers, at least one."""

    __slots__ = ("attributes", "contributions", "versions")

    def __init__(self, handlers: Sequence[str]) -> None:
        self.versions = _all_of([handler + ".v" for handler in handlers])
        self.contributions = _all_of([handler + ".s" for handler in handlers])
        self.attributes = 2 * len(handlers)


def _all_of(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Sequence[str]]:
    """A function that gets all of these attributes. It raises ``KeyError`` where one is absent."""
    if len(names) > 1:
        return itemgetter(*names)  # in a third of the time
    return lambda attributes: (attributes[names[0]],)


AppliedItem = tuple[ItemWork, tuple[Route, ...]]
"""An item's work, and the handlers whose contributions one of its ledger items holds."""
AskedItem = tuple[ItemWork, tuple[Route, ...], ContributionNames, str]
"""The same, with the handlers' names in the ledger item, and the version of the item's newest change."""


class AlreadyApplied(NamedTuple):
    """The changes of a batch that the ledger has."""

    items: Mapping[StateKey, AppliedItem] = MappingProxyType({})  # with all changes applied, by ledger item
    stored: StateItems | None = None  # the other ledger items of the batch; None: they were not all read


NOTHING_APPLIED = AlreadyApplied()


def applied_texts(attributes: Mapping[str, Any], names: ContributionNames, version: str) -> Sequence[str] | None:
    """The contributions of handlers in a ledger item, if it has their steps to a version and no pending work.

    Otherwise None. It makes no ``LedgerItem``: that saves 35,000 instructions for an item of two handlers in a
    redelivered batch (``test_an_item_is_applied_if_all_handlers_have_the_version_and_no_work_is_pending``).
    """
    try:
        if min(names.versions(attributes)) < version:
            return None
        texts: Sequence[str] = names.contributions(attributes)
    except KeyError:
        return None
    if len(attributes) == names.attributes + 2 and "r" in attributes and ("live" in attributes or "ttl" in attributes):
        return texts  # as nearly always: there is nothing else
    return None if any(text and name.endswith(".u") for name, text in attributes.items()) else texts


def _names_deltas(attributes: Mapping[str, Any], routes: Sequence[Route]) -> bool:
    """Whether a ledger item names deltas of its last step: a row may refuse one, and then the step is planned again."""
    return any(route.name + ".p" in attributes for route in routes)


class Redelivery:
    """The question of one batch. The store reads for it while the records are parsed and routed."""

    def __init__(self, runtime: Runtime, some: Iterable[Change]) -> None:
        self.runtime = runtime
        self.is_possible = runtime.pace.unsure
        self.sample = _sample(runtime, some)
        self._read = begin_reading(runtime, self.sample)
        self._found: StateItems | None = None

    def answer(self) -> StateItems | None:
        """The results of the reads: the manifest, the stored schema and the sample.

        None if the store did not answer. The partitions of the sample may be throttled, so the manifest is then read
        alone. Raises ``EngineUnavailable`` if there is no sample.
        """
        try:
            self._found = self._read()
        except EngineUnavailable:
            if not self.sample:
                raise
        return self._found

    def applied(self, work: Mapping[ItemKey, ItemWork], pending_work: PendingWork) -> AlreadyApplied:
        """The changes of a sampled batch that the ledger has. For one that seems new, nothing more is read.

        pending_work: takes the rows of applied items that may have to be recomputed or copied.
        """
        if self._found is None or not self.is_possible:
            return NOTHING_APPLIED
        sampled = [(self._found.get(key, {}), work[item]) for key, item in self.sample.items()]
        self.is_possible = any(
            contribution.version >= each.changes[-1].version_text
            for found, each in sampled
            for contribution in LedgerItem.of(found).contributions.values()
        )
        if not self.is_possible:
            return NOTHING_APPLIED
        asked = _asked(work)
        applied: dict[StateKey, AppliedItem] = {}
        others: dict[StateKey, dict[str, Any]] = {}
        try:
            for found in read_state_in_calls(self.runtime, asked):
                for key, attributes in found.items():
                    each, routes, names, version = asked[key]
                    texts = applied_texts(attributes, names, version)
                    if (
                        texts is not None
                        and not _names_deltas(attributes, routes)
                        and (
                            needs_no_finishing(*texts)
                            or self._takes_pending(key, attributes, (each, routes), texts, pending_work)
                        )
                    ):
                        applied[key] = each, routes
                    else:
                        others[key] = attributes
        except EngineUnavailable:  # the items that were not read are sent, and refused if they were applied
            return AlreadyApplied(applied)
        return AlreadyApplied(applied, others)

    def _takes_pending(
        self,
        key: StateKey,
        attributes: dict[str, Any],
        applied: AppliedItem,
        texts: Sequence[str],
        pending_work: PendingWork,
    ) -> bool:
        """Has an applied item's rows recomputed and copied. False if its contributions cannot be read."""
        (work, routes), application = applied, self.runtime.application.name
        own = [route for route, text in zip(routes, texts, strict=True) if not needs_no_finishing(text)]
        by_route: list[tuple[Route, NamedRows]] = []
        try:
            found = filled(self.runtime.engine, key, LedgerItem.of(attributes), {route.name for route in own})
            if any(route.name not in found.contributions for route in own):  # the second read did not find the item
                return False
            for route in own:
                named = NamedRows()
                named.add_stored(application, route, work.item, found)
                named.hold(application, route, work.item, stored_rows(found.contributions[route.name].text))
                by_route.append((route, named))
        except EngineError:  # a damaged item is no error of the batch: it is planned, and fails alone
            return False
        for route, named in by_route:
            pending_work.take(named, [route], work.changes)
        return True


def begin(runtime: Runtime, changes: Sequence[Change]) -> Redelivery:
    """Begins to read the state for a batch."""
    return Redelivery(runtime, _spread(runtime, changes))


def begin_with_records(runtime: Runtime, records: Sequence[RawRecord], origins: Origins) -> Redelivery:
    """Begins to read the state for records that are parsed meanwhile. The sample has no malformed record."""
    return Redelivery(runtime, _parsed(_spread(runtime, records), origins))


def _parsed(records: Iterable[RawRecord], origins: Origins) -> Iterator[Change]:
    for record in records:
        with suppress(RecordError):  # it is reported when all of them are parsed
            yield origins.change(record)


def _spread(runtime: Runtime, records: Sequence[T]) -> Sequence[T]:
    """The records from which the sample is taken: none if the process is sure, or if the batch may fit one transaction.

    One is taken from each section of the batch, at a position as if by chance: the batch may repeat a pattern.
    """
    if not runtime.pace.unsure or len(records) <= runtime.chunk_actions:
        return ()
    section = max(len(records) // LOOKED_AT, 1)
    return [records[section * number + crc32(b"%d" % number) % section] for number in range(len(records) // section)]


def _sample(runtime: Runtime, some: Iterable[Change]) -> Mapping[StateKey, ItemKey]:
    """A few items of changes by the keys of their ledger items."""
    known = ((change.item, _groups(runtime, change)) for change in some if change.has_old)  # others are read anyway
    found = [(item, groups) for item, groups in known if groups]
    taken = found[:: -(-len(found) // SAMPLE) or 1]
    # Of several ledger items of an item one, each time that of another group.
    chosen = ((item, groups[number % len(groups)]) for number, (item, groups) in enumerate(taken))
    return {ledger_key(runtime.application.name, group, item): item for item, group in chosen}


def _groups(runtime: Runtime, change: Change) -> Sequence[str]:
    """The groups that keep a ledger item for a change's item here."""
    return list(
        dict.fromkeys(
            route.group
            for route, _ in runtime.application.sources(change.item)
            if route.kind.contributes and runtime.settings.runs(route.name, route.group)
            if runtime.handlers is None or route.name in runtime.handlers
        )
    )


def _asked(work: Mapping[ItemKey, ItemWork]) -> Mapping[StateKey, AskedItem]:
    asked: dict[StateKey, AskedItem] = {}
    known: dict[tuple[Route, ...], ContributionNames] = {}
    for each in work.values():
        for key, routed in each.ledger.items():
            routes = tuple([route for route, _ in routed])
            names = known.get(routes) or known.setdefault(routes, ContributionNames([route.name for route in routes]))
            asked[key] = each, routes, names, each.changes[-1].version_text
    return asked
