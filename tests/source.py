"""A table that tests write to, and the stream records that come of it, in the form in which Lambda delivers them."""

from streamfold.values import encode

ARN = "arn:aws:dynamodb:us-east-1:123456789012:table/{table}/stream/{label}"
LABEL = "2026-03-01T09:00:00.000"
BEGIN = 100_000_000_000_000_000_000


class Source:
    """Items of one table. Every write gives its record; writes that change nothing give none, as on AWS."""

    def __init__(self, table="main", names=("PK", "SK"), label=LABEL, view="NEW_AND_OLD_IMAGES"):
        self.arn = ARN.format(table=table, label=label)
        self.names = names
        self.view = view
        self.items = {}
        self.sequence = BEGIN

    def put(self, key, **attributes):
        """The record of an item's new state."""
        return self._write(key, {**dict(zip(self.names, key, strict=True)), **attributes})

    def remove(self, key):
        """The record of an item's removal."""
        return self._write(key, None)

    def _write(self, key, new):
        old = self.items.pop(key, None)
        if new is not None:
            self.items[key] = new
        self.sequence += 7
        images = {}
        if old is not None and self.view in ("NEW_AND_OLD_IMAGES", "OLD_IMAGE"):
            images["OldImage"] = encode(old)["M"]
        if new is not None and self.view in ("NEW_AND_OLD_IMAGES", "NEW_IMAGE"):
            images["NewImage"] = encode(new)["M"]
        return {
            "eventID": str(self.sequence),
            "eventName": "INSERT" if old is None else "REMOVE" if new is None else "MODIFY",
            "eventSource": "aws:dynamodb",
            "eventSourceARN": self.arn,
            "dynamodb": {
                "ApproximateCreationDateTime": 1_772_355_600,
                "Keys": {name: encode(value) for name, value in zip(self.names, key, strict=True)},
                "SequenceNumber": str(self.sequence),
                "StreamViewType": self.view,
                **images,
            },
        }
