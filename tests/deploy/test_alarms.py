"""Alarms: those of the template are the code's, each has an entry in docs/alarms.md, and each fault raises its own."""

import json
import re

import pytest

from handlers import app
from streamfold import App, Key, Router, Row, Sum
from streamfold.commit.outcome import Failure
from streamfold.deploy import alarms
from streamfold.deploy.choices import RECORD_AGE_SECONDS, TOPICS
from streamfold.deploy.rules import bounds_of, latest_seconds
from streamfold.deploy.sam import NOTIFIED
from streamfold.engines import EmbeddedEngine
from streamfold.errors import EngineUnavailable, HandlerError
from streamfold.lambda_entry.function import Function
from streamfold.lambda_entry.telemetry import FUNCTION_VARIABLE, is_refused
from streamfold.parking import FileParking
from streamfold.settings import Settings
from streamfold.testing import BucketTwin, MappingSettings, MappingTwin
from streamfold.testing.alarms import Alarms, parsed, value_of
from tests.helpers.source import Source
from tests.helpers.template import ROOT, load_template, properties
from tests.testing.streams import START, Part, Stream

STREAM_FUNCTIONS = ("Projector", "Searcher")
WATCHED = {
    **{name: (*alarms.OF_STREAM, *([alarms.ROWS_GONE] if name == "Projector" else [])) for name in STREAM_FUNCTIONS},
    "Spreader": (*alarms.OF_QUEUE_FUNCTION, alarms.WAKE_AGE),
    "Doorbell": alarms.OF_QUEUE,
    "Verifier": alarms.OF_VERIFIER,
    "Table": alarms.OF_TABLE,
    "StateTable": alarms.OF_TABLE,
}
NAMES = {f"{watched}{alarm.name}": (watched, alarm) for watched, own in WATCHED.items() for alarm in own}
RESOURCES = load_template()["Resources"]
UNUSED = {"SpreaderWakesLate"}
"""Alarms of handlers that the application of this repository has not: none asks for the time."""
THERE = {name: each for name, each in NAMES.items() if each[0] in RESOURCES and name not in UNUSED}
"""Without those of a search or a queue that somebody left out."""
MINUTE = 60


@pytest.fixture(scope="module")
def template():
    return load_template()


def dimensions(watched, alarm):
    """What an alarm of a template refers to."""
    if alarm.of == alarms.OWN:
        return {"service": {"Ref": "Application"}, "function": {"Ref": watched}}
    if alarm.of == alarms.QUEUE:
        return {alarm.of: {"Fn::GetAtt": ["DoorbellFailures", "QueueName"]}}
    if alarm.math:
        return {alarm.of: {"Ref": f"{watched}TableStream"}, alarms.TABLE: {"Ref": "Table"}}
    return {alarm.of: {"Ref": f"{watched}TableStream" if alarm.of == alarms.MAPPING else watched}}


def test_the_template_has_these_alarms(template):
    found = {name for name, each in template["Resources"].items() if each["Type"] == "AWS::CloudWatch::Alarm"}
    assert found >= THERE.keys()
    assert template["Parameters"]["Application"]["Default"] == app.name


@pytest.mark.parametrize("name", THERE)
def test_an_alarm_of_the_template_is_that_of_the_code(template, name):
    watched, alarm = NAMES[name]
    expected = alarm.resource(watched, dimensions(watched, alarm), NOTIFIED)
    assert {key: template["Resources"][name][key] for key in expected} == expected


PAGE = (ROOT / "docs" / "alarms.md").read_text("utf-8")


def test_every_alarm_has_an_entry_with_its_severity_and_every_entry_an_alarm():
    entries = {
        name: severity
        for names, severity in re.findall(r"^\| (`[^|]*) \| (page|ticket) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert entries == {name: alarm.severity for name, (_, alarm) in NAMES.items()}


def bounds(alarm):
    """The bounds of an alarm, as the page gives them."""
    if alarm.math:
        return "any, if it rises without a poll", "less than 24 hours"
    hours, minutes = divmod(latest_seconds(alarm) // MINUTE, 60)
    latest = f"{minutes} minutes" if minutes else f"{hours} hour{'s' * (hours > 1)}"
    return str(bounds_of(alarm)).removesuffix(", so that one is enough"), latest


def test_the_page_gives_the_bounds_of_every_alarm():
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    given = {name: row for names, *row in rows for name in re.findall(r"`(\w+)`", names)}
    own = {name: alarm for name, (watched, alarm) in NAMES.items() if watched != "Searcher"}
    assert given == {name: [*bounds(alarm)] for name, alarm in own.items()}


def test_the_checks_bounds_are_those_that_a_threshold_has():
    assert bounds_of(alarms.STREAM_AGE) == (60_000, 43_200_000)
    assert bounds_of(alarms.ERRORS, 600) == (0, 100)
    refused = bounds_of(alarms.PARKED)
    assert [refused.accept(each) for each in (0, 0.5, 1, -1, None)] == [True, True, False, False, False]
    assert refused.accept(1, reaching=True)


def test_the_age_of_a_stream_is_measured_long_before_its_records_are_given_up(template):
    (event,) = properties(template, "Projector")["Events"].values()
    age = next(alarm for alarm in alarms.OF_STREAM if alarm.name == "Age")
    assert age.threshold < 1000 * event["Properties"]["MaximumRecordAgeInSeconds"] / 10
    assert event["Properties"]["MetricsConfig"] == {"Metrics": ["EventCount"]}  # switches on what the alarms read


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_without_a_topic_and_a_mail_address_the_output_says_that_nobody_is_notified(template, topic):
    ((name, output),) = topic.output.items()
    value = output["Value"]["Fn::If"]
    assert (value[0], value[1]["Fn::Sub"][:6]) == (topic.is_silent, "NOBODY")
    assert template["Outputs"][name] == output
    assert template["Conditions"].items() >= topic.conditions.items()


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_the_template_has_the_topic_of_each_severity(template, topic):
    assert template["Resources"].items() >= topic.resources.items()
    assert template["Parameters"].items() >= topic.parameters.items()


def test_every_alarm_tells_its_topic_when_it_rises_and_when_it_ends(template):
    for name, (_, alarm) in THERE.items():
        own = properties(template, name)
        assert own["AlarmActions"] == own["OKActions"] == [TOPICS[alarm.severity].arn]


@pytest.mark.parametrize(
    ("error", "held", "refused"),
    [
        (HandlerError("no"), False, True),
        (HandlerError("no"), True, False),  # an earlier record of the item is the cause
        (EngineUnavailable("away"), False, False),
    ],
)
def test_a_record_is_refused_for_its_own_sake_only(error, held, refused):
    assert is_refused(Failure("1", "item", "handler", error, held)) is refused


# Faults, and the alarms that they raise.

LINE, SALES = Key("ORDER#{order_id}", "LINE#{sku}"), Key("SALES#{day}", "TOTAL")


class Refusing:
    """A bucket that refuses every record."""

    def deliver(self, batch):
        raise PermissionError("AccessDenied")


class Away(EmbeddedEngine):
    """A store that does not answer up to a time, or answers every so many calls only."""

    clock, until, every = None, 0.0, 1
    calls = 0

    def transact(self, *given):
        self.calls += 1
        if self.clock is not None and self.clock.now < self.until and self.calls % self.every == 0:
            raise EngineUnavailable("The store did not answer.")
        return super().transact(*given)


def shop(policy, *, with_history=False):
    router = Router()
    if with_history:
        router.audit(LINE, name="history")

    @router.view(LINE, into=SALES, on_error=policy)
    def sales(line):
        if line["number"] < 0:
            raise LookupError("poison")
        yield Row(day="d", units=Sum(line["number"]))

    return App("shop", routers=[router])


@pytest.fixture(autouse=True)
def named(monkeypatch):
    monkeypatch.setenv(FUNCTION_VARIABLE, "Projector")


def records(minutes, *, poison=()):
    """A record each half minute."""
    source, made = Source(), []
    for number in range(minutes * 2):
        made.append(source.put(f"ORDER#{number}", "LINE#a", number=-1 if number in poison else number))
        made[-1]["dynamodb"]["ApproximateCreationDateTime"] = START + 30 * number
    return made


def raised(capsys, tmp_path, *, minutes=20, poison=(), policy="retry", destination=None, away=(0.0, 1)):
    """The alarms of the template that rise in so many minutes, with the minutes after the first record's write."""
    stream = Stream([Part()])
    waiting, clock = records(minutes, poison=poison), stream.clock
    function = Function(shop(policy), Settings(state_table="state", park="s3://failures/parked"), client=object())
    function.parking = FileParking(str(tmp_path / "parked.jsonl"))
    function.engine = engine = Away(function.app.tables.values())
    engine.clock, (engine.until, engine.every) = clock, away
    mapping = MappingSettings(
        report_item_failures=True, bisect=True, retries_max=20, age_seconds_max=RECORD_AGE_SECONDS
    )
    twin = MappingTwin(stream, function, mapping, destination=destination, name="Projector")
    found, before = Alarms(load_template(), {"Application": "shop"}), twin.metrics.copy()
    capsys.readouterr()
    while clock.now < START + minutes * MINUTE:
        while waiting and waiting[0]["dynamodb"]["ApproximateCreationDateTime"] <= clock.now:
            stream.shards[0].records.append(waiting.pop(0))
        made = twin.step()
        if made is None:
            clock.advance(30)
            continue
        oldest = min(record["dynamodb"]["ApproximateCreationDateTime"] for record in made.records)
        found.put(clock.now, alarms.LAMBDA, "IteratorAge", {"FunctionName": "Projector"}, 1000 * (clock.now - oldest))
        found.put_lines(clock.now, capsys.readouterr().out)
        found.put_counts(clock.now, twin.metrics - before, "Projector", "ProjectorTableStream")
        before = twin.metrics.copy()
    return {rise.name: round((rise.at - START) / MINUTE) for rise in found.rises(clock.now)}


def test_twenty_minutes_without_a_fault_raise_no_alarm(capsys, tmp_path):
    assert raised(capsys, tmp_path) == {}


def test_a_poison_record_raises_an_alarm_at_once_and_another_when_it_is_given_up(capsys, tmp_path):
    rises = raised(capsys, tmp_path, poison=[5], destination=BucketTwin())
    assert rises.keys() == {"ProjectorRefused", "ProjectorGivenUp"}
    assert rises["ProjectorRefused"] <= 5


def test_a_parked_record_raises_its_alarm(capsys, tmp_path):
    rises = raised(capsys, tmp_path, poison=[5], policy="park")
    assert rises.keys() == {"ProjectorParked"}
    assert rises["ProjectorParked"] <= 5


def test_a_bucket_that_refuses_raises_an_alarm_because_the_record_is_lost(capsys, tmp_path):
    rises = raised(capsys, tmp_path, poison=[5], destination=Refusing())
    assert rises.keys() == {"ProjectorRefused", "ProjectorDropped", "ProjectorUndelivered"}


def test_thirty_minutes_without_a_store_raise_the_alarms_of_age_and_of_records_given_up(capsys, tmp_path):
    rises = raised(capsys, tmp_path, minutes=35, away=(START + 30 * MINUTE, 1), destination=BucketTwin())
    assert rises.keys() == {"ProjectorAge", "ProjectorGivenUp"}


def test_ten_minutes_of_a_store_that_fails_every_third_call_raise_none(capsys, tmp_path):
    assert raised(capsys, tmp_path, away=(START + 10 * MINUTE, 3), destination=BucketTwin()) == {}


def rises_in_a_day(*, writes, polls):
    """The alarms of a day, with so many write units and so many records polled each five minutes; None: no poll."""
    found = Alarms(load_template(), {"Application": "shop"})
    for minutes in range(0, 24 * 60, 5):
        at = START + minutes * MINUTE
        if writes is not None:
            found.put(at, alarms.TABLES, "ConsumedWriteCapacityUnits", {"TableName": "Table"}, writes)
        for name in STREAM_FUNCTIONS if polls is not None else ():
            found.put(at, alarms.LAMBDA, "PolledEventCount", {alarms.MAPPING: f"{name}TableStream"}, polls)
    return [(rise.name, rise.at - START) for rise in found.rises(START + 24 * 60 * MINUTE)]


def test_a_mapping_that_stands_still_while_the_table_is_written_to_raises_one_alarm_within_two_hours():
    rises = rises_in_a_day(writes=100, polls=None)
    assert {name for name, _ in rises} == {"ProjectorStandsStill", "SearcherStandsStill"}
    assert len(rises) == 2
    assert all(seconds <= 2 * 3600 for _, seconds in rises)


@pytest.mark.parametrize(
    ("writes", "polls"),
    [
        (100, 0),  # writes that change nothing, or that a condition refuses, have no record
        (100, 20),
        (0, 0),
        (0, None),
        (None, 0),
        (None, None),
    ],
)
def test_a_table_without_writes_and_a_mapping_that_polls_raise_none(writes, polls):
    assert rises_in_a_day(writes=writes, polls=polls) == []


def near_misses(*minutes):
    found = Alarms(load_template(), {"Application": "shop"})
    for minute in (0, *minutes):
        dimensions = {"service": "shop", "function": "Projector"}
        found.put(START + minute * MINUTE, alarms.NAMESPACE, "near_misses", dimensions, float(minute in minutes))
    return [rise.name for rise in found.rises(START + 120 * MINUTE)]


def test_near_misses_raise_an_alarm_once_they_come_time_and_again():
    assert near_misses(3) == near_misses(3, 4) == near_misses(3, 90) == []
    assert near_misses(3, 20, 45) == ["ProjectorNearMisses"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("polls", 3),
        ("FILL(none, 0)", 0),
        ("FILL(polls, 0)", 3),
        ("none", None),
        ("none > 0", None),
        ("polls > 2 AND none > 0", None),
        ("polls > 2 AND writes == 0", 1),
        ("polls > 3 OR writes > 0", 0),
        ("IF(polls > 2, 5, 6)", 5),
        ("IF(writes, 5)", None),
        ("polls + writes * 2 - 1", 2),
    ],
)
def test_metric_math_is_missing_where_a_metric_is(expression, value):
    assert value_of(parsed(expression), {"polls": 3.0, "writes": 0.0, "none": None}) == value


@pytest.mark.parametrize("expression", ["ANOMALY_DETECTION_BAND(polls)", "unknown > 0", "SUM(", "polls < 1 < 2"])
def test_metric_math_that_is_not_known_is_refused(expression):
    with pytest.raises(ValueError, match="cannot be evaluated"):
        value_of(parsed(expression), {"polls": 3.0})


# Metrics of functions and of handlers.


def measured(capsys, settings, records, *, at, app=None, parking=None):
    """The metric lines of one batch that is processed at a time."""
    function = Function(app or shop("retry"), settings, client=object())
    function.parking = parking
    function.engine = EmbeddedEngine(function.app.tables.values())
    function.clock = lambda: at
    function({"Records": records}, None)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if "_aws" in line]


def test_freshness_is_the_longest_time_from_a_write_to_its_rows_and_leaves_out_what_failed(capsys):
    (line,) = measured(capsys, Settings(state_table="state"), records(3, poison=[0]), at=START + 100)
    assert line["freshness_seconds"] == 70  # of the second record; the first was refused
    assert (line["refused"], line["failed"], line["function"], line["service"]) == (1, 1, "Projector", "shop")
    assert line["batch_seconds"] > 0


def test_nothing_applied_has_no_freshness(capsys):
    (line,) = measured(capsys, Settings(state_table="state"), records(1, poison=[0, 1]), at=START + 100)
    assert "freshness_seconds" not in line


def test_metrics_of_handlers_are_written_where_the_setting_asks_for_them(capsys):
    settings = Settings(state_table="state", observe_handlers=True)
    _, line = measured(capsys, settings, records(2, poison=[0]), at=START + 100)
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["function", "handler", "service"]]
    assert (line["handler"], line["applied"], line["refused"], line["parked"]) == ("sales", 3, 1, 0)
    assert line["freshness_seconds"] == 70


def by_handler(lines):
    return {line["handler"]: line for line in lines if "handler" in line}


def test_each_handler_has_the_freshness_of_what_it_applied(capsys):
    settings = Settings(state_table="state", observe_handlers=True)
    app = shop("retry", with_history=True)
    lines = by_handler(measured(capsys, settings, records(2, poison=[0]), at=START + 100, app=app))
    assert {name: (line["applied"], line["freshness_seconds"]) for name, line in lines.items()} == {
        "sales": (3, 70),
        "history": (4, 100),
    }


def test_a_handler_of_another_group_has_no_metrics(capsys):
    router = Router()
    router.audit(LINE, name="mine")
    router.archive(LINE, to="s3://kept/lines", name="theirs", group="others")
    settings = Settings(state_table="state", observe_handlers=True, group="main")
    lines = measured(capsys, settings, records(1), at=START + 100, app=App("shop", routers=[router]))
    assert by_handler(lines).keys() == {"mine"}


def test_records_of_a_handler_that_is_off_are_measured_as_parked(capsys, tmp_path):
    settings = Settings(state_table="state", observe_handlers=True, handlers_off=("sales",), park="s3://b/parked")
    parking = FileParking(str(tmp_path / "parked.jsonl"))
    (line,) = by_handler(measured(capsys, settings, records(1), at=START + 100, parking=parking)).values()
    assert (line["handler"], line["applied"], line["parked"]) == ("sales", 0, 2)
    assert "freshness_seconds" not in line


def test_a_time_that_cannot_be_read_leaves_the_freshness_of_the_others(capsys):
    unreadable, readable = records(1)
    unreadable["dynamodb"]["ApproximateCreationDateTime"] = "yesterday"
    (line,) = measured(capsys, Settings(state_table="state"), [unreadable, readable], at=START + 100)
    assert line["freshness_seconds"] == 70
