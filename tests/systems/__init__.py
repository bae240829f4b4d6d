"""The applications that ship, each against its own subject told in a few lines of plain Python."""

import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

from handlers import app
from streamfold.derivations.search.documents import own_fields
from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import EmbeddedEngine
from streamfold.read import rows as present
from streamfold.records.envelope import Origins
from streamfold.records.values import decode
from streamfold.replay.files import Line, RecordedFiles
from streamfold.replay.replay import BATCH_RECORDS, Replay
from streamfold.runtime import Runtime
from streamfold.settings import Settings

EVENTS = Path(__file__).parents[2] / "events"


BATCHES = (100, BATCH_RECORDS)
"""Records of a batch for systems that look others up: in a large batch each item is read and written once."""


def without_key(key, item):
    """The attributes of an item but for those of its key."""
    return {name: item[name] for name in item if name not in key.table.attributes}


def without_zeros(values):
    """Attributes that are not 0: 0 and absent say the same."""
    return {name: value for name, value in values.items() if value != 0}


def recorded(subject):
    """The records of a file, and the time of each in seconds."""
    records = [json.loads(line) for line in (EVENTS / f"{subject}.jsonl").read_text("utf-8").splitlines()]
    return records, [int(record["dynamodb"]["ApproximateCreationDateTime"]) for record in records]


def items_after(records):
    """The items that are there behind these records, as dicts by partition and sort key. No code of the framework."""
    items = {}
    for record in records:
        name = tuple(record["dynamodb"]["Keys"][attribute]["S"] for attribute in ("PK", "SK"))
        items.pop(name, None)
        if new := record["dynamodb"].get("NewImage"):
            items[name] = {attribute: value_of(value) for attribute, value in new.items()}
    return items


def value_of(value):
    """A value of DynamoDB's JSON as one of Python."""
    ((kind, held),) = value.items()
    if kind == "M":
        return {name: value_of(each) for name, each in held.items()}
    plain = {"N": Decimal, "L": lambda each: [value_of(one) for one in each], "SS": set, "NULL": lambda _: None}
    return plain.get(kind, lambda each: each)(held)


def in_other_order(records, random):
    """The records in an order in which another worker may see them: that of one item's own records stays."""
    queues = defaultdict(list)
    for record in reversed(records):
        queues[tuple(record["dynamodb"]["Keys"][attribute]["S"] for attribute in ("PK", "SK"))].append(record)
    names = [name for name, queue in queues.items() for _ in queue]
    random.shuffle(names)
    return [queues[name].pop() for name in names]


def delivered_again(records, random):
    """The records in batches each of which failed somewhere before it came whole."""
    delivered, first = [], 0
    while first < len(records):
        batch = records[first : first + random.randint(1, 30)]
        delivered += [*batch[: random.randint(0, len(batch))], *batch]
        first += len(batch)
    return delivered


class Folded:
    """A local state into which records are replayed in batches, and its rows."""

    def __init__(self, app, records, size=BATCH_RECORDS, until=None):
        self.app, self.size = app, size
        self.engine = EmbeddedEngine(app.tables.values(), wanted=app.chains)
        self.add(records, until)

    def add(self, records, until=None):
        """Replays records, and lets time pass behind them until a time in seconds."""
        origins, runtime = Origins(self.app.source_tables, Settings()), Runtime(self.app, self.engine, Settings())
        replay = Replay(runtime, origins, batch_records=self.size, put_sources=self.engine.put_sources)
        replay.until = until and until * 1_000_000
        assert replay.process([(Line("records", number), each) for number, each in enumerate(records)]).clean

    def rows(self, key):
        """The attributes of the rows or items of a key, by the fields of the key."""
        items = [decode({"M": item}) for item in self.engine.items(key.table)]
        assert all(item.get("_sf_n", 1) for item in items), "an empty row is left"
        return rows_of(items, key)


def rows_of(items, key):
    """The rows and items of a key that a reader sees among items."""
    found = {}
    for row in present(items):
        fields = key.match(row)
        if fields is not None:
            found[tuple(fields.values())] = without_key(key, row)
    return found


class Replayed:
    """A recorded file, its items at its end, and the rows that came of it."""

    def __init__(self, subject, app=app, batch_records=BATCH_RECORDS, **settings):
        path = EVENTS / f"{subject}.jsonl"
        self.whole_records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        self.records = [record["dynamodb"] for record in self.whole_records]
        self.engine = EmbeddedEngine(app.tables.values(), wanted=app.chains)
        origins, run = (
            Origins(app.source_tables, Settings(), others=app.tables),
            Runtime(app, self.engine, Settings(**settings)),
        )
        replay = Replay(run, origins, batch_records=batch_records, put_sources=self.engine.put_sources)
        assert replay.process(RecordedFiles([str(path)])).clean

    def images(self, key):
        """Each item's images in their order, None for a removed one."""
        images = defaultdict(list)
        for record in self.records:
            fields = key.match(decode({"M": record["Keys"]}))
            if fields is not None:
                new = record.get("NewImage")
                images[tuple(fields.values())].append(decode({"M": new}) if new else None)
        return images

    def first_records(self, key):
        """The number of the first record of each item."""
        matched = ((number, key.match(decode({"M": record["Keys"]}))) for number, record in enumerate(self.records))
        found = {}
        for number, fields in matched:
            if fields is not None:
                found.setdefault(tuple(fields.values()), number)
        return found

    def items(self, key):
        """The items at the end, by the fields of their key."""
        return {fields: images[-1] for fields, images in self.images(key).items() if images[-1] is not None}

    def rows(self, key):
        """The attributes of a target's rows, by the fields of their key; what is 0 is left out."""
        items = (decode({"M": item}) for item in self.engine.items(key.table))
        return {fields: without_zeros(row) for fields, row in rows_of(items, key).items()}

    def documents(self, index):
        """The documents of an index by id, as a search sees them."""
        return {found.id: own_fields(found.body) for found in LocalIndex(self.engine).documents(index)}
