"""One more try for a call of boto3 whose connection was closed.

AWS freezes a function between two invocations. Servers close connections meanwhile, and the function notices it at its
next request. All kept connections are dead then, so both tries of a call may meet one, though a new connection would be
answered at once. The first broken connection therefore closes all that are idle, and a call gets a third try if the
longest time of a call still allows it.
"""

from time import monotonic
from typing import Any

from botocore.exceptions import ConnectionClosedError, SSLError

from streamfold.settings.limits import CALL_SECONDS_MAX, CONNECT_SECONDS_MAX, READ_SECONDS_MAX, TRIES_MAX

BEGAN = "streamfold_began"
"""Where the context of a call keeps when it began."""
CLOSED_ID = "streamfold-closed"


def retry_closed(client: Any) -> Any:
    """Gives each call of a boto3 client one more try if its connection was closed. Returns the client."""
    client.meta.events.register("before-call", _note_begin, f"{CLOSED_ID}-begin")
    client.meta.events.register_first("needs-retry", _retry, CLOSED_ID)
    return client


def _note_begin(context: dict[str, Any], **_: Any) -> None:
    context[BEGAN] = monotonic()


def _retry(
    attempts: int, caught_exception: Exception | None, request_dict: dict[str, Any], endpoint: Any, **_: Any
) -> int | None:
    """The pause before another try, or None where botocore decides."""
    if not is_closed(caught_exception) or attempts > TRIES_MAX:
        return None
    endpoint.close()  # idle connections, dead as this one; those in use go on
    took = monotonic() - request_dict["context"].get(BEGAN, monotonic())
    # A try that took its time was no dead connection: another one would outlast the invocation.
    has_time = took + CONNECT_SECONDS_MAX + READ_SECONDS_MAX <= CALL_SECONDS_MAX
    return 0 if has_time else None


def is_closed(error: Exception | None) -> bool:
    """Whether the other side had closed the connection of a call."""
    return isinstance(error, ConnectionClosedError) or (isinstance(error, SSLError) and "EOF" in str(error))
