"""Fan-outs under faults: doorbells are lost or ring twice. At the end, all open fan-outs are rung for."""

from streamfold.batch.fan_outs import ring_open, run_fan_outs
from streamfold.runtime import Runtime
from streamfold.testing.choices import Choices
from streamfold.testing.errors import HandlerFails

BELLS = ("bell-lost", "bell-twice")
ROUNDS_MAX = 20
"""Times that open fan-outs are rung for at the end: each may open others."""


def answer_bells(runtime: Runtime, choices: Choices) -> None:
    """Works on what an invocation rang for, or on nothing, or twice; a lane that fails stays open."""
    if not runtime.rung:
        return
    option = choices.choose("bell", BELLS)
    if option == "bell-lost":
        runtime.rung.clear()
    rung = [*runtime.rung] if option == "bell-twice" else []
    run_fan_outs(runtime)
    runtime.rung += rung
    run_fan_outs(runtime)


def answer_all(runtime: Runtime) -> bool:
    """Rings until no fan-out is open; returns whether one was. Raises ``HandlerFails`` if one cannot be done."""
    for number in range(ROUNDS_MAX):
        if not ring_open(runtime):
            return number > 0
        for failure in run_fan_outs(runtime).failures:
            raise HandlerFails(str(failure)) from failure.error
    raise HandlerFails(f"Fan-outs are open after {ROUNDS_MAX} rounds.")
