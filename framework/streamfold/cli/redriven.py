"""What a redrive prints: what became of each record, and of all of them."""

from collections import Counter
from dataclasses import dataclass, field

from streamfold.cli.engines import as_json
from streamfold.cli.grids import print_grid
from streamfold.cli.output import echo
from streamfold.errors import printable
from streamfold.failures.redrive import Redriven

SHOWN_MAX = 100
"""Records of a table for a person, and reasons below it; ``--json`` prints every one."""
COLUMNS = ("place", "item", "handler", "outcome", "written", "removed")
NUMBERS = ("written", "removed")


@dataclass(slots=True)
class RedriveTold:
    """What became of the records so far. With ``json_output`` each is printed at once, as one line."""

    dry_run: bool
    json_output: bool
    documents: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    conflicts: Counter[str] = field(default_factory=Counter)
    shown: list[Redriven] = field(default_factory=list)
    reasons: list[Redriven] = field(default_factory=list)
    left_over: int = 0

    def add(self, redriven: Redriven) -> None:
        self.outcomes[redriven.what] += 1
        self.left_over += redriven.is_left_over
        if redriven.conflicts:
            self.conflicts[str(redriven.handler)] += redriven.conflicts
        if self.json_output:
            echo(as_json(_line(redriven)))
        else:
            kept = (self.shown, True), (self.reasons, redriven.is_left_over)
            for each in (each for each, wanted in kept if wanted and len(each) < SHOWN_MAX):
                each.append(redriven)

    def print_all(self) -> None:
        """Prints the table, what is left over and why, and the counts; or the counts as a JSON object."""
        if self.json_output:
            counts = {"dry_run": self.dry_run, "documents": self.documents, "outcomes": dict(self.outcomes)}
            echo(as_json({**counts, "conflicts": dict(self.conflicts)}))
            return
        if self.shown:
            print_grid(COLUMNS, map(_row, self.shown), right=NUMBERS)
        for redriven in self.reasons:
            echo(_left_over(redriven), err=True)
        for name, count in self.conflicts.items():
            echo(f"Index {name} met {count} claims of rows that another item claims too.")
        self._print_counts()

    def _print_counts(self) -> None:
        if (hidden := self.outcomes.total() - len(self.shown)) > 0:
            echo(f"... and {hidden} more; --json prints them all.")
        counts = ", ".join(f"{count} {what}" for what, count in self.outcomes.most_common()) or "nothing to redrive"
        documents = f"{self.documents} document{'' if self.documents == 1 else 's'}"
        if self.dry_run:
            echo(f"\nDry run of {documents}: {counts}. Nothing was written; --apply does it.")
        else:
            echo(f"\n{documents} redriven: {counts}.")


def _line(redriven: Redriven) -> dict[str, object]:
    return {"outcome" if name == "what" else name: value for name, value in redriven._asdict().items()}


def _row(redriven: Redriven) -> list[str]:
    told = redriven
    texts = (told.place, told.item or "", told.handler or "", told.what)
    return [*map(printable, texts), str(told.written), str(told.removed)]


def _left_over(redriven: Redriven) -> str:
    who = f"handler {redriven.handler!r}, " if redriven.handler else ""
    item = f"item {redriven.item}: " if redriven.item else ""
    return printable(f"{redriven.what.capitalize()}: {redriven.place}: {who}{item}{redriven.why}")
