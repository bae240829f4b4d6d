"""The AWS side of commands with ``--engine dynamodb``: clients, the account, tables, sources, chains."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from streamfold.app import App
from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.batch.report import Report, merge
from streamfold.engines.dynamodb import DynamoEngine
from streamfold.engines.dynamodb_client import make_client, unreachable
from streamfold.engines.protocol import Engine
from streamfold.engines.requests import ActionRequest
from streamfold.errors import EngineError, joined_key, refusal
from streamfold.keys.table import STATE, Table
from streamfold.ledger.state_keys import source_key
from streamfold.records.change import Change, ItemKey
from streamfold.records.envelope import Origins, RawRecord
from streamfold.records.sources import SourceImage
from streamfold.records.values import DECODERS, RawImage
from streamfold.replay.stream import StreamReader
from streamfold.routes.checks import chained
from streamfold.runtime import Runtime
from streamfold.settings.readers import account_of_role
from streamfold.writes.guarded import CONDITION, CONFLICT, NoteVersion

TRIES_MAX = 8
PAUSE_SECONDS = 0.05
"""The pause before the second try of a write that conflicted with another; each later pause is twice as long."""


def make_clients(endpoint_url: str | None) -> tuple[Any, Any]:
    """Low-level clients for DynamoDB and its streams."""
    return make_client(endpoint_url), boto3.client("dynamodbstreams", endpoint_url=endpoint_url)


def make_streams_client(service: str, stream_arn: str, endpoint_url: str | None) -> Any:
    """A low-level client for streams, ``"dynamodbstreams"`` or ``"kinesis"``, in the region of one of them."""
    region = None if endpoint_url else stream_arn.split(":")[3:4]
    return boto3.client(service, endpoint_url=endpoint_url, region_name=region[0] if region else None)


@contextmanager
def explained(service: str = "DynamoDB") -> Iterator[None]:
    """Turns errors of boto3 into an ``EngineError``, for calls that no engine makes."""
    try:
        yield
    except ClientError as error:
        raise EngineError(f"{service} refused a call with {refusal(error)}") from error
    except BotoCoreError as error:
        raise unreachable(error) from error


def account(client: Any) -> str:
    """The account and region that a client works in, for a person to confirm."""
    try:
        identity = boto3.client("sts").get_caller_identity()
    except (BotoCoreError, ClientError) as error:
        why = refusal(error) if isinstance(error, ClientError) else error
        raise EngineError(
            f"The AWS account could not be asked for ({why}). Check credentials and region, or give --endpoint-url."
        ) from None
    return f"account {identity['Account']}, region {client.meta.region_name}"


def written_to(engine: Engine) -> str:
    """Where in AWS a command writes: account, region and tables."""
    assert isinstance(engine, DynamoEngine)
    named = ", ".join(
        f"{name}{f' in {table.region}' if table.region else ''}{_by_role(engine, table)}"
        for table, name in _own_tables(engine)
    )
    state = f"{engine.requests.state_table}{_by_role(engine, STATE)}"
    return f"{account(engine.client)}: derived rows to {named}, state to {state}"


def _by_role(engine: DynamoEngine, table: Table) -> str:
    role = engine.role_of(table.name)
    return f" of account {account_of_role(role)}" if role else ""


def described(engine: Any, table: Table) -> tuple[int, int]:
    """The items of a table and their bytes, as DynamoDB counts them every six hours (API Reference, Table)."""
    found = engine.client_of(table.name).describe_table(TableName=engine.requests.real_name(table.name))["Table"]
    return int(found.get("ItemCount", 0)), int(found.get("TableSizeBytes", 0))


def _own_tables(engine: DynamoEngine) -> list[tuple[Table, str]]:
    return [(table, name) for table, name in engine.requests.tables.values() if table is not STATE]


def create_tables(app: App, engine: DynamoEngine) -> list[str]:
    """Creates the tables that are missing, with a stream and time to live, and returns their names."""
    tables, state_table = _own_tables(engine), engine.requests.state_table
    clients = {id(client): client for client in (engine.client, *(engine.client_of(table.name) for table, _ in tables))}
    existing = {
        number: {name for page in client.get_paginator("list_tables").paginate() for name in page["TableNames"]}
        for number, client in clients.items()
    }
    created = []
    for table, name in tables:
        client = engine.client_of(table.name)
        if name not in existing[id(client)]:
            types = app.key_types(table)
            keys = {each: types[each] for each in table.attributes}
            _create(client, name, keys, table.ttl, stream=True)
            created.append(name)
    if state_table not in existing[id(engine.client)]:
        _create(engine.client, state_table, {"pk": "S", "sk": "S"}, "ttl", stream=False)
        created.append(state_table)
    return created


def _create(client: Any, name: str, types: Mapping[str, str], ttl: str | None, *, stream: bool) -> None:
    kinds = zip(types, ("HASH", "RANGE"), strict=False)
    extra = {"StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}} if stream else {}
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": attribute, "KeyType": kind} for attribute, kind in kinds],
        AttributeDefinitions=[{"AttributeName": attribute, "AttributeType": kind} for attribute, kind in types.items()],
        **extra,
    )
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    if ttl:
        client.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": ttl})


class SourceWriter:
    """Puts source images into the real tables, for a rehearsal on a loopback endpoint: never an older over a newer one.

    A source item has no attribute of the framework. So the transaction that puts or deletes it also notes its version
    in the state table.
    """

    def __init__(self, engine: DynamoEngine, application: str, pause: Callable[[float], None] = time.sleep) -> None:
        self.engine = engine
        self.application = application
        self.pause = pause

    def __call__(self, images: Iterable[SourceImage]) -> None:
        for item, raw, version, *_ in images:
            self._put(item, self._actions(item, raw, version))

    def _put(self, item: ItemKey, actions: list[ActionRequest]) -> None:
        name = joined_key(item[1:])
        # A write that conflicts with another one is sent again. Without a bound, a table that refuses every write would
        # hold the command for ever.
        for attempt in range(TRIES_MAX):
            refused = self.engine.send(actions)
            note, write = refused.reasons if refused else (None, None)
            if refused is None or (note and note.code == CONDITION):  # put, or a newer version was put before
                return
            if write and write.code not in CONFLICT:
                raise EngineError(f"Source item {name} was refused with {write.code}: {write.message}")
            self.pause(PAUSE_SECONDS * 2**attempt)
        raise EngineError(f"Source item {name} could not be put: the tables do not take more writes.")

    def _actions(self, item: ItemKey, raw: RawImage | None, version: str) -> list[ActionRequest]:
        requests = self.engine.requests
        note = requests.action(NoteVersion(source_key(self.application, item), version), 0)
        table = requests.real_name(item[0])
        if raw is None:
            return [note, {"Delete": {"TableName": table, "Key": requests.key(item)}}]
        image = {name: _with_bytes(value) for name, value in raw.items()}
        return [note, {"Put": {"TableName": table, "Item": image}}]


def _with_bytes(value: Any) -> Any:
    """An attribute value with base64 text as bytes, as boto3 wants it."""
    tag, content = next(iter(value.items()))
    if tag in ("B", "BS"):
        decoded = DECODERS[tag](content)
        return {tag: sorted(decoded) if tag == "BS" else decoded}
    if tag == "L":
        return {"L": [_with_bytes(member) for member in content]}
    if tag == "M":
        return {"M": {name: _with_bytes(member) for name, member in content.items()}}
    return value


class TableChains:
    """Runs the chains of a replay from the tables' own streams, until the streams have no more records.

    ``recheck_seconds``: the wait until a stream shows earlier writes. No document of AWS has a figure for it.
    """

    def __init__(
        self, app: App, clients: tuple[Any, Any], tables: dict[str, tuple[Table, str]], recheck_seconds: float = 0
    ) -> None:
        self.app = app
        self.clients = clients
        self.tables = {target.table.name: tables[target.table.name] for _, target, _ in chained(app.routes)}
        self.recheck_seconds = recheck_seconds

    def without_stream(self) -> list[str]:
        """The handlers that cannot run, because the table of the rows that they read has no stream."""
        missing = [name for name in self.tables if not self._has_stream(name)]
        return sorted({reader.name for _, target, reader in chained(self.app.routes) if target.table.name in missing})

    def run(self, runtime: Runtime) -> Report:
        """Delivers the records of derived rows to the handlers that read them, until no stream holds more.

        A chain may lead from table to table and back, so the streams are read in turns.
        """
        report = Report()
        cursors: dict[str, Any] = dict.fromkeys(name for name in self.tables if self._has_stream(name))
        delivered = bool(cursors)
        while delivered:
            runtime.pause(self.recheck_seconds)
            delivered = False
            for name, cursor in tuple(cursors.items()):
                for page in StreamReader(*self.clients, self.tables[name][1]).pages(cursor):
                    cursors[name] = page.cursor
                    if changes := self._wanted(name, page.records, runtime):
                        merge(report, process_changes(runtime, changes))
                        merge(report, run_fan_outs(runtime))
                        delivered = True
        report.known = 0  # counts records of the files; those of the streams are read again by every replay
        return report

    def _wanted(self, name: str, records: Iterable[RawRecord], runtime: Runtime) -> list[Change]:
        """The changes of derived rows that a handler reads; those of other items came from the files."""
        table, real = self.tables[name]
        origins = Origins({name: table}, runtime.settings)
        origins.adopted = real
        changes = map(origins.change, records)
        return [change for change in changes if self.app.derived(change.item) and self.app.chains(change.item)]

    def _has_stream(self, name: str) -> bool:
        described = self.clients[0].describe_table(TableName=self.tables[name][1])["Table"]
        return bool(described.get("StreamSpecification", {}).get("StreamEnabled"))
