"""An oracle: the derived rows that records have to lead to, told from the records and the declarations alone.

Views and indexes are the fold of the last image of every item; an audit has one row per change; ``on`` takes every
change once. Nothing of the planner, the ledger or an engine is used.
"""

from collections import defaultdict

from streamfold.change import Change, Origin
from streamfold.effects import Add, Aggregate, Delete
from streamfold.values import decode, encode, hidden


def model(app, records):
    """The rows, as ``{(table, partition, sort): attributes}``."""
    changes = sorted({change.version_text: change for change in map(_change(app), records)}.items())
    items, rows = {}, {}
    for _, change in changes:
        items[change.item] = dict(change.new)
        _audit_and_on(app, change, rows)
    rounds = [{}]
    while len(rounds) == 1 or rounds[-1] != rounds[-2]:  # once more for every level of chains
        rounds.append(_folded(app, items | rounds[-1]))
    return plain(rows | rounds[-1])


def _folded(app, items):
    rows = defaultdict(dict)
    for item, image in items.items():
        for route, fields in _routes(app, item, "view", "index") if image else ():
            for effect in route.function(image, **{name: fields[name] for name in route.wants}):
                key, values = _placed(route, effect, fields)
                row = rows[key]
                for name, value in values.items():
                    row[name] = row.get(name, 0) + value.amount if isinstance(value, Aggregate) else value
    return dict(rows)


def _audit_and_on(app, change, rows):
    for route, fields in _routes(app, change.item, "audit", "on"):
        if route.kind == "audit":
            _audit(route, change, fields, rows)
        elif change.event in route.events and route.expired in (None, change.expired):
            if route.changed and not route.changed & change.changed:
                continue
            for effect in route.function(change, **{name: fields[name] for name in route.wants}):
                key, values = _placed(route, effect, fields)
                if isinstance(effect, Add):
                    row = rows.setdefault(key, {})
                    row.update({name: row.get(name, 0) + amount for name, amount in values.items()})
                elif isinstance(effect, Delete):
                    rows.pop(key, None)
                else:
                    rows[key] = values


def _audit(route, change, fields, rows):
    item = "|".join(str(value) for value in change.item[1:] if value is not None)
    values = {"item": item, "version": change.version_text}
    old, new = change.old, change.new
    changes = {
        name: {"redacted": True}
        if name in route.redact
        else {side: image[name] for side, image in (("old", old), ("new", new)) if name in image}
        for name in {*old, *new}
        if name not in change.keys and (name in old, old.get(name)) != (name in new, new.get(name))
    }
    row = {**values, "event": change.event, "at": change.at, "changes": changes}
    (target,) = route.into
    rows[(target.table.name, *target.compose({**fields, **values}))] = row | (
        {"expired": True} if change.expired else {}
    )


def _routes(app, item, *kinds):
    for route in app.routes:
        keys = (key for key in route.sources if key.table.name == item[0] and not route.external)
        matches = (key.match_values(*item[1:]) for key in keys)
        fields = next((match for match in matches if match is not None), None)
        if route.kind in kinds and fields is not None:
            yield route, fields


def _placed(route, effect, fields):
    target = effect.target or route.into[0]
    values = {name: value for name, value in effect.values.items() if name not in target.fields}
    return (target.table.name, *target.compose({**fields, **effect.values})), values


def _change(app):
    def change(record):
        head, _, label = record["eventSourceARN"].partition("/stream/")
        table = app.tables.get(head.partition(":table/")[2]) or app.tables["main"]
        return Change(record, Origin(table, f"00/{label}/"))

    return change


def plain(rows):
    """Rows as they compare: as stored, numbers that are 0 left out, because 0 and absent are alike."""
    return {key: _nonzero(decode(encode(row))) for key, row in rows.items()}


def stored(app, engine):
    """The derived rows of an engine, as their readers see them, in the same form."""
    rows = {}
    for table in app.tables.values():
        for item in engine.items(table):
            key = (table.name, *(decode(item[name]) for name in table.attributes), *(() if table.sort else (None,)))
            if app.derived(key) and item.get("_sf_n") != {"N": "0"}:
                rows[key] = _nonzero(
                    {name: decode(value) for name, value in item.items() if name not in table.attributes}
                )
    return rows


def _nonzero(row):
    return {name: value for name, value in row.items() if not hidden(name) and (value != 0 or isinstance(value, bool))}
