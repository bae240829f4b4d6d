"""A function's lag, as CloudWatch tells it."""

from datetime import UTC, datetime, timedelta

import boto3
import pytest
from botocore.stub import ANY, Stubber

from streamfold.errors import EngineError
from streamfold.jobs.rates import StreamLag, iterator_age

ASKED = {
    "Namespace": "AWS/Lambda",
    "MetricName": "IteratorAge",
    "Dimensions": [{"Name": "FunctionName", "Value": "projector"}],
    "StartTime": ANY,
    "EndTime": ANY,
    "Period": 60,
    "Statistics": ["Maximum"],
}
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def cloudwatch():
    client = boto3.client(
        "cloudwatch", region_name="us-east-1", aws_access_key_id="nobody", aws_secret_access_key="unused"
    )
    with Stubber(client) as stub:
        yield stub


def age(stub):
    return iterator_age("projector", lambda service: stub.client if service == "cloudwatch" else None)()


def test_the_newest_age_counts_in_seconds(cloudwatch):
    points = [
        {"Timestamp": NOW - timedelta(minutes=back), "Maximum": value} for back, value in ((1, 7e4), (0, 5e3), (3, 9e9))
    ]
    cloudwatch.add_response("get_metric_statistics", {"Datapoints": points}, ASKED)
    assert age(cloudwatch) == 5


def test_a_function_that_was_not_called_has_no_age_and_holds_nothing_up(cloudwatch):
    cloudwatch.add_response("get_metric_statistics", {"Datapoints": []}, ASKED)
    assert age(cloudwatch) is None
    assert StreamLag("projector", 1, lambda: None)() == ""


def test_a_missing_permission_is_named(cloudwatch):
    cloudwatch.add_client_error("get_metric_statistics", "AccessDenied", "not authorized")
    with pytest.raises(EngineError, match="needs the permission cloudwatch:GetMetricStatistics"):
        age(cloudwatch)


def test_an_age_is_read_every_half_minute():
    now, reads = [0.0], []
    lag = StreamLag("projector", 60, lambda: reads.append(now[0]) or 61.0, lambda: now[0])
    for seconds in range(0, 95, 5):
        now[0] = float(seconds)
        assert lag() == "function projector is 61 seconds behind its stream, --max-lag 60"
    assert reads == [0, 30, 60, 90]
