"""An AWS account that answers calls that read: botocore's Stubber checks each answer against the service's model."""

import json
from copy import deepcopy
from functools import cache

import boto3
from botocore import xform_name
from botocore.stub import Stubber

REGION, OWNER = "us-east-1", "123456789012"
STREAM = f"arn:aws:dynamodb:{REGION}:{OWNER}:table/orders/stream/2026-03-01T09:00:00.000"
QUEUE = f"arn:aws:sqs:{REGION}:{OWNER}:doorbell"
DEAD = f"arn:aws:sqs:{REGION}:{OWNER}:dead"
UUID = "11111111-2222-3333-4444-555555555555"


ANSWERING = {}
"""The account that answers the calls of a service's client: a client takes long to make, so tests share it."""


@cache
def _client(service):
    client = boto3.client(
        service.partition(" ")[0], region_name=REGION, aws_access_key_id="nobody", aws_secret_access_key="unused"
    )
    stub = Stubber(client)
    client.meta.events.register(  # comes before the event with which the stub compares the call
        "provide-client-params.*.*",
        lambda params, model, **_: ANSWERING[service].answer(stub, xform_name(model.name), params),
    )
    stub.activate()
    return client


class Account:
    """What the account holds, as plain values that a test changes. ``refused``: operations that nobody may call."""

    def __init__(self, *, now):
        self.now = now
        self.asked = []
        self.refused = set()
        self.absent = set()
        variables = {
            "STREAMFOLD_TABLE_MAIN": "orders",
            "STREAMFOLD_STATE_TABLE": "state",
            "STREAMFOLD_GROUP": "main",
            "STREAMFOLD_PARK": "s3://failures/parked",
            "STREAMFOLD_JOBS": f"https://sqs.{REGION}.amazonaws.com/{OWNER}/doorbell",
        }
        self.functions = {
            name: {
                "FunctionName": name,
                "FunctionArn": f"arn:aws:lambda:{REGION}:{OWNER}:function:{name}",
                "Role": f"arn:aws:iam::{OWNER}:role/{name}",
                "Runtime": "python3.13",
                "Timeout": timeout,
                "Environment": {"Variables": dict(variables)},
            }
            for name, timeout in (("projector", 60), ("spreader", 120))
        }
        self.mappings = [
            {
                "UUID": UUID,
                "EventSourceArn": STREAM,
                "FunctionArn": f"arn:aws:lambda:{REGION}:{OWNER}:function:projector",
                "State": "Enabled",
                "StartingPosition": "TRIM_HORIZON",
                "FunctionResponseTypes": ["ReportBatchItemFailures"],
                "BisectBatchOnFunctionError": True,
                "MaximumRetryAttempts": 20,
                "MaximumRecordAgeInSeconds": 86_000,
                "BatchSize": 100,
                "MaximumBatchingWindowInSeconds": 1,
                "ParallelizationFactor": 1,
                "MetricsConfig": {"Metrics": ["EventCount"]},
                "DestinationConfig": {"OnFailure": {"Destination": "arn:aws:s3:::failures"}},
            },
            {
                "UUID": UUID.replace("1", "9"),
                "EventSourceArn": QUEUE,
                "FunctionArn": f"arn:aws:lambda:{REGION}:{OWNER}:function:spreader",
                "State": "Enabled",
                "FunctionResponseTypes": ["ReportBatchItemFailures"],
                "BatchSize": 1,
                "ScalingConfig": {"MaximumConcurrency": 10},
            },
        ]
        self.streams = {"orders": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}, "state": {}}
        self.expiring = {"orders": "expires", "state": "ttl"}
        self.recovered = {"orders", "state"}
        self.strong = set()  # tables with strong consistency across regions
        self.replicas, self.ids = {}, {"orders": "t-1", "state": "s-1"}
        own = {"identity": "first", "state": ["state", "s-1"], "table": ["orders", "t-1"], "delimiter": "#", "epoch": 0}
        self.marker = {"shop": {**own, "handlers": {}}}
        self.queues = {
            "doorbell": {
                "VisibilityTimeout": "720",
                "ApproximateNumberOfMessages": "0",
                "RedrivePolicy": json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 5}),
                "SqsManagedSseEnabled": "true",
            },
            "dead": {
                "ApproximateNumberOfMessages": "0",
                "MessageRetentionPeriod": "1209600",
                "SqsManagedSseEnabled": "true",
            },
        }
        self.objects = {"parked/": 0, f"aws/lambda/{UUID}/": 0}
        self.denied = set()
        self.ages_milliseconds = [1000.0]
        self.manifest = {"handlers": {}, "tables": {}, "epoch": 0, "retention_days": 30, "r": 1}
        self.fan_outs_started = []
        self.rules = {
            "again": {"event": {"ring": True}, "state": "ENABLED"},
            "wake": {"event": {"wake": True}, "state": "ENABLED"},
        }
        self.late_wakes = []  # the beginnings of their partitions, and their moments
        self.others = {}  # other accounts, by a role of each
        self.resources = [("AWS::Lambda::Function", "projector"), ("AWS::Lambda::Function", "spreader")]

    def client(self, service, role=None):
        """A client whose calls this account answers, until another account gives the client. By a role of another
        account, that one answers.
        """
        if role is not None:
            return self.others[role].client(f"{service} by role")
        ANSWERING[service] = self
        return _client(service)

    def answer(self, stub, operation, params):
        self.asked.append(operation)
        if operation in self.refused:
            stub.add_client_error(operation, "AccessDeniedException", "secret-of-a-refusal", 403)
        elif operation in self.absent:
            stub.add_client_error(operation, "ResourceNotFoundException", "not found", 404)
        else:
            stub.add_response(operation, deepcopy(getattr(self, operation)(**params)))

    def list_stack_resources(self, **_):
        return {
            "StackResourceSummaries": [
                {
                    "LogicalResourceId": name,
                    "PhysicalResourceId": name,
                    "ResourceType": kind,
                    "LastUpdatedTimestamp": self.now,
                    "ResourceStatus": "CREATE_COMPLETE",
                }
                for kind, name in self.resources
            ]
        }

    def get_function_configuration(self, FunctionName):  # noqa: N803 - boto3's
        return self.functions[FunctionName]

    def list_event_source_mappings(self, FunctionName=None, EventSourceArn=None):  # noqa: N803 - boto3's
        found = [each for each in self.mappings if each["FunctionArn"].endswith(f":{FunctionName}")]
        if EventSourceArn is not None:
            found = [each for each in self.mappings if each["EventSourceArn"] == EventSourceArn]
        return {"EventSourceMappings": found}

    def describe_table(self, TableName):  # noqa: N803 - boto3's
        arn = f"arn:aws:dynamodb:{REGION}:{OWNER}:table/{TableName}"
        found = self.streams[TableName]
        replicas = [{"RegionName": region} for region in self.replicas.get(TableName, ())]
        return {
            "Table": {
                "TableArn": arn,
                "TableId": self.ids[TableName],
                **({"StreamSpecification": found} if found else {}),
                **({"Replicas": replicas} if replicas else {}),
                **({"MultiRegionConsistency": "STRONG"} if TableName in self.strong else {}),
            }
        }

    def describe_time_to_live(self, TableName):  # noqa: N803 - boto3's
        if (attribute := self.expiring[TableName]) is None:
            return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
        return {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED", "AttributeName": attribute}}

    def describe_continuous_backups(self, TableName):  # noqa: N803 - boto3's
        status = "ENABLED" if TableName in self.recovered else "DISABLED"
        recovery = {"PointInTimeRecoveryStatus": status}
        return {
            "ContinuousBackupsDescription": {
                "ContinuousBackupsStatus": "ENABLED",
                "PointInTimeRecoveryDescription": recovery,
            }
        }

    def get_item(self, Key, **_):  # noqa: N803 - boto3's
        if Key.get("pk", {}).get("S") == "identity":
            return {"Item": {"s": {"S": "first"}}}
        if "PK" in Key:
            return {"Item": {"_sf_i": {"S": json.dumps(self.marker)}}} if self.marker else {}
        values = {name: json.dumps(self.manifest[name]) for name in ("handlers", "tables")}
        numbers = {name: {"N": str(self.manifest[name])} for name in ("epoch", "retention_days", "r")}
        return {"Item": {**{name: {"S": text} for name, text in values.items()}, **numbers}}

    def list_rule_names_by_target(self, TargetArn):  # noqa: N803 - boto3's
        return {"RuleNames": [*self.rules]}

    def list_targets_by_rule(self, Rule):  # noqa: N803 - boto3's
        arn = self.functions["spreader"]["FunctionArn"]
        return {"Targets": [{"Id": "1", "Arn": arn, "Input": json.dumps(self.rules[Rule]["event"])}]}

    def describe_rule(self, Name):  # noqa: N803 - boto3's
        return {"Name": Name, "ScheduleExpression": "rate(1 minute)", "State": self.rules[Name]["state"]}

    def query(self, ExpressionAttributeValues, **_):  # noqa: N803 - boto3's
        if ":sk" in ExpressionAttributeValues:
            begin = ExpressionAttributeValues[":pk"]["S"].rpartition("#")[0]
            found = [
                each
                for each in self.late_wakes
                if (each[0], True) == (begin, each[1] < ExpressionAttributeValues[":sk"]["S"])
            ]
            return {"Items": [{"sk": {"S": moment}} for _, moment in found[:1]]}
        return {"Items": [{"s": {"S": json.dumps({"started": each})}} for each in self.fan_outs_started]}

    def get_queue_attributes(self, QueueUrl, AttributeNames):  # noqa: N803 - boto3's
        return {"Attributes": self.queues[QueueUrl.rpartition("/")[2]]}

    def list_objects_v2(self, Bucket, Prefix, MaxKeys):  # noqa: N803 - boto3's
        keys = [{"Key": f"{Prefix}secret-of-a-key-{number}"} for number in range(self.objects[Prefix])]
        return {"KeyCount": len(keys), "Contents": keys}

    def simulate_principal_policy(self, PolicySourceArn, ActionNames, ResourceArns):  # noqa: N803 - boto3's
        return {
            "EvaluationResults": [
                {"EvalActionName": action, "EvalDecision": "implicitDeny" if action in self.denied else "allowed"}
                for action in ActionNames
            ]
        }

    def get_metric_statistics(self, **_):
        return {"Datapoints": [{"Timestamp": self.now, "Maximum": age} for age in self.ages_milliseconds]}
