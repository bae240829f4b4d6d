"""What the command line says of a replay, and which options go together."""

from typing import NamedTuple

from streamfold.cli.engines import Store
from streamfold.cli.rows import SAMPLE_ROWS
from streamfold.errors import SettingsError


class ReplayOptions(NamedTuple):
    """What the command line said."""

    application: str
    store: Store
    tables: tuple[str, ...]
    fresh: bool
    batch_size: int
    dry_run: bool
    keep_going: bool
    external: bool
    park: str | None
    put_sources: bool
    create_tables: bool
    yes: bool
    json_output: bool
    samples: int | None
    search_url: str | None
    force: bool

    @property
    def sample_rows(self) -> int:
        """Rows of each target that are printed."""
        return self.samples if self.samples is not None else 0 if self.json_output else SAMPLE_ROWS


def check_options(options: ReplayOptions) -> None:
    """Raises ``SettingsError`` for options that do not go together."""
    if options.search_url and options.dry_run:
        raise SettingsError("--search-url writes to a server, and --dry-run writes nothing: give one of them.")
    if options.store.engine == "embedded":
        _check_local(options, options.store)
    else:
        _check_dynamodb(options, options.store)


def _check_local(options: ReplayOptions, store: Store) -> None:
    for given, name in (
        (store.endpoint_url, "--endpoint-url"),
        (options.put_sources, "--put-sources"),
        (options.create_tables, "--create-tables"),
        (options.force, "--force"),
    ):
        if given:
            raise SettingsError(f"{name} belongs to --engine dynamodb.")
    if options.fresh and not store.state:
        raise SettingsError("--fresh removes a state file: name it with --state FILE.")
    if options.fresh and options.dry_run:
        raise SettingsError("--fresh removes the state, and --dry-run writes nothing: give one of them.")
    if store.state and options.dry_run:
        raise SettingsError(
            "--dry-run plans what an empty state would get, and reads no --state: leave one of them out."
        )


def _check_dynamodb(options: ReplayOptions, store: Store) -> None:
    if store.state or options.fresh:
        raise SettingsError("--state and --fresh belong to --engine embedded; DynamoDB keeps its own.")
    for given, name in ((options.put_sources, "--put-sources"), (options.create_tables, "--create-tables")):
        if given and not store.on_loopback:
            raise SettingsError(
                f"{name} needs a loopback endpoint, for example --endpoint-url http://127.0.0.1:8000: it is for "
                "rehearsals."
            )
