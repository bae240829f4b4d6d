"""Search: products with facets, orders with their lines, songs in the languages of their titles.

They are a group of their own, so that a slow index holds no other handler: ``STREAMFOLD_GROUP=search``.
"""

from collections.abc import Iterator

from handlers.music import SONG
from handlers.shop import ORDER, ORDER_ITEM, ORDER_TOTAL, PRODUCT, PRODUCT_RATING
from streamfold import Document, Item, Parts, Router, divide

router = Router()


@router.search(PRODUCT, parts=[PRODUCT_RATING], to="products", mapping="mappings/products.json", group="search")
def products(product: Item, parts: Parts) -> Document | None:
    if product.get("discontinued"):
        return None  # its document is hidden until it is sold again
    rating = parts.one(PRODUCT_RATING)  # a row of a view: empty without reviews
    reviews = rating.get("reviews", 0)
    return Document(
        name=product["name"],
        category=product["category"],
        price=product["price"],
        reviews=reviews,
        rating=divide(rating["stars"], reviews, places=2) if reviews else None,
    )


@router.search(ORDER, parts=[ORDER_ITEM, ORDER_TOTAL], to="orders", mapping="mappings/orders.json", group="search")
def orders(order: Item, parts: Parts) -> Document:
    return Document(
        status=order["status"],
        customer_id=order["customer_id"],
        at=order["at"],
        total=parts.one(ORDER_TOTAL).get("total", 0),
        lines=[
            {"sku": line.key["sku"], "name": line["name"], "price": line["price"], "quantity": line["quantity"]}
            for line in parts(ORDER_ITEM)
        ],
    )


@router.search(
    SONG,
    to="songs",
    id="{artist}#{album}#{song}#{language}",  # a document for each language, which is a field of the document
    mapping="mappings/songs.json",
    settings="mappings/songs_settings.json",
    group="search",
)
def songs(item: Item, artist: str, album: str, song: str) -> Iterator[Document]:
    for language, title in item.get("titles", {"und": song}).items():
        yield Document(language=language, name=title, title={language: title}, artist=artist, album=album)
