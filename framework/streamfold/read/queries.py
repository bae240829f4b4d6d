"""Queries of one partition, newest first, through boto3 or on a local state."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from streamfold.engines import Engine
from streamfold.keys.table import Table
from streamfold.read.tables import PlainRow, TablePlace, coded
from streamfold.records.values import decode, encode

QUERIES_AT_ONCE = 8
"""Queries that are under way at a time; boto3 keeps ten connections (botocore.config, max_pool_connections)."""


class Query(NamedTuple):
    """Some items of a partition, those with the greatest sort keys first."""

    table: Table
    partition: str
    after: str = ""  # only sort keys that are not less than this; "": all
    before: str = ""  # only sort keys less than this; "": all
    most: int = 1000


class Queries(Protocol):
    """Where the items of a feed are read."""

    def rows(self, asked: Query) -> list[PlainRow]:
        """The items that were asked for, as plain values."""
        ...

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        """Makes calls that do not depend on each other."""
        ...


class BotoQueries:
    """Queries through boto3; ``places`` by the logical name of the table."""

    def __init__(self, places: dict[str, TablePlace]) -> None:
        self.places = places

    def rows(self, asked: Query) -> list[PlainRow]:
        place = self.places[asked.table.name]
        is_client = isinstance(place, tuple)
        client, name = place if isinstance(place, tuple) else (place.meta.client, place.name)
        values = {":partition": asked.partition, ":after": asked.after, ":before": asked.before}
        condition, used = "#partition = :partition", [":partition"]
        if asked.after and asked.before:
            condition, used = f"{condition} AND #sort BETWEEN :after AND :before", [*values]
        elif asked.after or asked.before:
            condition += " AND #sort >= :after" if asked.after else " AND #sort < :before"
            used.append(":after" if asked.after else ":before")
        given = {name: values[name] for name in used}
        names = {"#partition": asked.table.partition, **({"#sort": asked.table.sort} if len(used) > 1 else {})}
        found: list[PlainRow] = []
        start: dict[str, Any] = {}
        while True:  # a page ends at 1 MB, wherever the limit is (API Reference, Query)
            answer = client.query(
                TableName=name,
                KeyConditionExpression=condition,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=coded(given, encode) if is_client else given,
                ScanIndexForward=False,
                Limit=asked.most - len(found) + (1 if asked.before else 0),
                **start,
            )
            items = (coded(item, decode) for item in answer["Items"]) if is_client else answer["Items"]
            found += [item for item in items if item[str(asked.table.sort)] != asked.before]
            if len(found) >= asked.most or "LastEvaluatedKey" not in answer:
                return found[: asked.most]
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        if len(calls) < 2:
            for call in calls:
                call()
            return
        with ThreadPoolExecutor(min(len(calls), QUERIES_AT_ONCE)) as pool:
            for done in [pool.submit(call) for call in calls]:
                done.result()


class EngineQueries:
    """Queries of a store that holds the tables of a local replay, or of a test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def rows(self, asked: Query) -> list[PlainRow]:
        sort = str(asked.table.sort)
        found = (decode({"M": dict(item)}) for item in self.engine.items(asked.table, asked.partition))
        wanted = [
            item for item in found if item[sort] >= asked.after and (not asked.before or item[sort] < asked.before)
        ]
        return sorted(wanted, key=lambda item: str(item[sort]), reverse=True)[: asked.most]

    def at_once(self, calls: Iterable[Callable[[], None]]) -> None:
        for call in calls:
            call()
