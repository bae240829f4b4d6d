"""The contract of ``commit`` on the embedded engine."""

import pytest

pytest.register_assert_rewrite("tests.commit_contract")

from streamfold.engines.embedded import EmbeddedEngine  # noqa: E402 - after its assertions can be explained
from tests.commit_contract import CommitContract, Setting, make_app  # noqa: E402


@pytest.fixture
def setting():
    return lambda app, **source: Setting(app, EmbeddedEngine(app.tables.values()), **source)


@pytest.fixture
def at(setting):
    return setting(make_app())


class TestCommit(CommitContract):
    """The contract in memory."""
