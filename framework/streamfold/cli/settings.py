"""``streamfold settings``: every setting with its value and where it came from."""

import os

import click
from rich.console import Console
from rich.table import Table as Grid

from streamfold.cli.engines import as_json
from streamfold.settings import Settings


@click.command("settings")
@click.option("--json", "json_output", is_flag=True, help="One JSON object a line.")
def command(json_output: bool) -> None:
    """Show the settings as the environment gives them: STREAMFOLD_* variables, with value, origin and meaning."""
    rows = Settings.from_environment(os.environ).described()
    if json_output:
        for name, value, origin, meaning in rows:
            click.echo(as_json({"name": name, "value": value, "origin": origin, "meaning": meaning}))
        return
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for column in ("setting", "value", "origin", "meaning"):
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console().print(grid)
