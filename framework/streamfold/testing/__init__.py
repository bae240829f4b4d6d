"""Proof without AWS: an application under faults on purpose, and DynamoDB's table, stream and mapping in process.

``check`` proves handlers in one call, ``Twin`` tests single steps, ``change`` makes what a handler of changes gets.
Beneath them are twins that behave as AWS documents, need no server and read no clock:
``TableTwin`` takes writes and refuses what DynamoDB refuses; its ``StreamTwin`` holds the records that come of them, in
the form in which Lambda delivers them, and ``KinesisTwin`` has the same changes as Kinesis delivers them.
``MappingTwin`` delivers them to a function; what it gives up goes to a ``BucketTwin``, ``QueueTwin`` or ``TopicTwin``.
``Clock`` is the only time that they know.

The names of the prover (``streamfold.proofs``) are imported when they are asked for: a test with a twin waits for none
of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamfold.testing.destinations import BucketTwin, Discarded, QueueTwin, TopicTwin
from streamfold.testing.errors import (
    ConditionFailed,
    HandlerFails,
    RecordsTrimmed,
    TransactionCancelled,
    TwinError,
    WriteRefused,
)
from streamfold.testing.items import CheckItem, DeleteItem, PutItem, UpdateItem
from streamfold.testing.kinesis import KinesisTwin, piped
from streamfold.testing.mapping import Died, Invocation, MappingTwin, Throttled
from streamfold.testing.mapping_settings import MappingSettings
from streamfold.testing.stream import Clock, Shard, StreamTwin
from streamfold.testing.table import TableTwin
from streamfold.testing.twin import Twin, Write, change

if TYPE_CHECKING:
    from streamfold.proofs.check import Diverged, Proof, Scenario, check, check_scenario
    from streamfold.proofs.determinism import NotDeterministic
    from streamfold.proofs.meanings import FAULTS

__all__ = [
    # an application, step by step and as a whole
    "Twin", "change", "check", "Proof", "Write", "Scenario", "check_scenario", "Diverged", "NotDeterministic",
    "HandlerFails", "FAULTS",
    # the table, its stream and their time
    "TableTwin", "StreamTwin", "Shard", "Clock", "KinesisTwin", "piped",
    # what a transaction is made of
    "PutItem", "UpdateItem", "DeleteItem", "CheckItem",
    # the mapping, its invocations, and where it leaves what it gives up
    "MappingTwin", "MappingSettings", "Invocation", "Discarded", "BucketTwin", "QueueTwin", "TopicTwin",
    # what a function under test may raise
    "Died", "Throttled",
    # what is raised
    "TwinError", "WriteRefused", "ConditionFailed", "TransactionCancelled", "RecordsTrimmed",
]  # fmt: skip

PROVER = {
    **dict.fromkeys(("check", "Proof", "Scenario", "check_scenario", "Diverged"), "streamfold.proofs.check"),
    "NotDeterministic": "streamfold.proofs.determinism",
    "FAULTS": "streamfold.proofs.meanings",
}
"""The modules of names that belong to the prover."""


def __getattr__(name: str) -> Any:
    if name not in PROVER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PROVER[name]), name)
