"""What each function and each person's role may do: the actions of AWS that follow from an application's routes.

    granted = permissions(app, Role("stream", "main"))
    policy(granted, {Place("table", "main"): {"Fn::GetAtt": ["Table", "Arn"]}, ...})

``Derivation.calls`` says what a route takes; here is what a function takes whatever its routes are. A history of each
sample application makes every granted permission, and no other (``tests/deploy/test_permissions.py``).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from streamfold.batch.ownership import marked_tables
from streamfold.derivations.calls import STATE, Permission, Permissions, Place, Role, dynamodb, of_deltas
from streamfold.derivations.derivation import derivation, fans_out
from streamfold.keys.table import STATE as STATE_TABLE
from streamfold.routes.application import Application
from streamfold.routes.route import Route

__all__ = ["Role", "Permission", "Place", "permissions", "policy", "policy_characters"]

POLICY_CHARACTERS_MAX = 10_240
"""Characters of all inline policies of one role; white space is not counted (IAM User Guide, reference_iam-quotas)."""
VERSION = "2012-10-17"
"""Of the language of policies (IAM User Guide, reference_policies_elements_version)."""
STREAM_ACTIONS = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
"""What an event source mapping asks of a DynamoDB stream (Lambda Developer Guide, with-ddb-create-package)."""
KINESIS_ACTIONS = (
    "DescribeStream",
    "DescribeStreamSummary",
    "GetRecords",
    "GetShardIterator",
    "ListShards",
    "SubscribeToShard",
)
"""What it asks of a Kinesis data stream (Lambda Developer Guide, services-kinesis-create)."""
QUEUE_ACTIONS = ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes")
"""What it asks of a queue (Lambda Developer Guide, services-sqs-configure)."""
ARNs = Mapping[Place, Any] | Callable[[Place], Any]
"""What a template writes as the resource of a place: an ARN, an intrinsic function, or a list of these."""


def permissions(
    app: Application, function: Role, *, kinesis: Collection[str] = (), encrypted: Collection[str] = ()
) -> Permissions:
    """The permissions that a function or a person's role takes, and no more.

    kinesis: tables whose records come through Kinesis Data Streams. encrypted: tables that have a KMS key of their own.
    """
    found = _without_keys(app, function, kinesis)
    return found | _of_keys(found, encrypted)


def _without_keys(app: Application, function: Role, kinesis: Collection[str]) -> Permissions:
    routes = [route for route in app.routes if function.serves(route.group)]
    calls = frozenset[Permission]().union(*(derivation(route).calls(route, function) for route in routes))
    if function.kind == "stream":
        return calls | of_deltas(routes, app.routes) | _of_stream(app, function, routes, kinesis) | LOG
    if function.kind == "queue":
        visiting = [route for route in routes if fans_out(route)]
        return calls | of_deltas(visiting, app.routes) | _of_queue(routes) | LOG if visiting else frozenset()
    if function.kind == "verifier":
        return calls | dynamodb(STATE, "BatchGetItem") | LOG
    if function.kind == "operate":
        return calls | of_deltas(routes, app.routes) | _of_operator(routes) | FAILED | CLEARED
    return calls | _of_reader(app) | FAILED


DESCRIBE = "DescribeTable"
"""Gives the id of a table: one that was made again or restored has another id than the one before."""
PARK = Permission("s3:PutObject", Place("parked"))
"""Any handler parks: what raises ``Unprocessable``, and the records of one that is switched off."""
LOG = frozenset(Permission(f"logs:{action}", Place("log")) for action in ("CreateLogStream", "PutLogEvents"))


def _of_keys(found: Permissions, encrypted: Collection[str]) -> Permissions:
    """DynamoDB decrypts a table with the rights of the caller (Developer Guide, encryption.usagenotes), and so does a
    mapping its stream.
    """
    used = {place.name for _, place in found if place.kind in ("table", "stream")}
    return frozenset(Permission("kms:Decrypt", Place("key", name)) for name in used.intersection(encrypted))


def _of_stream(app: Application, function: Role, routes: Iterable[Route], kinesis: Collection[str]) -> Permissions:
    """The manifest, the identity of tables, and what the event source mapping asks for with the function's role."""
    found = {*dynamodb(STATE, "BatchGetItem", "PutItem"), PARK, *of_markers(routes)}
    tables = {each.key.table.name for route in routes for each in route.kind.subscriptions(route)}
    for name in tables | {key.table.name for key in app.watched(function.group)}:
        stream = Place("stream", name)
        if name in kinesis:
            found |= {Permission(f"kinesis:{action}", stream) for action in KINESIS_ACTIONS}
        else:
            found |= dynamodb(stream, *STREAM_ACTIONS) | dynamodb(Place("table", name), DESCRIBE)
    found.add(Permission("s3:PutObject", Place("failures")))
    found.add(Permission("s3:ListBucket", Place("failure bucket")))
    return frozenset(found)


def of_markers(routes: Iterable[Route]) -> Permissions:
    """The markers of the tables that handlers add to, and the ids of these tables and of the state."""
    marked = [Place("table", name) for name in marked_tables(routes)]
    calls = (dynamodb(place, "BatchGetItem", "UpdateItem", DESCRIBE) for place in marked)
    return dynamodb(STATE, DESCRIBE).union(*calls) if marked else frozenset()


def _of_queue(routes: Iterable[Route]) -> Permissions:
    """The manifest, open fan-outs and their segments, and what the event source mapping of the queue asks for."""
    queue = Place("queue")
    mapping = {Permission(f"sqs:{action}", queue) for action in ("SendMessage", *QUEUE_ACTIONS)}
    visits = any(route.lookups or derivation(route).joins_items for route in routes)
    parking = {PARK} if visits else set()  # a visited item, or a row of a post, that its handler cannot process
    return dynamodb(STATE, "BatchGetItem", "Query", "PutItem", "DeleteItem") | mapping | parking


def _of_operator(routes: Iterable[Route]) -> Permissions:
    """The manifest and the mark of deltas in it, runs and open fan-outs, empty ledger items, and the markers that a
    retired handler leaves.
    """
    retirable = marked_tables(route for route in routes if route.kind.contributes)
    markers = (dynamodb(Place("table", name), "BatchGetItem", "UpdateItem") for name in retirable)
    return dynamodb(STATE, "BatchGetItem", "PutItem", "Query", "Scan").union(*markers)


def _of_reader(app: Application) -> Permissions:
    """Any row and item, as ``show`` and ``explain`` read them, and the whole state."""
    own = [Place("table", name) for name in app.tables if name != STATE_TABLE.name]
    return dynamodb(STATE, "BatchGetItem", "Query", "Scan").union(*(dynamodb(place, "Query", "Scan") for place in own))


FAILED = frozenset(
    [
        Permission("s3:ListBucket", Place("failure bucket")),
        Permission("s3:ListBucket", Place("parking bucket")),
        Permission("s3:GetObject", Place("failures")),
        Permission("s3:GetObject", Place("parked")),
    ]
)
"""Failed records, which ``redrive`` reads."""
CLEARED = frozenset(Permission("s3:DeleteObject", Place(kind)) for kind in ("failures", "parked"))
"""Those that took effect, which ``redrive --clear`` deletes."""


def policy(granted: Iterable[Permission], arns: ARNs) -> dict[str, Any]:
    """The policy document of permissions, a statement a place. Raises ``KeyError`` for a place without a resource."""
    resource = arns if callable(arns) else arns.__getitem__
    by_place: dict[Place, list[str]] = {}
    for place, action in sorted((place, action) for action, place in granted):
        by_place.setdefault(place, []).append(action)
    names = Counter[str]()
    statements = []
    for place, actions in by_place.items():
        name = sid(place)
        names[name] += 1
        number = str(names[name]) if names[name] > 1 else ""  # tables a-b and aB: no two statements have one name
        statements.append({"Sid": name + number, "Effect": "Allow", "Action": actions, "Resource": resource(place)})
    return {"Version": VERSION, "Statement": statements}


def sid(place: Place) -> str:
    """The name of a place's statement: letters and digits (IAM User Guide, reference_policies_elements_sid)."""
    words = re.findall(r"[A-Za-z0-9]+", f"{place.kind} {place.name}")
    return "".join(word[0].upper() + word[1:] for word in words)


def policy_characters(*documents: Mapping[str, Any]) -> int:
    """The characters of a role's inline policies, as ``POLICY_CHARACTERS_MAX`` counts them."""
    return sum(len("".join(json.dumps(document, ensure_ascii=False).split())) for document in documents)
