"""Prints docs/cli.md from the help of every command: python -m tests.tools.cli_docs > docs/cli.md."""

import click

from streamfold.cli import COMMANDS, cli

WIDTH = 80
HEAD = """# The command line

Made from `--help`; `python -m tests.tools.cli_docs > docs/cli.md` makes it anew.
"""


def page() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="streamfold", terminal_width=WIDTH, **cli.context_settings)
    parts = [HEAD, _block("streamfold", cli.get_help(context))]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, terminal_width=WIDTH)
        parts.append(_block(f"streamfold {name}", command.get_help(inner)))
        for part, subcommand in command.commands.items() if isinstance(command, click.Group) else ():
            innermost = click.Context(subcommand, info_name=part, parent=inner, terminal_width=WIDTH)
            parts.append(_block(f"streamfold {name} {part}", subcommand.get_help(innermost)))
    return "\n".join(parts)


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    print(page(), end="")
