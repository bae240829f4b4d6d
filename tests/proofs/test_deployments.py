"""What docs/changing-code.md says of a deployment without a pause: each row of its table is played and shown."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from streamfold import App, Key, Router, Row, Table
from streamfold.engines import MemoryEngine
from streamfold.errors import ManifestError
from streamfold.read.feeds import route_of
from streamfold.records.envelope import Origins
from streamfold.replay.replay import newest_sources
from streamfold.settings import Settings
from streamfold.testing import Clock, TableTwin
from tests.helpers.held_feeds import read_all
from tests.versions import shapes_of_items, shapes_of_rows
from tests.versions.declared import Handler, Shape, numbered, scored
from tests.versions.delivery import ALL, SHARDS
from tests.versions.history import History
from tests.versions.judge import judge

PAGE = (Path(__file__).parents[2] / "docs/changing-code.md").read_text("utf-8")
HEADING = "## What a deployment may change without a pause"
ROW = re.compile(r"^\| ([^|]+) \| \*\*([^|*]+)\*\*[^|]* \| \*\*([^|*]+)\*\*[^|]* \|$", re.MULTILINE)
BOTH_RUN, OLD_STOPS, NEW_REFUSED, RECORDS_REFUSED = (
    "both run", "the old code stops", "the new code is refused", "its records are refused"
)  # fmt: skip
RIGHT, AS_BEFORE = "right", "as before"

ITEM, SUMS, OTHERS = Key("I#{i}", "X"), Key("SUM#{g}", "SUM"), Key("OTHER#{g}", "SUM")


def handler(name, kinds, target=SUMS, **options):
    """A view of scores; ``kinds`` says what its rows make of them, by attribute."""

    def rows(item):
        yield {}, {shown: (kind,) if kind == "count" else (kind, item["score"]) for shown, kind in kinds.items()}

    return Handler(name, ITEM, target, rows, options=options)


def change(old, new, **more):
    return Shape("deployed", [numbered(ITEM, 4, scored)], {"shop": (old, new)}, filled=True, **more)


SUM = handler("sums", {"s": "sum"})
OWN = Handler("own", ITEM, Key("OWN#{i}", "X"), lambda item: [({}, {"score": item["score"]})])
NUMBER = handler("numbers", {"m": "count"}, OTHERS)


def of(parent):
    target = Key(parent + "#{g}", "META")
    return Handler("owed", ITEM, target, lambda item: [({}, {"owed": ("sum", item["score"])})], "attributes")


CHANGES = {
    "a handler is added": lambda: change([SUM], [SUM, NUMBER]),
    "a handler is removed, `retired=[...]`": lambda: change([SUM, NUMBER], [SUM]),
    "a handler's name": shapes_of_rows.renamed,
    "its group, `group=`": lambda: change([SUM], [handler("sums", {"s": "sum"}, group="search")]),
    "its kind, a view into an index": lambda: change([OWN], [replace(OWN, kind="index")]),
    "how an attribute is made, `Sum` into `Max`": lambda: change([SUM], [handler("sums", {"s": "max"})]),
    "`into=set` into `into=list`": shapes_of_rows.set_to_list,
    "the size of a `Top`": shapes_of_rows.top,
    "the name of an attribute": lambda: change([SUM], [handler("sums", {"t": "sum"})]),
    "the row that an item goes to": shapes_of_rows.moved,
    "its target": lambda: change([SUM], [replace(SUM, target=OTHERS)]),
    "plain rows get a neighbour": shapes_of_rows.plain_to_shared,
    "shared rows are one handler's again": shapes_of_rows.shared_to_plain,
    "`redact`": shapes_of_rows.redacted,
    "the parent that attributes of an item go to": shapes_of_items.parents_moved,
    "`of=`, the kind of parent": lambda: change([of("ONE")], [of("TWO")]),
    "`by=` of a unique index": shapes_of_rows.by_changed,
}
"""What is changed, in the words of the page, by a shape with both versions of the code."""


class Deployment:
    """A shape without faults: the old code has taken every item."""

    def __init__(self, shape, first="old"):
        self.history = History(replace(shape, filled=True, off=()), 0)
        self.history.engine.rate = 0
        self.consumers = self.history.delivery.consumers
        for place in self.history.known:
            self.history._put(place, self.history._drawn(place))
        self.taken(first)

    def written(self, version, **settings):
        """Every item is written once more; what taking that by a version fails with."""
        for place, (items, fields) in self.history.known.items():
            own = {**items.draw(self.history.random, fields), **fields}
            self.history._put(place, own)
        return self.taken(version, **settings)

    def taken(self, version, **settings):
        """What failed of all that waits, in one text."""
        failed = []
        for consumer in self.consumers:
            for shard in range(SHARDS) if version in consumer.versions else ():
                found = self.history.delivery.batch(consumer, version, shard, ALL, **settings) or {}
                failed += [error for errors in found.values() for error in errors]
        return " ".join(failed)

    def ended(self, version):
        """Whether the rows are right when a version has taken all there is and every item was written once more."""
        self.history.delivery.drain(version)
        assert self.written(version) == ""
        self.history.delivery.drain(version)
        self.history.shape = replace(self.history.shape, refused=version == "old")
        judge(self.history)


def deployed(shape):
    """What happens while both run, and after."""
    deployment = Deployment(shape)
    refused = deployment.written("new")
    stopped = deployment.written("old") if not refused else deployment.taken("old")
    if refused:
        assert stopped == ""
        deployment.ended("old")
        return NEW_REFUSED if "ManifestError" in refused else RECORDS_REFUSED, AS_BEFORE
    deployment.ended("new")
    assert ("ManifestError" in stopped) == bool(stopped)
    return OLD_STOPS if stopped else BOTH_RUN, RIGHT


def two_applications():
    """The second application that derives a name onto an item is refused, with both names."""
    drawn, derived = shapes_of_items._orders("APPS")
    code = {name: ([derived(f"{name}_total", "total", "p")],) * 2 for name in ("shop", "billing")}
    deployment = Deployment(Shape("two", drawn, {"shop": code["shop"], "billing": code["billing"]}, filled=True))
    failed = deployment.taken("new")
    assert "shop" in failed
    assert "billing" in failed
    return RECORDS_REFUSED, AS_BEFORE


def rollback():
    """The older code is refused until it is told to run; what it missed is partial until it is written again."""
    deployment = Deployment(change([SUM], [SUM, NUMBER]), first="new")
    assert "STREAMFOLD_OLDER_CODE" in deployment.written("old")
    assert deployment.taken("old", STREAMFOLD_OLDER_CODE="on") == ""
    assert deployment.taken("new") == ""
    deployment.ended("new")
    return OLD_STOPS, RIGHT


class Social:
    """A feed whose records old and new code take in turn."""

    def __init__(self, **options):
        post = options.pop("post", FEED_POST)
        into = options.pop("into", FEED_TARGET)
        follow, router = options.pop("audience", FEED_EDGE), Router()

        @router.feed(post, audience=follow, into=into, **{"keep_days": 30, **options})
        def timeline(post, follow):
            return Row(text=post["text"])

        self.app, self.route = App("social", routers=[router]), router.routes[0]

    def take(self, engine, *records):
        """Whether the code takes these records; False where it does not fit the state."""
        engine.put_sources(newest_sources(map(Origins(self.app.source_tables, Settings()).change, records)))
        try:
            assert self.app.process(list(records), engine=engine, settings=Settings()) == []
        except ManifestError:
            return False
        return True

    def shown(self, engine, now):
        return [row["text"] for row in read_all(route_of(self.route.function), engine, {"reader_id": "ana"}, now)]


FEED_TABLE = Table("main", ttl="expires")
FEED_POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", FEED_TABLE)
FEED_EDGE = Key("USER#{reader_id}", "FOLLOWS#{author_id}", FEED_TABLE)
FEED_TARGET = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", FEED_TABLE)
BY_DAY = Key("FEED#{reader_id}", "{day:date}#{author_id}#{post_id}", FEED_TABLE)
BY_WRITER = Key("FEED#{reader_id}", "{at:datetime.seconds}#{writer}#{post_id}", FEED_TABLE)
OTHER_ORDER = {"post": Key("USER#{author_id}", "POST#{day:date}#{post_id}", FEED_TABLE), "into": BY_DAY}
OTHER_JOIN = {
    "post": Key("USER#{writer}", "POST#{at:datetime.seconds}#{post_id}", FEED_TABLE),
    "audience": Key("USER#{reader_id}", "FOLLOWS#{writer}", FEED_TABLE),
    "into": BY_WRITER,
}


def feed_changed(**options):
    """The new code takes posts and edges between those that the old code takes, and each is written once more."""
    codes, clock = (Social(), Social(**options)), Clock()
    engine, table = MemoryEngine(codes[0].app.tables.values(), codes[0].app.chains), TableTwin(FEED_TABLE, clock=clock)
    days = [datetime(2026, 2, day, 9, tzinfo=UTC) for day in (20, 21, 28)]
    keys = [FEED_POST.key(author_id="bo", at=at, post_id="p") for at in days]
    edge = FEED_EDGE.key(reader_id="ana", author_id="bo")

    def both(*records):
        return [code.take(engine, *records) for code in codes]

    assert codes[0].take(engine, table.put({**edge, "since": 1}), *(table.put({**key, "text": "old"}) for key in keys))
    if not codes[1].take(engine, table.put({**keys[0], "text": "x"})):
        assert codes[0].take(engine, *(table.put({**key, "text": "later"}) for key in keys))
        assert codes[0].shown(engine, clock.now) == ["later"] * 3
        return NEW_REFUSED, AS_BEFORE
    assert both(table.delete(edge), table.put({**edge, "since": 2})) == [True, True]
    assert all(codes[number % 2].take(engine, table.put({**key, "text": "both"})) for number, key in enumerate(keys))
    assert codes[1].take(engine, table.put({**edge, "since": 3}), *(table.put({**key, "text": "new"}) for key in keys))
    young = [at for at in days if at.timestamp() >= clock.now - options.get("keep_days", 30) * 86_400]
    assert codes[1].shown(engine, clock.now) == ["new"] * len(young)
    return BOTH_RUN, RIGHT


SCENARIOS = {name: lambda shape=shape: deployed(shape()) for name, shape in CHANGES.items()} | {
    "a second application derives a name that one has": two_applications,
    "back to older code": rollback,
    "a smaller `keep_days=` of a feed": lambda: feed_changed(keep_days=8),
    "a smaller `most=` of a feed": lambda: feed_changed(most=1),
    "the time that orders a feed": lambda: feed_changed(**OTHER_ORDER),
    "the fields that join a feed": lambda: feed_changed(**OTHER_JOIN),
}


def told():
    """The rows of the page's table: what is changed, what happens while both run, and after."""
    section = PAGE.partition(HEADING)[2].partition("\n## ")[0]
    return {what: (both, after) for what, both, after in ROW.findall(section)}


def test_every_row_of_the_page_has_a_scenario_and_every_scenario_a_row():
    rows = [line for line in PAGE.partition(HEADING)[2].partition("\n## ")[0].splitlines() if line[:1] == "|"]

    assert len(rows) == len(told()) + 2
    assert sorted(told()) == sorted(SCENARIOS)


@pytest.mark.parametrize("what", SCENARIOS)
def test_a_deployment_does_what_the_page_says(what):
    assert SCENARIOS[what]() == told()[what]
