"""What a fan-out of a feed is for, as its job in the state says it."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamfold.derivations.feed.mirrors import POSTS, Sided, joined_text
from streamfold.derivations.feed.options import options_of
from streamfold.errors import damaged
from streamfold.jobs import fan_outs
from streamfold.jobs.fan_outs import FanOuts
from streamfold.jobs.job import Job
from streamfold.ledger.state_keys import fan_out_id
from streamfold.records.change import Change, item_key
from streamfold.records.encoded import to_json
from streamfold.records.item_names import item_name
from streamfold.records.values import encode
from streamfold.routes.route import Route
from streamfold.run import Run

PUSH, VISIT, TELL, COUNT = "push", "visit", "tell", "count"
"""A post to all edges; an edge to all posts; the audience's mode to all edges; the edges are counted."""
OF_AUDIENCE = (TELL, COUNT)
RECORD_LETTERS_MAX = 100_000
"""Longer records are not kept with a job: an item takes 400 KB."""


class Task(NamedTuple):
    """What a fan-out is for."""

    what: str
    sided: Sided  # the post or edge; for an audience any of its posts
    version: str  # of the change, or of the audience's mode
    is_new: bool  # no rows are expected to be there
    names: tuple[str, ...] = ()  # attributes that rows may have from before
    record: Mapping[str, Any] | None = None  # that asked for it, to be parked with a pair that fails
    at: float = 0.0  # the time of that record, from which the age of posts counts, epoch seconds; 0: not known
    copied_from: str = ""  # the place of the oldest post of which an edge makes a row where none is; "": of all

    def job(self, route: Route, now: float) -> Job:
        """The job, the same for each attempt of one change."""
        side = "audience" if self.what in OF_AUDIENCE else item_name(self.sided.item)
        key = _key(route, self.sided.side)
        options = {
            "side": self.sided.side,
            "key": to_json(encode(key.attributes(*self.sided.item[1:]))["M"]),
            "version": self.version,
            "is_new": self.is_new,
            "names": list(self.names),
            "record": None if self.record is None else to_json(self.record),
            "at": self.at,
            "copied_from": self.copied_from,
        }
        return Job(
            id=fan_out_id(route.name, self.what, joined_text(route, self.sided.fields), side),
            what=self.what,
            handlers=(route.name,),
            table=self.sided.item[0],
            segments=1 if self.what == VISIT else fan_outs.LANES,
            started=int(now),
            by="",
            options=options,
        )

    @classmethod
    def of(cls, route: Route, job: Job) -> "Task":
        """Raises ``EngineError`` for a job that is none of a feed."""
        try:
            given = job.options
            side, record = given["side"], given["record"]
            key = _key(route, side)
            item = item_key(json.loads(given["key"]), key.table)
            fields = key.match_values(*item[1:])
            if fields is None:
                raise ValueError
            sided = Sided(side, item, fields)
            names = tuple(given["names"])
            record = record and json.loads(record)
            known, at, copied_from = given["version"], float(given["at"]), str(given["copied_from"])
            return cls(job.what, sided, known, given["is_new"], names, record, at, copied_from)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(f"Fan-out {job.id}") from None


def start(open_ones: FanOuts, route: Route, task: Task, run: Run) -> None:
    """Opens a fan-out for a task, or leads an open one to it, and rings for its lanes."""
    job = task.job(route, run.clock())
    if open_ones.open(job, task.version):
        run.ring(job.id, range(job.segments))


def record_of(change: Change) -> Mapping[str, Any] | None:
    """The record of a change without its images, which the mirror has; None for one that is too long, or for none."""
    if not change.record:
        return None
    record = dict(change.record)
    if isinstance(body := record.get("dynamodb"), Mapping):
        record["dynamodb"] = {name: value for name, value in body.items() if name not in ("NewImage", "OldImage")}
    return record if len(to_json(record)) <= RECORD_LETTERS_MAX else None


def _key(route: Route, side: str) -> Any:
    return route.sources[0] if side == POSTS else options_of(route).audience
