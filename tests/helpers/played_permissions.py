"""Histories of an application on AWS in this process: its functions, and which permissions each of them took.

The tables' stream is what changed in them since the last look, so that chains come as they do on AWS.
"""

import io
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from itertools import count
from secrets import randbelow, token_hex
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import boto3

from streamfold import runtime
from streamfold.batch import referrers
from streamfold.batch.manifest import change_deltas
from streamfold.cli import main, session
from streamfold.derivations.calls import Role
from streamfold.derivations.cascade import children
from streamfold.derivations.derivation import derivation, fans_out
from streamfold.derivations.feed import fan_outs as feed_fan_outs
from streamfold.engines.deadline import Deadline
from streamfold.engines.dynamodb import DynamoEngine
from streamfold.jobs import fan_outs as jobs_fan_outs
from streamfold.keys.table import CONTRIBUTORS, VERSION
from streamfold.keys.table import STATE as STATE_TABLE
from streamfold.lambda_entry.function import Function, handle_verify
from streamfold.lambda_entry.queue import RING, QueueFunction
from streamfold.ledger.deltas import ID_BYTES
from streamfold.lifecycle import buckets, verify
from streamfold.lifecycle.sources import ItemKeys
from streamfold.records.values import decode, encode
from streamfold.routes.route import SOURCE
from streamfold.runtime import DeltasMark, Sharing
from streamfold.settings import Settings, environment_name
from tests.helpers.failures import s3_object
from tests.helpers.histories import EXPIRED, TIME_TO_LIVE
from tests.helpers.noted_calls import (
    FAILED,
    MAPPINGS_PREFIX,
    PARKED,
    STATE,
    Noted,
    SearchServer,
    client_of,
    noting,
    real_name,
)
from tests.helpers.records import record
from tests.helpers.tables import make_table

SMALL = (
    (jobs_fan_outs, "SEGMENTS", 2),
    (referrers, "SEGMENTS", 2),
    (referrers, "PAGE", 3),
    (feed_fan_outs, "PAGE", 1),
    (children, "INLINE_PAGES", 1),
    (children, "PAGES_A_MOVE", 2),
    (session, "SEGMENTS", 4),
    (verify, "ItemKeys", partial(ItemKeys, segments=4)),
    (buckets, "STRIPES", 2),
    (buckets, "STRIPES", 2),
    (runtime, "new_token", lambda: f"{randbelow(2):x}{token_hex(ID_BYTES)}"),
)
"""A few items are a long fan-out."""
MODULE, ON = "sample_under_test", "on the tables"
BATCH, STEP_SECONDS, CALL_SECONDS = 12, 60, 0.06
FIRST = 100_000_000_000_000_000_000
ROUNDS_MAX = 12
"""A chain ends, and so does a fan-out."""


def types_of(table, app):
    """The types of a table's key attributes."""
    keys = [key for route in app.routes for key in (*route.reads, *route.writes, *route.kind.touches(route))]
    keys += [each.key for route in app.routes for each in route.kind.subscriptions(route)]
    key = next(key for key in keys if key.table.name == table.name)
    return {name: part.attribute_type for name, part in zip(table.attributes, key.parts, strict=False)}


def made_destination(place):
    """The address of a new bus, topic or queue."""
    service, _, name = place.partition(":")
    fifo = {"FifoQueue" if service == "sqs" else "FifoTopic": "true"} if name.endswith(".fifo") else {}
    if service == "eventbridge":
        return boto3.client("events").create_event_bus(Name=name)["EventBusArn"]
    if service == "sns":
        return boto3.client("sns").create_topic(Name=name, Attributes=fifo)["TopicArn"]
    return boto3.client("sqs").create_queue(QueueName=name, Attributes=fifo)["QueueUrl"]


class Played:
    """An application on AWS. ``taken`` has the permissions that were taken, by function."""

    def __init__(self, app, stack, *, at=1_772_355_600.0, **settings):
        self.app, self.at = app, at
        archives = [each for route in app.routes for each in route.kind.outside_locations(route)]
        places = {call.place for route in app.routes for call in derivation(route).process_calls(route)}
        large = [each.name for each in places if each.kind == "large data"]
        self.noted = Noted([each for each in archives if each.startswith("s3://")], large)
        self.raw = boto3.client("dynamodb")
        self.tables = {name: table for name, table in app.tables.items() if name != STATE_TABLE.name}
        for name, table in self.tables.items():
            make_table(self.raw, real_name(name), types_of(table, app))
        make_table(self.raw, STATE, {"pk": "S", "sk": "S"})
        s3, self.sqs = boto3.client("s3"), boto3.client("sqs")
        for bucket in {FAILED, *(each.split("/")[2] for each in [*self.noted.archives, *large])}:
            s3.create_bucket(Bucket=bucket)
        self.jobs = self.sqs.create_queue(QueueName="jobs")["QueueUrl"]
        destinations = [each.name for each in places if each.kind == "destination"]
        self.noted.destinations = {made_destination(each): each for each in destinations}
        self.settings = Settings(
            destinations={name.partition(":")[2]: address for address, name in self.noted.destinations.items()},
            tables={name: real_name(name) for name in self.tables},
            state_table=STATE,
            observe="off",
            lanes=1,  # moto is of one thread
            park=f"s3://{FAILED}/{PARKED.strip('/')}",
            jobs=self.jobs,
            search="https://search.example",
            **settings,
        )
        self.server = SearchServer(self.noted)
        stack.enter_context(noting(self.noted))
        stack.enter_context(patch("time.sleep"))
        stack.enter_context(patch.object(Deadline, "wait", lambda *_: None))
        for module, constant, value in SMALL:
            stack.enter_context(patch.object(module, constant, value))
        stack.enter_context(patch("streamfold.derivations.search.opensearch._transport", lambda *_: self.server))
        self.client = client_of(self.noted)
        self.taken = {}
        self.seen = {name: {} for name in self.tables}
        self.records, self.sequence, self.expired = [], FIRST, set()
        self.is_rung, self.meanwhile = False, []
        self.asked = count()  # the time goes on a little whenever somebody asks for it
        self.groups = list(dict.fromkeys(route.group for route in app.routes))
        self.functions = {group: self.new_function(group) for group in self.groups}

    def new_function(self, group, made=Function):
        """A process of its own."""
        function = made(self.app, self.settings._replace(group=group), self.client)
        function.clock = lambda: self.at + 10 + CALL_SECONDS * next(self.asked)
        return function

    def play(self, sample):
        """Plays all of a sample: its history, records that come late, twice or while handlers are off, and its ends."""
        self.client.refuses_rows = sample.refusals
        self.meanwhile = list(sample.meanwhile)
        for step in sample.history:
            self.client.refusals = sample.refusals
            self.at += STEP_SECONDS
            self.write(*step)
            self.settle()
        self.client.refusals = 0
        self.overtake(*sample.history[:2])
        self.redeliver()
        self.switch_off()
        self.share(sample)
        self.lose_rows(sample)
        self.verify()

    def share(self, sample):
        """The history again, with processes that put all additions into deltas, and others that get each step again."""
        if self.puts_deltas:
            with self.sharing():
                self.functions = {group: self.new_function(group) for group in self.groups}
                for step in sample.history:
                    self.at += STEP_SECONDS
                    known = len(self.records)
                    self.write(*step)
                    self.settle()
                    functions = {group: self.new_function(group) for group in self.groups}
                    for start in range(known, len(self.records), BATCH):
                        self.deliver(self.records[start : start + BATCH], functions)

    @property
    def puts_deltas(self):
        return any(derivation(route).delta_keys(route) for route in self.app.routes)

    @contextmanager
    def sharing(self):
        """Processes that begin meanwhile put all additions into deltas."""
        begin = Sharing.__init__

        def begun(sharing):
            begin(sharing)
            sharing.forced = lambda row: True

        self.mark(DeltasMark(self.at - 10_000))
        with patch.object(Sharing, "__init__", begun):
            yield
        self.functions = {group: self.new_function(group) for group in self.groups}

    def mark(self, mark):
        """Sets the mark of deltas."""
        function = self.new_function(self.groups[0])
        function.engine = function.engine or function._engine()
        change_deltas(function.runtime_of(context()), lambda _: mark)

    def lose_rows(self, sample):
        """Somebody removes the rows that handlers add to before each delivery, and before fan-outs go on. Processes
        die before they clear what they have done, and the next step of an item does it again.
        """
        for step in sample.history:
            self.at += STEP_SECONDS
            self.write(*step)
            records = self.changed()
            self.records += records
            for start in range(0, len(records), BATCH):
                self._remove_rows(CONTRIBUTORS)
                with dying():
                    self.deliver(records[start : start + BATCH])
            self._remove_rows(CONTRIBUTORS)
            with dying():
                self.answer()
            self.settle()

    def overtake(self, first, second):
        """A change is delivered after the next one of its item, which is delivered with it again."""
        self.write(*first)
        older = self.changed()
        self.write(*second)
        newer = self.changed()
        self.deliver(newer)
        self._remove_rows(VERSION)
        self.deliver([*older, *newer])
        self.records += [*older, *newer]
        self.settle()

    def _remove_rows(self, attribute):
        """Rows with an attribute go, as by time to live or by a person."""
        tables = {real_name(name): table.attributes for name, table in self.tables.items()} | {STATE: ("pk", "sk")}
        for name, attributes in tables.items():
            for row in self.raw.scan(TableName=name)["Items"]:
                if attribute in row:
                    self.raw.delete_item(TableName=name, Key={each: row[each] for each in attributes})

    def switch_off(self):
        """The handlers are off: records are parked."""
        off = tuple(route.name for route in self.app.routes)
        settings, self.settings = self.settings, self.settings._replace(handlers_off=off)
        self.deliver(self.records[-60:], {group: self.new_function(group) for group in self.groups})
        self.settings = settings

    def write(self, *history):
        """Writes items of the application: (partition, sort), and attributes, None, or EXPIRED."""
        for (partition, sort), attributes in history:
            key = {"PK": {"S": partition}, "SK": {"S": sort}}
            if attributes is None or attributes is EXPIRED:
                self.raw.delete_item(TableName=real_name("main"), Key=key)
                if attributes is EXPIRED:
                    self.expired.add((partition, sort))
            else:
                self.raw.put_item(TableName=real_name("main"), Item=key | encode(attributes)["M"])

    def changed(self):
        """The records of what changed in the tables since the last look."""
        found = []
        for name, table in self.tables.items():
            pages = self.raw.get_paginator("scan").paginate(TableName=real_name(name))
            now = {
                tuple(decode(raw[each]) for each in table.attributes): decode({"M": raw})
                for page in pages
                for raw in page["Items"]
            }
            before, self.seen[name] = self.seen[name], now
            for key in [*before.keys() - now.keys(), *now]:
                old, new = before.get(key), now.get(key)
                if old != new:
                    self.sequence += 7
                    made = record(old, new, self.sequence, names=table.attributes, table=real_name(name), at=self.at)
                    expired = {"userIdentity": TIME_TO_LIVE} if new is None and key in self.expired else {}
                    found.append(made | expired)
        return found

    def settle(self):
        """Delivers what changed, until nothing changes any more and no fan-out is open."""
        for _ in range(ROUNDS_MAX):
            records = self.changed()
            self.records += records
            for start in range(0, len(records), BATCH):
                self.deliver(records[start : start + BATCH])
            if not self.answer() and not records:
                return
        raise AssertionError("changes go on for ever")

    def deliver(self, records, functions=None):
        # Any group may be the first to see the state.
        for group, function in reversed((functions or self.functions).items()):
            with self.noted.into(self.taken.setdefault(Role("stream", group), set())):
                function({"Records": records}, context())

    def answer(self):
        """The first messages are lost, and the schedule sends others; the queue's function takes each of these."""
        bodies = self._messages()
        if bodies and not self.is_rung:
            self.is_rung = True
            self.ring()
            bodies = self._messages()
            self.write(*self.meanwhile)
        for body in bodies:
            message = {"eventSource": "aws:sqs", "messageId": "1", "body": body}
            self.call_queues({"Records": [message]})
        return bodies

    def _messages(self):
        bodies = []
        while found := self.sqs.receive_message(QueueUrl=self.jobs, MaxNumberOfMessages=10).get("Messages"):
            for each in found:
                self.sqs.delete_message(QueueUrl=self.jobs, ReceiptHandle=each["ReceiptHandle"])
                bodies.append(each["Body"])
        return bodies

    def call_queues(self, event):
        for group in self.groups:
            if any(fans_out(route) for route in self.app.routes if route.group == group):
                function = self.new_function(group, QueueFunction)
                function.clock = lambda: self.at + 10_000 + CALL_SECONDS * next(self.asked)
                with self.noted.into(self.taken.setdefault(Role("queue", group), set())):
                    function(event, context())

    def redeliver(self):
        """Another process gets what was delivered, newer records first, and then all of them in one batch."""
        for middle in (len(self.records) // 2, 0):
            functions = {group: self.new_function(group) for group in self.groups}
            for start in range(middle, len(self.records), BATCH):
                self.deliver(self.records[start : start + BATCH], functions)
        self.settle()

    def verify(self):
        variables = {f"STREAMFOLD_TABLE_{environment_name(name)}": real_name(name) for name in self.tables}
        variables |= {"STREAMFOLD_STATE_TABLE": STATE, "STREAMFOLD_OBSERVE": "off", "STREAMFOLD_LANES": "1"}
        variables |= {"STREAMFOLD_JOBS": self.jobs, "STREAMFOLD_PARK": str(self.settings.park)}
        with patch.dict("os.environ", variables), self.noted.into(self.taken.setdefault(Role("verifier"), set())):
            handle_verify(self.app, {"sample": 500, "tolerance": 0}, context(), self.client)

    def people(self, sample):
        """Plays the beginning and the end of a history, and then all that people do."""
        for step in (*sample.history[:3], sample.history[-1], sample.history[0]):
            self.at += STEP_SECONDS
            self.write(*step)
            self.settle()
        self.switch_off()  # for parked records
        for step in (sample.history[-1], sample.history[1]):
            self.write(*step)
            if late := self.changed():  # records that no function has taken
                break
        failed = s3_object(*late)
        boto3.client("s3").put_object(Bucket=FAILED, Key=f"{MAPPINGS_PREFIX}1", Body=failed)
        self.read()
        self.operate(sample)

    def read(self):
        run = partial(self.run, "read")
        for what in ([], ["ORDER#1"], ["--source"]):
            run("show", *what, ON)
        for item in self._items(self.app.routes):
            run("explain", ON, "--item", *item)
        for row in self._explained_rows():
            run("explain", ON, *row)
        run("state", "stats", ON)
        run("jobs", ON)
        run("buckets", ON)
        for where in (f"s3://{FAILED}/{MAPPINGS_PREFIX}", self.settings.park + "/"):
            run("redrive", ON, where)
        if self._reconciled():
            run("backfill", "--dry-run", ON)
            run("verify", "--full", "--tolerance", "0", ON)
        for alias in self._indexes():
            run("search", "verify", alias, "--full", ON)

    def operate(self, sample):
        """Each command meets items that no record has told of yet."""
        run, steps = partial(self.run, "operate"), [*sample.history[1:], *sample.history]
        names = [route.name for route in self._reconciled()]
        for command in ([["backfill"], ["rebuild", *names]] if names else []) * 2:
            self.write(*steps.pop(0))
            self.client.refusals = sample.refusals
            run(*command, "--segments", "1", "--yes", ON)
        for item in self._items(self._reconciled()):
            self.write(*steps[0])
            run("repair", "--key", *item, "--yes", ON)
        self.client.refusals = 0
        self.operate_on_shared_rows(sample)
        for step in sample.history:  # whose fan-outs stay open
            self.write(*step)
            self.deliver(self.changed())
        run("jobs", "--ring", "--yes", ON)
        for alias in self._indexes():
            run("search", "rebuild", alias, "--offline", "--segments", "1", "--tolerance", "0", "--yes", ON)
            run("search", "rebuild", alias, "--drop", "--offline", "--yes", ON)
        for where in (f"s3://{FAILED}/{MAPPINGS_PREFIX}", f"{self.settings.park}/"):
            run("redrive", "--apply", "--external", "--clear", "--yes", where, ON)
        run("state", "gc", "--yes", ON)
        for route in _one_of_each(self._reconciled()):
            if route.kind.contributes or derivation(route).keeps:
                rows = "remove" if route.kind.contributes else "keep"
                with patch.dict("os.environ", {"STREAMFOLD_HANDLERS_OFF": route.name}):
                    run("retire", route.name, "--rows", rows, "--yes", ON)

    def operate_on_shared_rows(self, sample):
        """Repairs put deltas, meet those of others, and meet rows that somebody removed."""
        items = [*self._items(self._reconciled())]
        with self.sharing():
            for step in sample.history if self.puts_deltas else ():
                self.write(*step)
                for item in items:
                    self.run("operate", "repair", "--key", *item, "--yes", ON)
            if self.puts_deltas:
                self.redrive_pending(sample)
            self.mark(DeltasMark(time.time()))  # nobody is waited for
            self.run("operate", "buckets", "--empty", "--yes", ON)
        for step in sample.history:
            self.write(*step)
            self._remove_rows(CONTRIBUTORS)
            for item in items:
                self.run("operate", "repair", "--key", *item, "--yes", ON)
        for item in items:
            for steps in ((), sample.history[:2]):  # an item may have a row at the end, or at the beginning
                for step in steps:
                    self.write(*step)
                if steps:
                    self.run("operate", "repair", "--key", *item, "--yes", ON)
                self.write((item, None))
                self._remove_rows(CONTRIBUTORS)
                with dying():
                    self.run("operate", "repair", "--key", *item, "--yes", ON)
                self.run("operate", "repair", "--key", *item, "--yes", ON)

    def redrive_pending(self, sample):
        """Records are redriven whose deltas a function left behind."""
        records = []
        for step in sample.history[:2]:
            self.write(*step)
            records += self.changed()
        with patch("streamfold.commit.pending.wait_for_deltas", lambda *_: []):
            self.deliver(records, {group: self.new_function(group) for group in self.groups})
        where = f"{MAPPINGS_PREFIX}left-1"
        boto3.client("s3").put_object(Bucket=FAILED, Key=where, Body=s3_object(*records))
        self.run("operate", "redrive", "--apply", "--yes", f"s3://{FAILED}/{where}", ON)

    def _items(self, routes):
        """An item of a handler of each kind."""
        for route in _one_of_each(routes):
            for name, items in self.seen.items():
                found = [
                    key
                    for key in items
                    for each, _ in self.app.listeners((name, *key))
                    if each.route is route and each.role == SOURCE
                ]
                yield from found[:1]

    def _explained_rows(self):
        """A row of a handler of each kind whose rows can be explained."""
        for route in _one_of_each(self.app.routes):
            if route.kind.contributes or derivation(route).joins_items:
                rows = [(name, *key) for name, found in self.seen.items() for key in found]
                yield from [row[1:] for row in rows if route.target_of(row) and not self.app.sources(row)][:1]

    def _reconciled(self):
        return [route for route in self.app.routes if derivation(route).reconciles]

    def _indexes(self):
        return [name for route in self.app.routes for name in route.kind.indexes(route).values()]

    def run(self, role, *arguments, app=None, code=(0, 1)):
        """A person's command."""
        module = ModuleType(MODULE)
        module.app = app or self.app
        tables = [part for name in self.tables for part in ("--table", f"{name}={real_name(name)}")]
        where = ["--app", f"{MODULE}:app", "--engine", "dynamodb", *tables]
        variables = {
            "STREAMFOLD_STATE_TABLE": STATE,
            "STREAMFOLD_LANES": "1",
            "STREAMFOLD_GATE_SECONDS": "0",
            "STREAMFOLD_SEARCH": "https://search.example",
            "STREAMFOLD_JOBS": self.jobs,
            **{f"STREAMFOLD_PUBLISH_{environment_name(name)}": to for name, to in self.settings.destinations.items()},
        }
        command = [each for each in arguments if each != ON]
        command = ["streamfold", *command, *(where if ON in arguments else where[:2])]
        out, self.server.whole = io.StringIO(), True
        with (
            patch.dict("sys.modules", {MODULE: module}),
            patch.dict("os.environ", variables),
            patch("sys.argv", command),
            patch("streamfold.engines.dynamodb_client.make_client", lambda *_, **__: self.client),
            redirect_stdout(out),
            redirect_stderr(out),
            self.noted.into(self.taken.setdefault(Role(role), set())),
        ):
            try:
                main()
                ended = 0
            except SystemExit as stopped:
                ended = stopped.code
        self.server.whole = False
        assert ended in code, (command, ended, out.getvalue())
        return out.getvalue()

    def ring(self):
        self.call_queues(RING)


def dying():
    """Processes die before they clear pending work."""
    return patch.object(DynamoEngine, "clear_pending", lambda *_: None)


def context():
    return SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000, invoked_function_arn=None)


def _one_of_each(routes):
    """A route of each kind, with lookups and without."""
    return {(route.kind, bool(route.lookups)): route for route in routes}.values()
