"""Applications with two kinds each, in one group or in two, and the history of both: every kind beside every other."""

from dataclasses import replace
from itertools import combinations, zip_longest

from streamfold import Router
from tests.helpers.sample_applications import (
    LIFE,
    LINES_OF_ORDERS,
    MEANWHILE,
    POSTS,
    REFERENTS,
    TAGS_OF_PRODUCTS,
    Sample,
    archived,
    audited,
    by_tag,
    called,
    cascade,
    copied,
    documents,
    greatest,
    lines_found,
    made,
    names_on_lines,
    on_order,
    only_one,
    seen,
    signs,
    sums,
    tags_of_products,
    timeline,
    work_key,
)

KINDS = {
    "view": (sums, LIFE),
    "ordered view": (greatest, LIFE),
    "view with a lookup": (tags_of_products, TAGS_OF_PRODUCTS),
    "index": (by_tag, LIFE),
    "unique index": (only_one, LIFE),
    "attributes": (work_key, LIFE),
    "attributes of others": (on_order, LINES_OF_ORDERS),
    "attributes with a lookup": (names_on_lines, REFERENTS),
    "on, added to": (signs, LIFE),
    "on, put": (seen, LIFE),
    "audit": (audited, LIFE),
    "copy": (copied, LIFE),
    "external": (called, LIFE),
    "archive": (archived, LIFE),
    "cascade": (cascade, LINES_OF_ORDERS),
    "feed": (timeline, POSTS),
    "search": (documents, LIFE),
    "search with lookups": (lines_found, REFERENTS),
}
PAIRS = [*combinations(KINDS, 2)]
OTHER_GROUP = "other"


def in_group(declare, group):
    """The declarations of a sample, in a group."""

    def declares(router):
        own = Router()
        declare(own)
        router.routes += [replace(route, group=group) for route in own.routes]

    return declares


def sample_of(one, other, *, two_groups):
    """The application of two kinds and what happens to the items of both."""
    declares = [KINDS[one][0], KINDS[other][0]]
    if two_groups:
        declares[1] = in_group(declares[1], OTHER_GROUP)
    steps = zip_longest(KINDS[one][1], KINDS[other][1], fillvalue=())
    history = [[*first, *(each for each in second if each not in first)] for first, second in steps]
    settings = {"chunk_actions": 3} if "cascade" in (one, other) else {}
    # Of rows of feeds: nobody but the audit inserts its rows, so that its statements are never refused so.
    refusals = 2 if "feed" in (one, other) and "audit" not in (one, other) else 0
    looks_up = any("lookup" in each for each in (one, other))
    return Sample(made(*declares), history, settings, refusals, MEANWHILE if looks_up else ())
