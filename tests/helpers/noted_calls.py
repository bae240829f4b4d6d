"""AWS in this process that notes which permission each call takes: functions, a person's commands, a search server.

The actions of a transaction need the permissions of their own operations (Developer Guide, transaction-apis-iam), a
PartiQL statement that of its verb (ql-iam). Lambda makes the calls of a mapping, and writes the log.
"""

import json
import re
from contextlib import contextmanager
from unittest.mock import patch

import boto3
from botocore.client import BaseClient

from streamfold.derivations.calls import Permission, Place
from streamfold.derivations.search.sink import VISIBLE
from tests.helpers.partiql import WithStatements

STATE, FAILED, PARKED = "real-state", "failed-records", "parked/"
MAPPINGS_PREFIX = "aws/lambda/"
OPERATIONS = {"ListObjectsV2": "ListBucket", "SendMessageBatch": "SendMessage", "DeleteMessageBatch": "DeleteMessage"}
OPERATIONS |= {"PublishBatch": "Publish"}
"""Operations whose permission has another name (Service Authorization Reference)."""
FREE = {"sts:GetCallerIdentity"}
"""What needs no permission (API Reference, GetCallerIdentity)."""


def real_name(logical):
    return f"real-{logical}"


class Noted:
    """The permissions that calls took, since ``into`` was entered."""

    def __init__(self, archives=(), large=()):
        self.taken = set()
        self.large = large  # locations of large data
        self.destinations = {}  # places of destinations by their addresses
        self.archives = archives  # locations that archives declare
        self.silent = True

    @contextmanager
    def into(self, taken):
        before, self.taken, self.silent = (self.taken, self.silent), taken, False
        try:
            yield
        finally:
            self.taken, self.silent = before

    @contextmanager
    def silently(self):
        before, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = before

    def note(self, action, place):
        if not self.silent and action not in FREE:
            self.taken.add(Permission(action, place))

    def call(self, service, operation, parameters):
        if self.silent:
            return
        for action, place in self._needed(service, OPERATIONS.get(operation, operation), parameters):
            self.note(action, place)

    def _needed(self, service, operation, parameters):
        if service == "dynamodb":
            return self._of_dynamodb(operation, parameters)
        if service == "s3":
            return [(f"s3:{operation}", self._object(operation, parameters))]
        if service in ("sqs", "sns", "events"):
            (entry, *_) = parameters.get("Entries", [{}])
            address = parameters.get("QueueUrl") or parameters.get("TopicArn") or entry["EventBusName"]
            if address in self.destinations:
                return [(f"{service}:{operation}", Place("destination", self.destinations[address]))]
        if service == "sqs":
            kind = "dead letters" if parameters["QueueUrl"].endswith("-dead") else "queue"
            return [(f"sqs:{operation}", Place(kind))]
        if service in ("dynamodbstreams", "kinesis"):
            return [(f"{service.removesuffix('streams')}:{operation}", Place("stream", "main"))]
        return [(f"{service}:{operation}", Place("account"))]

    def _of_dynamodb(self, operation, parameters):
        if operation == "TransactWriteItems":
            actions = [next(iter(each.items())) for each in parameters["TransactItems"]]
            return [
                (f"dynamodb:{kind.removesuffix('Item')}Item", _table(given["TableName"])) for kind, given in actions
            ]
        if operation == "TransactGetItems":
            return [("dynamodb:GetItem", _table(each["Get"]["TableName"])) for each in parameters["TransactItems"]]
        if operation == "BatchGetItem":
            return [("dynamodb:BatchGetItem", _table(name)) for name in parameters["RequestItems"]]
        return [(f"dynamodb:{operation}", _table(parameters["TableName"]))]

    def statements(self, statements):
        for each in statements:
            verb, table = re.match(r'(\w+) (?:FROM |INTO )?"([^"]+)"', each["Statement"]).groups()
            self.note(f"dynamodb:PartiQL{verb.title()}", _table(table))

    def _object(self, operation, parameters):
        bucket = parameters["Bucket"]
        if bucket != FAILED and operation == "PutObject":
            for location in self.large:
                if f"s3://{bucket}/{parameters['Key']}".startswith(location):
                    return Place("large data", location)
        if bucket != FAILED:
            (location,) = [each for each in self.archives if f"s3://{bucket}/{parameters['Key']}".startswith(each)]
            return Place("archive", location)
        if operation == "ListBucket":
            return Place("failure bucket" if parameters["Prefix"].startswith(MAPPINGS_PREFIX) else "parking bucket")
        return Place("parked" if parameters["Key"].startswith(PARKED) else "failures")


def _table(real):
    return Place("state") if real == STATE else Place("table", real.removeprefix("real-"))


class NotingClient(WithStatements):
    """A client of moto that notes statements as such, and refuses those on rows as often as a test asks."""

    def __init__(self, client, noted):
        super().__init__(client)
        self.noted = noted
        self.refusals = 0

    def batch_execute_statement(self, Statements):  # noqa: N803 - boto3's name
        self.noted.statements(Statements)
        with self.noted.silently():
            if self.refusals and re.match(r'(INSERT INTO|UPDATE) "real-(?!state)', Statements[0]["Statement"]):
                self.refusals -= 1
                return {"Responses": [{"Error": {"Code": "ConditionalCheckFailed"}} for _ in Statements]}
            return super().batch_execute_statement(Statements)


@contextmanager
def noting(noted):
    """Every call of boto3 is noted."""
    made = BaseClient._make_api_call

    def call(self, operation, parameters):
        noted.call(self.meta.service_model.service_name, operation, parameters)
        return made(self, operation, parameters)

    with patch.object(BaseClient, "_make_api_call", call):
        yield


class SearchServer:
    """A search server that has every alias, and keeps documents by their versions; requests are noted."""

    def __init__(self, noted):
        self.noted = noted
        self.whole = False  # a person's role has the domain, a function's two paths
        self.documents = {}
        self.aliases = {}

    def perform_request(self, method, path, params=None, body=None, headers=None):
        name, _, last = path.strip("/").rpartition("/")
        place = "*" if self.whole else f"*/{last}" if name else last
        self.noted.note(f"es:ESHttp{method.title()}", Place("search", place))
        body = body.decode() if isinstance(body, bytes) else body
        match method, name, last:
            case "POST", "", "_bulk":
                return {"items": [*self._bulk(body)]}
            case "POST", "", "_aliases":
                for action in json.loads(body)["actions"]:
                    ((verb, given),) = action.items()
                    behind = self._behind(given["alias"])
                    self.aliases[given["alias"]] = (behind | {given["index"]}) - (
                        {given["index"]} if verb == "remove" else set()
                    )
                return {"acknowledged": True}
            case "GET", "_alias", alias:
                return {each: {} for each in self._behind(alias)}
            case "GET", alias, "_alias":
                return {each: {"aliases": {alias: {"filter": VISIBLE}}} for each in self._behind(alias)}
            case "POST", index, "_mget":
                return {"docs": [self._found(index, each) for each in json.loads(body)["ids"]]}
            case "POST", _, "_search" | "point_in_time" | "_refresh":
                hits = [self._found(*each) for each in self.documents]
                hits = [hit | {"sort": [number]} for number, hit in enumerate(hits)]
                return {"pit_id": "point", "hits": {"hits": hits}}
            case (("PUT" | "DELETE" | "GET"), _, _):
                return {}
        raise AssertionError((method, path))

    def _behind(self, alias):
        return self.aliases.get(alias) or {alias.removesuffix("~write") if "~" in alias else f"{alias}~000001"}

    def _bulk(self, body):
        lines = [json.loads(line) for line in body.splitlines()]
        while lines:
            ((verb, head),) = lines.pop(0).items()
            key, version = (head["_index"], head["_id"]), head.get("version", 0)
            source = lines.pop(0) if verb == "index" else None
            known = self.documents.get(key, (0, None))
            if version < known[0]:
                yield {verb: {"status": 409, "error": {"type": "version_conflict", "reason": "newer"}}}
                continue
            self.documents[key] = version, source
            yield {verb: {"status": 200}}

    def _found(self, index, identity):
        version, source = self.documents.get((index, identity), (0, None))
        return {
            "_index": f"{index}~000001",
            "_id": identity,
            "found": source is not None,
            "_version": version,
            "_source": source,
        }

    def close(self):
        pass


def client_of(noted):
    return NotingClient(boto3.client("dynamodb"), noted)
