"""All that the histories need of the framework: where that moves, this file moves with it."""

import json
from collections import defaultdict
from itertools import count
from uuid import uuid4
from weakref import WeakKeyDictionary

from streamfold import App, Collect, Count, Latest, Max, Min, Router, Row, Sum, Top
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine, EmbeddedEngine, MemoryEngine
from streamfold.errors import EngineUnavailable, ManifestError, SettingsError
from streamfold.failures.failed_records import Waiting
from streamfold.failures.redrive import Redrive
from streamfold.jobs.job import Jobs
from streamfold.keys.table import MAIN, STATE
from streamfold.lifecycle.backfill import REBUILD, BackfillRun, new_job
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_repair import reconcile_rows
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.sources import wanted_routes
from streamfold.records.envelope import Origins
from streamfold.records.values import decode, encode
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import CONFLICT, DeleteRow, Reason, Refused

REFUSED = (ManifestError, SettingsError)
"""How a state refuses an application, before anything is written."""
UNAVAILABLE = EngineUnavailable
"""What a call raises whose outcome is not known."""
THROTTLED = Refused((Reason(CONFLICT[1]),))
READS = ("read_", "page", "items", "state_items")
"""How the names of an engine's reading calls begin."""
WARM = WeakKeyDictionary()
"""What processes learn of states and keep from batch to batch, each by its application."""
CONTRIBUTORS = "_sf_n"
OWNER = "_sf_o"
ROWS_LOST = "rows_lost"
MARK = "_sf_a"
KEY_TYPES = ("HASH", "RANGE")
STREAM = "arn:aws:dynamodb:eu-west-1:123456789012:table/{}/stream/{}"
MADE = {
    "sum": Sum,
    "count": Count,
    "max": Max,
    "min": Min,
    "latest": lambda by, value: Latest(value, by=by),
    "top": lambda most, by, value: Top(most, value, by=by),
    "list": lambda value, most=500: Collect(value, most=most, into=list),
    "set": lambda value, most=500: Collect(value, most=most, into=set),
}
"""Aggregates by the names that handlers of histories give them, ``("sum", 3)``: a model needs none of the package's."""


class Broken(Exception):  # noqa: N818 - says what became of a promise
    """A promise that a history broke."""


def application(name, handlers, retired=()):
    """An application out of the handlers of a history."""
    router = Router()
    for each in handlers:
        options = dict(each.options)
        if each.kind == "audit":
            router.audit(each.source, name=each.name, **options)
            continue
        where = {"of": each.target} if each.kind == "attributes" else {"into": each.target}
        getattr(router, each.kind)(each.source, name=each.name, **where, **options)(_function(each))
    return App(name, routers=[router], retired=retired)


def _function(handler):
    names = {field.name for part in handler.target.parts for field in part.fields} if handler.target else ()

    def derive(item):
        for fields, values in handler.rows(item):
            key = {name: item[name] for name in names if name in item} | fields
            yield Row(**key, **{name: _made(value) for name, value in values.items()})

    return derive


def _made(value):
    return MADE[value[0]](*value[1:]) if type(value) is tuple else value


def matches(key, place):
    """Whether a key's templates fit a stored key."""
    return key.match_values(*place[1:]) is not None


def place_of(key, fields):
    """The stored key of a key's fields, as engines name it."""
    return (key.table.name, *key.compose(fields))


def image_of(place, attributes):
    return encode({**dict(zip(MAIN.attributes, place[1:], strict=True)), **attributes})["M"]


def plain(image):
    """A stored item without its key and the framework's own attributes."""
    return {
        name: decode(value)
        for name, value in (image or {}).items()
        if name not in MAIN.attributes and not name.startswith("_sf_")
    }


def is_added_to(image):
    """Whether a stored row, that is none of an ``on`` handler's, is added to, and counts somebody."""
    return contributors(image) not in (None, 0) and OWNER not in image


def contributors(image):
    return decode(image[CONTRIBUTORS]) if CONTRIBUTORS in image else None


def marked(image, name):
    """Whether an item says of an attribute that it is derived."""
    return image is not None and name in json.dumps(image.get(MARK, {}))


def deliver(app, engine, records, environment, park=None):
    """Processes records as an invocation does. Raises what it raises.

    Returns the failures by sequence number, and how often each handler's rows were noticed to be removed by somebody.
    """
    known = WARM.setdefault(app, WeakKeyDictionary()).setdefault(engine, Knowledge())
    run = Runtime(app, engine, Settings.from_environment(environment), pause=lambda _: None, parking=park, known=known)
    failed = defaultdict(list)
    report = process_event(run, {"Records": records})
    for failure in report.failures:
        failed[failure.sequence].append(f"{failure.handler}: {type(failure.error).__name__}: {failure.error}")
    return failed, report.counts.get(ROWS_LOST, {})


def redrive(app, engine, document, environment):
    """Redrives a document; returns what is left of it to do."""
    settings = Settings.from_environment(environment)
    origins = Origins(app.source_tables, settings)
    redrive = Redrive(Runtime(app, engine, settings, pause=lambda _: None), origins, fetch=None)
    return [f"{each.what}: {each.why}" for each in redrive.process(Waiting("a bucket", document)) if each.is_leftover]


def verify_rows(app, engine, environment):
    """The rows that ``streamfold verify --rows`` calls different."""
    run = Runtime(app, engine, Settings.from_environment(environment), pause=lambda _: None)
    return {each.row for each in RowsVerifier(run, app.routes, live=False).verify().different}


def rebuild(app, engine, environment):
    """What ``streamfold rebuild`` does, for all handlers; returns the rows that it left as they are."""
    run = Runtime(app, engine, Settings.from_environment(environment), pause=lambda _: None)
    names, jobs = [route.name for route in wanted_routes(app, ())], Jobs(app.name, engine)
    job = new_job(jobs, REBUILD, names, [MAIN], 1, by="histories")
    BackfillRun(jobs, job, Pages(run, names, always=True), [MAIN]).run()
    return reconcile_rows(run, names).corrected.remaining


class Store:
    """The application's table and the state, with the stream of whatever writes items that a handler reads."""

    make = MemoryEngine

    def __init__(self, view):
        self.apps = ()
        self.view = view
        self.real, self.label = "shop", "2026-03-01T10:00:00.000"
        self.stream = []
        self._numbers = count(100000000000000000001)
        self._versions = count(1)
        self.open()

    def open(self):
        self.engine = self.make([MAIN])
        self.engine.put_sources([(("main", "NONE", "NONE"), None, "0")])

    def read(self, place):
        return self.engine.read_source(place)

    def items(self):
        """All stored items by their keys."""
        return {("main", *(decode(item[name]) for name in MAIN.attributes)): item for item in self.engine.items(MAIN)}

    def write(self, place, image):
        """What the application writes: an item whole, or None to remove it."""
        before = self.read(place)
        self._put(place, image)
        self.tell(place, before, image)

    def _put(self, place, image):
        self.engine.put_sources([(place, image, f"00/z/{next(self._versions):040d}")])

    def lose(self, place):
        """Removes a row behind the framework's back."""
        self.engine.rows.pop(place, None)

    def snapshot(self):
        return dict(self.engine.rows), dict(self.engine._sources)

    def restore(self, snapshot, real, label):
        """Puts another table below the state: an older copy under its own name."""
        self.engine.rows, self.engine._sources = dict(snapshot[0]), dict(snapshot[1])
        self.real, self.label = real, label

    def sources_of(self, writes):
        """The items among those that a call writes whose changes handlers read."""
        keys = [tuple(key) for key in (getattr(write, "key", ()) for write in writes) if key and key[0] == MAIN.name]
        return [key for key in keys if any(app.chains(key) for app in self.apps)]

    def tell(self, place, before, after):
        """Adds the record of a change to the stream; there is none where nothing changed."""
        if before == after:
            return
        images = {"OldImage": before, "NewImage": after}
        if self.view == "NEW_IMAGE":
            del images["OldImage"]
        event = "INSERT" if before is None else "REMOVE" if after is None else "MODIFY"
        body = {
            "SequenceNumber": str(next(self._numbers)),
            "StreamViewType": self.view,
            "ApproximateCreationDateTime": 1772359200.0,
            "Keys": image_of(place, {}),
            **{name: image for name, image in images.items() if image is not None},
        }
        arn = STREAM.format(self.real, self.label)
        self.stream.append({"eventName": event, "eventSource": "aws:dynamodb", "eventSourceARN": arn, "dynamodb": body})


class SqliteStore(Store):
    """The same in SQLite."""

    make = EmbeddedEngine

    def lose(self, place):
        self.engine.transact([DeleteRow(place)], 0)


class LocalStore(Store):
    """The same on DynamoDB Local: tables of its own behind a client."""

    def __init__(self, view, client):
        self.client = client
        super().__init__(view)

    def open(self):
        tables = {"main": (MAIN, f"shop-{uuid4().hex}")}
        self.real = tables["main"][1]
        for name, keys in ((self.real, MAIN.attributes), (f"{self.real}-state", STATE.attributes)):
            self.client.create_table(
                TableName=name,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
                KeySchema=[
                    {"AttributeName": keys[0], "KeyType": "HASH"},
                    {"AttributeName": keys[1], "KeyType": "RANGE"},
                ],
            )
        self.engine = DynamoEngine(self.client, tables, f"{self.real}-state", pause=lambda _: None)

    def _put(self, place, image):
        if image is None:
            self.lose(place)
        else:
            self.client.put_item(TableName=self.real, Item=image)

    def lose(self, place):
        key = {name: {"S": value} for name, value in zip(MAIN.attributes, place[1:], strict=True)}
        self.client.delete_item(TableName=self.real, Key=key)


def sequence_of(record):
    return record["dynamodb"]["SequenceNumber"]


def item_of(record):
    """The stored key of a record's item."""
    return ("main", *(decode(record["dynamodb"]["Keys"][name]) for name in MAIN.attributes))
