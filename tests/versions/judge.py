"""What has to be true when everything has settled."""

from tests.versions.api import Broken, contributors, item_of, matches, plain, sequence_of
from tests.versions.model import expected


def judge(history):
    """Raises ``Broken`` with the first promise that is broken."""
    if history.shape.swapped and not history.delivery.done:
        return
    stored = history.store.items()
    newest = _newest(history)
    _counts(_rows_of(history), _retired(history.shape))
    for place, (found, want) in differences(history).items():
        raise Broken(f"row {_cut(place[1:])} shows {_cut(found)}, expected {_cut(want)}")
    _items(history, expected([each for each in newest if each.kind == "attributes"], _items_of(history)), stored)
    _secrets(history, _rows_of(history))


def differences(history):
    """The rows of the newest code that are not those of the model: what they show, and what is expected.

    Rows of retired handlers stay as they are.
    """
    handlers, rows = [each for each in _newest(history) if each.kind != "attributes"], _rows_of(history)
    wanted = expected(handlers, _items_of(history))
    targets = [handler.target for handler in handlers if handler.rows]
    found = {}
    for place in sorted({*wanted, *rows}):
        if any(matches(target, place) for target in targets):
            sides = _shown(history, plain(rows.get(place))), _shown(history, wanted.get(place, {}))
            if sides[0] != sides[1]:
                found[place] = sides
    return found


def _newest(history):
    return [handler for name in history.shape.code for handler in history.shape.newest(name)]


def _items_of(history):
    return {place: (history.known[place][0].key, own) for place, own in history.items.items()}


def _rows_of(history):
    return {place: image for place, image in history.store.items().items() if place not in history.known}


def _retired(shape):
    """The targets of handlers that the newest code has no more: nobody looks at what a dead process left there."""
    kept = {handler.name for name in shape.code for handler in shape.newest(name)}
    old = (handler for versions in shape.code.values() for handler in versions[0])
    return [handler.target for handler in old if handler.name not in kept and handler.rows and handler.target]


def _counts(rows, retired):
    """No row counts less than nothing, and none counts nothing but those that a retired handler wrote."""
    for place, image in rows.items():
        count = contributors(image)
        if count is not None and count < 0:
            raise Broken(f"row {_cut(place[1:])} has {count} contributors: {plain(image)}")
        if count == 0 and not any(matches(target, place) for target in retired):
            raise Broken(f"row {_cut(place[1:])} is empty and still there: {plain(image)}")


def _items(history, derived, stored):
    """Items have what their writer gave them and what is derived; those that are gone stay away."""
    for place in history.known:
        own = history.items.get(place)
        want = None if own is None else _shown(history, own | derived.get(place, {}))
        found = None if place not in stored else _shown(history, plain(stored[place]))
        if found != want:
            raise Broken(f"item {_cut(place[1:])} has {_cut(found)}, expected {_cut(want)}")


def _secrets(history, rows):
    """A change that the redacting code was the first to note is never shown in clear."""
    first = history.delivery.first
    places = {item_of(record) for record in history.store.stream if "secret-" in str(record)}
    for record in history.store.stream:
        number = sequence_of(record)
        if item_of(record) in places and first.get(("shop", number)) == ("new", True):
            for place, image in rows.items():
                if number in str(image) and "secret-" in str(image):
                    raise Broken(f"history row {_cut(place[1:])} shows what is redacted")


def _shown(history, attributes):
    """0 and absent are alike; what a retired handler left stays."""
    return {name: value for name, value in attributes.items() if value != 0 and name not in history.shape.left}


def _cut(value):
    text = repr(value)
    return text if len(text) < 400 else f"{text[:200]} ... {text[-100:]}"
