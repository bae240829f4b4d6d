"""``streamfold template --check`` of roles and what they reach: mistakes that deploy are named, right forms are not."""

import json
from copy import deepcopy

import pytest

from handlers import app
from streamfold.deploy.check import check_template
from streamfold.deploy.template_file import TemplateFile
from tests.helpers.template import load_template, properties

WHOLE = load_template()
PARTITION, PLACE = "arn:${AWS::Partition}", "${AWS::Region}:${AWS::AccountId}"


def found(change, level="wrong"):
    """The findings of a level, as resource and path, of a template that a function changed."""
    template = deepcopy(WHOLE)
    change(template)
    return [
        (each.resource, each.path)
        for each in check_template(app, "handlers", TemplateFile(template))
        if each.level == level
    ]


def statements(template, role="ProjectorRole"):
    return properties(template, role)["Policies"][0]["PolicyDocument"]["Statement"]


def statement(template, sid):
    return next(each for each in statements(template) if each["Sid"] == sid)


def appended(given):
    return lambda template: statements(template).append(given)


def kept_state(**more):
    return lambda template: statement(template, "KeepState").update(more)


def path_of(number):
    return f"Properties.Policies.0.PolicyDocument.Statement.{number}"


NUMBER = [each["Sid"] for each in statements(WHOLE)].index("KeepState")
LAST = len(statements(WHOLE))
STATE, BUCKET = {"Fn::GetAtt": ["StateTable", "Arn"]}, {"Fn::GetAtt": ["FailureBucket", "Arn"]}


# Where a grant holds.


@pytest.mark.parametrize("place", ["us-west-2:${AWS::AccountId}", "${AWS::Region}:999999999999"])
def test_a_grant_with_a_region_or_an_account_written_out_is_pointed_out(place):
    change = kept_state(Resource={"Fn::Sub": f"arn:aws:dynamodb:{place}:table/${{StateTable}}"})
    assert found(change) == []
    assert found(change, "advice") == [("ProjectorRole", f"{path_of(NUMBER)}.Resource")]


@pytest.mark.parametrize(
    ("condition", "is_known"),
    [
        ({"Bool": {"aws:SecureTransport": "true"}}, True),
        ({"StringEquals": {"aws:RequestedRegion": {"Ref": "AWS::Region"}}}, True),
        ({"StringEquals": {"aws:ResourceAccount": {"Ref": "AWS::AccountId"}}}, True),
        ({"StringEquals": {"kms:ViaService": {"Fn::Sub": "dynamodb.${AWS::Region}.amazonaws.com"}}}, True),
        ({"StringEquals": {"aws:RequestedRegion": "mars-1"}}, False),
        ({"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["a"]}}, False),
        ({"Bool": {"aws:SecureTransport": "false"}}, False),
    ],
)
def test_a_condition_that_may_not_hold_is_pointed_out(condition, is_known):
    change = kept_state(Condition=condition)
    assert found(change) == []
    assert found(change, "advice") == ([] if is_known else [("ProjectorRole", f"{path_of(NUMBER)}.Condition")])


@pytest.mark.parametrize(
    "denied",
    [
        {"Action": "dynamodb:*", "Resource": STATE},
        {"Action": ["dynamodb:putitem"], "Resource": "*"},
        {"Action": "*", "Resource": {"Fn::Sub": "arn:aws:dynamodb:*:*:table/*"}},
        {"Action": "s3:*", "Resource": [BUCKET, {"Fn::Sub": "${FailureBucket.Arn}/parked/*"}]},
        {"NotAction": "logs:*", "Resource": "*"},
        {"Action": "dynamodb:*", "NotResource": {"Fn::GetAtt": ["Table", "Arn"]}},
    ],
)
def test_a_statement_that_denies_what_a_function_needs_is_named(denied):
    assert found(appended({"Effect": "Deny", **denied})) == [("ProjectorRole", path_of(LAST))]


@pytest.mark.parametrize(
    "denied",
    [
        {"Action": ["dynamodb:DeleteTable", "s3:DeleteBucket"], "Resource": "*"},
        {"Action": "s3:*", "Resource": ["arn:aws:s3:::other", "arn:aws:s3:::other/*"]},
        {"Action": "*", "Resource": "*", "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
    ],
)
def test_a_statement_that_denies_what_no_function_needs_is_accepted(denied):
    assert found(appended({"Effect": "Deny", **denied})) == []


def test_a_denial_under_a_condition_and_a_boundary_are_pointed_out():
    given = {
        "Effect": "Deny",
        "Action": "dynamodb:*",
        "Resource": STATE,
        "Condition": {"IpAddress": {"aws:SourceIp": "x"}},
    }
    assert found(appended(given), "advice") == [("ProjectorRole", path_of(LAST))]
    boundary = {"PermissionsBoundary": "arn:aws:iam::123456789012:policy/b"}
    assert found(lambda template: properties(template, "VerifierRole").update(boundary), "advice") == [
        ("VerifierRole", "Properties.PermissionsBoundary")
    ]


def test_a_bucket_that_denies_everybody_everything_is_named():
    def change(template):
        given = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": BUCKET}
        properties(template, "FailureBucketPolicy")["PolicyDocument"]["Statement"].append(given)

    assert found(change) == [("FailureBucketPolicy", "Properties.PolicyDocument.Statement.1")]


# Keys.

KEY = {"Fn::GetAtt": ["Key", "Arn"]}


def with_keys(*granted, key=KEY):
    """Tables, the failure bucket and the queue have a key of their own, and each role may take these actions on it."""

    def change(template):
        template["Resources"]["Key"] = {"Type": "AWS::KMS::Key", "Properties": {}}
        for name in ("Table", "StateTable"):
            given = {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": key}
            properties(template, name)["SSESpecification"] = given
        by_default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
        rule = {"BucketKeyEnabled": True, "ServerSideEncryptionByDefault": by_default}
        properties(template, "FailureBucket")["BucketEncryption"]["ServerSideEncryptionConfiguration"] = [rule]
        properties(template, "Doorbell")["KmsMasterKeyId"] = key
        if granted:
            for name in ("ProjectorRole", "SpreaderRole", "SearcherRole", "VerifierRole"):
                statements(template, name).append({"Effect": "Allow", "Action": [*granted], "Resource": KEY})

    return change


@pytest.mark.parametrize("key", [KEY, {"Ref": "Key"}, "alias/mine"])
def test_roles_that_may_use_the_keys_are_right(key):
    assert found(with_keys("kms:Decrypt", "kms:GenerateDataKey", key=key)) == []


def test_a_key_that_a_role_may_not_use_is_named_for_each_function():
    roles = {"ProjectorRole", "SpreaderRole", "SearcherRole", "VerifierRole"}
    assert {resource for resource, _ in found(with_keys())} == roles
    written = {"ProjectorRole", "SpreaderRole", "SearcherRole"}
    assert {resource for resource, _ in found(with_keys("kms:Decrypt"))} == written
    assert {resource for resource, _ in found(with_keys("kms:GenerateDataKey"))} == roles


def test_the_key_of_another_thing_opens_nothing():
    def change(template):
        with_keys("kms:Decrypt", "kms:GenerateDataKey")(template)
        template["Resources"]["Other"] = {"Type": "AWS::KMS::Key", "Properties": {}}
        statements(template, "VerifierRole")[-1]["Resource"] = {"Fn::GetAtt": ["Other", "Arn"]}

    assert found(change) == [("VerifierRole", "Properties.Policies")]


@pytest.mark.parametrize("key", ["alias/aws/s3", "arn:aws:kms:eu-west-1:123456789012:alias/aws/s3", None])
def test_the_key_of_the_service_itself_needs_no_grant(key):
    def change(template):
        by_default = {"SSEAlgorithm": "aws:kms", **({"KMSMasterKeyID": key} if key else {})}
        rule = [{"ServerSideEncryptionByDefault": by_default}]
        properties(template, "FailureBucket")["BucketEncryption"]["ServerSideEncryptionConfiguration"] = rule

    assert found(change) == []


# Settings and stores that deploy, and hide faults.


@pytest.mark.parametrize("handler", ["handlers/lambda_handler", "lambda_handler", "handlers.lambda_handlers"])
def test_a_handler_that_lambda_does_not_find_is_named(handler):
    assert ("Projector", "Properties.Handler") in found(
        lambda template: properties(template, "Projector").update(Handler=handler)
    )


def test_a_function_without_metrics_is_named():
    change = lambda template: properties(template, "Projector")["Environment"]["Variables"].update(  # noqa: E731
        STREAMFOLD_OBSERVE="off"
    )
    assert found(change) == [("Projector", "Properties.Environment.Variables.STREAMFOLD_OBSERVE")]


def test_a_log_of_which_no_metrics_are_made_is_named():
    change = lambda template: properties(template, "ProjectorLog").update(LogGroupClass="INFREQUENT_ACCESS")  # noqa: E731
    assert found(change) == [("ProjectorLog", "Properties.LogGroupClass")]


@pytest.mark.parametrize(
    ("rules", "is_right"),
    [
        ([{}], True),
        ([{"Prefix": ""}], True),
        ([{"Filter": {"Prefix": ""}}], True),
        ([{"Prefix": "aws/"}, {"Prefix": "parked"}], True),
        ([{"Filter": {"Prefix": "tmp/"}}], False),
        ([{"Prefix": "aws/lambda/"}], False),
        ([{"TagFilters": [{"Key": "a", "Value": "b"}]}], False),
        ([{"ObjectSizeGreaterThan": 1}], False),
        ([{"Filter": {"And": {"Prefix": "", "Tags": []}}}], False),
        ([{"Status": "Disabled"}], False),
    ],
)
def test_failures_expire_wherever_they_lie(rules, is_right):
    def change(template):
        given = [
            {"Id": str(number), "Status": "Enabled", "ExpirationInDays": 20, **each}
            for number, each in enumerate(rules)
        ]
        properties(template, "FailureBucket")["LifecycleConfiguration"]["Rules"] = given

    expected = [] if is_right else [("FailureBucket", "Properties.LifecycleConfiguration.Rules")]
    assert found(change) == expected


# Right forms.


def edited(value, edit):
    """A value in which a function replaces what it gives another value for."""
    if isinstance(value, dict):
        other = edit(value)
        return {name: edited(each, edit) for name, each in value.items()} if other is None else other
    return [edited(each, edit) for each in value] if isinstance(value, list) else value


ARNS = {
    "AWS::DynamoDB::Table": f"{PARTITION}:dynamodb:{PLACE}:table/$NAME",
    "AWS::S3::Bucket": f"{PARTITION}:s3:::$NAME",
    "AWS::SQS::Queue": f"{PARTITION}:sqs:{PLACE}:$QUEUE",
    "AWS::Logs::LogGroup": f"{PARTITION}:logs:{PLACE}:log-group:$NAME:*",
}


def by_sub(value):
    if list(value) == ["Fn::GetAtt"]:
        return {"Fn::Sub": f"${{{'.'.join(value['Fn::GetAtt'])}}}"}
    return None


def by_name(value):
    if list(value) == ["Fn::GetAtt"] and value["Fn::GetAtt"][1] == "Arn":
        name = value["Fn::GetAtt"][0]
        text = ARNS.get(WHOLE["Resources"][name]["Type"], "")
        text = text.replace("$NAME", f"${{{name}}}").replace("$QUEUE", f"${{{name}.QueueName}}")
        return {"Fn::Sub": text} if text else None
    return None


def without_log(template):
    """The log is written by right of a policy of AWS."""
    arn = {"Fn::Sub": f"{PARTITION}:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"}
    properties(template, "ProjectorRole")["ManagedPolicyArns"] = [arn]
    for policy in properties(template, "ProjectorRole")["Policies"]:
        document = policy["PolicyDocument"]
        document["Statement"] = [each for each in document["Statement"] if "logs:" not in json.dumps(each)]


@pytest.mark.parametrize("edit", [by_sub, by_name])
def test_every_way_to_name_a_resource_is_right(edit):
    def change(template):
        template["Resources"] = edited(template["Resources"], edit)

    assert found(change) == []


@pytest.mark.parametrize("before", ["", "${AWS::StackName}-", "${Given}-", "${Stage}-"])
def test_names_that_somebody_wrote_out_are_right_in_arns_too(before):
    names = {
        "Table": ("TableName", before + "orders"),
        "StateTable": ("TableName", before + "state"),
        "Doorbell": ("QueueName", before + "jobs"),
    }

    def change(template):
        template["Parameters"] |= {"Given": {"Type": "String"}, "Stage": {"Type": "String", "Default": "test"}}
        for name, (key, value) in names.items():
            properties(template, name)[key] = {"Fn::Sub": value}

        def written(value):
            if list(value) == ["Ref"] and value["Ref"] in ("Table", "StateTable"):
                return {"Fn::Sub": names[value["Ref"]][1]}
            made = by_name(value)
            if made is None:
                return None
            for name, (_, text) in names.items():
                for reference in (f"${{{name}}}", f"${{{name}.QueueName}}"):
                    made["Fn::Sub"] = made["Fn::Sub"].replace(reference, text)
            return made

        template["Resources"] = edited(template["Resources"], written)

    assert found(change) == []


def test_the_basic_policy_of_aws_lets_a_function_write_its_log():
    assert found(without_log) == []


def test_policies_of_sam_are_not_read_and_said_to_be():
    def change(template):
        del properties(template, "Verifier")["Role"]
        properties(template, "Verifier")["Policies"] = [{"DynamoDBReadPolicy": {"TableName": {"Ref": "Table"}}}]

    assert found(change) == []
    assert found(change, "advice") == [("Verifier", "Properties.Policies")]
    assert found(lambda template: properties(template, "Verifier").pop("Role")) == [("Verifier", "Properties.Role")]


def outside(name, made):
    """A resource is of another stack: what it is called comes from there."""

    def given(value):
        match value:
            case {"Ref": str(named)} if named == name:
                return made(name)
            case {"Fn::GetAtt": [str(named), attribute]} if named == name:
                return made(f"{name}-{attribute}")
            case {"Fn::Sub": str(text)}:
                for end in ("", ".Arn", ".QueueName"):
                    text = text.replace(f"${{{name}{end}}}", f"${{Given{end.replace('.', '')}}}")
                values = {f"Given{end}": made(f"{name}-{end}") for end in ("", "Arn", "QueueName")}
                return {"Fn::Sub": [text, values]} if "${Given" in text else None
        return None

    def change(template):
        for each in [each for each in template["Resources"] if each.startswith(name) and "Failures" not in each]:
            if each == name or each.endswith("Policy"):
                del template["Resources"][each]
        template["Parameters"] |= {"Given": {"Type": "String"}}
        template["Resources"] = edited(template["Resources"], given)

    return change


@pytest.mark.parametrize("name", ["Table", "StateTable", "FailureBucket", "ArchiveBucket", "Doorbell", "ProjectorLog"])
@pytest.mark.parametrize(
    "made", [lambda name: {"Fn::ImportValue": {"Fn::Sub": f"${{Given}}-{name}"}}, lambda name: {"Ref": "Given"}]
)
def test_a_resource_of_another_stack_is_right(name, made):
    assert found(outside(name, made)) == []
