"""What an item contributes, as one process sees it that knows nothing yet."""

from streamfold.derivations.derivation import derived
from streamfold.ledger.schema import Schema

SCHEMA = Schema()
"""What a test learnt of attributes: it is forgotten before the next."""


def contribution(route, image, fields):
    return derived(route, image, fields, SCHEMA).checked()
