"""Writes docs/performance.md: what every benchmark of one run said, and where it ran."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

PLACE = Path("docs/performance.md")
HEAD = """# Performance

What it costs to keep three counts a record exactly, beside what one would write oneself; then what each part costs.
`make bench` measures all of it in one run and writes this page. Ratios within a run can be trusted, times cannot: the
machine of this run had {processors} processors and a load of {load:.1f}.
A *goal* is what the project aims at, met or not.
Measured with {versions}; orjson comes with the extra
`fast`, and functions run without it, too ([decision 63](decisions/0063-orjson-where-it-is-installed.md)).

## A batch of 1,000 records

The service only takes its time (5 ms a write, 20 ms a transaction), and refuses a transaction that meets an item of
another. Everything else of boto3 runs. The *bound* sends the sums of the batch alone, 8 requests in flight, encoded
once. It is no rival: a batch that is cut otherwise when it comes again is counted twice.

"""
TITLES = {
    "core": "The batch without a store: instructions",
    "redelivery": "A batch that comes again",
    "imports": "Importing an application",
    "cold": "A cold start",
    "routing": "Routing",
    "replay": "A replay in memory: CPU",
    "instructions": "A replay in memory: instructions",
    "memory": "Memory of a replay",
    "shards": "A row that eight shards write to",
    "scale": "Shards and lanes, simulated",
    "state": "A replay into a state",
    "search": "Documents",
    "exports": "Verifying an export",
    "backfill": "A backfill that is killed, and one beside a writer",
    "verified": "Planted faults, found beside a writer",
}
WORKLOADS = {
    "memory": "Two views of 5,000 items, into a state: further records amend the same items.",
    "state": (
        "Seven handlers, and more items and rows with more records. Its peaks are of another workload than those of "
        "*Memory of a replay*: the two are not to be compared."
    ),
}
"""What sections measure that a reader may compare with another, in a line above their figures."""
INDENT = "   "
PACKAGES = ("boto3", "aws-lambda-powertools", "orjson")


def page(said: Mapping[str, Sequence[str]]) -> str:
    """The page of a run: the table of strategies, then what the other benchmarks said."""
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)])
    head = HEAD.format(processors=os.cpu_count(), load=os.getloadavg()[0], versions=versions)
    parts = [head + "\n".join(line if line.startswith("|") else _folded(line, "") for line in said["strategies"])]
    for name, title in TITLES.items():
        if name in said:
            figures = "\n".join(_folded(line, INDENT) for line in said[name])
            parts += [f"## {title}", *workload(name), f"```text\n{figures}\n```"]
    return "\n\n".join(parts) + "\n"


def workload(name: str) -> list[str]:
    """The paragraph about what a section measures, if it has one."""
    return [_folded(WORKLOADS[name], "")] if name in WORKLOADS else []


def _folded(line: str, indent: str, width: int = 116) -> str:
    """A line over several, at its spaces."""
    lines = [""]
    for word in line.split(" "):
        if len(lines[-1]) + len(word) >= width:
            lines.append(indent)
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines)
