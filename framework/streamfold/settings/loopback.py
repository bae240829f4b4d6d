"""Which URLs are of this machine: they need no encryption, and rehearsals write without confirmation."""

from ipaddress import ip_address
from urllib.parse import urlsplit

LOCALHOST = "localhost"


def is_loopback(url: str | None) -> bool:
    """Whether a URL names this machine: ``localhost``, or an address of 127.0.0.0/8 or ``::1`` (RFC 6890).

    A name such as ``127.example.com`` belongs to another machine.
    """
    host = urlsplit(url or "").hostname or ""
    try:
        return host == LOCALHOST or ip_address(host).is_loopback
    except ValueError:  # a name
        return False
