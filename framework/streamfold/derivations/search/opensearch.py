"""The documents of an OpenSearch server, versions 2.19 and 3.6 alike.

opensearch-py sends the requests. It is imported when a connection is opened (``connection.py``), never by this module.
Bodies are encoded here, because its serializer would turn decimals to floats.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlsplit

from streamfold.derivations.search.options import GONE
from streamfold.derivations.search.sink import BUSY, CONFLICT, VISIBLE, Action, Answer, Found, IndexBusy, TooLarge
from streamfold.derivations.secrets import is_renewed, secret_text
from streamfold.errors import EngineError, EngineUnavailable, EngineUnreachable, SettingsError, redacted, shortened
from streamfold.settings import Settings
from streamfold.settings.limits import CALL_SECONDS_MAX
from streamfold.settings.readers import PREFIX

PUT, ALREADY = "PUT", "resource_already_exists_exception"
COMMAND_TRIES = 7
"""Tries of a request of a command that runs for hours: with its pauses it waits half a minute for a server."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 10.0
TOO_LARGE = 413
TIMED_OUT = 408
NDJSON = {"content-type": "application/x-ndjson"}
REFUSED_FOR_GOOD = {
    401: f"Expected credentials that it knows: {PREFIX}SEARCH_USER and {PREFIX}SEARCH_PASSWORD, or a role and "
    f"{PREFIX}SEARCH_SERVICE=es or aoss.",
    403: "Expected permissions for this index: the access policy has to name the function's role, and so has the "
    "mapping of roles where the domain has fine-grained access control.",
    404: f"Expected an existing index: streamfold search create INDEX makes it. {PREFIX}SEARCH names the server.",
}
"""The remedy for a status of a whole request that no retry helps."""

BULK = {"filter_path": "items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by"}
"""The fields of a bulk's answer that are needed; the others would be most of it."""
HELD = re.compile(r"current version \[(\d+)\]")
"""The version that the index holds, in the reason of a conflict (OpenSearch, VersionConflictEngineException)."""
NO_WRITE_INDEX = "no write index is defined for alias"
NO_IDS = re.compile("document id is not supported", re.IGNORECASE)
"""In the reason of a collection of OpenSearch Serverless for time series or vectors, which makes the ids itself
(OpenSearch Service Developer Guide, serverless-overview).
"""
SEARCH_TYPE = (
    "Expected a collection of the type SEARCH: one for time series or vectors takes no ids of documents. The type of a "
    "collection cannot be changed, so make another one."
)
NOT_SIGNED = (
    f"This request was neither signed nor of a user, because {PREFIX}SEARCH_SERVICE is none, or the name of the host "
    f"does not give the service: expected {PREFIX}SEARCH_SERVICE=es or aoss, or {PREFIX}SEARCH_USER."
)
READ_IDS = 100
"""Documents that are read at once by their ids."""
PAGE_DOCUMENTS = 250
"""Documents that are read at once in a scan."""
KEEP = "2m"
"""How long the server keeps a scan between two pages."""
CREATE = "streamfold search create"
REMEDY = "Expected an alias of one open index that may be written."
FOR_GOOD = {
    "index_not_found_exception": f"Expected an existing alias: {CREATE} INDEX makes it.",
    "cluster_block_exception": "Expected an index that may be written: take its block away (index.blocks.write, "
    "index.blocks.read_only).",
    "security_exception": "Expected permissions for this index: the access policy has to name the function's role.",
    "index_closed_exception": "Expected an open index: open it.",
}
"""Errors of a document that concern its whole index, with their remedies."""

CONNECT_SECONDS_MAX = 2
READ_SECONDS_MAX = CALL_SECONDS_MAX - CONNECT_SECONDS_MAX
"""A bulk takes longer than a call of DynamoDB. It is sent once, so that both together fit the time of one call. Only if
its connection was closed, it is sent again within what is left of that time."""
SERVICES = {"es": "es", "aos": "es", "aoss": "aoss"}
"""The services that requests are signed for, by what a host calls them."""
SUFFIXES = "amazonaws.com amazonaws.com.cn amazonaws.eu c2s.ic.gov sc2s.sgov.gov cloud.adc-e.uk csp.hci.ic.gov"
BOTH_SUFFIXES = (
    "aws amazonwebservices.com.cn amazonwebservices.eu aws.ic.gov aws.scloud cloud-aws.adc-e.uk aws.hci.ic.gov"
)
"""The ends of hosts in each partition, those that answer by IPv4, and those that answer by IPv6 too (``partitions`` of
botocore). Each is written out: a request to another host would hand the signature of the role to a stranger.
"""


def _any_of(suffixes: str) -> str:
    return "|".join(map(re.escape, suffixes.split()))


REGION = re.compile(
    rf"\.(?:(?P<region>[a-z0-9-]+)\.(?P<service>es|aoss)(?:-fips)?\.(?:{_any_of(SUFFIXES)})"
    rf"|(?P<both_service>aos|aoss)(?:-fips)?\.(?P<both_region>[a-z0-9-]+)\.on\.(?:{_any_of(BOTH_SUFFIXES)}))$"
)
"""The end of the host of a domain or a Serverless collection: ``.REGION.es.amazonaws.com``, ``.aos.REGION.on.aws``."""
UNSIGNED = "none"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
DEFAULT_PORTS = {"https": 443, "http": 80}


class SearchCalls:
    """Sends requests; failures are the errors of a sink."""

    def __init__(self, transport: Any, url: str) -> None:
        self.transport = transport
        self.url = url
        self.is_anonymous = False  # requests are neither signed nor of a user
        self.user: Callable[[], dict[str, str]] = dict  # the headers of a user
        self.is_renewed: Callable[[], bool] = lambda: False  # reads the user's password again
        self.tries = 1  # in a function: the record is redelivered
        self.pause: Callable[[float], None] = sleep

    def send(self, method: str, path: str, body: bytes, params: Mapping[str, str]) -> Any:
        """Sends lines of JSON as they are."""

        def once() -> Any:
            with self._explained():
                return self._perform(method, path, params=params, body=body, headers=NDJSON)

        return self._tried(method, once)

    def ask(self, method: str, path: str, body: Any = None, **params: str) -> Any:
        """Sends a small request; None if the server answers 404."""
        text = None if body is None else json.dumps(body).encode()

        def once() -> Any:
            with self._explained():
                try:
                    return self._perform(method, path, params=params, body=text)
                except _errors().NotFoundError:
                    return None

        return self._tried(method, once)

    def _perform(self, method: str, path: str, *, headers: Mapping[str, str] = NO_HEADERS, **more: Any) -> Any:
        """Sends a request, once more if the user's password has changed since it was read."""
        try:
            return self._sent(method, path, headers={**headers, **self.user()} or None, **more)
        except _errors().AuthenticationException:
            if not self.is_renewed():
                raise
        return self._sent(method, path, headers={**headers, **self.user()} or None, **more)

    def _sent(self, method: str, path: str, *, params: Mapping[str, Any], **more: Any) -> Any:
        """Sends a request, once more if the server had closed its connection: after a freeze of the function all kept
        connections are dead. Both tries take no longer than one may.
        """
        from urllib3 import Timeout
        from urllib3.exceptions import ProtocolError

        began = monotonic()
        try:
            return self.transport.perform_request(method, path, params=dict(params), **more)
        except _errors().ConnectionError as error:
            closed = isinstance(error.info, ProtocolError) or "EOF" in str(error.error)
            seconds = CALL_SECONDS_MAX - (monotonic() - began)
            if not closed or self.tries > 1 or seconds <= CONNECT_SECONDS_MAX:  # a command tries again by itself
                raise
        timeout = Timeout(total=seconds, connect=CONNECT_SECONDS_MAX)
        return self.transport.perform_request(method, path, params={**params, "request_timeout": timeout}, **more)

    def _tried(self, method: str, once: Callable[[], Any]) -> Any:
        """Sends a request again if its connection broke, or if the server is too busy for it.

        The first try may have taken effect. Documents have versions, so a second write changes nothing; an index that
        exists at the second try was made by the first.
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
            return EngineUnavailable(f"The encrypted connection to {self.url} was broken ({redacted(error.error)}).")
        return EngineError(
            f"The certificate of {self.url} is not valid ({redacted(error.error)}). Expected one of an authority that "
            f"is known; {PREFIX}SEARCH_CA=FILE names the certificates of an own one."
        )

    def _not_connected(self, error: Any) -> EngineUnavailable:
        from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

        if isinstance(error.info, ConnectTimeoutError | NewConnectionError):
            return EngineUnreachable(
                f"Nothing answers at {self.url} ({redacted(error.error)}): is {PREFIX}SEARCH right?"
            )
        return EngineUnavailable(f"The connection to {self.url} was broken ({redacted(error.error)}).")

    def _refused(self, error: Any) -> Exception:
        status, kind, reason = _read(error)
        if status == TOO_LARGE:
            return TooLarge(f"OpenSearch at {self.url} takes no request of this size ({TOO_LARGE}).")
        what = f"OpenSearch at {self.url} refused a request with {status}{kind}{reason}."
        if status == BUSY:
            return IndexBusy(what)
        if status >= 500 or status == TIMED_OUT:
            return EngineUnavailable(what)
        remedy = REFUSED_FOR_GOOD.get(status, "")
        if status in (401, 403) and self.is_anonymous:
            remedy = f"{remedy} {NOT_SIGNED}"
        return EngineError(f"{what} {remedy}".rstrip())


def _read(error: Any) -> tuple[int, str, str]:
    """Status, name and marked reason of a refused request. The name is the server's; the reason may quote content."""
    status = error.status_code if isinstance(error.status_code, int) else 500
    found = error.info.get("error") if isinstance(error.info, dict) else None
    if isinstance(found, dict):
        return status, f" {found.get('type', '')}", f" ({redacted(shortened(str(found.get('reason', ''))))})"
    message = found or (error.info.get("message") if isinstance(error.info, dict) else None) or error.error
    return status, "", f" ({redacted(shortened(str(message)))})" if message else ""


def _errors() -> Any:
    from opensearchpy import exceptions

    return exceptions


class OpenSearchIndex:
    """A sink that writes to the indices of a server, through their aliases."""

    def __init__(self, transport: Any, url: str) -> None:
        self.url = url
        self.calls = SearchCalls(transport, url)
        self.checked: set[str] = set()  # aliases that are as expected

    def check(self, index: str) -> None:
        if index not in self.checked:
            self._check(index)
            self.checked.add(index)

    def bulk(self, actions: Sequence[Action]) -> list[Answer]:
        if not actions:
            return []
        found = self.calls.send("POST", "/_bulk", encoded(actions), BULK)
        items = found.get("items", ()) if isinstance(found, dict) else ()
        if len(items) != len(actions):
            raise EngineUnavailable(f"OpenSearch at {self.url} answered {len(items)} of {len(actions)} documents.")
        return [self._answer(action, next(iter(item.values()))) for action, item in zip(actions, items, strict=True)]

    def read(self, index: str, ids: Collection[str]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        wanted = [*ids]
        for start in range(0, len(wanted), READ_IDS):
            page = {"ids": wanted[start : start + READ_IDS]}
            answer = self._there(index, self.calls.ask("POST", f"/{quote(index)}/_mget", page))
            for document in answer["docs"]:
                if "error" in document:
                    raise self._for_good(index, document["error"])
                if document["found"]:
                    found[document["_id"]] = _found(document)
        return found

    def documents(self, index: str, *, hidden: bool = False) -> Iterator[Found]:
        """In the order of their last writes.

        A scan holds a point in time and pages by ``_seq_no``, which needs no memory for ids as sorting by ``_id`` does.
        Numbers are counted in each shard: the documents of the last number are read twice, and left out once.
        """
        names = ",".join(sorted(self._behind(index))) if hidden else index
        opened = self.calls.ask("POST", f"/{quote(names)}/_search/point_in_time", keep_alive=KEEP)
        point = self._there(index, opened)["pit_id"]
        try:
            yield from self._scan(point)
        finally:
            with suppress(EngineError):  # the server drops it by itself then
                self.calls.ask("DELETE", "/_search/point_in_time", {"pit_id": [point]})

    def close(self) -> None:
        """Closes the connections."""
        self.calls.close()

    def _check(self, index: str) -> None:
        found = self._behind(index)
        if index in found:
            raise EngineError(
                f"{index!r} is an index, and has to be an alias: searches would show documents of items that are gone. "
                f"Expected an alias that filters them; {CREATE} INDEX makes index and alias, after this one is deleted."
            )
        if len(found) > 1 and not any(alias.get("is_write_index") for alias in found.values()):
            raise EngineError(
                f"Alias {index!r} points to the indices {', '.join(sorted(found))}, and none is the one to write to. "
                "Expected one index: remove the others from the alias."
            )
        if unfiltered := sorted(name for name, alias in found.items() if not hides(alias.get("filter"))):
            raise EngineError(
                f"Alias {index!r} has no filter on {', '.join(unfiltered)}: searches would show documents of items "
                f"that are gone. Expected the filter {VISIBLE}; {CREATE} INDEX --dry-run prints an alias with it."
            )

    def _scan(self, point: str) -> Iterator[Found]:
        body: dict[str, Any] = {
            "pit": {"id": point, "keep_alive": KEEP},
            "size": PAGE_DOCUMENTS,
            "sort": ["_seq_no"],
            "version": True,
            "track_total_hits": False,
        }
        seen: set[tuple[str, str]] = set()
        while True:
            hits = self._there("", self.calls.ask("POST", "/_search", body))["hits"]["hits"]
            new = [hit for hit in hits if (hit["_index"], hit["_id"]) not in seen]
            yield from map(_found, new)
            if len(hits) < PAGE_DOCUMENTS:
                return
            last = hits[-1]["sort"][0]
            seen = {(hit["_index"], hit["_id"]) for hit in hits if hit["sort"][0] == last}
            body["search_after"] = [last - 1]

    def _behind(self, index: str) -> Mapping[str, Mapping[str, Any]]:
        found = self._there(index, self.calls.ask("GET", f"/{quote(index)}/_alias"))
        return {name: about["aliases"].get(index, {}) for name, about in found.items()}

    def _there(self, index: str, answer: Any) -> Any:
        if answer is None:
            raise EngineError(f"Alias {index!r} does not exist. Expected one: {CREATE} INDEX makes it.")
        return answer

    def _answer(self, action: Action, item: Mapping[str, Any]) -> Answer:
        status, error = item["status"], item.get("error")
        if error is None:
            return Answer(status)
        kind, reason = error.get("type", ""), error.get("reason", "")
        if status != BUSY and (kind in FOR_GOOD or NO_WRITE_INDEX in reason or NO_IDS.search(reason)):
            raise self._for_good(action.index, error)
        held = HELD.search(reason) if status == CONFLICT else None
        return Answer(status, _whole(error), int(held[1]) if held else None)

    def _for_good(self, index: str, error: Mapping[str, Any]) -> EngineError:
        self.checked.discard(index)
        kind = error.get("type", "")
        what = f"Alias {index!r} at {self.url} takes no documents: {kind} ({redacted(error.get('reason', ''))})."
        remedy = SEARCH_TYPE if NO_IDS.search(error.get("reason", "")) else FOR_GOOD.get(kind, REMEDY)
        return EngineError(f"{what} {remedy}")

    def __str__(self) -> str:
        return self.url


def encoded(actions: Sequence[Action]) -> bytes:
    """The body of a bulk: lines of JSON."""
    lines: list[bytes] = []
    for action in actions:
        lines.append(_head(action).encode())
        if action.body is not None:
            lines.append(action.body.replace(b"\n", b" "))
    lines.append(b"")
    return b"\n".join(lines)


def _head(action: Action) -> str:
    verb = "delete" if action.body is None else "index"
    index, name = encode_basestring_ascii(action.index), encode_basestring_ascii(action.id)
    target = f'"_index":{index},"_id":{name},"require_alias":true'
    return f'{{"{verb}":{{{target},"version":{action.version},"version_type":"external"}}}}'


def hides(found: Any) -> bool:
    """Whether the filter of an alias hides documents that are gone; it may hide more."""
    clauses = found.get("bool", {}).get("must_not", []) if isinstance(found, dict) else []
    if isinstance(clauses, dict):
        clauses = [clauses]
    return any(clause.get("exists", {}).get("field") == GONE for clause in clauses)


def _found(document: Mapping[str, Any]) -> Found:
    return Found(document["_id"], document["_version"], document["_source"])


def _whole(error: Mapping[str, Any]) -> str:
    """The reason of an item's error with its innermost cause, which describes the problem of the document."""
    reasons = [str(error.get("reason", error.get("type", "")))]
    while isinstance(error := error.get("caused_by", {}), dict) and error:
        reasons.append(str(error.get("reason", "")))
    return ": ".join(dict.fromkeys(filter(None, [reasons[0], reasons[-1]])))


def open_search(settings: Settings) -> OpenSearchIndex:
    """The server of the settings. Raises ``SettingsError`` for wrong settings, or if opensearch-py is missing.

    No request is made.
    """
    if settings.search is None:
        raise SettingsError(f"No search server is set: expected {PREFIX}SEARCH=https://HOST.")
    _check_user(settings)
    found = OpenSearchIndex(_transport(settings, settings.search), settings.search)
    found.calls.is_anonymous = settings.search_user is None and service_of(settings) == UNSIGNED
    found.calls.user = lambda: _user(settings)
    found.calls.is_renewed = lambda: is_renewed(settings.search_password)
    return found


def service_of(settings: Settings) -> str:
    """The service for which requests are signed: ``es``, ``aoss`` or ``none``."""
    if settings.search_service is not None:
        return settings.search_service
    if settings.search_user is not None:
        return UNSIGNED
    found = REGION.search(urlsplit(settings.search or "").hostname or "")
    return UNSIGNED if found is None else SERVICES[found["service"] or found["both_service"]]


def _check_user(settings: Settings) -> None:
    given = {"USER": settings.search_user, "PASSWORD": settings.search_password}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 1:
        raise SettingsError(
            f"{PREFIX}SEARCH_{missing[0]} is missing: expected a user and a password, or neither of them."
        )
    if not missing and service_of(settings) != UNSIGNED:
        raise SettingsError(
            f"{PREFIX}SEARCH_USER is set, and {PREFIX}SEARCH_SERVICE={settings.search_service} signs the requests: "
            f"expected one of the two. {PREFIX}SEARCH_SERVICE={UNSIGNED} asks as the user."
        )


def _transport(settings: Settings, url: str) -> Any:
    try:
        from opensearchpy import SerializationError, Transport
        from opensearchpy.serializer import JSONSerializer
        from urllib3 import Timeout
    except ImportError as missing:
        raise SettingsError(
            f"A search server is named, and the package {missing.name} is not installed: expected what "
            "pip install '.[search]' installs in the folder of streamfold."
        ) from None

    class ExactNumbers(JSONSerializer):
        """Reads numbers with all their digits. Bodies are bytes, which it passes on."""

        def loads(self, s: str) -> Any:
            try:
                return json.loads(s, parse_float=Decimal)
            except ValueError as error:
                raise SerializationError(s, error) from None

    return Transport(
        [_host(url)],
        serializer=ExactNumbers(),
        max_retries=0,
        retry_on_timeout=False,
        timeout=Timeout(connect=CONNECT_SECONDS_MAX, read=READ_SECONDS_MAX),
        http_auth=_signer(settings, url),
        ssl_context=_encryption(settings) if urlsplit(url).scheme == "https" else None,
    )


def _host(url: str) -> dict[str, Any]:
    split = urlsplit(url)
    return {
        "host": split.hostname,
        "port": split.port or DEFAULT_PORTS[split.scheme],
        "use_ssl": split.scheme == "https",
        "url_prefix": split.path,
    }


def _encryption(settings: Settings) -> Any:
    """Certificates and names of hosts are always checked; ``search_ca`` replaces the known authorities."""
    import ssl

    if settings.search_ca is None:
        import certifi

        return ssl.create_default_context(cafile=certifi.where())
    if not Path(settings.search_ca).is_file():
        raise SettingsError(f"{PREFIX}SEARCH_CA={settings.search_ca!r} is no file: expected certificates in PEM.")
    try:
        return ssl.create_default_context(cafile=settings.search_ca)
    except ssl.SSLError:
        raise SettingsError(
            f"{PREFIX}SEARCH_CA={settings.search_ca!r} holds no certificate: expected certificates in PEM."
        ) from None


def _user(settings: Settings) -> dict[str, str]:
    """The header of a user: opensearch-py takes only passwords in Latin letters."""
    if settings.search_user is None:
        return {}
    user = f"{settings.search_user}:{secret_text(settings.search_password or '')}"
    return {"authorization": f"Basic {b64encode(user.encode()).decode()}"}


def _signer(settings: Settings, url: str) -> Any:
    """The signer of requests with the role of the function; None if requests are not signed."""
    service = service_of(settings)
    if service == UNSIGNED:
        return None
    from botocore.session import get_session
    from opensearchpy import Urllib3AWSV4SignerAuth

    session = get_session()
    found = REGION.search(urlsplit(url).hostname or "")
    region = found["region"] or found["both_region"] if found else session.get_config_variable("region")
    if not region:
        raise SettingsError(f"The region of {url} is not known: expected AWS_DEFAULT_REGION.")
    credentials = session.get_credentials()
    if credentials is None:
        raise SettingsError(
            f"Requests to {url} are signed for {service}, and there are no AWS credentials: expected those of a role "
            f"or a profile, or {PREFIX}SEARCH_SERVICE={UNSIGNED}."
        )
    return Urllib3AWSV4SignerAuth(credentials, region, service)
