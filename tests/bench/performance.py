"""Writes docs/performance.md: the lines of every benchmark of one run, and its machine."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

PAGE = Path("docs/performance.md")
HEAD = """# Performance

The cost of keeping three counts a record exactly, compared with code that one would write oneself; then the cost of
each component.
`make bench` measures all of it in one run and writes this page. Ratios within a run can be trusted, times cannot: the
machine of this run had {processors} processors and a load of {load:.1f}.
A *goal* is an aim of the project, reached or not.
Measured with {versions}; orjson comes with the extra
`fast`, and functions run without it, too ([decision 63](decisions/0063-orjson-where-it-is-installed.md)).

## A batch of 1,000 records

The service is simulated: a write takes 5 ms, a transaction 20 ms, and a transaction that meets an item of another is
refused. Everything else of boto3 runs. The *bound* sends the sums of the batch alone, 8 requests in flight, encoded
once. It is no alternative: it counts a redelivered batch twice if the batch is cut differently.

"""
TITLES = {
    "core": "The batch without a store: instructions",
    "redelivery": "A redelivered batch",
    "imports": "Importing an application",
    "cold": "A cold start",
    "routing": "Routing",
    "replay": "A replay in memory: CPU",
    "instructions": "A replay in memory: instructions",
    "memory": "Memory of a replay",
    "shards": "A row that eight shards write to",
    "scale": "Shards and call slots, simulated",
    "state": "A replay into a state",
    "search": "Documents",
    "exports": "Verifying an export",
    "lookups": "Handlers with a lookup",
    "collections": "Handlers that gather parts",
    "moments": "Handlers that ask for the time",
    "calls": "Slow calls of an external handler",
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
"""Workloads of sections that a reader may compare with each other, printed above their figures."""
INDENT = "   "
PACKAGES = ("boto3", "aws-lambda-powertools", "orjson")


def page(lines: Mapping[str, Sequence[str]]) -> str:
    """The page of a run: the table of strategies, then the lines of the other benchmarks."""
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)])
    head = HEAD.format(processors=os.cpu_count(), load=os.getloadavg()[0], versions=versions)
    sections = [head + "\n".join(line if line.startswith("|") else _folded(line, "") for line in lines["strategies"])]
    for name, title in TITLES.items():
        if name in lines:
            figures = "\n".join(_folded(line, INDENT) for line in lines[name])
            sections += [f"## {title}", *workload(name), f"```text\n{figures}\n```"]
    return "\n\n".join(sections) + "\n"


def workload(name: str) -> list[str]:
    """The paragraph about the workload of a section, if it has one."""
    return [_folded(WORKLOADS[name], "")] if name in WORKLOADS else []


def _folded(line: str, indent: str, width: int = 116) -> str:
    """A line over several, at its spaces."""
    lines = [""]
    for word in line.split(" "):
        if len(lines[-1]) + len(word) >= width:
            lines.append(indent)
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines)
