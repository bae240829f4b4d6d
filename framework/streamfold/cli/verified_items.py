"""What a comparison of items with their sources found, for a person and as JSON."""

from collections.abc import Sequence
from typing import Any

import click

from streamfold.cli.items import item_object, item_text
from streamfold.cli.repaired import failed_object, print_failed
from streamfold.errors import shortened
from streamfold.lifecycle.page import Difference
from streamfold.lifecycle.verify import Verified
from streamfold.routes.application import Application

SHOWN_MAX = 100
TEXT_LETTERS_MAX = 300


def print_verified(found: Verified) -> None:
    """Prints the first differences, and counts."""
    for each in found.different[:SHOWN_MAX]:
        click.echo(f"Different: {item_text(each.item)}, handler {each.handler!r}")
        click.echo(f"  stored    {_text(each.stored)}")
        click.echo(f"  expected  {_text(each.expected)}")
    if (left := len(found.different) - SHOWN_MAX) > 0:
        click.echo(f"... and {left:,} more; --json has them all.")
    print_failed(found.failed)
    click.echo(
        f"{found.items:,} items: {found.equal:,} parts equal, {len(found.different):,} different, "
        f"{found.moving:,} moving, {len(found.failed):,} failed."
    )


def verified_report(app: Application, handlers: Sequence[str], found: Verified) -> dict[str, Any]:
    """The same as JSON, which ``repair --from-verify`` takes."""
    return {
        "application": app.name,
        "handlers": list(handlers),
        "items": found.items,
        "equal": found.equal,
        "moving": found.moving,
        "different": [item_object(app, each.item) | _sides(each) for each in found.different],
        "failed": [failed_object(app, failed) for failed in found.failed],
    }


def _text(stored: str) -> str:
    return shortened(stored, TEXT_LETTERS_MAX) or "nothing"


def _sides(each: Difference) -> dict[str, str]:
    return {"handler": each.handler, "stored": each.stored, "expected": each.expected}
