"""What an update makes of an item of a table, and what DynamoDB refuses of it."""

from collections.abc import Mapping, Sequence

from streamfold.records.values import WIDE, AttributeValue, decode_number
from streamfold.testing.actions import UpdateItem
from streamfold.testing.errors import TwinError, WriteRefused
from streamfold.testing.items import KeySchema, StoredImage, StoredKey, encoded


def updated(schema: KeySchema, items: Mapping[StoredKey, StoredImage], action: UpdateItem) -> StoredImage:
    """The item after an update. Raises ``WriteRefused`` for an update that DynamoDB refuses."""
    if isinstance(action.remove, str):
        raise TwinError(f"An update has remove={action.remove!r}; expected names, such as [{action.remove!r}].")
    keys = schema.key_image(action.key)
    old = items.get(schema.key_of(keys))
    put, add, remove = encoded(action.put, "put"), encoded(action.add, "add"), tuple(action.remove)
    _check_names(keys, [*put, *add, *remove])
    image = {**(keys if old is None else old.image), **put}
    for name, amount in add.items():
        image[name] = {"N": _sum(name, image.get(name, {"N": "0"}), amount)}
    return schema.stored({name: value for name, value in image.items() if name not in remove})


def _check_names(keys: Mapping[str, AttributeValue], names: Sequence[str]) -> None:
    for name in names:
        if name in keys:
            raise WriteRefused(f"Attribute {name!r} is part of the key, which no update changes.")
        if names.count(name) > 1:
            raise WriteRefused(f"Attribute {name!r} is in the update twice: expected one of put, add and remove.")


def _sum(name: str, before: AttributeValue, amount: AttributeValue) -> str:
    if "N" not in before or "N" not in amount:
        raise WriteRefused(
            f"Attribute {name!r} cannot be added to: it holds {before!r:.80} and the amount is {amount!r:.80}; "
            "expected two numbers."
        )
    total = WIDE.add(decode_number(before["N"]), decode_number(amount["N"]))
    return str(encoded({name: total}, "The sum of")[name]["N"])
