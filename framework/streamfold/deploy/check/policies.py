"""The roles of a template: each function may do what its handlers and its mapping do, and nothing else."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from streamfold.deploy.check.functions import roles_of
from streamfold.deploy.check.review import FoundFunction, Review, described, referred_secret
from streamfold.deploy.check.stores import statements
from streamfold.deploy.deployed import queue_arn_url
from streamfold.deploy.destinations import DESTINATION, destination_named
from streamfold.deploy.functions import DESCRIBE, STATE_TABLE
from streamfold.deploy.permissions import Permission, Place
from streamfold.deploy.rules import ENCRYPTED_REQUESTS, TRUSTED
from streamfold.deploy.table_names import ACCOUNT, QUEUE_ARN, by_own_role
from streamfold.deploy.template_file import ABSENT, PSEUDO, VARIABLE, Resource, Unknown, written_location
from streamfold.errors import SettingsError
from streamfold.settings import SECRETS
from streamfold.settings.readers import PREFIX, SecretReference

SERVICES = ("dynamodb", "kinesis", "s3", "sqs", "sns", "events", "es", "logs")
"""Services that the framework calls. What a function is allowed of others is its handlers' own business."""
LOG_ACTIONS = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")
MANAGED: Mapping[str, Sequence[str]] = {
    "AWSLambdaBasicExecutionRole": LOG_ACTIONS,
    "AWSLambdaVPCAccessExecutionRole": LOG_ACTIONS,
    "AWSXRayDaemonWriteAccess": (),
    "CloudWatchLambdaInsightsExecutionRolePolicy": (),
}
"""Policies of AWS that let a function write its log, be traced, measured and put into a network, and read nothing. With
the actions that a function needs (AWS Managed Policy Reference)."""
EVERY_STREAM = "SAM would add a policy that reads every stream of the account"
ALWAYS_HOLD = (
    "aws:securetransport",
    "aws:requestedregion",
    "aws:principalaccount",
    "aws:resourceaccount",
    "aws:sourceaccount",
    "aws:resourceorgid",
    "aws:principalorgid",
    "kms:viaservice",
    "kms:calleraccount",
)
"""Keys of conditions that hold for a function's calls, where they name the stack's own region, account and services."""


EVERY_NAME = r"(?:\*(?:/\*)?|table/\*(?:/.*)?|stream/\*|log-group:\*(?::\*)?)"
"""Ends the ARN of all buckets, queues, tables, streams or log groups."""


class Granted(NamedTuple):
    """An action that a role allows on a resource."""

    action: str
    resource: Any  # a text, or a value that only AWS knows
    role: str  # the resource that says so
    path: str


def check_policies(review: Review) -> None:
    """Notes what roles allow too much, or lack."""
    checked: set[str] = set()
    for found in review.functions:
        (value,) = review.values(found.resource.properties, "Role")[:1]
        role = review.template.resource_of(value)
        if value is ABSENT and "Policies" in found.resource.properties:
            text = f"SAM's policies are not read here, and {EVERY_STREAM}: expected a role of its own, Role"
            review.advise(found.name, "Properties.Policies", text)
        elif value is ABSENT:
            review.wrong(found.name, "Properties.Role", f"it is missing: expected a role of its own, {EVERY_STREAM}")
        elif role is None:
            review.advise(found.name, "Properties.Role", f"{described(value)}, which this template does not hold")
        else:
            if role.name not in checked:
                checked.add(role.name)
                _check_trust(review, role)
                _check_managed(review, role)
            _check_granted(review, found, role, list(_statements(review, role)))


def _check_trust(review: Review, role: Resource) -> None:
    for number, statement in enumerate(statements(role.properties.get("AssumeRolePolicyDocument"))):
        if statement.get("Effect") != "Deny":
            review.obey((role.name, f"Properties.AssumeRolePolicyDocument.Statement.{number}"), statement, TRUSTED)


def _check_managed(review: Review, role: Resource) -> None:
    for given in review.values(role.properties, "ManagedPolicyArns"):
        for arn in given if isinstance(given, list) else ():
            own = review.template.resource_of(arn)
            if own is None and str(arn).rpartition("/")[2] not in MANAGED:
                text = f"{described(arn)}: expected policies of this template, which name actions and resources"
                review.wrong(role.name, "Properties.ManagedPolicyArns", text)


class PolicyStatement(NamedTuple):
    """A statement of a policy of a role."""

    role: str  # the resource that has it
    path: str
    given: Mapping[str, Any]

    @property
    def granted(self) -> Iterator[Granted]:
        for action in _several(self.given.get("Action")):
            for resource in _several(self.given.get("Resource")):
                yield Granted(str(action), resource, self.role, self.path)

    def denies(self, permission: Permission, places: "_Places") -> bool:
        """Whether it denies a permission that a function needs, its condition aside."""
        acts = [fnmatchcase(permission.action.lower(), each.lower()) for each in map(str, self._named("Action"))]
        reached = [_reaches(each, permission, places) for each in self._named("Resource")]
        is_action = any(acts) != ("NotAction" in self.given)
        return is_action and any(reached) != ("NotResource" in self.given)

    def _named(self, what: str) -> list[Any]:
        return _several(self.given.get(what, self.given.get(f"Not{what}")))


def _reaches(resource: Any, permission: Permission, places: "_Places") -> bool:
    if isinstance(resource, Unknown):
        return False
    service = permission.action.partition(":")[0]
    text = PSEUDO.sub(r"\1", str(resource))
    every = re.fullmatch(rf"arn:[^:]*:(?:{service}|\*):[^:]*:[^:]*:{EVERY_NAME}", text) is not None
    return resource == "*" or every or places.are(permission.place, str(resource), strictly=True)


def _statements(review: Review, role: Resource) -> Iterator[PolicyStatement]:
    """The statements of a role's policies: its own, and those that are attached to it."""
    for number, policy in enumerate(role.properties.get("Policies") or ()):
        path = f"Properties.Policies.{number}.PolicyDocument.Statement"
        yield from _of_document(review, role.name, path, policy.get("PolicyDocument"))
    for other in review.template.of_type("AWS::IAM::Policy", "AWS::IAM::RolePolicy", "AWS::IAM::ManagedPolicy"):
        roles = other.properties.get("Roles") or [other.properties.get("RoleName")]
        named = [review.named(each) for each in roles]
        attached = [review.template.resource_of(each) for each in _listed(review, role, "ManagedPolicyArns")]
        if role in named or other in attached:
            path = "Properties.PolicyDocument.Statement"
            yield from _of_document(review, other.name, path, other.properties.get("PolicyDocument"))


def _listed(review: Review, role: Resource, name: str) -> list[Any]:
    found = review.template.first(role.properties.get(name, []))
    return found if isinstance(found, list) else []


def _of_document(review: Review, name: str, path: str, document: Any) -> Iterator[PolicyStatement]:
    for number, given in enumerate(statements(document)):
        for statement in review.template.alternatives(given):
            if isinstance(statement, Mapping):
                yield PolicyStatement(name, f"{path}.{number}", statement)


def _check_statement(review: Review, statement: PolicyStatement) -> None:
    """Notes what a statement allows too widely, or under a condition that nobody evaluates here."""
    for key in ("NotAction", "NotResource"):
        if key in statement.given:
            text = "it allows all but some: expected the actions and resources themselves"
            review.wrong(statement.role, f"{statement.path}.{key}", text)
    for resource in _several(statement.given.get("Resource")):
        place = "" if isinstance(resource, Unknown) else written_location(str(resource))
        if place and review.template.resource_of(resource) is not None:
            text = (
                f"it is of {place}, and the resource lies where its stack does: expected the stack's own, !GetAtt or "
            )
            review.advise(
                statement.role, f"{statement.path}.Resource", f"{text}${{AWS::Region}} and ${{AWS::AccountId}}"
            )
    if asked := _conditions(statement.given.get("Condition")):
        text = f"it allows under a condition on {', '.join(asked)}, which nobody evaluates here: expected none"
        review.advise(statement.role, f"{statement.path}.Condition", text)


def _conditions(condition: Any) -> list[str]:
    """The keys of a condition that may not hold for a call of a function."""
    operators = condition.values() if isinstance(condition, Mapping) else ()
    asked = {str(key): value for keys in operators if isinstance(keys, Mapping) for key, value in keys.items()}
    return sorted(key for key, value in asked.items() if not _holds(key, value))


def _holds(key: str, value: Any) -> bool:
    if key.lower() == "aws:securetransport":
        return str(value).lower() == "true"
    if key.lower() == "aws:resourceaccount" and all(ACCOUNT.fullmatch(str(each)) for each in _several(value)):
        return True  # of a bucket of another account: its ARN does not say whose it is
    own = all("${AWS::" in str(each) for each in _several(value))
    return key.lower() in ALWAYS_HOLD and (own or key.lower().endswith(("orgid", "viaservice")))


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


WORDS = {
    "table": "table {}",
    "stream": "the stream of table {}",
    "state": "the state table",
    "key": "the KMS key of table {}",
    "failure bucket": "the failure bucket",
    "failures": "the failed batches in the failure bucket",
    "parking bucket": "the bucket of parked records",
    "parked": "the parked records",
    "archive": "the archive {}",
    "destination": "the destination {}",
    "large data": "the large data in {}",
    "queue": "the queue of segments",
    "dead letters": "the dead letters of the queue of segments",
    "search": "the path {} of the search domain",
    "secret": "the secret of the setting {}",
    "log": "the function's log group",
    "account": "the account",
    "role": "the role {}",
}
"""How a message names a place."""


def _check_granted(review: Review, found: FoundFunction, role: Resource, statements: list[PolicyStatement]) -> None:
    places = _Places(review, found)
    needed = set(places.needed())
    allowing = [each for each in statements if each.given.get("Effect") == "Allow"]
    for allowed in allowing:
        _check_statement(review, allowed)
    granted = [each for statement in allowing for each in statement.granted]
    unused: dict[Granted, list[str]] = {}  # by what was granted, without its action
    for each in granted:
        if _is_unused(review, found, each, needed, places):
            unused.setdefault(each._replace(action=""), []).append(each.action)
    for each, actions in unused.items():
        what = f"{', '.join(actions)} on {each.resource} {'is' if len(actions) == 1 else 'are'} allowed"
        review.wrong(each.role, each.path, f"{what}, and {found.name} never does that")
    lacking: dict[Place, list[str]] = {}
    managed = _by_managed(review, role)
    for permission in needed:
        if permission.action not in managed and not any(_covers(each, permission, places) for each in granted):
            lacking.setdefault(permission.place, []).append(permission.action)
    for place, actions in sorted(lacking.items()):
        what = f"{', '.join(sorted(actions))} on {WORDS[place.kind].format(place.name)}"
        verb = "is" if len(actions) == 1 else "are"
        text = f"{what} {verb} not allowed, and {found.name} needs {'it' if verb == 'is' else 'them'} for its handlers"
        review.wrong(role.name, "Properties.Policies", text)
    _check_denied(review, found, statements, needed, places)
    _check_keys(review, found, role, granted, needed, places)
    if "PermissionsBoundary" in role.properties:
        text = "it may take away what the policies allow, and nobody reads it here: expected none"
        review.advise(role.name, "Properties.PermissionsBoundary", text)


def _by_managed(review: Review, role: Resource) -> set[str]:
    names = [str(each).rpartition("/")[2] for each in _listed(review, role, "ManagedPolicyArns")]
    return {action for name in names for action in MANAGED.get(name, ())}


def _check_denied(
    review: Review, found: FoundFunction, statements: list[PolicyStatement], needed: set[Permission], places: "_Places"
) -> None:
    for each in statements:
        if each.given.get("Effect") != "Deny":
            continue
        condition = each.given.get("Condition")
        if ENCRYPTED_REQUESTS.accepts(condition):  # a call without encryption is never made
            continue
        denied = sorted({permission.action for permission in needed if each.denies(permission, places)})
        if denied:
            note = review.advise if condition else review.wrong
            text = f"it denies {', '.join(denied[:3])}{f' and {len(denied) - 3} more' * (len(denied) > 3)}"
            when = " under a condition that nobody evaluates here" if condition else ""
            note(each.role, each.path, f"{text}, which {found.name} needs{when}: expected no such statement")


def _check_keys(
    review: Review,
    found: FoundFunction,
    role: Resource,
    granted: list[Granted],
    needed: set[Permission],
    places: "_Places",
) -> None:
    """Who uses something with a key of its own needs the key: AWS encrypts it with the rights of the caller."""
    lacking: dict[str, set[str]] = {}
    used = ((permission, resource) for permission in needed for resource in places.resources(permission.place))
    for permission, resource in used:
        for key, action in product(_keys_of(review, resource), _key_actions(permission)):
            if not any(_opens(review, each, action, key) for each in granted):
                lacking.setdefault(action, set()).add(resource.name)
    for action, names in sorted(lacking.items()):
        text = f"{action} on the key of {' and '.join(sorted(names))} is not allowed, and {found.name} uses "
        review.wrong(role.name, "Properties.Policies", f"{text}{'it' if len(names) == 1 else 'them'}")


KEY_PATHS = {
    "AWS::DynamoDB::Table": "SSESpecification.KMSMasterKeyId",
    "AWS::SQS::Queue": "KmsMasterKeyId",
    "AWS::Kinesis::Stream": "StreamEncryption.KeyId",
}
SERVICE_KEY = re.compile(r"(?:.*:)?alias/aws/[a-z0-9]+")
"""A key that the service itself has: everybody who may use the service may use it."""


def _keys_of(review: Review, resource: Resource) -> list[Any]:
    """The keys of its own that a resource may have."""
    if resource.type == "AWS::S3::Bucket":
        rules = review.values(resource.properties, "BucketEncryption.ServerSideEncryptionConfiguration")
        given = [rule for each in rules if isinstance(each, list) for rule in each if isinstance(rule, Mapping)]
        by_default = [rule.get("ServerSideEncryptionByDefault") for rule in given]
        found = [each.get("KMSMasterKeyID", ABSENT) for each in by_default if isinstance(each, Mapping)]
    else:
        path = KEY_PATHS.get(resource.type)
        found = review.values(resource.properties, path) if path else []
    return [each for each in found if each is not ABSENT and not SERVICE_KEY.fullmatch(str(each))]


def _key_actions(permission: Permission) -> Sequence[str]:
    """What a call asks of the key: S3 and SQS make a data key for what they write (Developer Guides, encryption)."""
    if permission.action in ("s3:ListBucket", "sqs:DeleteMessage", "sqs:GetQueueAttributes"):
        return ()
    if permission.action == "s3:PutObject":
        return ("kms:GenerateDataKey",)
    if permission.action == "sqs:SendMessage":
        return ("kms:Decrypt", "kms:GenerateDataKey")
    return ("kms:Decrypt",)


def _opens(review: Review, each: Granted, action: str, key: Any) -> bool:
    if not fnmatchcase(action.lower(), each.action.lower()):
        return False
    named = isinstance(each.resource, str) and not isinstance(key, Unknown)
    if not named or "*" in each.resource or "alias/" in str(key):
        return not isinstance(key, Unknown) or not isinstance(each.resource, Unknown) or each.resource == key
    own, other = review.template.resource_of(key), review.template.resource_of(each.resource)
    return each.resource == key or (own is not None and own == other)


def _is_unused(review: Review, found: FoundFunction, each: Granted, needed: set[Permission], places: "_Places") -> bool:
    """Whether the function never does what is granted. Notes grants that are too wide."""
    service = each.action.partition(":")[0]
    if "*" in service or each.action.endswith(":*") or (service in SERVICES and "*" in each.action):
        review.wrong(
            each.role, f"{each.path}.Action", f"it is {each.action}: expected the actions that {found.name} takes"
        )
    elif service in SERVICES and each.resource == "*":
        text = f"{each.action} is allowed on everything: expected one resource"
        review.wrong(each.role, f"{each.path}.Resource", text)
    elif service in SERVICES and not isinstance(each.resource, Unknown):
        return not any(
            permission.action == each.action and places.are(permission.place, each.resource)
            for permission in (needed | places.tolerated)
        )
    return False


def _covers(each: Granted, permission: Permission, places: "_Places") -> bool:
    if not fnmatchcase(permission.action, each.action):
        return False
    return each.resource == "*" or isinstance(each.resource, Unknown) or places.are(permission.place, each.resource)


def _is_secret(reference: SecretReference, resource: str) -> bool:
    """Whether an ARN is that of a secret: with six letters behind its name that nobody chooses."""
    resource = VARIABLE.sub(r"\1", resource)
    if reference.store == "ssm":
        return resource.endswith(
            f":parameter/{reference.name.partition(':parameter/')[2] or reference.name.strip('/')}"
        )
    arn = reference.name if reference.name.startswith("arn:") else f":secret:{reference.name}"
    return resource.endswith((arn, f"{arn}-??????", f"{arn}-*", f"{arn}*"))


class _Places:
    """The places of a function's permissions, as the template has them."""

    def __init__(self, review: Review, found: FoundFunction) -> None:
        self.review = review
        self.found = found
        self.sources = {
            str(review.template.first(each.source)): each.type for each in found.mappings if each.source is not None
        }

    def needed(self) -> set[Permission]:
        """The permissions that the function needs, of the places that its settings name."""
        stores = {name: each.store for name, each in self._secrets.items()}
        kinesis = set(self._on_kinesis())
        granted = self.review.deployment.permissions(self.found.function, kinesis=kinesis, secrets=stores)
        found = by_own_role(granted, roles_of(self.review, self.found).role_of)
        settings = {"queue": PREFIX + "JOBS", "parked": PREFIX + "PARK"}
        without = {kind for kind, name in settings.items() if name not in self.found.variables}
        if "LoggingConfig" not in self.found.resource.properties:
            without.add("log")
        return {each for each in found if each.place.kind not in without}

    @cached_property
    def _secrets(self) -> dict[str, SecretReference]:
        """The secrets that the function's settings refer to, by setting."""
        return {name: found for name in SECRETS if (found := self._secret(name)) is not None}

    def _secret(self, setting: str) -> SecretReference | None:
        name = PREFIX + setting.upper()
        given = self.review.template.alternatives(self.found.variables.get(name, ABSENT))
        with suppress(SettingsError):  # a finding of its own says so
            return next(filter(None, (referred_secret(name, each) for each in given)), None)
        return None

    @property
    def tolerated(self) -> set[Permission]:
        """Permissions that a person may give: to park records, and to know a table whose records come by Kinesis."""
        parked = {Permission("s3:PutObject", Place("parked"))} if PREFIX + "PARK" in self.found.variables else set()
        return parked | {Permission(DESCRIBE, Place("table", name)) for name in self._on_kinesis()}

    def _on_kinesis(self) -> Iterator[str]:
        from streamfold.deploy.check.mappings import tables_of

        for each in self.found.mappings:
            if each.type == "Kinesis":
                yield from tables_of(self.review, self.found, each)

    def resources(self, place: Place) -> Iterator[Resource]:
        """The resources of the template that a place is, or that keep it."""
        found: list[Any] = []
        match place.kind:
            case "table" | "state" | "stream":
                found = [self.found.variables.get(self._table_variable(place))]
                if place.kind == "stream":
                    found += [each.source for each in self.found.mappings if each.type == "Kinesis"]
            case "queue":
                found = [self.found.variables.get(PREFIX + "JOBS")]
            case "failures":
                found = [*self._failure_buckets()]
            case "parked" | "archive":
                found = [self.found.variables.get(PREFIX + ("PARK" if place.kind == "parked" else "ARCHIVE"))]
        for value in found:
            if (named := self.review.named(value)) is not None:
                yield named

    def are(self, place: Place, resource: str, *, strictly: bool = False) -> bool:
        """Whether a text is the ARN of a place, or may be: the template does not say what the place is, and a finding
        of its own says so. ``strictly``: not if it only may be.
        """
        if not self._is_known(place):
            return not strictly
        match place.kind:
            case "table" | "state":
                return self._is_table(self._table_variable(place), resource)
            case "stream":
                before, slash, _ = resource.partition("/stream/")
                return resource in self.sources or bool(slash and self._is_table(self._table_variable(place), before))
            case "queue":
                return self._is_queue(resource)
            case "role":
                return resource == place.name
            case "search":
                return resource.endswith(f"/{place.name}") and ":domain/" in resource
            case "key" | "account" | "dead letters":
                return not strictly
            case "secret":
                return _is_secret(self._secrets[place.name], resource)
            case "log":
                (group,) = self.review.values(self.found.resource.properties, "LoggingConfig.LogGroup")[:1]
                named = self.review.template.resource_of(group)
                return named is not None and (
                    named == self.review.template.resource_of(resource)
                    or self.review.template.is_arn_of(named, resource)
                )
        return self._is_in_bucket(place, resource)

    def _is_queue(self, resource: str) -> bool:
        jobs = self.review.variable(self.found, PREFIX + "JOBS")
        queue = self.review.template.resource_of(jobs)
        if queue is None and QUEUE_ARN.fullmatch(resource):  # of another account
            return resource in self.sources or queue_arn_url(resource) == jobs
        return resource in self.sources or (queue is not None and self.review.template.is_arn_of(queue, resource))

    def _is_known(self, place: Place) -> bool:
        """Whether the template says what a place is."""
        match place.kind:
            case "table" | "state":
                return self._table_variable(place) in self.found.variables
            case "stream":
                return self._table_variable(place) in self.found.variables and place.name in self._streams()
            case "failures" | "failure bucket":
                return bool(self._failure_buckets())
            case "queue" | "parked" | "parking bucket":
                variable = PREFIX + ("JOBS" if place.kind == "queue" else "PARK")
                given = self.review.variable(self.found, variable)
                is_named = "${" not in str(given) or self.review.template.resource_of(given) is not None
                return is_named and not isinstance(given, Unknown)
        return True

    def _streams(self) -> set[str]:
        from streamfold.deploy.check.mappings import tables_of

        streams = [each for each in self.found.mappings if each.type in ("DynamoDB", "Kinesis")]
        named = [each for each in streams if not isinstance(self.review.template.first(each.source), Unknown)]
        return {name for each in named for name in tables_of(self.review, self.found, each)}

    def _table_variable(self, place: Place) -> str:
        return STATE_TABLE if place.kind == "state" else self.review.deployment.environment_names[place.name]

    def _is_in_bucket(self, place: Place, resource: str) -> bool:
        if place.kind == DESTINATION:
            variable = destination_named(place.name).variable
            return resource in map(str, self.review.values(self.found.variables, variable))
        bucket, _, below = resource.partition("/")
        if place.kind == "failure bucket":
            return not below and self._is_failure_bucket(bucket)
        if place.kind == "failures":
            return below in ("aws/lambda/*", "*") and self._is_failure_bucket(bucket)
        if place.kind in ("parked", "parking bucket"):
            given = self._text(PREFIX + "PARK")
            prefix = given.removeprefix("s3://").partition("/")[2].strip("/")
            expected = ("*", f"{prefix}/*" if prefix else "*") if place.kind == "parked" else ("",)
            return self._is_bucket_of(given, bucket) and below in expected
        given = "" if place.kind == "large data" else self._text(PREFIX + "ARCHIVE")
        given = given or place.name
        return self._is_bucket_of(given, bucket) and below.endswith("*")

    def _text(self, variable: str) -> str:
        value = self.review.variable(self.found, variable)
        return value if isinstance(value, str) else ""

    def _is_bucket_of(self, location: str, bucket: str) -> bool:
        name = location.removeprefix("s3://").partition("/")[0]
        if self._is_open(name) and self._is_open(bucket):
            return True
        named = self.review.template.resource_of(name)
        if named is not None:
            return self.review.template.is_arn_of(named, bucket)
        return bucket.endswith(f":::{name}")

    def _is_open(self, text: str) -> bool:
        """Whether a text names something by a value that only AWS knows, such as the output of another stack."""
        names = [each.partition(".")[0] for each in VARIABLE.findall(text)]
        return any(each not in self.review.template.resources and not each.startswith("AWS::") for each in names)

    def _is_failure_bucket(self, bucket: str) -> bool:
        template = self.review.template
        named = [template.resource_of(each) for each in self._failure_buckets()]
        if self._is_open(bucket) and None in named:
            return True
        return bucket in self._failure_buckets() or any(each and template.is_arn_of(each, bucket) for each in named)

    def _failure_buckets(self) -> set[str]:
        found = set()
        for each in self.found.mappings:
            for value in self.review.values(each.properties, "DestinationConfig.OnFailure.Destination"):
                found.add(str(value))
        return found - {str(ABSENT)}

    def _is_table(self, variable: str, resource: str) -> bool:
        value = self.review.variable(self.found, variable)
        named = self.review.template.resource_of(value)
        if named is not None:
            return self.review.template.is_arn_of(named, resource)
        if isinstance(value, Unknown):
            named_so = f":table/${{{value.parameter}}}" in resource
            return named_so or resource == f"${{{value.parameter}.Arn}}"  # as an ARN with its name is read
        return resource.endswith(f":table/{value}")
