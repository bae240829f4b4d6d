"""DynamoDB's table and stream in process, for tests: they behave as AWS documents, need no server and read no clock.

``TableTwin`` takes writes and refuses what DynamoDB refuses; its ``StreamTwin`` holds the records that come of them, in
the form in which Lambda delivers them; ``Clock`` is the only time that they know.
"""

from streamfold.testing.actions import CheckItem, DeleteItem, PutItem, UpdateItem
from streamfold.testing.clock import Clock
from streamfold.testing.errors import ConditionFailed, RecordsTrimmed, TransactionCancelled, TwinError, WriteRefused
from streamfold.testing.stream import Shard, StreamTwin
from streamfold.testing.table import TableTwin

__all__ = [
    # the table, its stream and their time
    "TableTwin", "StreamTwin", "Shard", "Clock",
    # what a transaction is made of
    "PutItem", "UpdateItem", "DeleteItem", "CheckItem",
    # what is raised
    "TwinError", "WriteRefused", "ConditionFailed", "TransactionCancelled", "RecordsTrimmed",
]  # fmt: skip
