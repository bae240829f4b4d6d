"""Removes documents from a server that were hidden long ago: nothing older than they are is on its way any more.

Each is removed only if it is still what was found. The same request makes the removal visible to the next search, so
that what is left is always found first.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from streamfold.derivations.search.names import GONE, GONE_AT, in_path
from streamfold.derivations.search.opensearch import OpenSearchIndex
from streamfold.derivations.search.sink import CONFLICT
from streamfold.errors import EngineUnavailable, told

PAGE_DOCUMENTS = 500
GONE_ALREADY = (404, CONFLICT)
"""Statuses of a document that was written or removed since it was found."""
ANSWER = {"filter_path": "items.*.status,items.*.error.type,items.*.error.reason", "refresh": "true"}


class PurgedPage(NamedTuple):
    """What became of some hidden documents."""

    removed: int
    changed: int  # written or removed by somebody else since they were found


def count_hidden(sink: OpenSearchIndex, alias: str, before_ms: int) -> int:
    """How many documents behind an alias were hidden before a time, in epoch milliseconds. Raises as ``check``."""
    answer = sink.calls.ask("POST", f"{_path(sink, alias)}/_count", {"query": _hidden(before_ms)})
    return int(answer["count"]) if answer else 0


def purge(sink: OpenSearchIndex, alias: str, before_ms: int) -> Iterator[PurgedPage]:
    """Removes documents that were hidden before a time, page by page.

    Raises ``EngineUnavailable`` where the server is busy: what was removed stays so.
    """
    path = _path(sink, alias)
    body = {
        "query": _hidden(before_ms),
        "size": PAGE_DOCUMENTS,
        "sort": [{GONE_AT: "asc"}],
        "seq_no_primary_term": True,
        "_source": False,
        "track_total_hits": False,
    }
    while True:
        found = sink.calls.ask("POST", f"{path}/_search", body)
        hits = found["hits"]["hits"] if found else []
        page = _remove(sink, hits) if hits else PurgedPage(0, 0)
        yield page
        if not page.removed:  # the rest was changed meanwhile, or a server without refresh still shows what is gone
            return


def _path(sink: OpenSearchIndex, alias: str) -> str:
    """The indices behind an alias, whose filter would hide what is sought."""
    sink.check(alias)
    found = sink.calls.ask("GET", f"/{in_path(alias)}/_alias") or {}
    return "/" + ",".join(map(in_path, sorted(found)))


def _hidden(before_ms: int) -> dict[str, Any]:
    old = {"range": {GONE_AT: {"lt": before_ms, "format": "epoch_millis"}}}
    return {"bool": {"filter": [{"term": {GONE: True}}, old]}}


def _remove(sink: OpenSearchIndex, hits: list[Any]) -> PurgedPage:
    """Removes documents that are still what was found."""
    lines = "".join(f"{json.dumps(_deletion(hit))}\n" for hit in hits)
    answer = sink.calls.send("POST", "/_bulk", lines.encode(), ANSWER)
    items = [item["delete"] for item in answer.get("items", ())]
    for item in items:
        if item["status"] not in (200, *GONE_ALREADY):
            reason = told(item.get("error", {}).get("reason", ""))
            raise EngineUnavailable(f"OpenSearch did not remove a document ({item['status']}: {reason}).")
    removed = sum(item["status"] == 200 for item in items)
    return PurgedPage(removed, len(items) - removed)


def _deletion(hit: Any) -> dict[str, Any]:
    """The line of a bulk that removes a document, if it is still what was found."""
    found = {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    return {"delete": {"_index": hit["_index"], "_id": hit["_id"], **found}}
