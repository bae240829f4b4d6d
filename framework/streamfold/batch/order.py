"""The changes of a batch by item: routed by key, in the order of their versions, each once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import ge

from streamfold.batch.report import Report
from streamfold.derivations.derivation import Work
from streamfold.errors import shown, told
from streamfold.records.change import Change, ItemKey
from streamfold.routes.application import Application
from streamfold.routes.dispatch import FoundEntries, Listener
from streamfold.routes.route import SOURCE, Fields, Route
from streamfold.run import Run

RoutedFields = tuple[Route, Fields]


@dataclass(slots=True)
class ItemWork:
    """The changes of one item in a batch, and the routes that listen to it."""

    item: ItemKey
    ledger: dict[str, list[RoutedFields]] = field(default_factory=dict)  # routes that contribute, by group
    others: list[tuple[Route, str, Fields]] = field(default_factory=list)  # routes of other kinds, with the item's role
    heard: list[tuple[Route, str, Fields]] = field(default_factory=list)  # routes whose handlers are not called
    off: list[Route] = field(default_factory=list)  # routes whose handlers are switched off
    changes: list[Change] = field(default_factory=list)  # oldest first, each once

    def works(self, routed: Iterable[tuple[Route, str, Fields]]) -> list[Work]:
        """The work of each route."""
        return [Work(route, self.item, role, fields, self.changes) for route, role, fields in routed]


def by_item(application: Application, changes: Iterable[Change], run: Run, report: Report) -> dict[ItemKey, ItemWork]:
    """The work of a batch by item, with counts in the report."""
    found: dict[ItemKey, ItemWork] = {}
    for change in changes:
        work = found.get(change.item)
        if work is None:
            work = found[change.item] = _routed(application, change.item, run)
        work.changes.append(change)
    for work in found.values():
        if len(work.changes) > 1:
            _order(work)
        _count(work, report)
    return found


def _routed(application: Application, item: ItemKey, run: Run) -> ItemWork:
    """The routes that listen to an item: found once for all of its changes in the batch."""
    work, found = ItemWork(item), application.found(item)
    seen: set[tuple[str, str]] = set()
    for entry, fields in found:
        for each in entry.listeners:
            if (each.route.name, each.role) not in seen and _is_wanted(each, run):
                seen.add((each.route.name, each.role))
                _sort_in(work, each, fields, run)
    if (work.others or work.off) and application.derived(item):
        # Derived rows come back through the stream. Only kinds that can read them get them.
        work.others = [each for each in work.others if each[0].kind.reads_derived]
        work.off = [route for route in work.off if route.kind.reads_derived]
    _warn_of_near_misses(application, item, found, run)
    return work


def _is_wanted(listener: Listener, run: Run) -> bool:
    route, group = listener.route, run.settings.group
    if group is not None and route.group != group:
        return False
    return not listener.called or run.handlers is None or route.name in run.handlers


def _sort_in(work: ItemWork, listener: Listener, fields: Fields, run: Run) -> None:
    route, role, called = listener
    if not called:
        work.heard.append((route, role, fields))
    elif route.name in run.settings.handlers_off:
        work.off.append(route)
    elif route.kind.contributes and role == SOURCE:
        work.ledger.setdefault(route.group, []).append((route, fields))
    else:
        work.others.append((route, role, fields))


def _order(work: ItemWork) -> None:
    """Sorts an item's changes by version and drops repeated ones."""
    changes = work.changes
    identities = [change.identity_text for change in changes]  # each begins with the version
    if any(map(ge, identities, identities[1:])):
        ordered = sorted(dict(zip(identities, changes, strict=True)).items())
        work.changes[:] = [change for _, change in ordered]


def _count(work: ItemWork, report: Report) -> None:
    names = {route.name for routed in work.ledger.values() for route, _ in routed}
    names |= {route.name for route, _, _ in work.others}
    for name in names:
        report.records[name] += len(work.changes)
    if not (names or work.heard or work.off):
        report.unrouted[_prefix(work.item, work.changes[0].table.delimiter)] += len(work.changes)


def _warn_of_near_misses(application: Application, item: ItemKey, found: FoundEntries, run: Run) -> None:
    known = application.known(item[0])
    if len(known.candidates(*item[1:])) == len(found):
        return
    for miss in known.near_misses(*item[1:]):
        run.warn_once(
            (miss.template, miss.value),
            f"Item {told(' / '.join(map(str, item[1:])))} fits {miss.template!r} ({miss.template.declared_at}) but "
            f"for {miss.field!r}: {shown(miss.value)} is no {miss.template.types[miss.field]}. "
            "It is not processed by that key's handlers.",
        )


def _prefix(item: Sequence[object], delimiter: str) -> str:
    """The first segments of a key, to count records that no route reads: ``CUSTOMER#``, ``ORDER# / ITEM#``."""
    parts = [str(part).partition(delimiter) for part in item[1:] if part is not None]
    return " / ".join(head + mark for head, mark, _ in parts if mark) or f"keys without {delimiter}"
