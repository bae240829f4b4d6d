"""The parameters of a template, the conditions that follow from them, and the topics of its alarms.

``CHOICES`` are those with bounds and a reason of the default: ``--check`` takes any value within the bounds.
docs/template.md has the same table.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamfold.deploy.alarms import Severity
from streamfold.errors import manual
from streamfold.routes.route import AGE_SECONDS_MAX, ATTEMPTS_MAX
from streamfold.settings.readers import RETENTION_DAYS_MIN
from streamfold.testing.mapping_settings import AGE_SECONDS_MIN, RANGES

LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653)
"""Retentions of a log group (CloudWatch Logs API Reference, PutRetentionPolicy)."""
MEMORY_MB_MIN, MEMORY_MB_MAX = 256, 10_240
"""A batch needs less, but the share of a CPU grows with the memory (Lambda Developer Guide, configuration-memory)."""
ARCHITECTURES = ("arm64", "x86_64")
RECORD_DAYS = 1
"""The age that a record may have when a bucket gets it: a stream keeps it for a day."""
RECORD_AGE_SECONDS = 86_000
"""The mapping of a new deployment begins with the oldest record of the stream. With half a day, it gave up half of the
stream before a function saw it. Some minutes remain for the failure bucket to get what is given up."""


def failure_days_max(retention_days: float) -> float:
    """The longest that failed records may be kept beside claims: one that is redriven has to find its claims."""
    return retention_days - RECORD_DAYS - 1


class Choice(NamedTuple):
    """A parameter of a template."""

    name: str
    default: Any
    reason: str
    minimum: int | None = None
    most: int | None = None
    values: tuple[Any, ...] = ()

    @property
    def bounds(self) -> str:
        """The values that may be chosen, for a person."""
        if self.values:
            return " or ".join(map(str, self.values)) if len(self.values) < 3 else "what CloudWatch Logs takes"
        return "an ARN, or nothing" if self.minimum is None else f"{self.minimum:,} to {self.most:,}"

    @property
    def parameter(self) -> dict[str, Any]:
        """The parameter as CloudFormation takes it."""
        kind = "Number" if isinstance(self.default, int) else "String"
        found: dict[str, Any] = {"Type": kind, "Default": self.default, "Description": self.reason}
        if self.minimum is not None:
            found |= {"MinValue": self.minimum, "MaxValue": self.most}
        if self.values:
            found["AllowedValues"] = list(self.values)
        return found


CHOICES = (
    Choice(
        "BatchSize",
        100,
        "Records of a batch. A larger one writes a hot row less often; a smaller one is applied sooner",
        *RANGES["batch_size"],
    ),
    Choice(
        "WindowSeconds",
        1,
        "How long a batch waits for more records. 0 applies them sooner, and writes hot rows more often",
        *RANGES["window_seconds"],
    ),
    Choice(
        "ParallelizationFactor",
        1,
        "Batches of a shard side by side. More where the age of the stream grows; hot rows then conflict more often",
        *RANGES["parallelization_factor"],
    ),
    Choice(
        "Retries",
        20,
        "Tries of a failing record, 7 to 25 minutes, until the failure bucket gets it. Its shard waits meanwhile",
        1,
        ATTEMPTS_MAX,
    ),
    Choice(
        "RecordAgeSeconds",
        RECORD_AGE_SECONDS,
        "Age of a record until the failure bucket gets it: nearly the day that a stream keeps it, all of the first one",
        AGE_SECONDS_MIN,
        AGE_SECONDS_MAX - 1,
    ),
    Choice(
        "MemorySize",
        512,
        "MB of a function. A batch needs far less, but the share of a CPU grows with the memory",
        MEMORY_MB_MIN,
        MEMORY_MB_MAX,
    ),
    Choice(
        "Architecture",
        "arm64",
        "The processor. The functions hold pure Python only; a layer with binaries decides it",
        values=ARCHITECTURES,
    ),
    Choice(
        "RetentionDays",
        RETENTION_DAYS_MIN,
        "Days that claims and the ledger of removed items are kept: longer than the oldest record that is redriven",
        RETENTION_DAYS_MIN,
        3650,
    ),
    Choice(
        "FailureDays",
        int(failure_days_max(RETENTION_DAYS_MIN)),
        "Days that failed records are kept, with their contents: shorter than claims",
        1,
        int(failure_days_max(RETENTION_DAYS_MIN)),
    ),
    Choice("LogDays", 30, "Days that logs are kept. They hold no contents of items", values=LOG_DAYS),
    Choice(
        "OlderCode",
        "off",
        f"on while two versions of the code run, as in a canary, and after a rollback ({manual('changing-code')})",
        values=("off", "on"),
    ),
    Choice(
        "ShowDashboard",
        "on",
        "on: the stack has a dashboard in CloudWatch, which bills each beyond three of an account at $3 a month",
        values=("on", "off"),
    ),
    Choice("KeyArn", "", "A key of your own (KMS) for both tables; without one, DynamoDB's own key encrypts them"),
)
"""In the order of the page."""


def choice_of(name: str) -> Choice:
    return next(each for each in CHOICES if each.name == name)


NAME_PATTERN = r"^[\w/+=.@-]*$"
"""Names of secrets (Secrets Manager API Reference, CreateSecret)."""


def _is_empty(parameter: str) -> dict[str, Any]:
    return {"Fn::Equals": [{"Ref": parameter}, ""]}


class AlarmTopic(NamedTuple):
    """The topic of the alarms of a severity: one that is there already, or the stack's own with a mail address.

    ``name`` is the resource of the own topic, ``mail`` the parameter of the address. The conditions are ``is_own``,
    ``mails`` (the own topic has an address) and ``is_silent`` (nobody is notified). ``output`` is what an operator
    reads to learn who is notified.
    """

    severity: Severity
    alarms: str  # those that it gets, for a person

    @property
    def name(self) -> str:
        return f"{self.severity.title()}Topic"

    @property
    def is_own(self) -> str:
        return f"Own{self.name}"

    @property
    def mails(self) -> str:
        return f"Mail{self.severity.title()}s"

    @property
    def is_silent(self) -> str:
        return f"NobodyGets{self.severity.title()}s"

    @property
    def arn(self) -> dict[str, Any]:
        return {"Fn::If": [self.is_own, {"Ref": self.name}, {"Ref": f"{self.name}Arn"}]}

    @property
    def mail(self) -> str:
        return f"{self.severity.title()}Mail"

    @property
    def parameters(self) -> dict[str, Any]:
        topic = f"The SNS topic of {self.alarms}; empty, and the stack makes one"
        address = f"A mail address to which the stack's own topic sends {self.alarms}"
        pattern = "^([^@ ]+@[^@ ]+)?$"
        return {
            f"{self.name}Arn": {"Type": "String", "Default": "", "Description": topic},
            self.mail: {"Type": "String", "Default": "", "AllowedPattern": pattern, "Description": address},
        }

    @property
    def conditions(self) -> dict[str, Any]:
        own, has_no_mail = {"Condition": self.is_own}, _is_empty(self.mail)
        return {
            self.is_own: _is_empty(f"{self.name}Arn"),
            self.mails: {"Fn::And": [own, {"Fn::Not": [has_no_mail]}]},
            self.is_silent: {"Fn::And": [own, has_no_mail]},
        }

    @property
    def resources(self) -> dict[str, Any]:
        subscription = {"TopicArn": {"Ref": self.name}, "Protocol": "email", "Endpoint": {"Ref": self.mail}}
        return {
            self.name: {"Type": "AWS::SNS::Topic", "Condition": self.is_own},
            f"{self.severity.title()}Subscription": {
                "Type": "AWS::SNS::Subscription",
                "Condition": self.mails,
                "Properties": subscription,
            },
        }

    @property
    def output(self) -> dict[str, Any]:
        nobody = f"NOBODY: subscribe to ${{{self.name}}}, or deploy with {self.mail} or {self.name}Arn"
        somebody = {"Fn::If": [self.is_own, {"Ref": self.mail}, {"Ref": f"{self.name}Arn"}]}
        value = {"Fn::If": [self.is_silent, {"Fn::Sub": nobody}, somebody]}
        return {f"{self.severity.title()}sGoTo": {"Description": f"Who gets {self.alarms}", "Value": value}}


TOPICS: Mapping[Severity, AlarmTopic] = {
    severity: AlarmTopic(severity, text)
    for severity, text in {
        Severity.PAGE: "alarms that a person has to see at once",
        Severity.TICKET: "alarms that can wait for the next working day",
    }.items()
}
ALARM_PARAMETERS = {name: each for topic in TOPICS.values() for name, each in topic.parameters.items()}


def search_parameters(*, are_required: bool) -> dict[str, Any]:
    """The parameters of a search server. A search beside other handlers of its group requires them: without a server,
    none of these handlers runs.
    """

    def parameter(pattern: str, text: str) -> dict[str, Any]:
        optional = {"Default": "", "AllowedPattern": f"^({pattern})?$"}
        own = {"AllowedPattern": f"^{pattern}$"} if are_required else optional
        return {"Type": "String", **own, "Description": text}

    without = "" if are_required else "; empty: no search function"
    where = f"Where documents go, https://HOST of an OpenSearch domain{without}"
    domain = "The name of that domain, in this account and region, for permissions"
    return {
        "SearchEndpoint": parameter("https://[^/@?# ]+", where),
        "SearchDomain": parameter("[a-z][a-z0-9-]{2,27}", domain),
        "SearchUser": {
            "Type": "String",
            "Default": "",
            "Description": "A user of the search server; empty, and requests are signed with the function's role",
        },
        "SearchPasswordSecret": secret_parameter("the user's password"),
    }


def secret_parameter(what: str) -> dict[str, Any]:
    """The parameter of a secret, which functions read by themselves: no template and no function's settings show it."""
    text = f"The name of a secret of Secrets Manager, in this account and region, whose text is {what}; empty: none"
    return {"Type": "String", "Default": "", "AllowedPattern": NAME_PATTERN, "Description": text}


CONDITIONS = {
    "OwnKey": {"Fn::Not": [_is_empty("KeyArn")]},
    **{name: each for topic in TOPICS.values() for name, each in topic.conditions.items()},
}
SEARCH_CONDITIONS = {
    "Searches": {"Fn::Not": [_is_empty("SearchEndpoint")]},
    "SearchesAsUser": {"Fn::Not": [_is_empty("SearchPasswordSecret")]},
}
HISTORY_CONDITIONS = {"SignsHistory": {"Fn::Not": [_is_empty("AuditKeySecret")]}}
SEARCH_RULES = {
    "SearchHasDomain": {
        "RuleCondition": {"Fn::Not": [_is_empty("SearchEndpoint")]},
        "Assertions": [
            {
                "Assert": {"Fn::Not": [_is_empty("SearchDomain")]},
                "AssertDescription": "SearchEndpoint needs SearchDomain, the name of the domain behind it",
            }
        ],
    },
    "SearchUserHasPassword": {
        "RuleCondition": {"Fn::Not": [{"Fn::And": [_is_empty("SearchUser"), _is_empty("SearchPasswordSecret")]}]},
        "Assertions": [
            {
                "Assert": {"Fn::Not": [{"Fn::Or": [_is_empty("SearchUser"), _is_empty("SearchPasswordSecret")]}]},
                "AssertDescription": "SearchUser and SearchPasswordSecret go together",
            }
        ],
    },
}
