"""What a mapping reads of a record, whether it is one of a DynamoDB stream or of Kinesis."""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from streamfold.records.envelope import number_of
from streamfold.records.kinesis import is_kinesis
from streamfold.testing.stream import CREATED, TwinRecord


def number_text(record: TwinRecord) -> str:
    """The sequence number by which a failure is reported."""
    return str(number_of(record))


def sequence_number(record: TwinRecord) -> int:
    return int(number_text(record))


def created_at(record: TwinRecord) -> float:
    """When a record came into its stream, seconds since 1970: its age is counted from then on."""
    if is_kinesis(record):
        return float(record["kinesis"]["approximateArrivalTimestamp"])
    return float(record["dynamodb"][CREATED])


def lane_key(record: TwinRecord) -> str:
    """What the records have in common that keep their order: the item (Developer Guide, with-ddb), or in Kinesis the
    partition key (Developer Guide, services-kinesis-create), which DynamoDB makes of the item.
    """
    if is_kinesis(record):
        return str(record["kinesis"]["partitionKey"])
    return json.dumps(record["dynamodb"]["Keys"], sort_keys=True)


def filtered_form(record: TwinRecord) -> Mapping[str, Any]:
    """A record as filters see it: of one of Kinesis only its data (Developer Guide, with-kinesis-filtering)."""
    return {"data": json.loads(b64decode(record["kinesis"]["data"]))} if is_kinesis(record) else record
