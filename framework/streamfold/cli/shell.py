"""The shell around every command: its options, their contradictions, its session and its report.

A command is a function that gets a ``Session`` and returns a ``Report``. The shell reads the options, refuses those
that contradict each other, calls the function, prints its report while the store is open, and closes the store::

    @command("history", "Show the life of one item.", KEY, *STATE_OPTIONS, exclusive("--at", "--limit"), json_flag())
    def history(opened: Session) -> Report:
        '''The help text.'''
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from streamfold.cli.output import REPORTED, Report, write
from streamfold.cli.session import (
    DEFAULT_APPLICATION,
    DEFAULT_STATE,
    DYNAMODB,
    EMBEDDED,
    GivenOptions,
    Session,
    Store,
    default_application,
)
from streamfold.engines.capacity import PRICE_READ, PRICE_WRITE
from streamfold.errors import SettingsError, shown
from streamfold.settings.readers import read_path

Option = Callable[[Any], Any]
"""An option or an argument, as a decorator of click."""
OptionOrRule = Any
"""An option, an argument, a rule, or a tuple of these."""
GivenNames = frozenset[str]
"""The options and arguments of a call, and choices with their values: ``--limit``, ``--engine dynamodb``, JOB."""


class Rule(NamedTuple):
    """A check of options: takes the given names and all values, and returns the error, or None."""

    check: Callable[[GivenNames, Mapping[str, Any]], str | None]


def command(
    name: str,
    short_help: str,
    *options: OptionOrRule,
    group: click.Group | None = None,
    checks: bool = False,
    outside: bool | None = None,
    exists: bool = True,
    kinds: str = "",
) -> Callable[[Callable[[Session], Report]], click.Command]:
    """Makes a command of a function. ``options``: its options, arguments and rules, in their order.

    ``checks``, ``outside`` and ``exists``: how its ``Session`` is opened. ``kinds``: the names in place of KINDS in its
    help.
    """
    flat = list(_flat(options))
    rules = [each for each in flat if isinstance(each, Rule)]

    def decorate(body: Callable[[Session], Report]) -> click.Command:
        @wraps(body)
        def run(**values: Any) -> None:
            given = _read(values, rules)
            with ExitStack() as stack:
                session = Session(given, stack, checks=checks, outside=outside, exists=exists)
                reported = _carried_out(body, session, stack)
            if reported:
                sys.exit(REPORTED)

        for option in reversed([each for each in flat if not isinstance(each, Rule)]):
            run = option(run)
        text = (body.__doc__ or "").replace("KINDS", kinds) if kinds else body.__doc__
        made = click.command(name, short_help=short_help, help=text)(run)
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def _flat(options: Iterable[OptionOrRule]) -> Iterator[Option | Rule]:
    for option in options:
        if type(option) is tuple:  # a rule is a named tuple, which must not be flattened
            yield from _flat(option)
        else:
            yield option


def _read(values: dict[str, Any], rules: list[Rule]) -> GivenOptions:
    """The options of a call. Raises ``SettingsError`` for options that contradict each other."""
    names = _names_given()
    for rule in rules:
        if error := rule.check(names, values):
            raise SettingsError(error)
    if "engine" in values:
        if values["state"] == "":  # an unset variable of a shell would silently select the default state
            raise SettingsError("--state is empty: expected the name of a file.")
        values["store"] = Store(values.pop("engine"), values.pop("state"), values.pop("endpoint_url"))
    return GivenOptions(**values)


def _names_given() -> GivenNames:
    context, found = click.get_current_context(), set()
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        name = parameter.opts[0] if isinstance(parameter, click.Option) else str(parameter.name).upper()
        is_given = context.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT
        if is_given and value not in (None, False, ()):
            found.add(name)
        if isinstance(parameter.type, click.Choice):
            found.add(f"{name} {value}")
    return frozenset(found)


def _carried_out(body: Callable[[Session], Report], session: Session, stack: ExitStack) -> bool:
    """Calls the function of a command and prints its report; returns whether the report needs attention.

    Errors of boto3 become one message. With ``--json``, prints of handlers go to standard error, or they would break
    the JSON.
    """
    given = session.given
    if given.get("store") and not session.store.is_local:
        from streamfold.cli.dynamodb import explained

        stack.enter_context(explained())
    if given.get("json_output"):
        session.json_file = sys.stdout
        stack.enter_context(redirect_stdout(sys.stderr))
    report = body(session)
    write(report, session.json_file)
    return report.reported


def exclusive(*names: str, why: str = "") -> Rule:
    """At most one of these options. The given ones replace {} in ``why``, in order."""

    def check(given: GivenNames, _: Any) -> str | None:
        found = [name for name in names if name in given]
        default = f"{' and '.join(found)} do not go together: give one of them."
        return why.format(*found) or default if len(found) > 1 else None

    return Rule(check)


def exactly_one(*names: str, why: str) -> Rule:
    """One of these options, and no more."""
    return Rule(lambda given, _: why if sum(name in given for name in names) != 1 else None)


def refuses(name: str, *others: str, why: str) -> Rule:
    """An option that contradicts each of the others. The first given one replaces {other} in ``why``."""

    def check(given: GivenNames, _: Any) -> str | None:
        found = [other for other in others if other in given]
        return why.format(other=found[0]) if name in given and found else None

    return Rule(check)


def belongs(name: str, *to: str, why: str = "") -> Rule:
    """An option that makes sense only beside one of others."""
    error = why or f"{name} belongs to {' or '.join(to)}."
    return Rule(lambda given, _: error if name in given and not any(other in given for other in to) else None)


def flag(name: str, text: str, variable: str | None = None, **more: Any) -> Option:
    """An option without a value."""
    return click.option(name, *([variable] if variable else []), is_flag=True, help=text, **more)


def value(name: str, metavar: str, text: str, variable: str | None = None, **more: Any) -> Option:
    """An option with a text, or with a value of ``type``."""
    return click.option(name, *([variable] if variable else []), metavar=metavar, help=text, **more)


def number(name: str, text: str, minimum: int | None = None, maximum: int | None = None, **more: Any) -> Option:
    """An option with a whole number; a default is shown."""
    given = {"metavar": "N", "show_default": "default" in more, **more}
    return value(name, text=text, type=click.IntRange(minimum, maximum), **given)


def decimal(name: str, metavar: str, text: str, minimum: float | None = None, **more: Any) -> Option:
    """An option with a number that may be a fraction; a default is shown."""
    kind = click.FLOAT if minimum is None else click.FloatRange(min=minimum)
    return value(name, metavar, text, type=kind, show_default=more.get("default") is not None, **more)


def choice(name: str, options: tuple[str, ...], text: str, **more: Any) -> Option:
    """An option with one of some values; a default is shown."""
    return click.option(name, type=click.Choice(options), help=text, show_default="default" in more, **more)


class FilePath(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A file that may not exist yet. A folder is refused."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path. Raises ``SettingsError`` for a folder, or a text that cannot be a path."""
        option = param.opts[0] if param else "The file"
        file = read_path(option, str(value))
        if file.is_dir():
            raise SettingsError(f"{option} {value} is a folder: expected a file.")
        return file


def file(name: str, text: str, variable: str | None = None, metavar: str = "FILE", **more: Any) -> Option:
    """An option that names a file."""
    return value(name, metavar, text, variable, type=FilePath(), **more)


def utf8(_context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """A typed text, or several, unchanged. Raises ``SettingsError`` for bytes that are not UTF-8."""
    name = parameter.opts[0] if parameter.opts[0].startswith("-") else str(parameter.name).upper()
    for each in value if isinstance(value, tuple) else [value]:
        try:
            (each or "").encode()
        except UnicodeEncodeError:
            raise SettingsError(f"{name} is {each!a}: expected text in UTF-8.") from None
    return value


def runtime(default: str) -> Option:
    """``given.runtime``: a Python under Lambda's name. ``SettingsError`` is raised for another text."""

    def checked(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
        if not re.fullmatch(r"python3\.\d+", name):
            raise SettingsError(
                f"--runtime is {shown(name)}: expected python3.N, as Lambda names it, such as python3.13."
            )
        return name

    text = "The Python of the functions."
    return value("--runtime", "RUNTIME", text, default=default, show_default=True, callback=checked)


def json_flag(text: str = "Print one JSON object.") -> Option:
    """``given.json_output``: the report is printed as JSON."""
    return flag("--json", text, "json_output")


def yes_flag(what: str = "writing to AWS") -> Option:
    """Skips the question before a write that leaves this machine."""
    return flag("--yes", f"Do not ask before {what}.")


def key(*, required: bool = False) -> tuple[Option, Option]:
    """The arguments PARTITION and SORT: a typed key."""
    return (
        click.argument("partition", required=required, callback=utf8),
        click.argument("sort", required=False, callback=utf8),
    )


def key_option(text: str) -> tuple[Option | Rule, ...]:
    """``--key PARTITION [SORT]``."""
    lone = "{!r} has no --key before it: give a key with --key PARTITION [SORT]."
    return (
        Rule(lambda given, values: lone.format(values["sort"]) if "SORT" in given and "--key" not in given else None),
        value("--key", "PARTITION [SORT]", text, "partition", callback=utf8),
        click.argument("sort", required=False, metavar="", callback=utf8),
    )


def search_url(text: str) -> Option:
    """The server of documents, in place of ``STREAMFOLD_SEARCH``."""
    return value("--search-url", "URL", text, "search_url")


SHOWN_DEFAULT = f"streamfold_app of pyproject.toml, or {DEFAULT_APPLICATION}"
APPLICATION = click.option(
    "--app",
    "application",
    default=default_application,
    envvar="STREAMFOLD_APP",
    show_default=SHOWN_DEFAULT,
    show_envvar=True,
    metavar="MODULE:NAME",
    help="The application, imported from the current folder.",
)
STATE = value("--state", "FILE", "The state file of a local replay.", default=DEFAULT_STATE, show_default=True)
STORE = (
    choice("--engine", (EMBEDDED, DYNAMODB), "The store: a local one (embedded), or DynamoDB.", default=EMBEDDED),
    value("--endpoint-url", "URL", "The endpoint of DynamoDB, for example of DynamoDB Local. Default: AWS."),
    value(
        "--table",
        "NAME=REAL",
        "The real name of a table; REAL alone names the table main. May be repeated.",
        "tables",
        multiple=True,
    ),
)
"""The store of a command that has an option ``--state`` too: it becomes ``given.store``, and ``given.tables``."""
STATE_OPTIONS = (APPLICATION, STATE, *STORE)
"""The options of a command on an existing state."""
HANDLERS = click.argument("handlers", nargs=-1, metavar="[HANDLER...]")
SEGMENTS = number("--segments", "Segments of a table. Default: 16, and 1 for a local state.", 1, 10_000)
READ_UNITS = number("--read-units", "Read units a second. Default: no limit.", 0, default=0, show_default=False)
PRICES = (
    decimal("--price-read", "DOLLARS", "Price of a million read units.", default=PRICE_READ),
    decimal("--price-write", "DOLLARS", "Price of a million write units.", default=PRICE_WRITE),
)
LAG = (
    decimal(
        "--max-lag", "SECONDS", "Pause while the function is further behind its stream (CloudWatch, IteratorAge).", 1
    ),
    value("--function", "NAME", "The name of a function of Lambda."),
)
"""A run pauses while a function lags behind its stream: it would take the write capacity of the live stream."""
SPARK_MASTER = value(
    "--spark-master", "URL", "The master of --runner spark. Default: the one of spark-submit, or this machine's cores."
)
