"""Shapes by name, and several of them as one application: each has items and rows of its own."""

from random import Random

from tests.versions import shapes_of_items, shapes_of_rows
from tests.versions.declared import merged

OF_ROWS = (
    *("top", "set_to_list", "moved", "pages", "pages_changed", "plain_to_shared", "shared_to_plain"),
    *("added_and_retired", "renamed", "by_changed", "switched_off", "raising", "redacted", "expiring", "swapped"),
    *("large_values", "lost"),
)
OF_ITEMS = (
    *("parents", "parents_moved", "attribute_added", "attribute_renamed"),
    *("two_groups", "two_applications", "unmarked", "long_keys"),
)
NAMES = [*OF_ROWS, *OF_ITEMS]
"""All but ``large``, which shows nothing in memory."""
ALONE = ("set_to_list", "renamed", "by_changed", "swapped", "long_keys")
"""Those that are refused, or say nothing beside others."""
MIXED = [name for name in NAMES if name not in ALONE]
SHAPES_MIXED = 3
LOST = [
    "lost",
    "expiring",
    *(f"lost+{name}" for name in ("top", "moved", "plain_to_shared", "added_and_retired", "raising")),
]
"""Those of whose rows some are removed by hand, whatever they are of."""


def shape_of(name, seed):
    """The shape of a name, of names joined with ``+``, or ``mixed``: some that the seed chooses."""
    names = Random(f"mixed {seed}").sample(MIXED, SHAPES_MIXED) if name == "mixed" else name.split("+")
    shapes = [getattr(shapes_of_items if each in OF_ITEMS else shapes_of_rows, each) for each in names]
    return shapes[0]() if len(shapes) == 1 else merged([shape() for shape in shapes])
