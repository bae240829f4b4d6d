"""What a history is drawn from: items, and the handlers of two versions of the code over them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Handler:
    """A handler as data: ``rows(item)`` gives, for each row, its fields and its values.

    A value is plain, or an aggregate as a tuple, ``("sum", 3)``. ``kind`` is that of the router's method.
    """

    name: str
    source: Any
    target: Any
    rows: Callable[[Mapping[str, Any]], Any] | None = None
    kind: str = "view"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self):
        return self.options.get("group", "main")


@dataclass(frozen=True)
class Items:
    """Items of one key: their fields, and ``draw(random, fields)`` for the application's attributes of one.

    ``touched``: written once more at the end. Items that only bear attributes are not: what is wrong there stays.
    """

    key: Any
    fields: list
    draw: Callable[..., Mapping[str, Any]]
    touched: bool = True


@dataclass(frozen=True)
class Shape:
    """Items, and what the old and the new code of each application makes of them.

    ``refused``: the new code does not fit the state, and the old one goes on. ``off`` names handlers that are switched
    off for a while; ``parks``: whose records are never skipped. ``own`` is an attribute that the writer may have of its
    own where none is derived. ``lost``: rows are removed behind the framework's back, and made anew in the end.
    ``swapped``: another table is put below the state. ``left`` names what retired handlers leave on rows. ``images``:
    it needs both images. ``filled``: a history begins with all items there, taken by the old code. ``rates``: how often
    a call of the store fails; ``bearers``: how many writes are of items that only bear what is derived, each of which
    sets right what is wrong there.
    """

    name: str
    items: list
    code: Mapping[str, tuple[list, list]]
    refused: bool = False
    off: tuple = ()
    parks: bool = False
    own: str | None = None
    lost: bool = False
    swapped: bool = False
    left: tuple = ()
    images: bool = False
    filled: bool = False
    bearers: float = 0.15
    rates: tuple = (0, 0.05, 0.15, 0.3)
    writes: int = 25

    def newest(self, app):
        old, new = self.code[app]
        return old if self.refused else new


def merged(shapes):
    """Several shapes as one application each: their items and targets have keys of their own."""
    code = {}
    for shape in shapes:
        for app, (old, new) in shape.code.items():
            known = code.get(app, ([], []))
            code[app] = (known[0] + old, known[1] + new)
    return Shape(
        "+".join(shape.name for shape in shapes),
        [each for shape in shapes for each in shape.items],
        code,
        off=tuple(name for shape in shapes for name in shape.off),
        parks=any(shape.parks for shape in shapes),
        own=next((shape.own for shape in shapes if shape.own), None),
        lost=any(shape.lost for shape in shapes),
        left=tuple(name for shape in shapes for name in shape.left),
        images=any(shape.images for shape in shapes),
        rates=min(shape.rates for shape in shapes),
        writes=25 + 10 * len(shapes),
    )


def numbered(key, count, draw, *, touched=True, **fields):
    """Items of a key, numbered in the field ``i``."""
    return Items(key, [{**fields, "i": str(number)} for number in range(count)], draw, touched=touched)


def scored(random, fields):
    """Scores that no two items share, so that no ties decide."""
    number = int(fields["i"])
    return {"score": random.randrange(10) * 10 + number, "g": random.choice("ab"), "h": random.choice("ab")}
