"""The settings of an event source mapping, held to the limits of Lambda."""

from dataclasses import dataclass
from typing import Literal, get_args

from streamfold.errors import SettingsError
from streamfold.testing.filters import Filters

StartingPosition = Literal["TRIM_HORIZON", "LATEST"]

FOREVER = -1
"""As a limit of retries or age: until the records expire."""
AGE_SECONDS_MIN = 60
"""The lowest age limit other than none (API Reference, EventSourceMappingConfiguration)."""
RANGES = {
    "batch_size": (1, 10_000),
    "window_seconds": (0, 300),
    "parallelization_factor": (1, 10),
    "retries_max": (FOREVER, 10_000),
    "age_seconds_max": (FOREVER, 604_800),
}
"""Least and most of each number (API Reference, CreateEventSourceMapping)."""


@dataclass(frozen=True, slots=True)
class MappingSettings:
    """The settings of an event source mapping, with Lambda's defaults.

    ``batch_size`` is BatchSize, ``window_seconds`` MaximumBatchingWindowInSeconds, ``retries_max``
    MaximumRetryAttempts, ``age_seconds_max`` MaximumRecordAgeInSeconds (both -1: until the records expire), ``bisect``
    BisectBatchOnFunctionError, ``report_item_failures`` the response type ReportBatchItemFailures, ``filters`` the
    patterns of FilterCriteria as JSON text. Only ``starting_position`` has no default at Lambda.
    Raises ``SettingsError`` for a value that Lambda refuses.
    """

    batch_size: int = 100
    window_seconds: int = 0
    parallelization_factor: int = 1
    bisect: bool = False
    retries_max: int = FOREVER
    age_seconds_max: int = FOREVER
    report_item_failures: bool = False
    filters: tuple[str, ...] = ()
    starting_position: StartingPosition = "TRIM_HORIZON"

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            _check_number(name, getattr(self, name), least, most)
        if 0 <= self.age_seconds_max < AGE_SECONDS_MIN:
            raise SettingsError(
                f"age_seconds_max={self.age_seconds_max} does not fit: expected {FOREVER} for no limit, or at least "
                f"{AGE_SECONDS_MIN}."
            )
        if self.starting_position not in get_args(StartingPosition):
            raise SettingsError(
                f"starting_position={self.starting_position!r} does not fit: expected "
                f"{' or '.join(get_args(StartingPosition))}. A DynamoDB stream cannot be read from a time on."
            )
        Filters(self.filters)


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SettingsError(f"{name}={value!r} does not fit: expected a whole number from {least} to {most}.")
