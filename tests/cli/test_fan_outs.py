"""Fan-outs of feeds on the command line: replays work on them, jobs lists and rings, show shows a feed."""

import json
from dataclasses import replace

import pytest

from streamfold import App
from streamfold.batch.report import Report
from streamfold.cli.jobs import enqueue_again, fan_out_lines, follow_fan_outs
from streamfold.cli.session import load_application
from streamfold.derivations import kept_words
from streamfold.engines import MemoryEngine
from streamfold.errors import SettingsError
from streamfold.jobs.fan_outs import FanOuts
from streamfold.lifecycle.retire import KeptRetirement
from streamfold.settings import Settings
from tests.helpers.doorbells import follow, new_run, opened, post, rows_of
from tests.helpers.feed_histories import applications
from tests.helpers.records import item, record

SOCIAL = """
from streamfold import App, Key, Router, Row, Table

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)

router = Router()


@router.feed(POST, audience=FOLLOW, into=FEED, keep_days=30, inline=2)
def timeline(post, follow):
    return Row(text=post["text"])


app = App("social", routers=[router])
"""
STATE = ("--state", "social.db")
READERS = 5


@pytest.fixture
def social(folder, source):
    folder.app(SOCIAL)
    follows = [source.put(f"USER#r{number}", "FOLLOWS#b", name="n") for number in range(READERS)]
    posts = [source.put("USER#b", f"POST#2026-03-01T0{hour}:00:00Z#p{hour}", text=f"post {hour}") for hour in (1, 2, 3)]
    folder.records(*follows, *posts)
    return folder


def replayed(folder):
    ran = folder.run("replay", "records.jsonl", *STATE, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_replay_works_on_the_fan_outs_that_it_opens(social):
    report = replayed(social)
    assert [row["written"] for row in report["handlers"]] == [3 * READERS]
    assert sum(key.startswith("FEED#") for key in social.rows(*STATE)) == 3 * READERS
    assert social.run("jobs", *STATE).out == "There are no jobs.\n"


def test_a_feed_that_comes_later_is_filled_with_posts_and_edges_that_are_there(social):
    counting = SOCIAL.replace("App, ", "App, Count, ").replace("=30", "=9_000")
    feed = counting[counting.index("@router.feed") : counting.index("app = App")]
    counts = "".join(
        f"""@router.view({key}, into=Key("COUNT#{key}", "ALL", TABLE))
def count_{key.lower()}(item):
    return Row(items=Count())


"""
        for key in ("POST", "FOLLOW")
    )
    social.app(counting.replace(feed, counts))
    replayed(social)
    social.app(counting.replace(feed, feed + counts))
    ran = social.run("backfill", "timeline", *STATE)
    told = f"0 contributions written, {3 + READERS} contributions not comparable, derived again, 0 right before"
    assert (ran.code, told in ran.out) == (0, True), ran.out + ran.err
    assert sum(key.startswith("FEED#") for key in social.rows(*STATE)) == 3 * READERS
    assert social.run("rebuild", "timeline", *STATE).code == 0


def test_a_follow_in_an_old_recording_copies_what_was_young_then(social, source):
    replayed(social)
    follow = source.put("USER#late", "FOLLOWS#b", name="n")
    follow["dynamodb"]["SequenceNumber"] = "999999"
    social.records(follow, name="more.jsonl")
    assert social.run("replay", "more.jsonl", *STATE).code == 0
    assert sum(key.startswith("FEED#late") for key in social.rows(*STATE)) == 3


def test_a_feed_of_long_ago_is_shown_page_by_page(social):
    replayed(social)
    first = social.run("show", "FEED#r1", "--feed", "timeline", *STATE, "--limit", "2", "--json")
    assert first.code == 0, first.err
    page = json.loads(first.out)
    assert [row["text"]["S"] for row in page["rows"]] == ["post 3", "post 2"]
    assert page["partial"] is False
    more = ("--limit", "2", "--cursor", page["cursor"])
    second = social.run("show", "reader_id=r1", "--feed", "timeline", *STATE, *more, "--json")
    last = json.loads(second.out)
    assert [row["text"]["S"] for row in last["rows"]] == ["post 1"]
    assert last["cursor"] is None


def test_a_feed_is_printed_with_the_cursor_of_the_next_page(social):
    replayed(social)
    ran = social.run("show", "FEED#r1", "--feed", "timeline", *STATE, "--limit", "1")
    assert "post 3" in ran.out
    assert "post 2" not in ran.out
    assert "... and more: --cursor " in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--feed", "timeline"), "--feed needs a PARTITION, the key of a reader: expected"),
        (("ORDER#1", "--feed", "timeline"), "expected FEED#{reader_id} filled in, or reader_id=VALUE."),
        (("author=b", "--feed", "timeline"), "expected FEED#{reader_id} filled in, or reader_id=VALUE."),
        (("FEED#r1", "--feed", "timelin"), "names 'timelin', which is no handler"),
        (("FEED#r1", "--feed", "timeline", "--cursor", "abc"), "is damaged: expected the cursor of an earlier page"),
        (("FEED#r1", "--feed", "timeline", "--limit", "5000"), "limit=5000: expected 1 to 1000."),
        (("FEED#r1", "--cursor", "abc"), "--cursor belongs to --feed."),
        (("FEED#r1", "--feed", "timeline", "--raw"), "--feed shows a feed: leave out SORT"),
    ],
)
def test_what_is_no_page_of_a_feed_is_refused(social, arguments, said):
    replayed(social)
    ran = social.run("show", *arguments, *STATE)
    assert ran.code == 2
    assert said in ran.err


def test_an_application_without_a_feed_says_so(folder, source):
    folder.records(source.put("ORDER#1", "ITEM#a", price=1))
    folder.run("replay", "records.jsonl", *STATE)
    assert "the application has no feed" in folder.run("show", "FEED#r1", "--feed", "timeline", *STATE).err


@pytest.fixture
def killed(social, monkeypatch):
    """A replay that opened fan-outs, and was killed before it worked on them."""
    with monkeypatch.context() as patched:
        patched.setattr("streamfold.batch.fan_outs.run_fan_outs", lambda runtime: runtime.queued.clear() or Report())
        assert social.run("replay", "records.jsonl", *STATE).code == 0
    return social


def feed_rows(folder):
    return sum(key.startswith("FEED#") for key in folder.rows(*STATE))


def test_open_fan_outs_are_listed_and_rung_for_again(killed):
    assert feed_rows(killed) == 0
    listed = killed.run("jobs", *STATE, "--json").objects()
    assert [(each["handler"], each["what"], each["state"]) for each in listed] == [("timeline", "push", "open")] * 3
    assert {(each["lanes"], each["lanes_done"], each["rows"]) for each in listed} == {(16, 0, 0)}
    ran = killed.run("jobs", *STATE, "--ring")
    assert (ran.code, ran.out) == (0, "There are no jobs.\n")
    assert "Processed 48 segments: 15 rows written." in ran.err
    assert feed_rows(killed) == 3 * READERS


def test_one_fan_out_is_rung_for_by_its_id(killed):
    first, *_ = killed.run("jobs", *STATE).out.split()
    ran = killed.run("jobs", *STATE, "--ring", first)
    assert "Processed 16 segments: 5 rows written." in ran.err
    assert len(ran.out.splitlines()) == 2
    assert "0 of 16 segments, 0 rows, for" in ran.out


def test_the_next_replay_goes_on_with_what_a_killed_one_left(killed):
    killed.write("empty.jsonl", "")
    assert killed.run("replay", "empty.jsonl", *STATE).code == 0
    assert feed_rows(killed) == 3 * READERS


def test_a_local_function_goes_on_with_what_was_left(killed, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_ENGINE", "embedded:social.db")
    assert load_application("handlers:app").lambda_handler({"Records": []}, None) == {"batchItemFailures": []}
    monkeypatch.delenv("STREAMFOLD_ENGINE")
    assert feed_rows(killed) == 3 * READERS


def test_a_fan_out_that_is_not_open_is_not_rung_for(killed):
    ran = killed.run("jobs", *STATE, "--ring", "timeline-push-0")
    assert (ran.code, "is not open: streamfold jobs lists" in ran.err) == (2, True)


def test_a_fan_out_of_a_retired_handler_is_listed_and_not_rung_for():
    app, engine, _ = opened(40)
    run = new_run(App(app.name, routers=[], retired=["timeline"]), engine)
    ((_, line),) = fan_out_lines(run)
    identity, _, rest = line.partition("  ")
    assert rest.startswith("push of timeline: retired, 0 of 16 segments")
    with pytest.raises(SettingsError, match="no process would work on it"):
        enqueue_again(run, identity)
    assert [job.id for job in FanOuts(run).all()] == [identity]


def state_items(folder):
    lines = folder.run("show", *STATE, "--json", "--state-items").out.splitlines()
    return [item for item in map(json.loads, lines) if "pk" in item]


def mirrors(folder):
    return [item for item in state_items(folder) if item["pk"]["S"].split("#")[0] in ("posts", "edges")]


def test_what_the_state_keeps_of_a_feed_goes_with_its_handler(social):
    replayed(social)
    kept, rows = len(mirrors(social)), social.rows(*STATE)
    dry = social.run("retire", "timeline", "--rows", "keep", "--dry-run", *STATE)
    assert dry.out.startswith(f"Dry run: {kept} state items. Rows would be kept.")
    ran = social.run("retire", "timeline", "--rows", "keep", *STATE)
    assert ran.out.startswith(f"Handler timeline: {kept} state items; 0 writes of rows, {kept} removed from the state")
    assert (kept, mirrors(social), social.rows(*STATE)) == (READERS + 3, [], rows)


def test_open_fan_outs_of_a_retired_feed_are_dropped_with_their_lanes():
    app, engine, _ = opened(40)
    run = new_run(App(app.name, routers=[], retired=["timeline"]), engine)
    retirement = KeptRetirement(run, "timeline", kept_words("feed"))
    assert sum(retirement.go()) == retirement.report.dropped
    assert list(FanOuts(run).all()) == []
    assert not [key for key in engine.state if key.pk.startswith(("job#", "posts#", "edges#", "fan#"))]


def test_rows_of_a_feed_are_not_taken_back(social):
    replayed(social)
    ran = social.run("retire", "timeline", "--rows", "remove", *STATE)
    assert (ran.code, "is of kind feed: no ledger holds the values to take back" in ran.err) == (2, True)


class WithoutStream:
    """An engine without a stream of its own, as DynamoDB's."""

    is_local, own_stream = False, None

    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        if name in ("pending", "advance", "retry"):
            raise AttributeError(name)
        return getattr(self.engine, name)


def test_a_command_rings_the_queue_where_one_is_set(monkeypatch):
    _, engine, run = opened(40)
    queued = []
    run.settings = Settings(jobs="https://sqs.eu-west-1.amazonaws.com/1/doorbell")
    monkeypatch.setattr("streamfold.jobs.fan_outs.SegmentQueue.enqueue", lambda self, given: queued.extend(given))
    monkeypatch.setattr("streamfold.jobs.fan_outs.queue_client", lambda _: object())
    assert follow_fan_outs(replace(run, store=WithoutStream(engine))).failures == []
    assert (len(queued), rows_of(engine)) == (16, [])


def test_without_a_queue_a_command_works_on_fan_outs_itself():
    _, engine, run = opened(40)
    assert follow_fan_outs(replace(run, store=WithoutStream(engine))).failures == []
    assert len(rows_of(engine)) == 40


def test_an_event_is_processed_with_its_fan_outs_where_the_engine_has_no_stream():
    app = applications()[0]
    engine = MemoryEngine(app.tables.values(), app.chains)
    plain = WithoutStream(engine)
    records = [record(None, item(*follow(f"r{number}"), name="n"), number + 1) for number in range(5)]
    assert app.process(records, engine=plain, settings=Settings()) == []
    assert app.process(record(None, item(*post(1), text="hello"), 99), engine=plain, settings=Settings()) == []
    assert len(rows_of(engine)) == 5
