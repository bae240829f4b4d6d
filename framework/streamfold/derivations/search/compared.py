"""What an index shows of roots, compared with what the function makes of them now."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from streamfold.derivations.search.encoded import own_fields, parsed
from streamfold.derivations.search.gather import Root, known_items
from streamfold.derivations.search.names import GONE, key_id
from streamfold.derivations.search.options import options_of
from streamfold.derivations.search.root_runs import RootRun, lead
from streamfold.derivations.search.sink import Found, Sink
from streamfold.engines import Engine
from streamfold.errors import EngineUnavailable, is_fatal
from streamfold.ledger.state_keys import document_key
from streamfold.records.alike import alike
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.settings import Settings

DIFFERENT, MISSING, GHOST = "different", "missing", "ghost"


class ShownRoot(NamedTuple):
    """One root: the number of its counter, its documents as they should be, and as the index shows them."""

    root: Root
    number: int
    expected: Mapping[str, Mapping[str, Any]]
    found: Mapping[str, Mapping[str, Any]]

    def differences(self) -> Iterator[tuple[str, str]]:
        """What is wrong, with the id of each document."""
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
    """Reads counters, *then* items, then documents: what the index lacks then is on its way, or never comes."""

    def __init__(self, application: str, engine: Engine, sink: Sink, index: str, settings: Settings) -> None:
        self.application = application
        self.engine = engine
        self.sink = sink
        self.index = index
        self.settings = settings

    def compare(self, roots: Sequence[Root], more: Mapping[ItemKey, Collection[str]]) -> Compared:
        """Compares roots. ``more``: ids of documents that the index shows, by the item that they seem to be of."""
        runs, failed = self._made(roots)
        ids = {
            each.root.item: {*(action.id for action in each.actions), *more.get(each.root.item, ())} for each in runs
        }
        found = self.sink.read(self.index, set().union(*ids.values())) if runs else {}
        visible = {name: own_fields(held.body) for name, held in found.items() if _is_visible(held)}
        return Compared([self._shown(each, ids[each.root.item], visible) for each in runs], failed)

    def _made(self, roots: Sequence[Root]) -> tuple[list[RootRun], list[tuple[Root, Exception]]]:
        keys = {document_key(self.application, root.route.name, root.item): root for root in roots}
        counters = self.engine.read_state(keys, consistent=True) if keys else {}
        items = dict.fromkeys(item for root in roots for item in known_items(root))
        stored = self.engine.read_sources(items) if items else {}
        made: list[RootRun] = []
        failed: list[tuple[Root, Exception]] = []
        for key, root in keys.items():
            counter = counters.get(key, {})
            each = RootRun(root, key, int(counter.get("n", 0)), frozenset(counter.get("ids", ())))
            try:
                lead(each, self.engine, stored, self.settings, None)
            except Exception as error:
                if is_fatal(error) or isinstance(error, EngineUnavailable):
                    raise
                failed.append((root, error))
                continue
            made.append(each)
        return made, failed

    @staticmethod
    def _shown(each: RootRun, ids: Collection[str], visible: Mapping[str, Mapping[str, Any]]) -> ShownRoot:
        bodies = {action.id: action.body for action in each.actions}
        expected = {name: own_fields(parsed(body)) for name, body in bodies.items() if body is not None}
        return ShownRoot(each.root, each.number, expected, {name: visible[name] for name in ids if name in visible})


def _is_visible(found: Found) -> bool:
    return found.body.get(GONE) is None


def root_of(route: Route, name: str) -> Root | None:
    """The root that the id of a document seems to be of; None where that cannot be told, as of an id that was cut."""
    template = options_of(route).id
    if template is not None:
        (source,) = route.sources
        found = template.match(name)
        fields = None if found is None else {field: found[field] for field in source.types}
        return None if fields is None else Root(route, (source.table.name, *source.compose(fields)), fields)
    parts = [unquote(part) for part in name.split("|")]
    for source in route.sources:
        values = parts[1:] if options_of(route).names_table else parts
        if 1 <= len(values) <= 2:
            item: ItemKey = (source.table.name, values[0], values[1] if len(values) > 1 else None)
            fields = source.match_values(*item[1:])
            if fields is not None and key_id(item, names_table=options_of(route).names_table) == name:
                return Root(route, item, fields)
    return None
