"""Whether code, functions, mappings, tables and state fit together: one line for each thing that can be wrong.

``deployed`` asks AWS, ``diagnosis`` has the lines and what needs no further call.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from streamfold.app import App
from streamfold.batch.manifest import RETIRED, Manifest
from streamfold.batch.ownership import difference, guarded, key_of, parsed
from streamfold.deploy import moments, rules
from streamfold.deploy.alarms import QUEUE_AGE, STREAM_AGE
from streamfold.deploy.deployed import (
    DYNAMODB,
    KINESIS,
    LISTED_MAPPINGS,
    LISTED_MAX,
    SQS,
    Account,
    LiveFunction,
    LiveMapping,
    NotAllowed,
    NotThere,
    bucket_of,
    manifest_of,
    queue_arn_url,
)
from streamfold.deploy.diagnosis import (
    BAD,
    UNSEEN,
    Diagnose,
    Diagnosis,
    DoctorLine,
    bad,
    count_of_mappings,
    destination,
    good,
    is_enabled,
    judged,
    mapping_lines,
    mapping_settings,
    obeys,
    older_code,
    partial_handlers,
    sample_value,
    settings_fit,
    source_account,
    timeout,
)
from streamfold.deploy.functions import DeployedFunction, Deployment, Sort
from streamfold.deploy.permissions import Place
from streamfold.deploy.table_names import by_own_role
from streamfold.engines.keys import key_attributes
from streamfold.engines.protocol import NamedTable
from streamfold.errors import SettingsError, manual
from streamfold.keys.table import MAIN, MARKED, NO_TRANSACTIONS, STATE
from streamfold.ledger.state_keys import fan_outs_partition, identity_key
from streamfold.parking import s3_location
from streamfold.routes.route import Route
from streamfold.settings import SECRETS, Settings
from streamfold.settings.readers import PREFIX, SecretReference, account_of
from streamfold.testing.mapping_settings import Filters

STARTED = re.compile(r'"started": ?(\d+)')
"""In a job's text: when it began, epoch seconds. Nothing else of it is looked at."""
LAG_SECONDS_MAX = STREAM_AGE.threshold / 1000
"""As the alarm on the age of the stream, whose metric counts milliseconds."""
LOOKED_BACK = timedelta(minutes=15)
FAN_OUT_SECONDS_MAX = QUEUE_AGE.threshold
"""As the alarm. A fan-out goes on within minutes; one that is open for longer has no function behind its queue, or
fails."""
FindArn = Callable[[], str | None]
"""Gives the ARN of a resource, if anything names it."""


# With AWS.


@dataclass
class Look:
    """What is looked at: an application, and its functions in an account. ``now``: the time, in epoch seconds."""

    app: App
    account: Account
    functions: Sequence[LiveFunction]
    now: float

    @cached_property
    def deployment(self) -> Deployment:
        return Deployment(self.app, "")


class Doctor(Look):
    """Looks at the functions of one application."""

    def lines(self) -> Iterator[DoctorLine]:
        """All lines: of each function and its mappings, then of the tables and the state."""
        for function in self.functions:
            yield from self._function_lines(function)
        yield from moments.queue_lines(self.app, self.functions)
        settings = [found for each in self.functions if (found := _readable(each)) is not None]
        for name in {**self.app.source_tables, **self.app.tables}:
            for role, own in by_role(settings, name):
                yield from self._tables(role).table_lines(name, own)
        for location in sorted({each.park for each in settings if each.park is not None}):
            yield from self._parked_lines(location)
        for role, own in by_role(settings, STATE.name):
            for state in sorted({state_name(self.app, each) for each in own}):
                yield from self._tables(role).state_lines(state, own)

    def _tables(self, role: str | None) -> "TableDoctor":
        return TableDoctor(self.app, self.account.of(role), self.functions, self.now)

    def _function_lines(self, function: LiveFunction) -> Iterator[DoctorLine]:
        (line,) = judged(function.name, {"settings": lambda: settings_fit(self.app, function.settings)})
        yield line
        if line.state == BAD and _readable(function) is None:  # nothing else can be judged
            return
        yield from judged(
            function.name,
            {
                "older code": lambda: older_code(function.settings),
                "timeout": lambda: timeout(function),
                "epoch": lambda: self._as_high(function, "epoch", ", the highest", "this one is refused"),
                "retention": lambda: self._as_high(
                    function, "retention_days", " days, the longest", "claims of this one expire before a late redrive"
                ),
            },
        )
        mappings = _mappings(function)
        if not mappings or _readable(function) is None:
            yield from judged(function.name, {"mapping": lambda: count_of_mappings(function)})
            return
        kind: Sort = "queue" if all(each.service == SQS for each in mappings) else "stream"
        yield from judged(function.name, {"permissions": lambda: self._permissions(function, kind)})
        if kind == "queue" and DeployedFunction(kind, "", self._routes(function), "").is_woken:
            yield from judged(function.name, {"schedule": lambda: moments.schedule(function)})
        for mapping in mappings:
            yield from judged(function.name, self._mapping_checks(function, mapping))

    def _mapping_checks(self, function: LiveFunction, mapping: LiveMapping) -> Mapping[str, Diagnose]:
        content = mapping.content
        shared = {"mapping": lambda: is_enabled(content), **mapping_lines(content, "response type")}
        if mapping.service == SQS:
            return shared | {
                "mapping settings": lambda: mapping_settings(content, rules.MESSAGE_RULES),
                "queue settings": lambda: self._queue(mapping),
                "queue visibility": lambda: self._visibility(function, mapping),
                "dead letters": lambda: self._dead_letters(mapping),
            }
        return shared | {
            **mapping_lines(content, "starting position", "bisect", "limits"),
            "mapping settings": lambda: mapping_settings(content),
            "failure destination": lambda: destination(mapping),
            "filter": lambda: self._filter(function, mapping),
            **({"account": lambda: self._source_account(function, mapping)} if is_foreign(function, mapping) else {}),
            "readers": lambda: self._readers(function, mapping),
            "lag": lambda: self._lag(function),
            **({"failures waiting": lambda: self._failures(mapping)} if mapping.failures_to else {}),
        }

    # --- the function -------------------------------------------------------------------------------------------------

    def _manifest(self, function: LiveFunction) -> Manifest:
        return manifest_of(
            self.account.of(function.settings.role), state_name(self.app, function.settings), self.app.name
        )

    def _routes(self, function: LiveFunction) -> tuple[Route, ...]:
        return self.deployment.routes(function.settings.group)

    def _as_high(self, function: LiveFunction, setting: str, right: str, otherwise: str) -> Diagnosis:
        """Whether a number is not below that of another function, or of one that ran before."""
        own, name = getattr(function.settings, setting), PREFIX + setting.upper()
        others = [getattr(found, setting) for each in self.functions if (found := _readable(each)) is not None]
        highest = max(getattr(self._manifest(function), setting), own, *others)
        if own < highest:
            return bad(
                f"{name} is {own}, and another function has or had {highest}: {otherwise}",
                f"set {name}={highest} in all functions",
            )
        return good(f"{own}{right}")

    def _permissions(self, function: LiveFunction, kind: Sort) -> Diagnosis:
        group = function.settings.group
        mapped = {logical_name(self.app, function.settings, each.table) for each in function.mappings}
        by_kinesis = any(each.service == KINESIS for each in function.mappings)
        kinesis = [*self.app.source_tables] if by_kinesis else []
        deployed = DeployedFunction(kind, group, self._routes(function), "")
        given = {name: getattr(function.settings, name) for name in SECRETS}
        secrets = {name: each.store for name, each in given.items() if isinstance(each, SecretReference)}
        every = self.deployment.permissions(deployed, kinesis=kinesis, mapped=mapped, secrets=secrets)
        granted = by_own_role(every, function.settings.role_of)
        by_arn: dict[str, set[str]] = {}
        unknown: set[str] = set()
        for action, place in granted:
            if (arn := arn_of(self.app, self.account, function, place)) is None:
                unknown.add(f"{action} on {place.kind}")
            else:
                by_arn.setdefault(arn, set()).add(action)
        denied = [
            f"{result['EvalActionName']} on {arn}"
            for arn, actions in sorted(by_arn.items())
            for result in self.account.pages(
                "iam",
                "simulate_principal_policy",
                "EvaluationResults",
                PolicySourceArn=function.described["Role"],
                ActionNames=sorted(actions),
                ResourceArns=[arn],
            )
            if result["EvalDecision"] != "allowed"
        ]
        if denied:
            return bad(
                f"its role may not {', '.join(sorted(denied))}",
                f"grant these ({manual('permissions')}, or streamfold template prints the policy)",
            )
        unseen = f"; not simulated: {', '.join(sorted(unknown))}" if unknown else ""
        return good(f"{sum(map(len, by_arn.values()))} actions are allowed{unseen}")

    def _parked_lines(self, location: str) -> Iterator[DoctorLine]:
        def count() -> int:
            if location.startswith("s3://"):
                return self.account.objects(*s3_location(location))
            return self.account.messages(location)

        yield from judged(location, {"parked records": lambda: self._waiting(count(), location)})

    # --- its mappings -------------------------------------------------------------------------------------------------

    def _source_account(self, function: LiveFunction, mapping: LiveMapping) -> Diagnosis:
        return source_account(self.app, function, mapping, logical_name(self.app, function.settings, mapping.table))

    def _failures(self, mapping: LiveMapping) -> Diagnosis:
        to = mapping.failures_to or ""
        if (bucket := bucket_of(to)) is not None:
            return self._waiting(
                self.account.objects(bucket, f"aws/lambda/{mapping.content['UUID']}/"),
                f"s3://{bucket}/aws/lambda/{mapping.content['UUID']}",
            )
        if to.split(":")[2] == SQS:
            return self._waiting(self.account.messages(queue_arn_url(to)), queue_arn_url(to))
        service = to.split(":")[2]
        return Diagnosis(UNSEEN, f"what {service} did with them cannot be read", "name a bucket as destination")

    def _waiting(self, count: int, where: str) -> Diagnosis:
        if count:
            more = " or more" * (count >= LISTED_MAX)
            return bad(
                f"{count}{more} wait",
                f"streamfold redrive {where} --apply{' --clear' * where.startswith('s3://')}: what took effect goes",
            )
        return good("none waits")

    def _queue(self, mapping: LiveMapping) -> Diagnosis:
        queue = self.account.queue(queue_arn_url(mapping.source_arn))
        return obeys(queue, rules.STANDARD, *rules.encryption_rules(queue), on="the queue")

    def _visibility(self, function: LiveFunction, mapping: LiveMapping) -> Diagnosis:
        seconds = int(self.account.queue(queue_arn_url(mapping.source_arn))["VisibilityTimeout"])
        timeout = int(function.described["Timeout"])
        rule = rules.visibility_rule(timeout, function.name)
        if not rule.accepts(seconds):
            return bad(
                f"the queue hides a message for {seconds} seconds, and the function runs for up to {timeout}: segments "
                "come twice at once",
                f"set VisibilityTimeout of the queue to {rule.value} or more",
            )
        return good(f"{seconds} seconds")

    def _dead_letters(self, mapping: LiveMapping) -> Diagnosis:
        policy = json.loads(self.account.queue(queue_arn_url(mapping.source_arn)).get("RedrivePolicy", "{}"))
        if not (target := policy.get("deadLetterTargetArn")):
            return bad("the queue has no dead-letter queue: a failing segment comes for ever", "give it one")
        dead = self.account.queue(queue_arn_url(target))
        receives = obeys({"RedrivePolicy": policy}, rules.RECEIVES, on="the queue")
        kept = obeys(dead, rules.KEPT_LETTERS, *rules.encryption_rules(dead), on="the dead-letter queue")
        if BAD in (receives.state, kept.state):
            return receives if receives.state == BAD else kept
        if count := self.account.messages(queue_arn_url(target)):
            return bad(f"{count} segments were given up", "streamfold jobs --ring queues them again")
        return good("none waits")

    def _filter(self, function: LiveFunction, mapping: LiveMapping) -> Diagnosis:
        passes = Filters(mapping.patterns)
        dropped = [
            f"{event} of {template}"
            for template, record in self._samples(function, mapping)
            for event in ("INSERT", "MODIFY", "REMOVE")
            if not passes({**record, "eventName": event} | ({"data": record} if mapping.service == KINESIS else {}))
        ]
        if dropped:
            return bad(
                f"it drops {', '.join(dropped)}, which a handler reads: these records are lost",
                "let them through; then streamfold backfill for the items that changed meanwhile",
            )
        return good(f"{len(mapping.patterns)} patterns, no record of a handler is dropped")

    def _samples(self, function: LiveFunction, mapping: LiveMapping) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """A record for each template that the code or the manifest reads from this mapping."""
        settings = function.settings
        logical = logical_name(self.app, settings, mapping.table)
        entries = self._manifest(function).handlers.values()
        known = {
            name
            for each in entries
            if RETIRED not in each and settings.serves(each["group"])
            for name in each["sources"]
        }
        routes = [route for route in self.app.routes if settings.serves(route.group)]
        known |= {each.key.stored_name for route in routes for each in route.kind.subscriptions(route)}
        for template in sorted(known):
            table, _, text = template.partition(": ")
            if logical in (table, None):
                names = self.app.tables.get(table, MAIN).attributes
                keys = {name: {"S": sample_value(each)} for name, each in zip(names, text.split(" / "), strict=False)}
                yield template, {"eventSource": "aws:dynamodb", "dynamodb": {"Keys": keys}}

    def _readers(self, function: LiveFunction, mapping: LiveMapping) -> Diagnosis:
        listed = self.account.pages(*LISTED_MAPPINGS, EventSourceArn=mapping.source_arn)
        count = len([each for each in listed if each.get("State") != "Disabled"])
        if mapping.service != DYNAMODB or count <= rules.READERS_MAX:
            return good(f"{count} of them")
        logical = logical_name(self.app, function.settings, mapping.table)
        if rules.has_foreign_readers(count, sum(logical in each.subscribed for each in self.deployment.functions)):
            return bad(
                f"{count} mappings read the stream, and DynamoDB serves {rules.READERS_MAX}",
                f"{rules.FEWER_READERS} ({manual('sources')})",
            )
        return good(f"{count} of them, one for each group; {rules.TOO_MANY_READERS} ({manual('sources')})")

    def _lag(self, function: LiveFunction) -> Diagnosis:
        until = datetime.fromtimestamp(self.now, UTC)
        answer = self.account.ask(
            "cloudwatch",
            "get_metric_statistics",
            Namespace="AWS/Lambda",
            MetricName="IteratorAge",
            Dimensions=[{"Name": "FunctionName", "Value": function.name}],
            StartTime=until - LOOKED_BACK,
            EndTime=until,
            Period=60,
            Statistics=["Maximum"],
        )
        newest = max(answer["Datapoints"], key=lambda point: point["Timestamp"], default=None)
        if newest is None:
            return good(f"it was not called in the last {LOOKED_BACK.seconds // 60} minutes")
        seconds = newest["Maximum"] / 1000
        if seconds > LAG_SECONDS_MAX:
            return bad(f"it is {seconds:,.0f} seconds behind its stream", f"{manual('alarms')}, ProjectorAge")
        return good(f"{seconds:,.0f} seconds")


class TableDoctor(Look):
    """Looks at the tables of one application, and at its state."""

    def table_lines(self, logical: str, settings: Iterable[Settings]) -> Iterator[DoctorLine]:
        for real in sorted({real_name(each, logical) for each in settings}):
            yield from judged(real, self._table_checks(logical, real))

    def _table_checks(self, logical: str, real: str) -> Mapping[str, Diagnose]:
        mappings = [mapping for each in self.functions for mapping in _mappings(each) or ()]
        by_kinesis = any(each.service == KINESIS for each in mappings) and not any(
            each.table == real for each in mappings
        )
        checks: dict[str, Diagnose] = {}
        if any(key.table.name == logical for route in self.app.routes for key in route.writes):
            checks["consistency"] = lambda: self._consistency(real)
        if logical not in self.app.source_tables:
            return checks
        if not by_kinesis:  # or the table's own stream may be off
            checks["stream"] = lambda: self._stream(logical, real)
        if (attribute := self.app.source_tables[logical].ttl) is not None:
            checks["time to live"] = lambda: self._time_to_live(real, attribute)
        return {**checks, "recovery": lambda: self._recovery(real)}

    def _consistency(self, real: str) -> Diagnosis:
        found = self.account.table(real)
        if not rules.CONSISTENCY.holds(found):
            return bad(NO_TRANSACTIONS, f"give its rows a table of their own; {manual('sources')} says which")
        return good("within the region")

    def _stream(self, logical: str, real: str) -> Diagnosis:
        found = self.account.table(real).get("StreamSpecification", {})
        update = f"aws dynamodb update-table --table-name {real} --stream-specification StreamEnabled="
        on = f"{update}true,StreamViewType={self.deployment.view(self.app.tables[logical])}"
        if not found.get("StreamEnabled"):
            return bad("the stream is off", f"{on}, then map its ARN to the function")
        view = found["StreamViewType"]
        if why := self.deployment.lacking(logical, view):
            off = f"{update}false && aws dynamodb wait table-exists --table-name {real}"
            return bad(why[0], f"when the function has read the stream to its end: {off} && {on}, then map the new ARN")
        return good(f"on, {view}")

    def _time_to_live(self, table: str, attribute: str) -> Diagnosis:
        answer = self.account.ask(DYNAMODB, "describe_time_to_live", TableName=table)["TimeToLiveDescription"]
        status, name = answer["TimeToLiveStatus"], answer.get("AttributeName")
        is_on = status in ("ENABLED", "ENABLING")
        live = {"TimeToLiveSpecification": {"AttributeName": name, "Enabled": is_on}}
        if all(rule.holds(live) for rule in rules.time_to_live_rules(attribute)):
            return good(f"by {attribute}")
        command = f"aws dynamodb update-time-to-live --table-name {table} --time-to-live-specification "
        remedy = f"{command}Enabled=true,AttributeName={attribute}"
        if is_on:  # DynamoDB changes the attribute of none that is on, and takes one change an hour
            remedy = f"{command}Enabled=false,AttributeName={name}, and an hour later {remedy}"
        return bad(f"it is {status}{f' on {name!r}' if name else ''}, and {attribute!r} has the times", remedy)

    def _recovery(self, table: str) -> Diagnosis:
        answer = self.account.ask(DYNAMODB, "describe_continuous_backups", TableName=table)
        found = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
        is_enabled = found.get("PointInTimeRecoveryStatus") == "ENABLED"
        if not rules.RECOVERY.holds({"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": is_enabled}}):
            return bad(
                "point-in-time recovery is off",
                f"aws dynamodb update-continuous-backups --table-name {table} --point-in-time-recovery-specification "
                "PointInTimeRecoveryEnabled=true",
            )
        return good("to any second")

    def state_lines(self, table: str, settings: Iterable[Settings]) -> Iterator[DoctorLine]:
        """The lines of a state. settings: those of all functions; some may name another state."""
        own = [each for each in settings if table == state_name(self.app, each)]
        yield from judged(
            table,
            {
                "time to live": lambda: self._time_to_live(table, STATE.ttl or "ttl"),
                "recovery": lambda: self._recovery(table),
                "consistency": lambda: self._consistency(table),
                "one region": lambda: self._one_region(table),
                "markers": lambda: self._markers(table, own),
                "partial handlers": lambda: partial_handlers(manifest_of(self.account, table, self.app.name)),
                "fan-outs": lambda: self._fan_outs(table),
            },
        )
        if asking := moments.asking(self.app):
            yield from judged(table, {"moments": lambda: self._moments(table, asking)})

    def _moments(self, table: str, asking: Sequence[Route]) -> Diagnosis:
        return moments.late(self.app, asking, self.account, table, self.now, self.functions)

    def _one_region(self, table: str) -> Diagnosis:
        found = self.account.table(table)
        regions = sorted(str(each.get("RegionName")) for each in found.get("Replicas", ()))
        if regions:
            return bad(
                f"the state is a global table, with replicas in {', '.join(regions)}: two regions would count in one "
                "state, and overwrite each other",
                f"remove the replicas; {manual('regions')} says how another region takes over",
            )
        return good("no replicas")

    def _markers(self, table: str, settings: Iterable[Settings]) -> Diagnosis:
        """Whether the tables of this state have its rows: a state that was restored is found out here."""
        state = self._named(table)
        identity = self._item(table, {"pk": {"S": identity_key().pk}, "sk": {"S": identity_key().sk}}).get("s", {})
        owned = 0
        for each in {each.table: each for each in guarded(self.app.routes)}.values():
            for real in sorted({real_name(found, each.table) for found in settings}):
                marker = self._item(real, key_attributes(each.key.table, key_of(each.key))).get(MARKED, {})
                entry = parsed(marker.get("S")).get(self.app.name)
                if entry is None:
                    continue
                if why := difference(entry, identity.get("S"), state, self._named(real)):
                    return bad(f"table {real}: {why}", f"{manual('adopting')} has the ways on")
                owned += 1
        return good(f"{owned} tables have rows of this state" if owned else "none yet: the first batch puts them")

    def _item(self, table: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self.account.ask(DYNAMODB, "get_item", TableName=table, Key=key, ConsistentRead=True)
        found: Mapping[str, Any] = answer.get("Item", {})
        return found

    def _named(self, table: str) -> NamedTable:
        found = self.account.table(table)
        return NamedTable(table, found.get("TableId"))

    def _fan_outs(self, table: str) -> Diagnosis:
        answer = self.account.ask(
            DYNAMODB,
            "query",
            TableName=table,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": {"S": fan_outs_partition(self.app.name)}},
            ProjectionExpression="s",
            Limit=LISTED_MAX,
        )
        started = [int(found[1]) for item in answer["Items"] if (found := STARTED.search(item["s"]["S"]))]
        old = [each for each in started if each < self.now - FAN_OUT_SECONDS_MAX]
        if old:
            return bad(
                f"{len(old)} of {len(started)} are open for more than {FAN_OUT_SECONDS_MAX / 60:.0f} minutes",
                f"streamfold jobs shows them, {manual('fan-outs')} says what stops them",
            )
        return good(f"{len(started)} are open, none for long")


def state_name(app: App, settings: Settings) -> str:
    return settings.state_table or f"{app.name}-state"


def by_role(settings: Iterable[Settings], logical: str) -> Iterator[tuple[str | None, list[Settings]]]:
    """The settings by the role by which their functions use a table, or the state."""
    found: dict[str | None, list[Settings]] = {}
    for each in settings:
        found.setdefault(each.role_of(logical), []).append(each)
    yield from found.items()


def is_foreign(function: LiveFunction, mapping: LiveMapping) -> bool:
    """Whether a stream is in another account than the function that reads it."""
    return account_of(mapping.source_arn) not in (None, account_of(function.described["Role"]))


def real_name(settings: Settings, logical: str) -> str:
    return settings.real_name(logical) or logical


def logical_name(app: App, settings: Settings, real: str | None) -> str | None:
    tables = app.source_tables
    found = [name for name in tables if real_name(settings, name) == real]
    return found[0] if found else next(iter(tables)) if real is not None and len(tables) == 1 else None


def arn_of(app: App, account: Account, function: LiveFunction, place: Place) -> str | None:
    """The resource of a place; None where neither settings nor mappings name it. Raises as ``Account.ask``."""
    settings, mappings = function.settings, function.mappings
    partition = str(function.described["Role"]).split(":")[1]

    def bucket(location: str | None, behind: str = "") -> str | None:
        if location is None or not location.startswith("s3://"):
            return None
        name, prefix = s3_location(location)
        return f"arn:{partition}:s3:::{name}" + (f"/{prefix}{behind}" if behind else "")

    def stream(logical: str) -> str | None:
        real = real_name(settings, logical)
        return next((each.source_arn for each in mappings if each.table == real or each.service == KINESIS), None)

    failures = next((each.failures_to for each in mappings if bucket_of(each.failures_to) is not None), None)
    found: Mapping[str, FindArn] = {
        "table": lambda: str(account.table(real_name(settings, place.name))["TableArn"]),
        "state": lambda: str(account.table(state_name(app, settings))["TableArn"]),
        "stream": lambda: stream(place.name),
        "failure bucket": lambda: failures,
        "failures": lambda: failures and f"{failures}/aws/lambda/x",
        "parking bucket": lambda: bucket(settings.park),
        "parked": lambda: bucket(settings.park, "x"),
        "destination": lambda: destination_arn(settings, place),
        "large data": lambda: bucket(place.name, "x"),
        "archive": lambda: bucket(settings.archive or place.name, "x"),
        "role": lambda: place.name,
        "secret": lambda: secret_arn(function, getattr(settings, place.name)),
        "queue": lambda: next((each.source_arn for each in mappings if each.service == SQS), None),
    }
    return found[place.kind]() if place.kind in found else None


def secret_arn(function: LiveFunction, secret: SecretReference) -> str | None:
    """The ARN of a secret: by its name it is of the function's account and region, with any six letters behind it."""
    own = str(function.described.get("FunctionArn", "")).split(":")
    if secret.name.startswith("arn:") or len(own) < len(["arn", "aws", "lambda", "REGION", "ACCOUNT"]):
        return secret.name if secret.name.startswith("arn:") else None
    _, partition, _, region, account, *_ = own
    named = (
        f"secret:{secret.name}-abcdef" if secret.store == "secretsmanager" else f"parameter/{secret.name.strip('/')}"
    )
    return f"arn:{partition}:{secret.store}:{region}:{account}:{named}"


def destination_arn(settings: Settings, place: Place) -> str | None:
    """The ARN that a setting gives a destination; None if it gives the URL of a queue, or nothing."""
    given = settings.destination(place.name.partition(":")[2])
    return given if given is not None and given.startswith("arn:") else None


def _readable(function: LiveFunction) -> Settings | None:
    """Its settings; None where they are wrong or cannot be seen, which a line of its own says."""
    try:
        return function.settings
    except (NotAllowed, NotThere, SettingsError):
        return None


def _mappings(function: LiveFunction) -> tuple[LiveMapping, ...] | None:
    """Its mappings; None where nobody may list them."""
    try:
        return function.mappings
    except (NotAllowed, NotThere):
        return None
