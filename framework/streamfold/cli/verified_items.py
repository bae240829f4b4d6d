"""What a comparison of items with their sources found, for a person and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from streamfold.cli.differences import print_differences
from streamfold.cli.explained import contribution_text
from streamfold.cli.grids import counted
from streamfold.cli.items import item_object, item_text
from streamfold.cli.output import echo
from streamfold.cli.repaired import failed_object, print_failed
from streamfold.ledger.contribution import stored_rows
from streamfold.lifecycle.page import Difference
from streamfold.lifecycle.verify import Verified
from streamfold.routes.application import Application


def print_verified(found: Verified, unfilled: Mapping[str, str] = MappingProxyType({})) -> None:
    """Prints the first differences, and counts. Of handlers that no backfill has filled, only how many there are.

    unfilled: the handlers, with the reason.
    """
    print_differences([each for each in found.different if each.handler not in unfilled], _head, _readable)
    for name, count in Counter(each.handler for each in found.different if each.handler in unfilled).items():
        echo(
            f"Handler {name!r} {unfilled[name]}, and was not backfilled: {counted(count, 'item')} from before it "
            f"{'is' if count == 1 else 'are'} not in its rows. Next: streamfold backfill {name}"
        )
    print_failed(found.failed)
    echo(
        f"{counted(found.items, 'item')}: {counted(found.equal, 'part')} equal, {len(found.different):,} different, "
        f"{found.moving:,} moving, {len(found.failed):,} failed."
    )
    if found.pending:
        echo(f"{counted(len(found.pending), 'part')} with pending work: rows that a step left to be finished.")


def verified_report(app: Application, handlers: Sequence[str], found: Verified) -> dict[str, Any]:
    """The same as JSON, which ``repair --from-verify`` takes."""
    pending = [item_object(app, each.item) | {"handler": each.handler} for each in found.pending]
    return {
        "application": app.name,
        "handlers": list(handlers),
        "items": found.items,
        "equal": found.equal,
        "moving": found.moving,
        "different": [
            item_object(app, each.item) | {"handler": each.handler, **_sides(each)} for each in found.different
        ],
        "failed": [failed_object(app, failed) for failed in found.failed],
        **({"pending": pending} if pending else {}),
    }


def _head(each: Difference) -> str:
    return f"Different: {item_text(each.item)}, handler {each.handler!r}"


def _readable(each: Difference) -> dict[str, str]:
    """Both sides as rows with what they get. The state keeps digests of plain and of ordered values, not the values."""
    stored, expected = (stored_rows(text) if text else {} for text in (each.stored, each.expected))
    return {"stored": contribution_text(stored, expected), "expected": contribution_text(expected, stored)}


def _sides(each: Difference) -> dict[str, str]:
    return {"stored": each.stored, "expected": each.expected}
