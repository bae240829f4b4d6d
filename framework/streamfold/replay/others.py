"""Warns an application that is new to a local state of others that write the same rows."""

from streamfold.batch.manifest import read_manifest
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.ledger.state_keys import manifest_key
from streamfold.routes.application import Application
from streamfold.run import Run


def warn_of_others(app: Application, engine: EmbeddedEngine, run: Run) -> None:
    """Warns an application that is new to a state of others that write the same rows. Reads their manifests.

    Two applications may add to one row on purpose. But an application under another name is another one: what it folded
    under the old name stays in the rows.
    """
    if read_manifest(app.name, engine).revision:
        return
    own = {key.place for route in app.routes for key in route.writes}
    begins = manifest_key("").pk
    for partition in engine.state_partitions(begins):
        name = partition.removeprefix(begins)
        entries = read_manifest(name, engine).handlers.values()
        if shared := own & {target for entry in entries for target in entry.get("targets", ())}:
            run.warn(
                f"Application {app.name!r} is new to this state, and {name!r} writes the same rows in it "
                f"({min(shared)}). Is it a new name of {name!r}? Then every item counts twice: keep the name, or begin "
                "anew with replay --fresh."
            )
