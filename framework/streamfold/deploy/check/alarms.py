"""The alarms of a template: each fault that a person has to correct raises one. Further alarms are a person's own."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from streamfold.deploy import alarms
from streamfold.deploy.alarms import NO_POLLS, Alarm
from streamfold.deploy.check.functions import roles_of
from streamfold.deploy.check.review import FoundFunction, Review, described
from streamfold.deploy.functions import QUEUE, STATE_TABLE, STREAM
from streamfold.deploy.rules import (
    ACTING,
    REACHING,
    SILENT,
    WITHOUT_POLL,
    alarm_rules,
    bounds_of,
    latest_seconds,
    number,
)
from streamfold.deploy.template_file import ABSENT, Resource, Unknown
from streamfold.keys.table import STATE
from streamfold.settings.limits import SECONDS_A_DAY
from streamfold.testing.alarms import parsed, value_of

ALARM, COMPOSITE = "AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm"
STATE_OF = re.compile(r"""(ALARM|OK|INSUFFICIENT_DATA)\(\s*["']?([^"')]+)["']?\s*\)""")
"""What the rule of a composite alarm asks of another alarm (CloudWatch API Reference, PutCompositeAlarm)."""


class ExpectedAlarm(NamedTuple):
    """An alarm that has to be there."""

    watched: str  # the resource, for a person
    alarm: Alarm
    dimensions: Mapping[str, str]  # to texts, with resources as ``${NAME}``


def check_alarms(review: Review) -> None:
    """Notes alarms that are missing, or that would not rise."""
    expected = list(_expected(review))
    taken = [resource.name for each in expected for resource in _matching(review, each)]
    for each in expected:
        found = _matching(review, each)
        if not found:
            near = [one for one in _of_metric(review, each.alarm) if one.name not in taken]
            _miss(review, each, near)
            continue
        before = list(review.findings)
        best = None
        for resource in found:
            review.findings = []
            _check_alarm(review, resource, each.alarm)
            if best is None or len(review.findings) < len(best):
                best = review.findings
        review.findings = [*before, *(best or ())]


def _expected(review: Review) -> Iterator[ExpectedAlarm]:
    service = review.deployment.app.name
    for found in review.functions:
        name = f"${{{found.name}}}"
        for alarm in found.function.alarms:
            if alarm.of == alarms.MAPPING:
                for mapping in found.mappings:
                    if mapping.type in ("DynamoDB", "Kinesis"):
                        yield ExpectedAlarm(found.name, alarm, {alarm.of: f"${{{mapping.name}}}"})
            else:
                own = {"service": service, "function": name} if alarm.of == alarms.OWN else {alarm.of: name}
                yield ExpectedAlarm(found.name, alarm, own)
        if found.sort == QUEUE:
            yield from _of_queues(review, found)
    for name, text in _tables(review).items():
        for alarm in alarms.OF_TABLE:
            yield ExpectedAlarm(name, alarm, {alarms.TABLE: text})


def _of_queues(review: Review, found: FoundFunction) -> Iterator[ExpectedAlarm]:
    for mapping in found.mappings:
        queue = review.named(mapping.source) if mapping.type == "SQS" else None
        if queue is not None:
            for target in review.values(queue.properties, "RedrivePolicy.deadLetterTargetArn"):
                dead = review.template.resource_of(target)
                for alarm in alarms.OF_QUEUE if dead is not None else ():
                    yield ExpectedAlarm(
                        queue.name, alarm, {alarms.QUEUE: f"${{{dead.name if dead else ''}.QueueName}}"}
                    )


def _tables(review: Review) -> dict[str, str]:
    """The tables that are written to, by what they are called, with the text of their dimension."""
    found: dict[str, str] = {}
    variables = {STATE.name: STATE_TABLE, **review.deployment.environment_names}
    far = [name for name, table in review.deployment.app.tables.items() if table.region is not None]
    for each in review.of(STREAM):
        role_of = roles_of(review, each).role_of  # the metrics of another account are there
        for variable in [variables[name] for name in variables if name not in far and role_of(name) is None]:
            value = review.variable(each, variable)
            resource = review.template.resource_of(value)
            if resource is not None:
                found[resource.name] = f"${{{resource.name}}}"
            elif isinstance(value, str) and "${" not in value:
                found[value] = value
    return found


def _of_metric(review: Review, alarm: Alarm) -> list[Resource]:
    return [
        each
        for each in review.template.of_type(ALARM)
        if any(metric.get("MetricName") == alarm.metric for metric in _metrics(review, each))
    ]


def _metrics(review: Review, resource: Resource) -> list[Mapping[str, Any]]:
    """The metrics that an alarm reads: its own, or those of its expression."""
    found = review.template.first({name: each for name, each in resource.properties.items() if name != "AlarmActions"})
    several = found.get("Metrics")
    if not isinstance(several, list):
        return [found]
    stats = [each.get("MetricStat") for each in several if isinstance(each, Mapping)]
    return [each["Metric"] for each in stats if isinstance(each, Mapping) and isinstance(each.get("Metric"), Mapping)]


def _matching(review: Review, expected: ExpectedAlarm) -> list[Resource]:
    return [
        each
        for each in _of_metric(review, expected.alarm)
        if any(
            metric.get("MetricName") == expected.alarm.metric
            and metric.get("Namespace") == expected.alarm.namespace
            and _is_same(review, _dimensions(metric), expected.dimensions)
            for metric in _metrics(review, each)
        )
    ]


def _dimensions(metric: Mapping[str, Any]) -> dict[str, Any]:
    found = metric.get("Dimensions", [])
    return {str(each.get("Name")): each.get("Value") for each in found} if isinstance(found, list) else {}


def _is_same(review: Review, found: Mapping[str, Any], expected: Mapping[str, str]) -> bool:
    if found.keys() != expected.keys():
        return False
    for name, value in found.items():
        if isinstance(value, Unknown) or str(value) == expected[name]:
            continue
        resource = review.template.resource_of(value)
        if resource is None or resource != review.template.resource_of(expected[name]):
            return False
    return True


def _miss(review: Review, expected: ExpectedAlarm, near: list[Resource]) -> None:
    alarm = expected.alarm
    wanted = ", ".join(f"{name}={value}" for name, value in expected.dimensions.items())
    for resource in near:
        metric = next(each for each in _metrics(review, resource) if each.get("MetricName") == alarm.metric)
        found, space = _dimensions(metric), metric.get("Namespace", ABSENT)
        if space != alarm.namespace:
            review.wrong(
                resource.name,
                "Properties.Namespace",
                f"{described(space)}: expected {alarm.namespace}, the metric's own",
            )
            return
        if set(found.values()) & set(expected.dimensions.values()) or len(near) == 1:
            is_now = ", ".join(f"{name}={value}" for name, value in found.items()) or "nothing"
            review.wrong(resource.name, "Properties.Dimensions", f"it watches {is_now}: expected {wanted}")
            return
    review.wrong(
        expected.watched,
        "",
        f"no alarm on {alarm.namespace} {alarm.metric} of {wanted}: {alarm.text.format(expected.watched)}. "
        "Expected one that goes to a person",
    )


def _check_alarm(review: Review, resource: Resource, alarm: Alarm) -> None:
    at, given = (resource.name, "Properties"), resource.properties
    if alarm.math:
        _check_heartbeat(review, resource)
    elif "Metrics" in given:
        text = f"it computes with {alarm.metric}, which nobody judges here: expected that one of it is enough"
        review.advise(resource.name, "Properties.Metrics", text)
    else:
        review.obey(at, given, *alarm_rules(alarm))
        _check_threshold(review, resource, alarm)
        _check_periods(review, resource, alarm)
    review.obey(at, given, ACTING)
    _check_notifies(review, resource)


def _check_notifies(review: Review, resource: Resource) -> None:
    """An alarm goes to a person itself, or a composite alarm does that rises with it."""
    actions = review.values(resource.properties, "AlarmActions")
    if _notifies(actions):
        return
    composites = [each for each in review.template.of_type(COMPOSITE) if _may_act(review, each)]
    if _notifies_by_others(review, resource, composites):
        return
    if unread := [each.name for each in composites if isinstance(_rule(review, each), Unknown)]:
        text = f"it is missing, and the rule of {unread[0]} is of another stack: expected one that rises with this"
        review.advise(resource.name, "Properties.AlarmActions", text)
        return
    review.wrong(
        resource.name,
        "Properties.AlarmActions",
        f"{described(actions[0])}: expected a topic: nobody is notified else",
    )


def _notifies(actions: list[Any]) -> bool:
    return any(each for each in actions if each is not ABSENT)


def _may_act(review: Review, composite: Resource) -> bool:
    """Whether a composite alarm takes its actions, which it does if nothing is said."""
    enabled = review.template.first(composite.properties.get("ActionsEnabled", ABSENT))
    return isinstance(enabled, Unknown) or ACTING.accepts(enabled)


def _notifies_by_others(review: Review, resource: Resource, acting: list[Resource]) -> bool:
    """Whether a composite alarm that goes to a person rises with this alarm alone."""
    composites = review.template.of_type(COMPOSITE)
    rising = {resource.name}
    for _ in composites:  # one may be made of others
        rising |= {each.name for each in composites if _holds(review, each, rising)}
    return any(_notifies(review.values(each.properties, "AlarmActions")) for each in acting if each.name in rising)


def _rule(review: Review, composite: Resource) -> Any:
    return review.template.first(composite.properties.get("AlarmRule", ABSENT))


def _holds(review: Review, composite: Resource, rising: set[str]) -> bool:
    rule = _rule(review, composite)

    def state(found: re.Match[str]) -> str:
        named = review.template.resource_of(found[2])
        is_rising = named is not None and named.name in rising
        return {"ALARM": str(is_rising), "OK": str(not is_rising)}.get(found[1], "False")

    text = STATE_OF.sub(state, str(rule)).replace("TRUE", "True").replace("FALSE", "False")
    for word in ("AND", "OR", "NOT"):
        text = re.sub(rf"\b{word}\b", word.lower(), text)
    try:
        return _is_true(ast.parse(" ".join(text.split()), mode="eval").body)
    except SyntaxError:
        return False


def _is_true(node: ast.expr) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=several):
            return all(map(_is_true, several))
        case ast.BoolOp(values=several):
            return any(map(_is_true, several))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _is_true(operand)
    return isinstance(node, ast.Constant) and node.value is True


def _check_heartbeat(review: Review, resource: Resource) -> None:
    """It rises where the metric of polls has no data point."""
    at, given = (resource.name, "Properties"), resource.properties
    if "Metrics" not in given:
        review.obey(at, given, SILENT)
        return
    review.obey(at, given, WITHOUT_POLL)
    found = review.template.first(given["Metrics"])
    metrics = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    periods = [number(each["MetricStat"].get("Period")) or 0 for each in metrics if "MetricStat" in each]
    count = number(review.template.first(given.get("DatapointsToAlarm", given.get("EvaluationPeriods", 1)))) or 1
    if max(periods, default=0) * count >= SECONDS_A_DAY:
        text = f"it rises after {count:.0f} periods: expected earlier than the 24 hours that a stream keeps"
        review.wrong(resource.name, "Properties.EvaluationPeriods", text)
    texts = [str(each["Expression"]) for each in metrics if "Expression" in each]
    polls = {str(each.get("Id")) for each in metrics if "PolledEventCount" in str(each.get("MetricStat"))}
    written = {
        str(each.get("Id")): 1.0 for each in metrics if "MetricStat" in each and str(each.get("Id")) not in polls
    }
    threshold = number(review.template.first(given.get("Threshold", ABSENT)))
    try:
        values = [value_of(parsed(text), {**written, **dict.fromkeys(polls)}) for text in texts]
    except ValueError as error:
        review.advise(resource.name, "Properties.Metrics", f"{error} Expected one like {NO_POLLS}")
        return
    if len(values) != 1 or values[0] is None or threshold is None or values[0] <= threshold:
        text = f"it is {' and '.join(texts)}, which is not above {threshold} without a poll: expected {NO_POLLS}"
        review.wrong(resource.name, "Properties.Metrics", text)


def _check_threshold(review: Review, resource: Resource, alarm: Alarm) -> None:
    operator = review.template.first(resource.properties.get("ComparisonOperator", ABSENT))
    period = number(review.template.first(resource.properties.get("Period", ABSENT)))
    bounds = bounds_of(alarm, period)
    for value in review.values(resource.properties, "Threshold"):
        if not isinstance(value, Unknown) and not bounds.accept(number(value), reaching=operator == REACHING):
            text = f"{described(value)}: expected {bounds}: the metric counts {alarm.unit.lower()}"
            review.wrong(resource.name, "Properties.Threshold", text)


def _check_periods(review: Review, resource: Resource, alarm: Alarm) -> None:
    (periods,) = review.values(resource.properties, "EvaluationPeriods")[:1]
    needed = resource.properties.get("DatapointsToAlarm", periods)
    most, count = number(periods), number(review.template.first(needed))
    if most is None or count is None:
        return
    if count > most:
        text = f"it is {count:.0f} of {most:.0f} periods: expected at most as many"
        review.wrong(resource.name, "Properties.DatapointsToAlarm", text)
        return
    for period in review.values(resource.properties, "Period"):
        seconds = (number(period) or 0) * count
        most_seconds = latest_seconds(alarm)
        if seconds > most_seconds and not isinstance(period, Unknown):
            text = f"it rises after {seconds:.0f} seconds: expected {most_seconds} at most"
            review.wrong(resource.name, "Properties.Period", text)
    if alarm.breaching == 1 and count > 1:
        name = "DatapointsToAlarm" if "DatapointsToAlarm" in resource.properties else "EvaluationPeriods"
        review.wrong(
            resource.name, f"Properties.{name}", f"it is {count:.0f}: expected 1, because it may happen once only"
        )
