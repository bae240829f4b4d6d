"""What the DynamoDB engine reads: state items, rows, entries, and the items of source tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from streamfold.engines import Entries, Page, ScanPage, ScanPlace, Segment, StoredItem
from streamfold.engines.dynamodb_calls import FORBIDDEN, Calls, plain_item
from streamfold.engines.keys import stored_key
from streamfold.engines.requests import Expression
from streamfold.engines.scans import place_text, start_of
from streamfold.errors import EngineError, TableThrottled
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import Table
from streamfold.limits import KEYS_MAX
from streamfold.records.change import ItemKey, item_key
from streamfold.records.values import decode, encode
from streamfold.writes.guarded import RowKey, StateKey

Call = Callable[..., Any]
T = TypeVar("T")


class Reads(Calls):
    """The reads of the engine protocol."""

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        found: dict[StateKey, dict[str, Any]] = {}
        places = [self.requests.key(key) for key in dict.fromkeys(keys)]
        get = partial(self._call, self.client.batch_get_item)
        for items in self._batch_get(get, self.requests.state_table, places, consistent=consistent):
            for item in items:
                key = StateKey(item.pop("pk")["S"], item.pop("sk")["S"])
                found[key] = plain_item(item)
        return found

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        return {key: plain_item(row) for key, row in self._stored(keys, self._call, consistent=consistent)}

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return dict(self._stored(items, self._read))

    def _stored(
        self, keys: Iterable[RowKey], call: Call, *, consistent: bool = True
    ) -> Iterator[tuple[RowKey, StoredItem]]:
        by_table: dict[str, dict[RowKey, dict[str, Any]]] = {}
        for key in keys:
            by_table.setdefault(key[0], {})[key] = self.requests.key(key)
        for name, places in by_table.items():
            attributes = self.requests.tables[name][0].attributes
            known = {tuple(stored_key(key)[1 : len(attributes) + 1]): key for key in places}
            get = partial(call, self._client((name, "", None)).batch_get_item)
            real = self.requests.real_name(name)
            for items in self._batch_get(get, real, list(places.values()), consistent=consistent):
                for item in items:
                    yield known[tuple(decode(item[attribute]) for attribute in attributes)], item

    def _batch_get(
        self, get: Call, table: str, places: Sequence[Mapping[str, Any]], *, consistent: bool
    ) -> Iterator[list[dict[str, Any]]]:
        for some in cut(places, KEYS_MAX):
            yield self._get_some(get, {table: {"Keys": some, "ConsistentRead": consistent}})

    def _get_some(self, get: Call, requests: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for _ in self.deadline.tries():
            answer = get(RequestItems=requests)
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
        if wanted.before:  # both are among what is found
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
                ConsistentRead=True,
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

    def _read(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        """Makes a call that reads source items, and says what is missing where they may not be read."""
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

    def scan(self, table: Table, part: Segment, after: ScanPlace | None, limit: int) -> ScanPage:
        use = Expression()
        answer = self._call(
            self._client((table.name, "", None)).scan,
            TableName=self.requests.real_name(table.name),
            ConsistentRead=True,
            Segment=part.number,
            TotalSegments=part.of,
            Limit=limit,
            ProjectionExpression=", ".join(map(use.name, table.attributes)),
            **use.arguments(),
            **start_of(after),
        )
        return ScanPage([item_key(item, table) for item in answer["Items"]], place_text(answer.get("LastEvaluatedKey")))

    def state_items(self) -> Iterator[StoredItem]:
        return self._pages(self.client, "scan", TableName=self.requests.state_table, ConsistentRead=True)


def cut(values: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some
