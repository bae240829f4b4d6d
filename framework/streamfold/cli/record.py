"""``streamfold record``: what a table's stream holds, into a file that can be replayed."""

import signal
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from streamfold.cli.application import program
from streamfold.cli.engines import as_json
from streamfold.cli.output import echo
from streamfold.cli.shared_options import FilePath
from streamfold.errors import SettingsError


@click.command("record", short_help="Record what a table's stream holds.")
@click.option("--table", required=True, metavar="TABLE", help="The real name of the table.")
@click.option(
    "--endpoint-url", metavar="URL", help="The endpoint of DynamoDB, for example of DynamoDB Local. Default: AWS."
)
@click.option(
    "--out",
    required=True,
    type=FilePath(),
    metavar="FILE",
    help="The JSON Lines file to append to.",
)
@click.option("--follow", is_flag=True, help="Go on as records come, until Ctrl-C.")
@click.option("--json", "json_output", is_flag=True, help="Print the summary as one JSON object.")
def command(table: str, endpoint_url: str | None, out: Path, follow: bool, json_output: bool) -> None:
    """Read what a table's stream holds (24 hours at most) into a recorded file.

    Shards are read parents first. FILE.cursor beside the file says how far it went: the same command goes on from
    there, after a kill too, and writes no record twice.
    """
    from streamfold.cli.clients import explained, make_clients
    from streamfold.replay.stream import StreamReader, record_stream

    if not out.parent.is_dir():
        raise SettingsError(
            f"There is no folder {out.parent} for {out.name}: make it, or name another file with --out."
        )
    echo(f"Note: {out} will hold the contents of the items, as they are. Keep it as you keep the table.", err=True)
    reader = StreamReader(*make_clients(endpoint_url), table)
    columns, console = (TextColumn("{task.completed} records"), TimeElapsedColumn()), Console(stderr=True)
    with explained(), Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("recording", total=None)
        before = signal.signal(signal.SIGINT, lambda *_: reader.stop())
        try:
            recorded = record_stream(
                reader, out, follow=follow, on_page=lambda records: progress.advance(task, len(records))
            )
        finally:
            signal.signal(signal.SIGINT, before)
    summary: dict[str, Any] = {"file": str(out), "records": recorded.records, **recorded.events}
    if recorded.trimmed_shards:
        summary["trimmed_shards"] = list(recorded.trimmed_shards)
    if json_output:
        echo(as_json(summary))
        return
    kinds = ", ".join(f"{count} {event}" for event, count in sorted(recorded.events.items())) or "nothing new"
    echo(f"{recorded.records} records ({kinds}) added to {out}.")
    if recorded.trimmed_shards:
        echo(
            f"Warning: records of {len(recorded.trimmed_shards)} shards were gone before they could be read.", err=True
        )
    echo(f"Replay them with: {program()} replay {out}")
