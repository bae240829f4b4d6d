"""The policy for records that a handler cannot process: they are retried or parked."""

from typing import Any, Literal, NamedTuple

from streamfold.errors import DeclarationError

OnError = Literal["retry", "park"]
ATTEMPTS_MAX = 10_000
"""What Lambda takes as the most retries of a batch (API Reference, CreateEventSourceMapping, MaximumRetryAttempts)."""
AGE_SECONDS_MAX = 24 * 60 * 60
"""How long a stream keeps a record (Developer Guide, Streams): an older one never comes again by itself."""


class Policy(NamedTuple):
    """When a failing record of a handler is parked. With ``park`` and no limit, that is at its first failure."""

    on_error: OnError = "retry"  # ``retry``: never parked
    attempts_max: int | None = None  # parked after so many failures, or by age, whichever is first
    age_seconds_max: int | None = None  # parked once it is older

    @property
    def parks(self) -> bool:
        return self.on_error == "park"

    @property
    def at_once(self) -> bool:
        """Whether the first failure is enough."""
        return self.parks and self.attempts_max is None and self.age_seconds_max is None

    def __str__(self) -> str:
        limits = []
        if self.attempts_max is not None:
            limits.append(f"after {self.attempts_max} attempt{'s' * (self.attempts_max > 1)}")
        if self.age_seconds_max is not None:
            limits.append(f"older than {self.age_seconds_max} s")
        return " ".join((self.on_error, " or ".join(limits))).strip()


RETRY = Policy()


def checked_policy(policy: Policy, decorator: str, at: str) -> Policy:
    """The policy of a handler. Raises ``DeclarationError`` with the corrected line for one that cannot be."""
    if policy.on_error not in ("retry", "park"):
        raise DeclarationError(
            f'The handler at {at} has on_error={policy.on_error!r}: expected "retry" or "park", '
            f'{decorator}(..., on_error="park").'
        )
    _check_number("attempts_max", policy.attempts_max, ATTEMPTS_MAX, 3, policy, decorator, at)
    _check_number("age_seconds_max", policy.age_seconds_max, AGE_SECONDS_MAX, 3600, policy, decorator, at)
    return policy


def _check_number(name: str, value: Any, most: int, example: int, policy: Policy, decorator: str, at: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise DeclarationError(
            f"The handler at {at} has {name}={value!r}: expected a whole number from 1 to {most}, "
            f'{decorator}(..., on_error="park", {name}={example}).'
        )
    if not policy.parks:
        raise DeclarationError(
            f'The handler at {at} has {name}={value!r} and on_error="retry", which never gives a record up: '
            f'{decorator}(..., on_error="park", {name}={value!r}).'
        )
