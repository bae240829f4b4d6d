"""The applications that ship, each against its own subject told in a few lines of plain Python."""

import json
from collections import defaultdict
from pathlib import Path

from handlers import app
from streamfold.derivations.search.documents import own_fields
from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import EmbeddedEngine
from streamfold.read import rows as present
from streamfold.records.envelope import Origins
from streamfold.records.values import decode
from streamfold.replay.files import RecordedFiles
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
        found = {}
        for row in present(decode({"M": item}) for item in self.engine.items(key.table)):
            fields = key.match(row)
            if fields is not None:
                found[tuple(fields.values())] = without_zeros(without_key(key, row))
        return found

    def documents(self, index):
        """The documents of an index by id, as a search sees them."""
        return {found.id: own_fields(found.body) for found in LocalIndex(self.engine).documents(index)}
