"""The lines of ``streamfold doctor``: for each one a deployment in which that one thing is broken."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from streamfold import App, Count, Key, Put, Router, Row, Table
from streamfold.deploy.deployed import Account as Asked
from streamfold.deploy.deployed import LiveFunction, functions_of_stack, queue_arn_url
from streamfold.deploy.diagnosis import BAD, GOOD, UNSEEN, byte_code, settings_fit
from streamfold.deploy.doctor import Doctor
from streamfold.deploy.functions import Deployment
from streamfold.errors import EngineError, RoleRefused, SettingsError
from streamfold.settings import Settings
from tests.helpers.account import UUID, Account

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MAIN = Table("main", ttl="expires")
ORDER = Key("ORDER#{order_id}", "METADATA", MAIN)
CUSTOMER = Key("CUSTOMER#{customer}", "TOTAL", MAIN)


def application():
    """A view that parks, a history that compares both images, and a cascade, which opens fan-outs."""
    router = Router()

    @router.view(ORDER, into=CUSTOMER, on_error="park")
    def orders(order):
        yield Row(customer=order["customer"], orders=Count())

    router.audit(ORDER, name="history")
    router.cascade(ORDER, children=[Key("ORDER#{order_id}", "LINE#{line}", MAIN)])
    return App("shop", routers=[router])


APP = application()


@pytest.fixture
def account():
    return Account(now=NOW)


def lines(account, *names):
    asked = Asked(account.client)
    functions = [LiveFunction(asked, name) for name in names or ("projector", "spreader")]
    return list(Doctor(APP, asked, functions, NOW.timestamp()).lines())


def of(state, found):
    return {(line.subject, line.check) for line in found if line.state == state}


def test_a_right_deployment_has_good_lines_only(account):
    assert {(line.state, str(line)) for line in lines(account) if line.state != GOOD} == set()


def variable(account, name, value, function="projector"):
    account.functions[function]["Environment"]["Variables"][name] = value


def mapping(account, number=0, **changes):
    account.mappings[number].update(changes)


def drop(account, name):
    account.mappings[0].pop(name)


def filtered(account, pattern):
    mapping(account, FilterCriteria={"Filters": [{"Pattern": json.dumps(pattern)}]})


def more_readers(account):
    account.mappings += [{**account.mappings[0], "FunctionArn": "arn:of:another"} for _ in range(2)]


def partial(account, **more):
    entry = {"sources": [], "group": "main", "partial": "2026-02-28T10:00:00+00:00", **more}
    account.manifest["handlers"]["orders"] = entry


def no_dead_letters(account):
    del account.queues["doorbell"]["RedrivePolicy"]


BOTH = "projector spreader"
UPDATE = "aws dynamodb update-table --table-name orders --stream-specification "


def verifies(account):
    """The function of the queue is that of the daily comparison instead."""
    account.mappings.pop()
    account.functions["spreader"]["Handler"] = "handlers.verify_handler"


BROKEN = [
    ("mapping", "spreader", lambda it: it.mappings.pop(), "no event source mapping", "map the table's stream"),
    ("settings", "projector", lambda it: variable(it, "STREAMFOLD_LANES", "0"), "a whole number from 1", "correct"),
    ("settings", "projector", lambda it: variable(it, "STREAMFOLD_GROUP", "x"), "'x' is no group", "expected main"),
    ("settings", "projector", lambda it: variable(it, "STREAMFOLD_TABLE_OTHER", "x"), "names no table", "the variable"),
    ("settings", "spreader", lambda it: variable(it, "STREAMFOLD_HANDLERS_OFF", "x", "spreader"), "'x'", "correct"),
    ("older code", "projector", lambda it: variable(it, "STREAMFOLD_OLDER_CODE", "on"), "is on", "OlderCode=off"),
    (
        "timeout",
        "projector",
        lambda it: it.functions["projector"].update(Timeout=20),
        "in the last 12",
        "to 23 or more",
    ),
    ("epoch", "spreader", lambda it: variable(it, "STREAMFOLD_EPOCH", "2"), "is 0, and", "STREAMFOLD_EPOCH=2 in all"),
    ("epoch", BOTH, lambda it: it.manifest.update(epoch=1), "is 0, and", "STREAMFOLD_EPOCH=1 in all"),
    ("retention", BOTH, lambda it: it.manifest.update(retention_days=90), "is 30, and", "RETENTION_DAYS=90"),
    (
        "parked records",
        "s3://failures/parked",
        lambda it: it.objects.update({"parked/": 3}),
        "3 wait",
        "redrive s3://failures/parked",
    ),
    ("permissions", BOTH, lambda it: it.denied.add("dynamodb:PutItem"), "dynamodb:PutItem on arn:aws:", "grant"),
    ("permissions", "spreader", lambda it: it.denied.add("sqs:ReceiveMessage"), "sqs:ReceiveMessage on", "grant"),
    ("queue", "shop", verifies, "stay open", "as streamfold template"),
    ("mapping", "projector", lambda it: mapping(it, State="Disabled"), "it is Disabled", f"--uuid {UUID} --enabled"),
    (
        "response type",
        "projector",
        lambda it: drop(it, "FunctionResponseTypes"),
        "are lost",
        "[ReportBatchItemFailures]",
    ),
    ("response type", "spreader", lambda it: mapping(it, 1, FunctionResponseTypes=[]), "are lost", "FunctionResponse"),
    ("starting position", "projector", lambda it: mapping(it, StartingPosition="LATEST"), "misses", "TRIM_HORIZON"),
    ("bisect", "projector", lambda it: drop(it, "BisectBatchOnFunctionError"), "given up whole", "true on the mapping"),
    (
        "limits",
        "projector",
        lambda it: mapping(it, MaximumRetryAttempts=-1, MaximumRecordAgeInSeconds=-1),
        "tried for ever",
        "MaximumRetryAttempts: 20",
    ),
    ("failure destination", "projector", lambda it: drop(it, "DestinationConfig"), "are lost", "to a bucket"),
    (
        "mapping settings",
        "projector",
        lambda it: mapping(it, MetricsConfig={"Metrics": []}, TumblingWindowInSeconds=30),
        "TumblingWindowInSeconds is 30: expected none",
        "set TumblingWindowInSeconds and MetricsConfig.Metrics on the mapping",
    ),
    (
        "mapping settings",
        "spreader",
        lambda it: mapping(it, 1, BatchSize=10),
        "BatchSize is 10: expected 1",
        "set BatchSize",
    ),
    (
        "filter",
        "projector",
        lambda it: filtered(it, {"dynamodb": {"Keys": {"PK": {"S": [{"prefix": "CART#"}]}}}}),
        "INSERT of main: ORDER#{order_id} / METADATA",
        "let them through",
    ),
    (
        "filter",
        "projector",
        lambda it: filtered(it, {"eventName": ["INSERT", "MODIFY"]}),
        "it drops REMOVE of main: ORDER#{order_id} / METADATA",
        "backfill",
    ),
    ("readers", "projector", more_readers, "3 mappings read the stream", "one function"),
    (
        "lag",
        "projector",
        lambda it: it.ages_milliseconds.__setitem__(0, 3_600_000.0),
        "3,600 seconds behind",
        "streamfold docs alarms",
    ),
    (
        "failures waiting",
        "projector",
        lambda it: it.objects.update({f"aws/lambda/{UUID}/": 1000}),
        "1000 or more wait",
        f"redrive s3://failures/aws/lambda/{UUID}",
    ),
    (
        "queue visibility",
        "spreader",
        lambda it: it.queues["doorbell"].update(VisibilityTimeout="60"),
        "for 60 seconds",
        "VisibilityTimeout of the queue to 720",
    ),
    (
        "queue settings",
        "spreader",
        lambda it: it.queues["doorbell"].update(SqsManagedSseEnabled="false"),
        "SqsManagedSseEnabled is false: expected true, or a key",
        "set SqsManagedSseEnabled on the queue",
    ),
    ("dead letters", "spreader", no_dead_letters, "no dead-letter queue", "give it one"),
    (
        "dead letters",
        "spreader",
        lambda it: it.queues["dead"].update(ApproximateNumberOfMessages="2"),
        "2 segments",
        "--ring",
    ),
    (
        "stream",
        "orders",
        lambda it: it.streams["orders"].clear(),
        "is off",
        f"{UPDATE}StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES",
    ),
    (
        "stream",
        "orders",
        lambda it: it.streams["orders"].update(StreamViewType="NEW_IMAGE"),
        "view type NEW_IMAGE does not carry",
        "StreamEnabled=false && aws dynamodb wait table-exists --table-name orders && aws dynamodb update-table",
    ),
    ("time to live", "orders", lambda it: it.expiring.update(orders=None), "'expires' has", "AttributeName=expires"),
    (
        "time to live",
        "state",
        lambda it: it.expiring.update(state="other"),
        "on 'other'",
        "=false,AttributeName=other, and an hour later",
    ),
    ("recovery", "orders", lambda it: it.recovered.remove("orders"), "is off", "--table-name orders"),
    ("recovery", "state", lambda it: it.recovered.remove("state"), "is off", "PointInTimeRecoveryEnabled=true"),
    ("partial handlers", "state", partial, "orders since 2026-02-28", "streamfold backfill orders"),
    ("partial handlers", "state", lambda it: it.manifest.update(r=0), "knows no handler", "another state"),
    (
        "one region",
        "state",
        lambda it: it.replicas.update(state=["eu-west-1"]),
        "replicas in eu-west-1",
        "docs regions",
    ),
    ("consistency", "orders", lambda it: it.strong.add("orders"), "neither transactions nor", "docs sources"),
    ("consistency", "state", lambda it: it.strong.add("state"), "neither transactions nor", "docs sources"),
    ("markers", "state", lambda it: it.marker["shop"].update(identity="other"), "another one", "docs adopting"),
    ("markers", "state", lambda it: it.ids.update(state="restored"), "(restored), another one", "docs adopting"),
    ("markers", "state", lambda it: it.ids.update(orders="copied"), "a copy", "docs adopting"),
    (
        "fan-outs",
        "state",
        lambda it: it.fan_outs_started.extend([int(NOW.timestamp()) - 7200, int(NOW.timestamp())]),
        "1 of 2 are open for more than 30 minutes",
        "streamfold docs fan-outs",
    ),
]


@pytest.mark.parametrize(("check", "subject", "breaks", "found", "remedy"), BROKEN)
def test_one_broken_thing_is_one_bad_line_with_its_remedy(account, check, subject, breaks, found, remedy):
    breaks(account)
    lines_found = lines(account)
    assert of(BAD, lines_found) == {(each, check) for each in subject.split()}
    for line in lines_found:
        assert line.state != BAD or (found in line.found and remedy in line.remedy)
    assert of(UNSEEN, lines_found) == set()


def test_a_table_without_a_marker_waits_for_the_first_batch(account):
    account.marker = {}
    assert "none yet" in next(line.found for line in lines(account) if line.check == "markers")


def test_every_line_was_seen_bad(account):
    assert {check for _, check in of(GOOD, lines(account))} == {check for check, *_ in BROKEN}


LOOKS = {
    "list_event_source_mappings": {"mapping", "queue"},
    "describe_table": {"stream", "permissions", "consistency", "one region", "markers"},
    "describe_time_to_live": {"time to live"},
    "describe_continuous_backups": {"recovery"},
    "get_item": {"epoch", "retention", "filter", "partial handlers", "markers"},
    "query": {"fan-outs"},
    "get_queue_attributes": {"queue settings", "queue visibility", "dead letters"},
    "list_objects_v2": {"parked records", "failures waiting"},
    "simulate_principal_policy": {"permissions"},
    "get_metric_statistics": {"lag"},
}
"""By operation: the checks that cannot look without it."""


@pytest.mark.parametrize(("operation", "checks"), LOOKS.items())
def test_a_refused_permission_is_not_allowed_to_look_and_never_good(account, operation, checks):
    account.refused.add(operation)
    found = lines(account)
    assert {check for _, check in of(UNSEEN, found)} == checks
    assert not {check for _, check in of(GOOD, found)} & checks
    assert of(BAD, found) == set()


def test_a_function_that_nobody_may_describe_has_no_good_line(account):
    account.refused.add("get_function_configuration")
    found = lines(account, "projector")
    assert of(BAD, found) == set()
    assert {check for _, check in of(GOOD, found)} <= {"mapping"}
    assert ("projector", "settings") in of(UNSEEN, found)


def test_every_look_of_a_deployment_is_among_those_that_may_be_refused(account):
    lines(account)
    assert set(account.asked) == {*LOOKS, "get_function_configuration"}


def test_nothing_but_reads_is_asked(account):
    lines(account)
    assert all(name.startswith(("describe_", "list_", "get_", "query", "simulate_")) for name in account.asked)


def test_a_table_that_does_not_exist_is_bad(account):
    account.absent.add("describe_time_to_live")
    found = lines(account)
    assert of(BAD, found) == {("orders", "time to live"), ("state", "time to live")}


@pytest.mark.parametrize("member", ["Environment", "FilterCriteriaError"])
def test_what_a_key_of_its_own_encrypts_is_not_allowed_to_look(account, member):
    error = {"ErrorCode": "AccessDeniedException", "Message": "the key is not to be used"}
    if member == "Environment":
        account.functions["projector"]["Environment"] = {"Error": error}
    else:
        mapping(account, FilterCriteriaError=error)
    found = lines(account)
    (line,) = [each for each in found if each.check in ("settings", "filter") and each.state == UNSEEN]
    assert line.found == "kms:Decrypt is not permitted"
    assert of(BAD, found) == set()


def test_no_key_and_no_message_of_a_refusal_is_in_a_line(account):
    account.objects = dict.fromkeys(account.objects, 5)
    account.refused.add("query")
    assert "secret" not in " ".join(map(str, lines(account)))


def test_a_handler_of_the_manifest_that_this_code_lacks_is_wanted_in_the_filter(account):
    filtered(account, {"dynamodb": {"Keys": {"PK": {"S": [{"prefix": "ORDER#"}]}}}})
    assert of(BAD, lines(account)) == set()
    account.manifest["handlers"]["carts"] = {"sources": ["main: CART#{cart} / X"], "group": "main"}
    (line,) = [each for each in lines(account) if each.state == BAD]
    assert (line.check, "INSERT of main: CART#{cart} / X" in line.found) == ("filter", True)


def test_a_function_that_a_schedule_calls_needs_no_mapping(account):
    verifies(account)
    assert of(BAD, lines(account)) == {("shop", "queue")}


def test_a_retired_handler_may_be_partial(account):
    partial(account, retired="2026-02-28T10:00:00+00:00")
    assert of(BAD, lines(account)) == set()


def test_a_function_that_reads_kinesis_needs_no_stream_of_the_table(account):
    mapping(account, EventSourceArn="arn:aws:kinesis:us-east-1:123456789012:stream/changes")
    account.streams["orders"].clear()
    assert of(BAD, lines(account)) == set()


def test_the_functions_of_a_stack_are_those_with_our_variables(account):
    account.functions["other"] = {"FunctionName": "other", "Environment": {"Variables": {"X": "1"}}}
    account.resources += [("AWS::Lambda::Function", "other"), ("AWS::DynamoDB::Table", "orders")]
    found = functions_of_stack(Asked(account.client), "shop")
    assert [each.name for each in found] == ["projector", "spreader"]


def test_a_stack_without_our_functions_is_refused_with_the_names_that_it_has(account):
    account.resources = [("AWS::Lambda::Function", "other")]
    account.functions["other"] = {"FunctionName": "other"}
    with pytest.raises(SettingsError, match=r"--stack 'shop' has no function with a STREAMFOLD_\* .* among: other"):
        functions_of_stack(Asked(account.client), "shop")


def test_a_stack_that_nobody_may_list_is_refused_with_the_other_way(account):
    account.refused.add("list_stack_resources")
    with pytest.raises(SettingsError, match="cloudformation:ListStackResources: name the functions"):
        functions_of_stack(Asked(account.client), "shop")


def test_another_error_of_a_service_ends_the_look(account):
    asked = Asked(account.client)
    account.answer = lambda stub, operation, params: stub.add_client_error(operation, "Throttling", "slow")
    with pytest.raises(EngineError, match="cloudformation refused list_stack_resources with Throttling"):
        functions_of_stack(asked, "shop")


@pytest.mark.parametrize(
    ("arn", "url"),
    [
        ("arn:aws:sqs:eu-west-1:111122223333:q", "https://sqs.eu-west-1.amazonaws.com/111122223333/q"),
        ("arn:aws-us-gov:sqs:us-gov-west-1:1:q", "https://sqs.us-gov-west-1.amazonaws.com/1/q"),
        ("arn:aws-cn:sqs:cn-north-1:1:q", "https://sqs.cn-north-1.amazonaws.com.cn/1/q"),
        ("arn:aws-eusc:sqs:eusc-de-east-1:1:q", "https://sqs.eusc-de-east-1.amazonaws.eu/1/q"),
        ("arn:aws-iso-b:sqs:us-isob-east-1:1:q", "https://sqs.us-isob-east-1.sc2s.sgov.gov/1/q"),
        ("arn:aws-new:sqs:new-east-1:1:q", "https://sqs.new-east-1.amazonaws.com/1/q"),
    ],
)
def test_a_queue_is_asked_in_its_partition(arn, url):
    assert queue_arn_url(arn) == url


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov", "aws-eusc"])
def test_failures_are_counted_in_a_bucket_of_any_partition(account, partition):
    mapping(account, DestinationConfig={"OnFailure": {"Destination": f"arn:{partition}:s3:::failures"}})
    assert of(BAD, lines(account)) == set()
    account.objects[f"aws/lambda/{UUID}/"] = 2
    (line,) = [each for each in lines(account) if each.state == BAD]
    assert (line.check, f"s3://failures/aws/lambda/{UUID}" in line.remedy) == ("failures waiting", True)


def test_permissions_are_simulated_in_the_partition_of_the_role(account):
    account.functions["projector"]["Role"] = "arn:aws-cn:iam::123456789012:role/projector"
    account.denied.add("s3:PutObject")
    (line,) = [each for each in lines(account, "projector") if each.check == "permissions"]
    assert "s3:PutObject on arn:aws-cn:s3:::failures/parked/x" in line.found


def lines_of(account, app):
    asked = Asked(account.client)
    return list(Doctor(app, asked, [LiveFunction(asked, "projector")], NOW.timestamp()).lines())


def writing_elsewhere():
    """An application whose handler puts rows into a table that nobody reads."""
    router = Router()

    @router.on(ORDER, into=Key("SEEN#{order_id}", "ORDER", Table("rows")), on_error="park")
    def seen(change):
        return Put(order_id=change.new["order_id"])

    return App("shop", routers=[router])


def test_the_printed_role_of_a_handler_that_writes_to_another_table_is_good(account):
    app = writing_elsewhere()
    account.streams["rows"], account.ids["rows"], account.marker = {}, "r-1", {}
    account.recovered.add("rows")
    printed = Deployment(app, "handlers").permissions(Deployment(app, "handlers").functions[0])
    granted = {action for action, _ in printed}
    of_rows = {action for action, place in printed if place == ("table", "rows")}
    simulate = account.simulate_principal_policy

    def as_printed(PolicySourceArn, ActionNames, ResourceArns):  # noqa: N803 - boto3's
        account.denied = set(ActionNames) - (of_rows if ResourceArns[0].endswith("/rows") else granted)
        return simulate(PolicySourceArn, ActionNames, ResourceArns)

    account.simulate_principal_policy = as_printed
    assert of(BAD, lines_of(account, app)) == set()
    of_rows.clear()
    assert of(BAD, lines_of(account, app)) == {("projector", "permissions")}


def test_a_reader_of_a_group_that_does_not_read_the_table_is_not_expected(account):
    router = Router()
    for group, table in (("main", "main"), ("late", "main"), ("other", "events")):
        order = Key("ORDER#{order_id}", "METADATA", Table(table))
        router.cascade(
            order, children=[Key("ORDER#{order_id}", f"{group}#{{line}}", order.table)], name=group, group=group
        )
    account.streams["events"] = account.streams["orders"]
    account.ids["events"] = "e-1"
    account.recovered.add("events")
    more_readers(account)
    found = lines_of(account, App("shop", routers=[router]))
    assert [line.state for line in found if line.check == "readers"] == [BAD]


def test_a_stream_that_is_off_gets_the_view_type_that_the_table_declares(account):
    router = Router()
    main = Table("main", view="KEYS_ONLY")
    router.cascade(Key("ORDER#{id}", "METADATA", main), children=[Key("ORDER#{id}", "LINE#{line}", main)])
    account.streams["orders"].clear()
    (line,) = [each for each in lines_of(account, App("shop", routers=[router])) if each.check == "stream"]
    assert (line.state, "StreamViewType=KEYS_ONLY" in line.remedy) == (BAD, True)


# Without AWS.


def test_settings_that_fit_are_good():
    assert settings_fit(APP, Settings.from_environment({"STREAMFOLD_PARK": "s3://failures/parked"})).state == GOOD


def test_a_handler_that_parks_without_a_location_is_a_wrong_setting():
    with pytest.raises(SettingsError, match='has on_error="park", but the function has no parking location'):
        settings_fit(APP, Settings())


@pytest.mark.parametrize(
    ("files", "state", "found"),
    [
        ([], GOOD, "no byte code: the function starts slower"),
        (["a.cpython-313.pyc"], GOOD, "of python3.13"),
        (["a.cpython-311.pyc"], BAD, "of python3.11, which python3.13 cannot use"),
        (["a.cpython-313.pyc", "b.cpython-312.opt-1.pyc"], BAD, "of python3.12, which"),
    ],
)
def test_byte_code_of_another_python_is_bad(tmp_path, files, state, found):
    folder = tmp_path / "package" / "__pycache__"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).touch()
    finding = byte_code(tmp_path, "python3.13")
    assert (finding.state, found in finding.found) == (state, True)


def test_a_build_that_is_not_there_is_bad():
    assert byte_code(Path("no-such-build"), "python3.13").state == BAD


# --- accounts ---------------------------------------------------------------------------------------------------------

ROLE = "arn:aws:iam::222222222222:role/shop-tables"
FAR = "arn:aws:dynamodb:us-east-1:222222222222:table/orders/stream/2026-03-01T09:00:00.000"


@pytest.fixture
def over_two_accounts(account):
    """State and rows are in another account, whose stream the function reads."""
    account.others[ROLE] = Account(now=NOW)
    for name in account.functions:
        variable(account, "STREAMFOLD_ROLE", ROLE, name)
    mapping(account, EventSourceArn=FAR)
    account.refused |= {"describe_table", "get_item", "describe_time_to_live", "query"}  # its own account has no tables
    return account


def test_state_and_tables_of_another_account_are_looked_at_by_its_role(over_two_accounts):
    found = lines(over_two_accounts)
    assert {str(line) for line in found if line.state != GOOD} == set()
    (line,) = [line for line in found if line.check == "account"]
    assert line.found == f"account 222222222222, by {ROLE}"


def test_a_function_that_may_not_assume_the_role_is_found(over_two_accounts):
    over_two_accounts.denied = {"sts:AssumeRole"}
    found = {line.subject: line.found for line in lines(over_two_accounts) if line.state == BAD}
    assert found == dict.fromkeys(("projector", "spreader"), f"its role may not sts:AssumeRole on {ROLE}")


def test_what_is_wrong_in_the_other_account_is_found_there(over_two_accounts):
    over_two_accounts.others[ROLE].recovered.clear()
    assert of(BAD, lines(over_two_accounts)) == {("orders", "recovery"), ("state", "recovery")}


def test_who_may_not_assume_the_role_does_not_look_and_no_line_is_good(over_two_accounts):
    class Refused:
        def __getattr__(self, operation):
            raise RoleRefused("refused")

    asked = Asked(lambda service, role=None: Refused() if role else over_two_accounts.client(service))
    found = list(Doctor(APP, asked, [LiveFunction(asked, "projector")], NOW.timestamp()).lines())
    unseen = [line for line in found if line.state == UNSEEN]
    assert {line.subject for line in unseen} >= {"orders", "state"}
    assert {line.found for line in unseen} == {"sts:AssumeRole is not permitted"}


@pytest.mark.parametrize(
    ("changes", "expected", "remedy"),
    [
        ({"STREAMFOLD_ROLE": None}, "handlers use its table in account 123456789012", "STREAMFOLD_ROLE_MAIN to a role"),
        ({"STREAMFOLD_ROLE": ROLE.replace("222", "333")}, "names arn:aws:iam::333333333333", "name a role of it"),
        ({"STREAMFOLD_TABLE_MAIN": None}, "records of another account are refused", "STREAMFOLD_TABLE_MAIN=orders"),
    ],
)
def test_a_stream_of_another_account_that_cannot_be_worked_with_is_bad(over_two_accounts, changes, expected, remedy):
    variables = over_two_accounts.functions["projector"]["Environment"]["Variables"]
    over_two_accounts.others[ROLE.replace("222", "333")] = Account(now=NOW)
    for name, value in changes.items():
        variables.pop(name)
        variables |= {} if value is None else {name: value}
    over_two_accounts.others[ROLE].absent = {"describe_table", "describe_time_to_live", "describe_continuous_backups"}
    (line,) = [line for line in lines(over_two_accounts, "projector") if line.check == "account"]
    assert line.state == BAD
    assert expected in line.found
    assert remedy in line.remedy


def test_a_stream_that_lambda_cannot_read_is_bad(over_two_accounts):
    mapping(over_two_accounts, LastProcessingResult="PROBLEM: AccessDeniedException")
    (line,) = [line for line in lines(over_two_accounts, "projector") if line.check == "account"]
    assert (line.state, line.found) == (BAD, "Lambda cannot read the stream")
    assert "streamfold template --grants" in line.remedy


def test_rows_in_another_account_than_the_state_are_bad_settings(over_two_accounts):
    variable(over_two_accounts, "STREAMFOLD_ROLE_MAIN", "own")
    (line,) = [line for line in lines(over_two_accounts, "projector") if line.check == "settings"]
    assert line.state == BAD
    assert "a transaction of DynamoDB takes the tables of one account" in line.found


@pytest.mark.parametrize(
    ("reference", "action", "arn"),
    [
        (
            "secretsmanager:shop/key",
            "secretsmanager:GetSecretValue",
            "secretsmanager:eu-west-1:123456789012:secret:shop/key-",
        ),
        ("ssm:/shop/key", "ssm:GetParameter", "ssm:eu-west-1:123456789012:parameter/shop/key"),
        ("secretsmanager:arn:aws:secretsmanager:eu-west-1:1:secret:k-x", "secretsmanager:GetSecretValue", "secret:k-x"),
    ],
)
def test_the_secret_of_a_setting_has_to_be_readable(account, reference, action, arn):
    router = Router()
    router.audit(ORDER)
    app = App("shop", routers=[router])
    account.functions["projector"]["FunctionArn"] = "arn:aws:lambda:eu-west-1:123456789012:function:projector"
    account.functions["projector"]["Environment"]["Variables"]["STREAMFOLD_AUDIT_KEY"] = reference
    assert ("projector", "permissions") not in of(BAD, lines_of(account, app))
    account.denied.add(action)
    (line,) = [each for each in lines_of(account, app) if each.check == "permissions"]
    assert (line.state, f"{action} on arn:aws:" in line.found, arn in line.found) == (BAD, True, True)
