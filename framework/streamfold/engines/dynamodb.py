"""The DynamoDB engine: plans carried out through boto3, on AWS or on DynamoDB Local."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from streamfold.change import ItemKey
from streamfold.engines import Entries, Finished, Page, StoredItem
from streamfold.engines.dynamodb_client import make_client, missing_tables, unreachable
from streamfold.engines.expressions import Action, Expression, Requests, state_attributes
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, told
from streamfold.key import KeyValue
from streamfold.real_names import check_real_names
from streamfold.table import CONTRIBUTORS, STATE, Table
from streamfold.values import decode, encode
from streamfold.writes import (
    CONDITION,
    CONFLICT,
    VALIDATION,
    AbsentSource,
    PutRow,
    Reason,
    Refused,
    RowKey,
    StateKey,
    Write,
)

BATCH_GET_KEYS_MAX = 100
BATCH_WRITE_ROWS_MAX = 25
STATEMENTS_MAX = 25
"""Limits of BatchGetItem, BatchWriteItem and BatchExecuteStatement (API Reference)."""
UNPROCESSED_ROUNDS_MAX = 8

OPERATIONS = {"Update": "update_item", "Put": "put_item", "Delete": "delete_item"}
THROTTLED = {
    "ProvisionedThroughputExceededException": "ProvisionedThroughputExceeded",
    "ThrottlingException": "ThrottlingError",
    "RequestLimitExceeded": "ThrottlingError",
    "TransactionConflictException": "TransactionConflict",
    "TransactionInProgressException": "TransactionConflict",
    "ReplicatedWriteConflictException": "TransactionConflict",
}
BUSY = (*CONFLICT, "RequestLimitExceeded", "InternalServerError")
"""Codes of a statement in a batch that is worth another try (API Reference, BatchStatementError)."""
PERMANENT = ("ValidationException", "ItemCollectionSizeLimitExceededException", "IdempotentParameterMismatchException")
FORBIDDEN = ("AccessDeniedException", "AccessDenied")
T = TypeVar("T")


class DynamoEngine:
    """DynamoDB behind the engine protocol. ``tables`` maps logical names to the table and its real name.

    ``regional`` makes the client of a table that is in another region, when that is first used.
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
        self._regional = regional
        self._others: dict[str, Any] = {}
        self.requests = Requests({**tables, STATE.name: (STATE, state_table)}, state_table)
        self._pause = pause

    def close(self) -> None:
        for client in (self.client, *self._others.values()):
            client.close()

    def _client(self, place: RowKey | StateKey) -> Any:
        """The client of the region that a row's table is in."""
        region = None if isinstance(place, StateKey) else self.requests.tables[place[0]][0].region
        if region is None:
            return self.client
        if region not in self._others:
            self._others[region] = self._regional(region)
        return self._others[region]

    def transact(self, writes: Sequence[Write], expires_at: int) -> Refused | None:
        try:
            actions = [self.requests.action(write, expires_at) for write in writes]
        except HandlerError:
            return Refused(tuple(self._unstorable(write, expires_at) for write in writes))
        # One write alone costs half of what it costs in a transaction; a check has no call of its own.
        if len(actions) == 1 and not isinstance(writes[0], AbsentSource):
            ((kind, arguments),) = actions[0].items()
            return self._sent(1, getattr(self._client(writes[0].key), OPERATIONS[kind]), arguments)
        return self.send(actions)

    def send(self, actions: Sequence[Action]) -> Refused | None:
        """Carries out actions in one transaction."""
        return self._sent(len(actions), self.client.transact_write_items, {"TransactItems": actions})

    def _sent(self, actions: int, operation: Callable[..., Any], arguments: Mapping[str, Any]) -> Refused | None:
        try:
            operation(**arguments)
            return None
        except ClientError as error:
            return self._refused(error, actions)
        except BotoCoreError as error:
            raise unreachable(error) from error

    def _unstorable(self, write: Write, expires_at: int) -> Reason | None:
        try:
            self.requests.action(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))
        return None

    def put_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        latest = {row.key: row for row in rows}
        failed: list[RowKey] = []
        for some in _cut(latest.values(), BATCH_WRITE_ROWS_MAX):
            requests: dict[str, list[Any]] = {}
            for row in some:
                requests.setdefault(self.requests.real_name(row.key[0]), []).append(
                    {"PutRequest": {"Item": self.requests.item(row)}}
                )
            failed += self._put_some(some, requests)
        return failed

    def _put_some(self, rows: Sequence[PutRow], requests: dict[str, list[Any]]) -> list[RowKey]:
        for attempt in range(UNPROCESSED_ROUNDS_MAX):
            try:
                requests = self.client.batch_write_item(RequestItems=requests).get("UnprocessedItems") or {}
            except ClientError as error:
                refused = self._refused(error, 1)
                if refused.reasons[0] and refused.reasons[0].code not in CONFLICT:
                    return self._put_singly(rows)
            except BotoCoreError as error:
                raise unreachable(error) from error
            if not requests:
                return []
            self._pause(0.05 * 2**attempt)
        left = [_plain_item(request["PutRequest"]["Item"]) for some in requests.values() for request in some]
        return [row.key for row in rows if _plain_item(self.requests.item(row)) in left]

    def _put_singly(self, rows: Sequence[PutRow]) -> list[RowKey]:
        """A call that is refused as a whole says not which row is to blame: one by one only that one fails."""
        return [row.key for row in rows if self.transact([row], 0) is not None]

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        removed: list[RowKey] = []
        for some in _cut(dict.fromkeys(rows), STATEMENTS_MAX):
            left = some
            for attempt in range(UNPROCESSED_ROUNDS_MAX):
                left = self._remove_some(left, removed)
                if not left:
                    break
                self._pause(0.05 * 2**attempt)
            else:
                raise EngineUnavailable(f"{len(left)} empty rows were not removed in {UNPROCESSED_ROUNDS_MAX} tries.")
        return removed

    def _remove_some(self, rows: Sequence[RowKey], removed: list[RowKey]) -> list[RowKey]:
        """Adds to ``removed``, and returns the rows to try again.

        A row that is not there is no error, but is not returned either (Developer Guide, ql-reference.delete).
        """
        answer = self._call(self.client.batch_execute_statement, Statements=[self._removal(key) for key in rows])
        left: list[RowKey] = []
        for key, response in zip(rows, answer["Responses"], strict=True):
            code = response.get("Error", {}).get("Code")
            if code in BUSY:
                left.append(key)
            elif code is None and "Item" in response:
                removed.append(key)
            elif code not in (None, CONDITION):
                message = response["Error"].get("Message", "")
                raise (
                    self._missing()
                    if code == "ResourceNotFound"
                    else EngineError(f"DynamoDB refused the call with {code}: {_said(code, message)}")
                )
        return left

    def _removal(self, key: RowKey) -> dict[str, Any]:
        attributes = self.requests.key(key)
        where = " AND ".join(f'"{name}" = ?' for name in [*attributes, CONTRIBUTORS])
        table = self.requests.real_name(key[0])
        return {
            "Statement": f'DELETE FROM "{table}" WHERE {where} RETURNING ALL OLD *',  # noqa: S608 - names quoted, values bound
            "Parameters": [*attributes.values(), {"N": "0"}],
        }

    def forget(self, finished: Finished) -> None:
        for some in _cut(finished.items(), STATEMENTS_MAX):
            statements = [self._forgetting(key, texts) for key, texts in some]
            answer = self._call(self.client.batch_execute_statement, Statements=statements)
            for response in answer["Responses"]:
                if (code := response.get("Error", {}).get("Code")) not in (None, CONDITION, *BUSY):
                    message = response["Error"].get("Message", "")
                    raise EngineError(f"DynamoDB refused the call with {code}: {_said(code, message)}")

    def _forgetting(self, key: StateKey, texts: Mapping[str, str]) -> dict[str, Any]:
        names = [f'"{handler}.u"' for handler in texts]
        removes = " ".join(f"REMOVE {name}" for name in names)
        where = " AND ".join(f"{name} = ?" for name in ('"pk"', '"sk"', *names))
        return {
            "Statement": f'UPDATE "{self.requests.state_table}" {removes} WHERE {where}',
            "Parameters": [*state_attributes(key).values(), *({"S": text} for text in texts.values())],
        }

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        found: dict[StateKey, dict[str, Any]] = {}
        places = [state_attributes(key) for key in dict.fromkeys(keys)]
        for plain in self._batch_get(self.requests.state_table, places, consistent=consistent):
            found[StateKey(plain.pop("pk"), plain.pop("sk"))] = plain
        return found

    def read_rows(self, keys: Iterable[RowKey]) -> dict[RowKey, dict[str, Any]]:
        by_table: dict[str, dict[RowKey, dict[str, Any]]] = {}
        for key in keys:
            by_table.setdefault(key[0], {})[key] = self.requests.key(key)
        found: dict[RowKey, dict[str, Any]] = {}
        for name, places in by_table.items():
            attributes = self.requests.tables[name][0].attributes
            known = {tuple(key[1 : len(attributes) + 1]): key for key in places}
            for row in self._batch_get(self.requests.real_name(name), list(places.values()), consistent=True):
                found[known[tuple(row[attribute] for attribute in attributes)]] = row
        return found

    def _batch_get(
        self, table: str, places: Sequence[Mapping[str, Any]], *, consistent: bool
    ) -> Iterator[dict[str, Any]]:
        for some in _cut(places, BATCH_GET_KEYS_MAX):
            requests: dict[str, Any] = {table: {"Keys": some, "ConsistentRead": consistent}}
            for attempt in range(UNPROCESSED_ROUNDS_MAX):
                answer = self._call(self.client.batch_get_item, RequestItems=requests)
                yield from map(_plain_item, answer["Responses"].get(table, ()))
                requests = answer.get("UnprocessedKeys") or {}
                if not requests:
                    break
                self._pause(0.05 * 2**attempt)
            else:
                raise EngineUnavailable(f"Table {table} is throttled: not read in {UNPROCESSED_ROUNDS_MAX} tries.")

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        values = {":partition": {"S": wanted.partition}} | ({":after": {"S": wanted.after}} if wanted.after else {})
        found = self._call(
            self.client.query,
            TableName=self.requests.state_table,
            KeyConditionExpression=f"pk = :partition{' AND sk > :after' if wanted.after else ''}",
            ExpressionAttributeValues=values,
            ScanIndexForward=not wanted.descending,
            Limit=wanted.most,
            ConsistentRead=True,
        )
        return [(item["sk"]["S"], item["s"]["S"]) for item in found["Items"]]

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        item = state_attributes(key) | encode({**attributes, "r": revision + 1})["M"]
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(pk)"}
        if revision:
            condition = {"ConditionExpression": "r = :seen", "ExpressionAttributeValues": {":seen": encode(revision)}}
        try:
            self.client.put_item(TableName=self.requests.state_table, Item=item, **condition)
            return True
        except ClientError as error:
            refused = self._refused(error, 1)
            if refused.reasons[0] and refused.reasons[0].code == CONDITION:
                return False
            raise EngineUnavailable(f"State item {told(key)} could not be written: {told(error)}") from error
        except BotoCoreError as error:
            raise unreachable(error) from error

    def read_source(self, item: ItemKey) -> StoredItem | None:
        real_name = self.requests.real_name(item[0])
        try:
            found = self._client(item).get_item(TableName=real_name, Key=self.requests.key(item), ConsistentRead=True)
        except ClientError as error:
            if error.response["Error"]["Code"] in FORBIDDEN:
                raise EngineError(
                    f"Source items of table {real_name} may not be read: dynamodb:GetItem on it is needed. "
                    f"{error.response['Error'].get('Message', '')}"
                ) from error
            raise self._fatal(error) from error
        except BotoCoreError as error:
            raise unreachable(error) from error
        source: StoredItem | None = found.get("Item")
        return source

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        real_name, client = self.requests.real_name(table.name), self._client((table.name, "", None))
        if partition is None:
            yield from self._pages(client, "scan", TableName=real_name, ConsistentRead=True)
            return
        yield from self._pages(
            client,
            "query",
            TableName=real_name,
            ConsistentRead=True,
            KeyConditionExpression="#partition = :partition",
            ExpressionAttributeNames={"#partition": table.partition},
            ExpressionAttributeValues={":partition": encode(partition)},
        )

    def page(self, table: Table, partition: KeyValue, begins: str, after: KeyValue | None, limit: int) -> Page:
        use = Expression()
        condition = f"{use.name(table.partition)} = {use.value(partition)}"
        if begins and table.sort:
            condition += f" AND begins_with({use.name(table.sort)}, {use.value(begins)})"
        start = {} if after is None else {"ExclusiveStartKey": self.requests.key((table.name, partition, after))}
        answer = self._call(
            self._client((table.name, partition, None)).query,
            TableName=self.requests.real_name(table.name),
            ConsistentRead=True,
            Limit=limit,
            KeyConditionExpression=condition,
            **use.arguments(),
            **start,
        )
        last = answer.get("LastEvaluatedKey")
        return Page(answer["Items"], decode(last[table.sort]) if last and table.sort else None)

    def state_items(self) -> Iterator[StoredItem]:
        return self._pages(self.client, "scan", TableName=self.requests.state_table, ConsistentRead=True)

    def _pages(self, client: Any, operation: str, **arguments: Any) -> Iterator[StoredItem]:
        try:
            for page in client.get_paginator(operation).paginate(**arguments):
                yield from page["Items"]
        except ClientError as error:
            raise self._fatal(error) from error
        except BotoCoreError as error:
            raise unreachable(error) from error

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return operation(**arguments)
        except ClientError as error:
            self._refused(error, 1)
            raise EngineUnavailable(f"DynamoDB refused a call: {told(error)}") from error
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
            return Refused((Reason(CONDITION, _plain_item(item) if item else None),))
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
        return EngineError(f"DynamoDB refused the call with {code}: {_said(code, message)}")

    def _missing(self) -> EngineError:
        tables = self.requests.tables.items()
        return missing_tables({real: self._client((name, "", None)) for name, (_, real) in tables})


def _reason(reason: Mapping[str, Any]) -> Reason | None:
    if reason["Code"] == "None":
        return None
    item = reason.get("Item")
    return Reason(reason["Code"], _plain_item(item) if item else None, reason.get("Message") or "")


def _said(code: str, message: str) -> str:
    """What a refusal says: whom it forbids what is no content of an item, and all else may be."""
    return message if code in FORBIDDEN else told(message)


def _plain_item(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: decode(value) for name, value in item.items()}


def _cut(values: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some
