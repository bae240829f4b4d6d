"""An application whose records are in part given up, and redriven later."""

import json
from dataclasses import replace

from streamfold.batch.fan_outs import run_chains
from streamfold.batch.process import process_changes
from streamfold.engines import EmbeddedEngine
from streamfold.errors import EngineUnavailable
from streamfold.failures.failed_records import StreamRange, Waiting
from streamfold.failures.redrive import Redrive
from streamfold.failures.stream_range import Fetched
from streamfold.records.envelope import Origins
from streamfold.records.values import to_json
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers import everything
from tests.helpers.failures import parked_document, queue_message, s3_object


class Troubled:
    """A store whose calls fail now and then: before they are done, or behind it."""

    def __init__(self, engine, random):
        self.engine, self.random = engine, random
        self.share = 0.0

    def __getattr__(self, name):
        called = getattr(self.engine, name)
        if name not in ("transact", "insert_rows", "remove_empty", "read_rows", "read_entries"):
            return called

        def call(*arguments):
            fails = self.random.random() < self.share
            if fails and self.random.random() < 0.5:
                raise EngineUnavailable("not done")
            answer = called(*arguments)
            if fails:
                raise EngineUnavailable("the answer was lost")
            return answer

        return call


class LateRedrive:
    """An application whose records are in part given up, and redriven later."""

    def __init__(self, random, app=everything.app):
        self.app, self.random = app, random
        self.engine = EmbeddedEngine(self.app.tables.values(), wanted=self.app.chains)
        self.run = Runtime(self.app, self.engine, Settings())
        self.origins = Origins(self.app.source_tables, Settings())
        self.troubled = Troubled(self.engine, random)
        self.redrive = Redrive(
            self.run.on(self.troubled), self.origins, self.fetch, put_sources=self.engine.put_sources
        )
        self.given_up = []
        self.kept = {}

    def fetch(self, part: StreamRange):
        return Fetched([self.kept[part.first]])

    def take(self, record):
        """The record is delivered, or given up for all handlers or for one."""
        change = self.origins.change(record)
        self.engine.put_sources([(change.item, change.new.raw or None, change.version_text)])
        names = [route.name for route, _ in self.app.sources(change.item)]
        lost = self.random.choice([[], names, self.random.sample(names, min(1, len(names)))])
        left = frozenset(names) - frozenset(lost)
        process_changes(replace(self.run, handlers=left), [change])
        if lost:
            self.kept[change.sequence] = record
            self.given_up += self.documents(record, lost if len(lost) < len(names) else None)

    def documents(self, record, handlers):
        if handlers is None:
            return [json.loads(self.random.choice((s3_object, queue_message))(record))]
        return [json.loads(to_json(parked_document(record, name, application=self.app.name))) for name in handlers]

    def redrive_some(self, share, trouble=0.0):
        chosen = [document for document in self.given_up if self.random.random() < share]
        self.random.shuffle(chosen)
        self.troubled.share = trouble
        told = [each for document in chosen for each in self.redrive.process(Waiting("here", document))]
        assert trouble or not [each for each in told if each.is_leftover]
        run_chains(self.run, self.engine)

    def process(self, records):
        """Takes the records, some of which are redriven in between, and at last all that were given up."""
        for record in records:
            self.take(record)
            if self.random.random() < 0.1:
                self.redrive_some(0.5, trouble=0.3)
        self.redrive_some(1)
