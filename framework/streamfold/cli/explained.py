"""What an explanation prints: contributions as lines for a person, and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamfold.cli.grids import counted, print_grid
from streamfold.cli.items import item_object, item_text, row_object, row_text
from streamfold.cli.output import echo
from streamfold.cli.rows import name_text, text
from streamfold.errors import printable
from streamfold.ledger.contribution import Contribution, HeldEntries, RowPart
from streamfold.lifecycle.explain import Explaining, ItemExplained, entry_values, time_of
from streamfold.lifecycle.row_sources import Contributor, RowExplained
from streamfold.records.change import ItemKey
from streamfold.records.images import hidden
from streamfold.records.values import encode
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

SHOWN_MAX = 100
AGREEMENT = {True: "agrees", False: "differs", None: ""}


def print_item(by: Explaining, item: ItemKey, found: Sequence[ItemExplained]) -> None:
    """Prints what each handler makes of an item, and what the state holds of it."""
    echo(item_text(item))
    for each in found:
        echo(f"\n{each.route.name} ({each.route.kind}) {_agreement(each)}".rstrip())
        if not each.route.kind.contributes:
            continue
        echo(f"  version  {each.version or '-'}{_at(each.version)}")
        for what, rows, other in (("now", each.expected, each.stored), ("stored", each.stored, each.expected)):
            lines = list(_row_lines(by, each.route, item, rows, other))
            if what == "stored" or each.error is None:
                echo("\n".join(f"  {what:7}  {line}" for line in lines or ["nothing"]))


def item_report(by: Explaining, item: ItemKey, found: Sequence[ItemExplained]) -> dict[str, Any]:
    """The same as JSON."""
    return {**item_object(by.app, item), "handlers": [_item_part(by, item, each) for each in found]}


def print_row(by: Explaining, found: RowExplained) -> None:
    """Prints the contributions to a row, their sum, and whether the row is that."""
    echo(item_text(found.row))
    contributions_grid(by, found)
    echo(f"\nsum  {sum_text(len(found.contributors), found.sums)}")
    if found.stored is None:
        echo("row  there is none")
    else:
        echo(f"row  {sum_text(found.counted, _attributes(by, found))}")
    echo(_verdict(found))


def contributions_grid(by: Explaining, found: RowExplained) -> None:
    """Prints the first contributions to a row: handler, item, version and what it adds."""
    shown = found.contributors[:SHOWN_MAX]
    if shown:
        lines = ([each.route.name, _item_name(each), each.version, _adds(by, each, found.row)] for each in shown)
        print_grid(("handler", "item", "version", "adds"), lines)
    if (left := len(found.contributors) - SHOWN_MAX) > 0:
        echo(f"... and {left:,} more; --json has them all.")


def contributions_report(by: Explaining, found: RowExplained) -> list[dict[str, Any]]:
    """All contributions to a row as JSON."""
    return [_contribution(by, each, found.row) for each in found.contributors]


def row_report(by: Explaining, found: RowExplained) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "row": item_object(by.app, found.row),
        "attributes": None if found.stored is None else encode(dict(found.stored))["M"],
        "contributions": contributions_report(by, found),
        "sums": encode(found.sums)["M"],
        "counted": found.counted,
        "agrees": found.agrees,
        "whole": found.whole,
        "missing_entries": found.lacking,
        "left_by_retired": sorted(found.left),
        "differing": {name: {"row": encode(row), "sum": encode(sum_)} for name, (row, sum_) in found.differing.items()},
    }


def _agreement(each: ItemExplained) -> str:
    if each.error is not None:
        return printable(f"raises {type(each.error).__name__}: {each.error}")
    if not each.route.kind.contributes:
        return "keeps nothing of an item in the ledger"
    return AGREEMENT[each.agrees]


def _at(version: str) -> str:
    at = time_of(version)
    return f"  at {at}" if at else ""


def _row_lines(by: Explaining, route: Route, item: ItemKey, rows: Contribution, other: Contribution) -> Iterator[str]:
    for row, part in rows.items():
        values = _part_texts(part, entry_values(by, route, item, row, part), other.get(row, part))
        yield f"{row_text(row)}  {'  '.join(values)}".rstrip()


def contribution_text(rows: Contribution, other: Contribution) -> str:
    """A contribution in one line, with the names of what only its entries or the row hold.

    other: what it is compared with.
    """
    return "; ".join(
        f"{row_text(row)}  {'  '.join(_part_texts(part, {}, other.get(row, part)))}".rstrip()
        for row, part in rows.items()
    )


def _part_texts(part: RowPart, entries: Mapping[str, Sequence[Any]], other: RowPart) -> list[str]:
    amounts = [f"{name_text(name)} {amount:+}" for name, amount in sorted(part.amounts.items())]
    plain = [f"{name_text(name)}={text(value)}" for name, value in sorted((part.plain or {}).items())]
    names = [f"{name_text(name)} (plain)" for name in part.names] if part.plain is None else []
    listed = [
        _entries_text(name_text(name) or "the row", entries.get(name, ()), _ordering(held, other.ordered.get(name)))
        for name, held in part.ordered.items()
    ]
    whole = ["(a whole row)"] if part.digest and part.plain is None and not (names or listed) else []
    return [*amounts, *plain, *names, *listed, *whole]


def _ordering(held: HeldEntries, other: HeldEntries | None) -> str:
    """How entries are ordered, and how many of them count, where the other side says otherwise."""
    return f" by {held.ordering}" if other is not None and other.ordering != held.ordering else ""


def _entries_text(name: str, values: Sequence[Any], ordering: str) -> str:
    return f"{name}{ordering}: {', '.join(map(text, values))}" if values else f"{name}{ordering} (entries)"


def _item_part(by: Explaining, item: ItemKey, each: ItemExplained) -> dict[str, Any]:
    error = each.error
    return {
        "handler": each.route.name,
        "kind": str(each.route.kind),
        "agrees": each.agrees,
        "version": each.version or None,
        "at": time_of(each.version) if each.version else None,
        "error": f"{type(error).__name__}: {error}" if error is not None else None,
        "now": [_row_part(by, each.route, item, row, part) for row, part in each.expected.items()],
        "stored": [_row_part(by, each.route, item, row, part) for row, part in each.stored.items()],
    }


def _row_part(by: Explaining, route: Route, item: ItemKey | None, row: RowKey, part: RowPart) -> dict[str, Any]:
    return {"row": row_object(by.app, row), **_part_object(by, route, item, row, part)}


def _part_object(by: Explaining, route: Route, item: ItemKey | None, row: RowKey, part: RowPart) -> dict[str, Any]:
    entries = entry_values(by, route, item, row, part)
    return {
        "adds": encode(part.amounts)["M"],
        "plain": sorted(part.names) if part.plain is None else encode(part.plain)["M"],
        "entries": {name: encode(values)["L"] for name, values in entries.items()},
        "orderings": {name: held.ordering for name, held in part.ordered.items()},
    }


def _item_name(each: Contributor) -> str:
    return item_text(each.item) if each.item is not None else f"(a long key: {name_text(each.key.pk)})"


def _adds(by: Explaining, each: Contributor, row: RowKey) -> str:
    return "  ".join(_part_texts(each.part, entry_values(by, each.route, each.item, row, each.part), each.part))


def sum_text(contributions: int, values: Mapping[str, Any]) -> str:
    """How many contributions there are, and what they add up to."""
    named = "".join(f"  {name_text(name)}={text(value)}" for name, value in sorted(values.items()))
    return counted(contributions, "contribution") + named


def _attributes(by: Explaining, found: RowExplained) -> dict[str, Any]:
    keys = by.app.tables[found.row[0]].attributes
    return {name: value for name, value in (found.stored or {}).items() if name not in keys and not hidden(name)}


def _verdict(found: RowExplained) -> str:
    if not found.whole:
        known = f"{len(found.contributors):,} of {found.counted:,} contributions are known"
        return f"Only {known} without reading all of the state: --scan does."
    if found.stored is None and not found.contributors:
        return "There is no such row, and no item contributes to it."
    left = f" Retired handlers left {', '.join(map(name_text, sorted(found.left)))} in it." if found.left else ""
    if found.agrees:
        return f"The row is what its items contribute.{left}"
    wrong = [
        f"{name_text(name)} is {_value(row)}, expected {_value(sum_)}" for name, (row, sum_) in found.differing.items()
    ]
    if not found.counts_agree:
        wrong.insert(0, f"it counts {counted(found.counted, 'contribution')}, expected {len(found.contributors):,}")
    if found.lacking:
        wrong.append(f"{found.lacking:,} entries below it are missing")
    return f"The row is not what its items contribute: {'; '.join(wrong)}.{left}"


def _value(value: Any) -> str:
    return "nothing" if value is None else text(value)


def _contribution(by: Explaining, each: Contributor, row: RowKey) -> dict[str, Any]:
    return {
        "handler": each.route.name,
        "item": None if each.item is None else item_object(by.app, each.item),
        "version": each.version,
        "at": time_of(each.version),
        **_part_object(by, each.route, each.item, row, each.part),
    }
