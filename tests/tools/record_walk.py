"""Follows one INSERT through an application with one view: ``python -m tests.tools.record_walk`` prints its modules."""

import sys
from itertools import groupby
from pathlib import Path
from types import FrameType

import streamfold
from streamfold import App, Count, Item, Key, Router, Row, Sum
from streamfold.engines import MemoryEngine

PACKAGE = Path(streamfold.__file__).parent
ORDER = Key("ORDER#{order_id}", "METADATA")
DAY = Key("DAY#{day}", "TOTAL")
ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/main/stream/2026-03-01T10:00:00.000"
router = Router()


@router.view(ORDER, into=DAY)
def daily(order: Item) -> Row:
    return Row(day=order["day"], orders=Count(), total=Sum(order["total"]))


def insert(number: int) -> dict:
    keys = {"PK": {"S": f"ORDER#{number}"}, "SK": {"S": "METADATA"}}
    return {
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "eventSourceARN": ARN,
        "dynamodb": {
            "SequenceNumber": str(10**20 + number),
            "StreamViewType": "NEW_AND_OLD_IMAGES",
            "ApproximateCreationDateTime": 1_772_359_200,
            "Keys": keys,
            "NewImage": {**keys, "day": {"S": "2026-03-01"}, "total": {"N": "5"}},
        },
    }


def walk() -> list[str]:
    """The modules that the second INSERT of a process passes through, in order, a line for each move."""
    app = App("walk", routers=[router])
    engine = MemoryEngine(app)
    app.process({"Records": [insert(1)]}, engine=engine)
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            called.append(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(note)
    try:
        app.process({"Records": [insert(2)]}, engine=engine)
    finally:
        sys.setprofile(None)
    return [module for module, _ in groupby(called)]


def figures() -> dict[str, int]:
    moves = walk()
    return {"modules": len(set(moves)), "moves": len(moves)}


if __name__ == "__main__":
    print("\n".join(dict.fromkeys(walk())))
    print(figures())
