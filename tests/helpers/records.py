"""Stream records written down as the item before and the item after: ``record(None, item("ORDER#1", total=5))``."""

from streamfold import Change
from streamfold.keys.table import MAIN
from streamfold.records.change import Origin
from streamfold.records.images import Image
from streamfold.records.values import encode

LABEL = "2026-03-01T09:00:00.000"
ARN = "arn:aws:dynamodb:us-east-1:123456789012:table/{table}/stream/{label}"
VERSION_PREFIX = f"00/{LABEL}/"
CARRIED = {"OldImage": ("NEW_AND_OLD_IMAGES", "OLD_IMAGE"), "NewImage": ("NEW_AND_OLD_IMAGES", "NEW_IMAGE")}


def item(partition, sort="METADATA", **attributes):
    """An item of a table with the key attributes PK and SK."""
    return {"PK": partition, "SK": sort, **attributes}


def image(item):
    """An item as a handler sees it; absent for None."""
    return Image(encode(item)["M"] if item else {})


def record(
    old,
    new,
    sequence=1,
    *,
    names=("PK", "SK"),
    view="NEW_AND_OLD_IMAGES",
    table="main",
    label=LABEL,
    at=1_772_355_600.0,
):
    """The record of an item's change from ``old`` to ``new``; None stands for an item that is not there."""
    images = {name: encode(there)["M"] for name, there in (("OldImage", old), ("NewImage", new)) if there}
    return {
        "eventID": str(sequence),
        "eventName": "INSERT" if old is None else "REMOVE" if new is None else "MODIFY",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": ARN.format(table=table, label=label),
        "dynamodb": {
            "ApproximateCreationDateTime": at,
            "Keys": {name: encode((new or old)[name]) for name in names},
            "SequenceNumber": str(sequence),
            "StreamViewType": view,
            **{name: raw for name, raw in images.items() if view in CARRIED[name]},
        },
    }


def change(old, new, sequence=1, table=MAIN, **more):
    """The same as a ``Change``."""
    return Change(record(old, new, sequence, names=table.attributes, **more), Origin(table, VERSION_PREFIX))
