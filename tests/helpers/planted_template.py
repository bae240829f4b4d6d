"""Mistakes and choices as edits of the text of ``template.yaml``: ``--check`` names those, and accepts these."""

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from handlers import app
from streamfold.deploy.filters import filter_of

Edit = Callable[[str], str]
STREAM = "Properties.Events.TableStream.Properties"
VARIABLES = "Properties.Environment.Variables"
GROUP_MAIN = r"(          STREAMFOLD_GROUP: main # without[^\n]*\n)"
GROUP_SEARCH = r"(          STREAMFOLD_GROUP: search\n)"
MEMORY = r"(      MemorySize: 512 # a batch[^\n]*\n)"
POLICY = "Properties.Policies.0.PolicyDocument.Statement"
OTHER_TABLE = """              - Sid: WriteOther
                Effect: Allow
                Action: dynamodb:PutItem
                Resource: arn:aws:dynamodb:us-east-1:123456789012:table/other
"""
PROJECTOR_START = "  # The permissions of the function and its mapping: the engine's calls, on these"
DOORBELL_POLICY = re.compile(r"        - PolicyName: doorbell\n.*?Resource: !GetAtt Doorbell.Arn\n", re.DOTALL)
DOORBELL_OUTPUTS = re.compile(r"  SpreaderName:\n.*?Value: !Ref Doorbell\n", re.DOTALL)
SPREADER = re.compile(
    r"  # Long fan-outs of feeds: the state says.*?(?=  # Records that spent their retries, with)", re.DOTALL
)
SEARCHER = re.compile(
    r"  # Documents of the items in OpenSearch, in a function.*?(?=  # Long fan-outs of feeds)", re.DOTALL
)


class Planted(NamedTuple):
    """A mistake, and the resource and path by which it has to be named."""

    sort: str
    name: str
    edit: Edit
    resource: str
    path: str
    level: str = "wrong"


def replaced(old: str, new: str, count: int = 1) -> Edit:
    """Replaces a text, once, or everywhere with ``count=-1``."""

    def edit(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, count)

    return edit


def matched(old: str, new: str, count: int = 1) -> Edit:
    """Replaces what an expression matches, everywhere with ``count=0``."""

    def edit(text: str) -> str:
        found, number = re.subn(old, new, text, count=count, flags=re.DOTALL)
        assert number, old
        return found

    return edit


def filtered(*patterns: str) -> Edit:
    """Gives the mappings of both streams a filter."""
    entries = "".join(f"\n                - Pattern: '{pattern}'" for pattern in patterns)
    added = f"            FilterCriteria:\n              Filters:{entries}\n"
    return lambda text: re.sub(
        r"(            StartingPosition: TRIM_HORIZON[^\n]*\n)", lambda found: found[1] + added, text
    )


def third_reader(text: str) -> str:
    third = re.search(r"  Projector:\n.*?(?=\n  # The perm)", text, re.DOTALL)[0].replace("  Projector:", "  Third:", 1)
    return text.replace(PROJECTOR_START, f"{third}\n\n{PROJECTOR_START}", 1)


def without_queue(text: str) -> str:
    text = SPREADER.sub("", text)
    text = re.sub(r"          STREAMFOLD_JOBS: !Ref Doorbell[^\n]*\n", "", text)
    return DOORBELL_OUTPUTS.sub("", DOORBELL_POLICY.sub("", text))


KEYS_OF_ORDERS = '{"dynamodb":{"Keys":{"PK":{"S":[{"prefix":"ORDER#"}]}}}}'
NUMERIC = '{"dynamodb":{"NewImage":{"total":{"N":[{"numeric":[">",0]}]}}}}'
LONG = json.dumps({"dynamodb": {"Keys": {"PK": {"S": [{"prefix": f"P{number:04}#"} for number in range(250)]}}}})
RIGHT = filter_of(app, None, "main").patterns
THROTTLES = """  MoreThrottles:
    Type: AWS::CloudWatch::Alarm
    Properties:
      Namespace: AWS/Lambda
      MetricName: Throttles
      Dimensions:
        - { Name: FunctionName, Value: !Ref Projector }
      Statistic: Sum
      Period: 60
      EvaluationPeriods: 5
      Threshold: 1
      ComparisonOperator: GreaterThanOrEqualToThreshold
      AlarmActions: !If [OwnTicketTopic, [!Ref TicketTopic], !Ref AWS::NoValue]

"""
ANYBODY = """          - Sid: Anyone
            Effect: Allow
            Principal: "*"
            Action: s3:GetObject
            Resource: !Sub "${FailureBucket.Arn}/*"
"""

MISTAKES = (
    # What brings records to a function.
    Planted(
        "mapping",
        "the response type of one function is wrong",
        replaced("[ReportBatchItemFailures]", "[ReportItemFailures]"),
        "Projector",
        f"{STREAM}.FunctionResponseTypes",
    ),
    Planted(
        "mapping",
        "response types are left out",
        matched(
            r"            FunctionResponseTypes: \[ReportBatchItemFailures\]\n            Bisect",
            "            Bisect",
            2,
        ),
        "Searcher",
        f"{STREAM}.FunctionResponseTypes",
    ),
    Planted(
        "mapping",
        "a batch has 20,000 records",
        replaced("BatchSize: 100\n", "BatchSize: 20000\n", -1),
        "Projector",
        f"{STREAM}.BatchSize",
    ),
    Planted(
        "mapping",
        "a batch waits for 400 seconds",
        matched("MaximumBatchingWindowInSeconds: 1", "MaximumBatchingWindowInSeconds: 400", 0),
        "Projector",
        f"{STREAM}.MaximumBatchingWindowInSeconds",
    ),
    Planted(
        "mapping",
        "retries have no limit",
        matched(r"            MaximumRetryAttempts: 20[^\n]*\n", "", 0),
        "Projector",
        f"{STREAM}.MaximumRetryAttempts",
    ),
    Planted(
        "mapping",
        "no batch is halved",
        matched("BisectBatchOnFunctionError: true", "BisectBatchOnFunctionError: false", 0),
        "Projector",
        f"{STREAM}.BisectBatchOnFunctionError",
    ),
    Planted("mapping", "a stream has a third reader", third_reader, "Searcher", "Properties"),
    Planted(
        "mapping",
        "the mapping is off",
        matched(r"(            StartingPosition: TRIM_HORIZON[^\n]*\n)", r"\1            Enabled: false\n", 0),
        "Projector",
        f"{STREAM}.Enabled",
    ),
    Planted(
        "mapping",
        "records are read from now on",
        replaced("StartingPosition: TRIM_HORIZON", "StartingPosition: LATEST"),
        "Projector",
        f"{STREAM}.StartingPosition",
    ),
    Planted(
        "mapping",
        "batches are kept for a window of 30 seconds",
        matched(
            r"            BatchSize: 100\n", "            BatchSize: 100\n            TumblingWindowInSeconds: 30\n", 0
        ),
        "Projector",
        f"{STREAM}.TumblingWindowInSeconds",
    ),
    Planted(
        "mapping",
        "an invocation gets ten segments",
        replaced("BatchSize: 1 # one", "BatchSize: 10 # one"),
        "Spreader",
        "Properties.Events.Messages.Properties.BatchSize",
    ),
    # Filters.
    Planted(
        "filter",
        "a key that a handler reads is dropped",
        filtered(KEYS_OF_ORDERS),
        "Projector",
        f"{STREAM}.FilterCriteria",
    ),
    Planted("filter", "a number is compared as a number", filtered(NUMERIC), "Projector", f"{STREAM}.FilterCriteria"),
    Planted(
        "filter",
        "removals are dropped",
        filtered('{"eventName":["INSERT","MODIFY"]}'),
        "Searcher",
        f"{STREAM}.FilterCriteria",
    ),
    Planted(
        "filter", "the pattern is no JSON", filtered('{"eventName":["INSERT"'), "Projector", f"{STREAM}.FilterCriteria"
    ),
    Planted(
        "filter", "the pattern is longer than 4,096 characters", filtered(LONG), "Projector", f"{STREAM}.FilterCriteria"
    ),
    # Tables.
    Planted(
        "table",
        "the table's items do not expire",
        matched(
            r"      TimeToLiveSpecification: # sessions[^\n]*\n        AttributeName: expires\n        Enabled: true\n",
            "",
        ),
        "Table",
        "Properties.TimeToLiveSpecification.AttributeName",
    ),
    Planted(
        "table",
        "claims do not expire",
        matched(
            r"      TimeToLiveSpecification: # removes[^\n]*\n        AttributeName: ttl\n        Enabled: true\n", ""
        ),
        "StateTable",
        "Properties.TimeToLiveSpecification.AttributeName",
    ),
    Planted(
        "table",
        "the stream has keys only",
        replaced("StreamViewType: NEW_AND_OLD_IMAGES", "StreamViewType: KEYS_ONLY"),
        "Table",
        "Properties.StreamSpecification.StreamViewType",
    ),
    Planted(
        "table",
        "the state has other key attributes",
        matched(
            "AttributeName: pk(.*?)AttributeName: sk(.*?)AttributeName: pk(.*?)AttributeName: sk",
            r"AttributeName: PK\1AttributeName: SK\2AttributeName: PK\3AttributeName: SK",
        ),
        "StateTable",
        "Properties.KeySchema",
    ),
    Planted(
        "table",
        "the table goes with the stack",
        matched(r"DeletionPolicy: Retain # data[^\n]*", "DeletionPolicy: Delete"),
        "Table",
        "DeletionPolicy",
    ),
    Planted(
        "table",
        "a key attribute is misspelt",
        matched("AttributeName: PK(.*?)AttributeName: PK", r"AttributeName: pk\1AttributeName: pk"),
        "Table",
        "Properties.KeySchema",
    ),
    Planted(
        "table",
        "the state cannot be restored",
        matched(
            r"(AttributeName: ttl\n        Enabled: true\n      PointInTimeRecoverySpecification:\n"
            r"        PointInTimeRecoveryEnabled: )true",
            r"\1false",
        ),
        "StateTable",
        "Properties.PointInTimeRecoverySpecification.PointInTimeRecoveryEnabled",
    ),
    Planted(
        "table",
        "the state is a global table",
        matched(r"(  StateTable:\n    Type: AWS::DynamoDB::)Table", r"\1GlobalTable"),
        "StateTable",
        "Type",
    ),
    Planted(
        "table",
        "a table with rows has strong consistency across regions",
        matched(
            r"(\n  Table:\n    Type: AWS::DynamoDB::)Table(\n(?:    [^\n]*\n)*?    Properties:\n)",
            r"\1GlobalTable\2      MultiRegionConsistency: STRONG\n",
        ),
        "Table",
        "Properties.MultiRegionConsistency",
    ),
    # Functions and their settings.
    Planted(
        "function",
        "the timeout of a stream's function is 10 seconds",
        matched(r"Timeout: 60 # well[^\n]*", "Timeout: 10"),
        "Projector",
        "Properties.Timeout",
        "wrong",
    ),
    Planted(
        "function",
        "no call is begun with 90 of 60 seconds left",
        matched(GROUP_MAIN, r"\1          STREAMFOLD_STOP_SECONDS: 90\n"),
        "Projector",
        f"{VARIABLES}.STREAMFOLD_STOP_SECONDS",
    ),
    Planted(
        "function",
        "no call is begun with 55 of 60 seconds left",
        matched(GROUP_MAIN, r'\1          STREAMFOLD_STOP_SECONDS: "55"\n'),
        "Projector",
        f"{VARIABLES}.STREAMFOLD_STOP_SECONDS",
    ),
    Planted(
        "function",
        "without a group, searches run twice",
        matched(GROUP_MAIN, ""),
        "Projector",
        f"{VARIABLES}.STREAMFOLD_GROUP",
    ),
    Planted(
        "function",
        "the state is in the application's table",
        replaced("STREAMFOLD_STATE_TABLE: !Ref StateTable", "STREAMFOLD_STATE_TABLE: !Ref Table"),
        "Projector",
        f"{VARIABLES}.STREAMFOLD_STATE_TABLE",
    ),
    Planted(
        "function",
        "the handler does not exist",
        replaced("Handler: handlers.lambda_handler", "Handler: handlers.lambda_handlr"),
        "Projector",
        "Properties.Handler",
    ),
    Planted(
        "function",
        "the Python is too old",
        replaced("Runtime: python3.13", "Runtime: python3.7"),
        "Projector",
        "Properties.Runtime",
    ),
    Planted(
        "function",
        "the Python is another than the byte code's",
        matched("Runtime: python3.13", "Runtime: python3.11", 0),
        "Spreader",
        "Properties.Runtime",
    ),
    Planted(
        "function",
        "claims are kept for a day",
        matched(GROUP_MAIN, r"\1          STREAMFOLD_RETENTION_DAYS: 1\n"),
        "Projector",
        f"{VARIABLES}.STREAMFOLD_RETENTION_DAYS",
    ),
    Planted(
        "function",
        "anybody may call the function by its URL",
        matched(MEMORY, r"\1      FunctionUrlConfig: { AuthType: NONE }\n"),
        "Projector",
        "Properties.FunctionUrlConfig.AuthType",
    ),
    Planted(
        "function",
        "a password is in the environment",
        matched(GROUP_SEARCH, r"\1          STREAMFOLD_SEARCH_PASSWORD: hunter2\n"),
        "Searcher",
        f"{VARIABLES}.STREAMFOLD_SEARCH_PASSWORD",
    ),
    Planted(
        "function",
        "two functions have different epochs",
        matched(GROUP_SEARCH, r'\1          STREAMFOLD_EPOCH: "1"\n'),
        "Searcher",
        f"{VARIABLES}.STREAMFOLD_EPOCH",
    ),
    Planted(
        "function",
        "messages go to another queue",
        replaced(
            "          STREAMFOLD_JOBS: !Ref Doorbell\n          STREAMFOLD_PARK",
            "          STREAMFOLD_JOBS: !Ref DoorbellFailures\n          STREAMFOLD_PARK",
        ),
        "Spreader",
        f"{VARIABLES}.STREAMFOLD_JOBS",
    ),
    Planted(
        "function",
        "two versions run behind an alias",
        matched(
            MEMORY, r"\1      AutoPublishAlias: live\n      DeploymentPreference: { Type: Canary10Percent5Minutes }\n"
        ),
        "Projector",
        "Properties.AutoPublishAlias",
        "advice",
    ),
    Planted(
        "function",
        "no invocation is allowed",
        matched(MEMORY, r"\1      ReservedConcurrentExecutions: 0\n"),
        "Projector",
        "Properties.ReservedConcurrentExecutions",
    ),
    # Policies.
    Planted(
        "policy",
        "a function may not insert rows",
        matched(r"                  - dynamodb:PartiQLInsert # history[^\n]*\n", ""),
        "ProjectorRole",
        "Properties.Policies",
    ),
    Planted(
        "policy",
        "the state's permissions are on everything",
        matched(
            r"(DeleteItem # large contributions[^\n]*\n                Resource: )!GetAtt StateTable.Arn",
            r'\1"*"',
        ),
        "ProjectorRole",
        f"{POLICY}.2.Resource",
    ),
    Planted(
        "policy",
        "a function may do everything with a table",
        replaced("Action: dynamodb:DescribeTable", 'Action: "dynamodb:*"'),
        "ProjectorRole",
        f"{POLICY}.1.Action",
    ),
    Planted(
        "policy",
        "a function may write to another table",
        matched(r"(              - Sid: KnowTables # reads)", lambda found: OTHER_TABLE + found[1]),
        "ProjectorRole",
        f"{POLICY}.1",
    ),
    Planted(
        "policy",
        "the verifier may not read the state",
        matched(
            r"(BatchGetItem # these items[^\n]*\n                Resource:\n                  - !GetAtt Table.Arn\n)"
            r"                  - !GetAtt StateTable.Arn\n",
            r"\1",
        ),
        "VerifierRole",
        "Properties.Policies",
    ),
    Planted(
        "policy",
        "anybody may take a role",
        replaced("Principal: { Service: lambda.amazonaws.com }", 'Principal: "*"'),
        "ProjectorRole",
        "Properties.AssumeRolePolicyDocument.Statement.0.Principal",
    ),
    Planted(
        "policy",
        "a function may do everything",
        matched(
            r"(  SearcherRole:.*?    Properties:\n)",
            r"\1      ManagedPolicyArns: [arn:aws:iam::aws:policy/AdministratorAccess]\n",
        ),
        "SearcherRole",
        "Properties.ManagedPolicyArns",
    ),
    Planted(
        "policy",
        "SAM makes the role",
        matched(r"      Role: !GetAtt ProjectorRole.Arn[^\n]*\n", ""),
        "Projector",
        "Properties.Role",
    ),
    # Alarms.
    Planted(
        "alarm",
        "alarms watch another service",
        replaced("    Default: shop\n", "    Default: store\n"),
        "ProjectorRefused",
        "Properties.Dimensions",
    ),
    Planted(
        "alarm",
        "the age rises after the records are gone",
        replaced("Threshold: 900000", "Threshold: 90000000"),
        "ProjectorAge",
        "Properties.Threshold",
    ),
    Planted(
        "alarm",
        "the age is given in seconds",
        replaced("Threshold: 900000", "Threshold: 900"),
        "ProjectorAge",
        "Properties.Threshold",
    ),
    Planted(
        "alarm",
        "the age must be small",
        matched("(MetricName: IteratorAge.*?ComparisonOperator: )GreaterThanThreshold", r"\1LessThanThreshold"),
        "ProjectorAge",
        "Properties.ComparisonOperator",
    ),
    Planted(
        "alarm",
        "nobody hears of an alarm",
        matched(r"(  ProjectorDropped:.*?)      AlarmActions: [^\n]*\n", r"\1"),
        "ProjectorDropped",
        "Properties.AlarmActions",
    ),
    Planted(
        "alarm",
        "one refused record is not enough",
        matched(r"(  ProjectorRefused:.*?)EvaluationPeriods: 1\n      DatapointsToAlarm: 1", r"\1EvaluationPeriods: 3"),
        "ProjectorRefused",
        "Properties.EvaluationPeriods",
    ),
    Planted(
        "alarm",
        "an alarm of a function is missing",
        matched(r"  ProjectorParked:.*?(?=  ProjectorGivenUp:)", ""),
        "Projector",
        "",
    ),
    # Buckets.
    Planted(
        "bucket",
        "failures are kept longer than claims",
        replaced("ExpirationInDays: 28", "ExpirationInDays: 60"),
        "FailureBucket",
        "Properties.LifecycleConfiguration.Rules",
    ),
    Planted(
        "bucket",
        "anybody may read the failures",
        matched(r"(  FailureBucketPolicy:.*?Statement:\n)", lambda found: found[1] + ANYBODY),
        "FailureBucketPolicy",
        "Properties.PolicyDocument.Statement.0",
    ),
    Planted(
        "bucket",
        "a bucket may be made public",
        replaced("BlockPublicPolicy: true", "BlockPublicPolicy: false"),
        "FailureBucket",
        "Properties.PublicAccessBlockConfiguration.BlockPublicPolicy",
    ),
)

CHOICES: dict[str, Edit] = {
    "a right filter on both": filtered(*RIGHT),
    "a parallelization factor of 2": matched(
        r"            BatchSize: 100\n", "            BatchSize: 100\n            ParallelizationFactor: 2\n", 0
    ),
    "batches of 1,000 records": matched(r"            BatchSize: 100\n", "            BatchSize: 1000\n", 0),
    "logs kept for 90 days": matched("RetentionInDays: 30", "RetentionInDays: 90", 0),
    "no window": matched(
        r"            MaximumBatchingWindowInSeconds: 1[^\n]*\n", "            MaximumBatchingWindowInSeconds: 0\n", 0
    ),
    "a key of one's own": matched(
        r"      BillingMode: PAY_PER_REQUEST\n",
        "      BillingMode: PAY_PER_REQUEST\n      SSESpecification: { SSEEnabled: true, SSEType: KMS }\n",
        0,
    ),
    "provisioned capacity": matched(
        r"(  Table:\n.*?)      BillingMode: PAY_PER_REQUEST\n",
        r"\1      BillingMode: PROVISIONED\n"
        r"      ProvisionedThroughput: { ReadCapacityUnits: 10, WriteCapacityUnits: 10 }\n",
    ),
    "tracing": matched(MEMORY, r"\1      Tracing: Active\n"),
    "more memory on another processor": matched(
        r"Architectures: \[arm64\]( # the function[^\n]*)\n      MemorySize: 512",
        r"Architectures: [x86_64]\1\n      MemorySize: 1024",
    ),
    "tables that cannot be deleted": matched(
        r"      BillingMode: PAY_PER_REQUEST\n",
        "      BillingMode: PAY_PER_REQUEST\n      DeletionProtectionEnabled: true\n",
        0,
    ),
    "an alarm more": matched(r"(  # Compares a sample of the items)", lambda found: THROTTLES + found[1]),
    "no search": lambda text: SEARCHER.sub("", text),
    "no queue": without_queue,
}

REMOVED = None
"""The value of a property that is taken out."""
TABLE_STREAM, MESSAGES, AGAIN = (
    f"Properties.Events.{name}.Properties" for name in ("TableStream", "Messages", "RingAgain")
)
VALUES = (
    ("Projector", f"{TABLE_STREAM}.DestinationConfig", REMOVED),
    ("Projector", f"{TABLE_STREAM}.DestinationConfig.OnFailure.Destination", {"Fn::GetAtt": ["Doorbell", "Arn"]}),
    ("Projector", f"{TABLE_STREAM}.MaximumRecordAgeInSeconds", -1),
    ("Projector", f"{TABLE_STREAM}.MaximumRecordAgeInSeconds", 604_800),
    ("Projector", f"{TABLE_STREAM}.MaximumRetryAttempts", 0),
    ("Projector", f"{TABLE_STREAM}.MetricsConfig", REMOVED),
    ("Projector", f"{TABLE_STREAM}.ParallelizationFactor", 20),
    ("Projector", f"{VARIABLES}.STREAMFOLD_TABLE_MAIN", REMOVED),
    ("Projector", f"{VARIABLES}.STREAMFOLD_STATE_TABLE", REMOVED),
    ("Projector", f"{VARIABLES}.STREAMFOLD_GROUP", "mian"),
    ("Projector", f"{VARIABLES}.STREAMFOLD_GRUOP", "main"),
    ("Projector", f"{VARIABLES}.STREAMFOLD_PARK", "parked"),
    ("Projector", f"{VARIABLES}.STREAMFOLD_ENGINE", "embedded:shop.db"),
    ("Projector", f"{VARIABLES}.STREAMFOLD_CHUNK_ACTIONS", 500),
    ("Projector", f"{VARIABLES}.STREAMFOLD_HANDLERS_OFF", "nobody"),
    ("Searcher", f"{VARIABLES}.STREAMFOLD_SEARCH", REMOVED),
    ("Searcher", f"{VARIABLES}.STREAMFOLD_SEARCH", "http://search.example.com"),
    ("Spreader", "Properties.Runtime", "python3.12"),
    ("Spreader", "Properties.Architectures", ["arm64", "x86_64"]),
    ("Spreader", "Properties.RecursiveLoop", REMOVED),
    ("Spreader", f"{VARIABLES}.STREAMFOLD_JOBS", REMOVED),
    ("Spreader", f"{MESSAGES}.FunctionResponseTypes", REMOVED),
    ("Spreader", f"{MESSAGES}.ScalingConfig.MaximumConcurrency", 1),
    ("Spreader", f"{MESSAGES}.FilterCriteria", {"Filters": [{"Pattern": '{"body":["x"]}'}]}),
    ("Spreader", f"{AGAIN}", {"Schedule": "rate(1 hour)", "Input": '{"ring": true}'}),
    ("Spreader", f"{AGAIN}", {"Schedule": "rate(5 minutes)", "Input": "{}"}),
    ("Spreader", f"{AGAIN}", {"Schedule": "rate(5 minutes)", "Input": '{"ring": true}', "Enabled": False}),
    ("Verifier", "Properties.Events", {}),
    ("Verifier", "Properties.Events.Daily.Properties.Input", '{"sample": -1}'),
    ("Table", "Properties.AttributeDefinitions", [{"AttributeName": "PK", "AttributeType": "N"}]),
    ("Table", "Properties.TimeToLiveSpecification.AttributeName", "expire"),
    ("Table", "Properties.TimeToLiveSpecification.Enabled", False),
    ("Table", "Properties.StreamSpecification", REMOVED),
    ("Table", "Properties.PointInTimeRecoverySpecification", REMOVED),
    ("Table", "UpdateReplacePolicy", REMOVED),
    ("StateTable", "DeletionPolicy", REMOVED),
    ("ArchiveBucket", "DeletionPolicy", REMOVED),
    ("ArchiveBucket", "Properties.BucketEncryption", REMOVED),
    ("FailureBucket", "Properties.PublicAccessBlockConfiguration", REMOVED),
    ("FailureBucket", "Properties.LifecycleConfiguration", REMOVED),
    ("Doorbell", "Properties.VisibilityTimeout", 60),
    ("Doorbell", "Properties.RedrivePolicy.maxReceiveCount", 1),
    ("Doorbell", "Properties.FifoQueue", True),
    ("Doorbell", "Properties.SqsManagedSseEnabled", False),
    ("DoorbellFailures", "Properties.MessageRetentionPeriod", REMOVED),
    ("SpreaderLog", "Properties.RetentionInDays", REMOVED),
    ("ProjectorRefused", "Properties.TreatMissingData", "breaching"),
    ("ProjectorRefused", "Properties.Statistic", "SampleCount"),
    ("ProjectorRefused", "Properties.Namespace", "Streamfold"),
    ("ProjectorRefused", "Properties.Threshold", 5),
    ("ProjectorRefused", "Properties.ActionsEnabled", False),
    ("ProjectorRefused", "Properties.AlarmActions", []),
    ("ProjectorGivenUp", "Properties.Dimensions", [{"Name": "FunctionName", "Value": {"Ref": "Projector"}}]),
    ("SearcherErrors", "Properties.Dimensions", [{"Name": "FunctionName", "Value": "searcher"}]),
    ("SpreaderAge", "Properties.Threshold", 1_800_000),
    ("SpreaderAge", "Properties.Threshold", 30),
)
"""Wrong values, each with its resource and path."""


def planted_value(template: dict, resource: str, path: str, value: object) -> None:
    """Puts a value at a path of a resource, or takes it out."""
    *before, last = path.split(".")
    found = template["Resources"][resource]
    for step in before:
        found = found.setdefault(step, {})
    if value is REMOVED:
        del found[last]
    else:
        found[last] = value
