"""What ``make mutants`` found: of each module, how many of its lines were changed, and how often no test noticed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NOTICED = {1, 3, 24, 36, -24, 152, 255}
"""Exit codes of a run that a change did not survive: a test failed, or ran into its time limit."""
SURVIVED = {0, 5, 33}
"""Every test passed, or none reaches the line."""


class Module(NamedTuple):
    """Figures of one module: changes that can be made, and those that were tried and noticed or not."""

    name: str
    possible: int
    noticed: int
    survived: int

    @property
    def tried(self) -> int:
        return self.noticed + self.survived


def modules(folder: Path) -> Iterator[Module]:
    """The figures of each module that was changed in a run's folder."""
    for path in sorted(folder.glob("mutants/src/streamfold/**/*.meta")):
        codes = json.loads(path.read_text("utf-8"))["exit_code_by_key"].values()
        if not codes:
            continue
        noticed, survived = (sum(code in some for code in codes) for some in (NOTICED, SURVIVED))
        assert noticed + survived == sum(code is not None for code in codes), f"{path} has other exit codes"
        yield Module(path.name.removesuffix(".py.meta"), len(codes), noticed, survived)


def table(found: list[Module]) -> Iterator[str]:
    """The lines of the table, with the sum as its last."""
    whole = Module("all", *(sum(column) for column in zip(*(module[1:] for module in found), strict=True)))
    yield "| module | possible changes | tried | noticed |\n| --- | --- | --- | --- |"
    for module in (*found, whole):
        if module.tried:
            share = module.noticed / module.tried
            yield f"| {module.name} | {module.possible:,} | {module.tried:,} | {module.noticed:,} ({share:.0%}) |"
