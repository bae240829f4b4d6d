"""Indexes on a server: made as they are declared, tried, and compared with their declaration."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from streamfold.derivations.search.declared import SearchIndex
from streamfold.derivations.search.differences import IndexDifference, mapping_differences, setting_differences
from streamfold.derivations.search.make import hidden
from streamfold.derivations.search.names import in_path
from streamfold.derivations.search.opensearch import OpenSearchIndex, hides
from streamfold.derivations.search.sink import CONFLICT, Action
from streamfold.errors import EngineError, EngineUnavailable, SettingsError, plain

PROBE = "_sf_probe"
"""The id of the document that tries an index."""
PROBE_VERSION = 5
FILTERED = "an alias of one index that hides what is gone"


class Tried(NamedTuple):
    """Whether an index refuses older versions; if not, why that is thought."""

    holds: bool
    why: str = ""


def create_index(index: SearchIndex, sink: OpenSearchIndex) -> None:
    """Makes an index with its alias, in one request. Raises ``SettingsError`` where one of the names is taken."""
    if found := about(sink, index.alias):
        raise SettingsError(_taken(index, found))
    if about(sink, index.first):
        raise SettingsError(
            f"Index {index.first!r} is there, and alias {index.alias!r} is not. Expected neither of them: delete the "
            "index if nobody needs it, or give it the alias that --dry-run prints."
        )
    sink.calls.ask("PUT", f"/{in_path(index.first)}", index.body)


def try_versions(index: SearchIndex, sink: OpenSearchIndex, now: float) -> Tried:
    """Tries whether an index refuses a version that is older than what it holds. It leaves no document behind.

    The document is hidden from the beginning: no search meets it.
    """
    body = hidden(now)
    try:
        newer = _bulk(sink, index, PROBE_VERSION, body)
        older = _bulk(sink, index, PROBE_VERSION - 1, body)
        gone = _bulk(sink, index, PROBE_VERSION + 1, None)
    except EngineUnavailable:
        raise
    except EngineError as error:
        return Tried(False, plain(error.marked))
    if not newer.is_done:
        return Tried(False, f"It did not take version {PROBE_VERSION} of a document ({newer.status}: {newer.reason}).")
    if older.status != CONFLICT:
        return Tried(
            False, f"It took version {PROBE_VERSION - 1} of a document after version {PROBE_VERSION} ({older.status})."
        )
    if not gone.is_done:
        return Tried(False, f"It did not delete a document in version {PROBE_VERSION + 1} ({gone.status}).")
    return Tried(True)


def _bulk(sink: OpenSearchIndex, index: SearchIndex, version: int, body: bytes | None) -> Any:
    return sink.bulk([Action(index.alias, PROBE, version, body)])[0]


def differences(index: SearchIndex, sink: OpenSearchIndex) -> list[IndexDifference]:
    """What differs between the declaration of an index and the server."""
    found = about(sink, index.alias)
    if not found:
        return [IndexDifference("alias", index.alias, FILTERED)]
    several = len(found) > 1
    return [
        *_alias_differences(index, found),
        *(
            difference._replace(behind=name if several else None)
            for name, there in sorted(found.items())
            for difference in (
                *mapping_differences(index.mapping, there.get("mappings", {})),
                *setting_differences(index.settings, there.get("settings", {})),
            )
        ),
    ]


def _alias_differences(index: SearchIndex, found: Mapping[str, Any]) -> Iterator[IndexDifference]:
    """What is wrong with the alias: the same for which documents are not sent."""
    if index.alias in found:
        yield IndexDifference("alias", index.alias, FILTERED, "an index")
        return
    own = {name: there["aliases"].get(index.alias, {}) for name, there in found.items()}
    if len(own) > 1 and not any(each.get("is_write_index") for each in own.values()):
        yield IndexDifference("alias", index.alias, FILTERED, "several indices and none to write to")
    for name in sorted(name for name, each in own.items() if not hides(each.get("filter"))):
        yield IndexDifference("alias", index.alias, FILTERED, f"no filter on {name}")


def about(sink: OpenSearchIndex, name: str) -> dict[str, Any]:
    """What the server knows of an index, or of those behind an alias: mappings, settings, aliases. Empty: nothing."""
    found: dict[str, Any] | None = sink.calls.ask("GET", f"/{in_path(name)}", flat_settings="true")
    return found or {}


def _taken(index: SearchIndex, found: Mapping[str, Any]) -> str:
    if index.alias in found:
        return (
            f"{index.alias!r} is an index, and has to be an alias: searches would show documents of items that are "
            "gone. Delete the index, or give the search another name, and run the command again."
        )
    return (
        f"Alias {index.alias!r} is there, for {', '.join(sorted(found))}: nothing was created. "
        f"streamfold search diff {index.alias} tells whether they are as declared."
    )
