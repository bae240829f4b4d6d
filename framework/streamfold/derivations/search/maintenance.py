"""Maintenance of an index: documents copied to a new one, compared with their items, and purged."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import unquote

from streamfold.commit.referents import lacking_backlinks
from streamfold.derivations.expected import Expected, History, MadeOf, Values, gathered_items, referents_of
from streamfold.derivations.search.documents import (
    Root,
    RootRun,
    document_id,
    document_text,
    gathered,
    gone_body,
    index_of,
    known_sources,
    look_up_referents,
    noted,
    own_fields,
    parsed,
    reconcile,
)
from streamfold.derivations.search.indexes import find_index, index_fields
from streamfold.derivations.search.indexing import Dirty, DirtyRoot
from streamfold.derivations.search.local import LocalIndex, local_indexes
from streamfold.derivations.search.opensearch import OpenSearchIndex
from streamfold.derivations.search.options import (
    GONE,
    GONE_AT,
    in_path,
    keeps_ids,
    key_id,
    options_of,
    own_alias,
)
from streamfold.derivations.search.sink import CONFLICT, Sink, send
from streamfold.engines.protocol import Counter, Engine
from streamfold.errors import Contended, EngineUnavailable, ItemFault, redacted
from streamfold.ledger.state_keys import document_key
from streamfold.records.change import ItemKey
from streamfold.records.values import alike
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey

MILLISECONDS = 1000

DIFFERENT, MISSING, GHOST = "different", "missing", "ghost"
WITHOUT_BACKLINK = "without backlink"
"""The result for an item that refers to another one without a backlink: changes of the other one do not reach it."""

PAGE_DOCUMENTS = 500
GONE_ALREADY = (404, CONFLICT)
"""Statuses of a document that was written or removed since it was found."""
ANSWER = {"filter_path": "items.*.status,items.*.error.type,items.*.error.reason", "refresh": "true"}


@dataclass(slots=True)
class Copying:
    """Sends roots to one index.

    start: the number of a root without a counter, below the first number of every counter.
    hides: documents that are not made any more are hidden. A scan need not hide them: the run that sent them to this
    index knew of the rebuild, and so does every run of a later change. Documents of kept ids are always hidden: other
    code may have sent them.
    notes: roots that cannot be sent are noted. Those of notes keep these: each visit of a root with kept ids or lookups
    has another number, and would add a note.
    """

    runtime: Runtime
    sink: Sink
    index: str
    start: int
    fails: Callable[[Root, Exception], None]
    hides: bool = False
    notes: bool = True

    def copy(self, roots: Sequence[Root]) -> int:
        """Sends these roots; returns how many documents were taken.

        A root that cannot be sent is passed to ``fails``. Raises ``EngineUnavailable`` if the store or the
        index does not answer: then all roots have to be sent again.
        """
        taken, waiting = 0, list(roots)
        # A root that a live run overtakes is read again: the newer documents must not be replaced by older ones.
        for _ in self.runtime.tries():
            runs = self._numbered(waiting)
            ready, waiting = self._made(runs)
            taken += self._sent(ready)
            if not waiting:
                return taken
        raise Contended("Others changed the documents' counters at every try: the page is retried.")

    def _numbered(self, roots: Sequence[Root]) -> list[RootRun]:
        """The roots with the numbers of their counters, which are raised if ids or references are kept."""
        keys = {document_key(self.runtime.application.name, root.route.name, root.item): root for root in roots}
        kept = [key for key, root in keys.items() if keeps_ids(root.route) or root.route.is_revisited]
        found = self.runtime.engine.read_state(keys.keys() - kept, consistent=True) if len(kept) < len(keys) else {}
        if kept:
            counters = [Counter(key, expires=False) for key in kept]
            found |= self.runtime.engine.count_up(
                counters, int(self.runtime.clock() * MILLISECONDS), self.runtime.expires_at
            )
        if any(key not in found for key in kept):
            raise EngineUnavailable("The counter of a document is busy: the page is retried.")
        return [RootRun.of(root, key, found.get(key, {}), self.start) for key, root in keys.items()]

    def _made(self, runs: Sequence[RootRun]) -> tuple[list[RootRun], list[Root]]:
        """The roots whose documents may be sent, and those that other runs overtook."""
        stored = known_sources(self.runtime.engine, runs)  # after the counters
        look_up_referents(self.runtime, runs, stored, renews=True)
        ready: list[RootRun] = []
        overtaken: list[Root] = []
        for each in runs:
            gone = gone_body(each.root, self.runtime.clock())
            with ItemFault(EngineUnavailable) as fault:
                hides = self.hides or keeps_ids(each.root.route)
                reconcile(each, self.runtime.engine, stored, self.runtime.settings, gone, hides=hides)
            if fault.error is not None:
                self._failed(each, fault.error)
                continue
            if noted(each, self.runtime.engine, self.runtime.expires_at):
                ready.append(each)
            else:
                overtaken.append(each.root)
        return ready, overtaken

    def _sent(self, ready: Sequence[RootRun]) -> int:
        """Sends documents; a newer stored version is as good."""
        name = own_alias(self.index)
        self.sink.check(name)
        actions = [replace(action, index=name) for each in ready for action in each.actions]
        answers = iter(send(self.sink, actions, self.runtime))
        taken = 0
        for each in ready:
            own = [next(answers) for _ in each.actions]
            error = next((one.error for one in own if one.error is not None), None)
            if isinstance(error, EngineUnavailable):
                raise error
            if error is not None:
                self._failed(each, error)
            taken += sum(one.is_done for one in own)
        return taken

    def _failed(self, each: RootRun, error: Exception) -> None:
        if self.notes:
            root = DirtyRoot(each.root.route.name, each.root.item, each.number)
            Dirty(self.runtime.application.name, self.runtime.engine, self.index).note([root])
        self.fails(each.root, error)


class ShownRoot(NamedTuple):
    """One root: the number of its counter, its right documents, and those in the index."""

    root: Root
    number: int
    expected: Mapping[str, Mapping[str, Any]]
    found: Mapping[str, Mapping[str, Any]]
    lacking: int = 0  # references of its item without a backlink

    def differences(self) -> Iterator[tuple[str, str]]:
        """The problem of each wrong document, with its id; of a lost backlink, without one."""
        if self.lacking:
            yield WITHOUT_BACKLINK, ""
        for name in sorted(self.expected.keys() | self.found.keys()):
            if name not in self.found:
                yield MISSING, name
            elif name not in self.expected:
                yield GHOST, name
            elif not alike(self.found[name], self.expected[name]):
                yield DIFFERENT, name


class Compared(NamedTuple):
    """Roots that were compared, and those whose function raised."""

    shown: list[ShownRoot]
    failed: list[tuple[Root, Exception]]


class Comparing:
    """Reads counters, *then* items, then documents: a document that is missing then is on its way, or never comes."""

    def __init__(self, runtime: Runtime, sink: Sink, index: str) -> None:
        self.runtime = runtime
        self.sink = sink
        self.index = index

    def compare(self, roots: Sequence[Root], more: Mapping[ItemKey, Collection[str]]) -> Compared:
        """Compares roots. ``more``: ids of documents in the index, by the item that their ids name."""
        runs, failed = self._made(roots)
        ids = {
            each.root.item: {*(action.id for action in each.actions), *more.get(each.root.item, ())} for each in runs
        }
        found = self.sink.read(self.index, set().union(*ids.values())) if runs else {}
        visible = {name: own_fields(held.body) for name, held in found.items() if held.body.get(GONE) is None}
        lacking = self._lacking([*runs, *(each for each, _ in failed)])
        shown = [self._shown(each, ids[each.root.item], visible) for each in runs]
        # Where the function raises, the referent may be to blame: its next change has to reach the item.
        shown += [ShownRoot(each.root, each.number, {}, {}) for each, _ in failed if lacking.get(each.root.item)]
        shown = [each._replace(lacking=lacking.get(each.root.item, 0)) for each in shown]
        return Compared(shown, [(each.root, error) for each, error in failed])

    def _lacking(self, runs: Sequence[RootRun]) -> dict[ItemKey, int]:
        """How many references of each item lack their backlink. Read last: it is put before all else is."""
        looking = [(*each.root[:2], each.references) for each in runs if each.root.route.lookups]
        found = lacking_backlinks(self.runtime, looking) if looking else {}
        return {item: len(referents) for (_, item), referents in found.items()}

    def _made(self, roots: Sequence[Root]) -> tuple[list[RootRun], list[tuple[RootRun, Exception]]]:
        engine = self.runtime.engine
        keys = {document_key(self.runtime.application.name, root.route.name, root.item): root for root in roots}
        counters = engine.read_state(keys, consistent=True) if keys else {}
        runs = [RootRun.of(root, key, counters.get(key, {})) for key, root in keys.items()]
        stored = known_sources(engine, runs)
        look_up_referents(self.runtime, runs, stored, notes=False)
        made: list[RootRun] = []
        failed: list[tuple[RootRun, Exception]] = []
        for each in runs:
            with ItemFault(EngineUnavailable) as fault:
                reconcile(each, engine, stored, self.runtime.settings, None)
                made.append(each)
            if fault.error is not None:
                failed.append((each, fault.error))
        return made, failed

    @staticmethod
    def _shown(each: RootRun, ids: Collection[str], visible: Mapping[str, Mapping[str, Any]]) -> ShownRoot:
        bodies = {action.id: action.body for action in each.actions}
        expected = {name: own_fields(parsed(body)) for name, body in bodies.items() if body is not None}
        return ShownRoot(each.root, each.number, expected, {name: visible[name] for name in ids if name in visible})


class ExplainedDocument(NamedTuple):
    """A document of an index, with the items that it is made of."""

    route: Route
    alias: str
    id: str
    version: int | None  # None: there is no such document
    run: int | None = None  # the last run of its item; None: none
    made_of: Sequence[MadeOf] = ()  # empty: the id does not name its item
    wrong: Sequence[str] = ()  # different, missing, ghost
    error: Exception | None = None  # of the handler

    @property
    def agrees(self) -> bool:
        """Whether the document is what its handler makes of its items now."""
        return not (self.wrong or self.error is not None) and bool(self.made_of)


def explain_document(runtime: Runtime, sink: Sink, route: Route, index: str, name: str) -> ExplainedDocument:
    """The sources of the document with this id, and whether its handler would make the same document now."""
    stored = sink.read(index, [name]).get(name)
    found = ExplainedDocument(route, index, name, stored.version if stored else None)
    if (root := root_of(route, name)) is None:
        return found
    counter_key = document_key(runtime.application.name, route.name, root.item)
    counter = runtime.engine.read_state([counter_key], consistent=True).get(counter_key)
    run = RootRun.of(root, counter_key, counter or {})
    sources = known_sources(runtime.engine, [run])
    look_up_referents(runtime, [run], sources, notes=False)
    made_of = _made_of(runtime.engine, run, sources)
    compared = Comparing(runtime, sink, index).compare([root], {root.item: [name]})
    wrong = [what for shown in compared.shown for what, other in shown.differences() if other in (name, "")]
    error = compared.failed[0][1] if compared.failed else None
    return found._replace(run=int(counter["n"]) if counter else None, made_of=made_of, wrong=wrong, error=error)


def _made_of(engine: Engine, run: RootRun, sources: Mapping[ItemKey, Any]) -> list[MadeOf]:
    """The item, the parts and the referents of a document."""
    root = run.root
    referents = engine.read_sources(run.references) if run.references else {}
    now = gathered(root, engine, sources)
    parts = (
        (key.table.name, *key.compose({**root.fields, **each.key}))
        for key in (root.route.part_keys if now.image else ())
        for each in now.document_parts(key)
    )
    return [
        MadeOf("item", root.item, None, bool(now.image)),
        *(MadeOf("part", part, None, exists=True) for part in parts),
        *(MadeOf("referent", referent, None, referent in referents) for referent in run.references),
    ]


def root_of(route: Route, name: str) -> Root | None:
    """The root that a document's id names; None if it names none, as an id that was cut."""
    template = options_of(route).id
    if template is not None:
        (source,) = route.sources
        found = template.match(name)
        fields = None if found is None else {field: found[field] for field in source.types}
        return None if fields is None else Root(route, (source.table.name, *source.compose(fields)), fields)
    values_of_id = [unquote(text) for text in name.split("|")]
    for source in route.sources:
        values = values_of_id[1:] if options_of(route).names_table else values_of_id
        if 1 <= len(values) <= 2:
            item: ItemKey = (source.table.name, values[0], values[1] if len(values) > 1 else None)
            fields = source.match_values(*item[1:])
            if fields is not None and key_id(item, names_table=options_of(route).names_table) == name:
                return Root(route, item, fields)
    return None


def expected(route: Route, history: History) -> Expected:
    """The documents of all items."""
    found = Expected()
    for item, image, fields, gathering in gathered_items(route, history):
        referents = referents_of(route, image, fields, history.items)
        if referents is None:
            continue
        for document in history.called(gathering, image, {**fields, **referents}, item):
            key = (_place(route, index_of(route, fields, Settings())), document_id(route, item, fields, document), None)
            found.outside[key] = parsed(document_text(document.fields))
    return found


def read_documents(routes: Sequence[Route], index: str, engine: Engine) -> dict[str, dict[str, Any]]:
    """The documents of a local index that a search may find, by id. Raises ``SettingsError`` for an unknown index."""
    alias = find_index(routes, index, Settings()).alias
    return {found.id: own_fields(found.body) for found in LocalIndex(engine).documents(alias)}


def found_outside(route: Route, place: Any) -> dict[RowKey, Values]:
    """The documents that the local indexes of a store show to a search, without hidden ones."""
    local = LocalIndex(place.store)
    return {
        (_place(route, index), found.id, None): own_fields(found.body)
        for index in local_indexes(place.store)
        if index_fields(route, options_of(route).index, index) is not None
        for found in local.documents(index)
    }


def _place(route: Route, index: str) -> str:
    return f"index {index} of {route.name}"


class PurgedPage(NamedTuple):
    """The results for hidden documents."""

    removed: int
    changed: int  # written or removed by somebody else since they were found


def count_hidden(sink: OpenSearchIndex, alias: str, before_ms: int) -> int:
    """How many documents behind an alias were hidden before a time, in epoch milliseconds. Raises as ``check``."""
    answer = sink.calls.ask("POST", f"{_path(sink, alias)}/_count", {"query": _hidden(before_ms)})
    return int(answer["count"]) if answer else 0


def purge(sink: OpenSearchIndex, alias: str, before_ms: int) -> Iterator[PurgedPage]:
    """Removes documents that were hidden before a time, page by page.

    Raises ``EngineUnavailable`` if the server is busy: documents that were removed remain removed.
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
        if not page.removed:  # the rest has changed, or a server without refresh still shows removed documents
            return


def _path(sink: OpenSearchIndex, alias: str) -> str:
    """The indices behind an alias, whose filter would hide the documents to find."""
    sink.check(alias)
    found = sink.calls.ask("GET", f"/{in_path(alias)}/_alias") or {}
    return "/" + ",".join(map(in_path, sorted(found)))


def _hidden(before_ms: int) -> dict[str, Any]:
    old = {"range": {GONE_AT: {"lt": before_ms, "format": "epoch_millis"}}}
    return {"bool": {"filter": [{"term": {GONE: True}}, old]}}


def _remove(sink: OpenSearchIndex, hits: list[Any]) -> PurgedPage:
    """Removes documents that have not changed since they were found."""
    lines = "".join(f"{json.dumps(_deletion(hit))}\n" for hit in hits)
    answer = sink.calls.send("POST", "/_bulk", lines.encode(), ANSWER)
    items = [item["delete"] for item in answer.get("items", ())]
    for item in items:
        if item["status"] not in (200, *GONE_ALREADY):
            reason = redacted(item.get("error", {}).get("reason", ""))
            raise EngineUnavailable(f"OpenSearch did not remove a document ({item['status']}: {reason}).")
    removed = sum(item["status"] == 200 for item in items)
    return PurgedPage(removed, len(items) - removed)


def _deletion(hit: Any) -> dict[str, Any]:
    found = {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    return {"delete": {"_index": hit["_index"], "_id": hit["_id"], **found}}
