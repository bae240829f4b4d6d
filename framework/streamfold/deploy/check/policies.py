"""The roles of a template: each function may do what its handlers and its mapping do, and nothing else."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from streamfold.deploy.check.review import FoundFunction, Review, described
from streamfold.deploy.check.stores import statements
from streamfold.deploy.functions import DESCRIBE, STATE_TABLE
from streamfold.deploy.permissions import Permission, Place
from streamfold.deploy.template_file import ABSENT, Resource, Unknown
from streamfold.settings.readers import PREFIX

LAMBDA = "lambda.amazonaws.com"
SERVICES = ("dynamodb", "kinesis", "s3", "sqs", "es", "logs")
"""Services that the framework calls. What a function is allowed of others is its handlers' own business."""
MANAGED = ("AWSXRayDaemonWriteAccess", "CloudWatchLambdaInsightsExecutionRolePolicy", "AWSLambdaVPCAccessExecutionRole")
"""Policies of AWS that let a function be traced, measured and put into a network, and read nothing."""
EVERY_STREAM = "SAM would add a policy that reads every stream of the account"


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
        if value is ABSENT:
            review.wrong(found.name, "Properties.Role", f"it is missing: expected a role of its own, {EVERY_STREAM}")
        elif role is None:
            review.advise(found.name, "Properties.Role", f"{described(value)}, which this template does not hold")
        else:
            if role.name not in checked:
                checked.add(role.name)
                _check_trust(review, role)
                _check_managed(review, role)
            _check_granted(review, found, role, list(_granted(review, role)))


def _check_trust(review: Review, role: Resource) -> None:
    for number, statement in enumerate(statements(role.properties.get("AssumeRolePolicyDocument"))):
        principal = review.template.first(statement.get("Principal", ABSENT))
        services = principal.get("Service") if isinstance(principal, Mapping) else None
        names = services if isinstance(services, list) else [services]
        is_lambda = isinstance(principal, Mapping) and set(principal) == {"Service"} and set(names) == {LAMBDA}
        if statement.get("Effect") != "Deny" and not is_lambda:
            review.wrong(
                role.name,
                f"Properties.AssumeRolePolicyDocument.Statement.{number}.Principal",
                f"{described(principal)}: expected the service {LAMBDA} alone, which runs the function",
            )


def _check_managed(review: Review, role: Resource) -> None:
    for given in review.values(role.properties, "ManagedPolicyArns"):
        for arn in given if isinstance(given, list) else ():
            own = review.template.resource_of(arn)
            if own is None and str(arn).rpartition("/")[2] not in MANAGED:
                text = f"{described(arn)}: expected policies of this template, which name actions and resources"
                review.wrong(role.name, "Properties.ManagedPolicyArns", text)


def _granted(review: Review, role: Resource) -> Iterator[Granted]:
    """The actions that a role allows: by its own policies, and by those that are attached to it."""
    for number, policy in enumerate(role.properties.get("Policies") or ()):
        path = f"Properties.Policies.{number}.PolicyDocument.Statement"
        yield from _allowed(review, role.name, path, policy.get("PolicyDocument"))
    for other in review.template.of_type("AWS::IAM::Policy", "AWS::IAM::RolePolicy", "AWS::IAM::ManagedPolicy"):
        roles = other.properties.get("Roles") or [other.properties.get("RoleName")]
        named = [review.template.resource_of(review.template.first(each)) for each in roles]
        attached = [review.template.resource_of(each) for each in _listed(review, role, "ManagedPolicyArns")]
        if role in named or other in attached:
            path = "Properties.PolicyDocument.Statement"
            yield from _allowed(review, other.name, path, other.properties.get("PolicyDocument"))


def _listed(review: Review, role: Resource, name: str) -> list[Any]:
    found = review.template.first(role.properties.get(name, []))
    return found if isinstance(found, list) else []


def _allowed(review: Review, name: str, path: str, document: Any) -> Iterator[Granted]:
    found = document.get("Statement", ()) if isinstance(document, Mapping) else ()
    for number, given in enumerate([found] if isinstance(found, Mapping) else found):
        for statement in review.template.alternatives(given):
            if not isinstance(statement, Mapping) or statement.get("Effect") != "Allow":
                continue
            for key in ("NotAction", "NotResource"):
                if key in statement:
                    text = "it allows all but some: expected the actions and resources themselves"
                    review.wrong(name, f"{path}.{number}.{key}", text)
            for action in _several(statement.get("Action")):
                for resource in _several(statement.get("Resource")):
                    yield Granted(str(action), resource, name, f"{path}.{number}")


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
    "queue": "the queue of segments",
    "dead letters": "the dead letters of the queue of segments",
    "search": "the path {} of the search domain",
    "log": "the function's log group",
    "account": "the account",
}
"""How a message names a place."""


def _check_granted(review: Review, found: FoundFunction, role: Resource, granted: list[Granted]) -> None:
    places = _Places(review, found)
    needed = set(places.needed())
    unused: dict[Granted, list[str]] = {}  # by what was granted, without its action
    for each in granted:
        if _is_unused(review, found, each, needed, places):
            unused.setdefault(each._replace(action=""), []).append(each.action)
    for each, actions in unused.items():
        what = f"{', '.join(actions)} on {each.resource} {'is' if len(actions) == 1 else 'are'} allowed"
        review.wrong(each.role, each.path, f"{what}, and {found.name} never does that")
    lacking: dict[Place, list[str]] = {}
    for permission in needed:
        if not any(_covers(each, permission, places) for each in granted):
            lacking.setdefault(permission.place, []).append(permission.action)
    for place, actions in sorted(lacking.items()):
        what = f"{', '.join(sorted(actions))} on {WORDS[place.kind].format(place.name)}"
        verb = "is" if len(actions) == 1 else "are"
        text = f"{what} {verb} not allowed, and {found.name} needs {'it' if verb == 'is' else 'them'} for its handlers"
        review.wrong(role.name, "Properties.Policies", text)


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
        found = self.review.deployment.permissions(self.found.function, kinesis=set(self._on_kinesis()))
        settings = {"queue": PREFIX + "JOBS", "parked": PREFIX + "PARK"}
        without = {kind for kind, name in settings.items() if name not in self.found.variables}
        if "LoggingConfig" not in self.found.resource.properties:
            without.add("log")
        return {each for each in found if each.place.kind not in without}

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

    def are(self, place: Place, resource: str) -> bool:
        """Whether a text is the ARN of a place, or may be: the template does not say what the place is, and a finding
        of its own says so.
        """
        if not self._is_known(place):
            return True
        match place.kind:
            case "table" | "state":
                return self._is_table(self._table_variable(place), resource)
            case "stream":
                before, slash, _ = resource.partition("/stream/")
                return resource in self.sources or bool(slash and self._is_table(self._table_variable(place), before))
            case "queue":
                jobs = self.review.template.first(self.found.variables.get(PREFIX + "JOBS", ABSENT))
                queue = self.review.template.resource_of(jobs)
                return resource in self.sources or (queue is not None and resource == f"${{{queue.name}.Arn}}")
            case "search":
                return resource.endswith(f"/{place.name}") and ":domain/" in resource
            case "key" | "account" | "dead letters":
                return True
            case "log":
                (group,) = self.review.values(self.found.resource.properties, "LoggingConfig.LogGroup")[:1]
                named = self.review.template.resource_of(group)
                return named is not None and named == self.review.template.resource_of(resource)
        return self._is_in_bucket(place, resource)

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
                given = self.review.template.first(self.found.variables.get(variable, ABSENT))
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
        bucket, _, below = resource.partition("/")
        if place.kind == "failure bucket":
            return not below and bucket in self._failure_buckets()
        if place.kind == "failures":
            return below in ("aws/lambda/*", "*") and bucket in self._failure_buckets()
        if place.kind in ("parked", "parking bucket"):
            given = self._text(PREFIX + "PARK")
            prefix = given.removeprefix("s3://").partition("/")[2].strip("/")
            expected = ("*", f"{prefix}/*" if prefix else "*") if place.kind == "parked" else ("",)
            return self._is_bucket_of(given, bucket) and below in expected
        given = self._text(PREFIX + "ARCHIVE") or place.name
        return self._is_bucket_of(given, bucket) and below.endswith("*")

    def _text(self, variable: str) -> str:
        value = self.review.template.first(self.found.variables.get(variable, ABSENT))
        return value if isinstance(value, str) else ""

    def _is_bucket_of(self, location: str, bucket: str) -> bool:
        name = location.removeprefix("s3://").partition("/")[0]
        named = self.review.template.resource_of(name)
        if named is not None:
            return bucket == f"${{{named.name}.Arn}}"
        return bucket.endswith(f":::{name}")

    def _failure_buckets(self) -> set[str]:
        found = set()
        for each in self.found.mappings:
            for value in self.review.values(each.properties, "DestinationConfig.OnFailure.Destination"):
                found.add(str(value))
        return found - {str(ABSENT)}

    def _is_table(self, variable: str, resource: str) -> bool:
        value = self.review.template.first(self.found.variables.get(variable, ABSENT))
        named = self.review.template.resource_of(value)
        if named is not None:
            return resource == f"${{{named.name}.Arn}}"
        if isinstance(value, Unknown):
            return f":table/${{{value.parameter}}}" in resource
        return resource.endswith(f":table/{value}")
