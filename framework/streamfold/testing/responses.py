"""What a function's response says of its batch (Developer Guide, services-ddb-batchfailurereporting)."""

from collections.abc import Mapping, Sequence
from typing import Any

FAILURES = "batchItemFailures"
IDENTIFIER = "itemIdentifier"


def first_failed(response: Any, sequences: Sequence[str]) -> int | None:
    """The place in the batch from which on its records come again; None where all of it succeeded.

    For ``["10", "20", "30"]``, ``{"batchItemFailures": [{"itemIdentifier": "30"}, {"itemIdentifier": "20"}]}`` is 1:
    the lowest failed number is the checkpoint, and what follows it comes again, listed or not. Nothing at all, an empty
    response and an empty or missing list are success, so a response with a misspelt key is success too. An identifier
    that is empty, null, under another name, or not of the batch fails the whole batch, and so does whatever else is no
    such response.
    """
    if not response:
        return None
    if not isinstance(response, Mapping):
        return 0
    failures = response.get(FAILURES)
    if not failures:
        return None
    places = {sequence: place for place, sequence in enumerate(sequences)}
    entries = failures if isinstance(failures, list) else [failures]
    return min(_place(entry, places) for entry in entries)


def _place(entry: object, places: Mapping[str, int]) -> int:
    identifier = entry.get(IDENTIFIER) if isinstance(entry, Mapping) else None
    return places.get(identifier, 0) if isinstance(identifier, str) else 0
