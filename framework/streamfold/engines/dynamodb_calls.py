"""Calls of DynamoDB: the client of each table's region, the deadline before each call, and what an error means."""

import time
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from streamfold.engines import StoredItem
from streamfold.engines.bodies import Bodies
from streamfold.engines.deadline import Deadline
from streamfold.engines.dynamodb_client import make_client, missing_tables, unreachable
from streamfold.engines.requests import Requests
from streamfold.errors import EngineError, EngineUnavailable, TableThrottled, told
from streamfold.keys.table import STATE, Table, check_real_names
from streamfold.records.values import decode, decode_number
from streamfold.writes.guarded import CONDITION, CONFLICT, Reason, Refused, RowKey, StateKey

THROTTLED = {
    "ProvisionedThroughputExceededException": "ProvisionedThroughputExceeded",
    "ThrottlingException": "ThrottlingError",
    "RequestLimitExceeded": "ThrottlingError",
    "TransactionConflictException": "TransactionConflict",
    "TransactionInProgressException": "TransactionConflict",
    "ReplicatedWriteConflictException": "TransactionConflict",
}
PERMANENT = ("ValidationException", "ItemCollectionSizeLimitExceededException", "IdempotentParameterMismatchException")
FORBIDDEN = ("AccessDeniedException", "AccessDenied")


class Calls:
    """Makes calls for an engine. ``tables`` maps logical names to the table and its real name.

    ``regional`` makes the client of a table that is in another region, when that table is first used.
    """

    def __init__(
        self,
        client: Any,
        tables: Mapping[str, tuple[Table, str]],
        state_table: str,
        pause: Callable[[float], None] = time.sleep,
        regional: Callable[[str], Any] = lambda region: make_client(region=region),
    ) -> None:
        check_real_names(tables, state_table)
        self.client = client
        self.regional = regional
        self._others: dict[str, Any] = {}
        self._lock = Lock()
        self.requests = Requests({**tables, STATE.name: (STATE, state_table)}, state_table)
        self._bodies = {id(client): self._bodies_of(client)}  # by client, which the engine keeps
        self.deadline = Deadline(pause=pause)

    def close(self) -> None:
        for client in (self.client, *self._others.values()):
            client.close()

    def _client(self, place: RowKey | StateKey) -> Any:
        """The client of the region that a row's table is in."""
        region = None if isinstance(place, StateKey) else self.requests.tables[place[0]][0].region
        if region is None:
            return self.client
        with self._lock:  # boto3's default session makes clients for one thread at a time
            if region not in self._others:
                other = self._others[region] = self.regional(region)
                self._bodies[id(other)] = self._bodies_of(other)
            return self._others[region]

    def _bodies_of(self, client: Any) -> Bodies:
        return Bodies(client, [real for _, real in self.requests.tables.values()])

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return self._ask(operation, **arguments)
        except ClientError as error:
            codes = {reason.code for reason in self._refused(error, 1).reasons if reason}
            kind = TableThrottled if codes & {*CONFLICT[1:]} else EngineUnavailable
            raise kind(f"DynamoDB refused a call: {told(error)}") from error

    def _ask(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        """Makes a call. Raises ``NotStarted`` where there is no time for it."""
        self.deadline.begin()
        try:
            return self._made(operation, arguments)
        except BotoCoreError as error:
            raise unreachable(error) from error

    def _made(self, operation: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        bodies = self._bodies.get(id(getattr(operation, "__self__", None)))
        return operation(**arguments) if bodies is None else bodies.call(operation, arguments)

    def _pages(self, client: Any, operation: str, **arguments: Any) -> Iterator[StoredItem]:
        try:
            for page in client.get_paginator(operation).paginate(**arguments):
                yield from page["Items"]
        except ClientError as error:
            raise self._fatal(error) from error
        except BotoCoreError as error:
            raise unreachable(error) from error

    def _refused(self, error: ClientError, actions: int) -> Refused:
        """What a refusal means for each write. Raises for errors that are not about these writes."""
        code = error.response["Error"]["Code"]
        message = error.response["Error"].get("Message", "")
        if code == "TransactionCanceledException":
            reasons = tuple(_reason(reason) for reason in error.response.get("CancellationReasons", ()))
            if not any(reasons):
                raise EngineUnavailable(f"DynamoDB cancelled a transaction without a reason: {told(message)}")
            return Refused(reasons)
        if code == "ConditionalCheckFailedException":
            item = error.response.get("Item")
            return Refused((Reason(CONDITION, plain_item(item) if item else None),))
        if code in THROTTLED:
            return Refused((Reason(THROTTLED[code], None, message),) * actions)
        if code in PERMANENT:
            return Refused((Reason(code, None, message),) * actions)
        raise self._fatal(error)

    def _fatal(self, error: ClientError) -> EngineError:
        code, status = error.response["Error"]["Code"], error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
        message = error.response["Error"].get("Message", "")
        if code == "ResourceNotFoundException":
            return self._missing()
        if status >= 500 or code in THROTTLED:
            return EngineUnavailable(f"DynamoDB failed with {code}: {told(message)}")
        return EngineError(f"DynamoDB refused the call with {code}: {said(code, message)}")

    def _missing(self) -> EngineError:
        tables = self.requests.tables.items()
        clients = {real: self._client((name, "", None)) for name, (_, real) in tables}
        return missing_tables(clients, self.deadline.enough_time)


def _reason(reason: Mapping[str, Any]) -> Reason | None:
    if reason["Code"] == "None":
        return None
    item = reason.get("Item")
    return Reason(reason["Code"], plain_item(item) if item else None, reason.get("Message") or "")


def said(code: str, message: str) -> str:
    """The message of a refusal, marked as item content unless it says what is forbidden to whom."""
    return message if code in FORBIDDEN else told(message)


def plain_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as Python values; most of what the framework keeps is text."""
    return {
        name: value["S"] if "S" in value else decode_number(value["N"]) if "N" in value else decode(value)
        for name, value in item.items()
    }
