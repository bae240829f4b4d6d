"""Records replayed in memory: how many rows of each target they lead to."""

import json
from collections import Counter

from streamfold.engines.embedded import EmbeddedEngine
from streamfold.records.values import decode
from streamfold.replay.local import process
from streamfold.settings import Settings

BATCH = 100


def recorded(path):
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rows_by_target(app, records, folder):
    """The number of rows of each target after a replay, by template; and the number of failures."""
    engine = EmbeddedEngine(app.tables.values(), folder / "state.db", app.chains)
    failures = 0
    for number in range(0, len(records), BATCH):
        failures += len(process(app, {"Records": records[number : number + BATCH]}, engine, Settings()))
    targets = {target.key for route in app.routes for target in route.targets}
    counts = Counter()
    for table in app.tables.values():
        for item in engine.items(table):
            plain = decode({"M": item})
            if plain.get("_sf_n") != 0:
                counts.update(key.stored_name for key in targets if key.match(plain) is not None)
    engine.close()
    return counts, failures
