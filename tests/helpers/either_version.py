"""One warm process of this code or of earlier code: it takes batches from its input and prints what became of each.

``python -m tests.helpers.either_version ENDPOINT SHARE`` uses nothing that earlier code has not. With this code it puts
the additions to one of so many rows into deltas; 0: none.
"""

import json
import sys
from zlib import crc32

from streamfold import Add, App, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine
from streamfold.engines.dynamodb_client import make_client
from streamfold.errors import StreamfoldError
from streamfold.runtime import Runtime
from streamfold.settings import Settings

ITEM, TOTAL, CHANGES = Key("ITEM#{item_id}", "METADATA"), Key("GROUP#{group}", "TOTAL"), Key("CHANGES", "TOTAL")
STATE = "versions-state"
router = Router()


@router.view(ITEM, into=TOTAL)
def total(item):
    return Row(group=item["group"], amount=Sum(item["amount"]), items=Count())


@router.on(ITEM, into=CHANGES)
def changes(change):
    return Add(changes=1)


app = App("versions", [router])


def engine_of(client):
    return DynamoEngine(client, {name: (table, name) for name, table in app.tables.items()}, STATE)


def main(endpoint, share):
    runtime = Runtime(app, engine_of(make_client(endpoint_url=endpoint)), Settings(older_code=True))
    if int(share):
        runtime.pace.sharing.forced = lambda row: not crc32(str(row).encode()) % int(share)
    for line in sys.stdin:
        try:
            answer = {"failed": [str(failure.error) for failure in process_event(runtime, json.loads(line)).failures]}
        except StreamfoldError as error:
            answer = {"raised": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
