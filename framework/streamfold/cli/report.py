"""The page of a replay: what it counted, the rows before and after it, what failed, and what a million records cost."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.cli import session, shell
from streamfold.cli.explain_item import contribution_texts
from streamfold.cli.history import all_rows, changes_text
from streamfold.cli.items import derived_items, item_text, key_values, values_text
from streamfold.cli.output import counted, note
from streamfold.cli.session import Session
from streamfold.cli.summary import frames_of
from streamfold.derivations.derivation import audits
from streamfold.engines.protocol import Engine
from streamfold.errors import plain, shortened
from streamfold.keys.key import Key, template_text
from streamfold.keys.table import CONTRIBUTORS
from streamfold.ledger.contribution import REFERENCE, RowContribution, stored_rows
from streamfold.ledger.state_keys import is_ledger_key, source_of
from streamfold.lifecycle.explain import state_key
from streamfold.pages.graph import drawn, graph_of
from streamfold.pages.page import check_file, page, write_page
from streamfold.records.change import ItemKey
from streamfold.records.images import hidden
from streamfold.records.values import decode
from streamfold.replay.replay import Summary, as_counts
from streamfold.writes.guarded import RowKey

ROWS_MAX = 200
CELL_LETTERS_MAX = 300
LINE_LETTERS_MAX = 120
LINES_MAX = 3
"""Contributions and changes that are shown of one row: a page of 20 targets stays below 5 MB."""
READ_AT_ONCE = 1000
ADDED, CHANGED, REMOVED, SAME = "added", "changed", "removed", "same"
HIDDEN_VALUE = "(redacted)"
Section = dict[str, Any]
LOCAL_ONLY = (
    "{other} does not go with --html, which reads the rows of a local replay before and after it: replay into "
    "--state FILE or in memory."
)
REPORT_OPTIONS = (
    shell.file(
        "--html",
        "Write a report to this file: one self-contained page with the graph, counts, rows before and after, failures "
        "and costs.",
    ),
    shell.number(
        "--rows", "With --html, at most N rows of each target; changed rows come first.", 1, 10_000, default=ROWS_MAX
    ),
    shell.flag("--redact", "With --html, leave out all values: of keys, attributes and errors."),
    shell.belongs("--rows", "--html"),
    shell.belongs("--redact", "--html"),
    shell.refuses("--html", "--engine dynamodb", "--dry-run", why=LOCAL_ONLY),
)


class ReportTable(NamedTuple):
    """A table of the page. ``details``: of each row, titles with lines; ``omitted``: what the table leaves out."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    details: Sequence[Sequence[tuple[str, Sequence[str]]]] = ()
    omitted: str = ""


def section(title: str, notes: Iterable[str], tables: Iterable[ReportTable] = ()) -> Section:
    found = [table._asdict() for table in tables if table.rows]
    return {"id": title.lower().replace(" ", "-"), "title": title, "notes": list(notes), "tables": found}


@dataclass(slots=True)
class TargetRows:
    """The rows of a target: how many of them each change met, and those that are shown."""

    target: Key
    rows_max: int
    counts: Counter[str] = field(default_factory=Counter)
    changed: list[tuple[RowKey, str, Any, Any]] = field(default_factory=list)
    same: list[tuple[RowKey, str, Any, Any]] = field(default_factory=list)

    def add(self, row: RowKey, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        """Counts a row, and keeps it if fewer than ``rows_max`` of its sort are kept."""
        change = ADDED if before is None else REMOVED if after is None else SAME if before == after else CHANGED
        self.counts[change] += 1
        kept = self.same if change == SAME else self.changed
        if len(kept) < self.rows_max:
            kept.append((row, change, before, after))

    @property
    def shown(self) -> list[tuple[RowKey, str, Any, Any]]:
        return [*self.changed, *self.same][: self.rows_max]


def check_page(opened: Session) -> None:
    if opened.given.html is not None:
        check_file(opened.given.html)


class ReplayReport:
    """The report of one replay. It is made before the replay, and written after it."""

    def __init__(self, opened: Session) -> None:
        self.opened, self.given = opened, opened.given
        check_file(self.given.html)
        self.before: Engine | None = None

    def keep_state(self) -> None:
        """Copies the state file as it is before the replay, if there is one."""
        state = self.opened.store.state
        if state is not None and not self.given.fresh and session.has_state(state):
            self.before = self.opened.stack.enter_context(session.open_copy(self.opened.app, state))

    def write(self, summary: Summary, costs: Section) -> None:
        """Writes the page, with the section of costs."""
        rows = self.rows()
        sections = [
            self.counts(summary),
            section("Rows", self.left_out(rows), self.row_tables(rows)),
            self.failures(summary),
            self.unwanted(summary),
            costs,
        ]
        write_sections(self.opened, sections)

    def counts(self, summary: Summary) -> Section:
        """What the replay counted."""
        columns = ("handler", "records", "written", "removed", "unchanged", "failed")
        counts = [[row[column] for column in columns] for row in as_counts(summary, self.opened.app)]
        notes = [f"{counted(summary.records, 'record')} replayed."]
        if summary.behind:
            notes.append(f"It went on after {counted(summary.behind, 'record')} of an earlier replay.")
        if not summary.records and not summary.behind:
            notes.append("No record was read, so no row has changed: name files that hold records.")
        if summary.clean and not summary.report.parked:
            notes.append("Nothing failed.")
        if summary.report.known:
            notes.append(f"Known to the state before: {counted(summary.report.known, 'record')}.")
        return section("Summary", notes, [ReportTable("Handlers", columns, counts)])

    def rows(self) -> list[TargetRows]:
        """The rows of all targets, before and after the replay."""
        app, after, before = self.opened.app, self.opened.engine, self.before
        found = {
            key: TargetRows(key, self.given.rows) for key in dict.fromkeys(each for r in app.routes for each in r.into)
        }

        def add(sides: Mapping[RowKey, tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]) -> None:
            for row, (old, new) in sides.items():
                entries = app.known(row[0]).find(*row[1:])
                target = next((entry.key for entry, _ in entries if entry.key in found), None)
                if target is not None and (old, new) != (None, None):
                    found[target].add(row, old, new)

        for batch in derived_rows(app, after):
            old = before.read_rows(batch) if before is not None else {}
            add({row: (visible(old.get(row)), new) for row, new in batch.items()})
        for batch in derived_rows(app, before) if before is not None else ():
            new = after.read_rows(batch)
            add({row: (old, None) for row, old in batch.items() if visible(new.get(row)) is None})
        return list(found.values())

    def left_out(self, rows: Sequence[TargetRows]) -> list[str]:
        """What this section does not show."""
        before = "the state before it" if self.before is not None else "an empty store, as it was before it"
        notes = [f"Rows after the replay, compared with {before}. Changed rows come first."]
        if self.given.redact:
            notes.append("Values are left out (--redact): keys are shown as templates, attributes by name.")
        if empty := [template_text(each.target) for each in rows if not each.counts]:
            notes.append(f"Targets without rows: {', '.join(empty)}.")
        return notes

    def row_tables(self, rows: Sequence[TargetRows]) -> Iterator[ReportTable]:
        """A table for each target, with what contributed to each row and the history of these items."""
        details = {} if self.given.redact else self.row_details({row for each in rows for row, *_ in each.shown})
        for each in rows:
            shown, total = each.shown, each.counts.total()
            counts = ", ".join(f"{number:,} {change}" for change, number in sorted(each.counts.items()))
            cells = [
                [self.key(each.target, row), change, self.values(row, before), self.values(row, after)]
                for row, change, before, after in shown
            ]
            omitted = f"{counted(total - len(shown), 'row')} more: --rows N shows more." if total > len(shown) else ""
            more = [details.get(row, ()) for row, *_ in shown] if details else []
            caption = f"{template_text(each.target)}: {counts}"
            yield ReportTable(caption, ("key", "change", "before", "after"), cells, more, omitted)

    def key(self, target: Key, row: RowKey) -> str:
        return template_text(target) if self.given.redact else item_text(row)

    def values(self, row: RowKey, attributes: Mapping[str, Any] | None) -> str:
        """The attributes of a row without those of its key; "" for no row."""
        known = self.opened.app.tables[row[0]].attributes
        found = {name: value for name, value in sorted((attributes or {}).items()) if name not in known}
        return ", ".join(found) if self.given.redact else shortened(values_text(found), CELL_LETTERS_MAX)

    def row_details(self, rows: set[RowKey]) -> dict[RowKey, list[tuple[str, list[str]]]]:
        """Of each row: the first contributions to it, and the last changes of the items that make them."""
        contributions, numbers = dict[RowKey, list[str]](), Counter[RowKey]()
        items: dict[RowKey, list[ItemKey]] = {}
        for row, item, name, contribution in self.contributions(rows):
            numbers[row] += 1
            if numbers[row] <= LINES_MAX:
                adds = "  ".join(contribution_texts(contribution, {}, contribution))
                line = shortened(f"{name}  {item_text(item)}  {adds}", LINE_LETTERS_MAX)
                contributions.setdefault(row, []).append(line)
                items.setdefault(row, []).append(item)
        histories = self.histories({item for own in items.values() for item in own})
        found: dict[RowKey, list[tuple[str, list[str]]]] = {}
        for row, lines in contributions.items():
            more = [f"and {numbers[row] - LINES_MAX:,} more: streamfold explain shows all"] * (numbers[row] > LINES_MAX)
            found[row] = [(counted(numbers[row], "contribution"), [*lines, *more])]
            changes = [line for item in dict.fromkeys(items[row]) for line in histories.get(item, ())]
            found[row] += [("History", changes)] if changes else []
        return found

    def contributions(self, rows: set[RowKey]) -> Iterator[tuple[RowKey, ItemKey, str, RowContribution]]:
        """What items contribute to these rows: the row, the item, and the handler's name with the contribution."""
        app = self.opened.app
        names = [route.name for route in app.routes if route.kind.contributes]
        for stored in self.opened.engine.state_items():
            key = state_key(stored)
            source = source_of(key) if is_ledger_key(key, app.name) else None
            if source is None:
                continue
            for name in names:
                text = stored.get(f"{name}.s", {}).get("S", REFERENCE)
                found = {} if text.startswith(REFERENCE) else stored_rows(text)
                yield from ((row, source.item, name, found[row]) for row in found.keys() & rows)

    def histories(self, items: set[ItemKey]) -> dict[ItemKey, list[str]]:
        """The last recorded changes of these items, oldest first."""
        app = self.opened.app
        if not items or not audits(app):
            return {}
        return {
            audited.key: [
                shortened(
                    f"{row.get('at', '')} {row['event']} {item_text(audited.key)}: "
                    f"{changes_text(row).replace(chr(10), ', ')}",
                    LINE_LETTERS_MAX,
                )
                for row in rows[-LINES_MAX:]
            ]
            for audited, rows in all_rows(self.opened.engine, app, None)
            if audited.key is not None and audited.key in items
        }

    def failures(self, summary: Summary) -> Section:
        """What failed, with its record and its error, which says the remedy."""
        redact = self.given.redact
        rows, details = [], list[list[tuple[str, list[str]]]]()
        for failed in summary.failures:
            failure = failed.failure
            error = type(failure.error).__name__ if redact else str(failure)
            places = map(relative, (failure.declared_at, failure.raised_at))
            rows.append([str(failed.line or ""), failure.handler or "", error, *places])
            frames = [] if redact else frames_of(failure)
            details.append([("Lines", frames)] if frames else [])
        bad = [[str(each.line), HIDDEN_VALUE if redact else each.why] for each in summary.bad_lines]
        parked = [
            [name, count, HIDDEN_VALUE if redact else str(summary.report.first_parked[name])]
            for name, count in summary.report.parked.items()
        ]
        notes = [f"{counted(summary.failure_count, 'record')} failed, {counted(summary.bad_line_count, 'bad line')}."]
        if rows:
            notes.append("The same command processes failed records, once their cause is corrected.")
        if bad:
            notes.append("The same command with --keep-going skips bad lines, and reports them all.")
        if parked:
            notes.append("streamfold redrive processes parked records, once their cause is corrected.")
        columns = ("record", "handler", "error", "declared at", "raised at")
        tables = [
            ReportTable("Failed records", columns, rows, details),
            ReportTable("Bad lines", ("line", "why"), bad),
            ReportTable("Parked records", ("handler", "records", "the first"), parked),
        ]
        return section("Failures", notes, tables)

    def unwanted(self, summary: Summary) -> Section:
        """Keys that no handler wanted, by shape, and the templates that nearly match."""
        report, redact = summary.report, self.given.redact
        near = [
            [
                template_text(miss.template),
                miss.field,
                report.near_misses[missed],
                HIDDEN_VALUE if redact else plain(miss.why),
                os.path.relpath(miss.template.declared_at),
            ]
            for missed, miss in report.first_near.items()
        ]
        shapes = [[HIDDEN_VALUE if redact else shape, count] for shape, count in report.unrouted.most_common()]
        notes = [] if shapes or near else ["A handler read every record."]
        columns = ("template", "field", "records", "the first", "declared at")
        tables = [
            ReportTable("Keys that no handler wants", ("shape", "records"), shapes),
            ReportTable("Templates that match but for a field", columns, near),
        ]
        return section("Unwanted keys", notes, tables)


def derived_rows(app: App, engine: Engine) -> Iterator[dict[RowKey, Mapping[str, Any]]]:
    """All rows of the targets, some at a time, as a reader sees them."""
    for table in dict.fromkeys(app.tables[key.table.name] for route in app.routes for key in route.into):
        seek = engine.by_prefix
        items = seek.items_from(table, "", derived=True) if seek else derived_items(app, table, engine.items(table))
        while some := list(islice(items, READ_AT_ONCE)):
            rows = {(table.name, *key_values(table, item)): visible(decode({"M": item})) for item in some}
            yield {row: values for row, values in rows.items() if values is not None}


def visible(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The attributes of a row that a reader sees; None for no row, or one without contributors."""
    if row is None or row.get(CONTRIBUTORS) == 0:
        return None
    return {name: value for name, value in row.items() if not hidden(name)}


def relative(place: str | None) -> str:
    return os.path.relpath(place) if place else ""


def chaos_section(found: Mapping[str, Any], *, redact: bool) -> Section:
    """The faults that a replay under faults survived, of its JSON."""
    runs = f"{found['runs']:,} runs of {counted(found['records'], 'record')}, {found['deliveries']:,} deliveries"
    notes = [f"{runs}, {len(found['diverged'])} diverged."]
    notes += [HIDDEN_VALUE if redact else found["clean"]] if found["clean"] else []
    notes += [f"Not proved: {each}." for each in found["unproved"]]
    notes += [f"Left out: {each}." for each in found["left_out"]]
    columns = ("fault", "injected", "runs", "diverged")
    faults = [[each[column] for column in columns] for each in found["faults"]]
    diverged = [[each["seed"], HIDDEN_VALUE if redact else each["problem"]] for each in found["diverged"]]
    return section(
        "Faults",
        notes,
        [ReportTable("Faults", columns, faults), ReportTable("Diverged runs", ("seed", "problem"), diverged)],
    )


def write_sections(opened: Session, sections: Sequence[Section]) -> None:
    """Writes the page of the graph with these sections, and prints where it is."""
    graph, file = graph_of(opened.app), opened.given.html
    write_page(file, page(f"Replay of {graph.application}", {**drawn(graph), "sections": sections}))
    note(f"The report is in {file}: open it in a browser.")
