"""A real FIFO queue, ElasticMQ: processes that are killed at random send each id once, in order for each item."""

import json
import multiprocessing
import time
from collections import defaultdict
from random import Random
from uuid import uuid4

import boto3
import pytest

from streamfold import App, Router
from streamfold.batch.process import process_event
from streamfold.engines.memory import MemoryEngine
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.publishers import ORDER
from tests.helpers.required import lacking
from tests.helpers.source import Source
from tests.tools import elasticmq

PROCESSES, RECORDS, ITEMS, BATCH, KILLS = 4, 60, 5, 10, 8
RUN_SECONDS_MAX = 60

router = Router()
router.publish(ORDER, to="sqs:orders.fifo", type="order.{event}", data=["new"], name="orders")
app = App("shop", routers=[router])


@pytest.fixture(scope="module")
def server():
    if not elasticmq.is_there():
        lacking("no ElasticMQ: run .venv/bin/python -m tests.tools.elasticmq fetch")
    with elasticmq.serving() as url:
        yield url


@pytest.fixture
def queue(server, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("sqs", endpoint_url=server)
    name = f"orders-{uuid4().hex[:12]}.fifo"
    return client, client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]


def work(url, records, position):
    """One process: it goes on behind the last batch that was acknowledged, as a mapping does."""
    runtime = Runtime(app, MemoryEngine(app.tables.values()), Settings(destinations={"orders.fifo": url}), outside=True)
    while position.value < len(records):
        batch = records[position.value : position.value + BATCH]
        failed = {failure.sequence for failure in process_event(runtime, batch).failures}
        numbers = [record["dynamodb"]["SequenceNumber"] for record in batch]
        position.value += next((place for place, number in enumerate(numbers) if number in failed), len(batch))


def shard_of(shard, random):
    source = Source()
    return [
        source.put(f"ORDER#{shard}-{random.randrange(ITEMS)}", status=str(number), turn=number)
        for number in range(RECORDS)
    ]


def run(url, random):
    """Processes all shards, whose processes are killed and begun again; returns the number of kills."""
    context = multiprocessing.get_context("fork")
    shards = [shard_of(shard, random) for shard in range(PROCESSES)]
    positions = [context.Value("i", 0) for _ in shards]

    def begin(number):
        process = context.Process(target=work, args=(url, shards[number], positions[number]), daemon=True)
        process.start()
        return process

    running, killed, deadline = [begin(number) for number in range(PROCESSES)], 0, time.monotonic() + RUN_SECONDS_MAX
    while any(position.value < RECORDS for position in positions):
        assert time.monotonic() < deadline, "the processes do not come to an end"
        time.sleep(random.uniform(0.02, 0.25))
        number = random.randrange(PROCESSES)
        if killed < KILLS and running[number].is_alive() and positions[number].value < RECORDS:
            running[number].kill()
            killed += 1
        for each, process in enumerate(running):
            if not process.is_alive() and positions[each].value < RECORDS:
                process.join()
                running[each] = begin(each)
    for process in running:
        process.join()
    return killed


def received(client, url):
    """All messages of the queue, in its order."""
    found, empty = [], 0
    while empty < 2:
        answer = client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["MessageGroupId"], MessageAttributeNames=["All"]
        )
        messages = answer.get("Messages", [])
        empty = 0 if messages else empty + 1
        found += messages
        entries = [{"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(messages)]
        if entries:
            client.delete_message_batch(QueueUrl=url, Entries=entries)
    return found


def check_run(queue, seed):
    client, url = queue
    killed = run(url, Random(seed))
    groups, ids = defaultdict(list), []
    for each in received(client, url):
        envelope = json.loads(each["Body"])
        ids.append(envelope["id"])
        groups[each["Attributes"]["MessageGroupId"]].append(envelope["sequence"])
        assert each["MessageAttributes"]["id"]["StringValue"] == envelope["id"]
    assert len(ids) == len(set(ids)) == PROCESSES * RECORDS
    assert all(sequences == sorted(sequences) for sequences in groups.values())
    return killed


def test_killed_processes_send_each_id_once_and_in_order(queue):
    assert check_run(queue, 0)


SEEDS = [*range(1, 4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_more_runs_with_killed_processes(queue, seed):
    assert check_run(queue, seed)


def test_a_queue_that_takes_less_is_asked_and_obeyed(queue):
    client, url = queue
    client.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "2048"})
    runtime = Runtime(app, MemoryEngine(app.tables.values()), Settings(destinations={"orders.fifo": url}), outside=True)
    source = Source()
    report = process_event(runtime, [source.put("ORDER#1", note="x" * 4000), source.put("ORDER#2", note="y")])
    asked = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert len(report.failures) == ("MaximumMessageSize" in asked)
    assert len(received(client, url)) == 2 - len(report.failures)
