"""Each aggregate of the framework, in each of its choices. A new one is entered here, and many tests then cover it.

An aggregate is made of a value and of the value that orders it, or of the number that is added up.
"""

from streamfold import Average, Collect, Count, Distinct, First, Latest, Max, Min, Sum, Top

LARGEST_KEY = "largest key"

ADDED = {
    "sum": Sum,
    "count": lambda number: Count(),
    "average": Average,
}
ORDERED = {
    "max": lambda value, by: Max(by),
    "min": lambda value, by: Min(by),
    "latest": lambda value, by: Latest(value, by=by),
    "latest, largest key": lambda value, by: Latest(value, by=by, ties=LARGEST_KEY),
    "first": lambda value, by: First(value, by=by),
    "first, largest key": lambda value, by: First(value, by=by, ties=LARGEST_KEY),
    "top": lambda value, by: Top(2, value, by=by),
    "top, largest key": lambda value, by: Top(2, value, by=by, ties=LARGEST_KEY),
    "top, smallest": lambda value, by: Top(2, value, by=by, smallest=True),
    "top, smallest, largest key": lambda value, by: Top(2, value, by=by, smallest=True, ties=LARGEST_KEY),
    "set": lambda value, by: Collect(by, most=2),
    "list": lambda value, by: Collect(by, most=3, into=list),
}
"""Those that ``streamfold.read.sharded`` merges."""
UNMERGED = {"distinct": lambda value, by: Distinct(by)}

SHIPPED = {type(make(1)) for make in ADDED.values()} | {type(make(1, 1)) for make in (ORDERED | UNMERGED).values()}
