"""The template: what keeps data, what hears of failures, and that the function may do what the engine does, no more."""

import importlib
import json
import re
from typing import ClassVar

import pytest

from handlers import app
from streamfold import App, Key, Router, Table
from streamfold.derivations.search.opensearch import OpenSearchIndex
from streamfold.derivations.search.sink import VISIBLE, Action
from streamfold.engines import Counter, DynamoEngine, Engine, Entries, MemoryEngine
from streamfold.keys.table import MAIN
from streamfold.lambda_entry.queue import AGE_METRIC, RING, STILL_SECONDS
from streamfold.lambda_entry.telemetry import NAMESPACE, WARNINGS
from streamfold.lifecycle.verify import LOOKS_MAX, SPARE_SECONDS, AskedSample
from streamfold.routes.route import ROWS_LOST
from streamfold.settings import TABLE_PREFIX, Settings, environment_name
from streamfold.settings.limits import CALL_SECONDS_MAX, SECONDS_A_DAY
from streamfold.settings.readers import RETENTION_DAYS_MIN
from streamfold.writes import guarded as writes
from tests.helpers.doorbells import Clock, body, opened, opened_by_a_follow, queue_function
from tests.helpers.feed_histories import small
from tests.helpers.template import ROOT, kinesis_template, load_template, properties, time_to_live_differences

ROW, STATE = ("main", "ORDER#1", "TOTAL"), writes.StateKey("shop", "ORDER#1")
WRITES = (
    writes.PutRow(ROW, {"status": "paid"}),
    writes.DeleteRow(ROW),
    writes.AddRow(ROW, {"total": 1}, 1),
    writes.GuardedPut(ROW, {"at": "now"}, "1"),
    writes.LedgerWrite(STATE, (writes.HandlerContribution("order_total", "1", "a", ""),), None, 1, expires=False),
    writes.Claim(STATE),
    writes.PutState(STATE, "a"),
    writes.DeleteState(STATE),
    writes.RecomputedRow(ROW, "stamp", {"best": 9}),
    writes.AbsentSource(ROW),
    writes.DeleteSource(ROW, {"quantity": {"N": "1"}}, "1"),
    writes.SwapState(STATE, {"done": True}, 0),
    writes.PutPostRow(ROW, {"text": "hello"}, ("1", "1"), 1),
    writes.PutStoredCopy(STATE, {"s": "a"}, "1", 1),
)
READS = ("read_state", "read_rows", "read_entries")
SEARCH_WRITES = (writes.CounterWrite(STATE, 1, added=frozenset(["a"]), expires=False),)
OF_SEARCH = {"read_sources", "count_up", *map(type, SEARCH_WRITES)}
"""What only a function of search asks of an engine."""
OF_REPAIR = {writes.CorrectRow}
"""What only commands that correct rows ask of an engine."""
FUNCTIONS = ("Projector", "Searcher")
"""Those that read the table's stream."""
SPREADER = "Spreader"
ALL = (*FUNCTIONS, SPREADER)
COMMANDS_ONLY = {"scan", "read_source", "items", "state_items", "close"}
"""What commands ask of an engine, and the function does not."""
OF_THE_STORE = {"is_local", "own_stream", "by_prefix", "durable"}
"""What a store says of itself, without a request."""
OF_ATTRIBUTES = {writes.UpdateSource}
"""What a function needs only if it derives attributes onto source items; this one does not."""


@pytest.fixture(scope="module")
def template():
    return load_template()


def mapping_of(template, function):
    (event,) = properties(template, function)["Events"].values()
    assert event["Type"] == "DynamoDB"
    return event["Properties"]


def statements_of(template, function):
    policies = properties(template, f"{function}Role")["Policies"]
    return {statement["Sid"]: statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]}


@pytest.fixture(scope="module")
def mapping(template):
    return mapping_of(template, "Projector")


@pytest.fixture(scope="module")
def statements(template):
    return statements_of(template, "Projector")


class Calls:
    """A client that answers every call with nothing, and notes which permission it takes on which table.

    The actions of a transaction need the permissions of their own operations (Developer Guide, transaction-apis-iam),
    a PartiQL statement that of its verb (ql-iam).
    """

    def __init__(self):
        self.needed = set()

    def transact_write_items(self, **call):
        for item in call["TransactItems"]:
            ((kind, arguments),) = item.items()
            self.needed.add((arguments["TableName"], f"dynamodb:{kind}Item"))

    def batch_get_item(self, **call):
        self.needed |= {(table, "dynamodb:BatchGetItem") for table in call["RequestItems"]}
        return {"Responses": {}}

    def batch_execute_statement(self, **call):
        for statement in call["Statements"]:
            verb, table = re.match(r'(\w+) (?:FROM |INTO )?"(\w+)"', statement["Statement"]).groups()
            self.needed.add((table, f"dynamodb:PartiQL{verb.title()}"))
        return {"Responses": [{} for _ in call["Statements"]]}

    def query(self, **call):
        self.needed.add((call["TableName"], "dynamodb:Query"))
        return {"Items": []}

    def put_item(self, **call):
        self.needed.add((call["TableName"], "dynamodb:PutItem"))

    def update_item(self, **call):
        self.needed.add((call["TableName"], "dynamodb:UpdateItem"))
        return {"Attributes": {}}


class Refused(Calls):
    """A client whose statements are refused, so that single calls follow."""

    def batch_execute_statement(self, **call):
        super().batch_execute_statement(**call)
        return {"Responses": [{"Error": {"Code": "DuplicateItem", "Message": ""}} for _ in call["Statements"]]}


def asked(calls):
    """An engine that asks this client."""
    return DynamoEngine(calls, {"main": (MAIN, "rows")}, "state")


@pytest.fixture(scope="module")
def needed():
    """The permissions behind everything that the function can ask of the engine."""
    calls = Calls()
    engine = asked(calls)
    engine.transact(WRITES, 0)
    engine.insert_rows([WRITES[0]])
    for fresh in (True, False):
        engine.put_post_rows([writes.PutPostRow(ROW, {"text": "hello"}, ("1", "1"), 1, fresh=fresh)])
    engine.remove_empty([ROW])
    engine.forget({STATE: {"total": "[]"}})
    engine.read_state([STATE])
    engine.read_rows([ROW])
    engine.read_entries(Entries("entries", 1))
    engine.swap_state(STATE, {}, 0)
    engine.page(MAIN, "ORDER#1", "ITEM#", None, 1)
    return calls.needed


@pytest.fixture(scope="module")
def needed_to_search():
    """The permissions behind everything that the search function can ask of the engine."""
    calls = Refused()
    engine = asked(calls)
    for new in (True, False):
        engine.count_up([Counter(STATE, new=new, expires=True)], 0, 0)
    engine.transact([*SEARCH_WRITES, writes.PutState(STATE, "a root that an index lacks while it is built")], 0)
    engine.read_sources([ROW])
    engine.page(MAIN, "ORDER#1", "ITEM#", None, 1)
    engine.read_state([STATE])
    engine.swap_state(STATE, {}, 0)
    return calls.needed


def test_every_write_and_every_method_of_an_engine_is_looked_at():
    assert {type(write) for write in WRITES} | OF_ATTRIBUTES == set(
        writes.GuardedWrite.__args__
    ) - OF_SEARCH - OF_REPAIR
    methods = {name for name in vars(Engine) if not name.startswith("_")} - OF_SEARCH
    assert (
        methods
        == {"transact", "insert_rows", "put_post_rows", "remove_empty", "forget", *READS, "swap_state", "page"}
        | COMMANDS_ONLY
        | OF_THE_STORE
    )


@pytest.mark.parametrize(
    ("sid", "table", "resource"), [("WriteRows", "rows", "Table"), ("KeepState", "state", "StateTable")]
)
def test_function_may_do_exactly_what_the_engine_does(statements, needed, sid, table, resource):
    assert set(statements[sid]["Action"]) == {action for name, action in needed if name == table}
    assert statements[sid]["Resource"] == {"Fn::GetAtt": [resource, "Arn"]}


@pytest.mark.parametrize(
    ("sid", "table", "resource"), [("ReadItems", "rows", "Table"), ("KeepState", "state", "StateTable")]
)
def test_search_function_may_do_exactly_what_documents_need(template, needed_to_search, sid, table, resource):
    statement = statements_of(template, "Searcher")[sid]
    assert set(statement["Action"]) == {action for name, action in needed_to_search if name == table}
    assert statement["Resource"] == {"Fn::GetAtt": [resource, "Arn"]}


def test_search_function_may_look_at_aliases_and_send_documents_and_asks_no_more_of_the_domain(template):
    class Asked:
        def __init__(self):
            self.calls = set()

        def perform_request(self, method, path, **_):
            self.calls.add((f"es:ESHttp{method.title()}", path))
            alias = {"orders~000001": {"aliases": {"orders": {"filter": VISIBLE}}}}
            return {"items": [{"index": {"status": 201}}]} if path == "/_bulk" else alias

    transport = Asked()
    sink = OpenSearchIndex(transport, "https://search")
    sink.check("orders")
    sink.bulk([Action("orders", "1", 1, b"{}")])
    domain = "arn:${AWS::Partition}:es:${AWS::Region}:${AWS::AccountId}:domain/${SearchDomain}"
    statements = statements_of(template, "Searcher")
    allowed = {
        (statements[sid]["Action"], statements[sid]["Resource"]["Fn::Sub"]) for sid in ("CheckAlias", "SendDocuments")
    }
    assert {(action, domain + path.replace("orders", "*")) for action, path in transport.calls} == allowed


def test_search_function_may_do_nothing_else(template, statements):
    own = statements_of(template, "Searcher")
    same = {"KnowTable", "ReadStream", "KeepFailures", "FindFailureBucket"}
    assert set(own) == {"ReadItems", "KeepState", "CheckAlias", "SendDocuments", "WriteLog", *same}
    assert {sid: own[sid] for sid in same} == {sid: statements[sid] for sid in same}
    assert own["WriteLog"]["Resource"] == {"Fn::GetAtt": ["SearcherLog", "Arn"]}
    assert {statement["Effect"] for statement in own.values()} == {"Allow"}
    assert "*" not in str([statement["Action"] for statement in own.values()])


def test_function_may_ask_which_table_its_records_come_from(statements):
    assert statements["KnowTable"]["Action"] == "dynamodb:DescribeTable"
    assert statements["KnowTable"]["Resource"] == {"Fn::GetAtt": ["Table", "Arn"]}


def test_nothing_is_permitted_beside_the_two_tables_the_stream_the_buckets_the_queue_and_the_log(statements):
    resources = {str(statement["Resource"]) for statement in statements.values()}
    assert resources == {
        str({"Fn::GetAtt": ["Table", "Arn"]}),
        str({"Fn::GetAtt": ["Table", "StreamArn"]}),
        str({"Fn::GetAtt": ["StateTable", "Arn"]}),
        str({"Fn::GetAtt": ["FailureBucket", "Arn"]}),
        str([{"Fn::Sub": f"${{FailureBucket.Arn}}/{prefix}/*"} for prefix in ("parked", "aws/lambda")]),
        str({"Fn::Sub": "${ArchiveBucket.Arn}/*"}),
        str({"Fn::GetAtt": ["Doorbell", "Arn"]}),
        str({"Fn::GetAtt": ["ProjectorLog", "Arn"]}),
    }
    assert "*" not in str([statement["Action"] for statement in statements.values()])
    assert {statement["Effect"] for statement in statements.values()} == {"Allow"}


def test_an_alarm_tells_of_records_that_nearly_match_a_key(template):
    alarm = properties(template, "ProjectorNearMisses")
    assert (alarm["Namespace"], alarm["MetricName"]) == (NAMESPACE, "near_misses")
    assert alarm["Dimensions"] == [{"Name": "service", "Value": app.name}]
    assert (alarm["Threshold"], alarm["ComparisonOperator"]) == (0, "GreaterThanThreshold")
    assert alarm["AlarmActions"] == properties(template, "ProjectorAge")["AlarmActions"]


@pytest.mark.parametrize("function", ALL)
def test_role_is_the_functions_own_so_that_sam_adds_no_policy(template, function):
    assert properties(template, function)["Role"] == {"Fn::GetAtt": [f"{function}Role", "Arn"]}
    assert "ManagedPolicyArns" not in properties(template, f"{function}Role")
    assert "Policies" not in properties(template, function)


def test_mapping_may_read_its_stream_and_leave_what_failed(statements):
    assert set(statements["ReadStream"]["Action"]) == {
        f"dynamodb:{action}" for action in ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
    }
    assert statements["KeepFailures"]["Action"] == "s3:PutObject"
    assert statements["FindFailureBucket"]["Action"] == "s3:ListBucket"


def test_failed_record_fails_alone_and_does_not_stop_its_shard(mapping):
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mapping["BisectBatchOnFunctionError"] is True
    assert 0 < mapping["MaximumRetryAttempts"] <= 10_000
    assert 60 <= mapping["MaximumRecordAgeInSeconds"] < 24 * 60 * 60
    destination = mapping["DestinationConfig"]["OnFailure"]
    assert destination == {"Type": "S3", "Destination": {"Fn::GetAtt": ["FailureBucket", "Arn"]}}


def test_records_reach_the_search_function_as_they_reach_the_other(template, mapping):
    assert mapping_of(template, "Searcher") == mapping


def test_mapping_reads_the_tables_stream_from_its_beginning(template, mapping):
    assert mapping["Stream"] == {"Fn::GetAtt": ["Table", "StreamArn"]}
    assert mapping["StartingPosition"] == "TRIM_HORIZON"
    assert (mapping["BatchSize"], mapping["MaximumBatchingWindowInSeconds"]) == (100, 1)
    assert properties(template, "Table")["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}


@pytest.mark.parametrize("table", ["Table", "StateTable"])
def test_tables_can_be_restored_and_outlive_the_stack(template, table):
    resource = template["Resources"][table]
    assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert resource["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert resource["Properties"]["BillingMode"] == "PAY_PER_REQUEST"


def test_state_table_is_what_the_engine_expects(template):
    state = properties(template, "StateTable")
    assert state["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]
    assert {attribute["AttributeType"] for attribute in state["AttributeDefinitions"]} == {"S"}
    assert state["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert "StreamSpecification" not in state


def test_table_has_the_keys_that_the_application_declares(template):
    names = [element["AttributeName"] for element in properties(template, "Table")["KeySchema"]]
    assert [tuple(names)] == [table.attributes for table in app.tables.values()]


def test_time_to_live_is_by_the_attribute_that_the_application_declares(template):
    assert time_to_live_differences(template, app) == []


@pytest.mark.parametrize(("ttl", "differs"), [(None, False), ("expires", False), ("ends", True), ("EXPIRES", True)])
def test_another_attribute_than_that_of_the_template_is_noticed(template, ttl, differs):
    router = Router()
    router.audit(Key("ORDER#{order_id}", "METADATA", Table("main", ttl=ttl)))
    expected = [f"table 'main' declares ttl={ttl!r}, its resource Table has 'expires'"] if differs else []
    assert time_to_live_differences(template, App("shop", routers=[router])) == expected


def test_time_to_live_that_the_template_does_not_switch_on_is_noticed():
    template = load_template()
    properties(template, "Table")["TimeToLiveSpecification"]["Enabled"] = False
    router = Router()
    router.audit(Key("ORDER#{order_id}", "METADATA", Table("main", ttl="expires")))
    assert len(time_to_live_differences(template, App("shop", routers=[router]))) == 1


@pytest.mark.parametrize("function", ALL)
def test_environment_names_every_table_and_is_understood(template, function):
    variables = properties(template, function)["Environment"]["Variables"]
    assert {name for name in variables if name.startswith(TABLE_PREFIX)} == {
        TABLE_PREFIX + environment_name(name) for name in app.tables
    }
    assert variables["STREAMFOLD_TABLE_MAIN"] == {"Ref": "Table"}
    assert variables["STREAMFOLD_STATE_TABLE"] == {"Ref": "StateTable"}
    given = {name: value if isinstance(value, str) else "https://some/name" for name, value in variables.items()}
    settings = Settings.from_environment({name: given[name] for name in given if name.startswith("STREAMFOLD_")})
    assert (settings.real_name("main"), settings.state_table) == ("https://some/name", "https://some/name")


def test_every_group_of_handlers_runs_in_one_function(template):
    groups = [properties(template, name)["Environment"]["Variables"]["STREAMFOLD_GROUP"] for name in FUNCTIONS]
    assert sorted(groups) == sorted({route.group for route in app.routes})


def test_search_function_sends_documents_to_the_endpoint_as_its_role(template):
    variables = properties(template, "Searcher")["Environment"]["Variables"]
    assert variables["STREAMFOLD_SEARCH"] == {"Ref": "SearchEndpoint"}
    assert variables["STREAMFOLD_SEARCH_SERVICE"] == "es"


def test_what_searches_is_there_only_with_an_endpoint(template):
    (name,) = [name for name, condition in template["Conditions"].items() if "SearchEndpoint" in str(condition)]
    assert template["Parameters"]["SearchEndpoint"]["Default"] == ""
    conditional = {each for each, resource in template["Resources"].items() if resource.get("Condition") == name}
    assert conditional == {each for each in template["Resources"] if each.startswith("Searcher")}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_alarms_tell_of_a_function_that_is_behind_or_stops(template, function):
    age, errors = properties(template, f"{function}Age"), properties(template, f"{function}Errors")
    assert (age["MetricName"], errors["MetricName"]) == ("IteratorAge", "Errors")
    assert age["Threshold"] < 1000 * mapping_of(template, function)["MaximumRecordAgeInSeconds"] / 10
    for alarm in (age, errors):
        assert alarm["Namespace"] == "AWS/Lambda"
        assert alarm["Dimensions"] == [{"Name": "FunctionName", "Value": {"Ref": function}}]
        assert alarm["AlarmActions"] == {"Fn::If": ["Tells", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}


@pytest.mark.parametrize("function", ALL)
def test_parking_place_lies_in_the_bucket_that_the_function_may_write_to(template, function):
    place = properties(template, function)["Environment"]["Variables"]["STREAMFOLD_PARK"]
    assert place == {"Fn::Sub": "s3://${FailureBucket}/parked"}
    granted = statements_of(template, function)["KeepFailures"]["Resource"]
    parked, mapping = ({"Fn::Sub": f"${{FailureBucket.Arn}}/{prefix}/*"} for prefix in ("parked", "aws/lambda"))
    assert granted == (parked if function == SPREADER else [parked, mapping])


def test_removed_items_lie_in_a_bucket_that_the_function_only_adds_to_and_that_outlives_the_stack(template, statements):
    variables = properties(template, "Projector")["Environment"]["Variables"]
    assert variables["STREAMFOLD_ARCHIVE"] == {"Fn::Sub": "s3://${ArchiveBucket}"}
    assert statements["KeepRemovedItems"]["Action"] == "s3:PutObject"
    assert template["Resources"]["ArchiveBucket"]["DeletionPolicy"] == "Retain"
    rules = properties(template, "ArchiveBucket")["LifecycleConfiguration"]["Rules"]
    assert not any("ExpirationInDays" in rule for rule in rules)


@pytest.mark.parametrize("function", ALL)
def test_function_is_found_and_has_a_build_target(template, function):
    resource = template["Resources"][function]
    module, _, name = resource["Properties"]["Handler"].rpartition(".")
    entry = app.jobs_handler if function == SPREADER else app.lambda_handler
    assert getattr(importlib.import_module(module), name) == entry
    assert resource["Metadata"]["BuildMethod"] == "makefile"
    targets = re.findall(r"^(build-[^:]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert f"build-{function}" in " ".join(targets).split()


@pytest.mark.parametrize("function", ALL)
def test_function_has_more_time_than_its_slowest_request(template, function):
    assert Settings().stop_seconds > CALL_SECONDS_MAX
    assert properties(template, function)["Timeout"] >= 2 * Settings().stop_seconds


@pytest.mark.parametrize("name", ["FailureBucket", "ArchiveBucket"])
def test_items_in_buckets_are_private_and_encrypted(template, name):
    bucket = properties(template, name)
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    assert bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    (statement,) = properties(template, f"{name}Policy")["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": False}})


def test_failures_are_kept_shorter_than_claims(template):
    (rule,) = properties(template, "FailureBucket")["LifecycleConfiguration"]["Rules"]
    assert rule["Status"] == "Enabled"
    record_days = 1
    assert rule["ExpirationInDays"] + record_days < RETENTION_DAYS_MIN


@pytest.mark.parametrize("function", ALL)
def test_log_is_kept_for_a_while_and_not_for_ever(template, function):
    assert properties(template, f"{function}Log")["RetentionInDays"] == 30
    assert properties(template, function)["LoggingConfig"] == {"LogGroup": {"Ref": f"{function}Log"}}


# The queue that rings for long fan-outs, and the function behind it.


@pytest.fixture(scope="module")
def spreader(template):
    return statements_of(template, SPREADER)


class Asked(MemoryEngine):
    """An engine that notes which of its methods are called, and which writes a transaction has."""

    asked: ClassVar[set[object]] = set()

    def __getattribute__(self, name):
        if name in vars(Engine):
            Asked.asked.add(name)
        return super().__getattribute__(name)

    def transact(self, writes, expires_at):
        Asked.asked |= set(map(type, writes))
        return super().transact(writes, expires_at)


LANE_WRITES = (
    writes.PutPostRow(ROW, {"text": "hello"}, ("1", "1"), 1),
    writes.PutState(STATE, "a"),
    writes.SwapState(STATE, {"s": "a"}, 0),
    writes.DeleteState(STATE),
    writes.AbsentSource(ROW),
    writes.DeleteSource(ROW, {"quantity": {"N": "1"}}, "1"),
)
LANE_METHODS = {"transact", "put_post_rows", "read_rows", "read_state", "read_entries", "swap_state", "page"}


@pytest.fixture(scope="module")
def needed_to_spread():
    """The permissions behind everything that lanes ask of the engine."""
    calls = Calls()
    engine = asked(calls)
    engine.transact(LANE_WRITES, 0)
    for fresh in (True, False):
        engine.put_post_rows([writes.PutPostRow(ROW, {"text": "hello"}, ("1", "1"), 1, fresh=fresh)])
    engine.read_rows([ROW])
    engine.read_state([STATE])
    engine.read_entries(Entries("entries", 1))
    engine.swap_state(STATE, {}, 0)
    engine.page(MAIN, "ORDER#1", "ITEM#", None, 1)
    return calls.needed


def test_lanes_ask_no_more_of_an_engine_than_is_looked_at():
    Asked.asked.clear()
    for opens in (opened, opened_by_a_follow):
        with small():
            spread_app, engine, run = opens(9)
            engine.__class__ = Asked
            function = queue_function(spread_app, engine)
            bodies = [{"eventSource": "aws:sqs", "messageId": str(each), "body": body(each)} for each in run.queued]
            assert function({"Records": bodies}, Clock()) == {"batchItemFailures": []}
            assert function({"ring": True}, Clock()) == {"batchItemFailures": []}
    assert {each for each in Asked.asked if isinstance(each, str)} - OF_THE_STORE == LANE_METHODS - {"page"}
    assert {each for each in Asked.asked if not isinstance(each, str)} <= set(map(type, LANE_WRITES))


@pytest.mark.parametrize(
    ("sids", "table", "resource"),
    [(["WriteFeeds", "RemoveChildren"], "rows", "Table"), (["KeepState"], "state", "StateTable")],
)
def test_function_of_the_queue_may_do_exactly_what_lanes_need(spreader, needed_to_spread, sids, table, resource):
    granted = [action for sid in sids for action in spreader[sid]["Action"]]
    assert sorted(granted) == sorted({action for name, action in needed_to_spread if name == table})
    assert all(spreader[sid]["Resource"] == {"Fn::GetAtt": [resource, "Arn"]} for sid in sids)


def test_function_of_the_queue_may_do_nothing_else(spreader, statements):
    assert set(spreader) == {"WriteFeeds", "RemoveChildren", "KeepState", "KeepFailures", "Ring", "Answer", "WriteLog"}
    assert spreader["KeepFailures"]["Action"] == statements["KeepFailures"]["Action"]
    assert spreader["Ring"] == statements["Ring"]
    assert spreader["Ring"]["Action"] == "sqs:SendMessage"
    assert {action.partition(":")[2] for action in spreader["Answer"]["Action"]} == {
        "ReceiveMessage",
        "DeleteMessage",
        "GetQueueAttributes",
    }
    for sid in ("Ring", "Answer"):
        assert spreader[sid]["Resource"] == {"Fn::GetAtt": ["Doorbell", "Arn"]}
    assert "*" not in str([statement["Action"] for statement in spreader.values()])
    assert {statement["Effect"] for statement in spreader.values()} == {"Allow"}


def test_both_functions_ring_the_queue_that_calls_one_of_them(template):
    messages = properties(template, SPREADER)["Events"]["Messages"]
    assert messages["Type"] == "SQS"
    assert messages["Properties"]["Queue"] == {"Fn::GetAtt": ["Doorbell", "Arn"]}
    for function in ("Projector", SPREADER):
        variables = properties(template, function)["Environment"]["Variables"]
        assert variables["STREAMFOLD_JOBS"] == {"Ref": "Doorbell"}
        assert variables["STREAMFOLD_GROUP"] == "main"
    assert "FifoQueue" not in properties(template, "Doorbell")


def test_a_lane_has_its_own_invocation_and_so_many_go_on_at_once(template):
    messages = properties(template, SPREADER)["Events"]["Messages"]["Properties"]
    assert messages["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert messages["BatchSize"] == 1
    assert 2 <= messages["ScalingConfig"]["MaximumConcurrency"] <= 1000
    assert properties(template, SPREADER)["RecursiveLoop"] == "Allow"


def test_a_message_is_hidden_for_as_long_as_lambda_asks_for(template):
    timeout = properties(template, SPREADER)["Timeout"]
    assert properties(template, "Doorbell")["VisibilityTimeout"] >= 6 * timeout
    assert timeout > Settings().stop_seconds + CALL_SECONDS_MAX  # or no lane would ever be begun


def test_messages_that_fail_again_and_again_are_kept_aside_and_told(template):
    redrive = properties(template, "Doorbell")["RedrivePolicy"]
    assert redrive["deadLetterTargetArn"] == {"Fn::GetAtt": ["DoorbellFailures", "Arn"]}
    assert redrive["maxReceiveCount"] >= 5
    assert properties(template, "DoorbellFailures")["MessageRetentionPeriod"] == 14 * SECONDS_A_DAY
    alarm = properties(template, "DoorbellFailuresThere")
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": {"Fn::GetAtt": ["DoorbellFailures", "QueueName"]}}]
    assert (alarm["Namespace"], alarm["Threshold"]) == ("AWS/SQS", 0)


@pytest.mark.parametrize("name", ["Doorbell", "DoorbellFailures"])
def test_messages_are_encrypted_at_rest_and_on_their_way(template, name):
    assert properties(template, name)["SqsManagedSseEnabled"] is True
    policy = properties(template, "DoorbellPolicy")
    assert {"Ref": name} in policy["Queues"]
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert {"Fn::GetAtt": [name, "Arn"]} in statement["Resource"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": False}})


def test_the_schedule_rings_for_what_stands_still_and_an_alarm_tells_what_stays_open(template):
    event = properties(template, SPREADER)["Events"]["RingAgain"]
    assert (event["Type"], event["Properties"]["Schedule"]) == ("Schedule", "rate(5 minutes)")
    assert json.loads(event["Properties"]["Input"]) == RING
    assert STILL_SECONDS == 5 * 60
    alarm = properties(template, f"{SPREADER}Age")
    assert (alarm["Namespace"], alarm["MetricName"]) == (NAMESPACE, AGE_METRIC)
    assert alarm["Dimensions"] == [{"Name": "service", "Value": app.name}]
    assert alarm["Threshold"] >= 2 * STILL_SECONDS
    assert alarm["Period"] == STILL_SECONDS


@pytest.mark.parametrize("name", ["SpreaderAge", "SpreaderErrors", "DoorbellFailuresThere"])
def test_alarms_of_the_queue_are_sent_where_the_others_are(template, name):
    assert properties(template, name)["AlarmActions"] == properties(template, "ProjectorAge")["AlarmActions"]


# The function that compares items with the state each day.


def test_scheduled_function_is_found_built_and_has_the_time_that_its_waits_take(template):
    verifier = properties(template, "Verifier")
    module, _, name = verifier["Handler"].rpartition(".")
    assert getattr(importlib.import_module(module), name) == app.verify_handler
    assert re.search(r"^build-Projector .*build-Verifier .*:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    (event,) = verifier["Events"].values()
    asked = AskedSample.of(json.loads(event["Properties"]["Input"]))
    assert verifier["Timeout"] >= 2 * LOOKS_MAX * asked.tolerance_seconds + SPARE_SECONDS


def test_scheduled_function_may_read_both_tables_and_write_none(template):
    statements = statements_of(template, "Verifier")
    assert set(statements) == {"ReadItems", "WriteLog"}
    assert statements["ReadItems"]["Action"] == ["dynamodb:Scan", "dynamodb:BatchGetItem"]
    assert statements["ReadItems"]["Resource"] == [{"Fn::GetAtt": [name, "Arn"]} for name in ("Table", "StateTable")]
    assert statements["WriteLog"]["Resource"] == {"Fn::GetAtt": ["VerifierLog", "Arn"]}
    assert properties(template, "Verifier")["Role"] == {"Fn::GetAtt": ["VerifierRole", "Arn"]}


def test_scheduled_function_knows_both_tables_and_runs_handlers_of_all_groups(template):
    variables = properties(template, "Verifier")["Environment"]["Variables"]
    projector = properties(template, "Projector")["Environment"]["Variables"]
    shared = {"STREAMFOLD_TABLE_MAIN", "STREAMFOLD_STATE_TABLE", "POWERTOOLS_LOG_LEVEL"}
    assert variables == {name: projector[name] for name in shared}


def test_an_alarm_tells_of_rows_that_somebody_removed(template):
    alarm = properties(template, "ProjectorRowsLost")
    assert (alarm["Namespace"], alarm["MetricName"]) == (NAMESPACE, ROWS_LOST)
    assert alarm["Dimensions"] == [{"Name": "service", "Value": app.name}]
    assert (alarm["Statistic"], alarm["Threshold"], alarm["TreatMissingData"]) == ("Sum", 0, "notBreaching")
    assert alarm["AlarmActions"] == properties(template, "ProjectorAge")["AlarmActions"]
    assert ROWS_LOST in WARNINGS
    assert "`ProjectorRowsLost`" in (ROOT / "docs" / "operations.md").read_text("utf-8")


def test_alarms_tell_of_differences_and_of_a_comparison_that_stops(template):
    differences, errors = properties(template, "VerifierDifferences"), properties(template, "VerifierErrors")
    assert (differences["Namespace"], differences["MetricName"]) == (NAMESPACE, "different")
    assert differences["Dimensions"] == [{"Name": "service", "Value": app.name}]
    assert (differences["Threshold"], differences["ComparisonOperator"]) == (0, "GreaterThanThreshold")
    assert errors["Dimensions"] == [{"Name": "FunctionName", "Value": {"Ref": "Verifier"}}]
    for alarm in (differences, errors):
        assert alarm["AlarmActions"] == {"Fn::If": ["Tells", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}


# What docs/sources.md puts on top of it, for a table whose changes go to Kinesis.


@pytest.fixture(scope="module")
def on_kinesis():
    return kinesis_template()


@pytest.fixture(scope="module")
def kinesis_mapping(on_kinesis):
    (event,) = properties(on_kinesis, "Projector")["Events"].values()
    assert event["Type"] == "Kinesis"
    return event["Properties"]


def test_kinesis_gets_changes_of_the_table_in_microseconds(on_kinesis):
    table = properties(on_kinesis, "Table")
    assert table["KinesisStreamSpecification"] == {
        "StreamArn": {"Fn::GetAtt": ["Changes", "Arn"]},
        "ApproximateCreationDateTimePrecision": "MICROSECOND",
    }
    assert table["KeySchema"] == properties(load_template(), "Table")["KeySchema"]


def test_failed_record_of_kinesis_fails_alone_and_does_not_stop_its_shard(mapping, kinesis_mapping, on_kinesis):
    same = mapping.keys() - {"Stream", "MaximumRecordAgeInSeconds"}
    assert {name: kinesis_mapping[name] for name in same} == {name: mapping[name] for name in same}
    assert kinesis_mapping["Stream"] == {"Fn::GetAtt": ["Changes", "Arn"]}
    kept_seconds = properties(on_kinesis, "Changes")["RetentionPeriodHours"] * 60 * 60
    assert kinesis_mapping["MaximumRecordAgeInSeconds"] <= kept_seconds / 2


def test_function_may_read_that_stream_of_kinesis_and_no_other(on_kinesis, statements):
    policies = properties(on_kinesis, "ProjectorRole")["Policies"]
    found = {statement["Sid"]: statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]}
    assert found["ReadStream"]["Resource"] == {"Fn::GetAtt": ["Changes", "Arn"]}
    assert all(action.startswith("kinesis:") for action in found["ReadStream"]["Action"])
    assert {sid: found[sid] for sid in found if sid != "ReadStream"} == {
        sid: statements[sid] for sid in statements if sid != "ReadStream"
    }
