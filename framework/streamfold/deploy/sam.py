"""A template of SAM for an application: functions, mappings, tables, buckets, queue, alarms, and a dashboard.

Its parts are plain JSON for CDK, Terraform and others: ``${Table.Arn}`` in a text is the ARN of what the template calls
``Table``, and ``${Table}`` its name. Its notes say what a person should know.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from streamfold.deploy import accounts, alarms, rules
from streamfold.deploy.choices import (
    ALARM_PARAMETERS,
    CHOICES,
    CONDITIONS,
    HISTORY_CONDITIONS,
    SEARCH_CONDITIONS,
    SEARCH_RULES,
    TOPICS,
    search_parameters,
    secret_parameter,
)
from streamfold.deploy.dashboards import DASHBOARD_CONDITIONS, SEARCH_DASHBOARD_CONDITIONS, SEARCHES, dashboards
from streamfold.deploy.destinations import (
    addresses_of_destinations,
    arn_for_messages,
    destination_conditions,
    destination_parameters,
    key_statements,
    made_destinations,
    notes_of_destinations,
)
from streamfold.deploy.filters import Filter, filter_of
from streamfold.deploy.functions import (
    QUEUE,
    RUNTIME,
    STATE_RESOURCE,
    STATE_TABLE,
    STREAM,
    DeployedFunction,
    Deployment,
    ExistingTable,
    dimensions,
)
from streamfold.deploy.permissions import VERSION, Place, Role, permissions, policy, sid
from streamfold.deploy.rules import as_properties
from streamfold.deploy.table_names import (
    ARCHIVE,
    FAILURES,
    NO_VALUE,
    TEMPLATE_SECRETS,
    OtherAccounts,
    TableNames,
    TemplateValue,
    att,
    by_own_role,
    if_,
    ref,
    sub,
)
from streamfold.deploy.template_file import TemplateFile, Unknown
from streamfold.derivations.derivation import derivation
from streamfold.keys.table import STATE, Table
from streamfold.lambda_entry.queue import RING, WAKE
from streamfold.routes.route import GROUP
from streamfold.settings.readers import PREFIX

CUT_OFF = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
RETAINS = as_properties(rules.RETAINED)
GOES = {"DeletionPolicy": "Delete", "UpdateReplacePolicy": "Delete"}


LOG = {"Type": "AWS::Logs::LogGroup", **GOES, "Properties": as_properties(rules.LOG_RULES)}
USE_KEY = if_(
    "OwnKey", {"Sid": "UseKey", "Effect": "Allow", "Action": ["kms:Decrypt"], "Resource": ref("KeyArn")}, NO_VALUE
)
"""All who use the tables need their key: DynamoDB decrypts them with the rights of the caller."""
NOTIFIED = {severity: [topic.arn] for severity, topic in TOPICS.items()}
SAMPLED = {
    "Daily": {"Type": "Schedule", "Properties": {"Schedule": rules.DAILY, "Input": '{"sample": 2000, "tolerance": 60}'}}
}
PLACES: Mapping[str, TemplateValue] = {
    "failure bucket": att("FailureBucket"),
    "parking bucket": att("FailureBucket"),
    "failures": sub("${FailureBucket.Arn}/aws/lambda/*"),
    "parked": sub("${FailureBucket.Arn}/parked/*"),
    "archive": sub("${ArchiveBucket.Arn}/*"),
    "account": "*",
}
"""Places that an application has once."""


class SamTemplate:
    """The template of a deployment. ``existing``: tables that are there already, by logical name. ``filters``: those of
    mappings in place of the generated ones, by function and table. ``elsewhere``: what is in other accounts. Raises
    ``SettingsError`` for an application of which two things would have one name, and for what a function cannot use.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        existing: Mapping[str, ExistingTable] | None = None,
        filters: Mapping[tuple[str, str], Filter] | None = None,
        runtime: str = RUNTIME,
        elsewhere: OtherAccounts = OtherAccounts(),  # noqa: B008 - a value
    ) -> None:
        deployment.check_names()
        self.deployment = deployment
        self.existing = existing or {}
        self.elsewhere = elsewhere
        self.tables = TableNames(deployment, self.existing, elsewhere)
        self.given_filters = filters or {}
        self.runtime = runtime
        accounts.check_template(self.tables)

    @cached_property
    def functions(self) -> Sequence[DeployedFunction]:
        return self.deployment.functions

    @cached_property
    def content(self) -> dict[str, Any]:
        """The template as plain values."""
        resources: dict[str, Any] = made_destinations(self.deployment.app.routes)
        for table in self.deployment.tables:
            if table.name not in self.existing:
                resources[self.tables.resource(table.name)] = self._table(table)
        if self.tables.has_state:
            resources[STATE_RESOURCE] = _stored(dict.fromkeys(STATE.attributes, "S"), STATE.attributes, STATE.ttl)
        for each in self.functions:
            resources |= self._with_function(each)
        for name, real in self.tables.watched.items():
            for alarm in alarms.OF_TABLE:
                resources[f"{name}{alarm.name}"] = alarm.resource(name, {alarm.of: real}, NOTIFIED)
        resources |= dashboards(self.functions, resources, self.tables.watched)
        for topic in TOPICS.values():
            resources |= topic.resources
        if FAILURES not in self.elsewhere.buckets:
            resources |= _bucket("FailureBucket", {"ExpirationInDays": ref("FailureDays")})
        if any(each.archives for each in self.functions) and ARCHIVE not in self.elsewhere.buckets:
            resources |= _bucket("ArchiveBucket", {})
        return {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Transform": "AWS::Serverless-2016-10-31",
            "Description": f"Rows of {self.deployment.app.name}, derived from a DynamoDB stream, exactly once.",
            "Parameters": self._parameters(),
            **({"Rules": SEARCH_RULES} if self.searches else {}),
            "Conditions": self._conditions(resources),
            "Resources": resources,
            "Outputs": _outputs(resources),
        }

    def filter(self, function: DeployedFunction, logical: str) -> Filter:
        """The filter of a function's mapping of a table."""
        if found := self.given_filters.get((function.name, logical)):
            return found
        existing = self.existing.get(logical)
        view = self.deployment.view(self.deployment.app.tables[logical])
        return filter_of(
            self.deployment.app,
            function.group,
            logical,
            old_images=view in ("NEW_AND_OLD_IMAGES", "OLD_IMAGE"),
            kinesis=existing is not None and existing.on_kinesis,
        )

    @cached_property
    def searches(self) -> list[DeployedFunction]:
        return [each for each in self.functions if each.sort == STREAM and each.searches]

    def condition(self, function: DeployedFunction) -> str | None:
        """The condition of a function that an application can do without: one of searches alone."""
        return SEARCHES if function.sort in (STREAM, QUEUE) and function.only_searches else None

    @property
    def signs_history(self) -> bool:
        """Whether some handler keeps histories, whose rows may be signed."""
        return any("audit_key" in derivation(route).secrets for route in self.deployment.app.routes)

    @property
    def needs_search(self) -> bool:
        """Whether a function that the application cannot do without has a search: it fails without an endpoint."""
        return any(each.searches and not each.only_searches for each in self.functions if each.sort == STREAM)

    # Functions.

    def _with_function(self, function: DeployedFunction) -> dict[str, Any]:
        """A function with its role, its log, its alarms, and its queue."""
        name = function.name
        found = {name: self._function(function), f"{name}Role": _role(self.statements(function)), f"{name}Log": {**LOG}}
        for alarm in function.alarms:
            for table in function.subscribed if alarm.of == alarms.MAPPING else [""]:
                several = self.tables.event(table) if table and len(function.subscribed) > 1 else ""
                given = {}
                if table:
                    given = {"mapping": ref(f"{name}{self.tables.event(table)}"), "table": self.tables.real(table)}
                if table and accounts.counts_writes_elsewhere(self.tables, table):
                    alarm = alarms.without_writes(alarm)  # noqa: PLW2901 - of this table
                own = dimensions(alarm, service=ref("Application"), function=ref(name), **given)
                found[f"{name}{several}{alarm.name}"] = alarm.resource(name, own, NOTIFIED)
        own_queue = function.sort == QUEUE and self.elsewhere.queue is None
        found = {**(_queue(function) if own_queue else {}), **found}
        if (condition := self.condition(function)) is not None:
            for resource in found.values():
                resource["Condition"] = condition
        return found

    def _function(self, function: DeployedFunction) -> dict[str, Any]:
        own = [rules.runtime_rule(self.runtime), *rules.FUNCTION_RULES, rules.ample_timeout_rule(function.sort)]
        own += [rules.RECURSION] if function.sort == QUEUE else []
        return {
            "Type": "AWS::Serverless::Function",
            "Metadata": {"BuildMethod": "makefile"},
            "Properties": {
                "CodeUri": ".",
                "Handler": function.handler,
                **as_properties(own),
                "Role": att(f"{function.name}Role"),
                "LoggingConfig": {"LogGroup": ref(f"{function.name}Log")},
                "Environment": {"Variables": self.environment(function)},
                "Events": self._events(function),
                **({} if function.sort in (STREAM, QUEUE) else {"EventInvokeConfig": {"MaximumRetryAttempts": 0}}),
            },
        }

    def environment(self, function: DeployedFunction) -> dict[str, TemplateValue]:
        """The variables of a function."""
        found = {variable: self.tables.real(name) for name, variable in self.deployment.environment_names.items()}
        found |= {STATE_TABLE: self.tables.state, PREFIX + "OLDER_CODE": ref("OlderCode"), **self.elsewhere.variables}
        if function.sort in (STREAM, QUEUE):
            found |= {
                PREFIX + "GROUP": function.group or GROUP,
                PREFIX + "PARK": self.elsewhere.location(FAILURES, "/parked") or sub("s3://${FailureBucket}/parked"),
                PREFIX + "RETENTION_DAYS": ref("RetentionDays"),
                **addresses_of_destinations(function.routes),
            }
            if function.fans_out:
                found[PREFIX + "JOBS"] = self.elsewhere.queue_url or ref(function.queue)
            if function.archives:
                found[PREFIX + "ARCHIVE"] = self.elsewhere.location(ARCHIVE) or sub("s3://${ArchiveBucket}")
            if function.searches:
                found |= {
                    PREFIX + "SEARCH": ref("SearchEndpoint"),
                    PREFIX + "SEARCH_SERVICE": if_("SearchesAsUser", "none", "es"),
                    PREFIX + "SEARCH_USER": if_("SearchesAsUser", ref("SearchUser"), NO_VALUE),
                    PREFIX + "SEARCH_PASSWORD": TEMPLATE_SECRETS["search_password"].setting,
                }
            if self.signs_history:
                found[PREFIX + "AUDIT_KEY"] = TEMPLATE_SECRETS["audit_key"].setting
        return found

    def _events(self, function: DeployedFunction) -> dict[str, Any]:
        if function.sort == STREAM:
            return {self.tables.event(name): self._stream_event(function, name) for name in function.subscribed}
        return _messages_of(self.elsewhere.queue, function) if function.sort == QUEUE else SAMPLED

    def _stream_event(self, function: DeployedFunction, logical: str) -> dict[str, Any]:
        existing = self.existing.get(logical)
        criteria = self.filter(function, logical).criteria
        kinesis = existing is not None and existing.on_kinesis
        failures = self.resource_of_place(Place("failure bucket"))
        of_mapping = *rules.mapping_rules(kinesis=kinesis).values(), rules.DESTINATION_TYPE
        return {
            "Type": "Kinesis" if kinesis else "DynamoDB",
            "Properties": {
                "Stream": self.tables.stream_arn(logical),
                **({} if criteria is None else {"FilterCriteria": criteria}),
                **as_properties(of_mapping, {rules.DESTINATION.property: failures}),
            },
        }

    def statements(self, function: DeployedFunction) -> list[TemplateValue]:
        """What the role of a function allows: the calls that its handlers make, and those of its mapping."""
        granted = self.deployment.permissions(function, **self.tables.with_permissions)
        own = by_own_role(granted, self.elsewhere.role_of)
        document = policy(own, lambda place: self.resource_of_place(place, function))
        return [*_conditioned(self.elsewhere, document["Statement"]), USE_KEY, *key_statements(function.routes)]

    def role(self, kind: Literal["operate", "read"]) -> dict[str, Any]:
        """The policy of a person who operates the application, or reads only."""
        granted = permissions(self.deployment.app, Role(kind), **self.tables.with_permissions)
        found = policy(granted, self.resource_of_place)
        return {**found, "Statement": [*_conditioned(self.elsewhere, found["Statement"]), USE_KEY]}

    def resource_of_place(self, place: Place, function: DeployedFunction | None = None) -> TemplateValue:
        """The ARN of a place in this template."""
        if (shared := self.elsewhere.arn_of(place) or arn_for_messages(place)) is not None:
            return shared
        match place.kind:
            case "table" | "state":
                return self.tables.arn(STATE.name if place.kind == "state" else place.name)
            case "stream":
                return self.tables.stream_arn(place.name)
            case "key":
                return self.existing[place.name].key
            case "search":
                domain = "arn:${AWS::Partition}:es:${AWS::Region}:${AWS::AccountId}:domain/${SearchDomain}"
                return sub(f"{domain}/{place.name}")
            case "queue" | "dead letters":
                queues = [each for each in self.functions if each.sort == QUEUE]
                own = [each for each in queues if function is None or each.group == function.group]
                found = [att(each.queue + "Failures" * (place.kind != "queue")) for each in own]
                return found[0] if len(found) == 1 else found
            case "secret":
                return TEMPLATE_SECRETS[place.name].arn
            case "log":
                names = [function.name] if function is not None else [each.name for each in self.functions]
                found = [att(f"{name}Log") for name in names]
                return found[0] if len(found) == 1 else found
        return PLACES[place.kind]

    # Tables, queues, buckets.

    def _table(self, table: Table) -> dict[str, Any]:
        types = self.deployment.app.key_types(table)
        view = self.deployment.view(table)
        is_read = any(table.name in each.subscribed for each in self.functions)
        found = _stored(types, table.attributes, table.ttl)
        if is_read:
            found["Properties"]["StreamSpecification"] = {"StreamViewType": view}
        if table.indexes:
            found["Properties"]["GlobalSecondaryIndexes"] = [
                {"IndexName": name, "KeySchema": rules.key_schema(keys), "Projection": {"ProjectionType": "ALL"}}
                for name, keys in table.indexes.items()
            ]
        return found

    # What a person sees.

    def _conditions(self, resources: Mapping[str, Any]) -> dict[str, Any]:
        found = {**(SEARCH_CONDITIONS if self.searches else {}), **CONDITIONS, **DASHBOARD_CONDITIONS}
        found |= (HISTORY_CONDITIONS if self.signs_history else {}) | destination_conditions(self.deployment.app.routes)
        return found | (SEARCH_DASHBOARD_CONDITIONS if "SearchDashboard" in resources else {})

    def _parameters(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "Application": {
                "Type": "String",
                "Default": self.deployment.app.name,
                "Description": "The name of the App, by which its metrics are found",
            }
        }
        if self.searches:
            found |= search_parameters(are_required=self.needs_search)
        if self.signs_history:
            found["AuditKeySecret"] = secret_parameter("the key of the histories' digests")
        for name, table in self.deployment.app.tables.items():
            if table.region is not None:
                text = f"The real name of table {name} in {table.region}"
                found[self.tables.resource(name) + "Name"] = {"Type": "String", "Default": name, "Description": text}
        found |= destination_parameters(self.deployment.app.routes) | ALARM_PARAMETERS
        return found | {choice.name: choice.parameter for choice in CHOICES}


def _conditioned(elsewhere: OtherAccounts, statements: Sequence[TemplateValue]) -> Iterator[TemplateValue]:
    return (elsewhere.conditioned(_if_named(each)) for each in statements)


def _if_named(statement: TemplateValue) -> TemplateValue:
    # Without a secret, the ARN would be that of all secrets whose names have six letters.
    named = {sid(Place("secret", name)): each for name, each in TEMPLATE_SECRETS.items()}
    return if_(named[statement["Sid"]].condition, statement, NO_VALUE) if statement["Sid"] in named else statement


def _messages_of(queue: TemplateValue | None, function: DeployedFunction) -> dict[str, Any]:
    messages = {"Queue": queue or att(function.queue), **as_properties(rules.MESSAGE_RULES.values())}
    again = {"Schedule": rules.AGAIN, "Input": json.dumps(RING)}
    found = {
        "Messages": {"Type": "SQS", "Properties": messages},
        "QueueAgain": {"Type": "Schedule", "Properties": again},
    }
    if function.is_woken:
        wake = {"Schedule": rules.EACH_MINUTE, "Input": json.dumps(WAKE)}
        found["Wake"] = {"Type": "Schedule", "Properties": wake}
    return found


def _role(statements: Sequence[TemplateValue]) -> dict[str, Any]:
    trusted = {"Effect": "Allow", **as_properties([rules.TRUSTED]), "Action": "sts:AssumeRole"}
    own = {"PolicyName": "own", "PolicyDocument": {"Version": VERSION, "Statement": list(statements)}}
    trust = {"Version": VERSION, "Statement": [trusted]}
    return {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": trust, "Policies": [own]}}


def _queue(function: DeployedFunction) -> dict[str, Any]:
    name, dead = function.queue, f"{function.queue}Failures"
    properties = as_properties(
        [rules.visibility_rule(rules.TIMEOUT_SECONDS[QUEUE], function.name), rules.RECEIVES, rules.ENCRYPTED]
    )
    properties["RedrivePolicy"]["deadLetterTargetArn"] = att(dead)
    policy = {
        "Queues": [ref(name), ref(dead)],
        "PolicyDocument": _only_encrypted("sqs:*", [att(name), att(dead)]),
    }
    rising = {
        f"{name}{alarm.name}": alarm.resource(name, {alarm.of: att(dead, "QueueName")}, NOTIFIED)
        for alarm in alarms.OF_QUEUE
    }
    return {
        name: {"Type": "AWS::SQS::Queue", "Properties": properties},
        dead: {"Type": "AWS::SQS::Queue", "Properties": as_properties([rules.KEPT_LETTERS, rules.ENCRYPTED])},
        f"{name}Policy": {"Type": "AWS::SQS::QueuePolicy", "Properties": policy},
        **rising,
    }


def _bucket(name: str, expiry: Mapping[str, Any]) -> dict[str, Any]:
    properties = {
        **as_properties(rules.BUCKET_RULES),
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "LifecycleConfiguration": {"Rules": [{"Id": "tidy", "Status": "Enabled", **expiry, **CUT_OFF}]},
    }
    policy = {
        "Bucket": ref(name),
        "PolicyDocument": _only_encrypted("s3:*", [att(name), sub(f"${{{name}.Arn}}/*")]),
    }
    return {
        name: {"Type": "AWS::S3::Bucket", **RETAINS, "Properties": properties},
        f"{name}Policy": {"Type": "AWS::S3::BucketPolicy", "Properties": policy},
    }


def _outputs(resources: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: each for topic in TOPICS.values() for name, each in topic.output.items()}
    texts = {
        "AWS::DynamoDB::Table": "A table, for --table or STREAMFOLD_STATE_TABLE",
        "AWS::S3::Bucket": "A bucket of records or items",
        "AWS::SQS::Queue": "A queue, for STREAMFOLD_JOBS",
        "AWS::Serverless::Function": "A function",
    }
    for name, resource in resources.items():
        if (text := texts.get(resource["Type"])) is not None:
            condition = {"Condition": resource["Condition"]} if "Condition" in resource else {}
            found[f"{name}Name"] = {**condition, "Description": text, "Value": ref(name)}
    return found


def _stored(types: Mapping[str, str], attributes: Sequence[str], ttl: str | None) -> dict[str, Any]:
    """A table that outlives its stack and can be restored."""
    own_key = {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": ref("KeyArn")}
    properties: dict[str, Any] = {
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": tag} for name, tag in types.items()],
        "KeySchema": rules.key_schema(attributes),
        **as_properties([rules.RECOVERY]),
        "SSESpecification": if_("OwnKey", own_key, NO_VALUE),
    }
    if ttl is not None:
        properties |= as_properties(rules.time_to_live_rules(ttl))
    return {"Type": "AWS::DynamoDB::Table", **RETAINS, "Properties": properties}


def _only_encrypted(action: str, resources: Sequence[TemplateValue]) -> dict[str, Any]:
    statement = {
        "Sid": "OnlyEncryptedTransport",
        "Effect": "Deny",
        "Principal": "*",
        "Action": action,
        "Resource": list(resources),
        **as_properties([rules.ENCRYPTED_REQUESTS]),
    }
    return {"Version": VERSION, "Statement": [statement]}


# Parts and notes.

STORED = ("AWS::DynamoDB::Table", "AWS::SQS::Queue", "AWS::S3::Bucket")
OF_FUNCTION = ("Handler", "Runtime", "Timeout", "RecursiveLoop")


def parts(template: SamTemplate) -> dict[str, Any]:
    """The parts of a deployment: functions with environment, mappings, policy; alarms; dashboards; what stores."""
    file = TemplateFile(template.content)
    functions: dict[str, Any] = {}
    for each in template.functions:
        own = file.resources[each.name].properties
        (policy,) = file.resources[f"{each.name}Role"].properties["Policies"]
        functions[each.name] = {
            "group": each.group,
            **{name: own[name] for name in OF_FUNCTION if name in own},
            "Environment": plain(file, own["Environment"]["Variables"], is_chosen=False),
            "Events": plain(file, own["Events"]),
            "Policy": plain(file, policy["PolicyDocument"]),
        }
    kept = {name: each for name, each in file.resources.items() if each.type in STORED}
    alarms = {name: each for name, each in file.resources.items() if each.type == "AWS::CloudWatch::Alarm"}
    shown = {name: each for name, each in file.resources.items() if each.type == "AWS::CloudWatch::Dashboard"}
    return {
        "application": template.deployment.app.name,
        "functions": functions,
        "resources": {name: {"Type": each.type, **plain(file, each.properties)} for name, each in kept.items()},
        "alarms": {name: plain(file, each.properties) for name, each in alarms.items()},
        "dashboards": {name: plain(file, each.properties) for name, each in shown.items()},
        "notes": list(notes(template)),
    }


def plain(file: TemplateFile, value: Mapping[str, Any], *, is_chosen: bool = True) -> Any:
    """A value of a template as texts and numbers: of a parameter its default, or ``${NAME}`` without one.

    is_chosen: conditions hold, but for the key of a table's own.
    """
    # Of a condition, the last alternative is that of an option that nobody took.
    is_chosen = is_chosen and "SSESpecification" not in value
    return _as_text(file.first(value) if is_chosen else file.alternatives(value)[-1])


def _as_text(value: Any) -> Any:
    if isinstance(value, Unknown):
        return f"${{{value.parameter}}}" if value.parameter else value.text
    if isinstance(value, Mapping):
        return {name: _as_text(each) for name, each in value.items()}
    return [_as_text(each) for each in value] if isinstance(value, list) else value


def notes(template: SamTemplate) -> Iterator[str]:
    """What a person should know of filters, readers and parameters, a sentence each."""
    for function in template.functions:
        for table in function.subscribed:
            found = template.filter(function, table)
            what = f"{function.name} reads all records of table {table!r}"
            if found.widened_by:
                yield f"{what}: keys of {', '.join(found.widened_by)} begin with a field, and no filter can name them."
            elif not found.patterns:
                yield f"{what}: its {len(set(function.subscribed[table]))} keys are too many for a filter."
            elif not found.counts_removals:
                yield (
                    f"The stream of table {table!r} has no old images: {function.name} does not notice that somebody "
                    "removed a row that handlers add to."
                )
    yield from _notes_of_readers(template)
    for function in template.functions:
        if function.sort in (STREAM, QUEUE):
            # What no change reaches is called at moments, by the function behind the queue.
            sends = [
                each for each in function.routes if bool(each.kind.subscriptions(each)) is (function.sort == STREAM)
            ]
            yield from notes_of_destinations(sends, f"{function.name}Role")
    if template.needs_search:
        names = ", ".join(each.name for each in template.searches if not each.only_searches)
        yield (
            f"{names} has a search beside other handlers: SearchEndpoint is asked for. A search in a group of its own, "
            'group="search", may be left out.'
        )


def _notes_of_readers(template: SamTemplate) -> Iterator[str]:
    readers: dict[str, list[str]] = {}
    for function in template.functions:
        for table in function.subscribed:
            readers.setdefault(table, []).append(function.name)
    for table, names in readers.items():
        existing = template.existing.get(table)
        if len(names) > rules.READERS_MAX and not (existing and existing.on_kinesis):
            readers_of_it = f"{len(names)} readers, {', '.join(names)}"
            yield f"The stream of table {table!r} has {readers_of_it}: {rules.TOO_MANY_READERS}."
