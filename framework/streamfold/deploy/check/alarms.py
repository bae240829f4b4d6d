"""The alarms of a template: each fault that a person has to correct raises one. Further alarms are a person's own."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from streamfold.deploy import alarms
from streamfold.deploy.alarms import Alarm
from streamfold.deploy.check.review import FoundFunction, Review, described, number, one_of
from streamfold.deploy.functions import QUEUE, STATE_TABLE, STREAM
from streamfold.deploy.template_file import ABSENT, Resource, Unknown

ALARM = "AWS::CloudWatch::Alarm"
ABOVE, REACHING = "GreaterThanThreshold", "GreaterThanOrEqualToThreshold"
LOWER, HIGHER = 15, 48
"""A threshold may be a fifteenth of ours, or 48 times as high: an age of records from a minute to half a day, which is
half of what a stream keeps. A threshold in the wrong unit is out of it.
"""
LATER = 12
"""How many times as late as ours an alarm may rise: one refused record within 12 minutes, before it is given up."""
COUNTING = ("Sum", "Maximum", "Average")
"""Statistics that are above 0 where anything was counted. ``SampleCount`` counts zeros too."""


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
        queue = review.template.resource_of(review.template.first(mapping.source)) if mapping.type == "SQS" else None
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
    regional = [name for name, table in review.deployment.app.tables.items() if table.region is None]
    own = [variable for name, variable in review.deployment.environment_names.items() if name in regional]
    for each in review.of(STREAM):
        for variable in (*own, STATE_TABLE):
            value = review.template.first(each.variables.get(variable, ABSENT))
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
        if review.template.first(each.properties.get("MetricName", ABSENT)) == alarm.metric
    ]


def _matching(review: Review, expected: ExpectedAlarm) -> list[Resource]:
    return [
        each
        for each in _of_metric(review, expected.alarm)
        if review.template.first(each.properties.get("Namespace", ABSENT)) == expected.alarm.namespace
        and _is_same(review, _dimensions(review, each), expected.dimensions)
    ]


def _dimensions(review: Review, resource: Resource) -> dict[str, Any]:
    found = review.template.first(resource.properties.get("Dimensions", []))
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
        found = _dimensions(review, resource)
        space = review.template.first(resource.properties.get("Namespace", ABSENT))
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
    statistics = COUNTING if alarm.threshold == 0 else (alarm.statistic,)
    review.require(at, given, "Statistic", one_of(*statistics), f"{alarm.statistic}")
    review.require(at, given, "ComparisonOperator", one_of(ABOVE, REACHING), f"{ABOVE}: more of it is worse")
    _check_threshold(review, resource, alarm)
    _check_periods(review, resource, alarm)
    review.require(
        at, given, "TreatMissingData", lambda value: value != "breaching", f"{alarm.missing}: nothing is no fault"
    )
    review.require(
        at, given, "ActionsEnabled", lambda value: str(value).lower() != "false", "true: nobody is notified else"
    )
    actions = review.values(given, "AlarmActions")
    if not any(each for each in actions if each is not ABSENT):
        review.wrong(
            resource.name,
            "Properties.AlarmActions",
            f"{described(actions[0])}: expected a topic: nobody is notified else",
        )


def _check_threshold(review: Review, resource: Resource, alarm: Alarm) -> None:
    operator = review.template.first(resource.properties.get("ComparisonOperator", ABSENT))
    for value in review.values(resource.properties, "Threshold"):
        found = number(value)
        if alarm.threshold == 0:
            # One refused record is a fault; errors and throttles that pass by themselves are not, and have a threshold
            # of their owner.
            raises = found is not None and found >= 0 and (found < 1 or (operator == REACHING and found == 1))
            good = raises or (alarm.breaching > 1 and found is not None and found >= 0)
            expected = "0, so that one is enough"
        else:
            good = found is not None and alarm.threshold / LOWER <= found <= alarm.threshold * HIGHER
            unit = "milliseconds" if alarm.metric == "IteratorAge" else "seconds"
            expected = f"{alarm.threshold:.0f}, or some of it: the metric counts {unit}"
        if not good and not isinstance(value, Unknown):
            review.wrong(resource.name, "Properties.Threshold", f"{described(value)}: expected {expected}")


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
        seconds, most_seconds = (number(period) or 0) * count, LATER * alarm.period * alarm.breaching
        if seconds > most_seconds and not isinstance(period, Unknown):
            text = f"it rises after {seconds:.0f} seconds: expected {most_seconds} at most"
            review.wrong(resource.name, "Properties.Period", text)
    if alarm.breaching == 1 and count > 1:
        name = "DatapointsToAlarm" if "DatapointsToAlarm" in resource.properties else "EvaluationPeriods"
        review.wrong(
            resource.name, f"Properties.{name}", f"it is {count:.0f}: expected 1, because it may happen once only"
        )
