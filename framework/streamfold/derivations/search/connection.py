"""The connection to an OpenSearch server, opened from the settings: address, encryption, and who asks."""

import json
import re
from base64 import b64encode
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from streamfold.derivations.search.opensearch import OpenSearchIndex
from streamfold.errors import SettingsError
from streamfold.limits import CALL_SECONDS_MAX
from streamfold.settings import Settings
from streamfold.settings.readers import PREFIX

CONNECT_SECONDS_MAX = 2
READ_SECONDS_MAX = CALL_SECONDS_MAX - CONNECT_SECONDS_MAX
"""A bulk takes longer than a call of DynamoDB; it is sent once, so that the two together are the time of one call."""
SERVICE_HOSTS = {".es.amazonaws.com": "es", ".aoss.amazonaws.com": "aoss"}
"""How the hosts of domains and of Serverless collections end."""
REGION = re.compile(r"\.([a-z0-9-]+)\.(?:es|aoss)\.amazonaws\.com$")
UNSIGNED = "none"
DEFAULT_PORTS = {"https": 443, "http": 80}


def open_search(settings: Settings) -> OpenSearchIndex:
    """The server that the settings name. Raises ``SettingsError`` where they do not fit, or opensearch-py is missing.

    No request is made.
    """
    if settings.search is None:
        raise SettingsError(f"No search server is set: expected {PREFIX}SEARCH=https://HOST.")
    _check_user(settings)
    return OpenSearchIndex(_transport(settings, settings.search), settings.search)


def service_of(settings: Settings) -> str:
    """What requests are signed for: ``es``, ``aoss`` or ``none``."""
    if settings.search_service is not None:
        return settings.search_service
    if settings.search_user is not None:
        return UNSIGNED
    host = urlsplit(settings.search or "").hostname or ""
    return next((service for end, service in SERVICE_HOSTS.items() if host.endswith(end)), UNSIGNED)


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
        """Reads numbers with all their digits. Bodies are handed over as bytes, which it passes on."""

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
        http_compress=settings.search_gzip,
        headers=_user(settings),
        http_auth=_signer(settings, url),
        ssl_context=_encryption(settings) if urlsplit(url).scheme == "https" else None,
    )


def _host(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port or DEFAULT_PORTS[parts.scheme],
        "use_ssl": parts.scheme == "https",
        "url_prefix": parts.path,
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
    """The header of a user. opensearch-py knows only passwords in Latin letters."""
    if settings.search_user is None:
        return {}
    user = f"{settings.search_user}:{settings.search_password}"
    return {"authorization": f"Basic {b64encode(user.encode()).decode()}"}


def _signer(settings: Settings, url: str) -> Any:
    """What signs requests with the role of the function; None where they are not signed."""
    service = service_of(settings)
    if service == UNSIGNED:
        return None
    from botocore.session import get_session
    from opensearchpy import Urllib3AWSV4SignerAuth

    session = get_session()
    found = REGION.search(urlsplit(url).hostname or "")
    region = found[1] if found else session.get_config_variable("region")
    if not region:
        raise SettingsError(f"The region of {url} is not known: expected AWS_DEFAULT_REGION.")
    credentials = session.get_credentials()
    if credentials is None:
        raise SettingsError(
            f"Requests to {url} are signed for {service}, and there are no AWS credentials: expected those of a role "
            f"or a profile, or {PREFIX}SEARCH_SERVICE={UNSIGNED}."
        )
    return Urllib3AWSV4SignerAuth(credentials, region, service)
