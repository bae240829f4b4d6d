"""A run in AWS Step Functions: a Distributed Map over an export's manifest, whose tasks call one function.

``backfill.asl.json`` is the state machine. Its input is the output of ``streamfold backfill --runner elsewhere``. It
calls the function for each segment until that is done, and then ends the job. ``work`` is the function.
"""

from importlib.resources import files
from typing import Any

from streamfold.batch.process import check_application
from streamfold.errors import NotStarted, SettingsError
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import REBUILD, BackfillRun, end_job, job_segments, job_to_carry
from streamfold.lifecycle.exports import S3
from streamfold.runtime import Runtime

ASL = "backfill.asl.json"
JOB, PART, FILE, END, SHARING, DONE = "job", "part", "file", "end", "sharing", "done"
BUCKET, KEY = "bucket", "key"
DATA_FILE = "dataFileS3Key"
"""Of a line of a manifest (Developer Guide, S3DataExport.Output)."""
ROWS_NOT_COMPARED = (
    "The rebuild has reconciled all items with their sources. A function has no time to compare all rows with them: "
    "streamfold verify {} --rows --repair does so, from a machine."
)
WorkAnswer = dict[str, Any]


def definition() -> str:
    """The state machine in Amazon States Language; ``${WorkerFunctionArn}`` is replaced by the function's ARN."""
    return files("streamfold.lifecycle").joinpath(ASL).read_text("utf-8")


def location_in_s3(location: str) -> dict[str, str]:
    """The bucket and key of a manifest. Raises ``SettingsError`` for a folder, which no function can read."""
    bucket, _, key = location.removeprefix(S3).partition("/")
    if not location.startswith(S3) or not key:
        raise SettingsError(f"--export {location!r}: a run elsewhere reads it from S3, expected s3://BUCKET/...")
    return {BUCKET: bucket, KEY: key}


def work(runtime: Runtime, event: Any) -> WorkAnswer:
    """Works on a segment while there is time, or ends the job: {"job": ID, "part": N} or {"job": ID, "end": true}.

    Returns ``done``, whether the segment is. Raises ``SettingsError`` for another event, a job that cannot be
    carried, and a manifest of another export; ``NotStarted`` if there was no time for a page.
    """
    identity, number, sharing = _asked(event)
    check_application(runtime, write=False)
    if number is None:
        return _ended(runtime, identity)
    jobs = Jobs.of(runtime)
    run = job_segments(runtime, job_to_carry(jobs, identity), sharing=sharing)
    _check_file(run, number, event.get(FILE))
    before = jobs.segment(run.job, number)
    try:
        cursor = run.run_segment(number, runtime)
    except NotStarted:
        cursor = jobs.segment(run.job, number)
    # A state machine calls again as long as the segment is not done: without this it would call for ever.
    if not cursor.done and cursor.revision == before.revision:
        raise NotStarted(f"Part {number} of job {identity} got no page done: give the function more time or memory.")
    return {JOB: identity, PART: number, DONE: cursor.done}


def _asked(event: Any) -> tuple[str, int | None, int]:
    """The job, the segment and the number of sharing processes of an event; no segment if the job is to end."""
    sharing = 0
    try:
        identity, number = event[JOB], None if event.get(END) else int(event[PART])
        sharing = int(event.get(SHARING, 1))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        identity = number = None
    if not isinstance(identity, str) or (number is not None and number < 0) or sharing < 1:
        raise SettingsError(
            'The event is no part of a run: expected {"job": ID, "part": N}, with "sharing" of 1 or more, or "end": '
            "true."
        )
    return identity, number, sharing


def _ended(runtime: Runtime, identity: str) -> WorkAnswer:
    """Ends a job, again if this was called before and the answer was lost."""
    jobs = Jobs.of(runtime)
    job = jobs.read(identity)
    pending = job_segments(runtime, job_to_carry(jobs, identity)).pending() if job is None or not job.ended else []
    if pending:
        raise SettingsError(f"{len(pending)} parts of job {identity} are not done: part {pending[0]} is the first.")
    if job is not None and job.what == REBUILD:
        runtime.warn(ROWS_NOT_COMPARED.format(" ".join(job.handlers)))
    return {JOB: identity, DONE: True, "counts": dict(end_job(runtime, identity).counts)}


def _check_file(run: BackfillRun, number: int, file: Any) -> None:
    """Raises ``SettingsError`` if a line of the manifest does not name the job's file of this segment."""
    if number >= run.job.segments:
        raise SettingsError(f"Job {run.job.id} has parts 0 to {run.job.segments - 1}: expected one of them.")
    if file is None:
        return
    named = str(file.get(DATA_FILE)) if isinstance(file, dict) else str(file)
    name = run.file_of(number)
    if name is None or named.rpartition("/")[2] != name.rpartition("/")[2]:
        raise SettingsError(
            f"Part {number} of job {run.job.id} is {name}, and the manifest has {named}: expected the same file."
        )
