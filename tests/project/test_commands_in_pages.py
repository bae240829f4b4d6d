"""The commands that pages name exist, and take the options that pages give them."""

import re

import click
import pytest

from streamfold.cli import cli
from tests.helpers.template import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    if "decisions" not in path.parts and path.name not in ("changelog.md", "cli.md")
)
CODE = re.compile(r"^```sh[^\n]*\n(.*?)^```$|`([^`\n]+)`", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^|\s|\|)streamfold ([a-z][a-z-]*)((?:[^\n|;&>#]|\\\n)*)")
SPANS = "## Traces"
"""The section that names spans, which look like commands."""
OPTION = re.compile(r"(?<=\s)--[a-z][a-z-]*")


def options_of(command: click.Command) -> set[str]:
    """The options of a command and of its subcommands."""
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    within = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union({"--help"}, *map(options_of, within))


def command_named(name: str) -> click.Command | None:
    return cli.get_command(click.Context(cli), name)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_commands_and_options_that_exist(page):
    text = re.sub(rf"^{SPANS}\n.*?(?=^## )", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    unknown = []
    for block, inline in CODE.findall(text):
        for name, rest in COMMAND.findall(block or inline):
            command = command_named(name)
            known = options_of(command) if command is not None else set()
            unknown += [f"{name} {option}" for option in OPTION.findall(rest) if option not in known]
            unknown += [] if command is not None else [name]
    assert unknown == []
