"""Writes docs/proof.md: ``.venv/bin/python -m tests.tools.proof_table``.

The last section holds the findings of ``make mutants``, which takes hours. The section is kept, unless the folder of
such a run is given: ``python -m tests.tools.proof_table mutants``.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.baselines import CHANGES, DRIVERS, FEW_FAULTS, measured
from tests.helpers.kills import KILLS_CI, KILLS_NIGHTLY
from tests.mutants import GUARDS, MUTANTS, Mutant, search
from tests.mutants.search import killed
from tests.mutants.suite import failed_tests
from tests.tools.changed_lines import modules, table

PAGE = Path(__file__).parents[2] / "docs" / "proof.md"
HISTORIES = 500
HISTORIES_MANY = 6_000

HEAD = """\
# What the tests find

A test that never fails proves little. This page shows that the tests fail when a guard is removed or wrong.
`python -m tests.tools.proof_table` writes it.
"""

BASELINES = f"""
## Without the guards

{HISTORIES} histories of {CHANGES} writes to orders that move between customers. Each customer has a count and a sum.
All three ways of updating them get the same histories from the same driver, and the faults occur in their own calls
(`tests/helpers/baselines.py`). The idempotent way has the best conditions: its notes never expire, and a note in
progress counts as abandoned as soon as its invocation has ended. It still diverges, because the note and the update are
two writes. If the process dies or a response is lost between them, the update is done again.

| updates | all faults: diverged | lost answers, timeouts and repeated batches only: diverged |
| --- | --- | --- |
"""

WRONG = f"""
## With one wrong guard

Each line is the same code with one error (`tests/mutants/`). `tests/proofs/test_mutants.py` notices each of them, in
one of two ways. Either histories of {search.CHANGES} writes are drawn and delivered under faults until one ends in
wrong rows, breaks an invariant or publishes a later change of an item first, or tests of the suite fail. A mutant
that {search.HISTORIES} histories do not show has a test of its own. In these histories, records that were given up are
redriven two weeks late.

Errors of lookups are races of two items. A scheduler puts the store calls of a script into any order
(`tests/helpers/lookup_walks.py`), with two faults: a walk. Walks of collections are over drawn histories of roots and
parts (`tests/helpers/collection_walks.py`).
"""

EQUIVALENT = f"""
## Changes that make no difference

Not every change of a guard is an error. With these changes the rows must be right, and they were in each of
{HISTORIES_MANY:,} histories.

"""

VERSIONS = """
## Several versions of the code at once

In these histories an old and a new version of an application, or two applications, work on one state and table under
every fault (`tests/versions/`). 1,000 of them run with every change of this project, 20,000 every night, and a hundred
on DynamoDB Local. Adversarial tests had found the following errors at commit 6265ed5. At that commit, these histories
find each of them without help:

| error | histories | first that showed it | showed it |
| --- | --- | --- | --- |
| 1 two applications, or two versions, derive onto one item without end | `two_applications` | 1 | 19 of 20 |
| 1 the same with a function for each group | `two_groups` | 50 | 9 of 600 |
| 1 warm old code takes a new attribute away | `attribute_added` | 37 | 4 of 800 |
| 2 parents keep the total of an item that has moved | `parents` | 33 | 6 of 400 |
| 2 the same, the parent named by changed code | `parents_moved` | 21 | 3 of 400 |
| 3 put rows over added ones, and plain attributes that are not removed | `plain_to_shared` | 1 | 41 of 50 |
| 4 pages of a large step lose their position | `pages` | 17 | 4 of 200 |
| 4 the same with changed code | `pages_changed` | 8 | 7 of 100 |
| 5 lists of more than 1 MB are cut | `large`, DynamoDB Local | 1 | 2 of 2 |
| 6 an old item's removal restores the old aggregation | `top` | 20 | 18 of 400 |
| 6 a set becomes a list | `set_to_list` | 1 | 20 of 20 |
| 7 rows that were removed first become negative | `expiring` | 1 | 100 of 300 |
| 8 another table below the state | `swapped` | 2 | 85 of 100 |
| 9 a redelivered record removes the writer's own attribute | `unmarked` | 43 | 11 of 400 |
| 10 long keys fail for ever | `long_keys`, DynamoDB Local | 1 | 1 of 1 |
| 13 redacted history rows in clear again | `redacted` | 1 | 32 of 300 |
| a unique index's `by=` changes | `by_changed` | 1 | 20 of 20 |

Histories of three shapes at once, 529 of them, showed 1 after 4, 3 after 10, 13 after 19, 7 after 41, 4 after 112,
6 after 253, 2 after 364 and 9 after 380.

In the histories `lost` and `expiring`, alone and beside others, rows of all kinds that are added to, and rows that are
put, are removed by hand at any moment: 84 with every change of this project, 2,100 every night. Each removal of a
row that counted items is noticed by every handler that adds to it, where the stream has old images. `verify --rows`
reports every row that is not the fold of its items. After a `rebuild`, every row is right. In all other histories
nothing is noticed.
"""

BACKFILLS = """
## Backfills beside the stream

`tests/helpers/backfill_histories.py` simulates deployments: old and new code at once, records between any two calls,
crashes, two runs that overlap. In some, additions to half of the rows wait in deltas. The rows must be those of the
items. These variants are noticed (`tests/lifecycle/test_page.py`):

| variant | |
| --- | --- |
| absent contributions only | a record that older code took between two of the new code is lost |
| no deployment delay | older code takes a record after its item was read |
| no orphan scan of the state | the rows of an item that older code saw removed are kept |
| the source read before the ledger | an older image overwrites a newer contribution |
| through Kinesis: a deployment delay without the 300 seconds | an older record arrives after the page |
| through Kinesis: new contributions without the time | the same, for an item that exists |
| rows of an earlier page not read again | a page that died before it recomputed its rows leaves them old |

`tests/helpers/feed_backfills.py` does the same with feeds. It notices a run without an orphan scan, a run without the
deployment delay, and an orphan scan that skips stored copies of removed items.
"""

PUBLISHED = """
## Published messages

`check` and `replay --chaos` compare the ids, types and sequences of all messages with the changes. Of each item they
compare the order in which ids first appeared with the order of its changes
([testing.md](testing.md#what-is-published)). The mutants of `publish` above show what this order finds.

`tests/helpers/publish_histories.py` delivers to two versions of the code at once, while the destination refuses,
throttles and loses answers. The newer version has a publisher more. Records that the older version acknowledged may
come to this publisher late; all other first appearances have to be in order. 560 histories run with every change of
this project, 5,000 every night.
"""

KILLS = f"""
## Killed processes

A replay into DynamoDB Local is killed (`SIGKILL`) at random moments and run again, in batches of 3 to 1,000 records.
The rows are those of a clean run each time. There are {KILLS_CI} kills with every change of this project, and
{KILLS_NIGHTLY} more every night. A replay into a state file is killed 10 and 60 times.
"""

LINES_HEADING = "## With one line changed"
LINES = f"""
{LINES_HEADING}

`make mutants` changes the pure rooms line by line (mutmut: a comparison reversed, another constant, an argument left
out) and runs the tests that execute the line. `make mutants MUTANTS="'*3' '*8'"` takes the changes whose numbers end
in 3 or 8, about a fifth. Such a sample gave these figures:

"""


def baselines() -> Iterator[str]:
    for name in DRIVERS:
        every, few = (measured(name, HISTORIES, only=only) for only in (None, FEW_FAULTS))
        yield f"| {name} | {every.diverged} ({every.share:.0%}) | {few.diverged} ({few.share:.0%}) |"


def mutants() -> Iterator[str]:
    for module in GUARDS:
        name = module.__name__.rpartition(".")[2].replace("_", " ")
        yield f"\n| {name} | noticed after | tests that fail |\n| --- | --- | --- |"
        for mutant in MUTANTS:
            if mutant.equivalent or mutant.made.__module__ != module.__name__:
                continue
            tests = sorted(name.rpartition("::")[2] for name in failed_tests(mutant)) if mutant.tests else ()
            yield f"| {mutant.name} | {_search(mutant)} | {', '.join(f'`{name}`' for name in tests)} |"


def _search(mutant: Mutant) -> str:
    if mutant.guard is None:
        return ""
    found = killed(mutant)
    one, many = (
        ("walk", "walks") if mutant.guard.startswith((search.WALKED, search.GATHERED)) else ("history", "histories")
    )
    if found is None:
        return f"not in {search.HISTORIES} {many}"
    return f"{found.history} {many if found.history > 1 else one}, by {found.by}"


def equivalent() -> Iterator[str]:
    for mutant in MUTANTS:
        if mutant.equivalent:
            assert killed(mutant, HISTORIES_MANY) is None, mutant.name
            yield f"- {mutant.name[0].upper()}{mutant.name[1:]}."


def lines(folder: str | None) -> str:
    """The section of a run in this folder; without a folder, the section of the page."""
    if folder is None:
        _, heading, rest = PAGE.read_text("utf-8").partition(LINES_HEADING)
        return f"\n{heading}{rest}" if heading else ""
    return LINES + "\n".join(table(list(modules(Path(folder))))) + "\n"


def main(folder: str | None = None) -> None:
    sections = (
        (HEAD + BASELINES, baselines()),
        (WRONG, mutants()),
        (EQUIVALENT, equivalent()),
        (VERSIONS, ()),
        (BACKFILLS, ()),
        (PUBLISHED, ()),
        (KILLS, ()),
    )
    text = "".join(head + "".join(f"{line}\n" for line in body) for head, body in sections)
    PAGE.write_text(text + lines(folder), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
