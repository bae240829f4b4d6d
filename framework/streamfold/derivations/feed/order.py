"""Where the posts of a time lie: sort keys begin with it."""

from datetime import UTC, datetime

from streamfold.keys.field import Field, ulid_of
from streamfold.keys.key import Key


def before_place(key: Key, order: Field) -> str:
    """The literal that stands before the time in a sort key."""
    assert key.sort is not None
    text = ""
    for piece in key.sort.pieces:
        if not isinstance(piece, str):
            assert piece.name == order.name, "a sort key begins with the time"
            break
        text += piece
    return text


def place_from(key: Key, order: Field, seconds: float) -> str:
    """A place that no key of this time, or of a later one, lies before."""
    begin = max(int(seconds), 0)
    if order.spec == "ulid":
        return before_place(key, order) + ulid_of(begin * 1000)
    moment = datetime.fromtimestamp(begin, UTC)
    return before_place(key, order) + str(order.write(moment.date() if order.spec == "date" else moment))
