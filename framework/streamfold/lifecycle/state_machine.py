"""A run carried by AWS Step Functions: a Distributed Map over an export's manifest, whose tasks are one function.

``backfill.asl.json`` is the state machine. It begins with what ``streamfold backfill --runner elsewhere`` prints, calls
the function for each part until that is done, and ends the job. ``work`` is the function.
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
    "The rebuild has led all items to their sources, and a function has no time to compare all rows with them: "
    "streamfold verify {} --rows --repair does, from a machine."
)
WorkAnswer = dict[str, Any]


def definition() -> str:
    """The state machine in Amazon States Language; ``${WorkerFunctionArn}`` stands for the function."""
    return files("streamfold.lifecycle").joinpath(ASL).read_text("utf-8")


def location_in_s3(place: str) -> dict[str, str]:
    """The bucket and key of a manifest. Raises ``SettingsError`` for one in a folder, which no function can read."""
    bucket, _, key = place.removeprefix(S3).partition("/")
    if not place.startswith(S3) or not key:
        raise SettingsError(f"--export {place!r}: a run elsewhere reads it from S3, expected s3://BUCKET/...")
    return {BUCKET: bucket, KEY: key}


def work(runtime: Runtime, event: Any) -> WorkAnswer:
    """Does a part while there is time, or ends the job: ``{"job": ID, "part": N}``, ``{"job": ID, "end": true}``.

    Answers with ``done``, whether the part is. Raises ``SettingsError`` for another event, a job that cannot be
    carried, and a manifest of another export; ``NotStarted`` if there was not even time for a page.
    """
    identity, number, sharing = _asked(event)
    check_application(runtime, write=False)
    if number is None:
        return _ended(runtime, identity)
    jobs = Jobs.of(runtime)
    parts = job_segments(runtime, job_to_carry(jobs, identity), sharing=sharing)
    _check_file(parts, number, event.get(FILE))
    before = jobs.segment(parts.job, number)
    try:
        cursor = parts.run_segment(number, runtime)
    except NotStarted:
        cursor = jobs.segment(parts.job, number)
    if not cursor.done and cursor.revision == before.revision:
        raise NotStarted(f"Part {number} of job {identity} got no page done: give the function more time or memory.")
    return {JOB: identity, PART: number, DONE: cursor.done}


def _asked(event: Any) -> tuple[str, int | None, int]:
    """The job and the part of an event, and how many share its rates; no part, where the job is to end."""
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
    """Ends a job; again, if this was called before and the answer was lost."""
    jobs = Jobs.of(runtime)
    job = jobs.read(identity)
    left = job_segments(runtime, job_to_carry(jobs, identity)).left() if job is None or not job.ended else []
    if left:
        raise SettingsError(f"{len(left)} parts of job {identity} are not done: part {left[0]} is the first.")
    if job is not None and job.what == REBUILD:
        runtime.warn(ROWS_NOT_COMPARED.format(" ".join(job.handlers)))
    return {JOB: identity, DONE: True, "counts": dict(end_job(runtime, identity).counts)}


def _check_file(parts: BackfillRun, number: int, file: Any) -> None:
    """Raises ``SettingsError`` where a line of the manifest is not the file that the job has as this part."""
    if number >= parts.job.segments:
        raise SettingsError(f"Job {parts.job.id} has parts 0 to {parts.job.segments - 1}: expected one of them.")
    if file is None:
        return
    message = str(file.get(DATA_FILE)) if isinstance(file, dict) else str(file)
    name = parts.file_of(number)
    if name is None or message.rpartition("/")[2] != name.rpartition("/")[2]:
        raise SettingsError(
            f"Part {number} of job {parts.job.id} is {name}, and the manifest has {message}: expected its own."
        )
