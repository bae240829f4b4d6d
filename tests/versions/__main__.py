"""Plays histories: ``python -m tests.versions SHAPE[+SHAPE...]|mixed FIRST COUNT`` prints what each broken one broke.

``SHAPE SEED story`` tells one history line by line. With DYNAMODB_ENDPOINT they run on DynamoDB Local.
"""

import os
import sys
from functools import partial
from time import monotonic

from tests.versions.api import LocalStore
from tests.versions.history import play
from tests.versions.shapes import shape_of

SHOWN = 5


def options():
    """Where histories run: in memory, or on DynamoDB Local."""
    if not (endpoint := os.environ.get("DYNAMODB_ENDPOINT")):
        return {}
    from streamfold.engines.dynamodb_client import make_client

    return {"store": partial(LocalStore, client=make_client(endpoint_url=endpoint))}


def main(name, first, count):
    if count == "story":
        wrong, story = play(shape_of(name, int(first)), int(first), **options())
        print(*story, wrong, sep="\n")
        return
    begun, broken = monotonic(), []
    for seed in range(int(first), int(first) + int(count)):
        wrong, _ = play(shape_of(name, seed), seed, **options())
        if wrong:
            broken.append(seed)
            if len(broken) <= SHOWN:
                print(f"  {wrong[:600]}")
    told = f"the first after {broken[0] - int(first) + 1}" if broken else "none"
    print(f"{name}: {len(broken)} of {count} broken, {told}, {monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
