"""Commands on DynamoDB send calls side by side, as functions do."""

from threading import Condition

import pytest
from botocore.httpsession import URLLib3Session

from tests.bench.service import Service
from tests.helpers.source import Source

PATIENCE_SECONDS = 5
ITEMS = 200
"""Of as many orders: twice as many rows as one transaction writes, none of them shared."""


class Watched(Service):
    """A service that keeps transactions waiting until as many are there as are expected."""

    def __init__(self, expected):
        super().__init__()
        self.expected = expected
        self.flying = self.most = 0
        self._changed = Condition()

    def send(self, request):
        if not bytes(request.headers["X-Amz-Target"]).endswith(b"TransactWriteItems"):
            return super().send(request)
        with self._changed:
            self.flying += 1
            self.most = max(self.most, self.flying)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self.expected, PATIENCE_SECONDS)
        answer = super().send(request)
        with self._changed:
            self.flying -= 1
        return answer


@pytest.fixture
def most_in_flight(folder, monkeypatch):
    """Replays against DynamoDB, and gives the most transactions that were in flight at once."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def replayed(expected):
        service, source = Watched(expected), Source()
        monkeypatch.setattr(URLLib3Session, "send", lambda _, request: service.send(request))
        records = [source.put(f"ORDER#{number}", "ITEM#1", price=1) for number in range(ITEMS)]
        options = ("--engine", "dynamodb", "--endpoint-url", "http://127.0.0.1:8000", "--table", "main=main")
        ran = folder.run("replay", folder.records(*records), *options)
        assert ran.code == 0, ran.err
        return service.most

    return replayed


def test_a_replay_sends_as_many_transactions_at_once_as_there_are_lanes(most_in_flight, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_LANES", "3")
    assert most_in_flight(3) == 3


def test_a_replay_sends_one_transaction_after_another_with_one_lane(most_in_flight, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_LANES", "1")
    assert most_in_flight(1) == 1
