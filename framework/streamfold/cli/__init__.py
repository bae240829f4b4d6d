"""The command line: ``streamfold`` and ``python -m streamfold``.

Exit codes: 0 all went well; 1 something was reported (records that failed or were parked, bad lines, chains not run);
2 it did not run, or not to its end, because an option, the application, the state or the store is wrong.
"""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from io import StringIO
from pathlib import Path

import click

from streamfold.cli.output import echo, machine_error, take_all_letters
from streamfold.errors import StreamfoldError, manual

COMMANDS: Mapping[str, str] = {
    "replay": "streamfold.cli.replay",
    "dev": "streamfold.cli.dev",
    "redrive": "streamfold.cli.redrive",
    "show": "streamfold.cli.show",
    "history": "streamfold.cli.history",
    "audit": "streamfold.cli.history",
    "search": "streamfold.cli.search",
    "routes": "streamfold.cli.routes",
    "graph": "streamfold.cli.routes",
    "backfill": "streamfold.cli.backfill",
    "rebuild": "streamfold.cli.backfill",
    "jobs": "streamfold.cli.jobs",
    "work": "streamfold.cli.work",
    "buckets": "streamfold.cli.buckets",
    "record": "streamfold.cli.replay",
    "verify": "streamfold.cli.verify",
    "repair": "streamfold.cli.repair",
    "explain": "streamfold.cli.explain",
    "diff": "streamfold.cli.diff",
    "retire": "streamfold.cli.state",
    "adopt": "streamfold.cli.restore",
    "restore": "streamfold.cli.restore",
    "state": "streamfold.cli.state",
    "settings": "streamfold.cli.routes",
    "doctor": "streamfold.cli.doctor",
    "template": "streamfold.cli.template",
    "new": "streamfold.cli.new",
    "docs": "streamfold.cli.docs",
}
"""The module of each command; the command has its own name there."""
TASKS: Mapping[str, tuple[str, ...]] = {
    "Try an application": (
        "new",
        "dev",
        "replay",
        "record",
        "show",
        "explain",
        "history",
        "graph",
        "routes",
        "diff",
        "settings",
        "docs",
    ),
    "Deploy and fill": ("template", "backfill", "rebuild", "jobs", "work", "search", "retire", "adopt", "restore"),
    "Operate": ("doctor", "verify", "repair", "redrive", "audit", "state", "buckets"),
}
"""The commands in the order of ``--help``, by what one wants to do."""
INSTEAD: Mapping[str, str] = {
    "check": "streamfold routes checks the declarations, streamfold verify compares a state with its items, and in a "
    f"test streamfold.testing.check(app, ...) proves an application: {manual('testing')}.",
    "deploy": f"sam deploy does it, as {manual('operations')} says.",
    "test": f"pytest runs tests of handlers: {manual('testing')}.",
}
"""Names that a newcomer may try and that are no command, each with its substitute."""
REPORTED = 1
USAGE = 2
INTERRUPTED = 130
"""The exit code that a shell gives a process that SIGINT ended."""
GOES_ON = "What was written is kept, and the same command goes on from there."
DOES_THE_REST = "What was written is kept. The same command does the rest, and nothing twice."
STOPPED: Mapping[str, str] = {
    "replay": "What was written to a state or a table is kept, and the same command without --fresh goes on from "
    "there. What was in memory only is gone.",
    "record": GOES_ON,
    "backfill": GOES_ON,
    "rebuild": GOES_ON,
    "work": GOES_ON,
    "search": GOES_ON,
    "redrive": DOES_THE_REST,
    "repair": DOES_THE_REST,
    "verify": DOES_THE_REST,
    "retire": DOES_THE_REST,
    "adopt": DOES_THE_REST,
    "restore": DOES_THE_REST,
    "state": DOES_THE_REST,
    "jobs": DOES_THE_REST,
    "buckets": "If the mark was closed, it remains closed: no deltas are put. streamfold buckets --empty goes on, and "
    "waits only for what remains of the 15 minutes; streamfold buckets --open lets deltas be put again.",
}
"""The message of a stopped command: which writes are kept, and how to go on. The other commands write nothing."""
NOTHING_WRITTEN = "Nothing was written."


class Commands(click.Group):
    """Imports a command only when it is asked for, so that ``--help`` is quick."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands by task."""
        widest = max(map(len, COMMANDS))
        room = formatter.width - 6 - widest
        for task, names in TASKS.items():
            commands = [(name, self.get_command(context, name)) for name in names]
            with formatter.section(task):
                formatter.write_dl(
                    [(name.ljust(widest), each.get_short_help_str(room)) for name, each in commands if each is not None]
                )

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[name]), name)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not (arguments[0] in COMMANDS or arguments[0].startswith("-") or context.resilient_parsing):
            from difflib import get_close_matches  # needed for a wrong name only

            name = arguments[0]
            near = " or ".join(map(repr, get_close_matches(name, COMMANDS)))
            instead = INSTEAD.get(name) or (f"Did you mean {near}?" if near else "")
            context.fail(f"No such command {name!r}. {instead}".rstrip())
        return super().resolve_command(context, arguments)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """In a folder without an application, the help ends with how to begin."""
        from streamfold.cli.session import DEFAULT_APPLICATION, default_application  # not for a command

        named = "STREAMFOLD_APP" in os.environ or default_application() != DEFAULT_APPLICATION
        if not named and not (Path("handlers").is_dir() or Path("handlers.py").is_file()):
            formatter.write_paragraph()
            formatter.write_text(
                "This folder has no application handlers:app. To begin, make one: streamfold new my_shop --template "
                "shop. One of another name is opened with --app or STREAMFOLD_APP."
            )

    def invoke(self, context: click.Context) -> object:
        """Runs the command. A stopped command ends with the exit code of SIGINT and a message of its own."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            echo(f"Stopped. {STOPPED.get(str(context.invoked_subcommand), NOTHING_WRITTEN)}", err=True)
        except click.Abort:  # at a question, which comes before anything is written
            echo(f"Stopped. {NOTHING_WRITTEN}", err=True)
        sys.exit(INTERRUPTED)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="streamfold", prog_name="streamfold")
def cli() -> None:
    """Fold a DynamoDB stream into views, index items, histories, documents and feeds, exactly once.

    \b
    Exit codes:
      0  all went well
      1  something was reported: records that failed or were parked, bad lines, chains that did not run
      2  it did not run, or not to its end: an option, the application, the state or the store is wrong
    """


def main() -> None:
    """Runs the command line; errors of the user and of the machine become one message and exit code 2."""
    take_all_letters()
    try:
        cli.main(prog_name="streamfold", standalone_mode=False)
    except click.ClickException as error:
        shown = StringIO()  # click quotes arguments, and the usage, as they are
        error.show(shown)
        echo(shown.getvalue(), err=True, nl=False)
        sys.exit(USAGE)
    except (click.Abort, KeyboardInterrupt):  # before a command was found
        echo(f"Stopped. {NOTHING_WRITTEN}", err=True)
        sys.exit(INTERRUPTED)
    except StreamfoldError as error:
        echo(f"Error: {error}", err=True)
        sys.exit(USAGE)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python fails once more, when it flushes at its end
        sys.exit(REPORTED)
    except OSError as error:  # a full disk, or a file that is removed while it is read
        echo(f"Error: {machine_error(error)}", err=True)
        sys.exit(USAGE)


__all__ = ["cli", "main"]
