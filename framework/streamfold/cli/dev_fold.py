"""One edition of the code under ``streamfold dev``: it folds a recording in memory, and shows what it makes different.

Each edition runs in a process of its own, so that nothing of an earlier one remains: no module, no state of a module,
no thread. ``KnownRows`` is all that goes from one to the next. An edition folds the handlers that the edit concerns; it
folds all of them once more records come.
"""

import importlib
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import source_from_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import streamfold
from streamfold.app import App
from streamfold.cli import session
from streamfold.cli.diff import attribute_cells, rows_text
from streamfold.cli.handler_code import ApplicationCode, Dependencies
from streamfold.cli.items import row_object
from streamfold.cli.output import Fitted, Grid, Note, Printed, Report, counted, warn
from streamfold.cli.session import GivenOptions, Session
from streamfold.cli.summary import (
    counts_lines,
    failure_object,
    samples_of,
    trouble_lines,
    unseen_object,
    unwanted_lines,
)
from streamfold.derivations.derivation import deriving_onto_items, reads_items
from streamfold.keys.key import template_text
from streamfold.keys.table import CONTRIBUTORS, is_in_state
from streamfold.lifecycle.diff import HandlerDiff, RowChange
from streamfold.records.envelope import Origins
from streamfold.records.images import hidden
from streamfold.records.values import encode, to_json
from streamfold.replay.replay import FileEntry, Replay, Summary, as_counts
from streamfold.routes.application import unknown_handler
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES_MAX = sys.maxsize
NAMES_SHOWN_MAX = 3
ShownValues = Mapping[str, Any]
"""The attributes of a row that readers see, in DynamoDB JSON."""
INDEX = "index "
"""Begins the name of the table of a document, as which the name of its index is taken."""
Stamps = dict[str, tuple[int, int]]
"""Files with their sizes and times."""


class Order(NamedTuple):
    """The options of ``streamfold dev``."""

    application: str
    file: str
    handlers: tuple[str, ...]
    tables: tuple[str, ...]
    rows_max: int
    as_json: bool


@dataclass(slots=True)
class KnownRows:
    """What the editions so far have made of the recording, or what a pass has changed of it."""

    rows: dict[str, dict[RowKey, ShownValues | None]] = field(default_factory=dict)  # by target; None: it is gone
    digests: dict[str, str] = field(default_factory=dict)  # of the code of handlers
    failed: dict[str, int] = field(default_factory=dict)  # records, by handler
    entries: int = 0  # of the recording

    def learn(self, more: "KnownRows") -> None:
        for target, rows in more.rows.items():
            known = self.rows.setdefault(target, {})
            for row, values in rows.items():
                if values is None:
                    known.pop(row, None)
                else:
                    known[row] = values
        self.digests, self.failed, self.entries = more.digests, more.failed, more.entries


class Pass(NamedTuple):
    """What one pass has done, to be shown."""

    summary: Summary
    handlers: Sequence[Route]  # those that it concerns
    changes: Mapping[str, Sequence[RowChange]]  # by target
    titles: Sequence[str]
    seconds: float
    learnt: KnownRows
    is_first: bool = False  # nothing was edited, so that the rows are not shown as changes


class OpenedFiles:
    """The files that this process opens to read them, from now on: modules, and what these load.

    Each has the stamp of when it was opened first: a save after that makes another one.
    """

    _hooked = False
    _opened: ClassVar[Stamps] = {}  # a hook cannot be removed: there is one, and one place that it fills

    def __init__(self) -> None:
        self._opened.clear()
        if not OpenedFiles._hooked:
            OpenedFiles._hooked = True
            sys.addaudithook(self._note)

    @classmethod
    def _note(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str) or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        # What a hook raises reaches the caller that opens the file: byte code of other tools has names of other forms.
        with suppress(OSError, RuntimeError, ValueError):
            # Paths are not resolved: that would ask the system for each folder above each file.
            name = arguments[0]
            path = str(Path(source_from_cache(name) if name.endswith(".pyc") else name).absolute())
            if path not in cls._opened and "site-packages" not in path:
                folder = str(Path(path).parent)
                cls._opened.setdefault(folder, stamp_of(folder))
                cls._opened[path] = stamp_of(path)

    def below(self, folders: Collection[Path], *, and_folders: bool = False) -> Stamps:
        """Those that are the application's: below a folder, and neither streamfold's, a package's nor hidden."""
        own, found = Path(streamfold.__file__).parent, Stamps()
        for name, stamp in list(self._opened.items()):
            path = Path(name)
            folder = next((each for each in folders if path.is_relative_to(each)), None)
            if folder is None or path.is_relative_to(own):
                continue
            names = path.relative_to(folder).as_posix().split("/")
            if "site-packages" in names or any(name.startswith(".") for name in names):
                continue
            if path.is_file() or (and_folders and path.is_dir()):
                found[name] = stamp
        return found


def stamp_of(path: str) -> tuple[int, int]:
    """The size and time of a file, which differ once it is saved; of no file too."""
    try:
        stat = Path(path).stat()
    except OSError:
        return -1, 0
    return stat.st_size, stat.st_mtime_ns


class Edition:
    """One edition of the application's code, with what it folds. ``watches``: others follow it."""

    def __init__(self, order: Order, known: KnownRows, *, watches: bool = True) -> None:
        self.order, self.known = order, known
        self.opened = Session(GivenOptions(application=order.application, tables=order.tables), ExitStack())
        self.folder = Path.cwd()
        self.files = OpenedFiles() if watches else None
        self.at_first = {str(self.folder): stamp_of(str(self.folder))}
        self.folded: Fold | None = None
        self.names: frozenset[str] = frozenset()  # the handlers that are folded
        self.digests: dict[str, str] = {}

    def watched(self) -> Stamps:
        """The files of the application; if it does not import, their folders too, because a module may be missing."""
        if self.files is None:
            return {}
        if self.digests:
            return self.files.below(self._folders())
        return {**self.files.below(self._folders(), and_folders=True), **self.at_first}

    def _folders(self) -> set[Path]:
        module = sys.modules.get(self.order.application.partition(".")[0].partition(":")[0])
        file = getattr(module, "__file__", None)
        own = Path(file).absolute().parent if file else self.folder
        return {self.folder, own.parent if file and Path(file).name == "__init__.py" else own}

    @property
    def app(self) -> App:
        return self.opened.app

    @cached_property
    def dependencies(self) -> Dependencies:
        return Dependencies(self.app.routes)

    @cached_property
    def wanted(self) -> set[str]:
        """The handlers that are shown. Raises ``SettingsError`` for a name that no handler has."""
        names = {route.name for route in self.app.routes}
        for name in self.order.handlers:
            if name not in names:
                raise unknown_handler("--handler", name, sorted(names))
        return set(self.order.handlers) or names

    def load(self) -> "Edition":
        """Imports the application. Raises ``SettingsError`` with the line of the user's code if that fails."""
        importlib.invalidate_caches()
        if self.files:
            # Byte code has the second of its source, so that of a second save in it would seem to be of the first.
            sys.dont_write_bytecode = True
        found = self.app, self.wanted, self.opened.settings  # raises here what is wrong with any of them
        if self.files is None:
            self.digests = dict.fromkeys((route.name for route in found[0].routes), "")
            return self
        read = self.files.below(self._folders())
        loaded = ((name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()))
        modules = {
            name: Path(file)
            for name, file in loaded
            if file and name != "__main__" and str(Path(file).absolute()) in read
        }
        others = [Path(name) for name in read if not name.endswith(".py")]
        self.digests = ApplicationCode(modules, others).digests(found[0])
        return self

    def edited(self, entries: Sequence[FileEntry], saved: Sequence[str]) -> Pass:
        """Folds what the edit concerns. At first, that is everything."""
        known = self.known.digests
        changed = {name for name, digest in self.digests.items() if known.get(name) != digest}
        gone = known.keys() - self.digests.keys()
        # Rows of a handler that is gone may be shared, or read by others.
        concerned = set(self.digests) if gone or not known else self.dependencies.concerned(changed)
        shown = concerned & self.wanted
        if not known:
            return self._fold(entries, shown, [], is_first=True)
        titles = [self.saved_text(saved, changed & known.keys())]
        titles += [f"Handler {name!r} is new." for name in sorted(changed - known.keys())]
        titles += [f"Handler {name!r} is gone, with its rows." for name in sorted(gone)]
        return self._fold(entries, shown, titles, is_first=False)

    def grown(self, entries: Sequence[FileEntry], more: Sequence[FileEntry]) -> Pass:
        """Folds more records. ``entries``: those before, which handlers need that were not folded so far."""
        start = time.perf_counter()
        needed = frozenset(self.dependencies.needed(self.wanted))
        if self.folded is None or self.names != needed:
            self.folded, self.names = Fold(self.opened, needed, is_first=False), needed
            self.folded.process(entries)
        summary, number = self.folded.process(more), len(entries) + len(more)
        title = f"{counted(len(more), 'record')} more, {number:,} in all."
        shown = [route for route in self.app.routes if route.name in self.wanted]
        return self._pass(summary, number, shown, [title], start, dict(self.known.failed))

    def _fold(self, entries: Sequence[FileEntry], shown: set[str], titles: list[str], *, is_first: bool) -> Pass:
        start = time.perf_counter()
        needed, summary = self.dependencies.needed(shown), Summary()
        if needed:
            self.folded, self.names = Fold(self.opened, needed, is_first=is_first), frozenset(needed)
            summary = self.folded.process(entries)
        routes = [route for route in self.app.routes if route.name in shown]
        kept = {name: count for name, count in self.known.failed.items() if name in self.digests and name not in needed}
        if is_first:
            titles = [f"{counted(summary.records, 'record')} of {self.order.file}, {counted(len(shown), 'handler')}."]
        done = self._pass(summary, len(entries), routes, titles, start, kept)
        return done._replace(is_first=is_first)

    def _pass(
        self,
        summary: Summary,
        entries: int,
        routes: Sequence[Route],
        titles: Sequence[str],
        start: float,
        failed: dict[str, int],
    ) -> Pass:
        """What a pass has made, of which the next one knows."""
        changes = self._compared(routes)
        for name, count in summary.report.failed.items():
            failed[name] = failed.get(name, 0) + count
        rows = {target: {each.row: each.new for each in some} for target, some in changes.items()}
        learnt = KnownRows(rows, self.digests, failed, entries)
        self.known.learn(learnt)
        return Pass(summary, routes, changes, titles, time.perf_counter() - start, learnt)

    def saved_text(self, saved: Sequence[str], changed: Collection[str]) -> str:
        files = ", ".join(map(os.path.relpath, saved[:NAMES_SHOWN_MAX])) + " and more" * (len(saved) > NAMES_SHOWN_MAX)
        names = sorted(changed)
        more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
        what = f"{', '.join(names[:NAMES_SHOWN_MAX])}{more} changed" if names else "no handler changed"
        return f"{files or 'The code'} was saved: {what}."

    def _compared(self, routes: Sequence[Route]) -> dict[str, list[RowChange]]:
        """What differs from the rows before, by target, which are known from now on."""
        now = {} if self.folded is None else self.folded.rows()
        names: dict[str, list[str]] = {}
        for route in routes:
            for target in target_names(route):
                names.setdefault(target, []).append(route.name)
        made = {target for route in self.app.routes for target in target_names(route)}
        names |= {target: [] for target in self.known.rows if target not in made}
        found = {}
        for target, handlers in names.items():
            old, new = self.known.rows.get(target, {}), now.get(target, {})
            compared = (
                RowChange(row, ", ".join(handlers), row, old.get(row), new.get(row))
                for row in dict.fromkeys((*old, *new))
                if old.get(row) != new.get(row)
            )
            if changes := [each for each in compared if each.is_one]:
                found[target] = changes
        return found

    def report(self, done: Pass) -> Report:
        return Report(self._lines(done), lambda: self._object(done), not done.summary.clean)

    def _lines(self, done: Pass) -> Iterator[Printed]:
        summary = done.summary
        if not done.handlers:
            yield Fitted(" ".join(done.titles))
            return
        yield Fitted(f"{' '.join(done.titles)} Folded in {done.seconds:.1f} s.")
        yield from self._change_lines({} if done.is_first else done.changes)
        yield from counts_lines(self._counts(done))
        is_complete = len(self.names) == len(self.digests)  # or a record that only others want would seem unwanted
        lines = [*(unwanted_lines(summary) if is_complete else ()), *trouble_lines(summary, "folded")]
        yield from (Fitted(line.text) if isinstance(line, Note) else Fitted(str(line)) for line in lines)
        if summary.failure_count:
            yield Fitted("Next: correct the handler and save its file. Its records are folded again.")
        if summary.bad_line_count:
            yield Fitted("Next: correct or remove the bad lines. The records of all other lines are folded.")
        others = {name: count for name, count in self.known.failed.items() if not self._is_of(done, name)}
        if others:
            counts = ", ".join(f"{name} ({counted(count, 'record')})" for name, count in others.items())
            yield Fitted(f"These fail as before: {counts}.")
        if summary.clean:
            yield Fitted("Nothing failed." if done.summary.records else "No record was read.")

    @staticmethod
    def _is_of(done: Pass, name: str) -> bool:
        return any(route.name == name for route in done.handlers) or bool(done.summary.report.failed.get(name))

    def _change_lines(self, changes: Mapping[str, Sequence[RowChange]]) -> Iterator[Printed]:
        for target, rows in changes.items():
            counts = HandlerDiff()
            counts.add(rows)
            handlers = f"  ({rows[0].handler})" if rows[0].handler else ""
            yield Fitted(f"\n{target}{handlers}: {rows_text(counts)}")
            shown = rows[: self.order.rows_max]
            cells = (line for change in shown for line in attribute_cells(change))
            yield Grid(("row", "attribute", "before", "after"), cells, long=True)
            if len(rows) > len(shown):
                yield Fitted(f"... and {len(rows) - len(shown):,} more rows; --rows N shows more.")
        if changes:
            yield ""

    def _counts(self, done: Pass) -> list[dict[str, Any]]:
        names = {route.name for route in done.handlers}
        return [row for row in as_counts(done.summary, self.app) if row["handler"] in names]

    def _object(self, done: Pass) -> str:
        summary, changes = done.summary, {} if done.is_first else done.changes

        def change(each: RowChange) -> dict[str, Any]:
            return {"row": row_key(self.app, each.row), "before": each.old, "after": each.new}

        return to_json(
            {
                "titles": list(done.titles),
                "records": summary.records,
                "seconds": round(done.seconds, 3),
                "changed_rows": {target: len(rows) for target, rows in changes.items()},
                "changes": {name: list(map(change, rows[: self.order.rows_max])) for name, rows in changes.items()},
                "handlers": self._counts(done),
                "failures": list(map(failure_object, summary.failures)),
                "failure_count": summary.failure_count,
                "bad_lines": [{"line": str(each.line), "why": each.why} for each in summary.bad_lines],
                "unrouted": dict(summary.report.unrouted) if len(self.names) == len(self.digests) else {},
                "unseen_attributes": list(map(unseen_object, summary.unseen)),
                "items_at_rows": {each.target.stored_name: each.records for each in summary.at_rows},
            }
        )


def row_key(app: App, row: RowKey) -> dict[str, Any]:
    return {"index": row[0].removeprefix(INDEX), "id": row[1]} if row[0].startswith(INDEX) else row_object(app, row)


def target_names(route: Route) -> list[str]:
    """What a handler makes, as it is named: targets, the attributes of items, or an index."""
    if deriving_onto_items([route]):
        return [f"attributes of {template_text(route.writes[0])}"]
    indexes = route.kind.outside_locations(route) if route.kind.indexes(route) else ()
    return [*map(template_text, route.into), *indexes]


class Fold:
    """Some handlers of an application over the records of a recording, in memory. Nothing leaves this process."""

    def __init__(self, opened: Session, handlers: Collection[str], *, is_first: bool) -> None:
        self.app, self.settings = opened.app, opened.settings
        self.memory = session.open_memory(self.app, self.settings)
        warnings: Callable[[str], None] = warn if is_first else lambda _: None
        self.runtime = Runtime(
            self.app,
            self.memory,
            self.settings,
            actions=session.EMBEDDED_ACTIONS,
            handlers=frozenset(handlers),
            outside=False,
            warn=warnings,
        )
        origins = Origins(self.app.source_tables, self.settings, warnings, self.app.tables)
        reads = any(map(reads_items, self.app.routes))
        self.replay = Replay(
            self.runtime, origins, keep_going=True, put_sources=self.memory.put_sources if reads else None
        )

    def process(self, entries: Iterable[FileEntry]) -> Summary:
        self.replay.summary = Summary()
        return self.replay.process(entries)

    def rows(self) -> dict[str, dict[RowKey, ShownValues]]:
        """Rows, derived attributes and documents, by target."""
        found: dict[str, dict[RowKey, ShownValues]] = {}
        attributes = [stored for _, stored in deriving_onto_items(self.app.routes)]
        into = {key for route in self.app.routes for key in route.into}
        for row, item in self.memory.rows.items():
            keys = self.memory.tables[row[0]].attributes
            values = {name: value for name, value in item.items() if name not in keys and not hidden(name)}
            if item.get(CONTRIBUTORS) == {"N": "0"}:
                continue
            if is_in_state(row):
                own = next((each for each in attributes if each.holds(row)), None)
                if own is not None:
                    found.setdefault(f"attributes of {template_text(own.of)}", {})[own.item(row)] = values
                continue
            for entry, _ in self.app.known(row[0]).find(*row[1:]):
                if entry.key in into:
                    found.setdefault(template_text(entry.key), {})[row] = values
                    break
        for sample in samples_of(self.app, self.memory, self.settings, SAMPLES_MAX):
            (target,) = sample.route.kind.outside_locations(sample.route)
            for name, id_, fields in sample.fields():
                found.setdefault(target, {})[f"{INDEX}{name}", id_, None] = encode(fields)["M"]
        return found
