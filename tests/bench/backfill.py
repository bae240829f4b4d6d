"""A backfill whose process is killed again and again, and one beside a writer on DynamoDB Local."""

import os
from collections.abc import Iterator

from tests.bench.beside import beside
from tests.bench.killed import killed

KILLED, KILLED_LARGE = 100_000, 1_000_000
BESIDE, BESIDE_LARGE = 10_000, 100_000
PAGES = (500, 200)


def run(*, large: bool) -> Iterator[str]:
    yield from map(str, killed(KILLED_LARGE if large else KILLED, PAGES))
    endpoint = os.environ.get("DYNAMODB_ENDPOINT")
    if endpoint:
        yield from beside(endpoint, BESIDE_LARGE if large else BESIDE)
    else:
        yield "no DynamoDB Local: run tests/tools/engine.py with dynamodb -- python -m tests.bench backfill"
