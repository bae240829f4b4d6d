"""One batch of 1,000 records that keeps three counters a record: streamfold against what one would write oneself.

A service that only takes its time (``service``) stands for DynamoDB. The bound is no rival: it sends the sums of the
batch, and is safe only against the redelivery of the very same batch.
"""

import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from statistics import median
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

if TYPE_CHECKING:
    from tests.bench.service import Service

RECORDS, ROUNDS = 1_000, 3
KINDS = ("USER", "ORDER", "POST", "SESSION", "PRODUCT")
USERS = 500
ARN = "arn:aws:dynamodb:us-east-1:123456789012:table/app/stream/2026-03-01T00:00:00.000"
THREADS = 8
NAIVE, OURS, BOUND = "naive boto3, at least once", "streamfold, exactly once", "bound: sums alone, 8 threads"
COUNTED = 99
"""Counters in one transaction of the bound, beside its checkpoint."""
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "y",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_ACCOUNT_ID_ENDPOINT_MODE": "disabled",
    "POWERTOOLS_TRACE_DISABLED": "true",
    "POWERTOOLS_SERVICE_NAME": "bench",
    "POWERTOOLS_METRICS_NAMESPACE": "bench",
    "STREAMFOLD_TABLE_APP": "app",
    "STREAMFOLD_STATE_TABLE": "state",
    "STREAMFOLD_OBSERVE": "off",
}

Place = tuple[str, str]


class Used(NamedTuple):
    """What a strategy took for the batch."""

    seconds: float
    cpu_seconds: float
    requests: int
    writes: int
    conflicts: int


def event(records: int, seed: int = 7) -> dict[str, Any]:
    """Inserts, amendments and removals of five kinds of items; a few users have most of them."""
    random = Random(seed)
    made = [_record(random, number) for number in range(records)]
    return {"Records": json.loads(json.dumps(made))}


def _record(random: Random, number: int) -> dict[str, Any]:
    kind = random.choice(KINDS)
    keys = {
        "pk": {"S": f"{kind}#{int(USERS * random.random() ** 3):05d}"},
        "sk": {"S": f"{random.getrandbits(48):012x}"},
    }
    image = {**keys, "type": {"S": kind}, "text": {"S": "x" * random.randrange(100, 400)}, "n": {"N": str(number)}}
    change = random.choices(("INSERT", "MODIFY", "REMOVE"), (45, 40, 15))[0]
    body = {"Keys": keys, "SequenceNumber": str(10**24 + number), "StreamViewType": "NEW_AND_OLD_IMAGES"}
    body["ApproximateCreationDateTime"] = 1772359200.0
    body |= {"NewImage": image} if change != "REMOVE" else {}
    body |= {"OldImage": {**image, "n": {"N": "0"}}} if change != "INSERT" else {}
    return {"eventID": f"{number:032x}", "eventName": change, "eventSource": "aws:dynamodb", "dynamodb": body} | {
        "eventVersion": "1.1",
        "awsRegion": "us-east-1",
        "eventSourceARN": ARN,
    }


def counters(record: dict[str, Any]) -> tuple[Place, ...]:
    """The three counters that a record raises."""
    partition = record["dynamodb"]["Keys"]["pk"]["S"]
    kind = partition.partition("#")[0]
    return (f"COUNTERS#{partition}", "COUNT"), (f"STATS#{kind}", "ALL"), ("DAY#2026-03-01", kind)


def _update(place: Place, amount: int = 1) -> dict[str, Any]:
    return {
        "TableName": "app",
        "Key": {"pk": {"S": place[0]}, "sk": {"S": place[1]}},
        "UpdateExpression": "ADD #n :n",
        "ExpressionAttributeNames": {"#n": "n"},
        "ExpressionAttributeValues": {":n": {"N": str(amount)}},
    }


def naive(client: Any, batch: dict[str, Any]) -> Callable[[], None]:
    def work() -> None:
        for record in batch["Records"]:
            for place in counters(record):
                client.update_item(**_update(place))

    return work


def powertools(client: Any, batch: dict[str, Any], *, idempotent: bool) -> Callable[[], None]:
    from aws_lambda_powertools.utilities import batch as batches
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

    processor = batches.BatchProcessor(event_type=batches.EventType.DynamoDBStreams)

    def handle(record: Any) -> None:
        for place in counters(record.raw_event):
            client.update_item(**_update(place))

    handler: Any = handle
    if idempotent:
        store = DynamoDBPersistenceLayer(table_name="idempotency", boto3_client=client)
        config = IdempotencyConfig(event_key_jmespath="eventID")
        handler = idempotent_function(handle, data_keyword_argument="record", config=config, persistence_store=store)

    def work() -> None:
        done = batches.process_partial_response(event=batch, record_handler=handler, processor=processor)
        assert not done["batchItemFailures"]

    return work


def bound(client: Any, batch: dict[str, Any]) -> Callable[[], None]:
    """The sums of the batch in the fewest transactions, in flight at once; the body of each is encoded here."""
    pending = local()

    def swap(params: dict[str, Any], **_: Any) -> None:
        params["body"], pending.body = pending.body, b""

    client.meta.events.register("before-call.dynamodb.TransactWriteItems", swap)

    def send(writes: list[dict[str, Any]]) -> None:
        pending.body = json.dumps({"TransactItems": writes}, separators=(",", ":")).encode()
        client.transact_write_items(TransactItems=[])

    def work() -> None:
        sums = Counter(place for record in batch["Records"] for place in counters(record))
        updates = [{"Update": _update(place, amount)} for place, amount in sums.items()]
        cuts = [updates[at : at + COUNTED] for at in range(0, len(updates), COUNTED)]
        whole = [[{"Update": _update((f"CHECKPOINT#{number}", "-"))}, *cut] for number, cut in enumerate(cuts)]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(send, whole))

    return work


def application() -> Any:
    """An application whose handlers keep the same counters."""
    from streamfold import App, Count, Key, Router, Row, Table

    table, router = Table("app", partition="pk", sort="sk"), Router()
    stats, day = Key("STATS#{type}", "ALL", table=table), Key("DAY#{day}", "{type}", table=table)

    def declare(kind: str) -> None:
        source = Key(kind + "#{user}", "{item}", table=table)
        own = Key("COUNTERS#" + kind + "#{user}", "COUNT", table=table)
        name = kind.lower()

        @router.view(source, into=own, name=f"{name}_counters")
        def counted(item: Any) -> Iterator[Row]:
            yield Row(n=Count())

        @router.view(source, into=stats, name=f"{name}_stats")
        def of_kind(item: Any) -> Iterator[Row]:
            yield Row(type=item["type"], **{f"{name}_n": Count()})

        @router.view(source, into=day, name=f"{name}_days")
        def of_day(item: Any) -> Iterator[Row]:
            yield Row(day="2026-03-01", type=item["type"], **{f"{name}_n": Count()})

    for kind in KINDS:
        declare(kind)
    return App("bench", routers=[router])


def ours(batch: dict[str, Any]) -> Callable[[], None]:
    """The application called as Lambda calls it."""
    app = application()
    app.lambda_handler(event(2), Context())  # what is made once: clients, the manifest

    def work() -> None:
        assert not app.lambda_handler(batch, Context())["batchItemFailures"]

    return work


class Context:
    """Of an invocation with time enough."""

    aws_request_id, function_name = "1", "bench"

    @staticmethod
    def get_remaining_time_in_millis() -> int:
        return 600_000


def measured(service: "Service", work: Callable[[], None], rounds: int) -> Used:
    """The median round."""
    found = []
    for _ in range(rounds):
        service.reset()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        work()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        found.append(Used(seconds, cpu, service.requests.total(), service.writes, service.conflicts))
    middle = median(used.seconds for used in found)
    return min(found, key=lambda used: abs(used.seconds - middle))


def all_measured(records: int = RECORDS) -> dict[str, Used]:
    """Every strategy on the same batch, in this process."""
    from tests.bench.service import stubbed

    warnings.simplefilter("ignore")
    with patch.dict(os.environ, ENVIRONMENT), stubbed() as service:
        import boto3
        from botocore.config import Config

        batch = event(records)
        client = boto3.client("dynamodb")
        lean = boto3.client("dynamodb", config=Config(parameter_validation=False, max_pool_connections=THREADS))
        own = ours(batch)
        return {
            NAIVE: measured(service, naive(client, batch), 1),
            "Powertools BatchProcessor, at least once": measured(
                service, powertools(client, batch, idempotent=False), 1
            ),
            "Powertools with idempotency": measured(service, powertools(client, batch, idempotent=True), 1),
            OURS: measured(service, own, ROUNDS),
            BOUND: measured(service, bound(lean, batch), ROUNDS),
        }


def _rivals(found: dict[str, Used]) -> Iterator[tuple[str, Used]]:
    return ((name, used) for name, used in found.items() if name not in (OURS, BOUND))


def run(*, large: bool) -> Iterator[str]:
    """A table, and how far streamfold is from the bound."""
    del large
    found = all_measured()
    ours_, best, naive_ = found[OURS], found[BOUND], found[NAIVE]
    yield "| | records/s | of the bound | CPU a record | of naive boto3's | requests | item writes |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, used in found.items():
        yield (
            f"| {name} | {RECORDS / used.seconds:,.0f} | {best.seconds / used.seconds:.3f} | "
            f"{used.cpu_seconds / RECORDS * 1e6:,.0f} us | {used.cpu_seconds / naive_.cpu_seconds:.2f} | "
            f"{used.requests:,} | {used.writes:,} |"
        )
    yield ""
    times = ", ".join(f"{used.seconds / ours_.seconds:.1f} times those of {name}" for name, used in _rivals(found))
    yield f"streamfold's records/s are {times}; {best.seconds / ours_.seconds:.3f} of the bound."
