"""What became of a plan: what failed and why, what was already done, and how many rows each handler changed."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from streamfold.errors import StreamfoldError
from streamfold.records.change import Change
from streamfold.routes.route import Route


class Held(StreamfoldError):  # noqa: N818 - an outcome, not a mistake
    """Not attempted, because an earlier change of the same item failed for this handler."""


class Failed(NamedTuple):
    """A change that one handler could not process, and why."""

    change: Change
    route: Route
    error: Exception


@dataclass(slots=True)
class Tallies:
    """Rows of one handler: ``unchanged`` counts items whose rows stayed as they were."""

    written: int = 0
    removed: int = 0
    unchanged: int = 0


@dataclass(slots=True)
class Outcome:
    """What became of a plan. ``done`` holds the changes that the state already had. ``conflicts`` counts, by handler,
    items that claim a unique row beside another.
    """

    failed: list[Failed] = field(default_factory=list)
    tallies: dict[str, Tallies] = field(default_factory=dict)
    done: list[Change] = field(default_factory=list)
    fresh: list[Change] = field(default_factory=list)
    conflicts: Counter[str] = field(default_factory=Counter)
