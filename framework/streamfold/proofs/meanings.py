"""The names of all faults with their meanings, for the readers of a proof's table."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from streamfold.proofs import driver, faults, handlers, histories, store
from streamfold.testing.errors import TwinError

MEANINGS: Mapping[str, str] = {
    "refused": "the store refuses a transaction for good",
    "conflict": "the store refuses a transaction because another one is under way",
    "throttled": "the store refuses a transaction because its table is throttled",
    "applied-twice": "a call is carried out twice",
    "unavailable": "a call is not carried out, and the caller does not know",
    "answer-lost": "a call is carried out, and the caller does not know",
    "dies-before": "the process dies before a call",
    "dies-after": "the process dies after a call, before it notes the answer",
    "lands-late": "a call seems to fail, and is carried out later",
    "dies-and-lands-late": "the process dies, and its last call is carried out later",
    "half-applied": "a call for several items is carried out for half of them",
    "stale-read": "a read finds what was there before the last write",
    "lands-at-the-next-call": "a late call is carried out at the next call",
    "lands-after-many-calls": "a late call is carried out many calls later",
    "lands-at-the-end": "a late call is carried out once nothing else fails any more",
    "last-first": "of the calls in flight the last one is made first",
    "all-before-an-answer": "all calls in flight are made before one is answered",
    "all-before-an-answer-backwards": "the same, the last call first",
    "arrives-late": "a record of Kinesis comes behind some later ones",
    "arrives-last": "a record of Kinesis comes behind all others",
    "arrives-twice": "a record of Kinesis comes a second time",
    "bell-lost": "the message that a fan-out is to go on is lost",
    "bell-twice": "the message that a fan-out is to go on comes twice",
    "batches-of-1": "a batch has one record",
    "batches-of-2": "a batch has two records",
    "batches-of-3": "a batch has three records",
    "batches-of-7": "a batch has seven records",
    "each-record-twice": "a batch has each of its records twice",
    "rewound": "after a batch, the shard is read again from a few records before",
    "checkpoint-lost": "after a batch, the shard is read again from its beginning",
    "skipped": "a record is given up untried, and redriven at the end",
    "shuffled": "a batch has its records in any order",
    "out-of-time": "the time of an invocation ends after a few calls",
    "repair": "an item is repaired, before a batch or between two calls of one",
    "other-process": "another process of the same application takes the next batch",
    "overlap": "another invocation processes the same batch, between two calls of this one",
    "other-shard": "another invocation processes a batch of another shard, between two calls of this one",
    "written-meanwhile": "the application writes an item, between two calls of an invocation",
    "redriven-early": "records that were given up are redriven before the last ones are delivered",
    "redriven-shuffled": "records that were given up are redriven in any order",
    "redriven-twice": "records that were given up are redriven twice",
    "replayed": "records that were given up are delivered again as they were, in place of a redrive",
    "late-writes-land-last": "late calls are carried out after the last record",
    "all-delivered-again": "at the end, every record is delivered once more",
    "put-back": "the application puts an item with the attributes that handlers derived onto it",
    "put-back-old": "the same, with the attributes that were derived onto it first",
    "put-back-unmarked": "the same, without the mark of whose attributes they are",
    "raises-once": "a handler raises at one call",
    "raises-for-one": "a handler raises for one item, as often as it comes",
    "raises-always": "a handler raises at every call, until it is corrected",
    "switched-off": "a handler is switched off for a batch, and its records are parked",
}
"""By the names of all faults, in their order."""

STORE = tuple(dict.fromkeys(fault for options in faults.FAULTS.values() for fault in options))
DELIVERY = (
    *histories.ARRIVAL,
    *driver.QUEUE_FAULTS,
    *driver.BATCHES,
    *driver.DELIVERY,
    *driver.MEANWHILE,
    *driver.REDRIVE,
    *driver.END,
)
FAULTS = tuple(dict.fromkeys((*STORE, *faults.LANDING, *faults.OTHERWISE, *DELIVERY, *store.PUTS, *handlers.FAULTS)))
"""Every fault: of the store's calls, of deliveries, of the application's writes, of user code."""


def chosen(names: Collection[str] | None) -> frozenset[str] | None:
    """The names of these faults as a set; None for all. Raises ``TwinError`` for a name that is no fault."""
    if names is None:
        return None
    for name in names:
        if name not in FAULTS:
            near = get_close_matches(name, FAULTS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TwinError(f"Fault {name!r} is not known.{hint} Expected some of: {', '.join(FAULTS)}.")
    return frozenset(names)
