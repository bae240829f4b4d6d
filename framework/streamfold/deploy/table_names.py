"""Values of a template; what tables and other resources are called in it, and in which accounts they are.

AWS allows a call to a resource of another account only if both sides do. ``accounts`` makes the documents of the other
side.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from streamfold.deploy.deployed import ASSUME, queue_arn_url
from streamfold.deploy.functions import STATE_RESOURCE, Deployment, ExistingTable
from streamfold.deploy.permissions import Permission, Place
from streamfold.errors import SettingsError
from streamfold.keys.table import STATE
from streamfold.routes.checks import RoleOf
from streamfold.settings import ROLE_PREFIX, Settings, environment_name
from streamfold.settings.readers import PREFIX, account_of, account_of_role

TemplateValue = Any
"""A value of a template: plain, or a function of CloudFormation as an object."""


def ref(name: str) -> TemplateValue:
    return {"Ref": name}


def att(name: str, attribute: str = "Arn") -> TemplateValue:
    return {"Fn::GetAtt": [name, attribute]}


def sub(text: str) -> TemplateValue:
    return {"Fn::Sub": text}


def if_(condition: str, one: TemplateValue, other: TemplateValue) -> TemplateValue:
    return {"Fn::If": [condition, one, other]}


NO_VALUE = ref("AWS::NoValue")
SECRETS_MANAGER = "secretsmanager"
ACCOUNT = re.compile(r"\d{12}")
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""Names of buckets (S3 User Guide, bucketnamingrules)."""
QUEUE_ARN = re.compile(r"arn:[\w-]+:sqs:([\w-]+):(\d{12}):[\w-]+")
FAILURES, ARCHIVE = "failures", "archive"
IN_FAILURES = ("failure bucket", "parking bucket", "failures", "parked")
"""Places in the bucket of records that failed."""


class SharedBucket(NamedTuple):
    """A bucket of another account."""

    name: str
    account: str

    def arn(self, below: str = "") -> str:
        return f"arn:aws:s3:::{self.name}{below}"


class OtherAccounts(NamedTuple):
    """What a deployment takes of other accounts. ``account``: its own; None: nobody said."""

    account: str | None = None
    settings: Settings = Settings()  # with the roles
    buckets: Mapping[str, SharedBucket] = {}  # FAILURES and ARCHIVE
    queue: str | None = None  # its ARN

    @property
    def role_of(self) -> RoleOf:
        return self.settings.role_of

    def is_foreign(self, arn: object) -> bool:
        """Whether a stream is in another account than the functions, as far as anybody said."""
        return self.account is not None and account_of(arn) not in (None, self.account)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a function that name roles."""
        named = {ROLE_PREFIX + environment_name(name): role for name, role in self.settings.roles.items()}
        return {**({PREFIX + "ROLE": self.settings.role} if self.settings.role else {}), **named}

    @property
    def queue_url(self) -> str | None:
        return None if self.queue is None else queue_arn_url(self.queue)

    def location(self, kind: str, prefix: str = "") -> str | None:
        """Where records or archives go in a bucket of another account; None for an own one."""
        bucket = self.buckets.get(kind)
        return None if bucket is None else f"s3://{bucket.name}{prefix}"

    def arn_of(self, place: Place) -> str | None:
        """The ARN of a place in a bucket or queue of another account, or of a role; None for a place of the own one."""
        bucket = self.buckets.get(FAILURES if place.kind in IN_FAILURES else place.kind)
        match place.kind:
            case "role":
                return place.name
            case "queue":
                return self.queue
            case "failure bucket" | "parking bucket" | "archive" | "failures" | "parked" if bucket is not None:
                below = {"archive": "/*", "failures": "/aws/lambda/*", "parked": "/parked/*"}
                return bucket.arn(below.get(place.kind, ""))
        return None

    def conditioned(self, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """A statement of a bucket with the condition that the bucket is still that account's: names of buckets are free
        again when one is deleted.
        """
        resource = str(statement.get("Resource")).partition("/")[0]
        accounts = [each.account for each in self.buckets.values() if each.arn() == resource]
        if not accounts:
            return statement
        return {**statement, "Condition": {"StringEquals": {"aws:ResourceAccount": accounts[0]}}}


def by_own_role(granted: Iterable[Permission], role_of: RoleOf) -> set[Permission]:
    """What the role of a function itself may do: to assume other roles, in place of what these do."""
    found = set()
    for each in granted:
        role = _role(each.place, role_of)
        found.add(each if role is None else Permission(ASSUME, Place("role", role)))
    return found


def by_role(granted: Iterable[Permission], role_of: RoleOf) -> dict[str, set[Permission]]:
    """What each role of another account does for a function."""
    found: dict[str, set[Permission]] = {}
    for each in granted:
        if (role := _role(each.place, role_of)) is not None:
            found.setdefault(role, set()).add(each)
    return found


def _role(place: Place, role_of: RoleOf) -> str | None:
    if place.kind == "state":
        return role_of(STATE.name)
    return role_of(place.name) if place.kind == "table" else None


def state_table(application: str) -> str:
    """The name of a state table that a template does not make."""
    return f"{application}-state"


def shared_bucket(option: str, text: str) -> tuple[str, SharedBucket]:
    """A bucket of an option, ``failures=NAME/ACCOUNT``. Raises ``SettingsError``."""
    kind, _, named = text.partition("=")
    name, _, account = named.partition("/")
    if kind not in (FAILURES, ARCHIVE) or not BUCKET_NAME.fullmatch(name) or not ACCOUNT.fullmatch(account):
        raise SettingsError(
            f"{option} {text!r} is no bucket of another account: expected {FAILURES}=NAME/ACCOUNT or "
            f"{ARCHIVE}=NAME/ACCOUNT, such as {ARCHIVE}=central-archive/222222222222."
        )
    return kind, SharedBucket(name, account)


def own_account(text: str) -> str:
    """The number of the functions' account. Raises ``SettingsError``."""
    if not ACCOUNT.fullmatch(text):
        raise SettingsError(f"--account {text!r} is no account: expected its twelve digits.")
    return text


def shared_queue(text: str) -> str:
    """The ARN of a queue. Raises ``SettingsError``."""
    if not QUEUE_ARN.fullmatch(text):
        raise SettingsError(f"--queue {text!r} is no queue: expected arn:aws:sqs:REGION:ACCOUNT:NAME.")
    return text


class TemplateSecret(NamedTuple):
    """A secret that the functions of a template may read."""

    parameter: str  # with its name in Secrets Manager
    condition: str

    @property
    def setting(self) -> TemplateValue:
        return if_(self.condition, sub(f"secretsmanager:${{{self.parameter}}}"), NO_VALUE)

    @property
    def arn(self) -> TemplateValue:
        """Secrets Manager adds six letters to the name (User Guide, Secret ARN)."""
        place = "arn:${AWS::Partition}:secretsmanager:${AWS::Region}:${AWS::AccountId}"
        return sub(f"{place}:secret:${{{self.parameter}}}-??????")


TEMPLATE_SECRETS = {
    "audit_key": TemplateSecret("AuditKeySecret", "SignsHistory"),
    "search_password": TemplateSecret("SearchPasswordSecret", "SearchesAsUser"),
}
"""By the settings that refer to them."""


class TableNames(NamedTuple):
    """What the tables of a deployment are called in its template. ``existing``: those that are there already."""

    deployment: Deployment
    existing: Mapping[str, ExistingTable]
    elsewhere: OtherAccounts = OtherAccounts()

    def resource(self, logical: str) -> str:
        return self.deployment.resource_of(logical)

    def arn(self, logical: str) -> TemplateValue:
        """The ARN of a table of the application, or of the state."""
        account = account_of_role(self.elsewhere.role_of(logical)) or "${AWS::AccountId}"
        if logical == STATE.name:
            return att(STATE_RESOURCE) if self.has_state else self._arn(account, str(self.state))
        if logical in self.existing:
            existing = self.existing[logical]
            if existing.stream and not existing.on_kinesis:  # the ARN of its stream has its region and account
                return existing.stream.partition("/stream/")[0]
            return self._arn(account, existing.name, self.deployment.app.tables[logical].region or "${AWS::Region}")
        region = self.deployment.app.tables[logical].region
        if region is not None:
            parameter = self.resource(logical) + "Name"
            return sub(f"arn:${{AWS::Partition}}:dynamodb:{region}:{account}:table/${{{parameter}}}")
        return att(self.resource(logical))

    @staticmethod
    def _arn(account: str, name: str, region: str = "${AWS::Region}") -> TemplateValue:
        return sub(f"arn:${{AWS::Partition}}:dynamodb:{region}:{account}:table/{name}")

    @property
    def has_state(self) -> bool:
        """Whether the template makes the state table: it is in the functions' own account."""
        return self.elsewhere.role_of(STATE.name) is None

    @property
    def state(self) -> TemplateValue:
        """The name of the state table in its account."""
        return ref(STATE_RESOURCE) if self.has_state else state_table(self.deployment.app.name)

    def stream_arn(self, logical: str) -> TemplateValue:
        existing = self.existing.get(logical)
        return existing.stream if existing else att(self.resource(logical), "StreamArn")

    def event(self, logical: str) -> str:
        return f"{self.resource(logical)}Stream"

    def real(self, logical: str) -> TemplateValue:
        """The name of a table in the account."""
        if logical in self.existing:
            return self.existing[logical].name
        if self.deployment.app.tables[logical].region is not None:
            return ref(self.resource(logical) + "Name")
        return ref(self.resource(logical))

    @property
    def watched(self) -> dict[str, TemplateValue]:
        """The tables whose metrics are in the account of the functions: real names by resource."""
        own = [table.name for table in self.deployment.tables if self.elsewhere.role_of(table.name) is None]
        found = {self.resource(name): self.real(name) for name in own}
        return {**found, STATE_RESOURCE: self.state} if self.has_state else found

    @property
    def with_permissions(self) -> dict[str, Any]:
        """The tables whose streams or keys need permissions of their own, and where secrets are."""
        kinesis = [name for name, table in self.existing.items() if table.on_kinesis]
        encrypted = [name for name, table in self.existing.items() if table.key]
        return {"kinesis": kinesis, "encrypted": encrypted, "secrets": dict.fromkeys(TEMPLATE_SECRETS, SECRETS_MANAGER)}
