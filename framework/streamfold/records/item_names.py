"""The name of an item: its key as one text, and back."""

import re
from hashlib import sha256

from streamfold.keys.key_part import KeyValue
from streamfold.records.change import ItemKey
from streamfold.records.numbers import number_text

NAME_BYTES_MAX = 2000
"""A name becomes part of a partition key, which takes 2,048 bytes (Developer Guide, ServiceQuotas)."""
PLAIN_WORD = r"[\w@%+=:,./-][\w@%+=:,./#-]*"
"""What a shell takes as it stands (POSIX, Shell Command Language, 2.2): ``#`` begins a comment only in front."""


def item_name(item: ItemKey) -> str:
    """One text for an item's key, different for any two items of a table: ``ORDER#1|ITEM#a``.

    A name that is too long for a key after ``AUDIT#`` is replaced by its digest.
    """
    texts = [value if type(value) is str else key_text(value) for value in item[1:] if value is not None]
    name = "|".join(texts)
    if name.count("|") >= len(texts) or "%" in name:
        name = "|".join([text.replace("%", "%25").replace("|", "%7C") for text in texts])
    if len(name) * 4 <= NAME_BYTES_MAX or len(name.encode()) <= NAME_BYTES_MAX:
        return name
    return f"sha256:{sha256(name.encode()).hexdigest()}"


def item_parts(name: str) -> list[str]:
    """The texts of the key values in an item's name; a digest is returned as it is."""
    return [part.replace("%7C", "|").replace("%25", "%") for part in name.split("|")]


def typed(name: str) -> str:
    """The arguments of a command for an item's name: partition and sort, quoted where a shell needs it."""
    from shlex import quote  # only messages for a person need it, and a function's start should not pay for it

    return " ".join(part if re.fullmatch(PLAIN_WORD, part) else quote(part) for part in item_parts(name))


def key_text(value: KeyValue) -> str:
    """A key value as text: a number in its shortest form, bytes in hexadecimal."""
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else number_text(value)
