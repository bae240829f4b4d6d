"""Rehearse a deployment: ``make rehearse`` deploys the built template into ministack, uses it, updates and deletes it.

Items of a shop are written to the table of the stack. The rows have to be those of an embedded replay of the same
writes. Then the stack is updated, further items are written, and the stack is deleted: what the template retains is
left, and nothing else. At last ``streamfold template --table`` prints a template for a table that is there
already, with items: it is deployed, the items are filled in by ``backfill``, and ``verify`` finds no difference.

ministack answers CloudFormation and runs the functions in its own Python. It is no judge of mappings, permissions and
alarms. The exit code is 1 where a step goes wrong.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streamfold.keys.table import MARKED
from streamfold.records.values import encode
from streamfold.starter.rehearsal import (
    REGION,
    ROWS_SECONDS,
    STACK,
    Emulator,
    RehearsalFailed,
    emulated,
    emulator,
)
from tests.helpers.commands import as_set, embedded_rows
from tests.helpers.source import Source
from tests.helpers.template import load_template

ROOT = Path(__file__).parents[2]
BUILT = ROOT / ".aws-sam" / "build" / "template.yaml"
SERVER, SAM = ROOT / ".venv-rehearsal" / "bin" / "ministack", ROOT / ".venv-sam" / "bin" / "sam"
RETAINED = ("Table", "StateTable", "FailureBucket", "ArchiveBucket")
UNLIKE = ("AUDIT#",)
"""Rows that hold the time and number of their records, which are others in a replay."""
EXISTING, EXISTING_ITEMS = "orders-that-exist", 200
AT = "2026-03-01T09:00:00Z"
LINE = {"name": "tea", "quantity": 2, "price": 5, "at": AT}
ORDER = {"customer_id": "c1", "status": "open", "at": AT, "total": 30}
FIRST = [
    *((f"ORDER#{number}", "METADATA", ORDER) for number in range(1, 4)),
    *((f"ORDER#{number}", f"ITEM#sku-{line}", LINE) for number in range(1, 4) for line in range(1, 4)),
]
LATER = [("ORDER#1", "METADATA", {**ORDER, "status": "paid"}), ("ORDER#1", "ITEM#sku-1", {**LINE, "quantity": 7})]


class Rehearsal:
    """One stack in one server."""

    def __init__(self, running: Emulator, folder: Path) -> None:
        self.environment = dict(running.environment)
        self.dynamodb, self.cloudformation = running.client("dynamodb"), running.client("cloudformation")
        self.others = {name: running.client(name) for name in ("lambda", "sqs", "s3", "cloudwatch")}
        self.folder, self.source = folder, Source()
        self.began = time.monotonic()

    def run(self) -> None:
        """All steps. Raises ``RehearsalFailed`` at the first that goes wrong."""
        self._deploy()
        self._done("deployed")
        resources = self._resources()
        table = resources["Table"]
        self._write(table, FIRST)
        self._await_rows(table)
        self._done("items written, rows right")
        self._deploy("PageMail=operator@example.com")
        if self._resources()["Table"] != table:
            raise RehearsalFailed("The update replaced the table.")
        self._write(table, LATER)
        self._await_rows(table)
        self._done("stack updated, rows right")
        self._sam("delete", "--no-prompts", "--region", REGION)
        self._check_left(resources)
        self._done("stack deleted; tables and buckets are left")

    def beside_a_table(self) -> None:
        """A table with items that is there before the stack."""
        stream = self._existing_table()
        options = ("--table", f"main={EXISTING}", "--stream", stream)
        template = self.folder / "existing.json"
        template.write_text(self._streamfold("template", *options, "--json"), "utf-8")
        content = json.loads(template.read_text("utf-8"))
        for name, resource in content["Resources"].items():
            if resource["Type"] == "AWS::Serverless::Function":
                resource["Properties"]["CodeUri"] = str(BUILT.parent / name)  # as sam build writes it
                del resource["Metadata"]
        template.write_text(json.dumps(content), "utf-8")
        self._deploy(template=template)
        state = self._resources()["StateTable"]
        self._await_first_row()  # a function names its handlers with its first batch, and a backfill begins after that
        store = ("--engine", "dynamodb", "--table", f"main={EXISTING}")
        self.environment |= {"STREAMFOLD_STATE_TABLE": state, "STREAMFOLD_GATE_SECONDS": "0"}
        self._streamfold("backfill", "order_total", "daily_sales", *store, "--yes")
        self._streamfold("verify", "order_total", "daily_sales", *store, "--full")
        self._done("deployed beside a table, items filled in, nothing differs")
        self._sam("delete", "--no-prompts", "--region", REGION)
        if EXISTING not in self.dynamodb.list_tables()["TableNames"]:
            raise RehearsalFailed("The deletion of the stack took the existing table along.")

    def _existing_table(self) -> str:
        """Makes the table with its items; returns the ARN of its stream."""
        self.dynamodb.create_table(
            TableName=EXISTING,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")],
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
        )
        for number in range(EXISTING_ITEMS):
            line = {"PK": f"ORDER#e{number % 20}", "SK": f"ITEM#sku-{number}", **LINE}
            self.dynamodb.put_item(TableName=EXISTING, Item=encode(line)["M"])
        stream = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        self.dynamodb.update_table(TableName=EXISTING, StreamSpecification=stream)  # which holds no record of the items
        return str(self.dynamodb.describe_table(TableName=EXISTING)["Table"]["LatestStreamArn"])

    def _await_first_row(self) -> None:
        live = {"PK": "ORDER#live", "SK": "ITEM#sku-1", **LINE}
        self.dynamodb.put_item(TableName=EXISTING, Item=encode(live)["M"])
        total, end = encode({"PK": "ORDER#live", "SK": "TOTAL"})["M"], time.monotonic() + ROWS_SECONDS
        while "Item" not in self.dynamodb.get_item(TableName=EXISTING, Key=total):
            if time.monotonic() > end:
                raise RehearsalFailed(f"No row of an item that was written live after {ROWS_SECONDS} seconds.")
            time.sleep(0.3)

    def _streamfold(self, *arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "streamfold", *arguments],
            env={**self.environment, "PYTHONPATH": str(ROOT / "framework")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            said = f"{ran.stdout[-2000:]}\n{ran.stderr[-3000:]}"
            raise RehearsalFailed(f"streamfold {arguments[0]} ended with {ran.returncode}:\n{said}")
        return ran.stdout

    def _deploy(self, *parameters: str, template: Path = BUILT) -> None:
        content = emulated(load_template(template))
        template = template.with_name("rehearsed.json")
        template.write_text(json.dumps(content), "utf-8")
        given = ("--parameter-overrides", *parameters) if parameters else ()
        options = ("--resolve-s3", "--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset", "--no-progressbar")
        self._sam("deploy", "--template-file", str(template), *options, *given)

    def _sam(self, command: str, *options: str) -> None:
        ran = subprocess.run(
            [SAM, command, "--stack-name", STACK, *options],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RehearsalFailed(
                f"sam {command} ended with {ran.returncode}:\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
            )

    def _resources(self) -> dict[str, str]:
        found = self.cloudformation.describe_stack_resources(StackName=STACK)["StackResources"]
        return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found}

    def _write(self, table: str, items: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        with (self.folder / "records.jsonl").open("a", encoding="utf-8") as recording:
            for partition, sort, attributes in items:
                record = self.source.put(partition, sort, **attributes)
                recording.write(json.dumps(record) + "\n")
                self.dynamodb.put_item(TableName=table, Item=record["dynamodb"]["NewImage"])

    def _await_rows(self, table: str) -> None:
        expected = embedded_rows(self.folder / "records.jsonl", state=self.folder / "embedded.db")
        expected = {row for row in expected if not dict(row)["PK"][1].startswith(UNLIKE)}
        end = time.monotonic() + ROWS_SECONDS
        while (found := self._rows(table)) != expected:
            if time.monotonic() > end:
                unlike = [sorted(row) for row in expected ^ found]
                raise RehearsalFailed(f"The rows are not those of a replay after {ROWS_SECONDS} seconds: {unlike}")
            time.sleep(0.3)

    def _rows(self, table: str) -> set[Any]:
        pages = self.dynamodb.get_paginator("scan").paginate(TableName=table)
        rows = [
            {name: value for name, value in item.items() if not name.startswith("_sf_")}
            for page in pages
            for item in page["Items"]
            if (item["PK"]["S"], item["SK"]["S"]) not in self.source.items
            and not item["PK"]["S"].startswith(UNLIKE)
            and item.get("_sf_n") != {"N": "0"}
            and MARKED not in item
        ]
        return as_set(rows)

    def _check_left(self, resources: dict[str, str]) -> None:
        """Of all that the stack had, what holds data is left, as the template says, and nothing else."""
        kept = {resources[name] for name in RETAINED}
        found = {*self.dynamodb.list_tables()["TableNames"]}
        found |= {each["Name"] for each in self.others["s3"].list_buckets()["Buckets"]}
        found |= {each["FunctionName"] for each in self.others["lambda"].list_functions()["Functions"]}
        found |= {*self.others["sqs"].list_queues().get("QueueUrls", ())}
        found |= {each["AlarmName"] for each in self.others["cloudwatch"].describe_alarms()["MetricAlarms"]}
        left = found & {*resources.values()}
        if left != kept:
            raise RehearsalFailed(
                f"After the deletion of the stack these are missing: {kept - left}; these are left: {left - kept}"
            )

    def _done(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:5.0f} s  {what}", flush=True)


def main() -> int:
    """Runs the rehearsal; returns the exit code."""
    for needed, made in ((BUILT, "make build"), (SERVER, "make rehearse"), (SAM, "make build")):
        if not needed.exists():
            print(f"{needed.relative_to(ROOT)} is missing: {made} makes it.", file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ministack.log"
        try:
            with emulator(SERVER, log) as running:
                rehearsal = Rehearsal(running, Path(folder))
                rehearsal.run()
                rehearsal.beside_a_table()
        except RehearsalFailed as failed:
            print(failed, log.read_text("utf-8", "replace")[-4000:], sep="\n", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
