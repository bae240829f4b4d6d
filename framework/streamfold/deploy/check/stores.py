"""Tables, buckets, queues and logs of a template: they have the declared keys, outlive the stack and stay private."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streamfold.deploy import rules
from streamfold.deploy.check.review import VARIABLES, FoundFunction, Review, described
from streamfold.deploy.choices import RECORD_DAYS, failure_days_max
from streamfold.deploy.functions import QUEUE, STATE_TABLE, STREAM
from streamfold.deploy.template_file import ABSENT, Resource, Unknown
from streamfold.keys.table import NO_TRANSACTIONS, STATE, Table
from streamfold.settings.readers import PREFIX, RETENTION_DAYS_MIN

TABLE, GLOBAL_TABLE, BUCKET, QUEUE_TYPE = (
    "AWS::DynamoDB::Table",
    "AWS::DynamoDB::GlobalTable",
    "AWS::S3::Bucket",
    "AWS::SQS::Queue",
)


def check_stores(review: Review) -> None:
    """Notes what is wrong with the resources that hold records, rows, messages and logs."""
    _check_tables(review)
    for bucket, is_failures in _buckets(review).items():
        _check_bucket(review, review.template.resources[bucket], is_failures=is_failures)
    for found in review.of(QUEUE):
        for mapping in found.mappings:
            queue = review.named(mapping.source)
            if mapping.type == "SQS" and queue is not None and queue.type == QUEUE_TYPE:
                _check_queue(review, found, queue)
    for found in review.functions:
        _check_log(review, found)


# Tables.


def _check_tables(review: Review) -> None:
    checked: set[tuple[str, str]] = set()
    for found in review.functions:
        state = review.variable(found, STATE_TABLE)
        for name, variable in review.deployment.environment_names.items():
            value = review.variable(found, variable)
            if value is ABSENT:
                continue
            if value == state and not isinstance(value, Unknown):
                review.wrong(
                    found.name,
                    f"{VARIABLES}.{STATE_TABLE}",
                    f"it is {state}, as is table {name!r}: expected a table of its own for the state",
                )
                state = ABSENT
            resource = review.template.resource_of(value)
            table = review.deployment.app.tables[name]
            if resource is not None and (resource.name, name) not in checked:
                checked.add((resource.name, name))
                _check_table(review, resource, table)
            elif resource is None and isinstance(value, str) and "${" in value and table.region is None:
                review.wrong(found.name, f"{VARIABLES}.{variable}", f"{value} is no resource of the template")
        resource = review.template.resource_of(state)
        if resource is not None and (resource.name, STATE.name) not in checked:
            checked.add((resource.name, STATE.name))
            _check_state(review, resource)


def _check_table(review: Review, resource: Resource, table: Table) -> None:
    at, given = (resource.name, "Properties"), resource.properties
    if resource.type not in (TABLE, GLOBAL_TABLE):
        review.wrong(resource.name, "Type", f"{described(resource.type)}: expected {TABLE} for table {table.name!r}")
        return
    if any(key.table.name == table.name for route in review.deployment.app.routes for key in route.writes):
        for value in review.values(given, rules.CONSISTENCY.property):
            if not rules.CONSISTENCY.accepts(value):
                text = f"{NO_TRANSACTIONS}: expected {rules.CONSISTENCY.expected}"
                review.wrong(resource.name, f"Properties.{rules.CONSISTENCY.property}", text)
    review.obey((resource.name, ""), resource.body, *rules.RETAINED)
    _check_keys(review, resource, table, review.deployment.app.key_types(table))
    if table.ttl is not None:
        review.obey(at, given, *rules.time_to_live_rules(table.ttl))
    _check_indexes(review, resource, table)
    if any(table.name in found.function.subscribed for found in review.of(STREAM)):
        _check_view(review, resource, table)
    if resource.type == TABLE:
        review.obey(at, given, rules.RECOVERY)


def _check_state(review: Review, resource: Resource) -> None:
    at, given = (resource.name, "Properties"), resource.properties
    if resource.type != TABLE:
        review.wrong(
            resource.name,
            "Type",
            f"{described(resource.type)}: expected {TABLE}. The state belongs to one region: a copy would count twice",
        )
    review.obey((resource.name, ""), resource.body, *rules.RETAINED)
    _check_keys(review, resource, STATE, dict.fromkeys(STATE.attributes, "S"))
    review.obey(at, given, *rules.time_to_live_rules(str(STATE.ttl)))
    if resource.type == TABLE:
        review.obey(at, given, rules.RECOVERY, rules.UNREAD)


def _check_keys(review: Review, resource: Resource, table: Table, types: Mapping[str, str]) -> None:
    given = resource.properties
    schema = rules.key_schema(table.attributes)

    def is_schema(value: Any) -> bool:
        return isinstance(value, list) and sorted(map(str, map(_sorted, value))) == sorted(
            map(str, map(_sorted, schema))
        )

    expected = f"{_schema_text(schema)}, the key attributes of table {table.name!r}"
    for value in review.values(given, "KeySchema"):
        if not is_schema(value) and not isinstance(value, Unknown):
            text = f"{described(_schema_text(value) or value)}: expected {expected}"
            review.wrong(resource.name, "Properties.KeySchema", text)
    for declared in review.values(given, "AttributeDefinitions"):
        found = {
            str(each.get("AttributeName")): each.get("AttributeType")
            for each in (declared if isinstance(declared, list) else ())
        }
        for name in table.attributes:
            if found.get(name) != types[name] and not isinstance(declared, Unknown):
                what = described(found.get(name, ABSENT))
                text = f"{name}: {what}: expected {types[name]}, the type of the key attribute"
                review.wrong(resource.name, "Properties.AttributeDefinitions", text)


def _schema_text(schema: Any) -> str:
    """The key attributes as a person reads them; nothing for what is no list of them."""
    if not isinstance(schema, list) or not all(isinstance(each, Mapping) for each in schema):
        return ""
    return " and ".join(f"{each.get('AttributeName')} ({each.get('KeyType')})" for each in schema)


def _sorted(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, Mapping) else value


def _check_view(review: Review, resource: Resource, table: Table) -> None:
    for view in review.values(resource.properties, "StreamSpecification.StreamViewType"):
        path = "Properties.StreamSpecification.StreamViewType"
        if isinstance(view, Unknown) or "KinesisStreamSpecification" in resource.properties:
            continue
        if view is ABSENT:
            expected = review.deployment.view(table)
            review.wrong(resource.name, path, f"it is missing, and no record comes: expected {expected}")
        elif why := review.deployment.lacking(table.name, str(view)):
            more = f" ({len(why) - 1} more handlers)" if len(why) > 1 else ""
            review.wrong(resource.name, path, f"it is {view}, and {why[0].rstrip('.')}{more}")
        elif "OLD" not in str(view):
            text = (
                f"it is {view}: without old images, nobody notices that somebody removed a row, and updates cost more"
            )
            review.advise(resource.name, path, text)


def _check_indexes(review: Review, resource: Resource, table: Table) -> None:
    for index, keys in table.indexes.items():
        names = list(keys)
        for kind in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
            (found,) = review.values(resource.properties, kind)[:1]
            own = [each for each in (found if isinstance(found, list) else ()) if each.get("IndexName") == index]
            if own and [each.get("AttributeName") for each in own[0].get("KeySchema", ())] == names:
                break
        else:
            text = f"it lacks index {index} with the key {' and '.join(names)}, which the table declares"
            review.wrong(resource.name, "Properties.GlobalSecondaryIndexes", text)


# Buckets.


def _buckets(review: Review) -> dict[str, bool]:
    """The buckets that hold records or items, and whether they hold failed records."""
    found: dict[str, bool] = {}
    for each in review.functions:
        for mapping in each.mappings:
            _note(
                review,
                found,
                review.values(mapping.properties, "DestinationConfig.OnFailure.Destination"),
                is_failures=True,
            )
        for name in ("PARK", "ARCHIVE"):
            _note(
                review,
                found,
                review.template.alternatives(each.variables.get(PREFIX + name)),
                is_failures=name == "PARK",
            )
    return found


def _note(review: Review, found: dict[str, bool], values: Iterable[Any], *, is_failures: bool) -> None:
    for value in values:
        resource = review.template.resource_of(value)
        if resource is not None and resource.type == BUCKET:
            found[resource.name] = found.get(resource.name, False) or is_failures


def _check_bucket(review: Review, resource: Resource, *, is_failures: bool) -> None:
    review.obey((resource.name, ""), resource.body, *rules.RETAINED)
    review.obey((resource.name, "Properties"), resource.properties, *rules.BUCKET_RULES)
    if is_failures:
        _check_expiry(review, resource)
    _check_policies(review, resource, "AWS::S3::BucketPolicy", "Bucket")


def _check_expiry(review: Review, resource: Resource) -> None:
    kept = _retention_days(review)
    (lifecycle,) = review.values(resource.properties, "LifecycleConfiguration")[:1]
    expiring = lifecycle.get("Rules", ()) if isinstance(lifecycle, Mapping) else ()
    if isinstance(lifecycle, Unknown):
        return
    for prefix in _failure_prefixes(review, resource):
        own = [rule for rule in expiring if isinstance(rule, Mapping) and _expires(rule, prefix)]
        days = [each for rule in own if (each := rules.number(rule.get("ExpirationInDays"))) is not None]
        if not days or min(days) > failure_days_max(kept):
            is_now = f"it is {min(days):.0f} days" if days else f"nothing expires{f' below {prefix}' * bool(prefix)}"
            review.wrong(
                resource.name,
                "Properties.LifecycleConfiguration.Rules",
                f"{is_now}: expected ExpirationInDays below {kept - RECORD_DAYS:.0f}. STREAMFOLD_RETENTION_DAYS keeps "
                f"claims for {kept:.0f} days, and a record that is redriven later would count again",
            )
            return


def _failure_prefixes(review: Review, bucket: Resource) -> list[str]:
    """Below which prefixes of a bucket failed records lie: those of mappings, and those that functions park."""
    found = []
    for each in review.functions:
        for mapping in each.mappings:
            to = review.values(mapping.properties, "DestinationConfig.OnFailure.Destination")
            if any(review.template.resource_of(value) == bucket for value in to):
                found.append("aws/lambda/")
        parked = review.template.alternatives(each.variables.get(PREFIX + "PARK"))
        own = [str(value) for value in parked if review.template.resource_of(value) == bucket]
        found += [f"{value.removeprefix('s3://').partition('/')[2].strip('/')}/" for value in own]
    return [*dict.fromkeys("" if each == "/" else each for each in found)]


def _expires(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule of a bucket's lifecycle is of all objects below a prefix."""
    given = rule.get("Filter", {})
    narrower = ("And", "Tag", "TagFilters", "ObjectSizeGreaterThan", "ObjectSizeLessThan")
    if rule.get("Status") != "Enabled" or any(name in each for each in (rule, given) for name in narrower):
        return False
    own = rule.get("Prefix", given.get("Prefix", "") if isinstance(given, Mapping) else "")
    return prefix.startswith(str(own))


def _retention_days(review: Review) -> float:
    name = PREFIX + "RETENTION_DAYS"
    given = [rules.number(review.variable(each, name)) for each in review.functions]
    return max(RETENTION_DAYS_MIN, min((each for each in given if each is not None), default=RETENTION_DAYS_MIN))


def _check_policies(review: Review, resource: Resource, kind: str, named: str) -> None:
    """Nobody from outside may do anything, and nobody may do it without encryption on the way."""
    encrypted = False
    for policy in review.template.of_type(kind):
        targets = policy.properties.get(named)
        names = targets if isinstance(targets, list) else [targets]
        if not any(review.named(each) == resource for each in names):
            continue
        for number_, statement in enumerate(statements(policy.properties.get("PolicyDocument"))):
            path = f"Properties.PolicyDocument.Statement.{number_}"
            secure = review.template.first(statement.get("Condition", {}))
            is_denied = statement.get("Effect") == "Deny"
            if is_denied and is_anybody(statement.get("Principal")) and not statement.get("Condition"):
                text = f"it denies {statement.get('Action')} to everybody, the functions too: expected a condition"
                review.wrong(policy.name, path, text)
            encrypted = encrypted or (is_denied and rules.ENCRYPTED_REQUESTS.accepts(secure))
            if not is_denied and is_anybody(statement.get("Principal")) and not statement.get("Condition"):
                text = f"it allows {statement.get('Action')} to anybody: expected no such statement"
                review.wrong(policy.name, path, text)
    if not encrypted:
        text = f"no {kind} denies requests without encryption: expected one with {rules.ENCRYPTED_REQUESTS.expected}"
        review.wrong(resource.name, "Properties", text)


def statements(document: Any) -> Iterator[Mapping[str, Any]]:
    """The statements of a policy."""
    found = document.get("Statement", ()) if isinstance(document, Mapping) else ()
    for each in [found] if isinstance(found, Mapping) else found:
        if isinstance(each, Mapping):
            yield each


def is_anybody(principal: Any) -> bool:
    """Whether a principal is everybody, or everybody of some sort."""
    values = list(principal.values()) if isinstance(principal, Mapping) else [principal]
    return any("*" in str(each) for value in values for each in (value if isinstance(value, list) else [value]))


# Queues and logs.


def _check_queue(review: Review, found: FoundFunction, queue: Resource) -> None:
    at, given = (queue.name, "Properties"), queue.properties
    timeout = rules.number(review.template.first(found.resource.properties.get("Timeout", 3))) or 0
    review.obey(at, given, rules.visibility_rule(timeout, found.name), rules.STANDARD, rules.RECEIVES)
    review.obey(at, given, *rules.encryption_rules(given))
    _check_policies(review, queue, "AWS::SQS::QueuePolicy", "Queues")
    for target in review.values(given, "RedrivePolicy.deadLetterTargetArn"):
        dead = review.template.resource_of(target)
        if dead is not None and dead.type == QUEUE_TYPE:
            own = rules.KEPT_LETTERS, *rules.encryption_rules(dead.properties)
            review.obey((dead.name, "Properties"), dead.properties, *own)
            _check_policies(review, dead, "AWS::SQS::QueuePolicy", "Queues")


def _check_log(review: Review, found: FoundFunction) -> None:
    path = "Properties.LoggingConfig.LogGroup"
    (name,) = review.values(found.resource.properties, "LoggingConfig.LogGroup")[:1]
    group = review.template.resource_of(name)
    if name is ABSENT:
        own = [f"/aws/lambda/{found.name}", f"/aws/lambda/${{{found.name}}}"]
        named = review.template.of_type("AWS::Logs::LogGroup")
        group = next(
            (each for each in named if review.template.first(each.properties.get("LogGroupName")) in own), None
        )
        if group is None:
            review.advise(found.name, path, "it is missing: without a log group of its own, the log is kept for ever")
    if group is not None:
        review.obey((group.name, "Properties"), group.properties, *rules.LOG_RULES)
