"""``streamfold search verify``: whether an index is what the items are."""

import sys
from random import Random

import click

from streamfold.cli.engines import REPORTED, as_json
from streamfold.cli.grids import counted
from streamfold.cli.items import item_text
from streamfold.cli.output import echo
from streamfold.cli.search_places import Asked, SearchPlace, asked_options, confirm_place, opened_place
from streamfold.cli.search_rebuilding import tell_wrong
from streamfold.cli.shared_options import check_sample, sample_option, tolerance_option
from streamfold.errors import SettingsError, printable
from streamfold.lifecycle.search import IndexVerifier, VerifiedIndex, repair


@click.command("verify", short_help="Compare an index with the items, and mend what differs.")
@asked_options
@sample_option(1)
@click.option("--full", is_flag=True, help="Compare all items, and all documents of the index.")
@click.option("--repair", "repairs", is_flag=True, help="Mend what differs: send documents again, or hide them.")
@tolerance_option
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS, or to a search server.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def command(
    asked: Asked,
    sample: int,
    full: bool,
    repairs: bool,
    tolerance: float,
    yes: bool,
    json_output: bool,
) -> None:
    """Compare documents of the index INDEX with what the search makes of the items now. What differs is read again
    after a while: what moves is not called different.

    \b
    different  a document that the function makes otherwise
    missing    a document that is not there
    ghost      a document whose item is gone, or makes none

    \b
    Exit codes:
      0  nothing differs, or all of it was mended
      1  documents differ, or the function raises on some items
      2  it did not run, or not to its end

    \b
    Examples:
      streamfold search verify products --engine dynamodb --table main=shop-prod
      streamfold search verify products --full --repair --state shop.db
    """
    check_sample(full=full)
    if yes and not repairs:
        raise SettingsError("--yes belongs to --repair: nothing is written without it.")
    with opened_place(asked, writes=repairs) as place:
        alias, sink = place.index.alias, place.aliases.sink
        if repairs:
            confirm_place(asked, place, yes=yes)
        verifier = IndexVerifier(place.runtime, place.index, sink, alias, tolerance)
        found = verifier.verify(None if full else sample, Random())  # noqa: S311 - a sample
        left = _repaired(place, found) if repairs else len(found.wrong)
    _print(alias, found, left if repairs else None, json_output=json_output)
    sys.exit(REPORTED if left or found.failed else 0)


def _repaired(place: SearchPlace, found: VerifiedIndex) -> int:
    """Mends what is wrong; returns how many items could not be mended."""
    report = repair(place.runtime, place.index, found.wrong)
    for each in report.failed:
        echo(f"failed: {item_text(each.item)}: {printable(str(each.error))}", err=True)
    return len(report.failed)


def _print(alias: str, found: VerifiedIndex, left: int | None, *, json_output: bool) -> None:
    counts = {what: sum(each.what == what for each in found.wrong) for what in ("different", "missing", "ghost")}
    more = {"moving": found.moving, "untold": found.untold, "failed": len(found.failed)}
    if json_output:
        wrong = [{"what": each.what, "id": each.id} for each in found.wrong]
        echo(as_json({"alias": alias, "items": found.roots, **counts, **more, "left": left, "wrong": wrong}))
        return
    tell_wrong(found)
    numbers = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    echo(f"Index {alias}: {counted(found.roots, 'item')} compared; {numbers}; {found.moving:,} moving.")
    if found.untold:
        echo(f"{found.untold:,} documents do not tell their item by their id, and were not compared.")
    if left is not None and found.wrong:
        echo(f"Mended, but for {left} items." if left else "All of it was mended.")
