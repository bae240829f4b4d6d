"""The contract of ``commit`` on the embedded engine."""

from contextlib import ExitStack, closing

import pytest

from streamfold.engines import EmbeddedEngine
from tests.helpers.commit_contract import CommitContract, Setting, make_app
from tests.helpers.counter_examples import CounterExamples


@pytest.fixture
def setting():
    with ExitStack() as engines:
        yield lambda app, **source: Setting(
            app, engines.enter_context(closing(EmbeddedEngine(app.tables.values()))), **source
        )


@pytest.fixture
def at(setting):
    return setting(make_app())


class TestCommit(CommitContract):
    """The contract in memory."""


class TestCounterExamples(CounterExamples):
    """The counter-examples in memory."""
