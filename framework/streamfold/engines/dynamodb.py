"""The DynamoDB engine: plans carried out through boto3, on AWS or on DynamoDB Local."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.dynamodb_client import (
    FORBIDDEN,
    Calls,
    Operation,
    marked_message,
    plain_item,
    table_id,
    unreachable,
)
from streamfold.engines.keys import cursor_text, start_of, stored_key
from streamfold.engines.local_writes import NO_ITEM, local_write
from streamfold.engines.protocol import (
    Counter,
    Entries,
    Finished,
    Inserted,
    NamedTable,
    Page,
    ScanCursor,
    ScanPage,
    Segment,
    StoredItem,
)
from streamfold.engines.requests import ActionRequest, Statement, is_sent
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, TableThrottled, in_brackets, redacted
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import STATE, Table, is_marker
from streamfold.records.change import ItemKey, item_key
from streamfold.records.values import decode, encode
from streamfold.settings.limits import ACTIONS_MAX, KEYS_MAX, STATEMENTS_MAX
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    THROTTLED,
    VALIDATION,
    AbsentSource,
    ClearNotes,
    CountUp,
    GuardedWrite,
    InsertRow,
    PutPostRow,
    PutRow,
    PutState,
    Reason,
    Refused,
    RemoveEmpty,
    RowKey,
    StateKey,
    SwapState,
    exceeded,
    limits_of,
)

T = TypeVar("T")
AnyKey = TypeVar("AnyKey", RowKey, StateKey)
StatementResponse = Mapping[str, Any]
"""The response to one statement."""
BUSY = (*CONFLICT, "RequestLimitExceeded", "InternalServerError")
"""Codes after which another try may help."""
OPERATIONS = {"Update": "update_item", "Put": "put_item", "Delete": "delete_item"}
UNSTORABLE = (
    "ValidationError",
    "ValidationException",
    "ItemCollectionSizeLimitExceeded",
    "ItemCollectionSizeLimitExceededException",
)
"""Codes of a row that the store will never take (API Reference, BatchStatementError, PutItem)."""
DUPLICATE = "DuplicateItem"
"""The code of an ``INSERT`` whose row exists."""
OTHERWISE = (DUPLICATE, CONDITION)
"""Codes of a counter that exists although none was expected, or that is absent."""


def cut(values: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some


def code(response: StatementResponse) -> str | None:
    """The code of a statement's error; None if it was carried out."""
    found: str | None = response.get("Error", {}).get("Code")
    return found


class Reads(Calls):
    """The reads of the engine protocol, and what the store can do."""

    is_local: bool = False
    own_stream: None = None
    by_prefix: None = None
    durable: None = None

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        found: dict[StateKey, dict[str, Any]] = {}
        keys_sent = [self.requests.key(key) for key in dict.fromkeys(keys)]
        get = partial(self._call, self.client.batch_get_item)
        for items in self._batch_get(get, self.requests.state_table, keys_sent, consistent=consistent):
            for item in items:
                key = StateKey(item.pop("pk")["S"], item.pop("sk")["S"])
                found[key] = plain_item(item)
        return found

    def read_together(self, keys: Iterable[StateKey]) -> dict[StateKey, dict[str, Any]]:
        found: dict[StateKey, dict[str, Any]] = {}
        for some in cut(dict.fromkeys(keys), ACTIONS_MAX):
            gets = [{"Get": {"TableName": self.requests.state_table, "Key": self.requests.key(key)}} for key in some]
            responses = self._get_together(gets)
            found.update(
                (key, plain_item({name: value for name, value in each["Item"].items() if name not in ("pk", "sk")}))
                for key, each in zip(some, responses, strict=True)
                if each.get("Item")
            )
        return found

    def _get_together(self, gets: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Refused while a transaction with one of the items is under way, or the table is throttled: asked again.

        Items of more than 4 MB are refused: each half of them is asked for alone.
        """
        reasons: list[Reason] = []
        for _ in self.deadline.tries():
            try:
                responses: Sequence[Mapping[str, Any]] = self._ask(self.client.transact_get_items, TransactItems=gets)[
                    "Responses"
                ]
                return responses
            except ClientError as error:
                reasons = [reason for reason in self._refused(error, len(gets)).reasons if reason]
            if not {reason.code for reason in reasons} <= {*BUSY}:
                break
        codes = {reason.code for reason in reasons}
        limits = in_brackets(exceeded(each, self.requests.state_table) for each in reasons if each.code in THROTTLED)
        why = f"State items could not be read together: {', '.join(sorted(codes))}{limits}."
        if codes <= {*BUSY}:
            raise EngineUnavailable(why)
        if len(gets) == 1 or not codes <= {*UNSTORABLE}:
            raise EngineError(why)
        half = len(gets) // 2
        return [*self._get_together(gets[:half]), *self._get_together(gets[half:])]

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        return {key: plain_item(row) for key, row in self._stored(keys, self._call, consistent=consistent)}

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return dict(self._stored(items, self._read))

    def _stored(
        self, keys: Iterable[RowKey], call: Operation, *, consistent: bool = True
    ) -> Iterator[tuple[RowKey, StoredItem]]:
        by_table: dict[str, dict[RowKey, dict[str, Any]]] = {}
        for key in keys:
            by_table.setdefault(key[0], {})[key] = self.requests.key(key)
        for name, keys_sent in by_table.items():
            attributes = self.requests.tables[name][0].attributes
            known = {tuple(stored_key(key)[1 : len(attributes) + 1]): key for key in keys_sent}
            get = partial(call, self._client((name, "", None)).batch_get_item)
            real = self.requests.real_name(name)
            for items in self._batch_get(get, real, list(keys_sent.values()), consistent=consistent):
                for item in items:
                    yield known[tuple(decode(item[attribute]) for attribute in attributes)], item

    def _batch_get(
        self, get: Operation, table: str, keys_sent: Sequence[Mapping[str, Any]], *, consistent: bool
    ) -> Iterator[list[dict[str, Any]]]:
        for some in cut(keys_sent, KEYS_MAX):
            yield self._get_some(get, {table: {"Keys": some, "ConsistentRead": consistent}})

    def _get_some(self, get: Operation, requests: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        # DynamoDB may leave keys of a throttled partition unread: only these are read again, and a bounded number of
        # times.
        for _ in self.deadline.tries():
            response = get(RequestItems=requests)
            for items in response["Responses"].values():
                found.extend(items)
            requests = response.get("UnprocessedKeys") or {}
            if not requests:
                return found
        ((table, remaining),) = requests.items()
        raise TableThrottled(f"Table {table} is throttled: {len(remaining['Keys'])} items could not be read.")

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        values = {":partition": {"S": wanted.partition}}
        condition = "pk = :partition"
        if wanted.after:
            values[":after"] = {"S": wanted.after}
            condition += " AND sk > :after"
        if wanted.before:  # both bounds are among the found entries
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
                Limit=wanted.most - len(found) + (2 if wanted.before else 0),
                ConsistentRead=wanted.consistent,
                **start,
            )
            entries = ((item["sk"]["S"], item["s"]["S"] if "s" in item else "") for item in page["Items"])
            found += [entry for entry in entries if entry[0] not in (wanted.after, wanted.before)]
            if len(found) >= wanted.most or "LastEvaluatedKey" not in page:
                return found[: wanted.most]
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def read_source(self, item: ItemKey) -> StoredItem | None:
        real_name, key = self.requests.real_name(item[0]), self.requests.key(item)
        found = self._read(self._client(item).get_item, TableName=real_name, Key=key, ConsistentRead=True)
        source: StoredItem | None = found.get("Item")
        return source

    def _read(self, operation: Operation, **arguments: Any) -> Any:
        """Makes a call that reads source items. The error names the missing permission."""
        try:
            return self._ask(operation, **arguments)
        except ClientError as error:
            if error.response["Error"]["Code"] in FORBIDDEN:
                batch = arguments.get("RequestItems")
                table, action = (*batch, "BatchGetItem") if batch else (arguments["TableName"], "GetItem")
                raise EngineError(
                    f"Source items of table {table} may not be read: dynamodb:{action} on it is needed. "
                    f"{error.response['Error'].get('Message', '')}"
                ) from error
            raise self._fatal(error) from error

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        real_name, client = self.requests.real_name(table.name), self._client((table.name, "", None))
        if partition is None:
            found = self._pages(client, "scan", TableName=real_name, ConsistentRead=True)
            yield from (item for item in found if not is_marker(decode(item[table.partition])))
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

    def page(
        self,
        table: Table,
        partition: KeyValue,
        begins: str,
        after: KeyValue | None,
        limit: int,
        *,
        descending: bool = False,
    ) -> Page:
        condition, names, values = "#0 = :0", {"#0": table.partition}, {":0": encode(partition)}
        if begins and table.sort:
            condition += " AND begins_with(#1, :1)"
            names["#1"], values[":1"] = table.sort, encode(begins)
        start = {} if after is None else {"ExclusiveStartKey": self.requests.key((table.name, partition, after))}
        response = self._call(
            self._client((table.name, partition, None)).query,
            TableName=self.requests.real_name(table.name),
            ConsistentRead=True,
            Limit=limit,
            **({"ScanIndexForward": False} if descending else {}),
            KeyConditionExpression=condition,
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
            **start,
        )
        last = response.get("LastEvaluatedKey")
        return Page(response["Items"], decode(last[table.sort]) if last and table.sort else None)

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        names = {f"#{number}": name for number, name in enumerate(table.attributes)}
        response = self._call(
            self._client((table.name, "", None)).scan,
            TableName=self.requests.real_name(table.name),
            ConsistentRead=True,
            Segment=segment.number,
            TotalSegments=segment.of,
            Limit=limit,
            ProjectionExpression=", ".join(names),
            ExpressionAttributeNames=names,
            **start_of(after),
        )
        keys = [item_key(item, table) for item in response["Items"]]
        return ScanPage([key for key in keys if not is_marker(key[1])], cursor_text(response.get("LastEvaluatedKey")))

    def state_items(self) -> Iterator[StoredItem]:
        return self._pages(self.client, "scan", TableName=self.requests.state_table, ConsistentRead=True)


class Statements(Calls):
    """Sends PartiQL statements, and requests in the place of those that no statement can express."""

    def _execute(self, statements: Mapping[AnyKey, Statement]) -> dict[AnyKey, StatementResponse]:
        calls = cut(statements, STATEMENTS_MAX)
        return self._retried(calls, lambda keys: self._responses([statements[key] for key in keys]))

    def _execute_singly(self, operation: str, requests: Mapping[RowKey, Statement]) -> dict[RowKey, StatementResponse]:
        """The last response to each request, as from ``_execute``: for rows that no PartiQL statement can name."""

        def responses(keys: list[RowKey]) -> list[StatementResponse]:
            return [self._response(getattr(self._client(key), operation), requests[key]) for key in keys]

        return self._retried(cut(requests, 1), responses)

    def _retried(
        self, calls: Iterable[list[AnyKey]], ask: Callable[[list[AnyKey]], list[StatementResponse]]
    ) -> dict[AnyKey, StatementResponse]:
        """The last response for each key; none for keys without a call, or with an uncertain one. Busy items are tried
        again. Once one is busy at every try, the rest is tried once, so that pauses do not add up.
        """
        responses: dict[AnyKey, StatementResponse] = {}
        tries_max = TRIES_MAX
        try:
            for keys in calls:
                if not self._try(keys, ask, responses, tries_max):
                    tries_max = 1  # without this each further call would wait for its own tries
        # Some calls have taken effect: their responses must not be lost because a later call failed.
        except EngineUnavailable:
            if not responses:
                raise
        return responses

    def _try(
        self,
        keys: list[AnyKey],
        ask: Callable[[list[AnyKey]], list[StatementResponse]],
        responses: dict[AnyKey, StatementResponse],
        tries_max: int,
    ) -> bool:
        """Makes a call until none of its items is busy. Returns whether that was reached within these tries."""
        for _ in self.deadline.tries(tries_max):
            responses.update(zip(keys, ask(keys), strict=True))
            keys = [key for key in keys if code(responses[key]) in BUSY]
            if not keys:
                return True
        return False

    def _response(self, operation: Operation, arguments: Statement) -> StatementResponse:
        try:
            response: StatementResponse = self._ask(operation, **arguments)
            return response
        except ClientError as error:
            return self._refusal(error)

    def _refusal(self, error: ClientError) -> StatementResponse:
        """The refusal of a call with one write, as the response to its statement."""
        (reason,) = self._refused(error, 1).reasons
        assert reason is not None
        return {"Error": {"Code": reason.code, "Message": reason.message}}

    def _responses(self, statements: list[Statement]) -> list[StatementResponse]:
        """Sends statements in one call; if that is refused, one by one, so that only the guilty one fails."""
        try:
            responses: list[StatementResponse] = self._ask(self.client.batch_execute_statement, Statements=statements)[
                "Responses"
            ]
            return responses
        except ClientError as error:
            refusal = self._refusal(error)
        if code(refusal) in BUSY or len(statements) == 1:
            return [refusal] * len(statements)
        return [response for statement in statements for response in self._responses([statement])]

    def _code(self, response: StatementResponse, *expected: str) -> str | None:
        """The code of a response. Raises ``EngineError`` for one that is neither busy nor expected."""
        found = code(response)
        if found is None or found in BUSY or found in expected:
            return found
        if found == "ResourceNotFound":
            raise self._missing()
        message = marked_message(found, response["Error"].get("Message", ""))
        raise EngineError(f"DynamoDB refused the call with {found}: {message}")


class DynamoEngine(Reads, Statements):
    """DynamoDB behind the engine protocol.

    After ``deadline`` no call is begun but the notes of ``swap_state``, which record finished work.
    """

    @property
    def separate(self) -> "DynamoEngine":
        return self

    def real_name(self, logical: str) -> str:
        return self.requests.real_name(logical)

    def named_table(self, logical: str) -> NamedTable:
        real = self.real_name(logical)
        return NamedTable(real, table_id(self._client((logical, "", None)), real))

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        try:
            actions = [self.requests.action(write, expires_at) for write in writes]
        except HandlerError:
            return Refused(tuple([self._unstorable(write, expires_at) for write in writes]))
        # A single write costs half as much as in a transaction; a check has no call of its own.
        if len(actions) == 1 and not isinstance(writes[0], AbsentSource):
            ((kind, arguments),) = actions[0].items()
            return self._sent(1, getattr(self._client(writes[0].key), OPERATIONS[kind]), arguments)
        return self.send(actions)

    def _unstorable(self, write: GuardedWrite, expires_at: int) -> Reason | None:
        try:
            self.requests.action(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))
        return None

    def send(self, actions: Sequence[ActionRequest]) -> Refused | None:
        """Carries out actions in one transaction."""
        return self._sent(len(actions), self.client.transact_write_items, {"TransactItems": actions})

    def _sent(self, actions: int, operation: Operation, arguments: Mapping[str, Any]) -> Refused | None:
        try:
            self._ask(operation, **arguments)
            return None
        except ClientError as error:
            return self._refused(error, actions)

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        statements: dict[RowKey, Statement] = {}
        puts: dict[RowKey, Statement] = {}
        refused: dict[RowKey, str] = {}
        for row in rows:
            try:
                if self.requests.takes_statements(row.key) and is_sent(insertion := self.requests.insertion(row)):
                    statements.setdefault(row.key, insertion)
                else:
                    puts.setdefault(row.key, self.requests.request(InsertRow(row.key, row.attributes)))
            except HandlerError as error:
                refused[row.key] = str(error)
        responses = self._execute(statements)
        responses |= {key: _inserted(response) for key, response in self._execute_singly("put_item", puts).items()}
        missing = [key for key in (*statements, *puts) if key not in responses or not self._is_there(responses[key])]
        refused |= {
            key: responses[key]["Error"].get("Message") or ""
            for key in missing
            if code(responses.get(key, {})) in UNSTORABLE
        }
        never = [key for key in refused if key not in missing]
        return Inserted(
            never + missing, [key for key, response in responses.items() if code(response) == DUPLICATE], refused
        )

    def insert_state(self, items: Sequence[PutState]) -> list[StateKey]:
        found = self._execute({item.key: self.requests.insertion(item) for item in items})
        return [item.key for item in items if item.key not in found or not self._is_there(found[item.key])]

    def put_post_rows(self, posts: Sequence[PutPostRow]) -> list[RowKey]:
        remaining = {post.key: post for post in posts}
        for otherwise in (False, True):
            statements: dict[RowKey, Statement] = {}
            for post in remaining.values():
                statement = self._post_statement(post, inserts=post.fresh is not otherwise)
                if statement is not None:
                    statements[post.key] = statement
            for key, response in self._execute(statements).items():
                if self._is_put(response, remaining[key]):
                    del remaining[key]
        return list(remaining)

    def _post_statement(self, post: PutPostRow, *, inserts: bool) -> Statement | None:
        """The statement of a row; None for a row that is written alone, by ``transact``."""
        if (inserts and post.replaces) or not self.requests.takes_statements(post.key):
            return None
        with suppress(HandlerError):  # ``transact`` raises it
            if inserts:
                statement = self.requests.insertion(post)
            else:
                statement = self.requests.update(post, removed=post.removed, returning="ALL NEW")
            if is_sent(statement):
                return statement
        return None

    def _is_put(self, response: StatementResponse, post: PutPostRow) -> bool:
        """Whether a row is as it is to be, without attributes from before."""
        if self._code(response, DUPLICATE, CONDITION, *UNSTORABLE) is not None:
            return False
        return {*self.requests.item(post)}.issuperset(response.get("Item", ()))

    def _is_there(self, response: StatementResponse) -> bool:
        # By this insertion or an earlier one.
        return self._code(response, DUPLICATE, *UNSTORABLE) in (None, DUPLICATE)

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        """A row that is not there makes no error, and is not returned (Developer Guide, ql-reference.delete)."""
        statements: dict[RowKey, Statement] = {}
        deletes: dict[RowKey, Statement] = {}
        for key in rows:
            if self.requests.takes_statements(key):
                statements[key] = self.requests.deletion(RemoveEmpty(key), returning="ALL OLD")
            else:
                deletes[key] = self.requests.request(RemoveEmpty(key)) | {"ReturnValues": "ALL_OLD"}
        responses = self._execute(statements) | self._execute_singly("delete_item", deletes)
        for response in responses.values():
            self._code(response, CONDITION)
        if remaining := [key for key in dict.fromkeys(rows) if key not in responses or code(responses[key]) in BUSY]:
            busy = [(key, code(responses[key])) for key in remaining if key in responses]
            limits = in_brackets(f"table/{self.real_name(key[0])}: {why}" for key, why in busy)
            raise EngineUnavailable(
                f"{len(remaining)} of {len(set(rows))} empty rows could not be removed: they are busy{limits}."
            )
        return [key for key, response in responses.items() if "Item" in response or "Attributes" in response]

    def clear_pending(self, finished: Finished) -> None:
        for some in cut(finished.items(), STATEMENTS_MAX):
            writes = [ClearNotes.of(key, texts) for key, texts in some]
            statements = [self.requests.update(write) for write in writes]
            # Notes of many handlers make a statement too long, which would keep all others from being cleared.
            short = [statement for statement in statements if is_sent(statement)]
            long = [write for write, statement in zip(writes, statements, strict=True) if not is_sent(statement)]
            responses = self._call(self.client.batch_execute_statement, Statements=short)["Responses"] if short else []
            responses += [self._response(self.client.update_item, self.requests.request(write)) for write in long]
            for response in responses:
                self._code(response, CONDITION)

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        wanted = {counter.key: counter for counter in counters}
        writes = {key: CountUp(key, start, each.expires, there=not each.new) for key, each in wanted.items()}
        statements: dict[StateKey, Statement] = {
            key: self.requests.update(write, expires_at, returning="ALL NEW")
            if write.there
            else self.requests.insertion(write, expires_at)
            for key, write in writes.items()
        }
        responses = self._execute(statements)
        found = ((key, self._counted(writes[key], response, expires_at)) for key, response in responses.items())
        counted = {key: item for key, item in found if item is not None}
        remaining = [
            writes[key] for key, response in responses.items() if key not in counted and code(response) not in BUSY
        ]
        try:
            for write in remaining:
                if (item := self._count_one(write, expires_at)) is not None:
                    counted[write.key] = item
        except EngineUnavailable:
            if not counted:
                raise
        return counted

    def _counted(self, write: CountUp, response: StatementResponse, expires_at: int) -> dict[str, Any] | None:
        """The item after a statement; None if it was refused, or the response has no item."""
        if self._code(response, *OTHERWISE) is not None:
            return None
        if not write.there:
            inserted: dict[str, Any] = local_write(write, STATE).after(write, NO_ITEM, STATE, expires_at)
            return inserted
        return _counter(response["Item"]) if "Item" in response else None

    def _count_one(self, write: CountUp, expires_at: int) -> dict[str, Any] | None:
        """Raises a counter that exists although it was to be new, or that is absent; None if it is busy at every try.
        It is tried as it was found, and then the other way round: an item may be made or expire at any moment.
        """
        for there in (not write.there, write.there):
            try:
                update = self.requests.request(write._replace(there=there), expires_at)
                return _counter(self._ask(self.client.update_item, **update, ReturnValues="ALL_NEW")["Attributes"])
            except ClientError as error:
                refusal = self._refusal(error)
            if self._code(refusal, CONDITION) in BUSY:
                return None
        return None

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        swap = self.requests.request(SwapState(key, attributes, revision, expires=False))
        try:
            self._made(self.client.put_item, swap)
            return True
        except ClientError as error:
            refused = self._refused(error, 1)
            if refused.reasons[0] and refused.reasons[0].code == CONDITION:
                return False
            limits = in_brackets(limits_of(refused, [self.requests.state_table]))
            raise EngineUnavailable(
                f"State item {redacted(key)} could not be written{limits}: {redacted(error)}"
            ) from error
        except BotoCoreError as error:
            raise unreachable(error) from error


def _counter(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plain_item(item).items() if name not in ("pk", "sk")}


def _inserted(response: StatementResponse) -> StatementResponse:
    # PutItem, with the code that a statement has if the row exists: callers handle one kind of response.
    return {"Error": {"Code": DUPLICATE}} if code(response) == CONDITION else response
