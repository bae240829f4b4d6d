"""Prints docs/proof.md: ``.venv/bin/python -m tests.tools.proof_table > docs/proof.md``."""

from tests.baselines import CHANGES, DRIVERS, FEW_FAULTS, measured

HISTORIES = 500

HEAD = """\
# What the tests find

Tests that find nothing prove little unless they find what is there. This page is printed by
`python -m tests.tools.proof_table`.
"""

BASELINES = f"""
## Without the guards

{HISTORIES} histories of {CHANGES} writes to orders that move between customers, who have a count and a sum. Each way of
writing gets the same histories and is delivered by the same driver; its own calls meet the faults
(`tests/baselines.py`).
The idempotent one is given the best of circumstances: its notes never expire, and one in progress counts as abandoned
as soon as its invocation ended. It diverges because its note and the update are two writes: what dies or loses its
answer between them is done again.

| updates | all faults: diverged | lost answers, timeouts and repeated batches only: diverged |
| --- | --- | --- |
"""


def main() -> None:
    print(HEAD + BASELINES, end="")
    for name in DRIVERS:
        every, few = (measured(name, HISTORIES, only=only) for only in (None, FEW_FAULTS))
        print(f"| {name} | {every.diverged} ({every.share:.0%}) | {few.diverged} ({few.share:.0%}) |")


if __name__ == "__main__":
    main()
