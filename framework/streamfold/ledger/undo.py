"""The way back of a step that put deltas: what it changed is kept beside their names until it is in the rows.

If a row refuses what an item adds by a delta, the item's step is taken back: the ledger item contributes what it did
before, and its share leaves the delta, in one transaction. The record is then processed as if there were no deltas.
``commit.taking_back`` does it; docs/decisions/0088-refused-additions-are-taken-back.md has the reasons.
"""

import re
from collections.abc import Collection

from streamfold.ledger.contribution import (
    LETTERS_KEPT,
    NOTHING,
    Contribution,
    RowContribution,
    stored_rows,
    stored_text,
)
from streamfold.ledger.deltas import named
from streamfold.ledger.difference import differs
from streamfold.ledger.state_keys import ROW_NAME_LETTERS
from streamfold.records.change import BY_OURSELVES

NUMBER = re.compile("[0-9]+$")
BEFORE_DIGITS, AFTER_ALL = "/", "~"
"""Letters that sort before and after those of versions."""


def before_text(version: str, before: Contribution, after: Contribution) -> str | None:
    """What a step changes, as a ledger item keeps it: the version before, the names of rows that the item is new to,
    and what it contributed to others. None if that is too long to keep.

    Rows with plain attributes, and those whose entries change, are left out: the ledger does not hold their values.
    """
    changed = [row for row in {**before, **after} if _is_reversible(before.get(row), after.get(row))]
    entered = "".join(sorted(named(row) for row in changed if row not in before))
    text = f"{version} {entered} {stored_text({row: before[row] for row in changed if row in before})}"
    return text if len(text) <= LETTERS_KEPT else None


def _is_reversible(was: RowContribution | None, now: RowContribution | None) -> bool:
    if was is not None and now is not None and not differs(was, now):
        return False
    there = [each for each in (was, now) if each is not None]
    if any(each.digest or each.plain is not None or each.names or each.life for each in there):
        return False
    return (was.ordered if was else NOTHING) == (now.ordered if now else NOTHING)


def version_before(text: str) -> str:
    return text.partition(" ")[0]


def contribution_before(text: str, now: Contribution, only: Collection[str] | None = None) -> Contribution:
    """The contribution before a step. ``only``: the names of the rows that go back; None: all that can.

    Raises ``EngineError`` for a text that is damaged.
    """
    entered, _, stored = text.partition(" ")[2].partition(" ")
    new = {entered[begin : begin + ROW_NAME_LETTERS] for begin in range(0, len(entered), ROW_NAME_LETTERS)}
    rows = {row: each for row, each in now.items() if named(row) not in new or not _goes_back(named(row), only)}
    rows.update((row, each) for row, each in stored_rows(stored).items() if _goes_back(named(row), only))
    return rows


def _goes_back(row: str, only: Collection[str] | None) -> bool:
    return only is None or row in only


def just_before(version: str) -> str:
    """A version after all that are older than this one: with it, the change of this version is not done.

    Of a step that did not read its ledger item, it is in place of the version there, which is not known.
    """
    number = NUMBER.search(version)
    if number is None or not int(number[0]):
        return f"{version[:-1]}{BEFORE_DIGITS}{AFTER_ALL}"
    rest = AFTER_ALL if BY_OURSELVES in version else BY_OURSELVES + AFTER_ALL
    return f"{version[: number.start()]}{int(number[0]) - 1:0{len(number[0])}d}{rest}"
