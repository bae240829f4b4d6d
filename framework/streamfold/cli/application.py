"""Finds the application that a command works on, in the folder one stands in, and how the command is called there."""

import importlib
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from streamfold.app import App
from streamfold.errors import SettingsError, StreamfoldError

DEFAULT_APPLICATION = "handlers:app"
PROGRAM = "streamfold"
F = TypeVar("F", bound=Callable[..., Any])


def program() -> str:
    """How this command is called here: by its name, or by its place where the name alone would not find it."""
    called = sys.argv[0]
    if Path(called).name != PROGRAM or shutil.which(PROGRAM):
        return PROGRAM
    return os.path.relpath(called)


def application_option(command: F) -> F:
    """The option ``--app``."""
    return click.option(
        "--app",
        "application",
        default=DEFAULT_APPLICATION,
        envvar="STREAMFOLD_APP",
        show_default=True,
        show_envvar=True,
        metavar="MODULE:NAME",
        help="The application, found from the folder you stand in.",
    )(command)


def load_application(place: str) -> App:
    """Imports ``module:name``. Raises ``SettingsError``, with the user's own line, when that fails."""
    module_name, _, name = place.partition(":")
    if module_name.endswith(".py") or os.sep in module_name:
        file = Path(module_name.removesuffix(".py"))
        raise SettingsError(f"{_option()} {place!r} names a file: expected {_module(file, name or 'app')}.")
    if not module_name or not name:
        raise SettingsError(
            f"{_option()} {place!r} names no application: expected MODULE:NAME, for example {DEFAULT_APPLICATION}."
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    module = _import(place, module_name)
    app = getattr(module, name, None)
    if not isinstance(app, App):
        raise SettingsError(f"{_option()} {place!r} is no application: {_instead(module, name, app)}")
    return app


def _option() -> str:
    """What named the application: the option, or the variable in its place."""
    context = click.get_current_context(silent=True)
    named = context and context.get_parameter_source("application")
    return "STREAMFOLD_APP" if named is ParameterSource.ENVIRONMENT else "--app"


def _module(file: Path, name: str) -> str:
    """The module of a file, as it is named where one stands, or where it would be found."""
    if file.name == "__init__":
        file = file.parent
    folder = Path.cwd()
    if file.resolve().is_relative_to(folder):
        return f"a module, such as {'.'.join(file.resolve().relative_to(folder).parts)}:{name}"
    return f"a module, such as {file.name}:{name} where you stand in {file.parent}"


def _instead(module: ModuleType, name: str, found: object) -> str:
    """What a module has in place of an application of this name, and what was expected."""
    has = f"the module has no {name!r}" if found is None else f"it is {type(found).__name__}"
    if apps := [other for other, value in vars(module).items() if isinstance(value, App)]:
        return f"{has}. Did you mean {module.__name__}:{apps[0]}?"
    return f'{has}. Expected {name} = App("...", routers=[...]) in {module.__file__ or module.__name__}.'


def _import(place: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except StreamfoldError as error:
        raise SettingsError(f"The application {place} is not declared well.\n{error}{_where(error)}") from error
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise SettingsError(
                f"{_option()} {place!r}: there is no module {error.name!r} in {Path.cwd()}. Stand in the folder that "
                "holds it, or name another with --app."
            ) from None
        raise SettingsError(f"{_option()} {place!r} does not import: {error}{_where(error)}") from error
    except (Exception, SystemExit) as error:
        what = error.msg if isinstance(error, SyntaxError) else error
        raise SettingsError(
            f"{_option()} {place!r} does not import: {type(error).__name__}: {what}{_where(error)}"
        ) from error


def _where(error: BaseException) -> str:
    """The last of the user's own lines that led to an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"\n  at {error.filename}:{error.lineno}"
    frames = user_frames(error)
    return f"\n  at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an error that are the user's own: neither streamfold's, the standard library's nor a package's."""
    own = str(Path(__file__).parent.parent)
    foreign = (own, str(Path(traceback.__file__).parent), "<frozen")
    frames = traceback.extract_tb(error.__traceback__)
    return [
        frame for frame in frames if not frame.filename.startswith(foreign) and "site-packages" not in frame.filename
    ]
