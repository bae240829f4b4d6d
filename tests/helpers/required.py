"""What a test needs and a machine may lack: an engine, a server, a browser."""

import os
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Skips where a person runs the tests; fails where all must be there, so that nothing is skipped unseen."""
    if os.environ.get("REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
