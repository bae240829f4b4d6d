"""Searches of three kinds: one item a document, an item with its parts, several documents of an item."""

from streamfold import App, Document, Key, Router, Row, Sum

ORDER = Key("ORDER#{order_id}", "METADATA")
LINE = Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
SONG = Key("SONG#{song}", "METADATA")
FIELDS = {"title": "text"}

ITEMS = {
    ORDER: [{"title": "first"}, {"title": "second", "hidden": True}, {"title": "third"}],
    LINE: [{"price": 3}, {"price": 4}],
    SONG: [{"titles": {"en": "one"}}, {"titles": {"de": "eins", "en": "one"}}, {"titles": {}}],
}


def one_item(**options):
    """A document of one item; some items have none."""
    router = Router()

    @router.search(ORDER, to="orders", fields=FIELDS, **options)
    def order(item):
        return None if "hidden" in item else Document(title=item["title"])

    return App("shop", routers=[router])


def with_parts(**options):
    """A document of an item, its lines, and a row that a view makes of these."""
    router = Router()

    @router.view(LINE, into=TOTAL)
    def total(line):
        return Row(total=Sum(line["price"]))

    @router.search(ORDER, to="orders", fields=FIELDS, parts=[LINE, TOTAL], **options)
    def order(item, parts):
        prices = {line.key["sku"]: line["price"] for line in parts(LINE)}
        return Document(title=item["title"], prices=prices, total=parts.one(TOTAL).get("total", 0))

    return App("shop", routers=[router])


def several(**options):
    """A document for every language of a song, by an id that follows from what the item holds."""
    router = Router()

    @router.search(SONG, to="songs", id="{song}#{language}", fields=FIELDS, **options)
    def song(item):
        for language, title in item["titles"].items():
            yield Document(language=language, title=title)

    return App("shop", routers=[router])


ALL = {"one item": one_item, "parts": with_parts, "several": several}


def items_of(app):
    """The items that an application's histories are drawn from."""
    subscribed = {each.key for route in app.routes for each in route.kind.subscriptions(route)}
    return {key: given for key, given in ITEMS.items() if key in subscribed}
