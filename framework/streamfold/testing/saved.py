"""A scenario as a test file, so that a history that once failed is run again for ever."""

from pathlib import Path
from pprint import pformat

from streamfold.keys.key import Key
from streamfold.testing.check import Scenario
from streamfold.testing.histories import Write

WIDTH = 100


def save(scenario: Scenario, path: Path, app: str = "handlers:app") -> None:
    """Writes a test that runs a scenario: ``test_history_that_diverged`` in ``path``.

    ``app`` is where the test finds the application, ``module:name``. A file that is there is not overwritten: raises
    ``FileExistsError``.
    """
    with path.open("x", encoding="utf-8") as file:
        file.write(source_of(scenario, app))


def source_of(scenario: Scenario, app: str) -> str:
    """The text of that test."""
    module, _, name = app.partition(":")
    writes = "\n".join(f"        {_write(write)}," for write in scenario.writes)
    return (
        '"""A history that once led to wrong rows."""\n\n'
        "import datetime\n"
        "from decimal import Decimal\n\n"
        f"from {module} import {name}\n"
        "from streamfold import Key, Table\n"
        "from streamfold.testing import Scenario, Write, check_scenario\n\n"
        f"SCENARIO = Scenario(\n    writes=(\n{writes}\n    ),\n"
        f"    shards={scenario.shards},\n    actions={scenario.actions},\n"
        f"    source={scenario.source!r},\n"
        f"    pace={scenario.pace},\n"
        f"    script={pformat(dict(scenario.script), width=WIDTH)},\n)\n\n\n"
        f"def test_history_that_diverged():\n    check_scenario({name}, SCENARIO)\n"
    )


def _write(write: Write) -> str:
    item = None if write.item is None else dict(write.item)
    expired = ", expired=True" if write.expired else ""
    return f"Write({_key(write.key)}, {dict(write.fields)!r}, {item!r}{expired})"


def _key(key: Key) -> str:
    return f"Key({', '.join(repr(part.text) for part in key.parts)}, table={key.table!r})"
