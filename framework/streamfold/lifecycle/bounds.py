"""What version an item has at least that was read just now, where its changes come through Kinesis.

Records of a DynamoDB stream come in order, so a page needs no more than the ledger item tells. Kinesis may bring a
record after newer ones, or once more. An item that is read shows all changes before that moment, and versions are
times: so none that is older than the margin may count after it.
"""

from collections.abc import Iterable

from streamfold.batch.manifest import Manifest
from streamfold.ledger.item import BEFORE_ALL
from streamfold.records.envelope import KINESIS
from streamfold.records.kinesis import LABEL, MICROSECONDS
from streamfold.records.version import Version
from streamfold.routes.route import Route

LATE_SECONDS = 300
"""How far the clocks of this machine and of DynamoDB may be apart: a request that is signed more than five minutes away
from AWS's time is refused (IAM User Guide, Signature Version 4). A record of Kinesis comes no later after its time than
the gate and this margin."""


def lower_bound(found: Manifest, table: str, now: float) -> str:
    """The version that items of a table have at least which are read from ``now`` on, in epoch seconds."""
    entry = found.tables.get(table, {})
    if entry.get("source") != KINESIS:
        return BEFORE_ALL
    return str(Version.of(entry["epoch"], LABEL, max(int((now - LATE_SECONDS) * MICROSECONDS), 0)))


def through_kinesis(found: Manifest, routes: Iterable[Route]) -> bool:
    """Whether changes of one of these handlers' sources come through Kinesis."""
    tables = {key.table.name for route in routes for key in route.sources}
    return any(found.tables.get(name, {}).get("source") == KINESIS for name in tables)
