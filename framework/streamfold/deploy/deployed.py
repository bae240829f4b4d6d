"""What is deployed, as AWS describes it: functions, mappings, tables, queues, and the manifest of the state.

Everything here reads, and makes each call once. A call that the caller may not make raises ``NotAllowed``, and one
about something that does not exist ``NotThere``: a diagnosis has to distinguish them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from streamfold.batch.manifest import Manifest
from streamfold.engines.dynamodb_client import FORBIDDEN, plain_item, unreachable
from streamfold.errors import EngineError, RoleRefused, SettingsError, redacted, refusal
from streamfold.ledger.state_keys import manifest_key
from streamfold.parking import make_client
from streamfold.settings import Settings
from streamfold.settings.readers import PREFIX

REFUSED = (*FORBIDDEN, "AuthorizationError", "UnauthorizedOperation", "403")
"""Codes of a refused permission; S3 gives a bare 403 where the answer has no body."""
ABSENT = (
    "ResourceNotFoundException",
    "NoSuchBucket",
    "NoSuchEntity",
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "404",
)
DYNAMODB, KINESIS, SQS = "dynamodb", "kinesis", "sqs"
"""The services whose records a mapping brings."""
PAGES = {
    "cloudformation": ("NextToken", "NextToken"),
    "iam": ("Marker", "Marker"),
    "lambda": ("Marker", "NextMarker"),
}
"""The next page of a list: the name that a call has for it, and the name in an answer."""
LISTED_MAPPINGS = ("lambda", "list_event_source_mappings", "EventSourceMappings")
LISTED_MAX = 1000
"""Objects that are counted, and items of one page."""
DNS_SUFFIX = "amazonaws.com"
DNS_SUFFIXES = {
    "aws-cn": "amazonaws.com.cn",
    "aws-eusc": "amazonaws.eu",
    "aws-iso": "c2s.ic.gov",
    "aws-iso-b": "sc2s.sgov.gov",
    "aws-iso-e": "cloud.adc-e.uk",
    "aws-iso-f": "csp.hci.ic.gov",
}
"""The ends of hosts, of partitions that have another one (``partitions`` of botocore)."""
BUCKET_ARN = re.compile(r"arn:[^:]+:s3:::([^/]+)")
FUNCTION_RESOURCE = "AWS::Lambda::Function"


ASSUME = "sts:AssumeRole"
"""What a person or a function needs to work by a role of another account."""


class NotAllowed(Exception):  # noqa: N818 - named by what the line says
    """A permission to look is missing; the message is its action."""


class NotThere(Exception):  # noqa: N818 - named by what the line says
    """What was asked about does not exist."""


class Account:
    """The AWS account and region of the environment. ``clients``: makes the client of a service, by a role too."""

    def __init__(self, clients: Callable[..., Any] = make_client) -> None:
        self._make = clients
        self._clients: dict[str, Any] = {}
        self._responses: dict[tuple[str, str, str], Mapping[str, Any]] = {}
        self._by_role: dict[str, Account] = {}

    def of(self, role: str | None) -> "Account":
        """The account of a role, as it sees that account; this one without a role."""
        if role is None:
            return self
        return self._by_role.setdefault(role, Account(lambda service: self._make(service, role=role)))

    def ask(self, service: str, operation: str, **given: Any) -> Mapping[str, Any]:
        """The answer of a call that reads. Raises ``NotAllowed``, ``NotThere`` and ``EngineError``."""
        asked = service, operation, repr(sorted(given.items(), key=str))
        if asked not in self._responses:
            self._responses[asked] = self._call(service, operation, given)
        return self._responses[asked]

    def pages(self, service: str, operation: str, listed: str, **given: Any) -> Iterator[Any]:
        """The entries of a list that comes in pages. Raises as ``ask``."""
        takes, gives = PAGES[service]
        answer = self.ask(service, operation, **given)
        yield from answer.get(listed, ())
        while answer.get(gives):
            answer = self.ask(service, operation, **given, **{takes: answer[gives]})
            yield from answer.get(listed, ())

    def table(self, name: str) -> Mapping[str, Any]:
        return self.ask(DYNAMODB, "describe_table", TableName=name)["Table"]  # type: ignore[no-any-return]

    def objects(self, bucket: str, prefix: str) -> int:
        """How many objects a bucket has, up to ``LISTED_MAX``. Raises as ``ask``."""
        return int(self.ask("s3", "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=LISTED_MAX)["KeyCount"])

    def queue(self, url: str) -> Mapping[str, str]:
        """The attributes of a queue. Raises as ``ask``."""
        found = self.ask(SQS, "get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        return found.get("Attributes", {})  # type: ignore[no-any-return]

    def messages(self, url: str) -> int:
        """How many messages wait in a queue, about. Raises as ``ask``."""
        return int(self.queue(url).get("ApproximateNumberOfMessages", 0))

    def _call(self, service: str, operation: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if service not in self._clients:
            self._clients[service] = self._make(service)
        client = self._clients[service]
        try:
            answer: Mapping[str, Any] = getattr(client, operation)(**given)
            return answer
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            if code in REFUSED:
                raise NotAllowed(f"{service}:{client.meta.method_to_api_mapping[operation]}") from None
            if code in ABSENT:
                raise NotThere from None
            raise EngineError(f"{service} refused {operation} with {refusal(error)}.") from None
        except RoleRefused:
            raise NotAllowed(ASSUME) from None
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise unreachable(error) from None
        except BotoCoreError as error:
            raise EngineError(f"{service} could not be asked: {redacted(error)}. Check the region.") from None


@dataclass(frozen=True)
class LiveMapping:
    """An event source mapping, as Lambda describes it."""

    content: Mapping[str, Any]

    @property
    def source_arn(self) -> str:
        return str(self.content.get("EventSourceArn", ""))

    @property
    def service(self) -> str:
        """The service that the records come from."""
        return (self.source_arn.split(":") + [""] * 3)[2]

    @property
    def table(self) -> str | None:
        """The real name of the table whose stream this is; None for another source."""
        return self.source_arn.split("/")[1] if self.service == DYNAMODB and "/" in self.source_arn else None

    @property
    def failures_to(self) -> str | None:
        """The ARN of the destination of records that are given up."""
        found: str | None = self.content.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")
        return found

    @property
    def patterns(self) -> tuple[str, ...]:
        """Its filter. Raises ``NotAllowed`` where a key of its own encrypts it."""
        if "FilterCriteriaError" in self.content:
            raise NotAllowed("kms:Decrypt")
        return tuple(each["Pattern"] for each in (self.content.get("FilterCriteria") or {}).get("Filters", ()))


@dataclass(frozen=True)
class LiveFunction:
    """A function of Lambda."""

    account: Account = field(repr=False)
    name: str

    @cached_property
    def described(self) -> Mapping[str, Any]:
        """Its configuration. Raises as ``Account.ask``."""
        return self.account.ask("lambda", "get_function_configuration", FunctionName=self.name)

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """Its environment. Raises ``NotAllowed`` too where a key of its own encrypts it."""
        environment = self.described.get("Environment", {})
        if "Error" in environment:
            raise NotAllowed("kms:Decrypt")
        return environment.get("Variables", {})  # type: ignore[no-any-return]

    @cached_property
    def settings(self) -> Settings:
        """Its settings. Raises ``SettingsError`` and as ``variables``."""
        return Settings.from_environment(self.variables)

    @property
    def runs_streamfold(self) -> bool:
        return any(name.startswith(PREFIX) for name in self.variables)

    @cached_property
    def mappings(self) -> tuple[LiveMapping, ...]:
        """Its event source mappings. Raises as ``Account.ask``."""
        listed = self.account.pages(*LISTED_MAPPINGS, FunctionName=self.name)
        return tuple(map(LiveMapping, listed))


def functions_of_stack(account: Account, stack: str) -> list[LiveFunction]:
    """The functions of a stack that run streamfold. Raises ``SettingsError`` where there is none."""
    try:
        listed = [*account.pages("cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=stack)]
    except NotAllowed as refused:
        raise SettingsError(
            f"--stack {stack!r} needs the permission {refused}: name the functions instead, --function NAME."
        ) from None
    names = sorted(each["PhysicalResourceId"] for each in listed if each["ResourceType"] == FUNCTION_RESOURCE)
    functions = [LiveFunction(account, name) for name in names]
    found = [each for each in functions if _runs_streamfold(each)]
    if not found:
        among = ", ".join(names) or "none"
        raise SettingsError(
            f"--stack {stack!r} has no function with a {PREFIX}* variable, among: {among}. Expected the stack of the "
            "application."
        )
    return found


def _runs_streamfold(function: LiveFunction) -> bool:
    try:
        return function.runs_streamfold
    except NotAllowed:  # its lines say that nobody may look
        return True


def manifest_of(account: Account, state_table: str, application: str) -> Manifest:
    """The manifest in a state table. Raises as ``Account.ask``."""
    pk, sk = manifest_key(application)
    answer = account.ask(
        DYNAMODB, "get_item", TableName=state_table, Key={"pk": {"S": pk}, "sk": {"S": sk}}, ConsistentRead=True
    )
    return Manifest.of(plain_item(answer.get("Item", {})))


def queue_arn_url(arn: str) -> str:
    """The URL of a queue (SQS Developer Guide, sqs-queue-message-identifiers)."""
    _, partition, _, region, owner, name = arn.split(":", 5)
    return f"https://sqs.{region}.{DNS_SUFFIXES.get(partition, DNS_SUFFIX)}/{owner}/{name}"


def bucket_of(arn: str | None) -> str | None:
    """The name of a bucket by its ARN, in any partition; None for the ARN of something else."""
    found = BUCKET_ARN.fullmatch(arn or "")
    return found[1] if found else None
