"""A batch of 1,000 records that comes again, against its first delivery: what an invocation that is repeated costs.

The service holds what the first delivery wrote to the ledger: a transaction that meets it is refused with the items,
and a read finds them. The process does not know that the batch came before, only that it may have.
"""

import json
import os
import time
import warnings
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.bench.service import Service, stubbed
from tests.bench.strategies import ENVIRONMENT, RECORDS, Context, application, event

ROUNDS = 7


class Delivery(NamedTuple):
    """What one delivery of the batch took."""

    seconds: float
    cpu_seconds: float
    requests: int


def ledger_after(batch: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The ledger items that a delivery of the batch leaves, encoded as DynamoDB answers them."""
    from streamfold.engines.memory import MemoryEngine

    app = application()
    engine = MemoryEngine(app.tables.values())
    assert not app.process(batch, engine=engine)
    items = ((item["pk"]["S"], item["sk"]["S"], item) for item in engine.state_items())
    return {(pk, sk): json.dumps(item) for pk, sk, item in items if pk.startswith("ledger#")}


def deliver(function: Any, service: Service, batch: dict[str, Any]) -> Delivery:
    """Delivers the batch in a process whose last invocation did not end well."""
    service.reset()
    function.pace.began()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    assert not function(batch, Context())["batchItemFailures"]
    return Delivery(time.perf_counter() - begin, time.process_time() - begin_cpu, service.requests.total())


def deliveries(service: Service, rounds: int, records: int = RECORDS) -> Iterator[tuple[Delivery, Delivery]]:
    """Pairs of a first delivery and one that comes again, in one process."""
    from streamfold.lambda_entry.function import Function
    from streamfold.settings import Settings

    batch = event(records)
    kept = ledger_after(batch)
    function = Function(application(), Settings.from_environment(os.environ))
    function(event(2), Context())  # what is made once: the manifest
    manifest = {**service.kept}
    for _ in range(rounds):
        service.kept = {**manifest}
        first = deliver(function, service, batch)
        service.kept = {**manifest, **kept}
        yield first, deliver(function, service, batch)


def run(*, large: bool) -> Iterator[str]:
    """What both deliveries took, and the median of their ratios."""
    del large
    warnings.simplefilter("ignore")
    with patch.dict(os.environ, ENVIRONMENT), stubbed() as service:
        pairs = [*deliveries(service, ROUNDS)]
    for name, some in zip(("first", "again"), zip(*pairs, strict=True), strict=True):
        cpu = median(each.cpu_seconds for each in some) / RECORDS * 1e6
        yield f"{name}: {some[0].requests} requests, {cpu:,.0f} us of CPU a record"
    time_, cpu = (median(again[at] / first[at] for first, again in pairs) for at in (0, 1))
    yield f"again takes {time_:.2f} of the time of the first (goal: at most 0.25), and {cpu:.2f} of its CPU"
