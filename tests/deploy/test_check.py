"""``streamfold template --check``: planted mistakes are named with resource and path, and choices are accepted."""

import json
import sys
import time
from collections import Counter
from copy import deepcopy

import pytest

from handlers import app
from streamfold import App, Key, Router, Table
from streamfold.deploy.check import check_template
from streamfold.deploy.template_file import TemplateFile, read_template
from streamfold.errors import SettingsError
from tests.helpers.planted_template import CHOICES, MISTAKES, RIGHT, VALUES, filtered, planted_value
from tests.helpers.template import ROOT, kinesis_template, load_template, properties

TEXT = (ROOT / "template.yaml").read_text("utf-8")
AS_VALUES = load_template()
EACH_SORT = 5
"""Mistakes of each sort that ``make test`` plants; ``make long`` plants all."""


def planted():
    counts = Counter()
    for each in MISTAKES:
        counts[each.sort] += 1
        yield pytest.param(each, id=each.name, marks=[pytest.mark.ci] if counts[each.sort] > EACH_SORT else [])


def checked(tmp_path, edit, *, of=app):
    file = tmp_path / "template.yaml"
    text = edit(TEXT)
    assert text != TEXT
    file.write_text(text, "utf-8")
    return check_template(of, "handlers", read_template(file))


def changed(change, *, of=app):
    """The findings of a template that a function changed as plain values."""
    template = deepcopy(AS_VALUES)
    change(template)
    return check_template(of, "handlers", TemplateFile(template))


def wrong(findings):
    return [each for each in findings if each.level == "wrong"]


@pytest.mark.parametrize("mistake", [*planted()])
def test_a_mistake_is_named_with_its_resource_and_path(tmp_path, mistake):
    found = checked(tmp_path, mistake.edit)
    assert (mistake.level, mistake.resource, mistake.path) in {each[:3] for each in found}, [*map(str, found)]


@pytest.mark.ci
@pytest.mark.parametrize(("resource", "path", "value"), VALUES, ids=[f"{each[0]} {each[1:]}" for each in VALUES])
def test_a_wrong_value_is_named_with_its_resource_and_path(resource, path, value):
    found = wrong(changed(lambda template: planted_value(template, resource, path, value)))
    assert any(each.resource == resource and each.path.startswith(path) for each in found), [*map(str, found)]


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_is_accepted(tmp_path, choice):
    assert wrong(checked(tmp_path, CHOICES[choice])) == []


def test_the_template_of_this_repository_is_right_in_less_than_two_seconds():
    begun = time.process_time()
    assert check_template(app, "handlers", read_template(ROOT / "template.yaml")) == []
    assert time.process_time() - begun < 2


# Bad input.


def messages(findings):
    return [str(each) for each in wrong(findings)]


def one(findings, *words):
    """The one message that has all these words."""
    found = [text for text in messages(findings) if all(word in text for word in words)]
    assert len(found) == 1, messages(findings)
    return found[0]


def with_table(name, **declared):
    router = Router()
    router.audit(Key("ORDER#{order_id}", "METADATA", Table("main")), name="main_orders")
    router.audit(Key("OLD#{order_id}", "METADATA", Table(name, **declared)), name="old_orders")
    return App("shop", routers=[router])


def of_handlers(monkeypatch, application):
    """Makes an application that of the module that the template's functions name."""
    import handlers

    for name in ("lambda_handler", "jobs_handler", "verify_handler"):
        monkeypatch.setattr(handlers, name, getattr(application, name))
    return application


def test_a_table_that_the_template_lacks_is_named_with_its_handlers(monkeypatch):
    application = of_handlers(monkeypatch, with_table("old"))
    text = one(changed(lambda template: None, of=application), "Projector", "STREAMFOLD_TABLE_OLD", "missing")
    assert "handlers old_orders read table 'old'" in text


def test_a_stream_that_nothing_reads_is_named_with_its_handlers(monkeypatch):
    application = of_handlers(monkeypatch, with_table("old"))
    text = one(changed(lambda template: None, of=application), "Projector", "no mapping brings")
    assert "table 'old'" in text
    assert "old_orders" in text


def test_a_group_without_a_function_is_named(monkeypatch):
    router = Router()
    router.audit(Key("ORDER#{order_id}", "METADATA"), name="history", group="late")
    application = of_handlers(monkeypatch, App("shop", routers=[router]))
    text = one(changed(lambda template: None, of=application), "Resources", "no function runs")
    assert "STREAMFOLD_GROUP=late" in text


def test_a_view_type_that_a_handler_cannot_work_with_is_named_with_the_handler():
    def change(template):
        properties(template, "Table")["StreamSpecification"]["StreamViewType"] = "NEW_IMAGE"

    text = one(changed(change), "Table", "StreamViewType")
    assert "'document_history'" in text
    assert "NEW_AND_OLD_IMAGES" in text


def test_reserved_concurrency_of_0_is_refused():
    def change(template):
        properties(template, "Searcher")["ReservedConcurrentExecutions"] = 0

    assert "never runs" in one(changed(change), "Searcher", "ReservedConcurrentExecutions")


def test_byte_code_of_another_python_is_named_with_both_versions(tmp_path):
    compiled = tmp_path / "Spreader" / "streamfold" / "__pycache__" / "app.cpython-311.pyc"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    found = check_template(app, "handlers", read_template(ROOT / "template.yaml"), builds=tmp_path)
    assert "byte code of Python 3.11" in one(found, "Spreader", "python3.13")


def test_byte_code_of_an_optimized_python_is_of_its_python(tmp_path):
    for name in ("app.cpython-313.opt-1.pyc", "app.cpython-313.pyc"):
        (tmp_path / "Spreader").mkdir(exist_ok=True)
        (tmp_path / "Spreader" / name).touch()
    assert check_template(app, "handlers", read_template(ROOT / "template.yaml"), builds=tmp_path) == []


def test_byte_code_of_two_pythons_is_named(tmp_path):
    (tmp_path / "Spreader").mkdir()
    for version in (313, 312):
        (tmp_path / "Spreader" / f"app.cpython-{version}.opt-2.pyc").touch()
    found = check_template(app, "handlers", read_template(ROOT / "template.yaml"), builds=tmp_path)
    assert "byte code of Python 3.12" in one(found, "Spreader", "python3.13")


def test_a_role_that_anybody_may_assume_is_refused():
    def change(template):
        statement = properties(template, "SpreaderRole")["AssumeRolePolicyDocument"]["Statement"][0]
        statement["Principal"] = {"AWS": "*"}

    assert "lambda.amazonaws.com alone" in one(changed(change), "SpreaderRole", "AssumeRolePolicyDocument")


def test_a_hand_edit_of_a_generated_filter_is_named_with_the_key_that_it_drops(tmp_path):
    edited = RIGHT[0].replace('{"prefix":"TICKET#"}', '{"prefix":"TICKETS#"}')
    text = one(checked(tmp_path, filtered(edited)), "Projector", "FilterCriteria")
    assert "it drops records of Key('TICKET#{ticket_id}', 'METADATA'), which names_on_ticket reads" in text


def test_a_threshold_in_seconds_is_named_with_the_unit_of_the_metric():
    def change(template):
        properties(template, "SearcherAge")["Threshold"] = 900

    assert "the metric counts milliseconds" in one(changed(change), "SearcherAge", "Threshold")


def test_an_alarm_that_rises_after_a_day_is_too_late():
    def change(template):
        properties(template, "ProjectorRefused")["Period"] = 86_400

    assert "720 at most" in one(changed(change), "ProjectorRefused", "Period")


def test_an_alarm_on_another_services_metric_is_named():
    def change(template):
        properties(template, "ProjectorParked")["Dimensions"][0]["Value"] = "store"

    assert "service=store" in one(changed(change), "ProjectorParked", "Dimensions")


def test_a_url_without_sign_in_is_refused_also_as_a_resource():
    def change(template):
        template["Resources"]["Address"] = {
            "Type": "AWS::Lambda::Url",
            "Properties": {"TargetFunctionArn": {"Fn::GetAtt": ["Projector", "Arn"]}, "AuthType": "NONE"},
        }

    assert "AWS_IAM" in one(changed(change), "Address", "AuthType")


@pytest.mark.parametrize("name", ["STREAMFOLD_SEARCH_PASSWORD", "STREAMFOLD_AUDIT_KEY"])
@pytest.mark.parametrize(
    ("value", "is_right"),
    [
        ("hunter2 hunter2 hunter2 hunter2 hunter2", False),
        ({"Ref": "Open"}, False),
        ({"Ref": "Hidden"}, True),
        ("{{resolve:secretsmanager:shop:SecretString:key}}", True),
    ],
)
def test_a_secret_in_the_template_is_refused_and_never_printed(name, value, is_right):
    def change(template):
        template["Parameters"]["Hidden"] = {"Type": "String", "NoEcho": True}
        template["Parameters"]["Open"] = {"Type": "String", "Default": "hunter2"}
        for function in ("Projector", "Searcher", "Spreader"):
            properties(template, function)["Environment"]["Variables"][name] = value

    found = changed(change)
    assert (wrong(found) == []) is is_right
    assert "hunter2" not in str(messages(found))
    assert all("Secrets Manager" in text for text in messages(found))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LANES", "many", "STREAMFOLD_LANES: it is 'many': expected a whole number from 1 to 32."),
        ("OBSERVE", "loud", "STREAMFOLD_OBSERVE: it is 'loud': expected lines, powertools, traced, off."),
        ("LANE", "8", "STREAMFOLD_LANE: it is not known. Did you mean STREAMFOLD_LANES?"),
    ],
)
def test_a_setting_that_is_wrong_is_named_once_with_its_value(name, value, expected):
    def change(template):
        properties(template, "Projector")["Environment"]["Variables"][f"STREAMFOLD_{name}"] = value

    assert one(changed(change), "Projector").endswith(expected)


def test_keys_of_a_table_are_shown_as_they_are_expected():
    def change(template):
        for each in properties(template, "Table")["KeySchema"]:
            each["AttributeName"] = each["AttributeName"].lower()

    text = one(changed(change), "Table", "KeySchema")
    assert "it is pk (HASH) and sk (RANGE): expected PK (HASH) and SK (RANGE)" in text


def test_a_queue_whose_segments_no_function_works_on_is_named():
    text = one(changed(lambda template: template["Resources"].pop("Spreader")), "Projector", "STREAMFOLD_JOBS")
    assert "no function works on its segments, so that fan-outs never end" in text
    assert "handlers.jobs_handler" in text


def test_segments_that_another_stack_may_work_on_are_advice():
    def change(template):
        del template["Resources"]["Spreader"], template["Resources"]["SpreaderRole"]
        properties(template, "Projector")["Environment"]["Variables"]["STREAMFOLD_JOBS"] = "https://sqs.example/1/jobs"

    found = [each for each in changed(change) if "segments" in each.text and each.path.endswith("JOBS")]
    assert [each.level for each in found] == ["advice"]


def test_actions_of_one_statement_that_a_function_never_takes_are_one_finding():
    def change(template):
        statement = properties(template, "SpreaderRole")["Policies"][0]["PolicyDocument"]["Statement"][0]
        statement["Action"] += ["dynamodb:Scan", "dynamodb:DeleteTable"]

    text = one(changed(change), "SpreaderRole")
    assert "dynamodb:Scan, dynamodb:DeleteTable on ${Table.Arn} are allowed, and Spreader never does that" in text


def drop_destination(template):
    (event,) = properties(template, "Projector")["Events"].values()
    del event["Properties"]["DestinationConfig"]


def drop_mapping(template):
    properties(template, "Projector")["Events"].clear()


def drop_state(template):
    del properties(template, "Projector")["Environment"]["Variables"]["STREAMFOLD_STATE_TABLE"]


@pytest.mark.parametrize("change", [drop_destination, drop_mapping, drop_state])
def test_what_a_template_leaves_out_is_named_once_and_not_by_the_permissions_on_it(change):
    found = wrong(changed(change))
    assert found
    assert {each.resource for each in found} == {"Projector"}


def test_a_queue_that_is_a_parameter_takes_the_permission_that_names_it():
    """Somebody else's stack has the queue: nothing here says whether the ARN is its own."""

    def change(template):
        template["Parameters"]["Jobs"] = {"Type": "String"}
        properties(template, "Projector")["Environment"]["Variables"]["STREAMFOLD_JOBS"] = {"Ref": "Jobs"}

    assert not [each for each in wrong(changed(change)) if each.resource == "ProjectorRole"]


def test_a_file_that_is_no_template_is_refused_with_what_was_expected(tmp_path):
    file = tmp_path / "template.yaml"
    texts = (
        ("[1]", "Resources"),
        ("Resources: {A: {}}", "no Type"),
        ("a: [", r"cannot be read as a template: line 2, column 1: \w+"),
    )
    for text, expected in texts:
        file.write_text(text)
        with pytest.raises(SettingsError, match=expected):
            read_template(file)


def test_without_the_extra_a_template_in_yaml_is_refused_with_the_remedy_and_json_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(SettingsError, match=r"streamfold\[deploy\]"):
        read_template(ROOT / "template.yaml")
    (tmp_path / "template.json").write_text(json.dumps(load_template()))
    assert check_template(app, "handlers", read_template(tmp_path / "template.json")) == []


# Forms of a template.


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov", "aws-eusc", "${AWS::Partition}"])
def test_failures_may_go_to_a_bucket_of_any_partition_and_to_no_queue(partition):
    def to(arn):
        def change(template):
            (event,) = properties(template, "Projector")["Events"].values()
            event["Properties"]["DestinationConfig"]["OnFailure"]["Destination"] = {"Fn::Sub": arn}

        return [each for each in wrong(changed(change)) if "OnFailure" in each.path]

    assert to(f"arn:{partition}:s3:::failures-of-hr") == []
    assert to(f"arn:{partition}:sqs:eu-west-1:123456789012:failed") != []


def test_a_name_that_is_there_twice_is_pointed_out(tmp_path):
    found = checked(
        tmp_path, lambda text: text.replace("      Timeout: 60 #", "      Timeout: 30\n      Timeout: 60 #", 1)
    )
    assert [str(each) for each in found] == [
        "advice: Timeout: the name is there twice in one object, and only the last counts: expected it once"
    ]


def as_cloudformation(template):
    """A template of SAM as one of CloudFormation: functions, mappings and rules are resources of their own."""
    resources = {}
    for name, resource in template["Resources"].items():
        resources[name] = resource
        if resource["Type"] != "AWS::Serverless::Function":
            continue
        given = dict(resource["Properties"])
        resources[name] = {"Type": "AWS::Lambda::Function", "Properties": given}
        for event, source in given.pop("Events").items():
            own = dict(source["Properties"])
            if source["Type"] == "Schedule":
                target = {"Arn": {"Fn::GetAtt": [name, "Arn"]}, "Id": "one", "Input": own["Input"]}
                rule = {"ScheduleExpression": own["Schedule"], "Targets": [target]}
                resources[f"{name}{event}"] = {"Type": "AWS::Events::Rule", "Properties": rule}
            else:
                own["EventSourceArn"] = own.pop("Stream", None) or own.pop("Queue")
                if "DestinationConfig" in own:
                    own["DestinationConfig"] = {
                        "OnFailure": {"Destination": own["DestinationConfig"]["OnFailure"]["Destination"]}
                    }
                own["FunctionName"] = {"Ref": name}
                resources[f"{name}{event}"] = {"Type": "AWS::Lambda::EventSourceMapping", "Properties": own}
    return {**template, "Resources": resources}


def test_a_template_of_cloudformation_is_checked_alike():
    template = as_cloudformation(load_template())
    assert check_template(app, "handlers", TemplateFile(template)) == []
    template["Resources"]["ProjectorTableStream"]["Properties"]["MaximumRetryAttempts"] = -1
    (found,) = check_template(app, "handlers", TemplateFile(template))
    assert found[:3] == ("wrong", "ProjectorTableStream", "Properties.MaximumRetryAttempts")


def test_a_table_whose_changes_come_by_kinesis_is_checked_alike():
    template = kinesis_template()
    assert check_template(app, "handlers", TemplateFile(template)) == []
    properties(template, "Projector")["Events"]["TableStream"]["Properties"]["MaximumRecordAgeInSeconds"] = -1
    (found,) = check_template(app, "handlers", TemplateFile(template))
    assert found[:3] == ("wrong", "Projector", "Properties.Events.TableStream.Properties.MaximumRecordAgeInSeconds")


def test_globals_of_sam_and_defaults_of_parameters_are_values_of_a_function():
    def change(template):
        template["Globals"] = {"Function": {"Runtime": "python3.9", "Timeout": {"Ref": "Seconds"}}}
        template["Parameters"]["Seconds"] = {"Type": "Number", "Default": 5}
        del properties(template, "Projector")["Runtime"], properties(template, "Projector")["Timeout"]

    found = changed(change)
    assert [each[:3] for each in found] == [
        ("wrong", "Projector", "Properties.Runtime"),
        ("wrong", "Projector", "Properties.Timeout"),  # no call is begun in its last 12 seconds
    ]


def test_both_values_of_a_condition_are_checked():
    def change(template):
        properties(template, "Table")["StreamSpecification"] = {
            "StreamViewType": {"Fn::If": ["OwnPageTopic", "NEW_AND_OLD_IMAGES", "KEYS_ONLY"]}
        }

    assert [each[1:3] for each in changed(change)] == [("Table", "Properties.StreamSpecification.StreamViewType")]


def test_a_value_that_only_aws_knows_is_pointed_out_and_never_called_right():
    def change(template):
        template["Parameters"]["Size"] = {"Type": "Number"}
        (event,) = properties(template, "Projector")["Events"].values()
        event["Properties"]["BatchSize"] = {"Ref": "Size"}

    (found,) = changed(change)
    assert found.level == "advice"
    assert "parameter Size is known to AWS only" in found.text


def test_names_and_arns_that_somebody_wrote_out_are_the_resources_that_have_them():
    def change(template):
        properties(template, "Table")["TableName"] = "orders"
        for function in ("Projector", "Searcher", "Spreader", "Verifier"):
            properties(template, function)["Environment"]["Variables"]["STREAMFOLD_TABLE_MAIN"] = "orders"

    assert changed(change) == []


def test_a_function_of_somebody_else_is_left_alone():
    def change(template):
        template["Resources"]["Other"] = {
            "Type": "AWS::Serverless::Function",
            "Properties": {"Handler": "site.index", "Runtime": "nodejs22.x"},
        }

    assert changed(change) == []


def test_the_generated_filter_lets_removals_of_rows_through_and_its_absence_is_pointed_out(tmp_path):
    found = checked(tmp_path, filtered(RIGHT[0]))
    assert {each.level for each in found} == {"advice"}
    assert all("removals of rows" in each.text for each in found)


def test_a_filter_that_lets_more_removals_through_than_the_generated_one_is_right(tmp_path):
    """As one of an earlier commit, which knew nothing of owners and lives."""
    earlier = json.loads(RIGHT[1])
    earlier["dynamodb"]["OldImage"] = {"_sf_n": earlier["dynamodb"]["OldImage"]["_sf_n"]}
    assert checked(tmp_path, filtered(RIGHT[0], json.dumps(earlier))) == []


def test_a_filter_that_lets_removals_of_fewer_rows_through_is_pointed_out(tmp_path):
    fewer = json.loads(RIGHT[1])
    fewer["dynamodb"]["Keys"]["$or"].pop()
    assert any("removals of rows" in each.text for each in checked(tmp_path, filtered(RIGHT[0], json.dumps(fewer))))
