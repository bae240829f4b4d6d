"""Records of a made-up shop, for measuring."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/shop/stream/2026-03-01T10:00:00.000"
LINES_AN_ORDER = 5


def records(count: int, items: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Inserts, then amendments, of order items: about 1.2 KB each, with both images."""
    random, stored = Random(seed), {}
    for number in range(count):
        item = random.randrange(items)
        keys = {"PK": {"S": f"ORDER#{item // LINES_AN_ORDER:06d}"}, "SK": {"S": f"ITEM#{item % LINES_AN_ORDER}"}}
        new = keys | _attributes(random)
        old = stored.get(item)
        stored[item] = new
        body = {"Keys": keys, "NewImage": new, "SequenceNumber": str(10**20 + number), "SizeBytes": 600}
        body |= {"StreamViewType": "NEW_AND_OLD_IMAGES", "ApproximateCreationDateTime": 1772359200.0}
        yield {
            "eventID": f"{number:032x}",
            "eventName": "MODIFY" if old else "INSERT",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": "eu-west-1",
            "dynamodb": body | ({"OldImage": old} if old else {}),
            "eventSourceARN": ARN,
        }


def _attributes(random: Random) -> dict[str, Any]:
    return {
        "price": {"N": f"{random.randrange(1, 5000) / 100:.2f}"},
        "quantity": {"N": str(random.randrange(1, 9))},
        "at": {"S": f"2026-03-{random.randrange(1, 21):02d}T10:00:00Z"},
        "name": {"S": "A thing with a name of some length"},
        "tags": {"SS": ["a", "b", "c"]},
        "note": {"S": "x" * 120},
        "size": {"M": {"width": {"N": "10"}, "height": {"N": "20"}}},
    }


def lines(count: int, items: int) -> Iterator[str]:
    return (json.dumps(record, separators=(",", ":")) + "\n" for record in records(count, items))
