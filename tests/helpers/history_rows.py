"""Lives of an item, as the history rows that they leave: for the tests of what is told from such rows."""

from hypothesis import strategies as st

from streamfold import Change, Key, Router
from streamfold.derivations.audit.puts import audit_row
from streamfold.keys.table import MAIN
from streamfold.records.change import Origin
from streamfold.records.values import decode, encode
from streamfold.routes.checks import checked_routes
from tests.helpers.records import VERSION_PREFIX, item, record

ORDER = Key("ORDER#{order_id}", "METADATA")
KEY = {"PK": "ORDER#1", "SK": "METADATA"}
SECRET = b"k" * 32
BORN = 1_772_355_600
LARGE = "x" * (32 * 1024 + 1)
VALUES = (1, 2, "text", ["list"], LARGE, None)


GONE = object()
"""The value of an attribute that a change takes away."""


def lives():
    """A strategy for lives: (seconds since the change before, what it gives to some attributes, or None where the item
    is removed).
    """
    given = st.dictionaries(st.sampled_from("abcd"), st.sampled_from((*VALUES, GONE)))
    return st.lists(st.tuples(st.integers(0, 2), st.one_of(given, given, given, st.none())), max_size=12)


def states(life):
    """The images that a life passes, each with its time; what changes nothing is no change."""
    at, image, passed = BORN, None, []
    for seconds, given in life:
        at += seconds
        merged = None if given is None else {**(image or {}), **given}
        changed = merged and {name: value for name, value in merged.items() if value is not GONE}
        if changed != image:
            image = changed
            passed.append((at, image))
    return passed


def rows_of(passed, key=None, **options):
    """The history rows of these states, as a reader gets them."""
    router = Router()
    router.audit(ORDER, **options)
    (route,) = checked_routes(router.routes)
    rows, before = [], None
    for number, (at, image) in enumerate(passed, 1):
        after = None if image is None else item("ORDER#1", **image)
        changed = record(before, after, number)
        changed["dynamodb"]["ApproximateCreationDateTime"] = float(at)
        row = audit_row(route, Change(changed, Origin(MAIN, VERSION_PREFIX)), {"order_id": "1"}, key)
        rows.append(decode(encode({"PK": row.key[1], "SK": row.key[2], **row.attributes})))
        before = after
    return rows
