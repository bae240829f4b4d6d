"""Tests without AWS: an application under injected faults, and DynamoDB's table, stream and mapping in process.

``check`` proves handlers in one call, ``Twin`` tests single steps, ``change`` makes the argument of a handler of
changes, and ``now`` that of a handler that asks for the time. Below them are twins, which behave as AWS documents,
need no server and read no clock. ``TableTwin`` takes writes and refuses invalid ones like DynamoDB. Its
``StreamTwin`` holds the records of the writes in the format of Lambda, and ``KinesisTwin`` the same changes in the
format of Kinesis. ``MappingTwin`` delivers records to a function; batches that it gives up go to a ``BucketTwin``,
``QueueTwin`` or ``TopicTwin``. ``Clock`` is their only time.

The names of the prover (``streamfold.proofs``) are imported at their first use, so that a test with a twin need not
wait for the prover.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamfold.testing.destinations import BucketTwin, Discarded, QueueTwin, TopicTwin
from streamfold.testing.items import (
    CheckItem,
    ConditionFailed,
    DeleteItem,
    HandlerFails,
    PutItem,
    RecordsTrimmed,
    TransactionCancelled,
    TwinError,
    UpdateItem,
    WriteRefused,
)
from streamfold.testing.mapping import Died, Invocation, MappingTwin, Throttled
from streamfold.testing.mapping_settings import MappingSettings
from streamfold.testing.stream import Clock, KinesisTwin, Shard, StreamTwin, piped
from streamfold.testing.table import TableTwin
from streamfold.testing.twin import Twin, Write, change, now

if TYPE_CHECKING:
    from streamfold.proofs.check import FAULTS, Diverged, Proof, Scenario, check, check_scenario
    from streamfold.proofs.determinism import NotDeterministic

__all__ = [
    # an application, step by step and as a whole
    "Twin", "change", "now", "check", "Proof", "Write", "Scenario", "check_scenario", "Diverged",
    "NotDeterministic", "HandlerFails", "FAULTS",
    # the table, its stream and their time
    "TableTwin", "StreamTwin", "Shard", "Clock", "KinesisTwin", "piped",
    # the actions of a transaction
    "PutItem", "UpdateItem", "DeleteItem", "CheckItem",
    # the mapping, its invocations, and its failure destinations
    "MappingTwin", "MappingSettings", "Invocation", "Discarded", "BucketTwin", "QueueTwin", "TopicTwin",
    # errors that a function under test may raise
    "Died", "Throttled",
    # errors of the twins
    "TwinError", "WriteRefused", "ConditionFailed", "TransactionCancelled", "RecordsTrimmed",
]  # fmt: skip

PROVER = {
    **dict.fromkeys(("check", "Proof", "Scenario", "check_scenario", "Diverged", "FAULTS"), "streamfold.proofs.check"),
    "NotDeterministic": "streamfold.proofs.determinism",
}
"""The modules of names that belong to the prover."""


def __getattr__(name: str) -> Any:
    if name not in PROVER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PROVER[name]), name)
