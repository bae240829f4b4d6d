"""What docs/guarantees.md says of a deployment without a pause: each row of its table is played, and shown to be so."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from streamfold import Key
from tests.versions import shapes_of_items, shapes_of_rows
from tests.versions.declared import Handler, Shape, numbered, scored
from tests.versions.delivery import ALL, SHARDS
from tests.versions.history import History
from tests.versions.judge import judge

GUARANTEES = (Path(__file__).parents[2] / "docs/guarantees.md").read_text("utf-8")
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


SCENARIOS = {name: lambda shape=shape: deployed(shape()) for name, shape in CHANGES.items()} | {
    "a second application derives a name that one has": two_applications,
    "back to older code": rollback,
}


def told():
    """The rows of the page's table: what is changed, what happens while both run, and after."""
    section = GUARANTEES.partition(HEADING)[2].partition("\n## ")[0]
    return {what: (both, after) for what, both, after in ROW.findall(section)}


def test_every_row_of_the_page_has_a_scenario_and_every_scenario_a_row():
    rows = [line for line in GUARANTEES.partition(HEADING)[2].partition("\n## ")[0].splitlines() if line[:1] == "|"]

    assert len(rows) == len(told()) + 2
    assert sorted(told()) == sorted(SCENARIOS)


@pytest.mark.parametrize("what", SCENARIOS)
def test_a_deployment_does_what_the_page_says(what):
    assert SCENARIOS[what]() == told()[what]
