"""Proof without AWS: an application under faults on purpose, and DynamoDB's table, stream and mapping in process.

``check`` proves handlers in one call, ``Twin`` tests single steps, ``change`` makes what a handler of changes gets.
Beneath them are twins that behave as AWS documents, need no server and read no clock:
``TableTwin`` takes writes and refuses what DynamoDB refuses; its ``StreamTwin`` holds the records that come of them, in
the form in which Lambda delivers them, and ``KinesisTwin`` tells of the same changes as Kinesis does. ``MappingTwin``
delivers them to a function; what it gives up goes to a ``BucketTwin``, ``QueueTwin`` or ``TopicTwin``. ``Clock`` is the
only time that they know.
"""

from streamfold.testing.actions import CheckItem, DeleteItem, PutItem, UpdateItem
from streamfold.testing.check import Diverged, Proof, Scenario, check, check_scenario
from streamfold.testing.clock import Clock
from streamfold.testing.destinations import BucketTwin, QueueTwin, TopicTwin
from streamfold.testing.determinism import NotDeterministic
from streamfold.testing.errors import (
    ConditionFailed,
    HandlerFails,
    RecordsTrimmed,
    TransactionCancelled,
    TwinError,
    WriteRefused,
)
from streamfold.testing.histories import Write
from streamfold.testing.invocations import Died, Discarded, Invocation, Throttled
from streamfold.testing.kinesis import KinesisTwin, piped
from streamfold.testing.mapping import MappingTwin
from streamfold.testing.mapping_settings import MappingSettings
from streamfold.testing.single_change import change
from streamfold.testing.stream import Shard, StreamTwin
from streamfold.testing.table import TableTwin
from streamfold.testing.twin import Twin

__all__ = [
    # an application, step by step and as a whole
    "Twin", "change", "check", "Proof", "Write", "Scenario", "check_scenario", "Diverged", "NotDeterministic",
    "HandlerFails",
    # the table, its stream and their time
    "TableTwin", "StreamTwin", "Shard", "Clock", "KinesisTwin", "piped",
    # what a transaction is made of
    "PutItem", "UpdateItem", "DeleteItem", "CheckItem",
    # the mapping, what it tells, and where it leaves what it gives up
    "MappingTwin", "MappingSettings", "Invocation", "Discarded", "BucketTwin", "QueueTwin", "TopicTwin",
    # what a function under test may raise
    "Died", "Throttled",
    # what is raised
    "TwinError", "WriteRefused", "ConditionFailed", "TransactionCancelled", "RecordsTrimmed",
]  # fmt: skip
