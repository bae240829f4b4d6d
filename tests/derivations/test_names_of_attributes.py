"""A name that DynamoDB does not store fails the record that gives it, whatever the kind, and no other record."""

import pytest

from streamfold import Add, App, Average, Collect, Count, Delete, Key, Max, Put, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.model import stored
from tests.helpers.source import Source

GAME = Key("GAME#{game}", "LEVEL#{level}")
NAMES = {"good": "ok", "empty": "", "half": "\ud800"}
"""An item could not hold half a surrogate pair: a handler makes it."""
SHARED, OWN = Key("SHARED", "ALL"), Key("OWN#{game}", "LEVEL#{level}")


def row(value):
    return lambda item: Row(attributes={NAMES[item["name"]]: value})


def put(change):
    return Put(attributes={NAMES[change.new["name"]]: 1}) if change.new else Delete()


def nested(item):
    return Row(settings=[{NAMES[item["name"]]: 1}])


KINDS = {
    "sum": ("view", row(Sum(1)), {"into": SHARED}),
    "average": ("view", row(Average(1)), {"into": SHARED}),
    "largest": ("view", row(Max(1)), {"into": SHARED}),
    "collected": ("view", row(Collect(1, most=2)), {"into": SHARED}),
    "plain": ("view", row(1), {"into": OWN}),
    "wins": ("view", lambda item: Row(wins=1, attributes={NAMES[item["name"]]: "x"}), {"into": SHARED}),
    "attributes": ("attributes", row(1), {}),
    "attributes of another": ("attributes", row(Sum(1)), {"of": Key("TEAM#{game}", "TEAM")}),
    "unique": ("index", row(1), {"into": Key("U#{game}", "U"), "unique": True}),
    "index": ("index", nested, {"into": OWN}),
    "added": ("on", lambda change: Add(attributes={NAMES[(change.new or change.old)["name"]]: 1}), {"into": SHARED}),
    "put": ("on", put, {"into": OWN}),
}


def games(kind):
    method, handler, options = KINDS[kind]
    router = Router()
    getattr(router, method)(GAME, name="named", **options)(handler)
    router.view(GAME, into=Key("COUNTED", "ALL"), name="counted")(lambda item: Row(n=Count()))
    return App("games", routers=[router])


@pytest.mark.parametrize("engine_class", [MemoryEngine, EmbeddedEngine])
@pytest.mark.parametrize("name", ["empty", "half"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_dynamodb_does_not_store_fails_its_record_only(kind, name, engine_class):
    app, source = games(kind), Source()
    engine = engine_class(app.tables.values())
    good, bad = (source.put("GAME#a", f"LEVEL#{level}", name=text) for level, text in ((1, "good"), (2, name)))
    failures = process_event(Runtime(app, engine, Settings(), pause=lambda seconds: None), [good, bad]).failures
    assert {(failure.handler, failure.sequence) for failure in failures} == {
        ("named", bad["dynamodb"]["SequenceNumber"])
    }
    assert "of an attribute cannot be used" in str(failures[0].error)
    assert stored(app, engine)["main", "COUNTED", "ALL"] == {"n": 2}
