"""Search: documents of products, orders and songs, from the items that are there at the end."""

import itertools
from collections import defaultdict
from decimal import Decimal

import pytest

from handlers import app
from handlers.music import SONG
from handlers.search import orders, products, songs
from handlers.shop import ORDER, ORDER_ITEM, ORDER_TOTAL, PRODUCT, PRODUCT_RATING, REVIEW
from streamfold import Document, Part, Parts
from streamfold.derivations.search.options import OWN_FIELDS, options_of
from tests.systems import Replayed


@pytest.fixture(scope="module")
def catalogue():
    return Replayed("search")


@pytest.fixture(scope="module")
def shop():
    return Replayed("shop")


def rated(stars):
    """The mean of stars, rounded to two places."""
    return (Decimal(sum(stars)) / len(stars)).quantize(Decimal("0.01")) if stars else None


def test_products_that_are_sold_are_found_with_what_their_reviews_come_to(catalogue):
    stars = defaultdict(list)
    for (sku, _), review in catalogue.items(REVIEW).items():
        stars[sku].append(review["stars"])
    expected = {
        f"SKU#{sku}|PRODUCT": {
            **{name: product[name] for name in ("name", "category", "price")},
            "reviews": len(stars[sku]),
            "rating": rated(stars[sku]),
        }
        for (sku,), product in catalogue.items(PRODUCT).items()
        if "discontinued" not in product
    }
    assert len(expected) > 5
    assert catalogue.documents("products") == expected


def test_products_were_removed_discontinued_and_sold_again(catalogue):
    lives = [
        [image and bool(image.get("discontinued")) for image in images] for images in catalogue.images(PRODUCT).values()
    ]
    assert any(None in life for life in lives)
    assert any(life[-1] is True for life in lives)
    assert any((True, False) in itertools.pairwise(life) for life in lives)


def test_an_order_is_one_document_with_its_lines(shop):
    lines = defaultdict(list)
    for (order_id, sku), line in sorted(shop.items(ORDER_ITEM).items()):
        lines[order_id].append({"sku": sku, **{name: line[name] for name in ("name", "price", "quantity")}})
    expected = {
        f"ORDER#{order_id}|METADATA": {
            **{name: order[name] for name in ("status", "customer_id", "at", "total")},
            "lines": lines[order_id],
        }
        for (order_id,), order in shop.items(ORDER).items()
    }
    assert len(expected) > 100
    assert shop.documents("orders") == expected


def titled(songs_by_name):
    """A document for each title of each song."""
    return {
        f"{artist}#{album}#{song}#{language}": {
            "language": language,
            "name": title,
            "title": {language: title},
            "artist": artist,
            "album": album,
        }
        for (artist, album, song), item in songs_by_name.items()
        for language, title in item.get("titles", {"und": song}).items()
    }


def test_a_song_is_found_in_each_language_that_it_has_a_title_in(catalogue):
    expected = titled(catalogue.items(SONG))
    assert {document["language"] for document in expected.values()} == {"de", "en", "es", "ja"}
    assert catalogue.documents("songs") == expected


def test_titles_that_were_taken_away_left_no_document(catalogue):
    given = {
        (*name, language)
        for name, images in catalogue.images(SONG).items()
        for image in images
        for language in (image or {}).get("titles", ())
    }
    assert len(given) > len(catalogue.documents("songs"))


def test_a_song_whose_language_nobody_said_is_found_by_its_name():
    library = Replayed("music")
    expected = titled(library.items(SONG))
    assert {document["language"] for document in expected.values()} == {"und"}
    assert library.documents("songs") == expected


# The functions are plain: they are called with dicts.


def test_a_product_without_reviews_has_no_rating():
    tea = {"name": "Sencha", "category": "tea", "price": Decimal("8.9")}
    rest = {"name": "Sencha", "category": "tea", "price": Decimal("8.9")}
    assert products(tea, Parts({PRODUCT_RATING: []})) == Document(**rest, reviews=0, rating=None)
    found = products(tea, Parts({PRODUCT_RATING: [{"stars": 14, "reviews": 3}]}))
    assert found == Document(**rest, reviews=3, rating=Decimal("4.67"))
    assert products({**tea, "discontinued": True}, Parts({PRODUCT_RATING: []})) is None


def test_the_lines_of_an_order_know_their_keys():
    line = Part({"name": "Cup", "price": 6, "quantity": 2, "at": "2026-03-01"}, {"order_id": "1", "sku": "CUP-01"})
    parts = Parts({ORDER_ITEM: [line], ORDER_TOTAL: [{"total": 12, "lines": 1}]})
    found = orders({"status": "paid", "customer_id": "c", "at": "2026-03-01T08:00:00Z"}, parts)
    assert found.fields["total"] == 12
    assert found.fields["lines"] == [{"sku": "CUP-01", "name": "Cup", "price": 6, "quantity": 2}]


def test_a_song_gives_a_document_for_each_title():
    given = [*songs({"titles": {"de": "Haus", "en": "House"}}, "Ada", "One", "House")]
    assert [document.fields["title"] for document in given] == [{"de": "Haus"}, {"en": "House"}]


@pytest.mark.parametrize("route", [route for route in app.routes if route.kind.name == "search"], ids=lambda r: r.name)
def test_every_field_of_a_document_is_mapped(route, catalogue, shop):
    documents = {**catalogue.documents(route.name), **shop.documents(route.name)}
    assert documents
    mapped = set(options_of(route).mapping["properties"]) - set(OWN_FIELDS)
    assert {name for document in documents.values() for name in document} == mapped
    assert route.group == "search"
