"""Calls of DynamoDB through boto3: the client, how requests are encoded and responses parsed, and how errors are
classified.

botocore validates and serialises the parameters of a call value by value, which costs ten times as much as its JSON.
Only ``requests`` makes the engine's parameters, in one closed format. So the engine writes the JSON itself, and
botocore gets the shortest parameters that it takes. Two of its public events (boto3 guide, "Extensibility") put the
JSON in place: ``provide-client-params`` keeps it in the context of the call, and ``before-call`` exchanges the body
before it is signed. Additions of botocore or other handlers, such as the request's token or ReturnConsumedCapacity, are
kept. The first call of each operation goes the ordinary way, with all of its parameters, and its body is compared with
the JSON. If they differ, or an event does not come, every call goes the ordinary way.

Responses of reads are parsed once, for the same reason. Their JSON has the structure that a caller of botocore gets,
except binary values, which botocore decodes. So the event ``before-parse`` hands botocore the parsed JSON, and an empty
body instead. botocore parses responses with binary values, errors, the calls of others, and all responses if the event
does not come.

AWS freezes a function between two invocations. Servers close connections meanwhile, and the function notices it at its
next request. All kept connections are dead then, so both tries of a call may meet one, though a new connection would be
answered at once. The first broken connection therefore closes all that are idle, and a call gets a third try if the
longest time of a call still allows it.

DynamoDB bills a refused call, such as a conditional write, but does not report its units: such calls are counted.
DynamoDB Local reports too little: no units of PartiQL statements, and for a transaction the units of one write a table.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from math import inf
from threading import Lock, local
from time import monotonic
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    SSLError,
    SSOError,
)

from streamfold.engines.deadline import Deadline
from streamfold.engines.protocol import StoredItem
from streamfold.engines.requests import Requests
from streamfold.errors import (
    EngineError,
    EngineUnavailable,
    EngineUnreachable,
    TableThrottled,
    credentials_remedy,
    manual,
    redacted,
)
from streamfold.keys.table import NO_TRANSACTIONS, STATE, Table, check_real_names
from streamfold.records.values import decode, decode_number, parsed_response, request_json
from streamfold.settings.limits import (
    CALL_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    READ_LANES_MAX,
    READ_SECONDS_MAX,
    TRIES_MAX,
)
from streamfold.writes.guarded import CONDITION, CONFLICT, Reason, Refused, RowKey, StateKey, exceeded

USER_AGENT = f"streamfold Boto3/{boto3.__version__}"
"""The user agent of requests. botocore makes its own twice for every request: a tenth of its CPU."""
NAMED = "AWS_SDK_UA_APP_ID"
"""Names the application in botocore's user agent, which is kept if this is set."""

PARSED = ("BatchGetItem", "GetItem", "Query", "Scan")
BINARY = re.compile(rb'"BS?"')
"""The marks of a response with binary values; a response with such names or texts goes botocore's way, too. The
expression takes a third of the time of a search for each mark with ``in``.
"""
OK = 200
RESPONSES_ID = "streamfold-answers"
BEGAN = "streamfold_began"
"""Where the context of a call keeps when it began."""
CLOSED_ID = "streamfold-closed"

_CALLING = local()  # ``ours``: this thread makes a call of an engine

Operation = Callable[..., Any]

CARRIERS: Mapping[str, tuple[str, str, Any]] = {
    "transact_write_items": ("TransactWriteItems", "TransactItems", [{}]),
    "batch_execute_statement": ("BatchExecuteStatement", "Statements", [{"Statement": "-"}]),
    "batch_get_item": ("BatchGetItem", "RequestItems", {"-": {"Keys": [{}]}}),
    "put_item": ("PutItem", "Item", {}),
    "update_item": ("UpdateItem", "Key", {}),
    "delete_item": ("DeleteItem", "Key", {}),
}
"""By method: the operation, the parameter that carries the JSON through botocore, and the shortest value of it."""
LIMIT = re.compile(r"table/[\w.-]+(/index/[\w.-]+)?: [A-Za-z]+", re.ASCII)
"""A limit that a throttled call exceeded, with the end of the ARN of its table or index (API Reference,
ThrottlingReason).
"""
ENDPOINT = "TableName"
"""The parameter that botocore may choose an endpoint by."""
ARN = "arn:"
KEPT_AS = "streamfold_body"
"""Where the context of a call keeps the JSON."""
ENCODING_ID = "streamfold-bodies"

BEFORE_CALL = "provide-client-params.dynamodb.*"
AFTER_CALL = "after-call.dynamodb.*"
"""Events of botocore: before a call's parameters are checked, and when its response was read."""
READING = frozenset({"BatchGetItem", "GetItem", "Query", "Scan", "TransactGetItems"})
"""Operations whose units are reads; those of all others are writes, unless the response has the kind."""
CAPACITY_PARAMETER = "ReturnConsumedCapacity"

THROTTLED = {
    "ProvisionedThroughputExceededException": "ProvisionedThroughputExceeded",
    "ThrottlingException": "ThrottlingError",
    "RequestLimitExceeded": "ThrottlingError",
    "TransactionConflictException": "TransactionConflict",
    "TransactionInProgressException": "TransactionConflict",
    "ReplicatedWriteConflictException": "TransactionConflict",
}
PERMANENT = ("ValidationException", "ItemCollectionSizeLimitExceededException", "IdempotentParameterMismatchException")
MULTI_REGION = re.compile(r"multi-?region strong(ly)? consisten|\bMRSC\b", re.IGNORECASE)
"""In the message of a refusal: the cause is a table, and no record."""
FORBIDDEN = ("AccessDeniedException", "AccessDenied")
SET_REGION = "set AWS_DEFAULT_REGION, or region in the AWS profile."


def make_client(endpoint_url: str | None = None, region: str | None = None, role: str | None = None) -> Any:
    """A low-level DynamoDB client with bounded time-outs and retries, for the environment's region or another.

    role: the ARN of a role that the client's calls are made by, in place of the credentials of the process.

    Raises ``EngineError`` when no region is set.
    """
    config = Config(
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=READ_SECONDS_MAX,
        retries={"mode": "standard", "total_max_attempts": TRIES_MAX},
        max_pool_connections=READ_LANES_MAX,
        user_agent=None if os.environ.get(NAMED) else USER_AGENT,
    )
    try:
        client = session(role).client("dynamodb", endpoint_url=endpoint_url, region_name=region, config=config)
    except NoRegionError:
        raise EngineError(f"No AWS region is set: {SET_REGION}") from None
    except (BotoCoreError, ValueError) as error:
        raise EngineError(f"The DynamoDB client cannot be made: {error}") from None
    return retry_closed(client)


def session(role: str | None) -> Any:
    """What makes clients that work by a role, or with the credentials of the process."""
    if role is None:
        return boto3
    from streamfold.engines.assumed_role import session_of  # few applications use tables of another account

    return session_of(role)


def unreachable(error: Exception) -> EngineError:
    """The error for an error of botocore itself: no response came."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return EngineError(
            "No AWS credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if isinstance(error, CredentialRetrievalError | SSOError):
        return EngineError(f"AWS credentials could not be read: {redacted(error)}")
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return EngineUnreachable(
            f"No server answers at the DynamoDB endpoint ({redacted(error)}). Check --endpoint-url and the region."
        )
    return EngineUnavailable(f"The outcome of a DynamoDB call is unknown: {type(error).__name__}: {redacted(error)}")


def table_id(client: Any, name: str) -> str | None:
    """The id of the table that has this name now; None where it may not be asked (dynamodb:DescribeTable), and where a
    test gives a client that cannot be.
    """
    try:
        found: str | None = client.describe_table(TableName=name).get("Table", {}).get("TableId")
    except (BotoCoreError, ClientError, AttributeError):
        return None
    return found


def missing_tables(clients: Mapping[str, Any], enough_time: Callable[[], bool]) -> EngineError:
    """The error for a missing table out of these, each with its client: DynamoDB does not name it. The error names the
    tables that do not exist; all tables, if dynamodb:DescribeTable is not permitted, if all exist by now, or if time is
    over.
    """
    missing = [name for name, client in clients.items() if enough_time() and _is_missing(client, name)]
    which = missing[0] if missing else f"one of {', '.join(clients)}"
    what = f"A table is missing: {which} does not exist"
    if len(missing) > 1:
        what = f"Tables are missing: {', '.join(missing)} do not exist"
    return EngineError(
        f"{what} in this account and region. Create what is missing (replay --create-tables does on a loopback "
        "endpoint), or name the real one: --table logical=real, STREAMFOLD_TABLE_<NAME>, STREAMFOLD_STATE_TABLE."
    )


def _is_missing(client: Any, table: str) -> bool:
    try:
        client.describe_table(TableName=table)
    except ClientError as error:
        return bool(error.response["Error"]["Code"] == "ResourceNotFoundException")
    except BotoCoreError:
        return False
    return False


def watch(events: Any) -> None:
    """Parses the responses of a client's reads where an engine makes them. ``events`` are the client's."""
    for operation in PARSED:
        events.register(f"before-parse.dynamodb.{operation}", _parse, f"{RESPONSES_ID}-{operation}")


def called(operation: Operation, arguments: dict[str, Any]) -> Any:
    """Makes a call of an engine."""
    _CALLING.ours = True
    try:
        return operation(**arguments)
    finally:
        _CALLING.ours = False


def _parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    body = response_dict["body"]
    if not getattr(_CALLING, "ours", False) or response_dict["status_code"] != OK or BINARY.search(body):
        return
    try:
        response = parsed_response(body)
    except ValueError:  # botocore raises the error
        return
    customized_response_dict.update({name: value for name, value in response.items() if value is not None})
    response_dict["body"] = b"{}"


def retry_closed(client: Any) -> Any:
    """Gives each call of a boto3 client one more try if its connection was closed. Returns the client."""
    client.meta.events.register("before-call", _note_begin, f"{CLOSED_ID}-begin")
    client.meta.events.register_first("needs-retry", _retry, CLOSED_ID)
    return client


def _note_begin(context: dict[str, Any], **_: Any) -> None:
    context[BEGAN] = monotonic()


def _retry(
    attempts: int, caught_exception: Exception | None, request_dict: dict[str, Any], endpoint: Any, **_: Any
) -> int | None:
    """The pause before another try, or None where botocore decides."""
    if not is_closed(caught_exception) or attempts > TRIES_MAX:
        return None
    endpoint.close()  # idle connections, dead as this one; those in use go on
    took = monotonic() - request_dict["context"].get(BEGAN, monotonic())
    # A try that took its time was no dead connection: another one would outlast the invocation.
    has_time = took + CONNECT_SECONDS_MAX + READ_SECONDS_MAX <= CALL_SECONDS_MAX
    return 0 if has_time else None


def is_closed(error: Exception | None) -> bool:
    """Whether the other side had closed the connection of a call."""
    return isinstance(error, ConnectionClosedError) or (isinstance(error, SSLError) and "EOF" in str(error))


class Body:
    """The JSON of a call, on its way through botocore."""

    def __init__(self, text: bytes, given: Mapping[str, Any], *, sent: bool) -> None:
        self.text = text
        self.given = given  # parameters that botocore was given, and that the JSON has too
        self.sent = sent  # the JSON is sent; otherwise the ordinary body is, and compared with the JSON
        self.equal: bool | None = None  # None: they were not compared

    def meet(self, request: dict[str, Any]) -> None:
        """Compares a request's body with the JSON, or exchanges it."""
        if not self.sent:
            self.equal = self._is_the_same(request["body"])
            return
        added = {name: value for name, value in json.loads(request["body"]).items() if name not in self.given}
        more = "," + json.dumps(added)[1:] if added else "}"
        request["body"] = self.text[:-1] + more.encode("ascii")

    def _is_the_same(self, body: bytes | str) -> bool:
        try:
            ordinary = json.loads(body)
            return bool(json.loads(self.text) == {name: ordinary[name] for name in self.given})
        except (ValueError, TypeError, KeyError):  # no JSON, or another structure
            return False


class _List(list[Any]):
    body: Body


class _Map(dict[str, Any]):
    body: Body


class RequestEncoding:
    """Makes the calls of one client.

    tables: the real names of tables. Where one is an ARN, botocore may choose the endpoint by it, so all calls go the
    ordinary way.
    """

    def __init__(self, client: Any, tables: Iterable[str] = ()) -> None:
        self._equal: dict[str, bool] = {}  # by method: whether both bodies were equal
        events = getattr(getattr(client, "meta", None), "events", None)
        self._ready = events is not None and not any(table.startswith(ARN) for table in tables)
        if events is not None:
            watch(events)
        if events is not None and self._ready:
            for operation, _, _ in CARRIERS.values():
                events.register(f"provide-client-params.dynamodb.{operation}", _keep, f"{ENCODING_ID}-{operation}")
                events.register(f"before-call.dynamodb.{operation}", _exchange, f"{ENCODING_ID}-call-{operation}")

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        """Makes a call. Result and errors are those of the operation."""
        name = getattr(operation, "__name__", "")
        equal = self._equal.get(name)
        if not self._ready or name not in CARRIERS or equal is False:
            return called(operation, arguments)
        _, carrier, shortest = CARRIERS[name]
        given = arguments
        if equal:
            given = {carrier: shortest}
            if ENDPOINT in arguments:
                given[ENDPOINT] = arguments[ENDPOINT]
        body = Body(request_json(arguments), given, sent=bool(equal))
        carried = (_List if isinstance(shortest, list) else _Map)(given[carrier])
        carried.body = body
        answered = False
        try:
            response = called(operation, {**given, carrier: carried})
            answered = True
        finally:
            if not body.sent and (answered or body.equal is not None):
                self._equal[name] = bool(body.equal)
        return response


def _keep(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    for name, value in params.items():
        if isinstance(value, _List | _Map):
            context[KEPT_AS] = value.body
            params[name] = [*value] if isinstance(value, _List) else {**value}  # jmespath takes no class of its own
            return


def _exchange(params: dict[str, Any], context: Mapping[str, Any], **_: Any) -> None:
    if (body := context.get(KEPT_AS)) is not None:
        body.meet(params)


class Consumed(NamedTuple):
    """The consumption of calls."""

    read: float = 0  # units
    write: float = 0
    requests: int = 0  # calls that were answered, with refusals
    unreported: int = 0  # of these: their units are not known
    retries: int = 0  # attempts before these responses: a busy table shows here first


class Meter:
    """Adds up what the calls of boto3's DynamoDB clients consume, over all threads, until it is closed."""

    def __init__(self, *clients: Any) -> None:
        self._clients = clients
        self._lock = Lock()
        self._consumed = Consumed()
        for events in self._events():
            events.register(BEFORE_CALL, self._ask)
            events.register(AFTER_CALL, self._answered)

    @property
    def consumed(self) -> Consumed:
        """The consumption since the start, or since the last ``take``."""
        return self._consumed

    def take(self) -> Consumed:
        """The consumption since the last ``take``; counting begins at 0 again."""
        with self._lock:
            taken, self._consumed = self._consumed, Consumed()
        return taken

    def close(self) -> None:
        """Leaves the clients as they were."""
        for events in self._events():
            events.unregister(BEFORE_CALL, self._ask)
            events.unregister(AFTER_CALL, self._answered)

    def _events(self) -> list[Any]:
        return [client.meta.events for client in self._clients]

    def _ask(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        # A caller that wants more detail keeps it.
        if _reports_units(model) and params.get(CAPACITY_PARAMETER) in (None, "NONE"):
            params[CAPACITY_PARAMETER] = "TOTAL"

    def _answered(self, parsed: Mapping[str, Any], model: Any, **_: Any) -> None:
        redacted = parsed.get("ConsumedCapacity") or []
        read, write = _units(model.name, [redacted] if isinstance(redacted, Mapping) else redacted)
        retries = parsed.get("ResponseMetadata", {}).get("RetryAttempts", 0)
        unreported = _reports_units(model) and not redacted
        with self._lock:
            had = self._consumed
            self._consumed = Consumed(
                had.read + read, had.write + write, had.requests + 1, had.unreported + unreported, had.retries + retries
            )


def _reports_units(model: Any) -> bool:
    return model.input_shape is not None and CAPACITY_PARAMETER in model.input_shape.members


def _units(operation: str, redacted: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The read and write units of a response, over its tables."""
    read = write = 0.0
    for table in redacted:
        reads, writes = table.get("ReadCapacityUnits"), table.get("WriteCapacityUnits")
        if reads is None and writes is None:
            total = table.get("CapacityUnits", 0.0)
            reads, writes = (total, 0.0) if operation in READING else (0.0, total)
        read += reads or 0.0
        write += writes or 0.0
    return read, write


class Calls:
    """Makes calls for an engine. ``tables`` maps logical names to the table and its real name.

    ``regional`` makes the client of a table that is in another region or account, from the region and the role, when
    that table is first used. ``role_of`` gives the role of a table by its logical name; ``client`` works by that of the
    state.
    """

    def __init__(
        self,
        client: Any,
        tables: Mapping[str, tuple[Table, str]],
        state_table: str,
        pause: Callable[[float], None] = time.sleep,
        regional: Callable[..., Any] = lambda region=None, role=None: make_client(region=region, role=role),
        role_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        check_real_names(tables, state_table, role_of)
        self._answered: tuple[Mapping[str, Any], float] = {}, 0.0  # the last response's metadata, and when it came
        self.client = client
        self.regional = regional
        self.role_of = role_of
        self._others: dict[tuple[str | None, str | None], Any] = {}
        self._lock = Lock()
        self.requests: Requests = Requests({**tables, STATE.name: (STATE, state_table)}, state_table)
        self._encodings = {id(client): self._encoding_of(client)}  # by client, which the engine keeps
        self.deadline: Deadline = Deadline(pause=pause)

    def close(self) -> None:
        for client in (self.client, *self._others.values()):
            client.close()

    def _client(self, key: RowKey | StateKey) -> Any:
        """The client of the region and the account that a row's table is in."""
        return self.client if isinstance(key, StateKey) else self.client_of(key[0])

    def client_of(self, logical: str) -> Any:
        """The client that calls about a table are made by."""
        table = self.requests.tables[logical][0]
        region, role = table.region, self.role_of(logical)
        if region is None and role == self.role_of(STATE.name):
            return self.client
        with self._lock:  # boto3's default session makes clients for one thread at a time
            if (region, role) not in self._others:
                other = self.regional(region) if role is None else self.regional(region, role)
                self._others[region, role] = other
                self._encodings[id(other)] = self._encoding_of(other)
            return self._others[region, role]

    def _encoding_of(self, client: Any) -> RequestEncoding:
        return RequestEncoding(client, [real for _, real in self.requests.tables.values()])

    def _call(self, operation: Operation, **arguments: Any) -> Any:
        try:
            return self._ask(operation, **arguments)
        except ClientError as error:
            reasons = [reason for reason in self._refused(error, 1).reasons if reason]
            if limits := [
                exceeded(each, f"table/{table_of(arguments)}") for each in reasons if each.code in CONFLICT[1:]
            ]:
                raise TableThrottled(limits=limits) from error
            raise EngineUnavailable(f"DynamoDB refused a call: {redacted(error)}") from error

    def _ask(self, operation: Operation, **arguments: Any) -> Any:
        """Makes a call. Raises ``NotStarted`` where there is no time for it."""
        self.deadline.begin()
        try:
            response = self._made(operation, arguments)
        except BotoCoreError as error:
            raise unreachable(error) from error
        if "ResponseMetadata" in response:
            self._answered = response["ResponseMetadata"], monotonic()
        return response

    def latest_seconds(self) -> float:
        metadata, answered = self._answered
        try:
            date = parsedate_to_datetime(metadata["HTTPHeaders"]["date"])
        except (KeyError, TypeError, ValueError):  # no answer came, or it has no time
            return inf
        return date.timestamp() + monotonic() - answered

    def _made(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        encodings = self._encodings.get(id(getattr(operation, "__self__", None)))
        return operation(**arguments) if encodings is None else encodings.call(operation, arguments)

    def _pages(self, client: Any, operation: str, **arguments: Any) -> Iterator[StoredItem]:
        try:
            for page in client.get_paginator(operation).paginate(**arguments):
                yield from page["Items"]
        except ClientError as error:
            raise self._fatal(error) from error
        except BotoCoreError as error:
            raise unreachable(error) from error

    def _refused(self, error: ClientError, actions: int) -> Refused:
        """The reason of a refusal for each write. Raises for errors that are not about these writes."""
        code = error.response["Error"]["Code"]
        message = error.response["Error"].get("Message", "")
        if code == "TransactionCanceledException":
            reasons = tuple(_reason(reason) for reason in error.response.get("CancellationReasons", ()))
            if not any(reasons):
                raise EngineUnavailable(f"DynamoDB cancelled a transaction without a reason: {redacted(message)}")
            return Refused(reasons)
        if code == "ConditionalCheckFailedException":
            item = error.response.get("Item")
            return Refused((Reason(CONDITION, plain_item(item) if item else None),))
        if code in THROTTLED:
            return Refused((Reason(THROTTLED[code], None, message, limits_of(error)),) * actions)
        if code in PERMANENT and MULTI_REGION.search(message):
            tables = ", ".join(real for _, real in self.requests.tables.values())
            raise EngineError(
                f"DynamoDB refused a call of one of {tables}: {NO_TRANSACTIONS}. {manual('sources')} has the ways on."
            )
        if code in PERMANENT:
            return Refused((Reason(code, None, message),) * actions)
        raise self._fatal(error)

    def _fatal(self, error: ClientError) -> EngineError:
        code, status = error.response["Error"]["Code"], error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
        message = error.response["Error"].get("Message", "")
        if code == "ResourceNotFoundException":
            return self._missing()
        if status >= 500 or code in THROTTLED:
            return EngineUnavailable(f"DynamoDB failed with {code}: {limits_of(error) or redacted(message)}")
        what = credentials_remedy(code, message) or marked_message(code, message)
        return EngineError(f"DynamoDB refused the call with {code}: {what}")

    def _missing(self) -> EngineError:
        tables = self.requests.tables.items()
        clients = {real: self._client((name, "", None)) for name, (_, real) in tables}
        return missing_tables(clients, self.deadline.enough_time)


def limits_of(error: ClientError) -> str:
    """The limits that a throttled call exceeded, each with its table or index. Empty if DynamoDB names none, or if an
    older boto3 does not read them (API Reference, ThrottlingReason).
    """
    given = error.response.get("throttlingReasons") or error.response.get("ThrottlingReasons") or ()
    exceeded_limits = (f"{each.get('resource', '').rpartition(':')[2]}: {each.get('reason')}" for each in given)
    # Both are names. Any other text might be of an item, and goes into no log.
    return ", ".join(dict.fromkeys(each if LIMIT.fullmatch(each) else redacted(each) for each in exceeded_limits))


def table_of(arguments: Mapping[str, Any]) -> str:
    """The real name of the table that a call is about; empty if it may be about several."""
    return str(next(iter(arguments["RequestItems"]))) if "RequestItems" in arguments else arguments.get(ENDPOINT, "")


def _reason(reason: Mapping[str, Any]) -> Reason | None:
    if reason["Code"] == "None":
        return None
    item = reason.get("Item")
    return Reason(reason["Code"], plain_item(item) if item else None, reason.get("Message") or "")


def marked_message(code: str, message: str) -> str:
    """The message of a refusal, marked as item content unless it is about permissions."""
    return message if code in FORBIDDEN else redacted(message)


def plain_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as Python values; most values of the framework are text."""
    return {
        name: value["S"] if "S" in value else decode_number(value["N"]) if "N" in value else decode(value)
        for name, value in item.items()
    }
