"""A DynamoDB that only takes its time: everything of boto3 runs but sockets, TLS and the parsing of HTTP.

Reads find nothing, and every write is taken. A transaction that meets an item of another in flight is refused.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any
from unittest.mock import patch

from botocore.awsrequest import AWSResponse
from botocore.httpsession import URLLib3Session

SECONDS = {"TransactWriteItems": 0.020, "BatchExecuteStatement": 0.020, "BatchWriteItem": 0.008, "BatchGetItem": 0.008}
OTHER_SECONDS = 0.005
"""What a request takes, about as in a function beside its table."""
CANCELLED = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"
CONFLICT = {"Code": "TransactionConflict"}


class Service:
    """Answers requests after a while, and counts them."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.writes = self.conflicts = 0
        self._lock, self._busy = Lock(), set[str]()

    def reset(self) -> None:
        self.requests.clear()
        self.writes = self.conflicts = 0

    def send(self, request: Any) -> AWSResponse:
        target = request.headers["X-Amz-Target"]
        operation = (target.decode() if isinstance(target, bytes) else target).partition(".")[2]
        asked = json.loads(request.body)
        keys = _keys(asked) if operation == "TransactWriteItems" else set()
        with self._lock:
            self.requests[operation] += 1
            self.writes += _writes(operation, asked)
            free = self._busy.isdisjoint(keys)
            self._busy.update(keys if free else ())
            self.conflicts += not free
        time.sleep(SECONDS.get(operation, OTHER_SECONDS))
        if not free:
            reasons = [CONFLICT] * len(asked["TransactItems"])
            return _answer(request.url, 400, {"__type": CANCELLED, "CancellationReasons": reasons})
        with self._lock:
            self._busy.difference_update(keys)
        return _answer(request.url, 200, _found(operation, asked))


def _keys(asked: dict[str, Any]) -> set[str]:
    found = set()
    for item in asked["TransactItems"]:
        (write,) = item.values()
        key = write.get("Key") or {name: write["Item"][name] for name in ("pk", "sk") if name in write["Item"]}
        found.add(json.dumps([write["TableName"], key], sort_keys=True))
    return found


def _writes(operation: str, asked: dict[str, Any]) -> int:
    if operation == "TransactWriteItems":
        return len(asked["TransactItems"])
    if operation == "BatchWriteItem":
        return sum(map(len, asked["RequestItems"].values()))
    if operation == "BatchExecuteStatement":
        return len(asked["Statements"])
    return int(operation in ("PutItem", "UpdateItem", "DeleteItem"))


def _found(operation: str, asked: dict[str, Any]) -> dict[str, Any]:
    if operation == "BatchGetItem":
        return {"Responses": {table: [] for table in asked["RequestItems"]}}
    if operation == "BatchExecuteStatement":
        return {"Responses": [{} for _ in asked["Statements"]]}
    if operation == "DescribeTable":
        return {"Table": {"TableId": "1"}}
    return {"Items": [], "Count": 0} if operation in ("Query", "Scan") else {}


def _answer(url: str, status: int, content: dict[str, Any]) -> AWSResponse:
    body = json.dumps(content).encode()
    headers = {"content-type": "application/x-amz-json-1.0", "content-length": str(len(body))}
    response = AWSResponse(url, status, headers, None)
    response._content = body
    return response


@contextmanager
def stubbed() -> Iterator[Service]:
    """Every boto3 client of this process talks to this service."""
    service = Service()
    with patch.object(URLLib3Session, "send", lambda _, request: service.send(request)):
        yield service
