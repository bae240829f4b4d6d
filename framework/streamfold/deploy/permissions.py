"""What each function and each person's role may do: the actions of AWS that follow from an application's routes.

    granted = permissions(app, Role("stream", "main"))
    policy(granted, {Place("table", "main"): {"Fn::GetAtt": ["Table", "Arn"]}, ...})

``Derivation.process_calls`` and ``reconcile_calls`` return what the kind of a route takes. A history of each
sample application makes every granted permission, and no other (``tests/deploy/test_permissions.py``).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from streamfold.batch.ownership import marked_tables
from streamfold.derivations.calls import (
    NO_CALLS,
    QUEUE,
    STATE,
    Permission,
    Permissions,
    Place,
    Role,
    beside_searches,
    dynamodb,
    table_of,
    tables_of,
)
from streamfold.derivations.derivation import Derivation, derivation, fans_out
from streamfold.derivations.secrets import ACTIONS
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
NO_SECRETS: Mapping[str, str] = MappingProxyType({})
ARNs = Mapping[Place, Any] | Callable[[Place], Any]
"""What a template writes as the resource of a place: an ARN, an intrinsic function, or a list of these."""


def permissions(
    app: Application,
    function: Role,
    *,
    kinesis: Collection[str] = (),
    encrypted: Collection[str] = (),
    secrets: Mapping[str, str] = NO_SECRETS,
) -> Permissions:
    """The permissions that a function or a person's role takes, and no more.

    kinesis: tables whose records come through Kinesis Data Streams. encrypted: tables that have a KMS key of their own.
    secrets: what has the secret of a setting, ``secretsmanager`` or ``ssm``, by the setting's name.
    """
    found = _without_keys(app, function, kinesis) | _of_secrets(app, function, secrets)
    return found | _of_keys(found, encrypted)


def _without_keys(app: Application, function: Role, kinesis: Collection[str]) -> Permissions:
    routes = [route for route in app.routes if function.serves(route.group)]
    calls = NO_CALLS.union(*(of_route(route, function) for route in routes))
    if function.kind == "stream":
        return calls | of_deltas(routes, app.routes) | _of_stream(app, function, routes, kinesis) | LOG
    if function.kind == "queue":
        visiting = [route for route in routes if fans_out(route)]
        return calls | of_deltas(visiting, app.routes) | _of_queue(routes) | LOG if visiting else frozenset()
    if function.kind == "verifier":
        return calls | dynamodb(STATE, "BatchGetItem") | LOG
    if function.kind == "operate":
        # The manifest with the mark of deltas, runs, open fan-outs, empty ledger items; markers of retired handlers.
        retirable = marked_tables(route for route in routes if route.kind.contributes)
        markers = (dynamodb(Place("table", name), "BatchGetItem", "UpdateItem") for name in retirable)
        own = dynamodb(STATE, "BatchGetItem", "PutItem", "Query", "Scan").union(*markers)
        return calls | of_deltas(routes, app.routes) | own | FAILED | CLEARED
    # Any row and item, as ``show`` and ``explain`` read them, and all of the state.
    tables = [Place("table", name) for name in app.tables if name != STATE_TABLE.name]
    read = (dynamodb(place, "Query", "Scan") for place in tables)
    return calls.union(dynamodb(STATE, "BatchGetItem", "Query", "Scan"), *read) | FAILED


def _of_secrets(app: Application, function: Role, secrets: Mapping[str, str]) -> Permissions:
    """Reads the secrets of the kinds that a function runs, and of those that a person's commands run."""
    if not secrets or function.kind == "verifier":
        return NO_CALLS
    routes = [route for route in app.routes if function.serves(route.group)]
    used = [route for route in routes if function.kind != "queue" or fans_out(route)]
    named = {name for route in used for name in derivation(route).secrets}
    return frozenset(Permission(ACTIONS[secrets[name]], Place("secret", name)) for name in named & secrets.keys())


def of_route(route: Route, function: Role) -> Permissions:
    """The permissions of a route in a function or for a person, beside those that all of them take."""
    kind = derivation(route)
    if function.kind == "stream":
        if not kind.subscriptions(route):  # no change reaches it: the function behind the queue calls its handler
            return NO_CALLS
        return kind.process_calls(route) | _of_others(route) | _of_fan_outs(route)
    if function.kind == "queue":
        calls = kind.process_calls(route) | _of_others(route) | _of_wakes(route)
        return calls if fans_out(route) else NO_CALLS
    if function.kind == "verifier":
        return _verified(route) if kind.contributes else NO_CALLS
    return _operated(route, kind) if function.kind == "operate" else _read(route, kind)


def _operated(route: Route, kind: Derivation) -> Permissions:
    """Redrives, as functions process changes; and backfills, rebuilds, repairs and retirements."""
    calls = beside_searches(kind.process_calls(route)) | _of_others(route) | _of_fan_outs(route)
    calls |= _of_searches(route, "Get", "Post", "Put", "Delete")
    if kind.reconciles:
        calls |= kind.reconcile_calls(route) | dynamodb(STATE, "PutItem")  # a run's job and segments
    return calls | dynamodb(STATE, "DeleteItem") if kind.keeps else calls


def _read(route: Route, kind: Derivation) -> Permissions:
    """Explains rows and items, compares items with the state, and searches with items."""
    calls = _of_searches(route, "Get", "Post", "Delete")  # a point in time is opened, and deleted
    if kind.contributes or kind.joins_items:
        calls = calls.union(*(dynamodb(place, "BatchGetItem") for place in tables_of(route.into)))
    calls = calls.union(*(dynamodb(place, "GetItem") for place in tables_of(route.sources)))
    if kind.reconciles:
        calls = calls.union(*(dynamodb(place, "DescribeTable") for place in tables_of(route.sources)))
    if kind.contributes or kind.indexes(route):
        calls = calls.union(*(dynamodb(place, "BatchGetItem") for place in tables_of(route.reads)))
    return calls | _gathered(route)


def _verified(route: Route) -> Permissions:
    """Reads items, the state, the items that they refer to, and the stamps of rows that expire."""
    sources = (dynamodb(place, "Scan", "BatchGetItem") for place in tables_of(route.sources))
    referents = (dynamodb(place, "BatchGetItem") for place in tables_of(route.referents))
    expiring = (dynamodb(table_of(key), "BatchGetItem") for key in route.into if key.table.ttl is not None)
    return dynamodb(STATE, "Scan", "BatchGetItem").union(*sources, *referents, *expiring) | _gathered(route)


def _of_searches(route: Route, *methods: str) -> Permissions:
    domain = Place("search", "*")
    return frozenset(Permission(f"es:ESHttp{each}", domain) for each in methods if route.kind.indexes(route))


def _of_fan_outs(route: Route) -> Permissions:
    if not fans_out(route):
        return NO_CALLS
    return frozenset([Permission("sqs:SendMessage", QUEUE)]) | dynamodb(STATE, "PutItem")


def _of_others(route: Route) -> Permissions:
    """Reads what a handler gets beside its item, keeps backlinks of referents, and reads the items that are visited."""
    if not route.reads_others:
        return NO_CALLS
    backlinks = dynamodb(STATE, "PartiQLInsert", "DeleteItem", "Query") if route.lookups else NO_CALLS
    read = (dynamodb(place, "BatchGetItem") for place in tables_of(route.reads))
    return backlinks.union(*read) | _gathered(route)


def _gathered(route: Route) -> Permissions:
    """Reads the parts of an item."""
    return NO_CALLS.union(*(dynamodb(place, "BatchGetItem", "Query") for place in tables_of(route.part_keys)))


def _of_wakes(route: Route) -> Permissions:
    """Lists wakes, and visits their items."""
    if not route.asks_time:
        return NO_CALLS
    wakes = dynamodb(STATE, "BatchGetItem", "Query", "PutItem", "DeleteItem")
    return wakes.union(*(dynamodb(place, "BatchGetItem") for place in tables_of(route.sources)))


def of_deltas(routes: Iterable[Route], every: Iterable[Route]) -> Permissions:
    """Deltas, if some of these routes may put any. A process that waits for its own moves those of ``every``
    route, of other groups too.
    """
    if not any(derivation(route).delta_keys(route) for route in routes):
        return NO_CALLS
    calls = dynamodb(STATE, "BatchGetItem", "GetItem", "Query", "PutItem", "DeleteItem")
    for route in every:
        for place in tables_of(derivation(route).delta_keys(route)):
            calls |= dynamodb(place, "UpdateItem")
            if route.kind.contributes:  # a row without contributors goes; one that somebody removed is still absent
                calls |= dynamodb(place, "BatchGetItem", "DeleteItem", "ConditionCheckItem")
    return calls


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
    mapping = {Permission(f"sqs:{action}", QUEUE) for action in ("SendMessage", *QUEUE_ACTIONS)}
    visits = any(route.is_revisited or derivation(route).joins_items for route in routes)
    parking = {PARK} if visits else set()  # a visited item, or a row of a post, that its handler cannot process
    return dynamodb(STATE, "BatchGetItem", "Query", "PutItem", "DeleteItem") | mapping | parking


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
