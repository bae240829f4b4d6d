"""The addresses of destinations: ARNs and URLs of the settings, read and checked."""

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from streamfold.derivations.publish.options import EVENTBRIDGE, FIFO, SNS, SQS, NamedDestination
from streamfold.errors import SettingsError
from streamfold.settings import PUBLISH_PREFIX
from streamfold.settings.readers import is_loopback

if TYPE_CHECKING:
    from streamfold.settings import Settings

ARN = re.compile(
    r"arn:(?P<partition>aws[a-z0-9-]*):(?P<service>events|sns|sqs):(?P<region>[a-z0-9-]+):(?P<account>\d{12}):"
    r"(?P<name>[A-Za-z0-9_./-]+)",
    re.ASCII,
)
BUS, NEW_BUS = "event-bus/", "event-busv2/"
"""The two kinds of buses in an ARN: the newer one keeps order and drops repetitions (botocore, eventbridgev2)."""
QUEUE_HOST = re.compile(r"(?:sqs\.)?(?P<region>[a-z]{2}(?:-[a-z]+)+-\d)\.(?:queue\.)?amazonaws\.com(?:\.cn)?", re.ASCII)
"""The host of a queue's URL (AWS General Reference, SQS endpoints), also of the older form."""
SUFFIXES = {"aws-cn": "amazonaws.com.cn"}
"""The end of host names, where it is not ``amazonaws.com``."""
SERVICE_OF = {EVENTBRIDGE: "events", SNS: "sns", SQS: "sqs"}
EXPECTED = {
    EVENTBRIDGE: "the ARN of a bus, arn:aws:events:REGION:ACCOUNT:event-bus/NAME",
    SNS: "the ARN of a topic, arn:aws:sns:REGION:ACCOUNT:NAME",
    SQS: "the URL of a queue, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME, or its ARN",
}


class Address(NamedTuple):
    """Where a destination is."""

    to: NamedDestination
    text: str  # the ARN, or the URL of a queue
    arn: str | None  # None for a queue whose URL does not have it
    region: str | None = None  # None: the environment's
    endpoint_url: str | None = None  # of an emulator on this machine

    @property
    def is_fifo(self) -> bool:
        """Whether it keeps the order of a group, and drops repeated ids."""
        return self.text.endswith(FIFO) or self.is_new_bus

    @property
    def is_new_bus(self) -> bool:
        return f":{NEW_BUS}" in self.text


def address_of(to: NamedDestination, settings: "Settings", who: str) -> Address:
    """The address of a destination. Raises ``SettingsError`` if no setting has it, or if it is none of its service.

    who: the publisher, for messages.
    """
    variable = PUBLISH_PREFIX + to.variable
    text = settings.destination(to.name)
    if text is None:
        raise SettingsError(f"{who} goes to {str(to)!r}, and {variable} is not set: expected {EXPECTED[to.service]}.")
    found = _of_arn(to, text) or (_of_url(to, text) if to.service == SQS else None)
    if found is None:
        raise SettingsError(f"Setting {variable} is no address of {str(to)!r}: expected {EXPECTED[to.service]}.")
    if to.is_fifo and not found.is_fifo:
        raise SettingsError(
            f"Setting {variable} names no FIFO destination, and {str(to)!r} is declared as one: messages would lose "
            f"their order. Name one that ends with {FIFO}, or declare another."
        )
    return found


def _of_arn(to: NamedDestination, text: str) -> Address | None:
    arn = ARN.fullmatch(text)
    if arn is None or arn["service"] != SERVICE_OF[to.service]:
        return None
    name, region = arn["name"], arn["region"]
    if to.service == EVENTBRIDGE:
        return Address(to, text, text, region) if name.startswith((BUS, NEW_BUS)) else None
    if "/" in name:
        return None
    if to.service == SNS:
        return Address(to, text, text, region)
    suffix = SUFFIXES.get(arn["partition"], "amazonaws.com")
    return Address(to, f"https://sqs.{region}.{suffix}/{arn['account']}/{name}", text, region)


def _of_url(to: NamedDestination, text: str) -> Address | None:
    try:
        url = urlsplit(text)
        path, named = url.path.strip("/").split("/"), bool(url.hostname) and url.port != 0
    except ValueError:
        return None
    local = is_loopback(text)
    if not named or len(path) != 2 or url.query or url.username or url.scheme not in ("https", "http"):
        return None
    if url.scheme == "http" and not local:
        return None  # contents of items would be sent in clear
    host = QUEUE_HOST.fullmatch(str(url.hostname))
    if host is None:
        return Address(to, text, None, endpoint_url=f"{url.scheme}://{url.netloc}" if local else None)
    partition = "aws-cn" if str(url.hostname).endswith(".cn") else "aws"
    return Address(to, text, f"arn:{partition}:sqs:{host['region']}:{path[0]}:{path[1]}", host["region"])
