"""Types that handlers are annotated with."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Item: TypeAlias = Mapping[str, Any]
"""An item as a handler sees it: a read-only mapping of attribute names to Python values; a test may pass a ``dict``."""
