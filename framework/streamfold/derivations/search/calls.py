"""One request to an OpenSearch server, and what its failure means for the next one."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import sleep
from typing import Any

from streamfold.derivations.search.sink import BUSY, IndexBusy, TooLarge
from streamfold.errors import EngineError, EngineUnavailable, EngineUnreachable, shortened, told
from streamfold.settings.readers import PREFIX

PUT, ALREADY = "PUT", "resource_already_exists_exception"
COMMAND_TRIES = 7
"""Of a request of a command that works for hours: with its pauses it waits half a minute for a server."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 10.0
TOO_LARGE = 413
TIMED_OUT = 408
NDJSON = {"content-type": "application/x-ndjson"}
REFUSED_FOR_GOOD = {
    401: f"Expected credentials that it knows: {PREFIX}SEARCH_USER and {PREFIX}SEARCH_PASSWORD, or a role and "
    f"{PREFIX}SEARCH_SERVICE=es or aoss.",
    403: "Expected permissions for this index: the access policy has to name the function's role, and so has the "
    "mapping of roles where the domain has fine-grained access control.",
    404: f"Expected an index that is there: streamfold search create INDEX makes it. {PREFIX}SEARCH names the server.",
}
"""What to do about a status of a whole request that no other try helps."""


class SearchCalls:
    """Takes requests; their failures are the errors of a sink."""

    def __init__(self, transport: Any, url: str) -> None:
        self.transport = transport
        self.url = url
        self.tries = 1  # in a function: the record comes again
        self.pause: Callable[[float], None] = sleep

    def send(self, method: str, path: str, body: bytes, params: Mapping[str, str]) -> Any:
        """Sends lines of JSON as they are."""

        def once() -> Any:
            with self._explained():
                return self.transport.perform_request(method, path, params=dict(params), body=body, headers=NDJSON)

        return self._tried(method, once)

    def ask(self, method: str, path: str, body: Any = None, **params: str) -> Any:
        """Sends a small request; None where the server answers 404."""
        text = None if body is None else json.dumps(body).encode()

        def once() -> Any:
            with self._explained():
                try:
                    return self.transport.perform_request(method, path, params=params, body=text)
                except _errors().NotFoundError:
                    return None

        return self._tried(method, once)

    def _tried(self, method: str, once: Callable[[], Any]) -> Any:
        """Sends a request again whose connection broke, or that the server is too busy for.

        It may have taken effect. Documents have versions, so writing one twice changes nothing; an index that is there
        when it is made again was made by the try before.
        """
        for number in range(self.tries):
            try:
                return once()
            except EngineUnavailable:
                if number == self.tries - 1:
                    raise
                self.pause(min(PAUSE_SECONDS * 2**number, PAUSE_SECONDS_MAX))
            except EngineError as error:
                if number and method == PUT and ALREADY in str(error):
                    return {}
                raise
        raise AssertionError(self.tries)  # a request is sent once at least

    def close(self) -> None:
        self.transport.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        errors = _errors()
        try:
            yield
        except errors.SSLError as error:
            raise self._not_encrypted(error) from error
        except errors.ConnectionTimeout as error:
            raise EngineUnavailable(f"OpenSearch at {self.url} did not answer in time.") from error
        except errors.ConnectionError as error:
            raise self._not_connected(error) from error
        except errors.TransportError as error:
            raise self._refused(error) from error
        except errors.SerializationError as error:
            raise EngineUnavailable(f"OpenSearch at {self.url} gave an answer that is no JSON.") from error

    def _not_encrypted(self, error: Any) -> EngineError:
        if "CERTIFICATE_VERIFY_FAILED" not in str(error.error):
            return EngineUnavailable(f"The encrypted connection to {self.url} was broken ({told(error.error)}).")
        return EngineError(
            f"The certificate of {self.url} is not valid ({told(error.error)}). Expected one of an authority that is "
            f"known; {PREFIX}SEARCH_CA=FILE names the certificates of an own one."
        )

    def _not_connected(self, error: Any) -> EngineUnavailable:
        from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

        if isinstance(error.info, ConnectTimeoutError | NewConnectionError):
            return EngineUnreachable(f"Nothing answers at {self.url} ({told(error.error)}): is {PREFIX}SEARCH right?")
        return EngineUnavailable(f"The connection to {self.url} was broken ({told(error.error)}).")

    def _refused(self, error: Any) -> Exception:
        status, kind, reason = _read(error)
        if status == TOO_LARGE:
            return TooLarge(f"OpenSearch at {self.url} takes no request of this size ({TOO_LARGE}).")
        what = f"OpenSearch at {self.url} refused a request with {status}{kind}{reason}."
        if status == BUSY:
            return IndexBusy(what)
        if status >= 500 or status == TIMED_OUT:
            return EngineUnavailable(what)
        return EngineError(f"{what} {REFUSED_FOR_GOOD.get(status, '')}".rstrip())


def _read(error: Any) -> tuple[int, str, str]:
    """Status, name and marked reason of a refused request. The name is the server's, the reason may quote anything."""
    status = error.status_code if isinstance(error.status_code, int) else 500
    found = error.info.get("error") if isinstance(error.info, dict) else None
    if isinstance(found, dict):
        return status, f" {found.get('type', '')}", f" ({told(shortened(str(found.get('reason', ''))))})"
    message = found or (error.info.get("message") if isinstance(error.info, dict) else None) or error.error
    return status, "", f" ({told(shortened(str(message)))})" if message else ""


def _errors() -> Any:
    from opensearchpy import exceptions

    return exceptions
