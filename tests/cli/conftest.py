"""Commands run in this process, in a folder that holds an application of its own."""

import gc
import io
import json
import sys

import boto3
import pytest

from streamfold.batch.manifest import change_deltas
from streamfold.batch.process import process_event
from streamfold.cli import main
from streamfold.cli.session import load_application
from streamfold.engines import DynamoEngine, dynamodb_client
from streamfold.records.values import to_json
from streamfold.runtime import DeltasMark, Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping import Died
from tests.helpers.commands import ROOT, Ran
from tests.helpers.partiql import WithStatements
from tests.helpers.tables import make_table

SHOP = """
from streamfold import App, Count, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")

router = Router()


@router.view(ITEM, into=TOTAL)
def order_total(item):
    yield Row(total=Sum(item["price"]), lines=Count())


app = App("shop", routers=[router])
"""


class Folder:
    """The folder one stands in: its files, and the command line in it."""

    def __init__(self, path, monkeypatch, capsys):
        self.path = path
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def write(self, name, text):
        file = self.path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    def app(self, text):
        """Makes this the application that commands find by default."""
        self.write("handlers.py", text)

    def records(self, *records, name="records.jsonl"):
        """Writes records, one a line."""
        return self.write(name, "".join(to_json(record) + "\n" for record in records))

    def run(self, *arguments, stdin=b""):
        """Runs ``streamfold ARGUMENTS``."""
        self._monkeypatch.setattr(sys, "argv", ["streamfold", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._forget()
        self._capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code
        return Ran(code, *self._capsys.readouterr())

    def load(self):
        """The application."""
        self._forget()
        return load_application("handlers:app")

    def rows(self, *more):
        """The rows that ``show`` gives, by key."""
        ran = self.run("show", "--json", *more)
        assert ran.code == 0, ran.err
        items = [json.loads(line) for line in ran.out.split("\n") if line]
        return {
            " / ".join(next(iter(item[name].values())) for name in ("PK", "SK") if name in item): item for item in items
        }

    def totals(self, *more):
        """The totals of the orders in the state."""
        return {
            key.split(" ")[0]: int(row["total"]["N"]) for key, row in self.rows("--state", "state.db", *more).items()
        }

    def _forget(self):
        """Every command is a process of its own: it imports the application anew."""
        for name, module in list(sys.modules.items()):
            place = str(getattr(module, "__file__", None) or "")
            if place.startswith(str(self.path)) or name.partition(".")[0] == "handlers":
                del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    thresholds = gc.get_threshold()
    monkeypatch.chdir(tmp_path)
    elsewhere = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "handlers"}
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(place for place in sys.path if place not in ("", str(ROOT)))])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions of a file within a second
    monkeypatch.setenv("COLUMNS", "200")
    folder = Folder(tmp_path, monkeypatch, capsys)
    folder.app(SHOP)
    yield folder
    folder._forget()
    sys.modules.update(elsewhere)
    gc.set_threshold(*thresholds)


class OnAws:
    """The tables of the application on moto, filled as a function does it."""

    OPTIONS = ("--engine", "dynamodb", "--table", "main=shop")

    def __init__(self, folder):
        self.folder = folder
        self.client = WithStatements(boto3.client("dynamodb"))
        make_table(self.client, "shop", {"PK": "S", "SK": "S"})
        make_table(self.client, "shop-state", {"pk": "S", "sk": "S"})

    def deliver(self, *records):
        """Puts the items of records, and lets a function process the records."""
        app = self.app()
        self._put(records)
        report = process_event(Runtime(app, self.engine(app), Settings()), list(records))
        assert report.failures == []

    def deliver_in_deltas(self, *records):
        """The same by a process that puts what it adds to shared rows into deltas, and dies before it moves them."""

        def dies(_):
            raise Died

        app = self.app()
        self._put(records)
        run = Runtime(app, self.engine(app), Settings(), pause=dies)
        run.pace.sharing.forced = lambda row: row[2] == "TOTAL"
        with pytest.raises(Died):
            process_event(run, list(records))
        change_deltas(run, lambda _: DeltasMark(0.0))

    def _put(self, records):
        for record in records:
            body = record["dynamodb"]
            if "NewImage" in body:
                self.client.put_item(TableName="shop", Item=body["NewImage"])
            else:
                self.client.delete_item(TableName="shop", Key=body["Keys"])

    def app(self):
        return self.folder.load()

    def engine(self, app):
        return DynamoEngine(self.client, {"main": (app.tables["main"], "shop")}, "shop-state")

    def run(self, command, *arguments):
        return self.folder.run(command, *arguments, *self.OPTIONS)

    def manifest(self):
        (found,) = (item for item in self.state() if item["pk"]["S"].startswith("manifest#"))
        return found

    def state(self):
        return self.client.scan(TableName="shop-state")["Items"]

    def row(self, partition, sort="TOTAL"):
        return self.client.get_item(TableName="shop", Key={"PK": {"S": partition}, "SK": {"S": sort}}).get("Item")


@pytest.fixture
def on_aws(folder, aws, monkeypatch):
    """Commands find moto at AWS's own addresses."""
    made = dynamodb_client.make_client
    monkeypatch.setenv("STREAMFOLD_LANES", "1")  # moto is of one thread
    monkeypatch.setattr(dynamodb_client, "make_client", lambda *place: WithStatements(made(*place)))
    return OnAws(folder)
