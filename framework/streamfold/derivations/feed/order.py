"""Where the posts of a time lie: sort keys begin with it."""

from datetime import UTC, datetime

from streamfold.keys.field import ANY_TIME, Field, datetime_text, ulid_of
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
    own = key.types[order.name]  # the target's field may be of another kind than the post's
    if own.spec == "ulid":
        return before_place(key, order) + ulid_of(begin * 1000)
    moment = datetime.fromtimestamp(begin, UTC)
    if own.spec == ANY_TIME:  # all its texts of a second begin with this one, with whatever follows
        return before_place(key, order) + datetime_text(moment, 0)[:-1]
    return before_place(key, order) + str(own.write(moment.date() if own.spec == "date" else moment))
