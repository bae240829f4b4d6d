"""What ``streamfold explain --item`` shows: the rows that each handler makes of an item, the roots and the items for
which it is read, and its failed records.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from streamfold.cli.items import command_key, item_object, item_text, name_text, row_object, row_text, text
from streamfold.cli.output import SHOWN_MAX, Note, Printed, counted
from streamfold.cli.session import Session
from streamfold.errors import printable
from streamfold.failures.failed_records import open_location
from streamfold.failures.waiting_of_item import WaitingOfItem, is_of_item, waiting_of_item
from streamfold.keys.key import template_text
from streamfold.ledger.contribution import Contribution, RowContribution, SourceEntries
from streamfold.lifecycle.buckets import GONE, PENDING, REFUSED, UNREAD
from streamfold.lifecycle.explain import (
    Explaining,
    GatheredInto,
    ItemExplained,
    LookedUpBy,
    PartsRead,
    entry_values,
    explain_referrers,
    explain_roots,
    time_of,
)
from streamfold.records.change import ItemKey
from streamfold.records.values import encode
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

DELTAS = {
    PENDING: "is pending: the rows do not have it yet",
    REFUSED: "is refused by a row",
    UNREAD: "is damaged",
    GONE: "is gone: the rows have it",
}
"""What a delta's status means for the item that added by it."""
SOME_MAX = 10
"""Parts of a root, or items that refer to an item, that are named in one line; --json has them all."""
AGREEMENT = {True: "agrees", False: "differs", None: ""}


def item_lines(by: Explaining, item: ItemKey, found: Sequence[ItemExplained]) -> Iterator[Printed]:
    """The rows that each handler makes of an item, and the rows that the state holds of it; then whose part or
    referent the item is.
    """
    yield item_text(item)
    for each in found:
        yield f"\n{each.route.name} ({each.route.kind}) {_agreement(each)}".rstrip()
        if not each.route.kind.contributes:
            if each.change:
                yield f"  version  {each.version}  {each.change}"
            continue
        at = time_of(each.version)
        yield f"  version  {each.version or '-'}{f'  at {at}' if at else ''}"
        yield from _beside_lines(each)
        for delta in each.deltas:
            yield printable(f"  delta    {delta.name} {DELTAS[delta.status]}{f': {delta.why}' if delta.why else ''}")
        for what, rows, other in (("now", each.expected, each.stored), ("stored", each.stored, each.expected)):
            lines = [
                _contributed_text(row, given, entry_values(by, each.route, item, row, given), other.get(row, given))
                for row, given in rows.items()
            ]
            if what == "stored" or each.error is None:
                yield "\n".join(f"  {what:7}  {line}" for line in lines or ["nothing"])
    yield from _read_for_lines(explain_roots(by, item), explain_referrers(by, item))


def _agreement(each: ItemExplained) -> str:
    """Whether the state agrees, or why nothing is compared."""
    if each.error is not None:
        return printable(f"raises {type(each.error).__name__}: {each.error}")
    if each.root is not None:
        return f"gathers it into the documents of {item_text(each.root)}"
    return AGREEMENT[each.agrees] if each.route.kind.contributes else "keeps nothing of an item in the ledger"


def _read_for_lines(roots: Sequence[GatheredInto], referrers: Sequence[LookedUpBy]) -> Iterator[str]:
    """Whose part an item is, and which items refer to it."""
    for each in roots:
        text = f"\n{each.route.name} ({each.route.kind}) gathers it into {item_text(each.root)}"
        if not each.has_root:
            text += ", which does not exist" + ("" if each.route.optional else ": nothing is made of it")
        elif each.newest:
            text += f", {'' if each.is_read else 'not '}among the newest {each.newest}"
        yield text + (printable(f": {type(each.error).__name__}: {each.error}") if each.error else "")
    for root in dict.fromkeys(each.root for each in roots):
        yield f"The rows are those of the root: streamfold explain --item {command_key(root)}"
    for one in referrers:
        number = f"{counted(len(one.referrers), 'item')}{' and more' if one.has_more else ''}"
        yield f"\n{one.route.name} ({one.route.kind}) looks it up for {number}{_some(one.referrers)}"


def _some(items: Sequence[ItemKey]) -> str:
    more = f", and {len(items) - SOME_MAX:,} more" if len(items) > SOME_MAX else ""
    return f": {', '.join(map(item_text, items[:SOME_MAX]))}{more}" if items else ""


def _beside_lines(each: ItemExplained) -> Iterator[str]:
    """What an item refers to, its parts, and until when it waits."""
    yield from (f"  refers   {item_text(referent)}" for referent in each.references)
    for (key, reads, newest, _), items in each.parts:
        how = f", the newest {newest} at most" * bool(newest)
        how += f", of which {' and '.join(map(name_text, sorted(reads)))} counts" if reads else ""
        yield f"  parts    {len(items):,} of {template_text(key)}{how}{_some(items)}"
    if each.again_at is not None:
        handler = each.route.kind.calls_once(each.route)
        what = f"looked at for {handler}" if handler else "derived again"
        yield f"  waits    {what} at {each.again_at}, at the latest"
    for referent in each.lacking:
        yield f"  lacking  the backlink of {item_text(referent)}, whose changes do not reach the item: repair puts it"
    if each.lacks_wake:
        yield "  lacking  the wake of that moment, so nothing visits the item then: repair puts it"
    if each.called_for is not None:
        yield f"  called   {each.route.kind.calls_once(each.route)} for {each.called_for}"


def explained_object(by: Explaining, item: ItemKey, found: Sequence[ItemExplained]) -> dict[str, Any]:
    def contributions(route: Route, rows: Contribution) -> list[dict[str, Any]]:
        return [
            {"row": row_object(by.app, row), **contribution_object(by, route, item, row, given)}
            for row, given in rows.items()
        ]

    def parts_object(of: PartsRead) -> dict[str, Any]:
        items = [item_object(by.app, each) for each in of.items]
        return {"of": template_text(of.part.key), "newest": of.part.newest or None, "read": items}

    handlers = [
        {
            "handler": each.route.name,
            "kind": str(each.route.kind),
            "agrees": each.agrees,
            "version": each.version or None,
            "at": time_of(each.version) if each.version else None,
            "error": None if each.error is None else f"{type(each.error).__name__}: {each.error}",
            "now": contributions(each.route, each.expected),
            "stored": contributions(each.route, each.stored),
            **({"change": each.change} if each.change else {}),
            **({"refers_to": [item_object(by.app, of) for of in each.references]} if each.references else {}),
            **({"parts": [parts_object(of) for of in each.parts]} if each.parts else {}),
            **({"derived_again_at": each.again_at} if each.again_at else {}),
            **({"called_for": each.called_for} if each.called_for else {}),
            **({"root": item_object(by.app, each.root)} if each.root else {}),
            **({"without_backlink": [item_object(by.app, of) for of in each.lacking]} if each.lacking else {}),
            **({"without_wake": True} if each.lacks_wake else {}),
            **(
                {"deltas": [{"delta": of.name, "status": of.status, "why": of.why} for of in each.deltas]}
                if each.deltas
                else {}
            ),
        }
        for each in found
    ]
    return {**item_object(by.app, item), "handlers": handlers, **_beside_object(by, item)}


def _beside_object(by: Explaining, item: ItemKey) -> dict[str, Any]:
    """The same as JSON; no name for an item that nobody reads beside another."""
    gathered = [
        {
            "handler": each.route.name,
            "root": item_object(by.app, each.root),
            "root_exists": each.has_root,
            "newest": each.newest or None,
            "read": each.is_read,
            "error": None if each.error is None else f"{type(each.error).__name__}: {each.error}",
        }
        for each in explain_roots(by, item)
    ]
    looked_up = [
        {
            "handler": each.route.name,
            "items": [item_object(by.app, one) for one in each.referrers],
            "more": each.has_more,
        }
        for each in explain_referrers(by, item)
    ]
    return {name: found for name, found in (("gathered_into", gathered), ("looked_up_by", looked_up)) if found}


def contribution_text(rows: Contribution, other: Contribution) -> str:
    """A contribution in one line. Values that only entries or the row hold are named without their value.

    other: the contribution that it is compared with.
    """
    return "; ".join(_contributed_text(row, given, {}, other.get(row, given)) for row, given in rows.items())


def _contributed_text(
    row: RowKey, given: RowContribution, entries: Mapping[str, Sequence[Any]], other: RowContribution
) -> str:
    return f"{row_text(row)}  {'  '.join(contribution_texts(given, entries, other))}".rstrip()


def contribution_texts(
    given: RowContribution, entries: Mapping[str, Sequence[Any]], other: RowContribution
) -> list[str]:
    def listed(name: str, held: SourceEntries) -> str:
        """Entries; with their order and number if the other side has a different one."""
        differs = name in other.ordered and other.ordered[name].ordering != held.ordering
        head, values = f"{name_text(name) or 'the row'}{f' by {held.ordering}' * differs}", entries.get(name, ())
        return f"{head}: {', '.join(map(text, values))}" if values else f"{head} (entries)"

    amounts = [f"{name_text(name)} {amount:+}" for name, amount in sorted(given.amounts.items())]
    plain = [f"{name_text(name)}={text(value)}" for name, value in sorted((given.plain or {}).items())]
    names = [f"{name_text(name)} (plain)" for name in given.names] if given.plain is None else []
    ordered = [listed(name, held) for name, held in given.ordered.items()]
    is_whole = given.digest and given.plain is None and not (names or ordered)
    return [*amounts, *plain, *names, *ordered, *(["(a whole row)"] if is_whole else [])]


def contribution_object(
    by: Explaining, route: Route, item: ItemKey | None, row: RowKey, given: RowContribution
) -> dict[str, Any]:
    entries = entry_values(by, route, item, row, given)
    return {
        "adds": encode(given.amounts)["M"],
        "plain": sorted(given.names) if given.plain is None else encode(given.plain)["M"],
        "entries": {name: encode(values)["L"] for name, values in entries.items()},
        "orderings": {name: held.ordering for name, held in given.ordered.items()},
    }


def waiting_records(opened: Session, item: ItemKey) -> WaitingOfItem:
    """What is parked where the command line says, as far as ``item`` is concerned."""
    with closing(open_location(opened.given.parked)) as documents:
        return waiting_of_item(documents, is_of_item(opened.app, opened.settings, item))


def waiting_lines(found: WaitingOfItem) -> Iterator[Printed]:
    if found.records:
        yield "\nFailed records of the item that wait to be redriven:"
    else:
        yield "\nNo failed record of the item waits there."
    for each in found.records[:SHOWN_MAX]:
        who = f"handler {each.handler}" if each.handler else "a batch; its log lines name the handler"
        tries = "" if each.attempts is None else f"  after {counted(each.attempts, 'attempt')}"
        yield printable(f"  sequence {each.sequence or '-'}  {who}{tries}  at {each.at or '-'}")
        yield printable(f"    request  {each.request_id or '-'}")
        yield printable(f"    why      {each.why}")
        yield printable(f"    in       {each.location}")
    if (hidden_count := len(found.records) - SHOWN_MAX) > 0:
        yield f"... and {hidden_count:,} more; --json has them all."
    if found.ranges:
        hold = f"{counted(found.ranges, 'document')} hold{'s' * (found.ranges == 1)}"
        yield f"{hold} sequence numbers alone, whose records may be of the item: redrive reads the stream."
    yield from (Note(printable(f"Not read: {each}")) for each in found.unread[:SHOWN_MAX])
