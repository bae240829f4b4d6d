"""Fan-outs under faults: doorbells are lost or ring twice. At the end, all open fan-outs are rung for."""

from typing import TYPE_CHECKING

from streamfold.batch.fan_outs import ring_open, run_fan_outs
from streamfold.engines import Engine
from streamfold.testing.choices import Choices
from streamfold.testing.errors import HandlerFails

if TYPE_CHECKING:
    from streamfold.app import App
    from streamfold.run import Run

BELLS = ("bell-lost", "bell-twice")
ROUNDS_MAX = 20
"""Times that open fan-outs are rung for at the end: each may open others."""


def answer_bells(app: "App", engine: Engine, run: "Run", choices: Choices) -> None:
    """Works on what an invocation rang for, or on nothing, or twice; a lane that fails stays open."""
    if not run.rung:
        return
    option = choices.choose("bell", BELLS)
    if option == "bell-lost":
        run.rung.clear()
    rung = [*run.rung] if option == "bell-twice" else []
    run_fan_outs(app, engine, run)
    run.rung += rung
    run_fan_outs(app, engine, run)


def answer_all(app: "App", engine: Engine, run: "Run") -> bool:
    """Rings until no fan-out is open; returns whether one was. Raises ``HandlerFails`` if one cannot be done."""
    for number in range(ROUNDS_MAX):
        if not ring_open(app, engine, run):
            return number > 0
        for failure in run_fan_outs(app, engine, run).failures:
            raise HandlerFails(str(failure)) from failure.error
    raise HandlerFails(f"Fan-outs are open after {ROUNDS_MAX} rounds.")
