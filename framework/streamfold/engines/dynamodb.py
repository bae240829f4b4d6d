"""The DynamoDB engine: plans carried out through boto3, on AWS or on DynamoDB Local."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from streamfold.engines import Entries, Finished, Page, StoredItem
from streamfold.engines.dynamodb_client import make_client, missing_tables, unreachable
from streamfold.engines.expressions import ActionRequest, Expression, Requests, state_attributes
from streamfold.engines.keys import stored_key
from streamfold.engines.statements import (
    BUSY,
    DUPLICATE,
    STATEMENTS_MAX,
    UNSTORABLE,
    Answered,
    Statement,
    code,
    forgetting,
    insertion,
    removal,
)
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, TableThrottled, told
from streamfold.keys.key import KeyValue
from streamfold.keys.real_names import check_real_names
from streamfold.keys.table import STATE, Table
from streamfold.records.change import ItemKey
from streamfold.records.values import decode, encode
from streamfold.run import TRIES_MAX, Deadline
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    VALIDATION,
    AbsentSource,
    GuardedWrite,
    PutRow,
    Reason,
    Refused,
    RowKey,
    StateKey,
)

BATCH_GET_KEYS_MAX = 100
"""Keys of one call (API Reference, BatchGetItem)."""

OPERATIONS = {"Update": "update_item", "Put": "put_item", "Delete": "delete_item"}
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
T = TypeVar("T")


class DynamoEngine:
    """DynamoDB behind the engine protocol. ``tables`` maps logical names to the table and its real name.

    ``regional`` makes the client of a table that is in another region, when that is first used. After ``deadline`` no
    call is begun but the notes of ``swap_state``, which say what was done already.
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
        self.deadline = Deadline(pause=pause)

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

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        try:
            actions = [self.requests.action(write, expires_at) for write in writes]
        except HandlerError:
            return Refused(tuple(self._unstorable(write, expires_at) for write in writes))
        # One write alone costs half of what it costs in a transaction; a check has no call of its own.
        if len(actions) == 1 and not isinstance(writes[0], AbsentSource):
            ((kind, arguments),) = actions[0].items()
            return self._sent(1, getattr(self._client(writes[0].key), OPERATIONS[kind]), arguments)
        return self.send(actions)

    def send(self, actions: Sequence[ActionRequest]) -> Refused | None:
        """Carries out actions in one transaction."""
        return self._sent(len(actions), self.client.transact_write_items, {"TransactItems": actions})

    def _sent(self, actions: int, operation: Callable[..., Any], arguments: Mapping[str, Any]) -> Refused | None:
        try:
            self._ask(operation, **arguments)
            return None
        except ClientError as error:
            return self._refused(error, actions)

    def _unstorable(self, write: GuardedWrite, expires_at: int) -> Reason | None:
        try:
            self.requests.action(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))
        return None

    def insert_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        statements: dict[RowKey, Statement] = {}
        unstorable: list[RowKey] = []
        for row in rows:
            try:
                statements.setdefault(row.key, insertion(self.requests, row))
            except HandlerError:
                unstorable.append(row.key)
        answers = self._execute(statements)
        return unstorable + [key for key in statements if key not in answers or not self._is_there(answers[key])]

    def _is_there(self, answer: Answered) -> bool:
        """Whether a row is there after its insertion, that or an earlier one. Raises where no row would be."""
        why = code(answer)
        if why in (*BUSY, *UNSTORABLE):
            return False
        if why not in (None, DUPLICATE):
            raise self._forbidden(answer)
        return True

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        """A row that is not there is no error, but is not returned either (Developer Guide, ql-reference.delete)."""
        statements = {key: removal(self.requests, key) for key in rows}
        answers = self._execute(statements)
        for answer in answers.values():
            if code(answer) not in (None, CONDITION, *BUSY):
                raise self._forbidden(answer)
        if left := [key for key in statements if key not in answers or code(answers[key]) in BUSY]:
            raise EngineUnavailable(f"{len(left)} of {len(statements)} empty rows could not be removed: they are busy.")
        return [key for key, answer in answers.items() if "Item" in answer]

    def _execute(self, statements: Mapping[RowKey, Statement]) -> dict[RowKey, Answered]:
        """What was answered last to each statement; nothing to those that were not sent, or not for certain.

        A busy row is tried again; once one stays so, what follows is tried once, so that pauses do not add up.
        """
        answers: dict[RowKey, Answered] = {}
        tries_max = TRIES_MAX
        try:
            for keys in _cut(statements, STATEMENTS_MAX):
                for _ in self.deadline.tries(tries_max):
                    answers.update(zip(keys, self._answers([statements[key] for key in keys]), strict=True))
                    keys = [key for key in keys if code(answers[key]) in BUSY]  # noqa: PLW2901 - what is left
                    if not keys:
                        break
                else:
                    tries_max = 1
        except EngineUnavailable:
            if not answers:
                raise
        return answers

    def _answers(self, statements: list[Statement]) -> list[Answered]:
        """A call that is refused as a whole says not which statement is to blame: one by one only that one fails."""
        try:
            answers: list[Answered] = self._ask(self.client.batch_execute_statement, Statements=statements)["Responses"]
            return answers
        except ClientError as error:
            (reason,) = self._refused(error, 1).reasons
        assert reason is not None
        if reason.code in BUSY or len(statements) == 1:
            return [{"Error": {"Code": reason.code, "Message": reason.message}}] * len(statements)
        return [answer for statement in statements for answer in self._answers([statement])]

    def _forbidden(self, answer: Answered) -> EngineError:
        if code(answer) == "ResourceNotFound":
            return self._missing()
        why = code(answer) or ""
        return EngineError(f"DynamoDB refused the call with {why}: {_said(why, answer['Error'].get('Message', ''))}")

    def forget(self, finished: Finished) -> None:
        for some in _cut(finished.items(), STATEMENTS_MAX):
            statements = [forgetting(self.requests, key, texts) for key, texts in some]
            for answer in self._call(self.client.batch_execute_statement, Statements=statements)["Responses"]:
                if code(answer) not in (None, CONDITION, *BUSY):
                    raise self._forbidden(answer)

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
            known = {tuple(stored_key(key)[1 : len(attributes) + 1]): key for key in places}
            for row in self._batch_get(self.requests.real_name(name), list(places.values()), consistent=True):
                found[known[tuple(row[attribute] for attribute in attributes)]] = row
        return found

    def _batch_get(
        self, table: str, places: Sequence[Mapping[str, Any]], *, consistent: bool
    ) -> Iterator[dict[str, Any]]:
        for some in _cut(places, BATCH_GET_KEYS_MAX):
            yield from map(_plain_item, self._get_some({table: {"Keys": some, "ConsistentRead": consistent}}))

    def _get_some(self, requests: dict[str, Any]) -> list[StoredItem]:
        found: list[StoredItem] = []
        for _ in self.deadline.tries():
            answer = self._call(self.client.batch_get_item, RequestItems=requests)
            for items in answer["Responses"].values():
                found.extend(items)
            requests = answer.get("UnprocessedKeys") or {}
            if not requests:
                return found
        ((table, left),) = requests.items()
        raise TableThrottled(f"Table {table} is throttled: {len(left['Keys'])} items could not be read.")

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        values = {":partition": {"S": wanted.partition}}
        condition = "pk = :partition"
        if wanted.after:
            values[":after"] = {"S": wanted.after}
            condition += " AND sk > :after"
        if wanted.before:  # no entry lies at one of the two
            values[":before"] = {"S": wanted.before}
            condition = "pk = :partition AND sk BETWEEN :after AND :before"
        found: list[tuple[str, str]] = []
        start: dict[str, Any] = {}
        while True:  # a page ends at 1 MB, wherever the limit is (API Reference, Query)
            page = self._call(
                self.client.query,
                TableName=self.requests.state_table,
                KeyConditionExpression=condition,
                ExpressionAttributeValues=values,
                ScanIndexForward=not wanted.descending,
                Limit=wanted.most - len(found),
                ConsistentRead=True,
                **start,
            )
            found += [(item["sk"]["S"], item["s"]["S"]) for item in page["Items"]]
            if len(found) >= wanted.most or "LastEvaluatedKey" not in page:
                return found
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

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
        real_name, key = self.requests.real_name(item[0]), self.requests.key(item)
        try:
            found = self._ask(self._client(item).get_item, TableName=real_name, Key=key, ConsistentRead=True)
        except ClientError as error:
            if error.response["Error"]["Code"] in FORBIDDEN:
                raise EngineError(
                    f"Source items of table {real_name} may not be read: dynamodb:GetItem on it is needed. "
                    f"{error.response['Error'].get('Message', '')}"
                ) from error
            raise self._fatal(error) from error
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
            return self._ask(operation, **arguments)
        except ClientError as error:
            codes = {reason.code for reason in self._refused(error, 1).reasons if reason}
            kind = TableThrottled if codes & {*CONFLICT[1:]} else EngineUnavailable
            raise kind(f"DynamoDB refused a call: {told(error)}") from error

    def _ask(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        """Makes a call. Raises ``NotStarted`` where there is no time for it."""
        self.deadline.begin()
        try:
            return operation(**arguments)
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
        clients = {real: self._client((name, "", None)) for name, (_, real) in tables}
        return missing_tables(clients, self.deadline.enough_time)


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
