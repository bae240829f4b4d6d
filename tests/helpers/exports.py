"""Exports to S3 as DynamoDB writes them, in a folder: manifests, and data files of JSON lines."""

import gzip
import json
from base64 import b64encode
from hashlib import md5
from itertools import islice

TIME = "2026-03-01T09:00:00.000Z"


def write_export(folder, items, *, files=1, total=None, table="shop", time=TIME, kind="FULL_EXPORT"):
    """Writes an export of items in DynamoDB JSON; returns the place of its manifest.

    total: how many items there are, where they are a generator for several files.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)
    left, most = iter(items), -(-(total or len(items)) // files)
    lines = [_file(folder, f"{number:04}.json.gz", islice(left, most)) for number in range(files)]
    summary = {
        "tableArn": f"arn:aws:dynamodb:eu-west-1:123456789012:table/{table}",
        "outputFormat": "DYNAMODB_JSON",
        "exportType": kind,
        "exportTime": time,
    }
    (folder / "manifest-summary.json").write_text(json.dumps(summary))
    manifest = folder / "manifest-files.json"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(manifest)


def _file(folder, name, items):
    count, path = 0, folder / "data" / name
    with gzip.open(path, "wt", compresslevel=1) as packed:
        for item in items:
            packed.write(json.dumps({"Item": item}) + "\n")
            count += 1
    checksum = b64encode(md5(path.read_bytes()).digest()).decode()
    return {"itemCount": count, "md5Checksum": checksum, "dataFileS3Key": f"AWSDynamoDB/x/data/{name}"}


def exported(engine, table):
    """The items of a table as an export has them."""
    return list(engine.items(table))
