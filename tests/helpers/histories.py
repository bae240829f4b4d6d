"""Histories of items, as the stream records that come of them, and the ways in which records are delivered again.

A history is a list of ``(key, attributes)``; no attributes remove the item, ``EXPIRED`` lets its time to live run out.
"""

from decimal import Decimal
from itertools import chain, repeat

from hypothesis import strategies as st

from tests.helpers.source import Source

EXPIRED = {"expired": True}
TIME_TO_LIVE = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
AMOUNTS = (0, 1, 7, 60, -5, Decimal("0.5"), Decimal("12345678901234567.25"))


def _orders():
    return {
        "status": ("placed", "paid", "cancelled"),
        "customer": ("ana", "bo"),
        "labels": ([], ["gift"], ["rush", "gift"], ["paid"]),
        "weight": AMOUNTS[:4],
        "email": ("a@example.com", "b@example.com"),
    }


def _order_items():
    return {
        "price": AMOUNTS,
        "quantity": (0, 1, 3),
        "day": ("2026-03-01", "2026-03-02"),
        "tags": ([], ["new"], ["new", "new", "old"]),
        "customer": ("ana", "bo"),
    }


def _sessions():
    return {"user": ("ana", "bo"), "day": ("2026-03-01", "2026-03-02"), "devices": (0, 1, 2)}


ITEMS = {
    **{(f"ORDER#{order}", "METADATA"): _orders() for order in "12"},
    **{(f"ORDER#{order}", f"ITEM#{sku}"): _order_items() for order in "12" for sku in ("a", "free")},
    **{(f"SESSION#{session}", "METADATA"): _sessions() for session in "12"},
    ("PROFILE#1", "METADATA"): {"name": ("Ana", "Bo")},
}


def writes():
    """A strategy for histories."""
    puts = (
        st.tuples(
            st.just(key), st.fixed_dictionaries({name: st.sampled_from(values) for name, values in choices.items()})
        )
        for key, choices in ITEMS.items()
    )
    removals = st.tuples(st.sampled_from(list(ITEMS)), st.sampled_from([None, EXPIRED]))
    return st.lists(st.one_of(*puts, removals), max_size=40)


def random_writes(random, count):
    """A history of this many writes out of a ``Random``."""
    history = []
    for _ in range(count):
        key, choices = random.choice(list(ITEMS.items()))
        put = {name: random.choice(values) for name, values in choices.items()}
        history.append((key, random.choices([put, None, EXPIRED], [6, 1, 1])[0]))
    return history


def records_of(history, **source):
    """The stream records of a history. What changes nothing leaves no record, and neither does removing nothing."""
    stream = Source(**source)
    records = []
    for key, attributes in history:
        before = stream.items.get(key)
        if attributes is None or attributes is EXPIRED:
            if before is not None:
                expired = {"userIdentity": TIME_TO_LIVE} if attributes is EXPIRED else {}
                records.append(stream.remove(*key) | expired)
        elif before is None or {**before, **attributes} != before:
            records.append(stream.put(*key, **attributes))
    return records


def steps():
    """A strategy for a delivery: size of a batch, records that are delivered again after it, each record twice."""
    sizes = st.one_of(st.integers(1, 5), st.integers(1, 1000))
    return st.lists(st.tuples(sizes, st.integers(0, 40), st.booleans()), max_size=12)


def random_steps(random, count):
    sizes = (1, 2, 3, 5, 10, 100, 1000)
    return [(random.choice(sizes), random.choice((0, 0, 1, 3, 20)), random.random() < 0.3) for _ in range(count)]


def batches(records, steps, rest=1000):
    """The records in batches, with those again that a step goes back to; behind the last step in batches of
    ``rest``.
    """
    position = 0
    for size, back, twice in chain(steps, repeat((rest, 0, False))):
        if position >= len(records):
            return
        batch = records[position : position + size]
        yield [record for record in batch for _ in range(1 + twice)]
        position = max(0, position + len(batch) - back)
