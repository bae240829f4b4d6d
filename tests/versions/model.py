"""What the newest code makes of the items that are there: the whole model."""

from collections import defaultdict

from tests.versions.api import place_of

WINS = "wins"
"""Among the values of a row: by what its plain attributes win over those of other items."""
MOST = 500
"""Values that a list or set shows at most, unless its handler says otherwise."""


def expected(handlers, items):
    """The rows and derived attributes that handlers make of ``{key: (its declaration, attributes)}``, by their keys."""
    given = defaultdict(list)
    for key, attributes in items.values():
        for handler in handlers:
            for fields, values in handler.rows(attributes) if handler.rows and handler.source == key else ():
                place = place_of(handler.target or key, {**attributes, **fields})
                given[place].append((attributes.get(handler.options.get("by")), values))
    return {place: claimed(row) if row[0][0] is not None else folded(row) for place, row in given.items()}


def claimed(row):
    """A unique row: that of the first to claim it, and the others."""
    (_, first), *others = sorted(row, key=lambda each: each[0])
    return {**first, "conflict": [values for _, values in others]} if others else first


def folded(row):
    shown = defaultdict(list)
    winner = max((values[WINS] for _, values in row if WINS in values), default=None)
    for _, values in row:
        for name, value in values.items():
            if name != WINS and (type(value) is tuple or values.get(WINS) == winner):
                shown[name].append(value)
    return dict(pair for name, values in shown.items() for pair in _shown(name, values))


def _shown(name, values):
    if type(values[0]) is not tuple:
        return [(name, values[-1])]
    last = [value[-1] for value in values]
    return [(name, FOLDS[values[0][0]](values, last))]


FOLDS = {
    "count": lambda values, last: len(values),
    "sum": lambda values, last: sum(last),
    "max": lambda values, last: max(last),
    "min": lambda values, last: min(last),
    "latest": lambda values, last: max(values)[2],
    "top": lambda values, last: [each[3] for each in sorted(values, key=lambda each: -each[2])[: values[0][1]]],
    "list": lambda values, last: sorted(value[1] for value in values)[:MOST],
    "set": lambda values, last: set(last),
}
