"""Permissions: exactly the calls that functions and people make, and policies of them."""

import json
from contextlib import ExitStack
from functools import partial, wraps

import pytest

import streamfold
from streamfold import Add, Count, Key, Max, Ordered, Put, Row, Table
from streamfold.deploy.permissions import (
    KINESIS_ACTIONS,
    POLICY_CHARACTERS_MAX,
    Permission,
    Place,
    Role,
    permissions,
    policy,
    policy_characters,
)
from streamfold.derivations.calls import named_by
from streamfold.routes.aggregates import Aggregate
from tests.helpers.played_permissions import Played, dying
from tests.helpers.sample_applications import LIFE, SAMPLES, audited, gone, made, order, sums

MAIN, STATE = Place("table", "main"), Place("state")
STREAM, QUEUE, VERIFIER = Role("stream"), Role("queue"), Role("verifier")
LOG = {Permission(f"logs:{action}", Place("log")) for action in ("CreateLogStream", "PutLogEvents")}
BY_LAMBDA = {
    "stream": {
        *(
            Permission(f"dynamodb:{action}", Place("stream", "main"))
            for action in ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
        ),
        Permission("s3:PutObject", Place("failures")),
        Permission("s3:ListBucket", Place("failure bucket")),
        *LOG,
    },
    "queue": {
        *(
            Permission(f"sqs:{action}", Place("queue"))
            for action in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes")
        ),
        *LOG,
    },
    "verifier": LOG,
}
"""What Lambda calls with the role of a function: for its mapping, and for its log (Lambda Developer Guide,
with-ddb-create-package, services-sqs-configure, monitoring-cloudwatchlogs)."""
DELTAS_ON_ROWS = {f"dynamodb:{action}" for action in ("BatchGetItem", "DeleteItem", "ConditionCheckItem")}
QUICK = ("archive", "copy")
"""Samples that take little time, for make test."""
LARGE = ("the examples", "everything")
"""Samples that take a minute; every night."""
FOR_PEOPLE = ("copy", "sums", "unique", "ordered", "feed, kept")
"""Samples on which CI plays the roles of people, which take twice as long as functions; every night has all."""


@pytest.fixture
def played(aws):
    with ExitStack() as stack:
        yield lambda sample: Played(sample.app, stack, **sample.settings)


def of(app, function, **options):
    return permissions(app, function, **options)


def actions(app, function, place):
    return {action for action, own in permissions(app, function) if own == place}


def function_marks(name):
    return [pytest.mark.nightly] if name in LARGE else [] if name in QUICK else [pytest.mark.ci]


def people_marks(name):
    return [] if name in QUICK[:1] else [pytest.mark.ci] if name in FOR_PEOPLE else [pytest.mark.nightly]


@pytest.mark.parametrize("name", [pytest.param(name, marks=function_marks(name)) for name in SAMPLES])
def test_functions_take_what_they_are_granted_and_no_more(played, name):
    sample = SAMPLES[name]
    aws = played(sample)
    aws.play(sample)
    assert {"stream", "verifier"} <= {function.kind for function in aws.taken}
    for function, taken in aws.taken.items():
        assert taken | BY_LAMBDA[function.kind] == permissions(sample.app, function), function


@pytest.mark.parametrize("name", [pytest.param(name, marks=people_marks(name)) for name in SAMPLES])
def test_people_take_what_they_are_granted_and_no_more(played, name):
    sample = SAMPLES[name]
    aws = played(sample)
    aws.people(sample)
    for function in (Role("operate"), Role("read")):
        assert aws.taken[function] == permissions(sample.app, function), function


def test_a_call_that_is_not_granted_and_a_grant_that_is_not_used_are_noticed(played):
    sample = SAMPLES["additions"]
    aws = played(sample)
    aws.write(*LIFE[0])
    aws.settle()
    (taken,) = [taken for function, taken in aws.taken.items() if function.kind == "stream"]
    granted = permissions(made(sums), STREAM)
    assert Permission("dynamodb:UpdateItem", MAIN) in taken & granted
    assert Permission("dynamodb:PartiQLDelete", MAIN) in granted - taken


def test_views_of_sums_query_nothing_but_deltas():
    for function in (QUEUE, VERIFIER):
        assert not {each.action for each in permissions(made(sums), function)} & {"dynamodb:Query", "dynamodb:GetItem"}
    assert actions(made(sums), STREAM, MAIN) == {
        "dynamodb:DescribeTable",
        "dynamodb:UpdateItem",
        "dynamodb:PartiQLDelete",
        *DELTAS_ON_ROWS,
    }


@pytest.mark.parametrize("name", ["index", "unique", "puts", "audit", "copy", "external", "archive", "feed", "search"])
def test_functions_whose_handlers_add_up_nothing_get_no_permission_for_deltas(name):
    app = SAMPLES[name].app
    assert "dynamodb:GetItem" not in actions(app, STREAM, STATE) | actions(app, QUEUE, STATE)


def test_a_group_that_puts_deltas_moves_those_of_all_groups():
    def elsewhere(router):
        @router.view(Key("ORDER#{order_id}", "METADATA"), into=Key("TAG#{tag}", "X", Table("other")), group="other")
        def others(order):
            yield Row(tag="a", orders=Count())

    app = made(sums, elsewhere)
    for group, name in (("main", "other"), ("other", "main")):
        assert actions(app, Role("stream", group), Place("table", name)) >= {"dynamodb:UpdateItem", *DELTAS_ON_ROWS}
    app = made(elsewhere, partial(audited, group="alone"))
    assert actions(app, Role("stream", "alone"), Place("table", "other")) == set()


@pytest.mark.parametrize("name", ["ordered", "ordered by a helper", "newest wins", "unique", "shards"])
def test_rows_that_show_values_in_an_order_are_read_from_their_entries(name):
    assert "dynamodb:Query" in actions(SAMPLES[name].app, STREAM, STATE)


def test_verifier_and_readers_write_nothing():
    reads = {"BatchGetItem", "DescribeTable", "GetItem", "Query", "Scan"}
    for sample in SAMPLES.values():
        for function in (VERIFIER, Role("read")):
            taken = {action for action, place in permissions(sample.app, function) if action.startswith("dynamodb:")}
            assert {action.removeprefix("dynamodb:") for action in taken} <= reads


def test_application_without_fan_outs_has_no_function_of_the_queue():
    assert permissions(made(sums), QUEUE) == frozenset()


def test_stream_of_kinesis_is_read_by_its_own_actions_and_the_table_is_not_asked_for_its_id():
    granted = of(made(audited), STREAM, kinesis=["main"])
    assert {action for action, place in granted if place == Place("stream", "main")} == {
        f"kinesis:{action}" for action in KINESIS_ACTIONS
    }
    assert Permission("dynamodb:DescribeTable", MAIN) not in granted


def test_the_function_of_a_group_marks_the_tables_of_its_own_handlers_and_asks_for_their_ids():
    def elsewhere(router):
        @router.view(Key("ORDER#{order_id}", "METADATA"), into=Key("TAG#{tag}", "X", Table("other")), group="other")
        def others(order):
            yield Row(tag="a", orders=Count())

    app, marks = made(sums, elsewhere), {"dynamodb:BatchGetItem", "dynamodb:UpdateItem", "dynamodb:DescribeTable"}
    for group in ("main", "other"):
        assert marks <= actions(app, Role("stream", group), Place("table", group))
        assert "dynamodb:DescribeTable" in actions(app, Role("stream", group), STATE)
    assert "dynamodb:DescribeTable" not in actions(app, Role("stream", "main"), Place("table", "other"))


def test_a_person_who_retires_a_handler_may_take_it_out_of_the_marker():
    assert {"dynamodb:BatchGetItem", "dynamodb:UpdateItem"} <= actions(SAMPLES["index"].app, Role("operate"), MAIN)


def test_the_function_of_handlers_that_add_nothing_marks_no_table():
    assert "dynamodb:DescribeTable" not in actions(made(audited), STREAM, STATE)


@pytest.mark.parametrize("kind", ["stream", "queue", "verifier", "operate", "read"])
def test_all_who_use_a_table_with_a_key_of_its_own_may_decrypt_it(kind):
    app = SAMPLES["feed"].app
    more = of(app, Role(kind), encrypted=["main"]) - of(app, Role(kind))
    uses = any(place.name == "main" for _, place in of(app, Role(kind)))
    assert more == ({Permission("kms:Decrypt", Place("key", "main"))} if uses else set())
    assert uses or kind == "verifier"


def test_who_uses_no_table_with_a_key_of_its_own_decrypts_none():
    assert of(made(sums), STREAM, encrypted=["other"]) == of(made(sums), STREAM)


def test_one_item_that_differs_is_compared_again_by_a_call_that_the_verifier_may_make(played):
    """An attempt died before it cleared its pending work, so that one item is suspected, and no other."""
    sample = SAMPLES["attributes of the item itself"]
    aws = played(sample)
    aws.write(order())
    aws.settle()
    with dying():
        aws.write(gone(order()))
        aws.settle()
    aws.verify()
    assert aws.taken[VERIFIER] <= permissions(sample.app, VERIFIER)


def test_policy_has_a_statement_for_each_place():
    arn = {"Fn::GetAtt": ["Table", "Arn"]}
    granted = [Permission("dynamodb:Query", MAIN), Permission("dynamodb:PutItem", MAIN), Permission("s3:Get", STATE)]
    assert policy(granted, {MAIN: arn, STATE: "arn:state"}) == {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "State", "Effect": "Allow", "Action": ["s3:Get"], "Resource": "arn:state"},
            {
                "Sid": "TableMain",
                "Effect": "Allow",
                "Action": ["dynamodb:PutItem", "dynamodb:Query"],
                "Resource": arn,
            },
        ],
    }


def test_statements_of_tables_with_names_alike_are_told_apart():
    tables = [Permission("dynamodb:Scan", Place("table", name)) for name in ("a-b", "aB")]
    statements = policy(tables, lambda place: f"arn:{place.name}")["Statement"]
    assert [each["Sid"] for each in statements] == ["TableAB", "TableAB2"]


def test_place_without_a_resource_is_refused():
    with pytest.raises(KeyError):
        policy([Permission("dynamodb:Scan", MAIN)], {})


def test_policies_of_every_sample_are_within_the_limit_of_inline_policies():
    arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/" + "t" * 100
    for sample in SAMPLES.values():
        for kind in ("stream", "queue", "verifier", "operate", "read"):
            document = policy(permissions(sample.app, Role(kind)), lambda _: arn)
            assert policy_characters(document) < POLICY_CHARACTERS_MAX
            assert policy_characters(document) == len(json.dumps(document, separators=(",", ":")))


# What the code of a handler names.

AGGREGATES = {"greatest": Max}


class Rows:
    def of(self, item):
        return Row(greatest=Max(item["total"]))


class MedianOfPrices(Ordered):
    stored_as = "median_of_prices"

    @staticmethod
    def show(values):
        return sorted(values)[len(values) // 2]

    fold = show


def through_a_module(item):
    return Row(greatest=streamfold.Max(item["total"]))


def through_an_import(item):
    from streamfold import Latest

    return Row(newest=Latest(item["total"], by=1))


def through_a_mapping(item):
    return Row(greatest=AGGREGATES["greatest"](item["total"]))


def through_a_class(item):
    return Rows().of(item)


def by_an_own_aggregate(item):
    return Row(median=MedianOfPrices(item["total"]))


def by_wins(item):
    return Row(status=item["status"], wins=item["total"])


def by_given_options(item):
    return Row(status=item["status"], wins=item["total"])


def in_a_comprehension(item):
    return [Row(greatest=Max(each)) for each in item["totals"]]


def wrapped(handler):
    @wraps(handler)
    def wrapper(item):
        return handler(item)

    return wrapper


@pytest.mark.parametrize(
    "handler",
    [
        through_a_module,
        through_an_import,
        through_a_mapping,
        through_a_class,
        by_an_own_aggregate,
        by_wins,
        by_given_options,
        in_a_comprehension,
        partial(through_a_class),
        wrapped(through_a_class),
        len,
    ],
)
def test_code_that_may_order_values_is_known_by_what_it_names(handler):
    assert named_by(handler).orders


@pytest.mark.parametrize("handler", [lambda item: Row(orders=Count()), lambda item: Row(status=item["status"])])
def test_code_that_names_no_order_orders_nothing(handler):
    assert not named_by(handler).orders


def test_code_names_the_effects_that_it_makes():
    def puts(change):
        yield Put(status=change.new["status"])

    assert (named_by(puts).makes(Put), named_by(puts).makes(Add), named_by(puts).makes(Aggregate)) == (
        True,
        False,
        False,
    )
