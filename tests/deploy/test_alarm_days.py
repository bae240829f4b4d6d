"""Forty days of a stack: each has exactly the severity that docs/alarms.md gives, and no quiet day raises an alarm."""

import re
from dataclasses import replace

import pytest

from streamfold.deploy import alarms
from streamfold.deploy.alarms import Severity
from streamfold.lambda_entry.queue import OPEN_METRICS, WORKED_METRICS
from streamfold.lambda_entry.telemetry import FUNCTION_VARIABLE
from streamfold.lifecycle.verify import SAMPLE_METRICS
from streamfold.settings import Settings
from tests.helpers.alarm_days import DAY_MINUTES, FAULT, TEMPLATE, VERIFY, Day, Faults, application, rises_of
from tests.helpers.template import ROOT

PAGE, TICKET = Severity.PAGE, Severity.TICKET
HOUR, NIGHT = 60, 600
"""Minutes: an hour, and as long as nobody looks."""


class Refusing:
    """A bucket that refuses every record."""

    def deliver(self, batch):
        raise PermissionError("AccessDenied")


def lasting(minutes):
    return range(FAULT, FAULT + minutes)


def throttled(table, way, minutes):
    return [(lasting(minutes), alarms.TABLES, f"{way}ThrottleEvents", {alarms.TABLE: table}, 20)]


def of_function(name, metric, minutes, value=1):
    return [(minutes, alarms.LAMBDA, metric, {alarms.FUNCTION: name}, value)]


def verified(**counts):
    return [(VERIFY, "Verifier", {**dict.fromkeys(SAMPLE_METRICS, 0), "verified": 2000, **counts})]


def open_fan_out(minutes):
    """A fan-out that is open for so long, as the schedule measures its age."""
    zeros = dict.fromkeys(OPEN_METRICS, 0)
    steps = range(FAULT, FAULT + minutes + 1, 5)
    return [
        (at, "Spreader", {**zeros, "fan_outs_open": 1, "fan_out_oldest_seconds": 60 * (at - FAULT)}) for at in steps
    ]


def worked(minute, **counts):
    return [(minute, "Spreader", {**dict.fromkeys(WORKED_METRICS, 0), **counts})]


ONCE = frozenset({FAULT + 1})
OLDER = Settings(state_table="state", older_code=True)
STRICT = Settings(state_table="state")
OFF = Settings(state_table="state", handlers_off=("sales",), park="s3://failures/parked")
LETTERS = {alarms.QUEUE: "DoorbellFailures"}
"""The name of the dead-letter queue, as the evaluator has it without a deployment."""


QUIET = [
    Day("no traffic at all", writes=False),
    Day("an item every ten minutes"),
    Day(
        "writes that change nothing",
        writes=False,
        points=[(range(0, DAY_MINUTES, 10), alarms.TABLES, "ConsumedWriteCapacityUnits", {alarms.TABLE: "Table"}, 1)],
    ),
    Day("a burst of two thousand records", records={FAULT: 2000}),
    Day("one invocation that ends with an error", projector=Faults(stopping=range(FAULT, FAULT + 1))),
    Day("ten minutes of a store that fails every third call", projector=Faults(away=lasting(10), every=3)),
    Day("two minutes of a store that does not answer", projector=Faults(away=lasting(2))),
    Day("one minute of throttled writes", points=throttled("Table", "Write", 1)),
    Day("ten minutes of a throttled function", projector=Faults(throttled=lasting(10))),
    Day("a deploy of the same code", versions={FAULT: (application(), STRICT)}),
    Day("a deploy with a new handler", versions={FAULT: (application(more=True), STRICT)}),
    Day(
        "a rollback with the switch for older code",
        versions={FAULT: (application(more=True), OLDER), 2 * FAULT: (application(), OLDER)},
    ),
    Day("records that are delivered again", again=frozenset({FAULT, 3 * FAULT})),
    Day("an item that nearly matches, once", near=ONCE),
    Day("a fan-out of twenty minutes", lines=open_fan_out(20)),
    Day("a comparison whose differences are moving", lines=verified(moving=3)),
    Day("a mapping that is switched off for half an hour", projector=Faults(off=lasting(30))),
]
TICKETS = {
    "ProjectorParked": [
        Day("a poison record of a handler that parks", poison=ONCE, policy="park"),
        Day("a handler that is switched off", versions={FAULT: (application(), OFF)}),
    ],
    "ProjectorRefused": [
        Day(
            "a poison record whose handler is corrected within five minutes",
            poison=ONCE,
            versions={FAULT + 5: (application(correct=True), STRICT)},
        )
    ],
    "ProjectorNearMisses": [
        Day("items that nearly match, time and again", near=frozenset(range(FAULT, FAULT + HOUR, 10)))
    ],
    "ProjectorRowsLost": [Day("a row that somebody removes", removed=ONCE)],
    "TableWriteThrottles": [Day("an hour of throttled writes", points=throttled("Table", "Write", HOUR))],
    "StateTableReadThrottles": [Day("an hour of throttled reads", points=throttled("StateTable", "Read", HOUR))],
    "VerifierDifferences": [Day("rows that drifted, as the comparison finds", lines=verified(different=4))],
    "VerifierPartial": [Day("a handler that missed items", lines=verified(partial_handlers=1))],
    "VerifierErrors": [
        Day("a comparison that stops", points=of_function("Verifier", "Errors", range(VERIFY, VERIFY + 1)))
    ],
    "SpreaderParked": [Day("a record of a fan-out that is parked", lines=worked(FAULT + 1, parked=1))],
    "DoorbellFailuresThere": [
        Day(
            "messages that fail at each try",
            points=[(lasting(NIGHT), alarms.QUEUES, "ApproximateNumberOfMessagesVisible", LETTERS, 2)],
        )
    ],
}
PAGES = {
    "ProjectorGivenUp ProjectorRefused": [Day("a poison record", poison=ONCE)],
    "ProjectorDropped ProjectorRefused": [
        Day("a poison record without a failure bucket", poison=ONCE, destination=None)
    ],
    "ProjectorDropped ProjectorRefused ProjectorUndelivered": [
        Day("a poison record and a failure bucket that refuses it", poison=ONCE, destination=Refusing())
    ],
    "ProjectorStandsStill": [
        Day("a mapping that is switched off", projector=Faults(off=range(FAULT, DAY_MINUTES))),
        Day("a role that may not read the stream", projector=Faults(off=range(FAULT, DAY_MINUTES))),
    ],
    "SearcherStandsStill": [Day("the mapping of the search is off", searcher=Faults(off=range(FAULT, DAY_MINUTES)))],
    "ProjectorErrors ProjectorGivenUp ProjectorAge": [
        Day("a role that may not write", projector=Faults(forbidden=lasting(NIGHT))),
        Day("a wrong setting", projector=Faults(stopping=lasting(NIGHT))),
        Day(
            "a rollback without the switch for older code",
            versions={FAULT: (application(more=True), STRICT), 2 * FAULT: (application(), STRICT)},
        ),
    ],
    "ProjectorAge ProjectorGivenUp": [
        Day("a night without a store", projector=Faults(away=lasting(NIGHT))),
    ],
    "SearcherAge SearcherGivenUp": [Day("a night without a search server", searcher=Faults(away=lasting(NIGHT)))],
    "ProjectorThrottles": [Day("an hour of a throttled function", projector=Faults(throttled=lasting(HOUR)))],
    "SpreaderThrottles": [
        Day("a throttled function of fan-outs", points=of_function("Spreader", "Throttles", lasting(HOUR)))
    ],
    "SpreaderAge": [Day("a fan-out that does not go on", lines=open_fan_out(NIGHT))],
    "SpreaderErrors": [
        Day("a function of fan-outs that stops", points=of_function("Spreader", "Errors", lasting(NIGHT)))
    ],
}
DAYS = [
    *QUIET,
    *(
        replace(day, severity=severity, alarms=frozenset(names.split()))
        for severity, groups in ((TICKET, TICKETS), (PAGE, PAGES))
        for names, days in groups.items()
        for day in days
    ),
]
TABLE = {
    name: severity
    for names, severity in re.findall(
        r"^\| (`[^|]*) \| (page|ticket) \|", (ROOT / "docs" / "alarms.md").read_text("utf-8"), re.MULTILINE
    )
    for name in re.findall(r"`(\w+)`", names)
}
"""The severity of each alarm, as the page gives it."""


@pytest.fixture
def named(monkeypatch):
    return lambda name: monkeypatch.setenv(FUNCTION_VARIABLE, name)


@pytest.mark.parametrize("day", DAYS, ids=str)
def test_a_day_has_the_severity_that_the_page_gives(day, tmp_path, named):
    rises = {rise.name for rise in rises_of(day, tmp_path, named)}
    severities = {TABLE[name] for name in rises}
    assert rises == day.alarms
    assert (PAGE if PAGE in severities else TICKET if severities else None) == day.severity


def test_every_alarm_has_a_day():
    found = {name for day in DAYS for name in day.alarms}
    alike = {name.replace("Searcher", "Projector") for name in TABLE} - {
        name.replace("Searcher", "Projector") for name in found
    }
    # As the other way; and an alarm that the template has for other applications.
    assert alike == {"TableReadThrottles", "StateTableWriteThrottles", "SpreaderWakesLate"}
    assert len(DAYS) >= 40


@pytest.mark.parametrize("fault", ["a poison record of a handler that parks", "an hour of a throttled function"])
def test_an_alarm_ends_when_its_fault_does(fault, tmp_path, named):
    (day,) = (each for each in DAYS if each.name == fault)
    assert all(rise.ended is not None for rise in rises_of(day, tmp_path, named))


def test_no_alarm_takes_a_missing_data_point_for_a_fault():
    given = [each["Properties"] for each in TEMPLATE["Resources"].values() if each["Type"] == "AWS::CloudWatch::Alarm"]
    assert {each["TreatMissingData"] for each in given} == {"notBreaching", "ignore"}
