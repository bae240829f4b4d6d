"""Keyed digests of history rows: without the key, nobody can make a digest or learn from one.

A row carries the digest of the item before its change, of the item after it, and of itself (HMAC, RFC 2104, with
SHA-256). Each is a function of the change and the key alone, so a record that is delivered again makes the same row.
The rows of an item form a chain: the item after one change is the item before the next.
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from streamfold.records.encoded import CANONICAL
from streamfold.records.images import Image, hidden, without_derived
from streamfold.records.values import encode

IMAGE, ROW = "image", "row"
"""The kind of content is part of its digest: the digest of an image never passes for that of a row."""


def image_digest(key: bytes, table: str, image: Image) -> str | None:
    """The digest of a whole image, attributes that are redacted or not recorded included; None for an absent one.

    Attributes of the framework and of replication, and those that were derived onto the item, are no part of it.
    """
    return _digest(key, IMAGE, table, encode(dict(Image(without_derived(image.raw))))["M"]) if image else None


def row_digest(key: bytes, row: Mapping[str, Any]) -> str:
    """The digest of a history row: its key and all of its attributes, the digests of the images included."""
    own = {name: value for name, value in row.items() if not hidden(name)}
    own["digests"] = {side: value for side, value in row["digests"].items() if side != ROW}
    return _digest(key, ROW, "", encode(own)["M"])


def same_digest(one: object, other: str) -> bool:
    """Whether two digests are equal, compared in constant time."""
    return isinstance(one, str) and one.isascii() and hmac.compare_digest(one, other)


def _digest(key: bytes, kind: str, table: str, encoded: Mapping[str, Any]) -> str:
    text = CANONICAL.encode([kind, table, encoded])
    return b64encode(hmac.digest(key, text.encode(), "sha256")).decode().rstrip("=")
