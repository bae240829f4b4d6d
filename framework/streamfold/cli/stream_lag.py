"""The options of a run that gives way to the live stream, while a function is further behind than it may be."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from streamfold.errors import SettingsError
from streamfold.jobs.rates import StreamLag, iterator_age

F = TypeVar("F", bound=Callable[..., Any])


def lag_options(command: F) -> F:
    """``--max-lag`` and ``--function``."""
    for option in (
        click.option("--function", metavar="NAME", help="The function whose lag --max-lag looks at."),
        click.option(
            "--max-lag",
            type=click.FloatRange(min=1),
            metavar="SECONDS",
            help="Wait while the function is further behind its stream (CloudWatch, IteratorAge).",
        ),
    ):
        command = option(command)
    return command


def check_lag(seconds_max: float | None, function: str | None, *, is_local: bool) -> None:
    """Raises ``SettingsError`` where one option is given without the other, or for a local state."""
    if (seconds_max is None) != (function is None):
        raise SettingsError("--max-lag SECONDS and --function NAME belong together: give both, or none.")
    if function is not None and is_local:
        raise SettingsError("--max-lag looks at a function's lag, and no function works on a local state.")


def lag_of(seconds_max: float | None, function: str | None, clock: Callable[[], float]) -> Callable[[], str]:
    """Why a run has to wait for the live stream, if that was asked for."""
    if seconds_max is None or function is None:
        return lambda: ""
    return StreamLag(function, seconds_max, iterator_age(function), clock)
