"""The kind ``search``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.derivations.derivation import CountedWord, Derivation, Planned
from streamfold.derivations.search.options import check_searches, options_of, shown_index
from streamfold.errors import EngineUnavailable, ManifestError, RecordError, SettingsError, is_fatal
from streamfold.routes.parts import PART

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Finishing, Planning, Preview, Work
    from streamfold.derivations.expected import Expected, History
    from streamfold.derivations.search.documents import Root
    from streamfold.engines.protocol import Engine
    from streamfold.records.change import ItemKey
    from streamfold.routes.route import Route
    from streamfold.settings import Settings
    from streamfold.writes.guarded import RowKey

NOT_INDEXED = "not_indexed"
"""Counts items whose documents were not sent."""


class Search(Derivation):
    """Documents of a search index, never older than their items."""

    name = "search"
    takes_time = True
    write_units = "1, and a read unit for each 4 KB of its items, once a batch"
    gets_items = True
    reads_derived = True
    sees_derived_attributes = True
    reads_items = True
    reconciles = True
    keeps = ("document", "refs", "wake")
    secrets = ("search_password",)
    verified_by = ("its documents are in an index", "streamfold search verify")
    says: ClassVar[Mapping[str, CountedWord]] = {
        NOT_INDEXED: CountedWord(
            "Search {name} did not index {count} items: a replay on DynamoDB writes to an index only with "
            "--search-url, and reads the items that it indexes (--put-sources).",
        )
    }

    def outside_locations(self, route: Route) -> tuple[str, ...]:
        return (f"index {shown_index(route)}",)

    def indexes(self, route: Route) -> Mapping[str, str]:
        from streamfold.derivations.search.options import setting_name

        index = options_of(route).index
        return {setting_name(index): index.text}

    def guard(self, route: Route) -> str:
        return "bump before read"

    def check(self, own: Sequence[Route], routes: Sequence[Route]) -> None:
        check_searches(own)

    def check_names(self, own: Sequence[Route], settings: Settings) -> None:
        from streamfold.derivations.search.indexes import check_real_indexes

        check_real_indexes(own, settings)

    def check_settings(self, route: Route, settings: Settings) -> None:
        super().check_settings(route, settings)
        if settings.serves(route.group) and settings.search is None and settings.engine is None:
            raise SettingsError(
                f"Search {route.name!r} ({route.declared_at}) has no index to write to: expected STREAMFOLD_SEARCH="
                "https://..., the address of an OpenSearch domain, or another group for this function."
            )

    def identity(self, route: Route) -> dict[str, Any]:
        options = options_of(route)
        identity = options.id.text if options.id else "table and key" if options.names_table else "key"
        return {"kind": self.name, "index": options.index.text, "id": identity}

    def compare(self, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for option, word in (("index", "to"), ("id", "id")):
            if before.get(option) != now.get(option):
                raise ManifestError(
                    f"Search {name!r} changed {word}= from {before.get(option)!r} to {now.get(option)!r}: documents "
                    "under their old names would stay. Declare the changed one under another name, "
                    f'replaces="{name}", fill its index, and retire the old one, App(..., retired=["{name}"]).'
                )

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        from streamfold.derivations.search.documents import root_of

        roots: dict[Any, Root] = {}
        for work in works:
            if all(change.is_hidden for change in work.changes) or _is_unread(work):
                continue
            root = root_of(work)
            roots[root.item] = roots[root.item].joined(root) if root.item in roots else root
        return Planned(deferred=[root for root in roots.values() if not _is_equal(root)])

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Indexes the roots of a batch, search by search. A missing index does not delay the documents of others."""
        return self._finished(deferred, finishing, renews=False)

    def _finished(self, deferred: Sequence[Deferred], finishing: Finishing, *, renews: bool) -> Outcome:
        from streamfold.commit.outcome import Outcome
        from streamfold.derivations.search.indexes import sink_of

        outcome = Outcome()
        sink = sink_of(finishing) if finishing.runtime.source_items else None

        def fails(root: Root, error: Exception) -> None:
            outcome.failed += finishing.failures(root.changes, root.route, error)

        fatal: Exception | None = None
        marks = _marks(deferred, finishing) if sink is not None else None
        for route, by_item in _by_route(deferred).items():
            roots = [*by_item.values()]
            if sink is None:
                outcome.count(NOT_INDEXED, route.name, len(roots))
                continue
            try:
                outcome += self._indexed(roots, finishing, sink, fails, marks, renews=renews)
            except Exception as error:
                if not is_fatal(error):
                    raise
                fatal = fatal or error
        if fatal is not None:
            raise fatal
        return outcome

    def check_done(self, route: Route, outcome: Outcome) -> None:
        if NOT_INDEXED in outcome.counts:
            raise _no_index(route)

    def deferred_of(self, work: Work) -> Deferred:
        from streamfold.derivations.search.documents import root_of

        return root_of(work)

    def preview(self, deferred: Deferred, settings: Settings) -> Sequence[Preview]:
        from streamfold.derivations.search.documents import Root, previewed

        assert isinstance(deferred, Root)
        return previewed(deferred, settings)

    def reconcile(self, work: Work, finishing: Finishing) -> Outcome:
        """Reconciles the documents of an item, or of the item's parent, with the items as they are now."""
        from streamfold.derivations.search.documents import root_of
        from streamfold.derivations.search.indexes import sink_of

        def fails(_: Root, error: Exception) -> None:
            raise error

        sink = sink_of(finishing, asked_for=True)
        if sink is None:
            raise _no_index(work.route)
        return self._indexed([root_of(work)], finishing, sink, fails, renews=True)

    def reconcile_all(self, works: Sequence[Work], finishing: Finishing) -> Outcome:
        """Indexes the documents of many items at once."""
        from streamfold.derivations.search.documents import root_of

        return self._finished([*map(root_of, works)], finishing, renews=True)

    @staticmethod
    def _indexed(
        roots: Iterable[Root], finishing: Finishing, sink: Any, fails: Any, marks: Any = None, *, renews: bool
    ) -> Outcome:
        from streamfold.derivations.search.indexing import Indexing

        return Indexing(finishing.runtime, sink, fails, marks, renews=renews).index(roots)

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import NO_CALLS, STATE, Permission, Place, dynamodb, tables_of

        counters = dynamodb(STATE, "BatchGetItem", "PartiQLInsert", "PartiQLUpdate", "UpdateItem")
        lacking = dynamodb(STATE, "PutItem")  # what an index lacks while it is built
        parts = route.part_keys
        items = (dynamodb(place, "BatchGetItem") for place in tables_of([*route.sources, *parts]))
        gathered = (dynamodb(place, "Query") for place in tables_of(parts))
        sent = {
            Permission("es:ESHttpGet", Place("search", "*/_alias")),
            Permission("es:ESHttpPost", Place("search", "_bulk")),
        }
        return counters | lacking | sent | NO_CALLS.union(*items, *gathered)

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.search.maintenance import expected

        return expected(route, history)

    def local_locations(self, routes: Sequence[Route], engine: Engine, settings: Settings) -> Mapping[str, Any]:
        from streamfold.derivations.search.indexes import OPENED, accepts_of
        from streamfold.derivations.search.local import LocalIndex

        return {OPENED: LocalIndex(engine, accepts_of(routes, settings))}

    def read_rows(self, routes: Sequence[Route], location: str, engine: Engine) -> dict[str, dict[str, Any]]:
        from streamfold.derivations.search.maintenance import read_documents

        return read_documents(routes, location, engine)

    def found_outside(self, route: Route, place: Any) -> dict[RowKey, dict[str, Any]]:
        from streamfold.derivations.search.maintenance import found_outside

        return found_outside(route, place)


def _no_index(route: Route) -> SettingsError:
    return SettingsError(
        f"Search {route.name!r} has no server to write to: expected STREAMFOLD_SEARCH=https://..., or --search-url of "
        "a command."
    )


def _marks(deferred: Sequence[Deferred], finishing: Finishing) -> Any:
    """The marks of all aliases of a batch, in one read; None without an answer, so that each search reads its own."""
    from streamfold.derivations.search.documents import Root, aliases_of
    from streamfold.derivations.search.indexing import read_marks

    runtime = finishing.runtime
    roots = [root for root in deferred if isinstance(root, Root)]
    try:
        return read_marks(runtime.application.name, runtime.engine, aliases_of(roots, runtime.settings))
    except EngineUnavailable:
        return None


def _is_unread(work: Work) -> bool:
    """Whether a part changed in nothing that its handler reads."""
    from streamfold.routes.roots import count_for_root

    if work.role != PART or all(part.reads is None for part in work.route.parts):
        return False
    try:
        return not count_for_root(work.route, work.item, work.changes)
    except RecordError:  # an image that cannot be read: the document is made again
        return False


def _is_equal(root: Root) -> bool:
    """Whether the documents of both images are equal for every change, if ``skip_equal`` is set."""
    if not options_of(root.route).skip_equal:
        return False
    from streamfold.derivations.search.documents import changes_nothing

    return changes_nothing(root)


def _by_route(deferred: Iterable[Deferred]) -> dict[Route, dict[ItemKey, Root]]:
    """The roots of each search, once for all changes of their own and of their referents."""
    from streamfold.derivations.search.documents import Root

    found: dict[Route, dict[ItemKey, Root]] = {}
    for each in deferred:
        assert isinstance(each, Root)
        own = found.setdefault(each.route, {})
        own[each.item] = own[each.item].joined(each) if each.item in own else each
    return found


SEARCH = Search()
