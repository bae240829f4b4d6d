"""Handlers of one line and what they contribute, for the tests of deriving."""

import pytest

from streamfold import Key, Router
from streamfold.errors import HandlerError
from streamfold.routes.checks import checked_routes
from tests.helpers.contributions import contribution
from tests.helpers.records import image, item

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
SALES = Key("SALES#{day}", "SKU#{sku}")
BY_STATUS = Key("STATUS#{status}", "ORDER#{order_id}")
ALL = Key("ALL", "ORDERS")
OWNED = Key("X#{order_id}#{sku}", "Y")
LINE = item("ORDER#1", "ITEM#a", price=5, day="2026-03-01")
FIELDS = {"order_id": "1", "sku": "a"}
TOTAL_ROW = ("main", "ORDER#1", "TOTAL")


def route(kind, function, *sources, beside=(), **options):
    """The checked route of a handler; other routers' handlers may stand beside it."""
    router = Router()
    getattr(router, kind)(*sources, name="handler", **options)(function)
    return checked_routes([*router.routes, *beside])[0]


def handler(*yielded):
    def generator(subject):
        yield from yielded

    return generator


def contributed(*yielded, kind="view", source=ORDER_ITEM, into=TOTAL, fields=FIELDS):
    return contribution(route(kind, handler(*yielded), source, into=into), image(LINE), fields)


def refused(*yielded, **options):
    with pytest.raises(HandlerError) as caught:
        contributed(*yielded, **options)
    return str(caught.value)
