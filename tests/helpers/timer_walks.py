"""Walks over moments of items at which handlers are called once: store calls are put into any order, with faults.

The scheduler and the scripts are those of ``wake_walks``. A row counts the calls of each moment of an item; another has
what was put last.
"""

from functools import cache
from unittest.mock import patch

from streamfold import Add, Key, Put
from streamfold.routes.moments import moment_text
from tests.helpers.wake_walks import SCRIPTS, WakeWalk, ticket
from tests.helpers.woken import TICKET, made

CALLED = Key("CALLED#{ticket_id}", "AT#{moment}")
LAST = Key("LAST#{ticket_id}", "TICKET")
MORE = {
    "past when it comes": ([], [40, ("T0", ticket(20)), ("T0", ticket(20, note=1)), 20]),
    "back to a moment that was used": (
        [("T0", ticket(20))],
        [30, ("T0", ticket(60)), 10, ("T0", ticket(20)), ("T0", ticket(60)), 40, ("T0", ticket(20))],
    ),
    "two items": ([("T0", ticket(20))], [("T1", ticket(20)), 25, ("T0", ticket(40)), ("T1", ticket(10)), 30]),
}


def moment_of(ticket):
    return ticket["due_at"] if ticket["status"] == "open" else None


def timers(router):
    """Two handlers of one ledger item: one adds, one puts."""

    @router.on(TICKET, at=moment_of, into=CALLED)
    def called(timer):
        return Add(moment=timer.at.strftime("%H:%M:%S"), times=1)

    @router.on(TICKET, at=moment_of, into=LAST)
    def last(timer):
        return Put(moment=timer.at.strftime("%H:%M:%S"), team=timer.item["team"])


@cache
def application():
    return made(timers, name="walks")


class TimerWalk(WakeWalk):
    """One random walk over a script."""

    def __init__(self, script, seed, faults=2, **more):
        with (
            patch.dict(SCRIPTS, MORE),
            patch("tests.helpers.wake_walks.application_of", lambda _: application()),
        ):
            super().__init__("timers", script, seed, faults, **more)

    def rows_differ(self, moment):
        """The model: each moment that an item had is called once at most, and the one that it has now exactly once if
        it has come. The row that was put last is of the greatest moment.
        """
        shown = {key[1:]: row for key, row in self.engine.read_rows([*self.engine.rows]).items()}
        found = {(pk.partition("#")[2], sk[3:]): row["times"] for (pk, sk), row in shown.items() if pk[0] == "C"}
        ever = {
            (name, each.new["due_at"][11:19])
            for name, own in self.log.items()
            for each in own
            if each.new and moment_of(each.new)
        }
        due = {
            (name, item["due_at"][11:19])
            for name, item in self.items.items()
            if item and moment_of(item) and item["due_at"] <= moment_text(moment)
        }
        if wrong := {each: times for each, times in found.items() if times != 1}:
            return f"Called not once: {wrong}"
        if not due <= found.keys() <= ever:
            return f"Called {sorted(found)}, expected {sorted(due)} and none but {sorted(ever)}"
        last = {name: max(each for of, each in found if of == name) for name, _ in found}
        put = {pk.partition("#")[2]: row["moment"] for (pk, sk), row in shown.items() if pk[0] == "L"}
        return None if put == last else f"Rows {put} are not of the greatest moments, {last}"


def walked(script, walks, seed=0, faults=2, **more):
    """The first of so many walks that is wrong, with why and its moves; None if all are right."""
    for number in range(1, walks + 1):
        walk = TimerWalk(script, seed * 1_000_003 + number, faults, **more)
        if problem := walk.run():
            return number, problem, walk.moves_made
    return None
