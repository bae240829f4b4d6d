"""Both sides of a deployment over several accounts: what the template allows, and what the other accounts grant."""

import json
import re
import sys
from fnmatch import fnmatchcase
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import pytest

from streamfold import App, Count, Key, Lookup, Router, Row, Sum, Table
from streamfold.deploy.accounts import Grants
from streamfold.deploy.check import check_template
from streamfold.deploy.functions import Deployment, existing_table
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.table_names import OtherAccounts, SharedBucket
from streamfold.deploy.template_file import TemplateFile
from streamfold.engines import dynamodb_client
from streamfold.errors import SettingsError
from streamfold.lambda_entry.function import Function, handle_verify
from streamfold.settings import Settings
from tests.helpers.noted_calls import Noted, NotingClient
from tests.helpers.records import item, record
from tests.helpers.tables import make_table

OWN, OTHER, THIRD = "111111111111", "222222222222", "333333333333"
STREAM = f"arn:aws:dynamodb:eu-west-1:{OTHER}:table/orders/stream/2026-03-01T09:00:00.000"
ROLE, ROLE_OF_COPIES = f"arn:aws:iam::{OTHER}:role/shop-tables", f"arn:aws:iam::{THIRD}:role/shop-copies"
QUEUE = f"arn:aws:sqs:eu-west-1:{OTHER}:segments"
ORDER, CUSTOMER = Key("ORDER#{order_id}", "METADATA"), Key("CUSTOMER#{customer_id}", "ORDERS")
STACK = "shop"


def application(*, source=None, more=()):
    router = Router()
    order = Key("ORDER#{order_id}", "METADATA", source) if source else ORDER

    @router.view(order, into=CUSTOMER)
    def orders(item):
        yield Row(customer_id=item["customer_id"], orders=Count())

    for each in more:
        each(router)
    return App("shop", routers=[router])


def copies(router):
    router.copy(ORDER, to=Table("copies"), name="copied")


def archives(router):
    router.archive(ORDER, to="s3://archive/orders", name="archived")


def names(router):
    @router.view(
        ORDER, into=Key("SALES#{name}", "TOTAL"), lookup={"customer": Lookup(Key("CUSTOMER#{customer_id}", "P"))}
    )
    def sales(order, customer):
        return Row(name=customer["name"], total=Sum(order["total"]))


@pytest.fixture
def template_of(monkeypatch):
    def made(app, elsewhere, *, tables=None):
        module = ModuleType("far_handlers")
        for name in ("lambda_handler", "jobs_handler", "verify_handler"):
            setattr(module, name, getattr(app, name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        given = {"main": ("orders", STREAM)} if tables is None else tables
        sources = {table.name for table in Deployment(app, module).sources}
        existing = {
            name: existing_table(name, real, stream, None, is_source=name in sources)
            for name, (real, stream) in given.items()
        }
        return SamTemplate(Deployment(app, module), existing=existing, elsewhere=elsewhere)

    return made


def wrong(app, template):
    return [str(each) for each in check_template(app, "far_handlers", TemplateFile(template.content))]


ALL_BY_ROLE = OtherAccounts(OWN, Settings(role=ROLE))


# The evaluator of both sides: AWS allows a call to another account only if both do.


class Evaluator:
    """Evaluates calls of a function's role, by the template and by the documents of the other accounts."""

    def __init__(self, template, stack=STACK):
        self.template = template
        self.documents = Grants(template.tables, stack).documents()
        self.functions = {each.name: each for each in template.functions}

    def own(self, function, action, resource, account):
        """Whether the function's own policy allows a call of a resource in an account."""
        file = TemplateFile(self.template.content)
        (policy,) = file.resources[f"{function}Role"].properties["Policies"]
        context = {"aws:ResourceAccount": account}
        return allows(resolved(policy["PolicyDocument"]), action, resource, context)

    def shared(self, function, action, resource, account, stack=STACK):
        """Whether the policy of a resource in another account allows it to the function's role."""
        principal = f"arn:aws:iam::{OWN}:role/{stack}-{function}Role-1A2B3C4D5E6F"
        kinds = self.documents.get(account, {})
        policies = [
            each for kind in ("streams", "tables", "buckets", "queues") for each in kinds.get(kind, {}).values()
        ]
        return any(allows(each, action, resource, {"aws:PrincipalArn": principal}, principal) for each in policies)

    def may(self, function, action, resource, account, **more):
        return self.own(function, action, resource, account) and self.shared(
            function, action, resource, account, **more
        )

    def may_by_role(self, function, action, resource, role, stack=STACK):
        principal = f"arn:aws:iam::{OWN}:role/{stack}-{function}Role-1A2B3C4D5E6F"
        documents = self.documents[role.split(":")[4]]["roles"][role]
        trust = documents["AssumeRolePolicyDocument"]
        assumes = allows(trust, "sts:AssumeRole", None, {"aws:PrincipalArn": principal}, principal)
        own = self.own(function, "sts:AssumeRole", role, OTHER)
        return own and assumes and allows(documents["PolicyDocument"], action, resource, {})


def allows(document, action, resource, context, principal=None):
    statements = [each for each in document["Statement"] if "Action" in each]
    return any(
        each["Effect"] == "Allow"
        and action in several(each["Action"])
        and (resource is None or any(fnmatchcase(resource, one) for one in several(each["Resource"])))
        and (principal is None or each["Principal"] == {"AWS": f"arn:aws:iam::{principal.split(':')[4]}:root"})
        and all(
            any(fnmatchcase(context.get(key, ""), pattern) for pattern in several(patterns))
            for keys in each.get("Condition", {}).values()
            for key, patterns in keys.items()
        )
        for each in statements
    )


def several(value):
    return value if isinstance(value, list) else [value]


def resolved(value):
    """A value of the template in account OWN and region eu-west-1."""
    if isinstance(value, dict) and len(value) == 1:
        ((kind, given),) = value.items()
        if kind == "Fn::Sub":
            known = {"AWS::Partition": "aws", "AWS::Region": "eu-west-1", "AWS::AccountId": OWN}
            return re.sub(r"\$\{([^}]+)\}", lambda found: known.get(found[1], found[1]), given)
        if kind in ("Fn::GetAtt", "Ref", "Fn::If"):
            return f"own:{json.dumps(given)}" if kind != "Fn::If" else resolved(given[1])
    if isinstance(value, dict):
        return {name: resolved(each) for name, each in value.items()}
    return [resolved(each) for each in value] if isinstance(value, list) else value


TABLE = f"arn:aws:dynamodb:eu-west-1:{OTHER}:table/orders"
STATE = f"arn:aws:dynamodb:eu-west-1:{OTHER}:table/shop-state"


def test_rows_and_state_in_another_account_are_written_by_its_role_and_the_stream_is_read_by_the_own_one(template_of):
    app = application()
    template = template_of(app, ALL_BY_ROLE)
    evaluator = Evaluator(template)
    for action in ("dynamodb:UpdateItem", "dynamodb:DeleteItem"):
        assert evaluator.may_by_role("Projector", action, TABLE, ROLE)
    assert evaluator.may_by_role("Projector", "dynamodb:PutItem", STATE, ROLE)
    assert evaluator.may_by_role("Verifier", "dynamodb:Scan", TABLE, ROLE)
    for action in ("DescribeStream", "GetRecords", "GetShardIterator"):
        assert evaluator.may("Projector", f"dynamodb:{action}", STREAM, OTHER)
    assert evaluator.own("Projector", "dynamodb:ListStreams", STREAM, OTHER)
    assert not evaluator.own("Projector", "dynamodb:UpdateItem", TABLE, OTHER)
    assert "\n".join(wrong(app, template)) == ""


def test_neither_a_stranger_nor_another_stack_is_granted_anything(template_of):
    evaluator = Evaluator(template_of(application(), ALL_BY_ROLE))
    assert not evaluator.may("Projector", "dynamodb:GetRecords", STREAM, OTHER, stack="other")
    assert not evaluator.may_by_role("Projector", "dynamodb:UpdateItem", TABLE, ROLE, stack="other")
    assert not evaluator.shared("Verifier", "dynamodb:GetRecords", STREAM, OTHER)
    assert not evaluator.may_by_role("Projector", "dynamodb:CreateTable", TABLE, ROLE)


def test_one_side_alone_does_not_allow_a_call(template_of):
    evaluator = Evaluator(template_of(application(), ALL_BY_ROLE))
    streams = evaluator.documents[OTHER].pop("streams")
    assert not evaluator.may("Projector", "dynamodb:GetRecords", STREAM, OTHER)
    evaluator.documents[OTHER]["streams"] = streams
    assert evaluator.may("Projector", "dynamodb:GetRecords", STREAM, OTHER)
    template = template_of(application(), OtherAccounts(OWN, Settings(role=ROLE)))
    template.content["Resources"]["ProjectorRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"] = []
    assert not Evaluator(template).may("Projector", "dynamodb:GetRecords", STREAM, OTHER)


def test_a_template_has_neither_table_nor_state_nor_their_alarms_where_a_role_uses_them(template_of):
    resources = template_of(application(), ALL_BY_ROLE).content["Resources"]
    assert [name for name, each in resources.items() if each["Type"] == "AWS::DynamoDB::Table"] == []
    variables = resources["Projector"]["Properties"]["Environment"]["Variables"]
    assert (variables["STREAMFOLD_ROLE"], variables["STREAMFOLD_STATE_TABLE"]) == (ROLE, "shop-state")
    read = [each["Properties"].get("MetricName") for each in resources.values() if "Alarm" in each["Type"]]
    assert "ConsumedWriteCapacityUnits" not in json.dumps(resources)
    assert "WriteThrottleEvents" not in read
    alone = resources["ProjectorStandsStill"]["Properties"]
    assert (alone["MetricName"], alone["TreatMissingData"]) == ("PolledEventCount", "breaching")


def test_a_stream_alone_of_another_account_needs_no_role(template_of):
    router = Router()
    router.copy(Key("ORDER#{order_id}", "METADATA", Table("orders")), to=Table("copies"), name="copied")
    app = App("shop", routers=[router])
    template = template_of(app, OtherAccounts(OWN), tables={"orders": ("orders", STREAM)})
    evaluator = Evaluator(template)
    assert evaluator.may("Projector", "dynamodb:GetRecords", STREAM, OTHER)
    assert evaluator.may("Projector", "dynamodb:DescribeTable", TABLE, OTHER)  # for the table's id
    assert evaluator.documents.keys() == {OTHER}
    assert evaluator.documents[OTHER].keys() == {"streams", "tables"}
    assert "\n".join(wrong(app, template)) == ""


def test_items_that_are_compared_with_the_state_are_read_by_a_role(template_of):
    app = application(source=Table("orders"))
    tables = {"orders": ("orders", STREAM)}
    with pytest.raises(SettingsError, match=r"Verifier uses table 'orders' of account 222222222222.*--assume orders="):
        template_of(app, OtherAccounts(OWN), tables=tables)
    template = template_of(app, OtherAccounts(OWN, Settings(roles={"orders": ROLE})), tables=tables)
    evaluator = Evaluator(template)
    assert evaluator.may("Projector", "dynamodb:GetRecords", STREAM, OTHER)
    assert evaluator.may_by_role("Verifier", "dynamodb:Scan", TABLE, ROLE)
    assert not evaluator.may_by_role("Projector", "dynamodb:UpdateItem", TABLE, ROLE)
    assert "\n".join(wrong(app, template)) == ""


def test_copies_of_a_third_account_have_a_role_of_their_own(template_of):
    app = application(more=[copies])
    elsewhere = OtherAccounts(OWN, Settings(role=ROLE, roles={"copies": ROLE_OF_COPIES}))
    template = template_of(app, elsewhere, tables={"main": ("orders", STREAM), "copies": ("kept", None)})
    evaluator = Evaluator(template)
    kept = f"arn:aws:dynamodb:eu-west-1:{THIRD}:table/kept"
    assert evaluator.may_by_role("Projector", "dynamodb:PutItem", kept, ROLE_OF_COPIES)
    assert not evaluator.may_by_role("Projector", "dynamodb:UpdateItem", TABLE, ROLE_OF_COPIES)
    assert not evaluator.may_by_role("Projector", "dynamodb:PutItem", kept, ROLE)
    assert "\n".join(wrong(app, template)) == ""


def test_buckets_and_the_queue_of_another_account_are_granted_on_both_sides(template_of):
    app = application(more=[archives, names])
    buckets = {"failures": SharedBucket("central-failures", THIRD), "archive": SharedBucket("central-archive", THIRD)}
    template = template_of(app, OtherAccounts(OWN, Settings(), buckets, QUEUE), tables={})
    evaluator = Evaluator(template)
    put = "s3:PutObject"
    for name in ("central-failures/aws/lambda/1/2", "central-failures/parked/3", "central-archive/ORDER"):
        assert evaluator.may("Projector", put, f"arn:aws:s3:::{name}", THIRD), name
        assert not evaluator.own("Projector", put, f"arn:aws:s3:::{name}", "444444444444"), "somebody else's by now"
    assert not evaluator.may("Projector", put, "arn:aws:s3:::central-failures/else", THIRD)
    assert evaluator.may("Projector", "sqs:SendMessage", QUEUE, OTHER)
    assert evaluator.may("Spreader", "sqs:ReceiveMessage", QUEUE, OTHER)
    assert not evaluator.may("Verifier", "sqs:SendMessage", QUEUE, OTHER)
    variables = template.content["Resources"]["Projector"]["Properties"]["Environment"]["Variables"]
    assert variables["STREAMFOLD_JOBS"] == f"https://sqs.eu-west-1.amazonaws.com/{OTHER}/segments"
    assert variables["STREAMFOLD_PARK"] == "s3://central-failures/parked"
    assert {"FailureBucket", "ArchiveBucket", "Doorbell"}.isdisjoint(template.content["Resources"])
    assert "\n".join(wrong(app, template)) == ""


@pytest.mark.parametrize(
    ("elsewhere", "tables", "expected"),
    [
        (
            OtherAccounts(OWN),
            None,
            r"Projector uses table 'main' of account 222222222222 \(dynamodb:\w+\).*--assume main=",
        ),
        (OtherAccounts(OWN, Settings(role=ROLE)), {}, "Table 'main' is used by .*: expected --table main=REAL"),
        (
            OtherAccounts(OWN, Settings(roles={"main": ROLE})),
            None,
            "a transaction of DynamoDB takes the tables of one acc",
        ),
        (OtherAccounts(OWN, queue=QUEUE), {}, "expected an application with one group of handlers that open fan-outs"),
    ],
)
def test_what_a_function_cannot_use_is_refused_with_the_option_to_give(template_of, elsewhere, tables, expected):
    with pytest.raises(SettingsError, match=expected):
        template_of(application(), elsewhere, tables=tables)


# Whole batches, each call by both sides.

REAL = {"main": "real-main", "copies": "real-copies"}
FAR_STREAM = STREAM.replace("orders", "real-main")


@pytest.fixture
def calls_by_role(aws, monkeypatch):
    """Clients of moto that note each call, by the role that makes it: (action, name of the table)."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    taken = {}
    made = dynamodb_client.make_client

    def noting(*given, role=None, **more):
        noted = Noted()
        noted.taken, noted.silent = taken.setdefault(role, set()), False
        client = made(*given, role=role, **more)
        client.meta.events.register(
            "before-parameter-build.dynamodb", lambda params, model, **_: noted.call("dynamodb", model.name, params)
        )
        return NotingClient(client, noted)

    for module in ("streamfold.engines.dynamodb_client", "streamfold.lambda_entry.function"):
        monkeypatch.setattr(f"{module}.make_client", noting)
    return taken, made


def real(place):
    return "shop-state" if place.name == "shop-state" else f"real-{place.name}"


def test_every_call_of_batches_over_three_accounts_is_allowed_by_both_sides(template_of, calls_by_role):
    taken, made = calls_by_role
    settings = Settings(
        role=ROLE,
        roles={"copies": ROLE_OF_COPIES},
        tables=REAL,
        observe="off",
        lanes=1,
        jobs="https://sqs.eu-west-1.amazonaws.com/1/jobs",
    )
    app = application(more=[copies, names])
    far, third = made(role=ROLE), made(role=ROLE_OF_COPIES)
    make_table(far, "real-main", {"PK": "S", "SK": "S"})
    make_table(far, "shop-state", {"pk": "S", "sk": "S"})
    make_table(third, "real-copies", {"PK": "S", "SK": "S"})
    customer = {"PK": {"S": "CUSTOMER#1"}, "SK": {"S": "P"}, "name": {"S": "ada"}}
    far.put_item(TableName="real-main", Item=customer)
    context = SimpleNamespace(
        get_remaining_time_in_millis=lambda: 900_000,
        invoked_function_arn=f"arn:aws:lambda:eu-west-1:{OWN}:function:projector",
    )
    order = item("ORDER#1", customer_id="1", total=5)
    changes = [record(None, order, 1), record(order, {**order, "total": 7}, 2), record({**order, "total": 7}, None, 3)]
    function = Function(app, settings._replace(group="main"))
    for each in changes:
        if each is changes[-1]:
            far.put_item(TableName="real-main", Item=changes[1]["dynamodb"]["NewImage"])
            counts = handle_far_verify(app, settings)
            assert counts["verified"] > 0
            assert counts["different"] == 0
        assert function({"Records": [{**each, "eventSourceARN": FAR_STREAM}]}, context) == {"batchItemFailures": []}

    tables = {"main": ("real-main", FAR_STREAM), "copies": ("real-copies", None)}
    evaluator = Evaluator(template_of(app, OtherAccounts(OWN, settings._replace(tables={})), tables=tables))
    assert taken.keys() == {ROLE, ROLE_OF_COPIES}
    for role, calls in taken.items():
        assert calls
        for action, place in calls:
            resource = f"arn:aws:dynamodb:eu-west-1:{role.split(':')[4]}:table/{real(place)}"
            by = [each for each in ("Projector", "Verifier") if evaluator.may_by_role(each, action, resource, role)]
            assert by, (role, action, resource)


def handle_far_verify(app, settings):
    variables = {"STREAMFOLD_ROLE": ROLE, "STREAMFOLD_ROLE_COPIES": ROLE_OF_COPIES, "STREAMFOLD_OBSERVE": "off"}
    variables |= {f"STREAMFOLD_TABLE_{name.upper()}": found for name, found in REAL.items()}
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000, invoked_function_arn=None)
    with patch.dict("os.environ", variables):
        return handle_verify(app, {"sample": 50, "tolerance": 0}, context)


# --check


def test_the_check_names_a_role_that_may_not_be_assumed(template_of):
    app = application()
    template = template_of(app, ALL_BY_ROLE)
    statements = template.content["Resources"]["ProjectorRole"]["Properties"]["Policies"][0]["PolicyDocument"][
        "Statement"
    ]
    statements[:] = [each for each in statements if each.get("Action") != ["sts:AssumeRole"]]
    (text,) = wrong(app, template)
    assert f"sts:AssumeRole on the role {ROLE} is not allowed, and Projector needs it" in text


def test_the_check_names_rights_on_a_table_that_a_role_uses(template_of):
    app = application()
    template = template_of(app, ALL_BY_ROLE)
    statements = template.content["Resources"]["ProjectorRole"]["Properties"]["Policies"][0]["PolicyDocument"][
        "Statement"
    ]
    statements.append({"Effect": "Allow", "Action": ["dynamodb:PutItem"], "Resource": TABLE})
    (text,) = wrong(app, template)
    assert "dynamodb:PutItem" in text
    assert "Projector never does that" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"STREAMFOLD_ROLE": "shop-tables"}, "is no role: expected arn:aws:iam::ACCOUNT:role/NAME"),
        ({"STREAMFOLD_ROLE_MAIN": "own"}, "a transaction of DynamoDB takes the tables of one account"),
        ({"STREAMFOLD_ROLE": {"Fn::ImportValue": "role"}}, "is known to AWS only"),
        ({"STREAMFOLD_ROLE_COPIES": ROLE_OF_COPIES}, "Projector, Verifier name different roles"),
    ],
)
def test_the_check_names_roles_that_do_not_fit(template_of, change, expected):
    app = application()
    template = template_of(app, ALL_BY_ROLE)
    template.content["Resources"]["Projector"]["Properties"]["Environment"]["Variables"] |= change
    assert any(expected in text for text in wrong(app, template))
