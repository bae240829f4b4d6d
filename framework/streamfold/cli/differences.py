"""Differences as commands print them: what is wrong, and its two sides below each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from streamfold.cli.output import echo
from streamfold.errors import shortened

SHOWN_MAX = 100
"""Differences for a person; ``--json`` has every one."""
TEXT_LETTERS_MAX = 300
NOTHING, BOTH = "nothing", "both"
Differing = TypeVar("Differing")


def print_differences(
    found: Sequence[Differing], head: Callable[[Differing], str], sides: Callable[[Differing], Mapping[str, str]]
) -> None:
    """Prints the first of the differences, and how many more there are.

    head: names what is wrong.
    sides: the texts of both sides, by word; "" for nothing.
    """
    for each in found[:SHOWN_MAX]:
        echo(head(each))
        for word, text in _told(sides(each)).items():
            echo(f"  {word:9} {text}")
    if (left := len(found) - SHOWN_MAX) > 0:
        echo(f"... and {left:,} more; --json has them all.")


def _told(sides: Mapping[str, str]) -> dict[str, str]:
    """The texts of both sides; one where they look the same, because what differs was left out of them."""
    texts = {word: shortened(text, TEXT_LETTERS_MAX) or NOTHING for word, text in sides.items()}
    first = next(iter(texts.values()))
    if len(texts) > 1 and all(text == first for text in texts.values()):
        return {BOTH: f"{first}  (with other values)"}
    return texts
