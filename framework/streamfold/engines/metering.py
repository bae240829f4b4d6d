"""What calls of a boto3 client consume, as DynamoDB answers it: whoever makes the calls notices nothing.

DynamoDB bills a call that it refuses, such as a write under its condition, but tells no units: such calls are counted.
DynamoDB Local tells too little: nothing of PartiQL statements, and of a transaction the units of one write a table.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

ASKS = "provide-client-params.dynamodb.*"
ANSWERED = "after-call.dynamodb.*"
"""Events of botocore: before a call's parameters are checked, and when its answer was read."""
READS = frozenset({"BatchGetItem", "GetItem", "Query", "Scan", "TransactGetItems"})
"""Operations whose units are reads; those of all others are writes, unless the answer says it itself."""
ASKED = "ReturnConsumedCapacity"


class Consumed(NamedTuple):
    """What calls have consumed."""

    read: float = 0  # units
    write: float = 0
    requests: int = 0  # calls that were answered, with refusals
    untold: int = 0  # of these: their units are not known
    retries: int = 0  # attempts before these answers: a busy table shows here first


class Meter:
    """Adds up what the calls of boto3's DynamoDB clients consume, over all threads, until it is closed."""

    def __init__(self, *clients: Any) -> None:
        self._clients = clients
        self._lock = Lock()
        self._consumed = Consumed()
        for events in self._events():
            events.register(ASKS, self._ask)
            events.register(ANSWERED, self._answered)

    @property
    def consumed(self) -> Consumed:
        """What was consumed since the begin, or since it was last taken."""
        return self._consumed

    def take(self) -> Consumed:
        """What was consumed since it was last taken; counting begins anew."""
        with self._lock:
            taken, self._consumed = self._consumed, Consumed()
        return taken

    def close(self) -> None:
        """Leaves the clients as they were."""
        for events in self._events():
            events.unregister(ASKS, self._ask)
            events.unregister(ANSWERED, self._answered)

    def _events(self) -> list[Any]:
        return [client.meta.events for client in self._clients]

    def _ask(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        """Asks for the units where the operation can tell them. A caller that wants more detail keeps it."""
        if _tells(model) and params.get(ASKED) in (None, "NONE"):
            params[ASKED] = "TOTAL"

    def _answered(self, parsed: Mapping[str, Any], model: Any, **_: Any) -> None:
        told = parsed.get("ConsumedCapacity") or []
        read, write = _units(model.name, [told] if isinstance(told, Mapping) else told)
        retries = parsed.get("ResponseMetadata", {}).get("RetryAttempts", 0)
        untold = _tells(model) and not told
        with self._lock:
            had = self._consumed
            self._consumed = Consumed(
                had.read + read, had.write + write, had.requests + 1, had.untold + untold, had.retries + retries
            )


def _tells(model: Any) -> bool:
    """Whether an operation can tell its units."""
    return model.input_shape is not None and ASKED in model.input_shape.members


def _units(operation: str, told: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The read and write units of an answer, over its tables."""
    read = write = 0.0
    for table in told:
        reads, writes = table.get("ReadCapacityUnits"), table.get("WriteCapacityUnits")
        if reads is None and writes is None:
            whole = table.get("CapacityUnits", 0.0)
            reads, writes = (whole, 0.0) if operation in READS else (0.0, whole)
        read += reads or 0.0
        write += writes or 0.0
    return read, write
