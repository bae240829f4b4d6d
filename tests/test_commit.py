"""The contract of ``commit`` on the embedded engine."""

import pytest

from streamfold.engines.embedded import EmbeddedEngine
from tests.commit_contract import CommitContract, Setting, make_app


@pytest.fixture
def setting():
    return lambda app, **source: Setting(app, EmbeddedEngine(app.tables.values()), **source)


@pytest.fixture
def at(setting):
    return setting(make_app())


class TestCommit(CommitContract):
    """The contract in memory."""
