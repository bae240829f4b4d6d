"""Documents of 500 bytes that an OpenSearch server takes, through a sink and through opensearch-py's helpers.bulk.

Both begin with the same dictionaries, in turns, on one server. helpers.bulk gets them ready, with versions.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any
from uuid import uuid4

from opensearchpy import OpenSearch, helpers

from streamfold.derivations.search.opensearch import open_search
from streamfold.derivations.search.sink import VISIBLE, Action, Sink, send
from streamfold.engines.deadline import Deadline
from streamfold.settings import Settings
from tests.search.servers import Server
from tests.tools.opensearch import fetch

VERSION = "2.19.6"
ROUNDS = 15
DOCUMENTS = 2_000
CHUNK = 500
MAPPING = {"dynamic": False, "properties": {"_sf_gone": {"type": "boolean"}, "title": {"type": "text"}}}
IMPORT = """
import sys, time
before = [name for name in sys.argv[1:]]
for name in before: __import__(name)
begin = time.process_time()
import opensearchpy
print((time.process_time() - begin) * 1000)
"""

Write = Callable[[str, list[dict[str, Any]]], None]


def run(*, large: bool) -> Iterator[str]:
    for beside in ([], ["boto3"]):
        milliseconds = median(_import_milliseconds(beside) for _ in range(7))
        yield f"import opensearchpy takes {milliseconds:.0f} ms of CPU{' beside boto3' if beside else ''}"
    fetch(VERSION)
    server = Server(VERSION)
    try:
        server.start()
        yield from _compared(server, DOCUMENTS * (10 if large else 1))
    finally:
        server.remove()


def _compared(server: Server, count: int) -> Iterator[str]:
    server.ask("PUT", "/documents-1", {"mappings": MAPPING, "aliases": {"documents": {"filter": VISIBLE}}})
    sink = open_search(Settings(search=server.url))
    client = OpenSearch(server.url)
    ways: dict[str, Write] = {"sink": _with_sink(sink), "helpers.bulk": _with_helpers(client)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 2):
        for name in sorted(ways, reverse=bool(number % 2)):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            ways[name](uuid4().hex, _documents(count))
            if number >= 2:  # the server is warm
                seconds[name].append(time.perf_counter() - begin)
                cpu[name].append(time.process_time() - begin_cpu)
    rates = {name: count / median(found) for name, found in seconds.items()}
    ratio = median(theirs / ours for ours, theirs in zip(seconds["sink"], seconds["helpers.bulk"], strict=True))
    client.close()
    sink.close()  # type: ignore[attr-defined]
    yield ", ".join(f"{name} {rate:,.0f} documents/s" for name, rate in rates.items())
    yield f"the sink takes {ratio:.2f} times the documents of helpers.bulk (goal: at least 1.0)"
    own = {name: median(found) / count * 1e6 for name, found in cpu.items()}
    yield ", ".join(f"{name} {microseconds:.1f} us of CPU a document" for name, microseconds in own.items())


def _documents(count: int) -> list[dict[str, Any]]:
    text = "lorem ipsum dolor sit amet, " * 16
    return [{"title": f"Tea {number}", "price": number, "text": text[: 440 + number % 8]} for number in range(count)]


def _with_sink(sink: Sink) -> Write:
    def write(prefix: str, documents: list[dict[str, Any]]) -> None:
        for start in range(0, len(documents), CHUNK):
            actions = [
                Action("documents", f"{prefix}-{number}", 1, json.dumps(document, separators=(",", ":")).encode())
                for number, document in enumerate(documents[start : start + CHUNK], start)
            ]
            assert all(sent.is_done for sent in send(sink, actions, Deadline()))

    return write


def _with_helpers(client: OpenSearch) -> Write:
    def write(prefix: str, documents: list[dict[str, Any]]) -> None:
        actions = [
            {
                "_index": "documents",
                "_id": f"{prefix}-{number}",
                "_version": 1,
                "_version_type": "external",
                "_source": document,
            }
            for number, document in enumerate(documents)
        ]
        assert helpers.bulk(client, actions, chunk_size=CHUNK) == (len(documents), [])

    return write


def _import_milliseconds(beside: list[str]) -> float:
    command = [sys.executable, "-c", IMPORT, *beside]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
