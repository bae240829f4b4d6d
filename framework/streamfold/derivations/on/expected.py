"""What an ``on`` handler has to lead to: every change takes effect once."""

from streamfold.derivations.expected import Expected, History, placed
from streamfold.routes.effects import Add, Delete
from streamfold.routes.route import Route


def expected(route: Route, history: History) -> Expected:
    """The rows of all changes that the filters let through, in order."""
    rows = Expected().rows
    for change, fields in history.changes_of(route):
        own = change.as_written()
        for effect in history.called(route, own, fields, change.item) if own and route.takes(own) else ():
            key, values = placed(route, effect, fields)
            if isinstance(effect, Add):
                row = rows.setdefault(key, {})
                row.update({name: row.get(name, 0) + amount for name, amount in values.items()})
            elif isinstance(effect, Delete):
                rows.pop(key, None)
            else:
                rows[key] = values
    return Expected(rows)
