"""The documents of an OpenSearch server, versions 2.19 and 3.6 alike.

opensearch-py carries the requests. It is imported when a connection is opened (``connection.py``), never by this
module. Bodies are encoded here, because its serializer would turn decimals to floats.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from typing import Any
from urllib.parse import quote

from streamfold.derivations.search.calls import SearchCalls
from streamfold.derivations.search.names import GONE
from streamfold.derivations.search.sink import BUSY, CONFLICT, VISIBLE, Action, Answer, Found
from streamfold.errors import EngineError, EngineUnavailable, told

BULK = {"filter_path": "items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by"}
"""What the answer to a bulk has to tell; the rest would be most of it."""
HELD = re.compile(r"current version \[(\d+)\]")
"""The version that the index holds, in the reason of a conflict (OpenSearch, VersionConflictEngineException)."""
NO_WRITE_INDEX = "no write index is defined for alias"
READ_IDS = 100
"""Documents that are read at once by their ids."""
PAGE_DOCUMENTS = 250
"""Documents that are read at once in a scan."""
KEEP = "2m"
"""How long the server keeps a scan between two pages."""
CREATE = "streamfold search create"
REMEDY = "Expected an alias of one open index that may be written."
FOR_GOOD = {
    "index_not_found_exception": f"Expected an alias that is there: {CREATE} INDEX makes it.",
    "cluster_block_exception": "Expected an index that may be written: take its block away (index.blocks.write, "
    "index.blocks.read_only).",
    "security_exception": "Expected permissions for this index: the access policy has to name the function's role.",
    "index_closed_exception": "Expected an open index: open it.",
}
"""Errors of a document that concern its whole index, with what to do about them."""


class OpenSearchIndex:
    """A sink that writes to the indices of a server, through their aliases."""

    def __init__(self, transport: Any, url: str) -> None:
        self.url = url
        self.calls = SearchCalls(transport, url)
        self.checked: set[str] = set()  # aliases that are as expected

    def check(self, index: str) -> None:
        if index not in self.checked:
            self._check(index)
            self.checked.add(index)

    def bulk(self, actions: Sequence[Action]) -> list[Answer]:
        if not actions:
            return []
        found = self.calls.send("POST", "/_bulk", encoded(actions), BULK)
        items = found.get("items", ()) if isinstance(found, dict) else ()
        if len(items) != len(actions):
            raise EngineUnavailable(f"OpenSearch at {self.url} answered {len(items)} of {len(actions)} documents.")
        return [self._answer(action, next(iter(item.values()))) for action, item in zip(actions, items, strict=True)]

    def read(self, index: str, ids: Collection[str]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        wanted = [*ids]
        for start in range(0, len(wanted), READ_IDS):
            page = {"ids": wanted[start : start + READ_IDS]}
            answer = self._there(index, self.calls.ask("POST", f"/{quote(index)}/_mget", page))
            for document in answer["docs"]:
                if "error" in document:
                    raise self._for_good(index, document["error"])
                if document["found"]:
                    found[document["_id"]] = _found(document)
        return found

    def documents(self, index: str, *, hidden: bool = False) -> Iterator[Found]:
        """In the order of their last writes.

        A scan holds a point in time and pages by ``_seq_no``, which needs no memory for ids as sorting by ``_id``
        does. Numbers are counted in each shard: the documents of the last one are asked for twice, and left out once.
        """
        names = ",".join(sorted(self._behind(index))) if hidden else index
        opened = self.calls.ask("POST", f"/{quote(names)}/_search/point_in_time", keep_alive=KEEP)
        point = self._there(index, opened)["pit_id"]
        try:
            yield from self._scan(point)
        finally:
            with suppress(EngineError):  # the server drops it by itself then
                self.calls.ask("DELETE", "/_search/point_in_time", {"pit_id": [point]})

    def close(self) -> None:
        """Closes the connections."""
        self.calls.close()

    def _check(self, index: str) -> None:
        found = self._behind(index)
        if index in found:
            raise EngineError(
                f"{index!r} is an index, and has to be an alias: searches would show documents of items that are gone. "
                f"Expected an alias that filters them; {CREATE} INDEX makes index and alias, after this one is deleted."
            )
        if len(found) > 1 and not any(alias.get("is_write_index") for alias in found.values()):
            raise EngineError(
                f"Alias {index!r} stands for the indices {', '.join(sorted(found))}, and none is the one to write to. "
                "Expected one index: remove the others from the alias."
            )
        if unfiltered := sorted(name for name, alias in found.items() if not hides(alias.get("filter"))):
            raise EngineError(
                f"Alias {index!r} has no filter on {', '.join(unfiltered)}: searches would show documents of items "
                f"that are gone. Expected the filter {VISIBLE}; {CREATE} INDEX --dry-run prints an alias with it."
            )

    def _scan(self, point: str) -> Iterator[Found]:
        body: dict[str, Any] = {
            "pit": {"id": point, "keep_alive": KEEP},
            "size": PAGE_DOCUMENTS,
            "sort": ["_seq_no"],
            "version": True,
            "track_total_hits": False,
        }
        seen: set[tuple[str, str]] = set()
        while True:
            hits = self._there("", self.calls.ask("POST", "/_search", body))["hits"]["hits"]
            new = [hit for hit in hits if (hit["_index"], hit["_id"]) not in seen]
            yield from map(_found, new)
            if len(hits) < PAGE_DOCUMENTS:
                return
            last = hits[-1]["sort"][0]
            seen = {(hit["_index"], hit["_id"]) for hit in hits if hit["sort"][0] == last}
            body["search_after"] = [last - 1]

    def _behind(self, index: str) -> Mapping[str, Mapping[str, Any]]:
        """The indices behind an alias, with what the alias says of each; of an index itself nothing."""
        found = self._there(index, self.calls.ask("GET", f"/{quote(index)}/_alias"))
        return {name: about["aliases"].get(index, {}) for name, about in found.items()}

    def _there(self, index: str, answer: Any) -> Any:
        if answer is None:
            raise EngineError(f"Alias {index!r} is not there. Expected one: {CREATE} INDEX makes it.")
        return answer

    def _answer(self, action: Action, item: Mapping[str, Any]) -> Answer:
        status, error = item["status"], item.get("error")
        if error is None:
            return Answer(status)
        kind, reason = error.get("type", ""), error.get("reason", "")
        if status != BUSY and (kind in FOR_GOOD or NO_WRITE_INDEX in reason):
            raise self._for_good(action.index, error)
        held = HELD.search(reason) if status == CONFLICT else None
        return Answer(status, _whole(error), int(held[1]) if held else None)

    def _for_good(self, index: str, error: Mapping[str, Any]) -> EngineError:
        self.checked.discard(index)
        kind = error.get("type", "")
        what = f"Alias {index!r} at {self.url} takes no documents: {kind} ({told(error.get('reason', ''))})."
        return EngineError(f"{what} {FOR_GOOD.get(kind, REMEDY)}")

    def __str__(self) -> str:
        return self.url


def encoded(actions: Sequence[Action]) -> bytes:
    """The body of a bulk: lines of JSON."""
    lines: list[bytes] = []
    for action in actions:
        lines.append(_head(action).encode())
        if action.body is not None:
            lines.append(action.body.replace(b"\n", b" "))
    lines.append(b"")
    return b"\n".join(lines)


def _head(action: Action) -> str:
    verb = "delete" if action.body is None else "index"
    index, name = encode_basestring_ascii(action.index), encode_basestring_ascii(action.id)
    place = f'"_index":{index},"_id":{name},"require_alias":true'
    return f'{{"{verb}":{{{place},"version":{action.version},"version_type":"external"}}}}'


def hides(found: Any) -> bool:
    """Whether the filter of an alias leaves out what is gone; it may leave out more."""
    clauses = found.get("bool", {}).get("must_not", []) if isinstance(found, dict) else []
    if isinstance(clauses, dict):
        clauses = [clauses]
    return any(clause.get("exists", {}).get("field") == GONE for clause in clauses)


def _found(document: Mapping[str, Any]) -> Found:
    return Found(document["_id"], document["_version"], document["_source"])


def _whole(error: Mapping[str, Any]) -> str:
    """The reason of an item's error with its innermost cause, which tells what is wrong with the document."""
    reasons = [str(error.get("reason", error.get("type", "")))]
    while isinstance(error := error.get("caused_by", {}), dict) and error:
        reasons.append(str(error.get("reason", "")))
    return ": ".join(dict.fromkeys(filter(None, [reasons[0], reasons[-1]])))
