"""A cascade that goes on as a fan-out, as its job in the state says it."""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from streamfold.errors import damaged
from streamfold.jobs.fan_outs import record_of
from streamfold.jobs.job import Job
from streamfold.ledger.state_keys import fan_out_id
from streamfold.records.change import Change
from streamfold.records.encoded import to_json
from streamfold.records.item_names import item_name
from streamfold.routes.route import Fields, Route

CASCADE = "cascade"
"""What such a job does."""


class Removed(NamedTuple):
    """An item that is gone, whose children a cascade removes."""

    route: Route
    changes: tuple[Change, ...]  # its removals, oldest first
    fields: Fields

    @property
    def newest(self) -> Change:
        """The removal that covers all others."""
        return self.changes[-1]

    def __str__(self) -> str:
        return f"remove the children of {self.newest.name}"


def job_of(removed: Removed, now: float) -> Job | None:
    """The job that goes on with a cascade, the same for each removal of its parent; None where none can keep it."""
    change = removed.newest
    record = record_of(change)
    if record is None:
        return None
    return Job(
        id=fan_out_id(removed.route.name, CASCADE, item_name(change.item)),
        what=CASCADE,
        handlers=(removed.route.name,),
        table=change.item[0],
        segments=1,
        started=int(now),
        by="",
        options={"record": to_json(record), "version": change.version_text},
    )


def removed_of(route: Route, job: Job, make: Callable[[Mapping[str, object]], Change]) -> Removed:
    """The removal that a job is for; ``make`` makes a change of a record.

    Raises ``EngineError`` for a job that is none of a cascade.
    """
    try:
        change = make(json.loads(job.options["record"]))
        change.version_text = job.options["version"]
        keys = (key for key in route.sources if key.table.name == change.item[0])
        fields = next(found for key in keys if (found := key.match_values(*change.item[1:])) is not None)
    except (KeyError, StopIteration, TypeError, ValueError):
        raise damaged(f"Fan-out {job.id}") from None
    return Removed(route, (change,), fields)
