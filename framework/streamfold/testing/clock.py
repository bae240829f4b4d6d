"""The time of the twins: it stands still until a test moves it."""

from streamfold.testing.errors import TwinError

START = 1_772_355_600.0
"""Where a clock begins if nothing else is said: 2026-03-01T09:00:00Z."""


class Clock:
    """Seconds since 1970, that only go forward.

    ``Clock().now`` is 1772355600.0, whatever the day: a test gives the same records at every run.
    """

    __slots__ = ("now",)

    def __init__(self, now: float = START) -> None:
        self.now = now

    def advance(self, seconds: float) -> None:
        """Moves the time on. Raises ``TwinError`` for less than no time."""
        given: object = seconds
        if isinstance(given, bool) or not isinstance(given, (int, float)) or seconds < 0:
            raise TwinError(f"The clock cannot be advanced by {seconds!r}: expected seconds, 0 or more (86_400 a day).")
        self.now += seconds

    def __repr__(self) -> str:
        return f"Clock({self.now!r})"
