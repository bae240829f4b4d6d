"""The names of all faults, and what else a user gives a proof."""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from streamfold.app import App
from streamfold.errors import shown
from streamfold.keys.key import Key
from streamfold.records.envelope import KINESIS, STREAM
from streamfold.testing import doorbells, driver, faults, handlers, in_flight, kinesis, writers
from streamfold.testing.errors import TwinError

STORE = tuple(dict.fromkeys(fault for options in faults.FAULTS.values() for fault in options))
DELIVERY = (
    *kinesis.ARRIVAL,
    *doorbells.BELLS,
    *driver.BATCHES,
    *driver.DELIVERY,
    *driver.MEANWHILE,
    *driver.REDRIVE,
    *driver.END,
)
FAULTS = tuple(
    dict.fromkeys((*STORE, *faults.LANDING, *in_flight.OTHERWISE, *DELIVERY, *writers.PUTS, *handlers.FAULTS))
)
"""Every fault: of the store's calls, of deliveries, of the application's writes, of user code."""


def chosen(names: Collection[str] | None) -> frozenset[str] | None:
    """The options that stand for these faults; None for all. Raises ``TwinError`` for a name that is no fault."""
    if names is None:
        return None
    for name in names:
        if name not in FAULTS:
            near = get_close_matches(name, FAULTS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TwinError(f"Fault {name!r} is not known.{hint} Expected some of: {', '.join(FAULTS)}.")
    return frozenset(names)


def check_extent(source: str, **counts: Any) -> None:
    """Raises ``TwinError`` for a source that is none, and for counts that would prove nothing."""
    if source not in (STREAM, KINESIS):
        raise TwinError(f"check() was given source={source!r}: expected {STREAM!r} or {KINESIS!r}.")
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise TwinError(f"check() was given {name}={count!r}: expected a whole number, 1 or more.")


def check_application(app: object) -> None:
    """Raises ``TwinError`` for what is no application."""
    if not isinstance(app, App):
        what = f"{shown(app)} of type {type(app).__name__}"
        raise TwinError(f"{what} is no application: expected {_instead(app)}.")


def check_key(key: object, taker: str) -> None:
    """Raises ``TwinError`` for what is no key."""
    if not isinstance(key, Key):
        raise TwinError(
            f"{taker} was given {shown(key)} of type {type(key).__name__}: expected a key of the application, the Key "
            "itself and neither its name nor its text."
        )


def listed(key: Key, given: Any) -> list[Mapping[str, Any]]:
    """The examples of a key's items as a list. Raises ``TwinError`` for what is none."""
    examples = list(given) if isinstance(given, Iterable) and not isinstance(given, Mapping | str) else [given]
    for each in examples:
        if not isinstance(each, Mapping):
            raise TwinError(
                f"items= has {shown(each)} of type {type(each).__name__} for {key!r}: expected an example such as "
                "{'price': 3}, several in a list, or a Hypothesis strategy for them."
            )
    return examples


def _instead(given: object) -> str:
    """What was likely meant: a module may have the application."""
    if isinstance(given, ModuleType):
        for name, value in vars(given).items():
            if isinstance(value, App):
                return f"its {name}, from {given.__name__} import {name}"
    return "App(..., routers=[...])"
