"""Who carries a run over all items: this process, several of them, a Spark cluster, or whoever is called."""

import json
import os
from collections.abc import Sequence
from typing import Any

from streamfold.cli.filling_options import ELSEWHERE, HERE, SPARK, FillingOptions
from streamfold.cli.metered import metered
from streamfold.cli.on_spark import AppPlace
from streamfold.cli.opened import OpenedState
from streamfold.cli.output import echo
from streamfold.cli.spark_filling import SparkRun
from streamfold.cli.workers import joined
from streamfold.errors import SettingsError
from streamfold.jobs.job import Job, run_here
from streamfold.keys.table import Table
from streamfold.lifecycle.backfill import Estimate, FillingProgress, RunHooks, job_parts
from streamfold.lifecycle.exports import Export
from streamfold.lifecycle.state_machine import JOB, SHARING, place_in_s3

PROCESSES_MAX = 4
"""Processes of a run, if not given: one folds some thousands of items a second."""
ITEMS_A_PROCESS = 50_000
"""Items for which one more process is worth its start."""
SHARING_ELSEWHERE = 16
"""Functions or machines that share the rates of a run elsewhere, if not given."""


def check_runner(options: FillingOptions, *, is_local: bool) -> None:
    """Raises ``SettingsError`` where the one who is to carry a run cannot do what is asked for."""
    if options.runner == SPARK and (options.export is None or is_local):
        raise SettingsError(
            "--runner spark takes the items of an export, and works on DynamoDB: expected --export MANIFEST and "
            "--engine dynamodb."
        )
    if options.runner == ELSEWHERE and (options.failed or options.max_lag):
        raise SettingsError(
            "--runner elsewhere makes the job, and others do its parts: give --failed and --max-lag to each streamfold "
            "work. A state machine has neither; streamfold jobs --pause stops it while the stream lags."
        )
    if options.runner == HERE and is_local and options.processes not in (None, 1):
        raise SettingsError(
            f"--processes {options.processes}: a local state is one file, which one process writes. Leave it out."
        )


def spark_run(
    names: Sequence[str], tables: Sequence[Table], export: Export | None, options: FillingOptions
) -> SparkRun | None:
    """The run as Spark carries it; None where somebody else does."""
    if options.runner != SPARK or export is None:
        return None
    place = AppPlace.here(options.application, options.tables)
    lag = (options.max_lag, options.function)
    return SparkRun(place, options.store, export.place, export.parts, tables[0].name, names, options.spark_master, lag)


def processes_of(options: FillingOptions, expected: Estimate) -> int:
    """How many processes carry a run: one for a local state, which is one file."""
    if options.store.engine == "embedded":
        return 1
    wanted = options.processes or min(PROCESSES_MAX, os.cpu_count() or 1, 1 + expected.items // ITEMS_A_PROCESS)
    return max(1, wanted)


def tell_begun(job: Job, export: Export | None, processes: int | None) -> None:
    """Prints what a state machine takes as input: the job, how many share its rates, and the parts but for files."""
    sources = export.parts if export else 0
    told = {JOB: job.id, SHARING: processes or SHARING_ELSEWHERE, "parts": list(range(sources, job.segments))}
    echo(json.dumps(told if export is None else {**told, **place_in_s3(export.place)}))


def carry(
    opened: OpenedState, job: Job, hooks: RunHooks, spark: SparkRun | None, processes: int, options: FillingOptions
) -> FillingProgress:
    """Has all parts of a job done that are left. Raises what reading and writing raise."""
    given: dict[str, Any] = {"export": spark.keys()} if spark else {}
    spent = metered(opened.engine)
    parts = job_parts(opened.runtime, job, metered=spent, hooks=hooks, **given)
    if spark:
        spark.carry(opened.app, job, parts)
    elif processes == 1:
        run_here(parts)
    else:
        joined(opened.app, parts, options, processes)
    return parts.progress
