"""Options that several commands have, and say alike."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from streamfold.errors import SettingsError
from streamfold.lifecycle.search import SAMPLE
from streamfold.settings.readers import read_path


class FilePath(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A file that an option names: there or not yet, and no folder."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path. Raises ``SettingsError`` for a text that can name no file."""
        option = param.opts[0] if param else "The file"
        file = read_path(option, str(value))
        if file.is_dir():
            raise SettingsError(f"{option} {value} is a folder: expected a file.")
        return file


Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def check_one(given: Mapping[str, object]) -> None:
    """Raises ``SettingsError`` where more than one of these options is given: each does something of its own."""
    names = [name for name, value in given.items() if value not in (None, False, ())]
    if len(names) > 1:
        raise SettingsError(f"{' and '.join(names)} do not go together: give one of them.")


INDEX_TOLERANCE_SECONDS = 10.0
"""After how long an index that differed is looked at again: several times what a batch takes to reach it."""

tolerance_option = click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=INDEX_TOLERANCE_SECONDS,
    show_default=True,
    help="What differs is read again after this time.",
)

segments_option = click.option(
    "--segments",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Segments of a table. Default: 16, and 1 for a local state.",
)

read_units_option = click.option(
    "--read-units",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    help="Read units a second. Default: no limit.",
)


def sample_option(least: int) -> Option:
    """``--sample`` of a command that compares at least this many items."""
    return click.option(
        "--sample",
        metavar="N",
        type=click.IntRange(least),
        default=SAMPLE,
        show_default=True,
        help="Items that are compared.",
    )


def check_sample(*, full: bool) -> None:
    """Raises ``SettingsError`` for ``--full`` beside a ``--sample`` that somebody gave."""
    given = click.get_current_context().get_parameter_source("sample") is not ParameterSource.DEFAULT
    check_one({"--full": full, "--sample": given})


def price_option(name: str, dollars: float, what: str) -> Option:
    """``--price-NAME`` with the price that is assumed without it."""
    return click.option(
        f"--price-{name}",
        type=float,
        metavar="DOLLARS",
        default=dollars,
        show_default=True,
        help=f"Price of {what}.",
    )
