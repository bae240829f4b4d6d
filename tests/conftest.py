"""What every test starts from: no settings, credentials or region of the machine that it runs on."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from decimal import localcontext
from typing import Any

import hypothesis
import pytest

from streamfold.records.values import EXACT
from streamfold.writes.guarded import LedgerWrite
from tests.helpers import accounting
from tests.helpers.changed_writes import on_writes
from tests.helpers.contributions import SCHEMA
from tests.helpers.source import Source

hypothesis.settings.register_profile("streamfold", deadline=None, max_examples=40)  # a busy machine is no failure
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=1_000)  # make nightly
hypothesis.settings.register_profile("quick", deadline=None, max_examples=10)  # make quick
hypothesis.settings.load_profile("streamfold")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts a job behind so, and tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
accounting.install()
pytest.register_assert_rewrite(
    "tests.helpers.engine_contract",
    "tests.helpers.entries_contract",
    "tests.helpers.counter_contract",
    "tests.helpers.pairs_contract",
    "tests.helpers.commit_contract",
)


CONTAINERS_NEW = 50_000
"""New containers after which Python looks for cycles, in place of 700."""
SERVED = {
    "engine": ("tests/on_local", "tests/search", "tests/browser"),
    "opensearch": ("tests/search",),
    "browser": ("tests/browser",),
    "spark": ("tests/on_local",),
}
"""By marker: the folders that ``.ci/run`` and ``make spark`` collect its tests from, to leave thousands alone."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """What tests import and collect is looked through for cycles once, not with each test: a seventh of their time."""
    for item in session.items:
        for marker, folders in SERVED.items():
            if item.get_closest_marker(marker) and not item.nodeid.startswith(folders):
                raise pytest.UsageError(f"{item.nodeid} is marked {marker}: expected in {' or '.join(folders)}.")
    gc.collect()
    gc.freeze()
    gc.set_threshold(CONTAINERS_NEW)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``longest`` begin first: one that began last would leave the other processor without work."""
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("STREAMFOLD_", "AWS_")):
            monkeypatch.delenv(name)
    # moto does not answer at the address that holds an account's number; nobody should wait for instance metadata.
    monkeypatch.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", "disabled")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    if "boto3" in sys.modules:  # its session keeps the credentials that an earlier test had set
        from tests.helpers.service_models import SharedLoader

        monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
        monkeypatch.setattr("botocore.loaders.Loader", SharedLoader)


@pytest.fixture(autouse=True)
def _nothing_learnt() -> None:
    SCHEMA.by_target.clear()


@pytest.fixture(autouse=True)
def _clean_log() -> Iterator[None]:
    """Powertools hangs a handler with this test's standard output on the logger; the next test's is another."""
    log = logging.getLogger("streamfold")
    before = vars(log) | {"handlers": [*log.handlers], "filters": [*log.filters]}
    yield
    vars(log).clear()
    vars(log).update(before)
    log.setLevel(log.level)  # which forgets what was remembered of other levels


@pytest.fixture
def exact() -> Iterator[None]:
    """Arithmetic as ``process`` sets it for handlers and planner."""
    with localcontext(EXACT):
        yield


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AWS in this process: clients that a test makes find it, with credentials and a region."""
    from moto import mock_aws  # not at the top: the tests of the pure core run where moto is not installed

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        yield


@pytest.fixture
def queue(aws: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A queue of SQS, which is not waited for."""
    from tests.helpers.queue import Queue

    monkeypatch.setattr("streamfold.failures.failed_records.WAIT_SECONDS", 0)
    return Queue()


@pytest.fixture
def source() -> Source:
    """The table "main", whose writes give records."""
    return Source()


@pytest.fixture
def unguarded() -> Iterator[None]:
    """Ledger writes of the local stores are plain updates: none is refused for what is there."""
    with on_writes(LedgerWrite, guard=lambda _: lambda *_: True):
        yield
