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
    left, most = ({"Item": item} for item in items), -(-(total or len(items)) // files)
    lines = [_file(folder, f"{number:04}.json.gz", islice(left, most)) for number in range(files)]
    return _manifest(folder, lines, table, exportType=kind, exportTime=time)


def write_incremental(folder, changes, begin, end, *, table="shop", both=True):
    """Writes an incremental export; returns the place of its manifest.

    changes: of each item its key attributes, the images before and after, and the microseconds of its last write.
    both: the export has both images.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)

    def line(keys, old, new, written):
        images = {"OldImage": old if both else None, "NewImage": new}
        present = {name: image for name, image in images.items() if image is not None}
        return {"Metadata": {"WriteTimestampMicros": written}, "Keys": keys, **present}

    lines = [_file(folder, "0000.json.gz", (line(*change) for change in changes))]
    view = "NEW_AND_OLD_IMAGES" if both else "NEW_IMAGE"
    kind = {"exportType": "INCREMENTAL_EXPORT", "outputView": view}
    return _manifest(folder, lines, table, **kind, exportFromTime=begin, exportToTime=end)


def _manifest(folder, lines, table, **more):
    arn = f"arn:aws:dynamodb:eu-west-1:123456789012:table/{table}"
    summary = {"tableArn": arn, "outputFormat": "DYNAMODB_JSON", **more}
    (folder / "manifest-summary.json").write_text(json.dumps(summary))
    manifest = folder / "manifest-files.json"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(manifest)


def _file(folder, name, lines):
    count, path = 0, folder / "data" / name
    with gzip.open(path, "wt", compresslevel=1) as packed:
        for line in lines:
            packed.write(json.dumps(line) + "\n")
            count += 1
    checksum = b64encode(md5(path.read_bytes()).digest()).decode()
    return {"itemCount": count, "md5Checksum": checksum, "dataFileS3Key": f"AWSDynamoDB/x/data/{name}"}


def exported(engine, table):
    """The items of a table as an export has them."""
    return list(engine.items(table))
