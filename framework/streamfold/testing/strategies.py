"""Items out of a Hypothesis strategy. Needs the extra ``testing``."""

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy


def examples_of(strategy: SearchStrategy[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """So many items of a strategy, always the same."""
    found: list[Mapping[str, Any]] = []

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(item: Mapping[str, Any]) -> None:
        found.append(item)

    collect()
    return found[:count]
