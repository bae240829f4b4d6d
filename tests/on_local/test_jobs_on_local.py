"""A job on DynamoDB Local: made, listed, changed, moved on and ended by the engine's own requests."""

from streamfold.engines.protocol import Segment
from streamfold.jobs.job import Jobs, JobSegment
from streamfold.writes.guarded import PutRow
from tests.helpers.engine_contract import SHOP, dynamo_store


def test_job_reads_a_table_once(dynamodb):
    store = dynamo_store(dynamodb)
    keys = [("shop", f"ORDER#{number}", "METADATA") for number in range(20)]
    assert store.engine.insert_rows([PutRow(key, {"a": 1}) for key in keys]).missing == []
    jobs, found = Jobs("shop", store.engine), []
    job = jobs.create("verify", ("total",), "shop", 3, by="ann", options={"sample": 0.5})
    for left in jobs.pending(job):
        segment = left
        while not segment.done:
            page = store.engine.scan(SHOP, Segment(segment.number, 3), segment.after, 4)
            found += page.keys
            segment = jobs.advance(job, segment, page.after, {"read": len(page.keys)})
    assert sorted(found) == sorted(keys)
    assert jobs.change(job.id, paused=True) == jobs.read(job.id)
    ended = jobs.end(job.id)
    assert (ended.done, ended.counts, jobs.all()) == (True, {"read": 20}, [ended])
    assert jobs.advance(job, JobSegment(0), "x", {}) == jobs.segment(job, 0)
