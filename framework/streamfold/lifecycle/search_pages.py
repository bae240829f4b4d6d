"""Pages of items whose documents are sent to an index that is built."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from streamfold.derivations.search.aliases import Aliases
from streamfold.derivations.search.copying import Copying
from streamfold.derivations.search.declared import SearchIndex
from streamfold.derivations.search.gather import Root
from streamfold.derivations.search.make import index_of
from streamfold.engines import Engine
from streamfold.engines.timed import Timed
from streamfold.errors import HandlerError
from streamfold.lifecycle.page_report import ItemFailed, PageReport
from streamfold.records.change import ItemKey
from streamfold.routes.application import Application
from streamfold.routes.route import SOURCE
from streamfold.run import Run

START_MILLISECONDS = 60 * 60 * 1000
"""How far below the begin of its job a root without a counter is sent: clocks are no further apart."""


def roots_of(app: Application, index: SearchIndex, run: Run, items: Iterable[ItemKey]) -> list[Root]:
    """The roots of an index among items."""
    found = [
        Root(each.route, item, fields)
        for item in items
        for each, fields in app.listeners(item)
        if each.route.name == index.route.name and each.role == SOURCE
    ]
    return [root for root in found if _alias(root, run) == index.alias]


def _alias(root: Root, run: Run) -> str | None:
    try:
        return index_of(root.route, root.fields, run.settings)
    except HandlerError:
        return None


@dataclass(slots=True)
class CopiedPages:
    """Sends the documents of pages of items, without raising their counters."""

    sweep: ClassVar[None] = None  # the index that is built holds nothing of items that are gone
    app: Application
    engine: Engine
    run: Run
    index: SearchIndex
    aliases: Aliases
    name: str  # of the index that is built
    started: int  # epoch seconds
    hides: bool = False
    timed: Timed = field(init=False)

    def __post_init__(self) -> None:
        self.timed = Timed(self.engine, self.run)

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport:
        """Sends the documents of these items. Raises what the store and the index raise."""
        report = PageReport()
        roots = roots_of(self.app, self.index, self.run, dict.fromkeys(items))
        report.items = len(roots)
        report.written = self._copying(report).copy(roots) if roots else 0
        return report

    def _copying(self, report: PageReport) -> Copying:
        def fails(root: Root, error: Exception) -> None:
            report.failed.append(ItemFailed(root.item, root.route.name, error))

        start = self.started * 1000 - START_MILLISECONDS
        sink = self.aliases.sink
        return Copying(self.app.name, self.timed, sink, self.run, self.name, start, fails, self.hides)
