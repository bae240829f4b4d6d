"""``python -m tests.bench [NAME ...] [--large]``: runs the benchmarks, all or those named.

A run of all, or one with ``--page``, writes docs/performance.md.
"""

import argparse

from tests.bench import (
    backfill,
    calls,
    cold,
    collections,
    core,
    exports,
    imports,
    instructions,
    lookups,
    memory,
    moments,
    performance,
    redelivery,
    replay,
    routing,
    scale,
    search,
    shards,
    state,
    strategies,
    verified,
)

BENCHMARKS = {
    "strategies": strategies.run,
    "core": core.run,
    "redelivery": redelivery.run,
    "imports": imports.run,
    "cold": cold.run,
    "routing": routing.run,
    "replay": replay.run,
    "instructions": instructions.run,
    "lookups": lookups.run,
    "memory": memory.run,
    "collections": collections.run,
    "moments": moments.run,
    "shards": shards.run,
    "scale": scale.run,
    "state": state.run,
    "search": search.run,
    "exports": exports.run,
    "backfill": backfill.run,
    "verified": verified.run,
    "calls": calls.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--large", action="store_true", help="memory over 1,000,000 records instead of 100,000")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md though only some are named")
    options = parser.parse_args()
    if options.page and options.names and "strategies" not in options.names:
        parser.error("--page begins with the table of strategies: name strategies too.")
    said: dict[str, list[str]] = {}
    for name in options.names or BENCHMARKS:
        for line in BENCHMARKS[name](large=options.large):
            said.setdefault(name, []).append(line)
            print(f"{name}: {line}", flush=True)
    if not options.names or options.page:
        performance.PAGE.write_text(performance.page(said), "utf-8")


if __name__ == "__main__":
    main()
