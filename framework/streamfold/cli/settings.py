"""``streamfold settings``: every setting with its value and where it came from."""

import os

import click

from streamfold.cli.engines import as_json
from streamfold.cli.grids import print_grid
from streamfold.cli.output import echo
from streamfold.settings import Settings


@click.command("settings", short_help="Show the settings, with their origin.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object a line.")
def command(json_output: bool) -> None:
    """Show the settings as the environment gives them: STREAMFOLD_* variables, with value, origin and meaning."""
    rows = Settings.from_environment(os.environ).described()
    if json_output:
        for name, value, origin, meaning in rows:
            echo(as_json({"name": name, "value": value, "origin": origin, "meaning": meaning}))
        return
    print_grid(("setting", "value", "origin", "meaning"), rows)
