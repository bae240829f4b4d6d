"""What ``replay --engine dynamodb`` does beside processing: tables, the account, sources, chains."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from streamfold.app import App
from streamfold.change import Change
from streamfold.checks import chained
from streamfold.engines.expressions import Requests
from streamfold.envelope import Origins, RawRecord
from streamfold.errors import EngineError
from streamfold.process import process_changes
from streamfold.replay import Source
from streamfold.report import Report, merge
from streamfold.stream import StreamReader
from streamfold.table import Table
from streamfold.values import DECODERS
from streamfold.world import World

WRITES_MAX = 25
"""Writes of one BatchWriteItem call (API Reference)."""
ROUNDS_MAX = 50


def account(client: Any) -> str:
    """The account and region that a client works in, for a person to confirm."""
    import boto3

    try:
        identity = boto3.client("sts").get_caller_identity()
    except (BotoCoreError, ClientError) as error:
        raise EngineError(
            f"The AWS account could not be asked for ({error}). Check credentials and region, or give --endpoint-url."
        ) from None
    return f"account {identity['Account']}, region {client.meta.region_name}"


def create_tables(
    client: Any,
    app: App,
    tables: dict[str, tuple[Table, str]],
    state_table: str,
    regional: Callable[[str], Any],
) -> list[str]:
    """Creates the tables that are missing, with a stream and time to live, and returns their names.

    ``regional`` makes the clients of other regions.
    """
    clients: dict[str | None, Any] = {None: client}
    for region in {table.region for table, _ in tables.values() if table.region}:
        clients[region] = regional(region)
    existing = {region: _existing(client) for region, client in clients.items()}
    created = []
    for table, name in tables.values():
        if name not in existing[table.region]:
            _create(clients[table.region], name, _key_types(app, table), stream=True)
            created.append(name)
            if table.ttl:
                _expire(clients[table.region], name, table.ttl)
    if state_table not in existing[None]:
        _create(client, state_table, {"pk": "S", "sk": "S"}, stream=False)
        _expire(client, state_table, "ttl")
        created.append(state_table)
    return created


def _existing(client: Any) -> set[str]:
    return {name for page in client.get_paginator("list_tables").paginate() for name in page["TableNames"]}


def _key_types(app: App, table: Table) -> dict[str, str]:
    keys = (key for route in app.routes for key in (*route.sources, *route.into) if key.table == table)
    key = next(keys)
    return {name: part.attribute_type for name, part in zip(table.attributes, key.parts, strict=True)}


def _create(client: Any, name: str, types: dict[str, str], *, stream: bool) -> None:
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


def _expire(client: Any, name: str, attribute: str) -> None:
    client.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": attribute})


class SourceWriter:
    """Puts source images into the real tables, for a rehearsal on a loopback endpoint."""

    def __init__(self, client: Any, requests: Requests) -> None:
        self.client = client
        self.requests = requests

    def __call__(self, images: Iterable[Source]) -> None:
        writes = (self._write(item, raw) for item, raw, _ in images)
        while some := list(islice(writes, WRITES_MAX)):
            by_table: dict[str, list[Any]] = {}
            for name, write in some:
                by_table.setdefault(name, []).append(write)
            for _ in range(ROUNDS_MAX):
                by_table = self.client.batch_write_item(RequestItems=by_table).get("UnprocessedItems") or {}
                if not by_table:
                    break
            else:
                raise EngineError("Source items could not be put: the tables do not take more writes.")

    def _write(self, item: Any, raw: Any) -> tuple[str, dict[str, Any]]:
        name = self.requests.real_name(item[0])
        if raw is None:
            return name, {"DeleteRequest": {"Key": self.requests.key(item)}}
        return name, {"PutRequest": {"Item": {attribute: _with_bytes(value) for attribute, value in raw.items()}}}


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
    """Runs the chains of a replay from the tables' own streams, until those are drained.

    ``settle_seconds``: after how long a stream shows what was written before; none of AWS's documents says it.
    """

    def __init__(
        self, app: App, clients: tuple[Any, Any], tables: dict[str, tuple[Table, str]], settle_seconds: float = 0
    ) -> None:
        self.app = app
        self.clients = clients
        self.tables = {target.table.name: tables[target.table.name] for _, target, _ in chained(app.routes)}
        self.settle_seconds = settle_seconds

    def without_stream(self) -> list[str]:
        """The handlers that cannot run, because the table of the rows that they read has no stream."""
        missing = [name for name in self.tables if not self._has_stream(name)]
        return sorted({reader.name for _, target, reader in chained(self.app.routes) if target.table.name in missing})

    def run(self, engine: Any, world: World) -> Report:
        """Delivers the records of derived rows to the handlers that read them, until no stream holds more.

        A chain may lead from table to table and back: the streams are read in turns.
        """
        report = Report()
        cursors: dict[str, Any] = dict.fromkeys(name for name in self.tables if self._has_stream(name))
        delivered = bool(cursors)
        while delivered:
            world.pause(self.settle_seconds)
            delivered = False
            for name, cursor in tuple(cursors.items()):
                for page in StreamReader(*self.clients, self.tables[name][1]).pages(cursor):
                    cursors[name] = page.cursor
                    if changes := self._wanted(name, page.records, world):
                        merge(report, process_changes(self.app, changes, engine, world))
                        delivered = True
        report.known = 0  # counts records of the files; those of the streams are read again by every replay
        return report

    def _wanted(self, name: str, records: Iterable[RawRecord], world: World) -> list[Change]:
        """The changes of derived rows that a handler reads; those of other items came from the files."""
        table, real = self.tables[name]
        origins = Origins({name: table}, world.settings)
        origins.adopted = real
        changes = map(origins.change, records)
        return [change for change in changes if self.app.derived(change.item) and self.app.chains(change.item)]

    def _has_stream(self, name: str) -> bool:
        described = self.clients[0].describe_table(TableName=self.tables[name][1])["Table"]
        return bool(described.get("StreamSpecification", {}).get("StreamEnabled"))
