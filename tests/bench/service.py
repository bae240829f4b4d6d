"""A DynamoDB that only takes its time: everything of boto3 runs but sockets, TLS and the parsing of HTTP.

Reads find nothing but the manifest and the items that it was given. Every write is taken but those of such an item. A
transaction that meets an item of another in flight is refused.
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

from streamfold.keys.table import MARKED, MARKER

SECONDS = {"TransactWriteItems": 0.020, "BatchExecuteStatement": 0.020, "BatchWriteItem": 0.008, "BatchGetItem": 0.008}
OTHER_SECONDS = 0.005
"""What a request takes, about as in a function beside its table."""
CANCELLED = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"
CONFLICT, TAKEN = {"Code": "TransactionConflict"}, {"Code": "None"}


class Service:
    """Answers requests after a while, and counts them."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.writes = self.conflicts = 0
        self.kept: dict[tuple[str, str], str] = {}  # state items by ``pk`` and ``sk``, encoded; they refuse writes
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
            self._keep(operation, asked)
            free = self._busy.isdisjoint(keys)
            self._busy.update(keys if free else ())
            self.conflicts += not free
        time.sleep(SECONDS.get(operation, OTHER_SECONDS))
        if not free:
            return _cancelled(request.url, [CONFLICT] * len(asked["TransactItems"]))
        with self._lock:
            self._busy.difference_update(keys)
        if operation == "TransactWriteItems" and any(
            reasons := [self._refusal(item) for item in asked["TransactItems"]]
        ):
            return _cancelled(request.url, [reason or TAKEN for reason in reasons])
        return _answer(request.url, 200, self._found(operation, asked))

    def _keep(self, operation: str, asked: dict[str, Any]) -> None:
        """Keeps the manifest, the identity of the state and the markers, which a process writes once."""
        if operation == "PutItem" and asked["Item"].get("pk", {}).get("S", "").startswith(("manifest#", "identity")):
            self.kept[_place(asked["Item"])] = json.dumps(asked["Item"])
        if operation == "UpdateItem" and MARKER in (key := _place(asked["Key"])):
            text = asked["ExpressionAttributeValues"][asked["UpdateExpression"].rpartition(" ")[2]]
            self.kept[key] = json.dumps({**asked["Key"], MARKED: text})

    def _found(self, operation: str, asked: dict[str, Any]) -> str:
        """The answer, joined of what is encoded: the service's own work is none of the client's."""
        if operation == "BatchGetItem":
            ((table, wanted),) = asked["RequestItems"].items()
            items = (self.kept.get(_place(key)) for key in wanted["Keys"])
            return f'{{"Responses": {{"{table}": [{", ".join(filter(None, items))}]}}}}'
        if operation == "BatchExecuteStatement":
            return json.dumps({"Responses": [{} for _ in asked["Statements"]]})
        if operation == "DescribeTable":
            return '{"Table": {"TableId": "1"}}'
        return '{"Items": [], "Count": 0}' if operation in ("Query", "Scan") else "{}"

    def _refusal(self, item: dict[str, Any]) -> dict[str, Any] | None:
        (write,) = item.values()
        found = self.kept.get(_place(write.get("Key") or write["Item"]))
        return {"Code": "ConditionalCheckFailed", "Item": json.loads(found)} if found else None


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


def _place(key: dict[str, Any]) -> tuple[str, str]:
    partition, sort = ("pk", "sk") if "pk" in key else ("PK", "SK")
    return key[partition]["S"], key[sort]["S"]


def _cancelled(url: str, reasons: list[dict[str, Any]]) -> AWSResponse:
    return _answer(url, 400, json.dumps({"__type": CANCELLED, "CancellationReasons": reasons}))


def _answer(url: str, status: int, content: str) -> AWSResponse:
    body = content.encode()
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
